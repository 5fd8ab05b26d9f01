"""Conformal p-values against counting, and their equivalence with the threshold."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.pvalues import plain_p_values, smoothed_p_values
from conformal_core.quantile import conformal_quantile
from tests.strategies import dyadic_uniforms, levels, tied_scores


@given(st.lists(tied_scores, max_size=25), st.lists(tied_scores, min_size=1, max_size=8), dyadic_uniforms)
def test_p_values_count(cal: list[float], test: list[float], u: float) -> None:
    n = len(cal)
    plain, smooth = plain_p_values(cal, test), smoothed_p_values(cal, test, u)
    for i, s in enumerate(test):
        greater, equal = sum(c > s for c in cal), sum(c == s for c in cal)
        assert plain[i] == (1 + greater + equal) / (n + 1)
        assert smooth[i] == float((greater + Fraction(u) * (1 + equal)) / (n + 1))
        assert 0 <= smooth[i] <= plain[i] <= 1


@given(st.lists(tied_scores, min_size=1, max_size=30), st.lists(tied_scores, min_size=1, max_size=8), levels)
def test_set_of_p_above_delta_is_set_of_scores_below_threshold(cal: list[float], test: list[float], level: Fraction) -> None:
    q = conformal_quantile(cal, level).value
    assert (plain_p_values(cal, test) > float(level)).tolist() == [s <= q for s in test]


@pytest.mark.parametrize("values", [(0, 1), (0, 0, 1), (0, 1, 2), (3, 3, 3)])
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_smoothed_p_is_exactly_uniform_ties_or_not(values: tuple[int, ...], n: int) -> None:
    """Average over all samples of P_u(p > d), each of which is linear in u: exactly 1 - d."""
    for d in (Fraction(1, 20), Fraction(1, 3), Fraction(9, 10)):
        total, count = Fraction(0), 0
        for sample in product(values, repeat=n + 1):
            *cal, s = sample
            low, high = (Fraction(float(smoothed_p_values(np.array(cal, float), [s], u)[0])).limit_denominator(100) for u in (0.0, 1.0))
            total += min(max((high - d) / (high - low), Fraction(0)), Fraction(1))
            count += 1
        assert total / count == 1 - d


def test_vectorised_shapes() -> None:
    test = np.arange(6.0).reshape(2, 3)
    assert plain_p_values([1.0], test).shape == (2, 3)
    assert smoothed_p_values([1.0], 0.5, np.array([0.1, 0.2])).shape == (2,)
    assert smoothed_p_values([], [0.5], [0.25]).tolist() == [0.25]


def test_smoothing_reaches_untied_scores() -> None:
    """MAPIE#984: with the +1 outside the u term, u drops out where there is no tie."""
    cal = [0.3, 0.4, 0.5, 0.6, 0.7]
    assert smoothed_p_values(cal, [0.55] * 2, [0.0, 1.0]).tolist() == [2 / 6, 3 / 6]


def test_the_test_point_is_ranked() -> None:
    """crepes#52: p = 1 for a score below all calibration scores."""
    assert plain_p_values([0.9] * 5, [0.01] * 3).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("cal", "test", "u"),
    [
        ([math.nan], [0.1], 0.5),
        ([0.1], [math.nan], 0.5),
        ([0.1], [0.1], 1.5),
        ([0.1], [0.1], -0.5),
        ([0.1], [0.1], math.nan),
        ([[0.1]], [0.1], 0),
    ],
)
def test_bad_input_is_refused(cal: list[float], test: list[float], u: float) -> None:
    with pytest.raises(ValueError, match=r"; need .*; because "):
        smoothed_p_values(cal, test, u)
