"""Bounds under shift, against exact coverage on small discrete laws."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal_core.quantile import conformal_quantile, weighted_quantile
from conformal_core.shift import nonexchangeable_bound, total_variation, tv_shift_bound
from tests.strategies import levels

parts = st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(any)


def law(weights: list[int]) -> list[Fraction]:
    return [Fraction(w, sum(weights)) for w in weights]


@settings(max_examples=40)
@given(parts, parts, st.integers(1, 4), levels)
def test_coverage_under_shift_is_at_least_the_bound(a: list[int], b: list[int], n: int, d: Fraction) -> None:
    p, q = law(a), law(b)
    cover = Fraction(0)
    for cal in product(range(3), repeat=n):
        limit = conformal_quantile(np.array(cal, float), d).value
        cover += prod((p[i] for i in cal), start=Fraction(1)) * sum((q[j] for j in range(3) if j <= limit), Fraction(0))
    assert cover >= tv_shift_bound(d, total_variation(p, q))


@settings(max_examples=30)
@given(st.lists(parts, min_size=4, max_size=4), st.lists(st.fractions(0, 1, max_denominator=4), min_size=3, max_size=3), levels)
def test_weighted_coverage_under_drift_is_at_least_the_bound(drift: list[list[int]], w: list[Fraction], d: Fraction) -> None:
    """Independent scores, each with its own law: swapping score i with the new one moves the sequence by at most 2 TV - TV**2."""
    laws = [law(x) for x in drift]
    new, cover = laws[-1], Fraction(0)
    for cal in product(range(3), repeat=3):
        limit = weighted_quantile(np.array(cal, float), w, 1, d).value
        weight = prod((laws[i][s] for i, s in enumerate(cal)), start=Fraction(1))
        cover += weight * sum((new[j] for j in range(3) if j <= limit), Fraction(0))
    swap = [2 * t - t**2 for t in (total_variation(x, new) for x in laws[:-1])]
    assert cover >= nonexchangeable_bound(d, w, swap)


def test_reductions() -> None:
    assert nonexchangeable_bound("0.1", [1] * 5, [0] * 5) == tv_shift_bound("0.1", 0) == Fraction(9, 10)
    assert nonexchangeable_bound("0.1", [1, "1/2"], ["0.2", "0.4"]) == Fraction(9, 10) - Fraction(4, 10) / Fraction(5, 2)
    assert tv_shift_bound("0.5", "0.9") == 0
    assert total_variation([1, 0], [0, 1]) == 1


def test_refusals() -> None:
    for call, name in (
        (lambda: tv_shift_bound("0.1", "1.1"), "tv"),
        (lambda: tv_shift_bound("0", "0.1"), "delta"),
        (lambda: nonexchangeable_bound("0.1", [1], []), "tv"),
        (lambda: nonexchangeable_bound("0.1", [2], [0]), "weights"),
        (lambda: total_variation(["1/2"], ["1/2"]), "p"),
        (lambda: total_variation([1], [1, 0]), "q"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
            call()
