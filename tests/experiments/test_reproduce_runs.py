"""The runs behind the tables, at the size of a test: real models, real sandbox, real processes."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch

from experiments import models
from experiments.__main__ import main as cli
from experiments.arena.actor import rounded, stale
from experiments.reproduce import cgrpo_runs, coverage_runs, mask_runs, response_runs, schedule, source
from experiments.reproduce.catalogue import ITEMS
from experiments.reproduce.training import weaken


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Sampler:
    """The part of a trainer that `stale` changes: samples by returning the first weight."""

    def __init__(self):
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.state = type("State", (), {"global_step": 0})()

    def _generate_single_turn(self):
        return self.model.weight.item()


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_an_actor_lags_by_generations_however_often_it_is_asked(delay):
    trainer = stale(Sampler, delay, "float32")()
    seen = []
    for step in range(0, 12, 3):
        trainer.state.global_step = step
        with torch.no_grad():
            trainer.model.weight.fill_(float(step))
        seen.append([trainer._generate_single_turn() for _ in range(3)])
        assert trainer.model.weight.item() == step
    assert seen == [[float(max(0, step - 3 * delay))] * 3 for step in range(0, 12, 3)]


def test_an_actor_rounds_and_evaluation_does_not():
    trainer = stale(Sampler, 0, "bfloat16")()
    with torch.no_grad():
        trainer.model.weight.fill_(1.001)
    assert trainer._generate_single_turn() == 1.0
    trainer.model.eval()
    assert trainer._generate_single_turn() == pytest.approx(1.001)


def test_rounding_keeps_what_the_type_holds():
    state = {"w": torch.tensor([1.0, 1.001]), "i": torch.tensor([3])}
    out = rounded(state, "bfloat16")
    assert out["w"].tolist() == [1.0, 1.0] and out["w"].dtype == torch.float32 and out["i"].tolist() == [3]
    assert out["w"].data_ptr() != state["w"].data_ptr()


def test_noise_is_the_same_at_every_call_and_relative():
    a, b = (models.load("embedded")[0] for _ in range(2))
    before = {k: v.detach().clone() for k, v in a.named_parameters()}
    weaken(a, 0.1)
    weaken(b, 0.1)
    other = dict(b.named_parameters())
    for name, p in ((k, v.detach()) for k, v in a.named_parameters()):
        assert torch.equal(p, other[name])
        ratio = float((p - before[name]).std() / before[name].std()) if p.ndim > 1 else float((p - before[name]).abs().max())
        assert ratio == (pytest.approx(0.1, rel=0.1) if p.ndim > 1 else 0)


@pytest.mark.parametrize("variant", ["Qwen/GSM8K", "AERO", "Gemma/MATH-500"])
def test_a_budget_run(variant, tmp_path):
    r = cgrpo_runs.run(variant, 0, "tiny", tmp_path)
    json.dumps(r)
    assert r["totals"]["optimizer_steps"] == 2 and r["totals"]["prompts"] == 4 and len(r["test"]["counts"]) == 10
    assert (r["totals"]["calibration"] > 0) == (variant != "AERO") == math.isfinite(r["delta0"])
    assert {c["step"] for c in r["curves"]} == {1, 2} and "reward" in r["curves"][0]
    mean = np.mean([c / r["test"]["samples"] for c in r["test"]["counts"]])
    assert r["test"]["pass"]["1"][0] == pytest.approx(mean) == r["test"]["best"]["1"][0]


def test_a_mask_run_rejects_what_was_updated_away_from(tmp_path):
    r = mask_runs.run("9B/CARM 1.02", 0, "tiny", tmp_path)
    shares = [c["mask/seq_masked_fraction"] for c in r["curves"]]
    assert shares[0] == 0.0 < shares[1]  # the shipped weights are bfloat16, so that the first update reads its own log-probabilities
    assert 0 < r["totals"]["masked"] < r["totals"]["masked_of"]


def test_joint_coverage_counts_all_budgets_at_once(tmp_path):
    r = coverage_runs.run("joint", 0, "tiny", tmp_path)
    for rule in coverage_runs.RULES:
        each = np.array(r[rule]["per_budget"])
        assert each.shape == (4, 5) and all(j <= e.min() + 1e-12 for j, e in zip(r[rule]["joint"], each, strict=True))
    assert r["bonferroni"]["joint"] >= r["per_budget"]["joint"]


def test_coverage_falls_under_shift(tmp_path):
    plain, shifted = (coverage_runs.run(d, 0, "tiny", tmp_path) for d in ("GSM8K", "GPQA-Diamond"))
    assert np.mean(shifted["coverage"]) < np.mean(plain["coverage"]) and shifted["tv"] > plain["tv"]


def test_a_replayed_batch_obeys_proposition_2(tmp_path):
    r = response_runs.run("batch", 0, "tiny", tmp_path)
    d, g = np.array(r["d"]), np.array(r["geomean"])
    assert len(d) == 32 == sum(r["pair"]) and (d >= g - 1e-7).all() and d.max() > 0
    assert all(a >= b for a, b in zip(r["rejected"]["CARM"], r["rejected"]["GeoMean"], strict=True))
    assert r["rejected"]["CARM"] == [float((d > np.log(tau)).mean()) for tau in response_runs.TAUS]


def test_eight_bit_weights_are_within_half_a_level_of_each_row():
    import torch

    generator = torch.Generator().manual_seed(0)
    state = {
        "layers.0.w": torch.randn(5, 7, generator=generator),
        "embed.w": torch.randn(3, 4, generator=generator),
        "steps": torch.arange(3),
    }
    state["layers.0.w"][2] = 0.0
    out = response_runs._eight_bits(state)
    level = state["layers.0.w"].abs().amax(1, keepdim=True) / 127
    assert ((out["layers.0.w"] - state["layers.0.w"]).abs() <= level * 0.5001).all() and len(out["layers.0.w"][0].unique()) > 2
    assert torch.equal(out["embed.w"], state["embed.w"].bfloat16().float()) and torch.equal(out["steps"], state["steps"])


def test_the_chosen_response_is_the_most_cancelling(tmp_path):
    r = response_runs.run("long", 0, "tiny", tmp_path)
    z = np.array(r["chosen"]["z"])
    i = int(np.argmin([abs(x - np.abs(z).mean()) for x in r["d"]]))
    assert r["length"][i] == len(z) == len(r["chosen"]["tokens"])
    assert r["geomean"][i] == pytest.approx(abs(z.mean()), abs=1e-6)


def test_a_worker_takes_run_after_run_and_one_that_fails_is_named(tmp_path):
    runs = [schedule.Run("responses", "batch", 0, "tiny"), schedule.Run("responses", "long", 0, "tiny")]
    broken = schedule.Run("coverage", "joint", 0, "tiny")
    source.path(tmp_path, "tiny", "coverage").mkdir(parents=True)  # where its results should go
    seen = []
    with pytest.raises(RuntimeError, match=r"(?s)^run coverage\.joint\.seed0 failed \(exit 1\); the end of .*IsADirectoryError"):
        schedule.run_all([*runs, broken], tmp_path, 1, seen.append)
    assert seen == runs and not schedule.missing(runs, tmp_path)
    assert all(r["seconds"] > 0 for r in source.finished(tmp_path, "tiny", schedule.sources()["responses"]))


@pytest.mark.slow
def test_every_item_from_real_runs(tmp_path, capsys):
    assert cli(["reproduce", "all", "--scale", "tiny", "--out", str(tmp_path), "--jobs", "2"]) == 0
    counts = Counter(len(source.finished(tmp_path, "tiny", s)) for s in schedule.sources().values())
    assert sum(n * c for n, c in counts.items()) == len(schedule.wanted({n: None for i in ITEMS.values() for n in i.needs}, "tiny"))
    for name in ITEMS:
        text = (tmp_path / "tiny" / name / "table.md").read_text()
        assert "(unfinished)" not in text and (tmp_path / "tiny" / name / "figure.png").stat().st_size > 5000
