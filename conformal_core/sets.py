"""Prediction sets over answers, as functions of answer codes; a stop is a set of one.

Each set ranges over *all* answers, sampled or not.  ``phat(a)`` is the share of answer ``a`` among the first k responses and ``G(a)``
the share of answers strictly more frequent than ``a``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import int64_codes
from .counts import answer_counts
from .outcomes import UNPARSABLE
from .score import Bools, Floats, Ints, budgets_within

__all__ = ["AnswerSets", "inclusive_set", "mass_above_set", "randomized_set", "released_set"]


@dataclass(frozen=True, eq=False)
class AnswerSets:
    """One prediction set per prompt.

    Attributes
    ----------
    codes : int64 array, shape (n, k)
        The first k answers.
    member : bool array, shape (n, k)
        Whether the answer at that position is in the set.
    unsampled : bool array, shape (n,)
        Whether answers that were not sampled are in the set.

    Examples
    --------
    >>> sets = inclusive_set([[0, 0, 1, 2], [5, 5, 5, 5]], 4, 0.5)
    >>> sets.size.tolist(), sets.singleton.tolist(), sets.committed.tolist(), sets.contains([1, 7]).tolist()
    ([1.0, 1.0], [True, True], [0, 5], [False, False])
    """

    codes: Ints
    member: Bools
    unsampled: Bools

    @property
    def size(self) -> Floats:
        """``(n,)`` number of answers in the set; +inf where unsampled answers are in, 0 where the set is empty."""
        k = self.codes.shape[1]
        first = np.ones_like(self.member)
        for j in range(1, k):
            first[:, j] = (self.codes[:, :j] != self.codes[:, j, None]).all(axis=1)
        return np.where(self.unsampled, np.inf, (self.member & first).sum(axis=1).astype(np.float64))

    @property
    def singleton(self) -> Bools:
        """``(n,)`` whether the set is exactly one answer."""
        return np.asarray(self.size == 1)

    @property
    def committed(self) -> Ints:
        """``(n,)`` code of the single answer, -1 where the set is not a single answer."""
        at = self.codes[np.arange(len(self.codes)), self.member.argmax(axis=1)]
        return np.where(self.singleton, at, UNPARSABLE)

    def contains(self, answers: ArrayLike) -> Bools:
        """``(n,)`` whether the set of each prompt holds the given answer code; a negative code stands for an answer never sampled."""
        wanted = int64_codes("answers", answers, self.unsampled.shape)[:, None]
        here = (self.codes == wanted) & (wanted >= 0)
        return np.asarray(np.where(here.any(axis=1), (here & self.member).any(axis=1), self.unsampled))


def randomized_set(codes: ArrayLike, k: int, q: float, u: ArrayLike) -> AnswerSets:
    """``{a : G(a) + u phat(a) <= q}``, an answer not sampled having score 1.

    Calibrated on :class:`conformal_core.APS`, ``P(gold in the set) >= 1 - delta`` for exchangeable prompts.  It may be empty.

    Parameters
    ----------
    codes : array_like of int, shape (n, width)
        Answer codes; negative ones have no answer.
    k : int
        Budget, in ``[1, width]``.
    q : float
        Threshold.  At q >= 1 every answer is in, sampled or not.
    u : array_like, shape (n,) or (n, k)
        One uniform number per prompt, shared over its answers; or one per position, an answer taking the number at its first position
        (an independent u per answer: the same law of the set where no counts are tied).

    Returns
    -------
    AnswerSets

    Raises
    ------
    ValueError
        If ``k`` is not in ``[1, width]``, ``q`` is NaN, or ``u`` has another shape or leaves [0, 1].

    References
    ----------
    C-GRPO paper, Eq. 8.

    Examples
    --------
    >>> randomized_set([[0, 0, 0, 1]], 4, 0.75, [0.5]).member.tolist()
    [[True, True, True, False]]
    >>> randomized_set([[0, 0, 0, 0]], 4, 0.75, [0.9]).size.tolist()  # empty: the prompt is sent on
    [0.0]
    """
    table, counts, above = _counted(codes, k, q)
    coin = np.asarray(u, dtype=np.float64)
    if coin.shape not in (table.shape[:1], table.shape) or not bool(np.all((coin >= 0) & (coin <= 1))):
        raise ValueError(
            f"u: got shape {coin.shape}; need {table.shape[:1]} or {table.shape} with values in [0, 1]; because u is uniform, "
            "one per prompt or one per position"
        )
    coin = coin[:, None] if coin.ndim == 1 else _at_first_position(table, coin)
    return _sets(table, (above + coin * counts) / k <= q, q >= 1)


def inclusive_set(codes: ArrayLike, k: int, q: float) -> AnswerSets:
    """``{a sampled : G(a) < q}`` for q < 1, and everything at q >= 1.

    A superset of the randomized set for every u > 0, and never empty for q > 0 once a response has an answer.

    With a threshold calibrated on :class:`conformal_core.APS`, ``P(gold in the set) >= 1 - delta``.  Deterministic.

    Parameters
    ----------
    codes, k, q
        As in :func:`randomized_set`.

    Returns
    -------
    AnswerSets

    Raises
    ------
    ValueError
        If ``k`` is not in ``[1, width]`` or ``q`` is NaN.

    Examples
    --------
    >>> inclusive_set([[0, 0, 0, 1]], 4, 0.75).singleton.tolist(), inclusive_set([[0, 0, 0, 1]], 4, 0.76).singleton.tolist()
    ([True], [False])
    """
    table, _, above = _counted(codes, k, q)
    return _sets(table, above / k < q, q >= 1)


def mass_above_set(codes: ArrayLike, k: int, q: float) -> AnswerSets:
    """``{a : G(a) <= q}``, an answer not sampled having score 1: the set of :class:`conformal_core.MassAbove`, without randomness.

    Calibrated on its own score, ``P(gold in the set) >= 1 - delta``, and never empty for q >= 0 once a response has an answer.

    Parameters
    ----------
    codes, k, q
        As in :func:`randomized_set`.

    Returns
    -------
    AnswerSets

    Raises
    ------
    ValueError
        If ``k`` is not in ``[1, width]`` or ``q`` is NaN.

    Examples
    --------
    >>> mass_above_set([[0, 0, 0, 1]], 4, 0.5).committed.tolist(), mass_above_set([[0, 0, 0, 1]], 4, 0.75).size.tolist()
    ([0], [2.0])
    """
    table, _, above = _counted(codes, k, q)
    return _sets(table, above / k <= q, q >= 1)


def released_set(codes: ArrayLike, k: int, q: float, ties: ArrayLike) -> AnswerSets:
    """Sampled answers in order of frequency until their mass reaches ``q``, the crossing one included: the authors' public code.

    *Guarantee*: none at q = 1, where answers not sampled are left out although their score 1 is within the threshold.  Where the sampled
    mass never reaches q (unparsable responses), the set is all of A.

    Parameters
    ----------
    codes, k, q
        As in :func:`randomized_set`.
    ties : array_like, shape (n, k)
        Among equally frequent answers the one with the smaller number ranks ahead; an answer takes the number at its first position.

    Returns
    -------
    AnswerSets

    Raises
    ------
    ValueError
        If ``k`` is not in ``[1, width]``, ``q`` is NaN, or ``ties`` has another shape.

    Examples
    --------
    >>> released_set([[0, 0, 1, 1]], 4, 0.5, [[2, 2, 1, 1]]).committed.tolist()
    [1]
    """
    table, counts, above = _counted(codes, k, q)
    keys = np.asarray(ties)
    if keys.shape != table.shape:
        raise ValueError(f"ties: got shape {keys.shape}; need {table.shape}; because there is one number per position")
    keys = _at_first_position(table, keys)
    ahead = above + sum(
        ((counts[:, j, None] == counts) & (keys[:, j, None] < keys) & (table[:, j, None] >= 0)).astype(np.int64) for j in range(k)
    )
    short = (table >= 0).sum(axis=1) / k < q
    return AnswerSets(table, (table >= 0) & ((ahead / k < q) | (ahead == 0)), np.asarray(short))


def _counted(codes: ArrayLike, k: int, q: float) -> tuple[Ints, Ints, Ints]:
    """The first k codes, the count of each position's answer, and how many of the k hold a more frequent answer."""
    table = int64_codes("codes", codes)
    if table.ndim != 2:
        raise ValueError(f"codes: got shape {table.shape}; need (n, width); because a row holds answer codes")
    budgets_within((k,), table.shape[1])
    if np.isnan(q):
        raise ValueError("q: got NaN; need a number or +inf; because a set without a threshold is no set")
    counts = answer_counts(table, k)
    above = np.zeros_like(counts)
    for j in range(k):
        above += counts[:, j, None] > counts
    return table[:, :k], counts, above


def _sets(table: Ints, member: Bools, everything: bool) -> AnswerSets:
    sampled = table >= 0
    return AnswerSets(table, sampled & (member | everything), np.full(len(table), bool(everything)))


def _at_first_position(table: Ints, values: NDArray[Any]) -> NDArray[Any]:
    first = (table[:, :, None] == table[:, None, :]).argmax(axis=2)
    return np.take_along_axis(values, first, axis=1)
