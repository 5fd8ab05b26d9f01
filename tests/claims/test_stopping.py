"""P(stopped on a wrong answer), for the rules that bound it and for those that do not.

Every figure is over independent replicates of the whole procedure: a fresh calibration set of n = 99 prompts, and **one** fresh prompt.
Hits are then independent with one probability, so the binomial test is exact; many prompts per calibration would share its luck
(beta-binomial).  A bound passes unless it is rejected at 1e-3; a violation counts only if the bound is rejected at 1e-3.
"""

from functools import cache

import numpy as np
import pytest
from scipy.stats import binomtest

from conformal_core.conformal_budget import ConformalBudget
from conformal_core.outcomes import Outcomes
from conformal_core.replay import replay
from conformal_core.scores import APS, ReleasedAPS

GRID = (2, 4, 8, 16, 32)
N, REPLICATES = 99, 500
RULES = {
    "risk_control": {"multiplicity": "risk_control"},
    "bonferroni": {"score": APS(), "multiplicity": "bonferroni"},
    "per_budget": {"score": APS()},
    "released": {"score": ReleasedAPS(), "split": False},
}
#: share of prompts that only ever give one and the same wrong answer; law of the pass rate of the others; their number of wrong answers
POPULATIONS = {
    "40% unsolvable": (0.4, (2, 1), 1),
    "mid": (0.0, (1.14, 0.86), 1),
    "mid, 9 wrong answers": (0.0, (1.14, 0.86), 9),
    "all near .45": (0.0, (450, 550), 1),
}


@cache
def measure(population, rule, delta):
    """(false stops, responses saved, largest delta used) over ``REPLICATES`` calibrations with seed 2026."""
    unsolvable, law, answers = POPULATIONS[population]
    rng = np.random.default_rng(2026)
    false_stops, saved, largest = 0, 0.0, 0.0
    for r in range(REPLICATES):
        p = rng.beta(*law, size=N + 1)
        hopeless = rng.random(N + 1) < unsolvable
        right = rng.random((N + 1, 32)) < np.where(hopeless, 0, p)[:, None]
        wrong = np.where(hopeless[:, None], 1, rng.integers(1, answers + 1, (N + 1, 32)))
        ids = rng.integers(0, 2**63, N + 1).astype(np.uint64)
        table = Outcomes(ids, right, codes=np.where(right, 0, wrong), gold=np.zeros(N + 1, np.int64))
        policy = ConformalBudget(GRID, delta=delta, n_calibration=N, seed=r, **RULES[rule])
        policy.calibrate(table.take(np.arange(N)))
        report = replay(policy, table.take(np.array([N])))
        false_stops += report.audit["false_stop"][0]
        saved += report.savings
        largest = max(largest, float(policy.delta))
    return false_stops, saved / REPLICATES, largest


def exceeds(false_stops, delta):
    return binomtest(false_stops, REPLICATES, float(delta), "greater").pvalue < 1e-3


@pytest.mark.parametrize("delta", ["0.1", "0.42"])
def test_risk_control_bounds_false_stops_where_the_released_rule_exceeds_the_level(delta):
    """40% of prompts unsolvable and unanimous (all 32 answers the same wrong one); n = 99, 500 replicates, seed 2026."""
    assert not exceeds(measure("40% unsolvable", "risk_control", delta)[0], delta)
    assert exceeds(measure("40% unsolvable", "released", delta)[0], delta)


def test_risk_control_spends_the_budget_it_is_given():
    """A bound that is kept by never stopping is worth nothing: here over a quarter of the risk is spent, and half the responses saved."""
    false_stops, saved, _ = measure("mid, 9 wrong answers", "risk_control", "0.1")
    assert not exceeds(false_stops, 0.1) and exceeds(false_stops, 0.025)
    assert saved > 0.5


def test_released_rule_exceeds_even_the_level_it_chose_itself():
    """Automatic delta without a split, mid policy, one wrong answer: compared with the largest delta that any calibration chose."""
    false_stops, _, largest = measure("mid", "released", "auto")
    assert largest < 0.2 and exceeds(false_stops, largest)


def test_bonferroni_bounds_false_stops_at_the_adaptive_budget_and_one_level_per_budget_does_not():
    """C-GRPO, Thm 5, and the limit of its Cor. 4: every pass rate near .45, one wrong answer, delta = 0.12."""
    assert not exceeds(measure("all near .45", "bonferroni", "0.12")[0], 0.12)
    assert exceeds(measure("all near .45", "per_budget", "0.12")[0], 0.12)
