"""Exact laws: coverage given a calibration set, coverage under ties, tolerance ranks, binomial intervals."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb, isclose
from typing import Any

import numpy as np

from .level import Level, _count, as_level, conformal_rank, exact, min_calibration_size

__all__ = ["betabinomial_hits", "clopper_pearson", "coverage_law", "pac_rank", "tied_coverage"]


def coverage_law(n: int, delta: Level) -> Any:
    """Law of the coverage given the calibration set: ``Beta(L, n + 1 - L)`` with ``L = conformal_rank(n, delta)``.

    For i.i.d. scores with a continuous law, ``P(S <= q | calibration set)`` has exactly this law, of mean L/(n + 1); with
    ties the coverage is stochastically larger.  It is the yardstick for an empirical coverage: at n = 200, delta = .12
    its standard deviation is .023, not 1/(n + 1) = .005.

    Parameters
    ----------
    n : int
        Calibration scores.
    delta : level
        Miscoverage.

    Returns
    -------
    scipy.stats frozen distribution

    Raises
    ------
    ValueError
        If the level is not attainable with n scores: then the threshold is +inf and the coverage is 1.

    References
    ----------
    Vovk (2012), *Conditional validity of inductive conformal predictors*.

    Examples
    --------
    >>> float(coverage_law(200, "0.12").mean()) == 177 / 201
    True
    """
    rank = _attainable_rank(n, delta)
    from scipy.stats import beta  # type: ignore[import-untyped, unused-ignore]

    return beta(rank, n + 1 - rank)


def betabinomial_hits(m: int, n: int, delta: Level) -> Any:
    """Law of the number of covered points among ``m`` test points: ``BetaBinomial(m, L, n + 1 - L)``.

    All m test points share one calibration set of n; scores are i.i.d. and continuous.

    Parameters
    ----------
    m, n : int
        Test points; calibration scores.
    delta : level
        Miscoverage.

    Returns
    -------
    scipy.stats frozen distribution

    Raises
    ------
    ValueError
        If the level is not attainable with n scores.

    Examples
    --------
    >>> law = betabinomial_hits(300, 200, 0.12)
    >>> round(float(law.std()) / 300, 4)
    0.0295
    """
    rank = _attainable_rank(n, delta)
    from scipy.stats import betabinom  # type: ignore[import-untyped, unused-ignore]

    return betabinom(_count(m, "m", 1), rank, n + 1 - rank)


def clopper_pearson(x: int, n: int, level: Level = 0.95) -> tuple[float, float]:
    """Exact two-sided confidence interval for a binomial proportion, ``x`` occurrences in ``n`` trials.

    Covers the true proportion with probability at least ``level`` for i.i.d. trials: the check of a *fixed* threshold on
    fresh prompts.  It does not account for a threshold that was itself calibrated.

    Parameters
    ----------
    x, n : int
        Occurrences and trials, ``0 <= x <= n``, n >= 1.
    level : level
        Confidence.

    Returns
    -------
    (float, float)

    Raises
    ------
    ValueError
        If not ``0 <= x <= n`` with n >= 1, or ``level`` is outside (0, 1).

    References
    ----------
    Clopper, Pearson (1934).

    Examples
    --------
    >>> [round(b, 3) for b in clopper_pearson(270, 300)]
    [0.86, 0.932]
    """
    from scipy.stats import beta  # type: ignore[import-untyped, unused-ignore]

    whole = all(isinstance(c, (int, np.integer)) and not isinstance(c, bool) for c in (x, n))
    if not (whole and n >= 1 and 0 <= x <= n):
        raise ValueError(f"x, n: got {x!r}, {n!r}; need integers 0 <= x <= n and n >= 1; because x counts occurrences in n trials")
    tail = float((1 - as_level(level, "level")) / 2)
    low = 0.0 if x == 0 else float(beta.ppf(tail, x, n - x + 1))
    high = 1.0 if x == n else float(beta.isf(tail, x + 1, n - x))
    return low, high


def pac_rank(n: int, delta: Level, gamma: Level) -> int:
    """Smallest rank whose threshold covers ``1 - delta`` with probability ``1 - gamma`` over the calibration set.

    ``min{L : P(Beta(L, n + 1 - L) >= 1 - delta) >= 1 - gamma}``, or ``n + 1`` (threshold +inf) if there is none.  Where
    :func:`conformal_rank` promises coverage on average over calibration sets, this promises it for all but a share gamma
    of them (i.i.d. scores): a one-sided tolerance limit.

    Parameters
    ----------
    n : int
        Calibration scores.
    delta, gamma : level
        Miscoverage; probability that the calibration set was unlucky.

    Returns
    -------
    int
        In ``[1, n + 1]``.

    Raises
    ------
    ValueError
        If a level is outside (0, 1).

    References
    ----------
    Wilks (1941); Vovk (2012).

    Examples
    --------
    >>> pac_rank(200, 0.1, 0.1), pac_rank(100, 0.1, 0.1)
    (186, 95)
    """
    from scipy.stats import binom  # type: ignore[import-untyped, unused-ignore]

    d, g = as_level(delta), as_level(gamma, "gamma")
    conformal_rank(n, d)  # validates n
    n = int(n)
    # P(Beta(L, n+1-L) >= 1-d) = P(Bin(n, 1-d) <= L-1), in integers where floating point cannot tell it from 1 - g
    law = binom.cdf(np.arange(n), n, float(1 - d))
    for below in np.flatnonzero(law >= float(1 - g) * (1 - 1e-9)):
        close = isclose(law[below], float(1 - g), rel_tol=1e-9)
        if not close or binomial_cdf(int(below), n, 1 - d) >= 1 - g:
            return int(below) + 1
    return n + 1


def tied_coverage(pmf: Sequence[Fraction | int | str], n: int, delta: Level) -> Fraction:
    """Exact coverage ``P(S <= q)`` when scores are i.i.d. on finitely many values: where ties make it exceed 1 - delta + 1/(n+1).

    ``sum_j F(v_j) * P(S_(L) = v_j)``, which is ``E[F(F^{-1}(B))]`` with ``B ~ Beta(L, n + 1 - L)``; 1 if L = n + 1.

    Parameters
    ----------
    pmf : sequence
        Probabilities of the values in increasing order of value; must sum to 1.
    n : int
        Calibration scores.
    delta : level
        Miscoverage.

    Returns
    -------
    Fraction

    Raises
    ------
    ValueError
        If ``pmf`` is not a probability vector, or ``delta`` is outside (0, 1).

    References
    ----------
    Against the upper bound in Theorem 2 of the C-GRPO paper, which needs scores without ties.

    Examples
    --------
    >>> tied_coverage(["1/2", "1/2"], 4, "2/5")
    Fraction(27, 32)
    """
    masses = probability_law("pmf", pmf)
    rank, n = conformal_rank(n, delta), int(n)
    if rank > n:
        return Fraction(1)
    total = cdf = below = Fraction(0)
    for mass in masses:
        cdf += mass
        reached = sum((comb(n, i) * cdf**i * (1 - cdf) ** (n - i) for i in range(rank, n + 1)), Fraction(0))
        total += cdf * (reached - below)
        below = reached
    return total


def probability_law(name: str, masses: Sequence[Fraction | int | str]) -> list[Fraction]:
    """The masses as exact rationals; ``ValueError`` unless none is below 0 and they sum to 1."""
    law = [exact(p) for p in masses]
    found = [p for p in law if p is not None]
    if not found or len(found) < len(law) or min(found) < 0 or sum(found) != 1:
        raise ValueError(f"{name}: got {[str(p) for p in masses]}; need masses >= 0 that sum to 1; because it is a probability law")
    return found


def binomial_cdf(x: int, m: int, p: Fraction) -> Fraction:
    """``P(Bin(m, p) <= x)``, exactly."""
    up, down = p.numerator, p.denominator - p.numerator
    return Fraction(sum(comb(m, i) * up**i * down ** (m - i) for i in range(x + 1)), p.denominator**m)


def _attainable_rank(n: int, delta: Level) -> int:
    rank = conformal_rank(n, delta)
    if rank > n:
        raise ValueError(
            f"n: got {n}; need at least {min_calibration_size(delta)}; because below it the threshold at delta = "
            f"{as_level(delta)} is +inf and covers everything"
        )
    return rank
