"""Joint thresholds: against their definitions, and exact over every choice of the test prompt among n + 1 vectors of scores."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal_core.level import conformal_rank, min_calibration_size
from conformal_core.simultaneous import max_rank, max_score, split_ecdf
from conformal_core.thresholds import BudgetThresholds, calibrate_thresholds
from tests.strategies import levels

CASES = [c for c in json.loads((Path(__file__).parents[1] / "data/vectors.json").read_text())["cases"] if c["kind"] == "simultaneous"]
SCORES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, math.inf])
TABLES = arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=SCORES)
JOINT = ("bonferroni", "max_rank", "split_ecdf", "max_score")
quiet = pytest.mark.filterwarnings("ignore:(n|reference). got:UserWarning")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
@quiet
def test_reference_cases(case: dict) -> None:
    i, want = case["input"], case["expected"]
    grid = tuple(int(k) for k in i["D1"])
    d1, d2 = (np.array([[float(Fraction(x)) for x in i[d][str(k)]] for k in grid]).T for d in ("D1", "D2"))
    q = [math.inf if want["q"][str(k)] == "inf" else float(Fraction(want["q"][str(k)])) for k in grid]
    assert split_ecdf(d1, d2, i["delta"]).q.tolist() == q
    t = calibrate_thresholds(d2, grid, i["delta"], "split_ecdf", reference=d1)
    assert list(t.q) == q and t.n == len(d2) and t.n_reference == len(d1)
    assert t.ranks == (int(Fraction(want["t"]) * len(d1)) + 1,) * len(grid)
    largest = [max(Fraction(int((d1[:, j] < row[j]).sum()), len(d1)) for j in range(len(grid))) for row in d2]
    assert largest == [Fraction(x) for x in want["T"]]


@given(TABLES, levels)
def test_max_rank_is_as_defined(s: np.ndarray, d: Fraction) -> None:
    n, m = s.shape
    ranks = [max(1 + sum(other[k] < row[k] for other in s) for k in range(m)) for row in s]
    level_rank = conformal_rank(n, d)
    for corrected in (True, False):
        got = max_rank(s, d, corrected=corrected)
        rank = n + 1 if level_rank > n else sorted(ranks)[level_rank - 1] + corrected
        assert got.rank == min(rank, n + 1)
        assert got.q.tolist() == [math.inf if rank > n else sorted(s[:, k])[rank - 1] for k in range(m)]


@given(TABLES, levels)
def test_max_score_is_the_quantile_of_the_largest(s: np.ndarray, d: Fraction) -> None:
    rank = conformal_rank(len(s), d)
    assert set(max_score(s, d).q) == {math.inf if rank > len(s) else sorted(s.max(axis=1))[rank - 1]}


def covered(rule: str, points: np.ndarray, i: int, d: Fraction) -> bool:
    """Whether prompt i is covered at all budgets by thresholds from the others."""
    t = calibrate_thresholds(np.delete(points, i, axis=0), range(2, 2 + points.shape[1]), d, rule)
    return bool((points[i] <= np.array(t.q)).all())


@pytest.mark.parametrize("rule", ["bonferroni", "max_rank", "max_score"])
@quiet
@settings(max_examples=40)
@given(points=arrays(np.float64, st.tuples(st.integers(2, 9), st.integers(1, 3)), elements=st.integers(0, 4).map(float)), d=levels)
def test_joint_coverage_over_every_choice_of_test_prompt(rule: str, points: np.ndarray, d: Fraction) -> None:
    """Given the multiset of n + 1 vectors each is equally often the test prompt: the average is the conditional coverage, exactly."""
    hits = sum(covered(rule, points, i, d) for i in range(len(points)))
    assert Fraction(hits, len(points)) >= 1 - d


@settings(max_examples=50)
@given(
    reference=arrays(np.float64, st.tuples(st.integers(1, 6), st.just(2)), elements=st.integers(0, 4).map(float)),
    points=arrays(np.float64, st.tuples(st.integers(2, 9), st.just(2)), elements=st.integers(0, 5).map(float)),
    d=levels,
)
def test_split_ecdf_covers_given_the_reference(reference: np.ndarray, points: np.ndarray, d: Fraction) -> None:
    hits = sum(bool((points[i] <= split_ecdf(reference, np.delete(points, i, axis=0), d).q).all()) for i in range(len(points)))
    assert Fraction(hits, len(points)) >= 1 - d


@quiet
def test_max_rank_without_the_plus_one_falls_short() -> None:
    """Four prompts whose scores at two budgets run in opposite orders, delta = 1/4: two of the four choices are covered."""
    points = np.array([[1.0, 4.0], [2.0, 3.0], [3.0, 2.0], [4.0, 1.0]])
    hits = {rule: sum(covered(rule, points, i, Fraction(1, 4)) for i in range(4)) for rule in ("max_rank", "max_rank_uncorrected")}
    assert hits == {"max_rank": 4, "max_rank_uncorrected": 2}


@given(points=arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 3)), elements=st.integers(0, 5).map(float)), d=levels)
def test_max_rank_reads_ranks_only(points: np.ndarray, d: Fraction) -> None:
    scale = np.arange(1, points.shape[1] + 1)
    np.testing.assert_array_equal(max_rank(np.exp(points) * scale, d).q, np.exp(max_rank(points, d).q) * scale)


@pytest.mark.parametrize("rule", JOINT)
@quiet
@settings(max_examples=30)
@given(s=TABLES, d=levels, checkpoints=st.integers(1, 3))
def test_result_says_what_it_is(rule: str, s: np.ndarray, d: Fraction, checkpoints: int) -> None:
    n, m = s.shape
    t = calibrate_thresholds(s, range(2, 2 + m), d, rule, checkpoints, "name", reference=s if rule == "split_ecdf" else None)
    assert BudgetThresholds.from_json(json.loads(json.dumps(t.to_json(), allow_nan=False))) == t
    assert t.level == d / checkpoints / (m if rule == "bonferroni" else 1) and t.delta == d and t.n == n
    last = t.n_reference or n
    for q, rank, ok in zip(t.q, t.ranks, t.attainable, strict=True):
        assert ok == (rank <= last) and (ok or q == math.inf)
    assert f">= 1 - {d}" in t.guarantee and ("checkpoints" in t.guarantee) == (checkpoints > 1)


@pytest.mark.parametrize("rule", ["per_budget", "bonferroni", "max_rank", "max_score"])
def test_out_of_reach_warns_with_the_size_that_would_do(rule: str) -> None:
    need = min_calibration_size("0.1", budgets={"bonferroni": 3, "max_rank": 2}.get(rule, 1))
    with pytest.warns(UserWarning, match=rf"^n: got {need - 1} calibration prompts; need {need} at level .*; because "):
        t = calibrate_thresholds(np.arange(need - 1)[:, None] * np.ones(3), (2, 4, 8), "0.1", rule)
    assert t.q == (math.inf,) * 3 and t.attainable == (False,) * 3
    assert calibrate_thresholds(np.arange(need)[:, None] * np.ones(3), (2, 4, 8), "0.1", rule).attainable == (True,) * 3


def test_a_reference_that_is_too_small_warns() -> None:
    with pytest.warns(UserWarning, match=r"^reference: got 2 prompts; need .*; because "):
        t = calibrate_thresholds(np.arange(20.0)[:, None] * [1.0, 1.0], (2, 4), "0.1", "split_ecdf", reference=[[0.0, 0.0], [1.0, 1.0]])
    assert t.q == (math.inf,) * 2 and t.ranks == (3, 3)


@pytest.mark.parametrize(
    ("scores", "kwargs", "name"),
    [
        ([[0.0]], {"multiplicity": "split_ecdf"}, "reference"),
        ([[0.0, 0.0]], {"reference": [[0.0, 0.0]]}, "reference"),
        ([[0.0, 0.0]], {"multiplicity": "split_ecdf", "reference": [[0.0]]}, "reference"),
        ([[0.0, 0.0]], {"multiplicity": "split_ecdf", "reference": [[0.0, math.nan]]}, "reference"),
        ([[0.0, 0.0]], {"multiplicity": "split_ecdf", "reference": np.zeros((0, 2))}, "reference"),
        ([[0.0, math.nan]], {"multiplicity": "max_rank"}, "scores"),
        ([[0.0, 0.0]], {"multiplicity": "max_rank", "checkpoints": True}, "checkpoints"),
    ],
)
def test_refusals(scores: list, kwargs: dict, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
        calibrate_thresholds(scores, range(2, 2 + len(scores[0])), "0.1", **kwargs)


@pytest.mark.parametrize("delta", ["1/20", "1/3", "4/5"])
def test_ranks_of_long_samples(delta: str) -> None:
    """Long enough for a partition around another rank to leave this one out of place."""
    s, d1 = (np.random.default_rng(seed).permuted(np.tile(np.arange(2000.0), (3, 1)), axis=1).T for seed in (0, 1))
    level_rank = conformal_rank(2000, delta)
    largest = sorted(max(row) for row in s.tolist())
    assert max_score(s, delta).q.tolist() == [largest[level_rank - 1]] * 3
    rank = int(largest[level_rank - 1]) + 2
    joint = max_rank(s, delta)
    assert joint.rank == rank
    assert joint.q.tolist() == ([rank - 1.0] * 3 if rank <= 2000 else [np.inf] * 3)
    split = split_ecdf(d1, s, delta)
    assert split.rank == int(largest[level_rank - 1]) + 1 and split.q.tolist() == [largest[level_rank - 1]] * 3
