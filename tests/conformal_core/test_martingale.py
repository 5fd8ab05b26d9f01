"""Capital of the betting schemes against exact sums."""

from __future__ import annotations

from fractions import Fraction
from math import log

import pytest

from conformal_core.martingale import PowerMixture, SimpleJumper


@pytest.mark.parametrize(("t", "total"), [(0, 0.5), (3, 2.5), (7, 7.75), (40, 3.25), (10**6, 10.0), (10**6, 1000.0)])
def test_power_mixture_sums_its_series_to_the_last_digits(t: int, total: float) -> None:
    """``sum_k L^k / ((t + 1) ... (t + 1 + k))``."""
    term = value = Fraction(1, t + 1)
    for k in range(1, 80):
        term *= Fraction(total) / (t + 1 + k)
        value += term
    bets = PowerMixture()
    bets.load_state_dict([t, total])
    assert bets.log_capital == pytest.approx(log(value), abs=1e-14)


def test_a_p_value_of_zero_counts_as_two_to_the_minus_sixty() -> None:
    bets = PowerMixture()
    bets.bet(0.0)
    assert bets.state_dict() == [1, 60 * log(2)]


@pytest.mark.parametrize("jump", [Fraction(1, 4), Fraction(1)])
def test_simple_jumper_is_its_recursion(jump: Fraction) -> None:
    bets, shares = SimpleJumper(float(jump)), [Fraction(1, 3)] * 3
    for p in (Fraction(1, 8), Fraction(7, 8), Fraction(1, 4), Fraction(1, 2), Fraction(0), Fraction(1)):
        total = sum(shares)
        mixed = [(1 - jump) * c + jump * total / 3 for c in shares]
        shares = [c * (1 + side * (p - Fraction(1, 2))) for c, side in zip(mixed, (-1, 0, 1), strict=True)]
        bets.bet(float(p))
        assert bets.log_capital == pytest.approx(log(sum(shares)), abs=1e-13)


@pytest.mark.parametrize("jump", [0, -0.1, 1.5, True])
def test_jumps_are_shares(jump: float) -> None:
    with pytest.raises(ValueError, match=r"^jump: got .*; need a number in \(0, 1\]"):
        SimpleJumper(jump)
