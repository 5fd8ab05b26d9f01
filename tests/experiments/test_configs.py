"""Configurations carry the papers' numbers, and what is wrong in one is named."""

import pytest

from experiments import configs
from experiments.configs import parse, read
from experiments.tasks import task

NAMES = configs.names()
MINIMAL = {
    "name": "x",
    "paper": "none",
    "model": {"id": "embedded"},
    "data": {"task": "additions"},
    "update": {"steps": 1, "prompts": 4},
}


def test_every_model_and_benchmark_of_both_papers_has_a_configuration():
    models = ("qwen2.5-7b", "llama3.1-8b", "gemma3-4b")
    benchmarks = ("gsm8k", "math500", "math_algebra", "gpqa_diamond", "humaneval", "mbpp")
    wanted = {f"cgrpo/{m}-{b}" for m in models for b in benchmarks}
    wanted |= {"carm/qwen3.5-4b-dapo_math", "carm/qwen3.5-9b-dapo_math", "carm/qwen3.5-9b-taco"}
    assert set(NAMES) == wanted


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("cgrpo/")])
def test_c_grpo_numbers(name):
    e = read(name)
    assert (e.model.lora.rank, e.model.lora.alpha, e.model.lora.dropout) == (16, 32, 0.05)
    assert (e.update.learning_rate, e.update.prompts, e.update.steps, e.update.beta, e.update.objective) == (2e-6, 4, 300, 0.05, "cgrpo")
    assert (e.budget.grid, e.budget.recalibrate_every, e.budget.epsilon, e.budget.delta) == ((2, 4, 8, 16, 32), 50, "0.05", "auto")
    assert (e.evaluation.samples, e.evaluation.temperature) == (32, 1.0)
    size = task(e.data.task).size
    assert e.data.n_calibration + e.data.n_train + e.data.n_test <= size
    if size >= 2600:
        assert (e.data.n_calibration, e.data.n_train, e.data.n_test) == (200, 2000, 400)


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("carm/")])
def test_carm_numbers(name):
    e = read(name)
    assert (e.update.prompts, e.budget.grid, e.update.mini_batch, e.update.max_tokens) == (128, (8,), 8, 16384)
    assert (e.update.learning_rate, e.update.clip, e.update.steps) == (3e-6, (0.2, 0.28), 120 * 128 // 8)
    assert e.mask.rule == "carm" and e.mask.sweep == (1.02, 1.025, 1.03, 1.04) and e.mask.tau in e.mask.sweep
    code = e.data.task == "taco"
    assert e.evaluation.samples == (1 if code else 16) and len(e.evaluation.tasks) == 4
    assert not code or (e.data.max_tests, e.evaluation.temperature, e.evaluation.top_p, e.evaluation.top_k) == (10, 0.7, 0.9, 50)


def test_the_smallest_configuration():
    assert parse(MINIMAL).budget.grid == (2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("data.task", "gsm9k", "task: got 'gsm9k'; need one of"),
        ("data.n_train", "many", "data.n_train: got 'many'; need a int; because that is its type"),
        ("data.n_train", True, "data.n_train: got True"),
        ("data.n_train", 2, "data.n_train: got 2; need at least 4; because every step draws that many prompts"),
        ("budget.rule", "guess", "budget.rule: got 'guess'; need one of fixed, conformal"),
        ("budget.rule", "conformal", "data.n_calibration: got 0; need an integer >= 1; because budget.rule = 'conformal' calibrates"),
        ("budget.grid", [4, 2], "budget.grid: got [4, 2]"),
        ("budget.grid", 8, "budget.grid: got 8; need a list"),
        ("budget.delta", "1.5", "budget.delta: got '1.5'"),
        ("budget.delta", 0.1, "budget.delta: got 0.1; need a str"),
        ("budget.epsilon", "auto", "budget.epsilon: got 'auto'"),
        ("mask.rule", "carmen", "mask.rule: got 'carmen'"),
        ("mask", {"rule": "carm", "tau": 0.02}, "mask.tau: got 0.02; need a ratio >= 1"),
        ("mask.conditioning", "positive", "mask.conditioning: got 'positive'; need one of both, negative"),
        ("mask", {"rule": "icepop", "conditioning": "negative"}, "mask.conditioning: got 'negative'; need 'both'"),
        ("mask", {"conditioning": "negative"}, "mask.conditioning: got 'negative'; need 'both'"),
        ("update.steps", 0, "update.steps: got 0"),
        ("update.mini_batch", 3, "update.mini_batch: got 3; need a divisor of 4"),
        ("update.clip", [0.2], "update.clip: got [0.2]"),
        ("update.learning_rate", "fast", "update.learning_rate: got 'fast'; need a float"),
        ("update.lr", 1e-6, "update.lr: got an unknown key; need one of steps, prompts"),
        ("update", 3, "update: got 3; need a table"),
        ("evaluation.k", [64], "evaluation.k: got [64]; need integers in 1..32"),
        ("evaluation.tasks", ["nope"], "task: got 'nope'"),
        ("model.lora", {"rank": 0}, "model.lora.rank: got 0"),
    ],
)
def test_what_is_wrong_is_named(path, value, message):
    table = {k: dict(v) if isinstance(v, dict) else v for k, v in MINIMAL.items()}
    *sections, last = path.split(".")
    place = table
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    with pytest.raises(ValueError) as caught:
        parse(table)
    assert message in str(caught.value)


def test_sizes_a_data_set_does_not_have_are_refused():
    table = MINIMAL | {"data": {"task": "humaneval", "n_calibration": 200, "n_train": 2000, "n_test": 200}}
    with pytest.raises(ValueError, match="data: got '2400 examples in all'; need at most 164; because humaneval has 164 examples"):
        parse(table)


def test_files(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text("name = ")
    with pytest.raises(ValueError, match="need valid TOML"):
        read(file)
    file.write_text('name = "x"')
    with pytest.raises(ValueError, match="paper: got nothing; need a value"):
        read(file)
    with pytest.raises(ValueError, match=r"need a TOML file or a name such as cgrpo/qwen2\.5-7b-gsm8k"):
        read("qwen2.5-7b-gsm8k")
