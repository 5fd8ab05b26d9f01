"""Thresholds that hold at all budgets at once, without paying the Bonferroni factor: they use how the scores move together.

Each rule turns the vector of a prompt's scores into one number T (exchangeable when the vectors are), takes the conformal rank of the
T's, and reads one threshold per budget back from it.  :func:`conformal_core.calibrate_thresholds` offers them by name.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .level import Level, conformal_rank

__all__ = ["JointThresholds", "max_rank", "max_score", "split_ecdf"]


class JointThresholds(NamedTuple):
    """Thresholds ``q``, shape (M,), and the one rank that gave them: n + 1 (of the sorted sample it indexes) stands for +inf."""

    q: NDArray[np.float64]
    rank: int


def max_rank(scores: ArrayLike, delta: Level, *, corrected: bool = True) -> JointThresholds:
    r"""``q_k = S_(r* + 1),k`` with ``r*`` the L-th smallest of the prompts' largest ranks; one pass, no split.

    ``r_i = max_k (1 + #{j : S_jk < S_ik})`` (minimal ranks under ties), ``L = conformal_rank(n, delta)``, and +inf where ``r* = n``.

    Parameters
    ----------
    scores : array_like, shape (n, M)
        Calibration scores, one column per budget; +inf allowed.
    delta : level
        Miscoverage over all budgets together.
    corrected : bool
        ``False`` gives the published ``q_k = S_(r*),k``, which ranks the calibration scores among themselves only.  It has *no*
        finite-sample guarantee: at n = 20, M = 20 independent budgets, delta = .1 its joint coverage is .38.

    Returns
    -------
    JointThresholds
        *Guarantee* (corrected), for vectors of scores that are exchangeable with that of a new prompt:
        ``P(S_k <= q_k at every k) >= 1 - delta``.  Proof: let T_i be the largest rank of prompt i among all n + 1 prompts.  They are
        exchangeable and ``T_i <= r_i + 1``, so ``T_(L) <= r* + 1``, and ``T_{n+1} <= r* + 1`` says ``S_k <= S_(r* + 1),k`` for all k.

    Raises
    ------
    ValueError
        If ``scores`` is not (n, M) with n, M >= 1, holds a NaN, or ``delta`` is outside (0, 1).

    References
    ----------
    Timans, Straehle, Sakmann, Naesseth, Nalisnick (AISTATS 2025), *Max-rank*, with the + 1 that makes it exact.

    Examples
    --------
    >>> import numpy as np
    >>> column = np.arange(1.0, 11)
    >>> max_rank(np.column_stack([column, column]), "0.2")  # comonotone: one rank above the 9 of a single budget
    JointThresholds(q=array([10., 10.]), rank=10)
    """
    s = score_matrix(scores)
    n = len(s)
    level_rank = conformal_rank(n, delta)
    if level_rank > n:
        return _infinite(s, n)
    ordered = np.sort(s, axis=0)
    largest = np.zeros(n, np.int64)
    for j in range(s.shape[1]):
        largest = np.maximum(largest, 1 + np.searchsorted(ordered[:, j], s[:, j], side="left"))
    rank = int(np.partition(largest, level_rank - 1)[level_rank - 1]) + int(corrected)
    return _infinite(s, n) if rank > n else JointThresholds(ordered[rank - 1], rank)


def split_ecdf(reference: ArrayLike, scores: ArrayLike, delta: Level) -> JointThresholds:
    r"""``q_k = D1_k,(t + 1)`` with ``t`` the L-th smallest of ``T_i = max_k #{j in D1 : D1_jk < S_ik}`` over the prompts of D2.

    The strict count puts a whole atom at its lower end, so the atom of unsampled golds does not saturate it (with the right-continuous
    distribution function it would).  +inf where ``t = m``: some score exceeds all of D1.

    Parameters
    ----------
    reference : array_like, shape (m, M)
        Scores of D1: they fix the common scale of the budgets and may have been used for anything else (choosing delta, say).
    scores : array_like, shape (n, M)
        Scores of D2, disjoint prompts.
    delta : level
        Miscoverage over all budgets together.

    Returns
    -------
    JointThresholds
        ``rank`` is ``t + 1``, among the m reference scores.  *Guarantee*: given D1, for D2 exchangeable with a new prompt,
        ``P(S_k <= q_k at every k) >= 1 - delta``, because ``{S_k <= q_k at every k} = {T <= t}`` and T is one fixed function.

    Raises
    ------
    ValueError
        If either array is not two-dimensional with the same number M >= 1 of columns and at least one row, or holds a NaN, or
        ``delta`` is outside (0, 1).

    Examples
    --------
    >>> d1 = [[0.25, 0.125], [0.5, 0.25], [1, 0.5], [1, 1]]
    >>> split_ecdf(d1, [[0.25, 0.125], [1, 0.75], [0.375, 0.125], [0.5, 0.25]], "2/5")
    JointThresholds(q=array([0.5 , 0.25]), rank=2)
    """
    first, s = score_matrix(reference, "reference"), score_matrix(scores)
    if first.shape[1] != s.shape[1]:
        raise ValueError(f"reference: got {first.shape[1]} columns; need {s.shape[1]}; because both hold one column per budget")
    level_rank = conformal_rank(len(s), delta)
    m = len(first)
    if level_rank > len(s):
        return _infinite(s, m)
    ordered = np.sort(first, axis=0)
    largest = np.zeros(len(s), np.int64)
    for j in range(s.shape[1]):
        largest = np.maximum(largest, np.searchsorted(ordered[:, j], s[:, j], side="left"))
    t = int(np.partition(largest, level_rank - 1)[level_rank - 1])
    return _infinite(s, m) if t == m else JointThresholds(ordered[t], t + 1)


def max_score(scores: ArrayLike, delta: Level) -> JointThresholds:
    """One threshold for all budgets: the L-th smallest of the prompts' largest scores ``max_k S_ik``.

    For scores on one scale.  A score that is +inf until something passed (``FirstSuccess()``) is largest at the first budget, which then
    decides alone.

    Parameters
    ----------
    scores, delta
        As in :func:`max_rank`.

    Returns
    -------
    JointThresholds
        *Guarantee*, for exchangeable vectors of scores: ``P(S_k <= q at every k) >= 1 - delta``, and at most ``1 - delta + 1/(n + 1)`` if
        the maxima are distinct.

    Raises
    ------
    ValueError
        As in :func:`max_rank`.

    References
    ----------
    Westfall, Young (1993), the max-T method.

    Examples
    --------
    >>> max_score([[0.1, 0.4], [0.3, 0.2], [0.9, 0.1]], "1/4")
    JointThresholds(q=array([0.9, 0.9]), rank=3)
    """
    s = score_matrix(scores)
    rank = conformal_rank(len(s), delta)
    if rank > len(s):
        return _infinite(s, len(s))
    largest = np.partition(s.max(axis=1), rank - 1)[rank - 1]
    return JointThresholds(np.full(s.shape[1], largest), rank)


def score_matrix(scores: ArrayLike, name: str = "scores") -> NDArray[np.float64]:
    """``scores`` as float64 (n, M), n and M at least 1, without NaN."""
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim != 2 or 0 in s.shape:
        raise ValueError(f"{name}: got shape {s.shape}; need (n, M), n and M >= 1; because a row is a prompt and a column a budget")
    if np.isnan(s).any():
        rows = np.flatnonzero(np.isnan(s).any(axis=1))[:5].tolist()
        raise ValueError(f"{name}: got NaN in rows {rows}; need numbers or +inf; because NaN has no rank")
    return s


def _infinite(s: NDArray[np.float64], n: int) -> JointThresholds:
    return JointThresholds(np.full(s.shape[1], inf), n + 1)
