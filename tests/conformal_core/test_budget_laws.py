"""Laws of the budget used, against enumeration and the policy itself."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from conformal_core import ConformalBudget, FirstSuccess, Outcomes, replay
from conformal_core.budget_laws import expected_savings, first_success_cdf, first_success_mean_k

GRID = (2, 4, 8)


@given(st.lists(st.sampled_from([*GRID]), min_size=1, max_size=30))
def test_savings_is_an_identity(used: list[int]) -> None:
    n = len(used)
    stopped = [Fraction(sum(k <= b for k in used), n) for b in GRID]
    saved = Fraction(sum(GRID[-1] - k for k in used), n)
    assert expected_savings(GRID, stopped) == expected_savings(GRID, stopped[:-1]) == saved


@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 5))
def test_first_success_cdf_is_beta_binomial(j: int, a: int, b: int) -> None:
    assert float(first_success_cdf(j, a, b)) == pytest.approx(1 - betabinom.pmf(0, j, a, b))
    step = first_success_cdf(j + 1, a, b) - first_success_cdf(j, a, b)
    assert step > 0  # an atom at every response, whatever the parameters


def test_mean_k_is_what_the_policy_draws() -> None:
    """The calibrated rule over a population of every first success, each with its own multiplicity."""
    rng = np.random.default_rng(0)
    for seed in range(40):
        firsts = rng.integers(1, 11, 60)  # 9 and 10 stand for never
        table = Outcomes(np.arange(60), firsts[:, None] == np.arange(1, 9))
        policy = ConformalBudget(GRID, score=FirstSuccess(), delta=Fraction(int(rng.integers(1, 9)), 10), n_calibration=60, seed=seed)
        policy.calibrate(table)
        rule = policy.stop_rule
        j = int(np.sort(firsts)[rule.ranks[0] - 1])
        solved = Fraction(int((firsts <= j).sum()), 60) if j <= 8 else Fraction(0)
        drawn = replay(policy, table).drawn
        assert Fraction(int(drawn.sum()), 60) == first_success_mean_k(GRID, j if j <= 8 else None, solved)


def test_refusals() -> None:
    for call, name in (
        (lambda: expected_savings(GRID, ["1/2"]), "stopped"),
        (lambda: expected_savings(GRID, ["1/2", "1/4"]), "stopped"),
        (lambda: expected_savings(GRID, ["1/2", "3/4", "3/4"]), "stopped"),
        (lambda: first_success_mean_k(GRID, 0, "1/2"), "j"),
        (lambda: first_success_mean_k(GRID, 1, "3/2"), "solved"),
        (lambda: first_success_mean_k((4, 2), 1, "1/2"), "grid"),
        (lambda: first_success_cdf(-1, 1, 1), "j, a, b"),
        (lambda: first_success_cdf(1, 0, 1), "j, a, b"),
        (lambda: first_success_cdf(1.5, 1, 1), "j, a, b"),
        (lambda: first_success_mean_k(GRID, 1.5, "1/2"), "j"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
            call()


def test_a_float_parameter_is_its_shortest_decimal() -> None:
    assert first_success_cdf(2, 0.1, "0.3") == first_success_cdf(2, "1/10", 0.3) == 1 - Fraction(3, 4) * Fraction(13, 14)
