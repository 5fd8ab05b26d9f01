"""Choosing the miscoverage level from the solve rate, and splitting a calibration set so that the choice costs no validity."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .level import Level

__all__ = ["auto_delta", "disjoint_split"]


def _rational(name: str, value: Level) -> Fraction:
    """``value`` as the exact fraction that was written (a float through ``limit_denominator(10**6)``), within [0, 1]."""
    try:
        # numpy's narrow floats go through their shortest decimal, since float(float32(0.1)) is 0.10000000149
        number = float(str(value)) if isinstance(value, np.floating) else value
        exact = Fraction(number)
        exact = exact.limit_denominator(10**6) if isinstance(number, float) else exact
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        exact = Fraction(-1)
    if isinstance(value, bool) or not 0 <= exact <= 1:
        raise ValueError(f"{name}: got {value!r}; need a number in [0, 1]; because it is a probability or a share of prompts")
    return exact


def auto_delta(
    solved: int, n: int, *, epsilon: Level = "0.05", delta_min: Level = "0.05", delta_max: Level = "0.95"
) -> Fraction:
    """Miscoverage level from the solve rate: ``clip(1 - solved/n + epsilon, delta_min, delta_max)``, exactly.

    A prompt whose gold answer is never sampled scores 1 (or +inf), so a level below the unsolved share gives a threshold at which
    nothing may stop.  The rule asks for no more coverage than the policy can give.

    Parameters
    ----------
    solved, n : int
        Prompts solved by at least one of ``K_max`` responses, among ``n`` prompts.
    epsilon : number
        Slack above the unsolved share (the authors' value is 0.05, about one standard error at ``n = 100``).
    delta_min, delta_max : number
        Bounds, ``0 < delta_min <= delta_max <= 1``.  With ``delta_max = 1`` the result may be 1, which is no level: every rank refuses it.

    Returns
    -------
    Fraction
        The level.  On its own calibration set (no split) the resulting threshold is *not* covered by the split-conformal guarantee:
        the level was chosen by looking at the scores, and is most optimistic when it is lowest.  See :func:`disjoint_split`.

    Raises
    ------
    ValueError
        If ``n < 1``, ``solved`` leaves ``[0, n]``, or the bounds are not ordered.

    Notes
    -----
    Source: C-GRPO, Eq. 13-14; the bounds are those of the authors' code.

    Examples
    --------
    >>> auto_delta(140, 200)
    Fraction(7, 20)
    >>> auto_delta(200, 200), auto_delta(0, 200)
    (Fraction(1, 20), Fraction(19, 20))
    """
    if n < 1 or not 0 <= solved <= n:
        raise ValueError(f"solved: got {solved} of {n}; need 0 <= solved <= n and n >= 1; because solved/n is the solve rate of n prompts")
    low, high = _rational("delta_min", delta_min), _rational("delta_max", delta_max)
    if not 0 < low <= high:
        raise ValueError(f"delta_min: got {delta_min!r} and delta_max {delta_max!r}; need 0 < delta_min <= delta_max; because they clip")
    return min(max(1 - Fraction(int(solved), int(n)) + _rational("epsilon", epsilon), low), high)


def disjoint_split(
    n: int, *, seed: int | Sequence[int], share: Level = Fraction(1, 2)
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split ``n`` calibration prompts at random into those that choose delta and those that give the thresholds.

    Parameters
    ----------
    n : int
        Prompts.
    seed : int or sequence of int
        Key of the shuffle.  Rows are shuffled because data sets come sorted, and the first half of a sorted set is not
        exchangeable with the second.
    share : number
        Share of prompts that choose delta; ``floor(share * n)`` of them.

    Returns
    -------
    idx_delta, idx_q : arrays of int64
        Disjoint, sorted, together ``range(n)``.  Given the first part, delta is a fixed number for the second, so the guarantee
        of the thresholds holds at the chosen level for exchangeable prompts.

    Raises
    ------
    ValueError
        If either part would be empty.

    Examples
    --------
    >>> a, b = disjoint_split(7, seed=0)
    >>> len(a), len(b), sorted([*a.tolist(), *b.tolist()])
    (3, 4, [0, 1, 2, 3, 4, 5, 6])
    """
    first = int(_rational("share", share) * n)
    if not 0 < first < n:
        raise ValueError(f"n: got {n} prompts and share {share}; need a prompt in either part; because each part is estimated from")
    order = np.random.default_rng(seed).permutation(n).astype(np.int64)
    return np.sort(order[:first]), np.sort(order[first:])
