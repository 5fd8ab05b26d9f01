"""When a group first holds successes and failures: the score of the signal stop."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .score import Floats, Ints

__all__ = ["k_mix", "signal_score"]


def k_mix(passes: ArrayLike, m: int = 1, *, drawn: ArrayLike | None = None) -> Ints:
    """First k at which the first k responses hold at least ``m`` successes and at least ``m`` failures; 0 if never.

    From then on the group has non-zero reward variance, i.e. a learning signal.

    Parameters
    ----------
    passes : array_like of bool, shape (n, width)
        Verdicts in the order drawn.
    m : int
        At least 1.
    drawn : array_like of int, shape (n,), optional
        Responses drawn; columns beyond are neither success nor failure.  Default: all.

    Returns
    -------
    array of int64, shape (n,)

    Raises
    ------
    ValueError
        If ``passes`` is not a two-dimensional bool array or ``m < 1``.

    Examples
    --------
    >>> k_mix([[True, True, False], [False, False, False]]).tolist()
    [3, 0]
    """
    won = np.asarray(passes)
    if won.ndim != 2 or won.dtype != np.bool_:
        raise ValueError(f"passes: got {won.dtype} of shape {won.shape}; need bool (n, width); because verdicts are true or false")
    if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1:
        raise ValueError(f"m: got {m!r}; need an integer >= 1; because it counts successes and failures")
    lost = ~won
    if drawn is not None:
        live = np.arange(won.shape[1]) < np.asarray(drawn)[:, None]
        won, lost = won & live, lost & live
    mixed = (won.cumsum(axis=1) >= m) & (lost.cumsum(axis=1) >= m)
    if not won.shape[1]:
        return np.zeros(won.shape[0], np.int64)
    return np.where(mixed.any(axis=1), mixed.argmax(axis=1) + 1, 0).astype(np.int64)


def signal_score(passes: ArrayLike, m: int = 1, *, drawn: ArrayLike | None = None) -> Floats:
    """Calibration score of the signal stop: ``k_mix - 1`` if the group becomes mixed within its row, else 0.

    A prompt that would become mixed is cut off by a futility stop after f draws iff ``k_mix > f``, i.e. iff its score is
    >= f.  With ``f = 1 + conformal quantile`` of the score, P(a prompt that would have become mixed is cut off) <= delta for
    exchangeable prompts: one number for the whole path, so no multiplicity factor.

    Parameters
    ----------
    passes, m, drawn
        As in :func:`k_mix`.

    Returns
    -------
    array of float64, shape (n,)

    Raises
    ------
    ValueError
        As in :func:`k_mix`.

    Examples
    --------
    >>> signal_score([[True, True, False], [False, False, False]]).tolist()
    [2.0, 0.0]
    """
    return np.maximum(k_mix(passes, m, drawn=drawn) - 1, 0).astype(np.float64)
