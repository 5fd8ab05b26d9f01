"""The train command: what a configuration becomes, and real runs on the embedded model."""

import json

import numpy as np
import pytest

from conformal_core import FirstSuccess, FixedBudget, ReleasedAPS, SignalBudget
from experiments import baselines, configs, train
from experiments.__main__ import main
from experiments.baselines.names import NAMES
from experiments.evaluate import sample_texts, statistics
from experiments.train import arguments, examples, override, policy, small, verifier

CGRPO = configs.read("cgrpo/qwen2.5-7b-gsm8k")
CARM = configs.read("carm/qwen3.5-9b-dapo_math")


@pytest.mark.parametrize("world", [1, 4])
def test_batches_of_the_papers(tmp_path, world):
    a = arguments(CGRPO, tmp_path, None, cpu=False, world=world, seed=0)
    assert a["generation_batch_size"] == 4 * 32 and a["max_steps"] == 300
    assert a["per_device_train_batch_size"] * a["gradient_accumulation_steps"] * world == 4 * 32
    b = arguments(CARM, tmp_path, 7, cpu=False, world=world, seed=0)
    assert b["generation_batch_size"] == 128 * 8 and b["max_steps"] == 7
    assert b["per_device_train_batch_size"] * b["gradient_accumulation_steps"] * world == 8 * 8
    assert (b["response_mask"], b["response_mask_threshold"], b["epsilon_high"]) == ("carm", 1.025, 0.28)


def test_processes_that_would_cut_a_group_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"update\.prompts: got 4 on 3 processes; need a multiple of 3"):
        arguments(CGRPO, tmp_path, None, cpu=False, world=3, seed=0)


def test_policies():
    assert isinstance(policy(override(CGRPO, ['budget.rule="fixed"']), True), FixedBudget)
    assert isinstance(policy(override(CGRPO, ['budget.rule="signal"']), True), SignalBudget)
    assert isinstance(policy(override(CGRPO, ['budget.rule="released"']), True).score, ReleasedAPS)
    assert isinstance(policy(CGRPO, False).score, FirstSuccess)
    exact = policy(override(CGRPO, ["budget.split=true", 'budget.multiplicity="bonferroni"']), True)
    assert exact.split and exact.multiplicity == "bonferroni" and exact.n_calibration == 200


@pytest.mark.parametrize("grid", [(2, 4, 8, 16, 32), (4, 8), (2, 6, 12)])
@pytest.mark.parametrize("name", configs.BASELINES)
def test_every_baseline_is_a_rule_of_the_configuration(name, grid):
    """Its largest budget is the grid's, which is the group size that the trainer is given; the seed reaches rules that draw at random."""
    e = override(CGRPO, [f'budget.rule="{name}"', f"budget.grid={list(grid)}"])
    rule = policy(e, True)
    assert rule.k_max == grid[-1] and not any(rule.calibration(step) for step in range(3))
    assert rule.first(np.arange(4, dtype=np.uint64), 0).max() <= grid[-1]
    other = policy(override(e, ["data.seed=1"]), True)
    assert (repr(rule) != repr(other) or getattr(rule, "seed", 0) != getattr(other, "seed", 0)) == (name in ("aero", "greso", "ada-seq"))


def test_the_names_of_configurations_are_those_of_the_baselines():
    assert configs.BASELINES == NAMES
    with pytest.raises(ValueError, match=r"name: got 'apo'; need one of .*; because "):
        baselines.named("apo", (2, 4), prompts=4)


def test_conditioning_of_the_mask_reaches_the_trainer(tmp_path):
    both = arguments(CARM, tmp_path, None, cpu=True, world=1, seed=0)
    negative = arguments(override(CARM, ['mask.conditioning="negative"']), tmp_path, None, cpu=True, world=1, seed=0)
    assert "response_mask_conditioning" not in both
    assert negative == both | {"response_mask_conditioning": "negative"}


@pytest.mark.parametrize(("rule", "tau"), [("trm", 0.05), ("geomean", 1.005), ("icepop", 5.0), ("opsm", 0.5)])
def test_another_mask_comes_with_its_threshold(rule, tau):
    """A configuration's tau is a ratio of CARM's, which for TRM would be a bound in nats."""
    with pytest.raises(
        ValueError, match=rf"^mask\.tau: got 1\.025 of mask\.rule = 'carm'; need a mask\.tau beside mask\.rule = '{rule}'; "
    ):
        override(CARM, [f'mask.rule="{rule}"'])
    for settings in ([f'mask.rule="{rule}"', f"mask.tau={tau}"], [f" mask.tau ={tau}", f'mask.rule="{rule}"']):
        assert override(CARM, settings).mask.tau == tau
    assert override(CARM, ['mask.rule="none"']).mask.rule == "none"
    assert override(CGRPO, [f'mask.rule="{rule}"']).mask.tau is None  # the rule's default


@pytest.mark.parametrize("setting", ["budget.rule", "budget.rule=fixed", "name.x=1", "=1", "budget.nothing=1"])
def test_settings_that_cannot_be_read(setting):
    with pytest.raises(ValueError, match=r"; need .*; because "):
        override(CGRPO, [setting])


