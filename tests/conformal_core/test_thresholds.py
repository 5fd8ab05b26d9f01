import json
import warnings
from fractions import Fraction
from math import ceil, inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest

from conformal_core.thresholds import BudgetThresholds, calibrate_thresholds

CASES = [c for c in json.loads((Path(__file__).parents[1] / "data/vectors.json").read_text())["cases"] if c["kind"] == "bonferroni"]
SCORES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, inf])


@pytest.mark.filterwarnings("ignore:n. got:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_reference_cases(case):
    i, want = case["input"], case["expected"]
    t = calibrate_thresholds(np.zeros((i["n"], i["M"])), range(1, i["M"] + 1), i["delta"], "bonferroni", checkpoints=i["T_c"])
    assert t.level == Fraction(want["level"])
    assert set(t.ranks) == {want["L"]}
    assert set(t.attainable) == {not want["vacuous"]}
    assert all((q == inf) == want["vacuous"] for q in t.q)


@pytest.mark.filterwarnings("ignore:n. got:UserWarning")
@given(
    arrays(np.float64, st.tuples(st.integers(1, 25), st.integers(1, 3)), elements=SCORES),
    st.sampled_from(["1/100", "1/20", "1/10", "1/4", "1/2", "9/10"]),
    st.sampled_from(["per_budget", "bonferroni"]),
)
def test_thresholds_are_order_statistics(scores, delta, multiplicity):
    n, m = scores.shape
    grid = (2, 4, 8)[:m]
    t = calibrate_thresholds(scores, grid, delta, multiplicity, score_name="s")
    level = Fraction(delta) / (m if multiplicity == "bonferroni" else 1)
    rank = ceil((n + 1) * (1 - level))
    for j in range(m):
        assert t.q[j] == (inf if rank > n else sorted(scores[:, j])[rank - 1])
    assert t.ranks == (rank,) * m and t.level == level and t.n == n and t.grid == grid
    assert BudgetThresholds.from_json(json.loads(json.dumps(t.to_json(), allow_nan=False))) == t


def test_bonferroni_out_of_reach_names_the_size_that_would_do():
    scores = np.zeros((40, 5))
    with pytest.warns(UserWarning, match=r"^n: got 40 .*; need 49 .*; because "):
        assert calibrate_thresholds(scores, (2, 4, 8, 16, 32), "0.1", "bonferroni").q == (inf,) * 5
    assert calibrate_thresholds(np.zeros((49, 5)), (2, 4, 8, 16, 32), "0.1", "bonferroni").q == (0,) * 5


@pytest.mark.parametrize("grid", [(), (1,), (2, 2), (4, 2), (0, 2), (True, 2), (2.0, 4), (2, "4")])
def test_grid_refusals(grid):
    with pytest.raises(ValueError, match=r"^grid: got .*; need .*; because "):
        calibrate_thresholds(np.zeros((9, len(grid))), grid, "0.1")


@pytest.mark.parametrize(
    ("scores", "kwargs", "name"),
    [
        (np.zeros(9), {}, "scores"),
        (np.zeros((9, 3)), {}, "scores"),
        (np.zeros((0, 2)), {}, "scores"),
        (np.full((9, 2), np.nan), {}, "scores"),
        (np.zeros((9, 2)), {"multiplicity": "none"}, "multiplicity"),
        (np.zeros((9, 2)), {"checkpoints": 2}, "checkpoints"),
        (np.zeros((9, 2)), {"checkpoints": 0}, "checkpoints"),
        (np.zeros((9, 2)), {"delta": "1"}, "delta"),
    ],
)
def test_refusals_name_the_argument(scores, kwargs, name):
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
        calibrate_thresholds(scores, (2, 4), **({"delta": "0.1"} | kwargs))


def test_bonferroni_holds_jointly_where_one_level_per_budget_does_not():
    """Scores of a perfect policy under the worst coupling of U: misses at the M budgets are disjoint events.  One fresh prompt per
    calibration makes the misses of 2000 independent calibrations (n = 99, seed 0) exactly binomial."""
    rng, delta, m, replicates = np.random.default_rng(0), Fraction(1, 10), 5, 2000
    scores = (rng.random((replicates, 100, 1)) + np.arange(m) * float(delta)) % 1
    missed = {"bonferroni": 0, "per_budget": 0}
    for rule in missed:
        for s in scores:
            q = calibrate_thresholds(s[:-1], (2, 4, 8, 16, 32), delta, rule).q
            missed[rule] += bool((s[-1] > q).any())
    assert binomtest(missed["bonferroni"], replicates, float(delta), "greater").pvalue > 1e-3
    assert binomtest(missed["per_budget"], replicates, 4 * float(delta), "greater").pvalue < 1e-3


def test_the_last_rank_is_attained_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = calibrate_thresholds(np.arange(18.0).reshape(9, 2), (2, 4), "0.1")
    assert found.ranks == (9, 9) and found.attainable == (True, True) and found.q == (16, 17)


@pytest.mark.parametrize(("rule", "reference", "why"), [("split_ecdf", None, "compares"), ("max_score", [[1, 2]], "does not compare")])
def test_a_reference_is_for_the_rule_that_compares(rule, reference, why):
    with pytest.raises(ValueError, match=f"because '{rule}' {why} scores with those of other prompts"):
        calibrate_thresholds([[1, 2]], (2, 4), "0.1", rule, reference=reference)
