# Two commands matter: `make demo` and `make test`.  Both create .venv with pinned versions first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo demo-short test test-slow lint bench peers test-minimal mutants claims reproduce verl-dry-run clean
demo: $(DONE)
	$(BIN)/python -m experiments demo

demo-short: $(DONE)
	$(BIN)/python -m experiments demo --short

test: $(DONE)
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not gpu"

test-slow: $(DONE)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "slow and not gpu"

lint: $(DONE)
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(DONE) build/peers/.installed
	$(BIN)/python -m benchmarks.conformal --out docs/conformal_bench.csv
	$(BIN)/python -m benchmarks.step_time
	$(BIN)/python -W ignore -m benchmarks.masks --out docs/masks.csv
	for c in steps slope off memory calibration; do $(BIN)/python -W ignore -m benchmarks.trainer_cost $$c --out docs/trainer_cost.csv || exit 1; done

peers: build/peers/.installed
build/peers/.installed: $(DONE)
	$(BIN)/python -m pip install --quiet --no-deps --target build/peers trl-cgrpo==0.2.0 mapie==1.6.0 crepes==0.9.1 torchcp==1.2.1 \
		scikit-learn==1.9.1 joblib==1.6.0 threadpoolctl==3.8.0 narwhals==2.29.0
	touch $@

test-minimal: $(DONE)
	$(BIN)/python tests/minimal.py build/minimal

CORE ?= conformal_core
mutants: $(DONE) build/mutation/.installed
	$(BIN)/python -m benchmarks.mutation $(CORE)

build/mutation/.installed: $(DONE)
	$(BIN)/python -m pip install --quiet --target build/mutation cosmic-ray==8.7.0 coverage==7.17.5
	touch $@

verl-dry-run: $(DONE)
	DATA=/data $(BIN)/python -W ignore -m carm_verl dry-run +carm=math_4b
	DATA=/data $(BIN)/python -W ignore -m carm_verl dry-run +carm=math_9b model_engine=megatron
	DATA=/data SANDBOX=http://sandbox:8080 $(BIN)/python -W ignore -m carm_verl dry-run +carm=code_9b trainer.nnodes=4

reproduce: $(DONE)
	$(BIN)/python -m experiments reproduce all --report docs/reproduce

claims: $(DONE)
	$(BIN)/python -m pytest -q tests/claims
	$(BIN)/python -m experiments claims --quick

$(DONE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[demo,test,verl-cpu]"
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps verl
	touch $@

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