@pytest.mark.parametrize("name", configs.names())
@pytest.mark.parametrize("model", ["embedded", "smollm2"])
def test_every_configuration_has_a_small_scale(name, model):
    e = small(configs.read(name), model)
    parts = examples(e)
    assert [len(p) for p in parts] == [40, 200, 40]
    assert len({x.key for p in parts for x in p}) == 280
    assert (e.model.lora is None) == (model == "embedded" or configs.read(name).model.lora is None)


def test_small_functions_are_right_in_the_sandbox():
    rows = train.load("small_functions", size=6, seed=1)
    signs = {"add": "+", "subtract": "-", "times": "*"}
    check = verifier("function")
    right = [f"    return x {signs[r.source_id.split('_')[0]]} {r.source_id.split('_')[1]}\n" for r in rows]
    assert check.reward(completions=right, answer=[r.answer for r in rows]) == [1.0] * 6
    assert check.reward(completions=["    return 0\n"] * 6, answer=[r.answer for r in rows]) == [0.0] * 6


def test_code_is_refused_before_anything_is_loaded_where_it_cannot_be_isolated(monkeypatch, tmp_path):
    from experiments.sandbox import SandboxUnavailable, runner

    monkeypatch.setattr(runner, "unavailable", lambda: "the test says so")
    with pytest.raises(SandboxUnavailable, match="isolation='unsafe'"):
        train.train(small(configs.read("cgrpo/qwen2.5-7b-humaneval"), "smollm2"), tmp_path)


def test_statistics_are_those_of_the_counts():
    passes = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    codes = np.array([[0, 0, 1, 2], [0, 0, 0, 0], [1, 1, 2, 3]])
    measured = statistics(passes, (1, 2, 4), codes, np.array([0, 0, 0]))
    values = {(s.statistic, s.k): s.value for s in measured.statistics}
    assert values["pass", 1] == pytest.approx(passes.mean())
    assert values["pass", 2] == pytest.approx((5 / 6 + 1) / 3)
    assert values["all", 2] == pytest.approx((1 / 6 + 1) / 3)
    assert values["best", 2] == pytest.approx((3 / 4 + 1) / 3)
    assert values["worst", 4] == pytest.approx((1 / 16 + 1) / 3)
    assert measured.majority[4][0] == pytest.approx(2 / 3)
    assert all(s.low <= s.value <= s.high for s in measured.statistics)
    assert json.loads(measured.to_json())["n"] == 3


def test_top_k_and_top_p_cut_the_tail():
    import torch

    from experiments.evaluate import _Law

    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    assert _Law(1.0, 0.7, 0)(logits)[0].gt(0).tolist() == [True, True, False, False]
    assert _Law(1.0, 1.0, 3)(logits)[0].gt(0).tolist() == [True, True, True, False]
    assert _Law(1.0, 1.0, 0)(logits)[0].tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05])
    with pytest.raises(ValueError, match="top_p: got 0"):
        sample_texts(None, None, ["x"], 1, top_p=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "error: config: got nothing"),
        (["--config", "nope"], "error: config: got 'nope'"),
        (["--config", "cgrpo/qwen2.5-7b-gsm8k", "--max-steps", "0"], "error: max_steps: got 0"),
        (["--config", "cgrpo/qwen2.5-7b-gsm8k", "--model", "embedded", "--set", "data.n_train=10000000"], "error: n: got"),
    ],
)
def test_options_that_cannot_work_are_one_line(capsys, options, message):
    assert main(["train", *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith(message) and err.count("\n") == 1


def test_a_report_without_test_examples_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match=r"report: got a name; need data\.n_test >= 1 or evaluation\.tasks"):
        train.train(override(small(CARM, "embedded"), ["data.n_test=0"]), tmp_path, report="x")


def test_list(capsys):
    assert main(["train", "--list"]) == 0
    assert capsys.readouterr().out.split() == configs.names()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cgrpo/qwen2.5-7b-gsm8k", "carm/qwen3.5-9b-dapo_math"])
def test_a_real_run_on_the_embedded_model(tmp_path, name):
    options = ["train", "--config", name, "--model", "embedded", "--max-steps", "6", "--out", str(tmp_path), "--report", "test"]
    if name.startswith("cgrpo"):
        options += ["--set", "model.lora.rank=4"]
    assert main(options) == 0
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["steps"] == 6 and run["sizes"] == {"calibration": 40, "train": 200, "test": 40}
    assert run["totals"]["calibration"] == (40 * 8 if name.startswith("cgrpo") else 0)
    assert 0 < run["totals"]["trained"] <= run["totals"]["generated"]
    ave = next(s for s in run["test"]["additions"]["statistics"] if s["statistic"] == "pass" and s["k"] == 1)
    assert 0.2 < ave["value"] < 0.95 and ave["low"] < ave["value"] < ave["high"]
    assert main(options) == 2  # the sealed test is open already
