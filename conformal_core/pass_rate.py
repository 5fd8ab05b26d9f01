"""One minus the pass rate: the coarsest score of a group, calibrated and stopped on as one number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .first_success import first_answer
from .outcomes import Outcomes
from .score import Bools, Floats, Ints, Score, blank_undrawn, budgets_within, commit, never_stops, nobody, uniform_row

__all__ = ["PassRate"]


class PassRate(Score):
    """Share of the first k responses that the verifier rejected: ``s = 1 - passes / k``.

    It stops iff ``s <= q < 1``, so only with a verified success in hand.  ``s = 1`` iff nothing passed, so no success scores as badly as
    a failure.  It takes k + 1 values: of the two coverage bounds only the lower one holds.  Its threshold reaches 1 exactly when that of
    :class:`conformal_core.APS` does (calibrated on the same prompts, the verifier being agreement with gold).

    The authors' released code calibrates ``j* / k`` and stops on this; here each score stops on itself.

    References
    ----------
    C-GRPO paper, Section 4.2.1 (``s_bin``).

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes([1, 2], np.array([[False, True, True, True], [False] * 4]))
    >>> PassRate().gold_scores(o, (2, 4), [0.0, 0.0]).tolist()
    [[0.5, 0.25], [1.0, 1.0]]
    >>> PassRate().stop(o, 4, 0.25, [0.0, 0.0])[0].tolist()
    [True, False]
    """

    name = "pass_rate"
    needs_answers = False

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        uniform_row(u, outcomes.n)
        k = np.array(budgets_within(grid, outcomes.width), dtype=np.int64)
        won = np.cumsum(outcomes.passes & outcomes.live, axis=1, dtype=np.int32)[:, k - 1]
        return blank_undrawn((k - won) / k, outcomes, grid)

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        uniform_row(u, outcomes.n)
        if never_stops(q, outcomes, k):
            return nobody(outcomes.n)
        won = (outcomes.passes & outcomes.live)[:, :k].sum(axis=1)
        return commit((k - won) / k <= q, first_answer(outcomes), outcomes, k)
