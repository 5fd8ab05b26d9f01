"""The adaptive level at the ends of its range, and its step."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from conformal_core import adaptive_level


@pytest.mark.parametrize(("share", "level", "threshold"), [(0, 1, -math.inf), (1, 0, math.inf), (Fraction(1, 2), Fraction(1, 2), 2.0)])
def test_a_level_at_either_end_needs_no_scores(share: Fraction, level: Fraction, threshold: float) -> None:
    after = adaptive_level("1/2", 1).after(share)
    assert after.level == level
    assert after.threshold([1.0, 2.0, 3.0]) == threshold


def test_a_float_step_is_the_nearest_rational_of_denominator_up_to_a_million() -> None:
    assert adaptive_level("1/2", 1 / 999_983).gamma == Fraction(1, 999_983)
    assert adaptive_level("1/2", 1 / 1_000_003).gamma == Fraction(1, 10**6)


@pytest.mark.parametrize("bad", ["x", "1/0", math.nan, math.inf, None, 0, -1, True])
def test_steps_that_are_not_positive_numbers_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"^gamma: got .*; need a number above 0"):
        adaptive_level("1/2", bad)


@pytest.mark.parametrize("bad", [-1, 2, Fraction(-1, 5), Fraction(6, 5)])
def test_shares_of_errors_are_within_0_and_1(bad: Fraction) -> None:
    with pytest.raises(ValueError, match=r"^share: got .*; need a number in \[0, 1\]"):
        adaptive_level("1/2").after(bad)
