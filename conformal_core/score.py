"""What a nonconformity score is: one object that calibrates and decides.

:meth:`Score.gold_scores` calibrates and :meth:`Score.stop` decides, so it is impossible to calibrate on one score and stop on
another.  Notation, for the first k responses of a prompt: ``phat(a)`` is the share of answer ``a`` among them, ``G(a)`` the share of
answers strictly more frequent than ``a``.  An unparsable response has no answer: it carries no mass but stays in the denominator.  The
prediction set ranges over *all* answers: one that was not sampled has score 1, so it is in the set as soon as q >= 1, and a budget
with q >= 1 never stops.  (:class:`conformal_core.ReleasedAPS` departs from this on purpose.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .outcomes import UNPARSABLE, Outcomes

__all__ = ["Score"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Score(ABC):
    """A nonconformity score together with its prediction set and its stop.

    Guarantee, for calibration prompts and a new prompt that are exchangeable, a policy fixed independently of them, and
    ``q = conformal_quantile(gold_scores[:, m], delta).value``: ``P(the gold answer is not in the set at budget k_m) <= delta``,
    hence ``P(stop at k_m and commit to an answer that is not gold) <= delta`` at every *fixed* budget.  At a budget chosen by
    the stopping itself the bound is M * delta (see the multiplicity rules).  Nothing is said about P(wrong given stop).
    """

    #: Name with the convention, for logs and state files.
    name: str
    #: Whether the score reads answer codes (``Outcomes.codes``).
    needs_answers: bool

    @abstractmethod
    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        """Score of the gold answer at every budget of ``grid``; at budget k only the first k responses are read.

        Parameters
        ----------
        outcomes : Outcomes
            With ``codes`` and ``gold`` if :attr:`needs_answers`.
        grid : sequence of M ints
            Budgets, each in ``[1, outcomes.width]``.
        u : array_like, shape (n,)
            One uniform number per prompt in [0, 1], shared over answers and budgets (:func:`conformal_core.keys.uniforms`).

        Returns
        -------
        array of float64, shape (n, M)
            NaN where the responses drawn do not determine the score; :func:`conformal_core.conformal_quantile` refuses it.

        Raises
        ------
        ValueError
            If codes or gold are missing, a budget exceeds the width, or ``u`` has the wrong shape or range.
        """

    @abstractmethod
    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        """Whether the prediction set at threshold ``q``, from the first ``k`` responses, is a single answer; and which.

        Parameters
        ----------
        outcomes : Outcomes
            Gold is never read.
        k : int
            Budget.  Prompts with ``drawn < k`` do not stop.
        q : float
            Threshold at this budget.
        u : array_like, shape (n,)
            The same numbers as in calibration would use for these prompts.

        Returns
        -------
        stop : array of bool, shape (n,)
        committed : array of int64, shape (n,)
            Code of the single answer where ``stop``, else -1.

        Raises
        ------
        ValueError
            If codes are missing, ``q`` is NaN, or ``u`` has the wrong shape or range.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def row_blocks(n: int, width: int) -> Iterator[slice]:
    """Slices of about 2**17 cells, so that what a score needs beyond its input and output does not grow with n."""
    rows = max(1, 2**17 // max(width, 1))
    return (slice(start, start + rows) for start in range(0, n, rows))


def blank_undrawn(scores: Floats, outcomes: Outcomes, grid: Sequence[int]) -> Floats:
    """NaN where a prompt holds fewer responses than the budget."""
    return np.where(outcomes.drawn[:, None] >= np.asarray(grid, dtype=np.int64), scores, np.nan)


def never_stops(q: float, outcomes: Outcomes, k: int, *, unanimity: bool = False) -> bool:
    """Whether no prompt can stop: the threshold leaves unsampled answers in the set, or the table is too narrow."""
    if np.isnan(q):
        raise ValueError("q: got NaN; need a number or +inf; because a threshold that was never calibrated must not stop anything")
    budgets_within((k,), max(k, 1))
    return k > outcomes.width or q > 1 or (q == 1 and not unanimity)


def nobody(n: int) -> tuple[Bools, Ints]:
    return np.zeros(n, np.bool_), np.full(n, UNPARSABLE, np.int64)


def commit(single: Bools, answer: Ints, outcomes: Outcomes, k: int) -> tuple[Bools, Ints]:
    """What :meth:`Score.stop` returns, for prompts that hold k responses."""
    stop = single & (outcomes.drawn >= k)
    return stop, np.where(stop, answer, UNPARSABLE)


def answer_codes(outcomes: Outcomes) -> Ints:
    if outcomes.codes is None:
        raise ValueError("outcomes.codes: got None; need answer codes; because answers are compared (see encode_answers)")
    return outcomes.codes


def gold_codes(outcomes: Outcomes) -> Ints:
    if outcomes.gold is None:
        raise ValueError("outcomes.gold: got None; need the code of the gold answer; because it is the gold answer that is scored")
    return outcomes.gold


def budgets_within(grid: Sequence[int], width: int) -> Sequence[int]:
    for k in grid:
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= width:
            raise ValueError(f"grid: got the budget {k!r}; need integers in [1, {width}]; because a budget counts responses held")
    return grid


def uniform_row(u: ArrayLike, n: int) -> Floats:
    coin = np.ascontiguousarray(u, dtype=np.float64)
    if coin.shape != (n,) or not (coin.min(initial=0.0) >= 0 and coin.max(initial=1.0) <= 1):
        raise ValueError(f"u: got shape {coin.shape}; need ({n},) with values in [0, 1]; because every prompt has one uniform number")
    return coin
