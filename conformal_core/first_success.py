"""Position of the first verified success: a score for verifiers whose answers have no identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from .outcomes import UNPARSABLE, Outcomes
from .score import Bools, Floats, Ints, Score, budgets_within, commit, never_stops, nobody, uniform_row

__all__ = ["FirstSuccess"]


class FirstSuccess(Score):
    """Position of the first verified success: ``j* / k``; for verifiers (code) whose answers have no identity.

    Stops iff ``j* / k <= q < 1``, so only with a verified success in hand: the commit is as right as the verifier.  What is
    calibrated is how often a solvable prompt is *not* stopped.

    Parameters
    ----------
    convention : {"failure_above_success", "paper"}
        Score when none of the first k passed: +inf, above the score 1 of a first success at exactly k; or the paper's 1,
        which cannot tell the two apart.  No stop differs, since q >= 1 never stops; only the latter counts a prompt solved at its last
        response as unsolved.

    The score is discrete (multiples of 1/k), so of the two coverage bounds only the lower one holds.  With nested prefixes
    it is non-increasing in k, and the thresholds of all budgets are one number: ``q_k = J_(L) / k`` while that is below 1.

    Raises
    ------
    ValueError
        For another ``convention``.

    References
    ----------
    C-GRPO paper, Eq. 5 and Section 4.2.2.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes([1, 2], np.array([[False, True, False, True], [False] * 4]))
    >>> FirstSuccess().gold_scores(o, (1, 2, 4), [0.0, 0.0]).tolist()
    [[inf, 1.0, 0.5], [inf, inf, inf]]
    >>> FirstSuccess().stop(o, 4, 0.5, [0.0, 0.0])[0].tolist()
    [True, False]
    """

    needs_answers = False
    _FAILED: ClassVar[dict[str, float]] = {"failure_above_success": np.inf, "paper": 1.0}

    def __init__(self, convention: str = "failure_above_success") -> None:
        if convention not in self._FAILED:
            raise ValueError(f"convention: got {convention!r}; need one of {sorted(self._FAILED)}; because it scores prompts never solved")
        self.convention = convention
        self.name = f"first_success/{convention}"

    def __repr__(self) -> str:
        return f"FirstSuccess({self.convention!r})"

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        uniform_row(u, outcomes.n)
        k = np.array(budgets_within(grid, outcomes.width), dtype=np.int64)
        j = first_pass(outcomes)[:, None]
        failed = np.where(outcomes.drawn[:, None] >= k, self._FAILED[self.convention], np.nan)
        return np.where(j <= k, j / k, failed)

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        uniform_row(u, outcomes.n)
        if never_stops(q, outcomes, k):
            return nobody(outcomes.n)
        j = first_pass(outcomes)
        return commit((j <= k) & (j / k <= q), first_answer(outcomes), outcomes, k)


def first_pass(outcomes: Outcomes) -> Ints:
    """1-based position of the first success among those drawn; past every budget if there is none."""
    never = np.iinfo(np.int64).max
    if not outcomes.width:
        return np.full(outcomes.n, never)
    first = outcomes.passes.argmax(axis=1)  # of an undrawn success too, but then none was drawn before it
    won = outcomes.passes[np.arange(outcomes.n), first] & (first < outcomes.drawn)
    return np.where(won, first + 1, never)


def first_answer(outcomes: Outcomes) -> Ints:
    """Answer code of the first success; -1 where answers have no identity, and anything where nothing passed."""
    if outcomes.codes is None:
        return np.full(outcomes.n, UNPARSABLE, np.int64)
    return np.asarray(outcomes.codes[np.arange(outcomes.n), np.minimum(first_pass(outcomes), outcomes.width) - 1])
