"""Confidence intervals that are valid at every sample size, for shares and for means of bounded numbers."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from numpy.typing import ArrayLike

from .laws import clopper_pearson
from .level import Level, as_level

__all__ = ["mean_interval", "share_interval"]


def share_interval(hits: int, trials: int, level: Level = "0.95", *, adaptive: bool = False) -> tuple[float, float]:
    """Interval for a probability: Clopper-Pearson, or Azuma-Hoeffding if the probability may move with the past; (0, 1) without trials.

    Parameters
    ----------
    hits, trials : int
        Occurrences and trials, ``0 <= hits <= trials``.
    level : number
        Confidence.
    adaptive : bool
        ``False``: i.i.d. trials.  ``True``: each trial has a probability of its own, which may depend on all earlier ones; covered is
        their average, ``hits / trials +- sqrt(log(2 / (1 - level)) / (2 trials))``, for a number of trials fixed beforehand.

    Raises
    ------
    ValueError
        If not ``0 <= hits <= trials``, or ``level`` is outside (0, 1).

    References
    ----------
    Clopper, Pearson (1934); Azuma (1967), Hoeffding (1963).

    Examples
    --------
    >>> [round(x, 3) for x in share_interval(1, 3)], [round(x, 3) for x in share_interval(100, 300, adaptive=True)]
    ([0.008, 0.906], [0.255, 0.412])
    """
    confidence = as_level(level, "level")
    if any(isinstance(x, bool) or not isinstance(x, (int, np.integer)) for x in (hits, trials)) or not 0 <= hits <= trials:
        raise ValueError(f"hits: got {hits} of {trials} trials; need an integer from 0 to {trials}; because it counts occurrences")
    if not trials:
        return 0.0, 1.0
    if not adaptive:
        return clopper_pearson(hits, trials, confidence)
    return _clipped(hits / trials, sqrt(log(2 / (1 - confidence)) / (2 * trials)))


def mean_interval(values: ArrayLike, level: Level = "0.95", *, adaptive: bool = False) -> tuple[float, float]:
    """Interval for the mean of numbers in [0, 1]: empirical Bernstein, or Azuma-Hoeffding.

    ``mean +- (sqrt(2 V log(4/(1-level)) / n) + 7 log(4/(1-level)) / (3 (n - 1)))`` with V the unbiased sample variance; (0, 1) for one
    number.

    Parameters
    ----------
    values : array_like, shape (n,)
        At least one number, each in [0, 1].
    level : number
        Confidence.
    adaptive : bool
        As in :func:`share_interval`: the law of each number may depend on the earlier ones, and the average of the conditional means is
        covered.

    Raises
    ------
    ValueError
        If there is no number, or one is outside [0, 1], or ``level`` is outside (0, 1).

    References
    ----------
    Maurer, Pontil (2009), *Empirical Bernstein bounds and sample-variance penalization*, Theorem 4 on both sides.

    Examples
    --------
    >>> [round(x, 3) for x in mean_interval([0.25] * 90 + [0.5] * 10)]
    [0.149, 0.401]
    """
    confidence = as_level(level, "level")
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or not len(x) or not bool(((x >= 0) & (x <= 1)).all()):
        raise ValueError(f"values: got shape {x.shape}; need one or more numbers in [0, 1]; because the bound uses their range")
    n, mean = len(x), float(x.mean())
    if adaptive:
        return _clipped(mean, sqrt(log(2 / (1 - confidence)) / (2 * n)))
    if n == 1:
        return 0.0, 1.0
    lost = log(4 / (1 - confidence))
    return _clipped(mean, sqrt(2 * float(x.var(ddof=1)) * lost / n) + 7 * lost / (3 * (n - 1)))


def _clipped(mean: float, width: float) -> tuple[float, float]:
    return max(0.0, mean - width), min(1.0, mean + width)
