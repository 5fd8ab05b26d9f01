"""Exact laws of the scores for prompts with a pass rate p and one wrong answer: what a calibration converges to."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import comb


def gold_counts(k: int, rates: Mapping[Fraction, Fraction]) -> dict[int, Fraction]:
    """P(c of k responses are gold) when a share ``rates[p]`` of the prompts has pass rate p."""
    return {c: sum((w * comb(k, c) * p**c * (1 - p) ** (k - c) for p, w in rates.items()), Fraction(0)) for c in range(k + 1)}


def aps_cdf(t: Fraction, k: int, rates: Mapping[Fraction, Fraction]) -> Fraction:
    """P(G + U phat <= t): given c gold, uniform from the mass above to that plus c / k; 1 if c = 0."""
    total = Fraction(0)
    for c, w in gold_counts(k, rates).items():
        if c == 0:
            total += w * (t >= 1)
            continue
        above = Fraction(k - c, k) if k - c > c else Fraction(0)
        total += w * min(max((t - above) / Fraction(c, k), Fraction(0)), Fraction(1))
    return total


def aps_quantile(delta: Fraction, k: int, rates: Mapping[Fraction, Fraction]) -> Fraction:
    """Smallest t with ``aps_cdf(t) >= 1 - delta``: the cdf is linear between multiples of 1 / k."""
    need = 1 - delta
    for j in range(k):
        a, b = Fraction(j, k), Fraction(j + 1, k)
        low, high = aps_cdf(a, k, rates), aps_cdf(b, k, rates) if b < 1 else sum(list(gold_counts(k, rates).values())[1:], Fraction(0))
        if low >= need:
            return a
        if high >= need:
            return a + (need - low) / (high - low) * (b - a)
    return Fraction(1)


def first_success(j: int, rates: Mapping[Fraction, Fraction]) -> Fraction:
    """P(j* <= j)."""
    return sum((w * (1 - (1 - p) ** j) for p, w in rates.items()), Fraction(0))


def first_success_index(delta: Fraction, rates: Mapping[Fraction, Fraction], k_max: int = 32) -> int | None:
    """Smallest j with ``P(j* <= j) >= 1 - delta``; None past K_max."""
    return next((j for j in range(1, k_max + 1) if first_success(j, rates) >= 1 - delta), None)
