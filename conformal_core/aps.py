"""Adaptive prediction sets on self-consistency, and their deterministic core: the mass above an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .counts import gold_counts_on_grid, top_answer
from .outcomes import Outcomes
from .score import (
    Bools,
    Floats,
    Ints,
    Score,
    answer_codes,
    blank_undrawn,
    budgets_within,
    commit,
    gold_codes,
    never_stops,
    nobody,
    row_blocks,
    uniform_row,
)

__all__ = ["APS", "MassAbove"]


class APS(Score):
    """Adaptive prediction sets on self-consistency: ``s(a) = G(a) + u * phat(a)``, and 1 for an answer not sampled.

    Parameters
    ----------
    set_rule : {"randomized", "inclusive"}
        ``"randomized"``: the set ``{a : s(a) <= q}`` (Eq. 8), which can be empty: a unanimous group stops only if u <= q.
        ``"inclusive"``: ``{a sampled : G(a) < q}``, a superset for q < 1 that never is empty and reads no u; it covers at
        least as much and its singletons are wrong no more often.

    Both are calibrated on the same score.  Both stop only if q < 1.

    Raises
    ------
    ValueError
        For another ``set_rule``.

    References
    ----------
    Romano, Sesia, Candes (2020); C-GRPO paper, Eqs. 4 and 8.  Against the paper: the score is not continuous (its atom at 1
    is P(gold not sampled)), so only the lower coverage bound holds, and thresholds are not monotone in k.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes([1, 2], np.zeros((2, 4), bool), codes=np.array([[0, 0, 0, 1], [0, 1, -1, 1]]), gold=np.array([0, 0]))
    >>> APS().gold_scores(o, (2, 4), [0.5, 0.5]).tolist()
    [[0.5, 0.375], [0.25, 0.625]]
    >>> APS().stop(o, 4, 0.6, [0.5, 0.5])
    (array([ True,  True]), array([0, 1]))
    """

    needs_answers = True

    def __init__(self, set_rule: str = "randomized") -> None:
        if set_rule not in ("randomized", "inclusive"):
            raise ValueError(f"set_rule: got {set_rule!r}; need 'randomized' or 'inclusive'; because those are the two sets of APS")
        self.set_rule = set_rule
        self.name = f"aps/{set_rule}"

    def __repr__(self) -> str:
        return f"APS({self.set_rule!r})"

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        coin = uniform_row(u, outcomes.n)
        codes, gold = answer_codes(outcomes), gold_codes(outcomes)
        scores = np.empty((outcomes.n, len(budgets_within(grid, outcomes.width))))
        for rows in row_blocks(outcomes.n, outcomes.width):
            own, above = gold_counts_on_grid(codes[rows], gold[rows], grid)
            scores[rows] = np.where(own > 0, (above + coin[rows, None] * own) / np.asarray(grid, dtype=np.int64), 1.0)
        return blank_undrawn(scores, outcomes, grid)

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        coin = uniform_row(u, outcomes.n)
        if never_stops(q, outcomes, k):
            return nobody(outcomes.n)
        top = top_answer(answer_codes(outcomes), k)
        if self.set_rule == "inclusive":
            single = (q > 0) & ((top.second == 0) | (top.first / k >= q))
        else:
            single = (coin * top.first / k <= q) & ((top.second == 0) | ((top.first + coin * top.second) / k > q))
        return commit(single & top.unique, top.answer, outcomes, k)


class MassAbove(Score):
    """The deterministic score ``G(a)``, the share of answers strictly more frequent; 1 for an answer not sampled.

    Set ``{a sampled : G(a) <= q}`` for q < 1; it stops iff one answer is ahead of all others and has share > q (or is the
    only one).  Deterministic: no u.  Calibrating G itself gives the tight version of the inclusive APS set.

    References
    ----------
    Not in the papers.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes([1], np.zeros((1, 4), bool), codes=np.array([[0, 0, 0, 1]]), gold=np.array([1]))
    >>> MassAbove().gold_scores(o, (2, 4), [0.0]).tolist(), MassAbove().stop(o, 4, 0.5, [0.0])[0].tolist()
    ([[1.0, 0.75]], [True])
    """

    name = "mass_above"
    needs_answers = True

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        return APS().gold_scores(outcomes, grid, np.zeros_like(uniform_row(u, outcomes.n)))

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        uniform_row(u, outcomes.n)
        if never_stops(q, outcomes, k):
            return nobody(outcomes.n)
        top = top_answer(answer_codes(outcomes), k)
        return commit(top.unique & (q >= 0) & ((top.second == 0) | (top.first / k > q)), top.answer, outcomes, k)
