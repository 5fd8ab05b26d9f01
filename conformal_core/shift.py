"""What a threshold still covers when the new score does not have the law of the calibration scores."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .auto_delta import _rational
from .laws import probability_law
from .level import Level, as_level

__all__ = ["nonexchangeable_bound", "total_variation", "tv_shift_bound"]


def tv_shift_bound(delta: Level, tv: Level) -> Fraction:
    """``P(S <= q) >= 1 - delta - tv`` for a new score whose law is ``tv`` away in total variation from that of the calibration scores.

    The threshold is calibrated on n exchangeable scores of law P and the new, independent score has law Q.  Attained: move mass tv from
    below the threshold to above it.  The further ``1/(n + 1)`` subtracted in the C-GRPO paper is superfluous.

    Parameters
    ----------
    delta : level
        Miscoverage under no shift.
    tv : number
        Total variation distance in [0, 1] between the laws of the *scores*, or of anything they are a function of.  A distance between
        laws of features of the prompts is not enough: it may be smaller.

    Returns
    -------
    Fraction
        Lower bound on the coverage, at least 0.

    Raises
    ------
    ValueError
        If ``delta`` is outside (0, 1) or ``tv`` outside [0, 1].

    References
    ----------
    Against Theorem 13 and Table 6 of the C-GRPO paper.

    Examples
    --------
    >>> tv_shift_bound("0.12", "0.3")
    Fraction(29, 50)
    """
    return max(1 - as_level(delta) - _rational("tv", tv), Fraction(0))


def nonexchangeable_bound(delta: Level, weights: Sequence[Level], tv: Sequence[Level]) -> Fraction:
    """``P(S <= q) >= 1 - delta - sum_i w_i tv_i / (1 + sum_j w_j)`` for the weighted threshold with fixed weights and test weight 1.

    For calibration scores that drift: q is :func:`conformal_core.weighted_quantile` with weights ``w_i`` in [0, 1] fixed in advance
    (``rho**age``, say), and ``tv_i`` bounds the total variation between the sequence of the n + 1 scores and the same sequence with score
    i and the new score swapped; for independent scores ``2 d_TV(S_i, S_new)`` bounds it.  Equal weights and no drift give ``1 - delta``.

    Parameters
    ----------
    delta : level
        Miscoverage under no drift.
    weights, tv : sequence of n numbers in [0, 1]
        Weights and distances.

    Returns
    -------
    Fraction
        Lower bound on the coverage, at least 0.

    Raises
    ------
    ValueError
        If the two differ in length or a number is outside [0, 1].

    References
    ----------
    Barber, Candes, Ramdas, Tibshirani (2023), *Conformal prediction beyond exchangeability*, Theorem 2.

    Examples
    --------
    >>> nonexchangeable_bound("0.1", [1, "1/2", "1/4"], ["0.1", "0.2", "0.4"])
    Fraction(87, 110)
    """
    w = [_rational("weights", x) for x in weights]
    d = [_rational("tv", x) for x in tv]
    if len(w) != len(d):
        raise ValueError(f"tv: got {len(d)} distances; need {len(w)}; because every weighted score has one")
    loss = sum((a * b for a, b in zip(w, d, strict=True)), Fraction(0)) / (1 + sum(w))
    return max(1 - as_level(delta) - loss, Fraction(0))


def total_variation(p: Sequence[Fraction | int | str], q: Sequence[Fraction | int | str]) -> Fraction:
    """``(1/2) sum_j |p_j - q_j|`` of two laws on the same finitely many values, exactly.

    Parameters
    ----------
    p, q : sequence
        Probabilities; each must sum to 1.

    Returns
    -------
    Fraction

    Raises
    ------
    ValueError
        If the lengths differ or either is not a probability vector.

    Examples
    --------
    >>> total_variation(["1/2", "1/2"], ["1/4", "3/4"])
    Fraction(1, 4)
    """
    laws = probability_law("p", p), probability_law("q", q)
    if len(laws[0]) != len(laws[1]):
        raise ValueError(f"q: got {len(laws[1])} masses; need {len(laws[0])}; because p and q are laws on the same values")
    return sum((abs(a - b) for a, b in zip(*laws, strict=True)), Fraction(0)) / 2
