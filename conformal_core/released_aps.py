"""The answer set of the C-GRPO authors' public code, by name and without its guarantee."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .counts import answer_counts, counts_on_grid, gold_counts
from .keys import mix64
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

__all__ = ["ReleasedAPS"]


class ReleasedAPS(Score):
    """What the C-GRPO authors' public code does, by name: **no guarantee against wrong commits at q = 1**.

    Answers are ranked by frequency, ties in random order.  Score: ``mass ranked ahead + u * phat(a)``, 1 if not sampled.
    Set: *sampled* answers in that order until the cumulative mass reaches q, the crossing one included.  It is a singleton
    iff the top share is >= q.  ``q = 1`` is allowed, so a unanimous group stops: answers not sampled, which have score 1 <= q
    and count as covered, are left out of the set.  Half the prompts always right, half with one wrong answer of
    probability 0.9, delta = 0.12, k = 2: P(stop and wrong) = 0.405.  For q < 1, P(wrong stop at a fixed k) <= delta does hold.

    The tie order is a hash of (u, prompt id, answer code): a function of the prompt, not of call order.

    References
    ----------
    ``trl-cgrpo`` 0.2, ``conformal.py`` (tie order and set; its saturation of the rank at n is not reproduced).

    Examples
    --------
    >>> import numpy as np
    >>> from conformal_core import APS
    >>> o = Outcomes([1], np.zeros((1, 2), bool), codes=np.array([[0, 0]]))
    >>> ReleasedAPS().stop(o, 2, 1.0, [0.5])[0].tolist(), APS().stop(o, 2, 1.0, [0.5])[0].tolist()
    ([True], [False])
    """

    name = "released"
    needs_answers = True

    def tie_keys(self, outcomes: Outcomes, codes: Ints, u: Floats) -> NDArray[np.uint64]:
        """Random keys of answers ``codes`` (n, anything); among equally frequent answers the smaller key ranks ahead."""
        prompt = mix64(outcomes.prompt_ids ^ mix64(u.view(np.uint64)))
        with np.errstate(over="ignore"):
            return mix64(prompt[:, None] + mix64(codes.astype(np.uint64)))

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        coin = uniform_row(u, outcomes.n)
        codes, gold = answer_codes(outcomes), gold_codes(outcomes)
        scores = np.empty((outcomes.n, len(budgets_within(grid, outcomes.width))))
        for rows in row_blocks(outcomes.n, outcomes.width):
            some = outcomes.take(np.arange(outcomes.n)[rows])
            wins_tie = self.tie_keys(some, codes[rows], coin[rows]) < self.tie_keys(some, gold[rows, None], coin[rows])
            for m, k, counts in counts_on_grid(codes[rows], grid):
                own = gold_counts(codes[rows], gold[rows], k)[:, None]
                ahead = ((counts > own) | (counts == own) & wins_tie[:, :k]).sum(axis=1)
                scores[rows, m] = np.where(own[:, 0] > 0, (ahead + coin[rows] * own[:, 0]) / k, 1.0)
        return blank_undrawn(scores, outcomes, grid)

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        coin = uniform_row(u, outcomes.n)
        if never_stops(q, outcomes, k, unanimity=True):
            return nobody(outcomes.n)
        codes = answer_codes(outcomes)[:, :k]
        counts = answer_counts(codes, k)
        most = counts.max(axis=1)
        keys = np.where(counts == most[:, None], self.tie_keys(outcomes, codes, coin), np.uint64(2**64 - 1))
        first = codes[np.arange(outcomes.n), keys.argmin(axis=1)]
        return commit((most > 0) & (most / k >= q), first, outcomes, k)
