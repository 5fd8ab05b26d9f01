"""The split-conformal threshold, unweighted and weighted, as a result that says what it guarantees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import as_floats
from .level import Level, as_level, conformal_rank, min_calibration_size

__all__ = ["ConformalQuantile", "conformal_quantile", "weighted_quantile"]


@dataclass(frozen=True)
class ConformalQuantile:
    """A calibrated threshold and where it comes from.

    Attributes
    ----------
    value : float
        The threshold q: accept a score s iff ``s <= q``.  ``+inf`` accepts every score.
    rank : int
        q is the ``rank``-th smallest calibration score; ``n + 1`` stands for +inf.
    n : int
        Number of calibration scores.
    delta : Fraction
        Miscoverage.
    attainable : bool
        Whether ``rank <= n``.  A threshold can be ``+inf`` and attainable: then that calibration *score* was +inf.
    guarantee : str
        The statement, with its assumption, in words.

    Examples
    --------
    >>> q = conformal_quantile([0.1, 0.4, 0.2, 0.3], "1/4")
    >>> ConformalQuantile.from_json(q.to_json()) == q
    True
    """

    value: float
    rank: int
    n: int
    delta: Fraction
    attainable: bool
    guarantee: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: ``delta`` as ``"p/q"``, an infinite ``value`` as ``"inf"`` (JSON has no infinity)."""
        return {
            "value": self.value if math.isfinite(self.value) else str(self.value),
            "rank": self.rank,
            "n": self.n,
            "delta": str(self.delta),
            "attainable": self.attainable,
            "guarantee": self.guarantee,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConformalQuantile:
        """Inverse of :meth:`to_json`."""
        return cls(
            value=float(data["value"]),
            rank=int(data["rank"]),
            n=int(data["n"]),
            delta=as_level(data["delta"]),
            attainable=bool(data["attainable"]),
            guarantee=str(data["guarantee"]),
        )


def conformal_quantile(scores: ArrayLike, delta: Level) -> ConformalQuantile:
    """The split-conformal threshold: the ``ceil((n + 1)(1 - delta))``-th smallest of ``n`` calibration scores.

    If the scores and the score S of a new point are exchangeable, ``P(S <= q) >= 1 - delta``, ties or not; without ties
    also ``P(S <= q) <= 1 - delta + 1 / (n + 1)`` where the level is attainable.  Both are averages over the draw of the
    calibration set; :func:`conformal_core.laws.coverage_law` has the law given one.

    Parameters
    ----------
    scores : array_like, shape (n,)
        Nonconformity scores, n >= 1.  ``+inf`` is legitimate ("can never be reached").
    delta : level
        Miscoverage; see :func:`conformal_core.level.as_level`.

    Returns
    -------
    ConformalQuantile
        With ``value`` +inf, ``attainable`` False and, in ``guarantee``, the n that would do when the rank exceeds n.

    Raises
    ------
    ValueError
        If ``scores`` is not one-dimensional, is empty or holds a NaN, or if ``delta`` is outside (0, 1).

    References
    ----------
    Papadopoulos et al. (2002); Vovk, Gammerman, Shafer (2005).  C-GRPO paper, Eq. 6 and Theorem 2, repaired: no
    ``min(rank, n)``.

    Examples
    --------
    >>> conformal_quantile([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 0.1).value
    0.9
    >>> q = conformal_quantile([0.1, 0.2, 0.3], 0.1)
    >>> q.value, q.attainable
    (inf, False)
    >>> print(q.guarantee)
    threshold +inf: every score is accepted, because delta = 1/10 needs at least 9 calibration scores and there are 3
    """
    s = _scores(scores)
    level = as_level(delta)
    n = s.size
    rank = conformal_rank(n, level)
    if rank > n:
        return ConformalQuantile(
            value=math.inf,
            rank=rank,
            n=n,
            delta=level,
            attainable=False,
            guarantee=(
                f"threshold +inf: every score is accepted, because delta = {level} needs at least "
                f"{min_calibration_size(level)} calibration scores and there are {n}"
            ),
        )
    return ConformalQuantile(
        value=float(np.partition(s, rank - 1)[rank - 1]),
        rank=rank,
        n=n,
        delta=level,
        attainable=True,
        guarantee=f"P(score <= value) >= {1 - level} for a new score exchangeable with the {n} calibration scores",
    )


def weighted_quantile(scores: ArrayLike, weights: Sequence[Any] | NDArray[Any], test_weight: Any, delta: Level) -> ConformalQuantile:
    """The threshold under a known covariate shift: smallest score whose cumulative weight reaches the level.

    ``q = min{s : sum_i w_i 1[S_i <= s] >= (1 - delta) * (sum_i w_i + w_test)}``, or +inf if there is none: the test
    point's own weight sits at +inf.  If ``w`` is the likelihood ratio of test to calibration law,
    ``P(S <= q) >= 1 - delta``.  The sums are exact (integers over a common denominator, not floats), so equal weights of
    any magnitude give exactly the unweighted rank.

    Parameters
    ----------
    scores : array_like, shape (n,)
        As in :func:`conformal_quantile`.
    weights : sequence, shape (n,)
        Weights >= 0: ints, floats (taken at their exact binary value) or Fractions.  No normalisation is needed.
    test_weight : number
        Weight of the test point, >= 0, on the same scale.
    delta : level
        Miscoverage.

    Returns
    -------
    ConformalQuantile
        ``rank`` is the position of the threshold among the sorted scores.

    Raises
    ------
    ValueError
        As in :func:`conformal_quantile`; if weights are negative, not finite, of the wrong number, or all zero.

    References
    ----------
    Tibshirani, Foygel Barber, Candes, Ramdas (2019), *Conformal prediction under covariate shift*.

    Examples
    --------
    >>> weighted_quantile([1, 2, 3], [0.90, 0.06, 0.04], 0.01, 0.5).value
    1.0
    >>> weighted_quantile(range(1, 10), [0.1] * 9, 0.1, 0.1).rank
    9
    """
    s = _scores(scores)
    level = as_level(delta)
    raw = np.asarray(weights, dtype=object)
    if raw.shape != s.shape:
        raise ValueError(f"weights: got shape {raw.shape}; need {s.shape}; because every score has one weight")
    exact = [_as_written(w) for w in [*raw, test_weight]]
    if min(exact) < 0 or not any(exact):
        raise ValueError(
            f"weights: got a minimum of {min(exact)} and a sum of {sum(exact)}; need none below 0 and a sum "
            "above 0; because they are likelihood ratios"
        )
    unit = math.lcm(*(w.denominator for w in exact))
    whole = [w.numerator * (unit // w.denominator) for w in exact]
    need = (level.denominator - level.numerator) * sum(whole)
    order = np.argsort(s, kind="stable")
    n = s.size
    rank = next((i for i, c in enumerate(accumulate(whole[j] for j in order), 1) if c * level.denominator >= need), n + 1)
    if rank > n:
        return ConformalQuantile(
            value=math.inf,
            rank=rank,
            n=n,
            delta=level,
            attainable=False,
            guarantee=(
                f"threshold +inf: every score is accepted, because the test point carries a share "
                f"{float(exact[-1] / sum(exact)):.4g} of the weight, more than delta = {level}"
            ),
        )
    return ConformalQuantile(
        value=float(s[order[rank - 1]]),
        rank=rank,
        n=n,
        delta=level,
        attainable=True,
        guarantee=(
            f"P(score <= value) >= {1 - level} for a new score, if the weights are the likelihood ratio of its law to that "
            f"of the {n} calibration scores"
        ),
    )


def _as_written(weight: Any) -> Fraction:
    """A weight as an exact rational: floats at their binary value."""
    value = weight.item() if isinstance(weight, np.ndarray) and weight.ndim == 0 else weight
    if isinstance(value, (bool, np.bool_, np.integer)):
        value = int(value)
    try:
        return Fraction(*(int(part) for part in value.as_integer_ratio()))
    except (AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"weights: got {weight!r}; need finite numbers; because they are summed") from error


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    s = as_floats("scores", scores)
    if s.ndim != 1:
        raise ValueError(f"scores: got shape {s.shape}; need one dimension; because there is one score per calibration point")
    if s.size == 0:
        raise ValueError("scores: got none; need at least 1; because a threshold without data is +inf, which needs no call")
    if np.isnan(s).any():
        raise ValueError(
            f"scores: got NaN at {np.flatnonzero(np.isnan(s))[:5].tolist()}; need numbers or +inf; because NaN has no rank "
            "(a score that was never determined must not be dropped silently)"
        )
    return s
