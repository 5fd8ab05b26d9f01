"""Is the calibration set exchangeable with what it serves?  Exact tests, by permutation and by the law of the coverage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import as_floats, generator
from .laws import betabinomial_hits
from .level import Level, as_level
from .quantile import conformal_quantile

__all__ = ["ExchangeabilityTest", "coverage_test", "permutation_test"]

Statistic = Callable[[NDArray[np.float64], NDArray[np.bool_]], NDArray[np.float64]]


@dataclass(frozen=True)
class ExchangeabilityTest:
    """Evidence against "calibration and served scores are exchangeable".

    Attributes
    ----------
    p_value : float
        ``P(p_value <= a) <= a`` for every a, if they are exchangeable.
    statistic : float
        Observed value; large speaks against.
    n, m : int
        Calibration and served scores.
    method : str
        Statistic, and how its law was found.
    guarantee : str
        The statement in words.
    """

    p_value: float
    statistic: float
    n: int
    m: int
    method: str
    guarantee: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExchangeabilityTest:
        """Inverse of :meth:`to_json`."""
        return cls(**data)


def permutation_test(
    calibration: ArrayLike,
    served: ArrayLike,
    *,
    statistic: Literal["greater", "less", "two_sided", "distribution"] | Statistic = "greater",
    resamples: int = 1999,
    seed: int = 0,
) -> ExchangeabilityTest:
    r"""Are the ``served`` scores where they would be if labels were dealt at random over all ``n + m`` scores?

    ``p = #{relabelings with statistic >= observed} / #relabelings`` over all ``C(n + m, m)`` relabelings if these are at most
    ``resamples + 1``; else ``p = (1 + #{b : T_b >= observed}) / (resamples + 1)`` over random ones, the observed labeling counted among
    them, so that it is a valid p-value for any number of resamples.

    Parameters
    ----------
    calibration : array_like, shape (n,)
    served : array_like, shape (m,)
        Scores; +inf allowed.
    statistic : {"greater", "less", "two_sided", "distribution"} or callable
        ``"greater"``: the rank sum (mid-ranks) of the served scores, large if the threshold covers too little.  ``"less"``: small rank
        sums.  ``"two_sided"``: its distance from the mean.  ``"distribution"``: Kolmogorov-Smirnov distance.
        A callable takes the pooled scores (n + m,) and labelings (r, n + m), True = served, to r values.
    resamples : int
        Relabelings beyond the observed one.
    seed : int
        Key of the random relabelings.

    Returns
    -------
    ExchangeabilityTest

    Raises
    ------
    ValueError
        If a sample is empty or holds NaN, ``statistic`` is unknown, or ``resamples < 1``.

    References
    ----------
    Lehmann, Romano (2005), *Testing Statistical Hypotheses*, Sect. 15.2; Phipson, Smyth (2010) for the ``+ 1``.

    Examples
    --------
    >>> permutation_test([1, 2, 3, 4], [8, 9]).p_value == 1 / 15
    True
    """
    cal, new = _sample("calibration", calibration), _sample("served", served)
    if isinstance(resamples, bool) or not isinstance(resamples, (int, np.integer)) or resamples < 1:
        raise ValueError(f"resamples: got {resamples!r}; need an integer >= 1; because the p-value is at least 1/(resamples + 1)")
    pooled = np.concatenate([cal, new])
    n, m, size = cal.size, new.size, pooled.size
    name = statistic if isinstance(statistic, str) else getattr(statistic, "__name__", "statistic")
    measure = _NAMED.get(statistic) if isinstance(statistic, str) else statistic
    if measure is None:
        raise ValueError(f"statistic: got {statistic!r}; need one of {sorted(_NAMED)} or a callable; because it orders the relabelings")
    observed = float(measure(pooled, (np.arange(size) >= n)[None])[0])
    every = comb(size, m)
    if every <= resamples + 1:
        labels = np.zeros((every, size), np.bool_)
        np.put_along_axis(labels, np.array(list(combinations(range(size), m))), True, axis=1)
        at_least, total, how = int((measure(pooled, labels) >= observed).sum()), every, f"all {every} relabelings"
    else:
        rng = generator(seed)
        at_least, total, how = 1, int(resamples) + 1, f"{resamples} random relabelings and the observed one"
        rows = max(1, 4_000_000 // size)
        for start in range(0, total - 1, rows):
            draws = rng.random((min(rows, total - 1 - start), size)).argsort(axis=1)
            at_least += int((measure(pooled, draws >= n) >= observed).sum())
    return ExchangeabilityTest(
        p_value=at_least / total,
        statistic=observed,
        n=n,
        m=m,
        method=f"permutation test, {name}: {how}",
        guarantee=f"P(p <= a) <= a for every a if the {n} calibration and {m} served scores are exchangeable, ties or not",
    )


def coverage_test(calibration: ArrayLike, served: ArrayLike, delta: Level) -> ExchangeabilityTest:
    """Do fewer of the served scores stay within the conformal threshold than a lucky or unlucky calibration set explains?

    ``p = P(H <= hits)`` with ``H ~ BetaBinomial(m, L, n + 1 - L)``, the law of the number of covered scores that share one calibration set.
    Its spread is that of the calibration set *and* the served scores: a binomial test would ignore the first and raise
    false alarms.

    Parameters
    ----------
    calibration : array_like, shape (n,)
    served : array_like, shape (m,)
        Scores.
    delta : number
        Miscoverage, attainable with n scores.

    Returns
    -------
    ExchangeabilityTest
        ``statistic`` is the number of served scores above the threshold.  With ties coverage is larger, and the p-value errs upwards.

    Raises
    ------
    ValueError
        If a sample is empty or holds NaN, or the level is out of range or unattainable.

    References
    ----------
    Marques F., *Universal distribution of the empirical coverage in split conformal prediction*; Vovk (2012).

    Examples
    --------
    >>> import numpy as np
    >>> round(coverage_test(np.arange(99.0), np.arange(80, 110.0), "0.1").p_value, 7)
    0.0
    """
    cal, new = _sample("calibration", calibration), _sample("served", served)
    q = conformal_quantile(cal, delta)
    law = betabinomial_hits(new.size, cal.size, delta)
    hits = int((new <= q.value).sum())
    return ExchangeabilityTest(
        p_value=float(min(law.cdf(hits), 1.0)),
        statistic=float(new.size - hits),
        n=cal.size,
        m=new.size,
        method=f"beta-binomial law of the coverage at delta = {as_level(delta)}",
        guarantee=f"P(p <= a) <= a for every a if the {cal.size} calibration and {new.size} served scores are exchangeable, ties or not",
    )


def _rank_sum(pooled: NDArray[np.float64], served: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Sum over served scores of (2 x mid-rank): whole numbers, so equal sums are equal floats."""
    ordered = np.sort(pooled)
    twice = np.searchsorted(ordered, pooled, side="left") + np.searchsorted(ordered, pooled, side="right") + 1
    return np.asarray(served @ twice.astype(np.float64), np.float64)


def _negative_rank_sum(pooled: NDArray[np.float64], served: NDArray[np.bool_]) -> NDArray[np.float64]:
    return -_rank_sum(pooled, served)


def _from_mean(pooled: NDArray[np.float64], served: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.asarray(np.abs(_rank_sum(pooled, served) - served.sum(axis=1) * (pooled.size + 1.0)))


def _kolmogorov_smirnov(pooled: NDArray[np.float64], served: NDArray[np.bool_]) -> NDArray[np.float64]:
    """``n m`` times the largest difference of the two empirical distribution functions: a whole number."""
    order = np.argsort(pooled, kind="stable")
    new = served[:, order].astype(np.int64)
    m = new.sum(axis=1, keepdims=True)
    gap = np.abs((pooled.size - m) * new.cumsum(axis=1) - m * (1 - new).cumsum(axis=1))
    last = np.append(np.diff(np.searchsorted(pooled[order], pooled[order], side="right")) > 0, True)  # last position of each tied block
    return np.asarray(gap[:, last].max(axis=1), np.float64)


_NAMED: dict[str, Statistic] = {
    "greater": _rank_sum,
    "less": _negative_rank_sum,
    "two_sided": _from_mean,
    "distribution": _kolmogorov_smirnov,
}


def _sample(name: str, values: ArrayLike) -> NDArray[np.float64]:
    numbers = as_floats(name, values)
    if numbers.ndim != 1 or not numbers.size or np.isnan(numbers).any():
        raise ValueError(f"{name}: got shape {numbers.shape}; need one dimension, a score and no NaN; because scores are ranked")
    return numbers
