"""Exact laws of the library's scores for prompts with pass rate p and one wrong answer: what a calibration converges to."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import comb

import numpy as np

from conformal_core import APS, FirstSuccess, Outcomes, first_success_mean_k

Rates = Mapping[Fraction, Fraction]
GRID = (2, 4, 8, 16, 32)


def rate(text: str) -> Rates:
    """Every prompt has this pass rate."""
    return {Fraction(text): Fraction(1)}


#: All prompts even, or 60% solved always and 40% never.
HALF = rate("1/2")
SPLIT = {Fraction(1): Fraction(3, 5), Fraction(0): Fraction(2, 5)}


def group(*codes: int, gold: int = 0) -> Outcomes:
    """One prompt with these answers."""
    table = np.array([codes])
    return Outcomes([0], table == gold, codes=table, gold=np.array([gold]))


def groups(codes: np.ndarray, gold: int = 0) -> Outcomes:
    """Prompts with well-spread ids and gold answer 0."""
    ids = (np.arange(len(codes), dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return Outcomes(ids, codes == gold, codes=codes, gold=np.full(len(codes), gold, np.int64))


def gold_counts(k: int, rates: Rates) -> list[Fraction]:
    """P(c of k responses are gold), c = 0..k, when a share ``rates[p]`` of the prompts has pass rate p."""
    return [sum((w * comb(k, c) * p**c * (1 - p) ** (k - c) for p, w in rates.items()), Fraction(0)) for c in range(k + 1)]


def aps_ends(k: int) -> list[tuple[Fraction, Fraction]]:
    """The score of a gold answer with c of k responses at U = 0 and U = 1, as the library computes it; linear in U between them."""
    o = groups((np.arange(k) >= np.arange(k + 1)[:, None]).astype(np.int64))
    low, high = (APS().gold_scores(o, (k,), np.full(k + 1, u))[:, 0] for u in (0.0, 1.0))
    return [(Fraction(round(float(a) * k), k), Fraction(round(float(b) * k), k)) for a, b in zip(low, high, strict=True)]


def aps_cdf(t: Fraction, k: int, rates: Rates) -> Fraction:
    """P(APS score <= t)."""
    total = Fraction(0)
    for w, (a, b) in zip(gold_counts(k, rates), aps_ends(k), strict=True):
        total += w * (min(max((t - a) / (b - a), Fraction(0)), Fraction(1)) if b > a else Fraction(t >= a))
    return total


def aps_quantile(delta: Fraction, k: int, rates: Rates) -> Fraction:
    """Smallest t with ``P(score <= t) >= 1 - delta``; the law is linear between multiples of 1 / k, with an atom at 1."""
    need, weights, ends = 1 - delta, gold_counts(k, rates), aps_ends(k)

    def cdf(t: Fraction, left: bool = False) -> Fraction:
        total = Fraction(0)
        for w, (a, b) in zip(weights, ends, strict=True):
            atom = t > a or (t == a and not left)
            total += w * (min(max((t - a) / (b - a), Fraction(0)), Fraction(1)) if b > a else Fraction(atom))
        return total

    for j in range(k):
        a, b = Fraction(j, k), Fraction(j + 1, k)
        low, high = cdf(a), cdf(b, left=True)
        if low >= need:
            return a
        if high >= need:
            return a + (need - low) / (high - low) * (b - a)
    return Fraction(1)


def first_success(j: int, rates: Rates) -> Fraction:
    """P(j* <= j), j* read off the library's score of a prompt whose first pass is response 1, 2, ..., 32."""
    firsts = Outcomes(np.arange(32), np.eye(32, dtype=bool))
    scores = FirstSuccess().gold_scores(firsts, (32,), np.zeros(32))[:, 0]
    within = int((np.round(32 * scores) <= j).sum())
    return sum((w * (1 - (1 - p) ** within) for p, w in rates.items()), Fraction(0))


def first_success_index(delta: Fraction, rates: Rates, k_max: int = 32) -> int | None:
    """Smallest j with ``P(j* <= j) >= 1 - delta``; None past K_max."""
    return next((j for j in range(1, k_max + 1) if first_success(j, rates) >= 1 - delta), None)


def mean_k(delta: Fraction, rates: Rates) -> Fraction:
    """Rollouts per prompt of the first-success rule in the limit of many calibration prompts."""
    j = first_success_index(delta, rates)
    return first_success_mean_k(GRID, j, first_success(j, rates) if j else 0)


def multisets(values: int, size: int) -> list[tuple[int, ...]]:
    """Every multiset of ``size`` values in ``range(values)``, as a sorted tuple."""
    if size == 0:
        return [()]
    return [(*rest, v) for rest in multisets(values, size - 1) for v in range(rest[-1] if rest else 0, values)]
