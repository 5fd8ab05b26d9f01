"""The benchmark of the trainer on a model and responses small enough to run every command."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

from benchmarks import trainer_cost
from benchmarks.trainer_cost import BUDGETS, COMMANDS, FIELDS, GRID, K_MAX, Case, Figure, Scripted, occurred, save
from conformal_core import Outcomes, SignalBudget
from experiments.models import load


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_command_replaces_its_own_rows(tmp_path):
    path = tmp_path / "table.csv"
    save(path, "slope", [Figure("ours, slope", 1.5, "ms/row", 1.01, "0.85 to 1.15")])
    save(path, "steps", [Figure("TRL G=32", 8.0, "s/step", 1.0), Figure("ours", 3.0, "s/step", 0.375)])
    save(path, "slope", [Figure("TRL, intercept", 0.25, "s/step")])
    assert rows(path) == [
        dict(zip(FIELDS, row, strict=True))
        for row in (
            ("steps", "TRL G=32", "8.0000", "s/step", "1.0000", ""),
            ("steps", "ours", "3.0000", "s/step", "0.3750", ""),
            ("slope", "TRL, intercept", "0.2500", "s/step", "", ""),
        )
    ]


@pytest.mark.parametrize("grid", [GRID, (8, 32), (16,)])
def test_the_script_is_followed(grid):
    policy, ids, budgets = Scripted(BUDGETS, grid), np.arange(8, dtype=np.uint64), np.array(BUDGETS)
    drawn, rounds = policy.first(ids, 0), 1
    while (extra := policy.more(Outcomes(ids, np.zeros((8, int(drawn.max())), bool), drawn))).any():
        drawn, rounds = drawn + extra, rounds + 1
    assert drawn.tolist() == budgets.tolist() and rounds == len({min(g for g in (*grid, K_MAX) if g >= b) for b in BUDGETS})


def test_lost_groups_are_counted_as_they_are_defined():
    """Mixed among 32 responses, and not yet at the first budget of the grid that is at least f."""
    rng = np.random.default_rng(0)

    def groups(n, start):
        passes = rng.random((n, K_MAX)) < rng.choice([0.02, 0.05, 0.3], n)[:, None]
        return Outcomes(np.arange(start, start + n, dtype=np.uint64), passes)

    grid = (8, 16, 24, 32)
    policy = SignalBudget(grid, delta="0.3", calibration="offline", n_calibration=60)
    policy.calibrate(groups(60, 0))
    cut = min(g for g in grid if g >= policy.metrics()["f"])
    assert cut < K_MAX
    full = groups(300, 1000)
    lost = 0
    for row in full.passes:
        mixed = next((k for k in range(1, K_MAX + 1) if 0 < row[:k].sum() < k), 0)
        lost += mixed > cut
    assert occurred(Case(policy, "lost_group", 0.3), full) == (lost, 300) and lost > 0
    stream = SignalBudget(grid, delta="0.3", share="0.5", window=50)
    assert occurred(Case(stream, "lost_group", 0.3), full) == (0, 0)  # an empty window: every prompt calibrates


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(trainer_cost, "TOKENS", 3)
    monkeypatch.setattr(trainer_cost, "five_million", lambda: load("embedded")[0])
    monkeypatch.setattr(trainer_cost, "peer", trainer_cost.stock)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["steps", "slope", "off"])
def test_times(small, tmp_path, command):
    (tmp_path / "trl_cgrpo").mkdir()
    out = tmp_path / "table.csv"
    trainer_cost.main([command, "--steps", "2", "--seconds", "0", "--out", str(out), "--peers", str(tmp_path)])
    table = rows(out)
    assert {row["command"] for row in table} == {command} and all(np.isfinite(float(row["value"])) for row in table)
    assert {"steps": 6, "slope": 5, "off": 6}[command] == len(table)


@pytest.mark.slow
def test_memory_and_calibration(small):
    """What runs in processes of its own, here."""
    assert all(trainer_cost._peak(which) >= 0 for which in ("TRL", "ours"))
    found = trainer_cost._calibrated(("signal, early-stopped, alarm", 3, 100.0))
    assert found["steps"] == 3 and found["fresh"][1] == 600 and 0 < found["share"] < 1
    assert set(COMMANDS) == {"steps", "slope", "off", "memory", "calibration"}
