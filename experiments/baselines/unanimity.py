"""Stop when all answers agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes, RolloutPolicy
from conformal_core.thresholds import check_grid

__all__ = ["Unanimity"]


class Unanimity(RolloutPolicy):
    """Stop at the first budget of the grid, from 2 on, at which all answers are one and the same parsable answer.

    A heuristic.  There is no guarantee: a prompt whose answers agree on a wrong one stops first of all.

    Parameters
    ----------
    grid : sequence of int
        Budgets, strictly ascending.

    Notes
    -----
    Source: the rule to which the released C-GRPO code degenerates at a threshold of 1, and that of the trl-cgrpo package.

    Examples
    --------
    >>> import numpy as np
    >>> answers = np.array([[5, 5], [5, 6]])
    >>> Unanimity((2, 4)).more(Outcomes(np.arange(2, dtype=np.uint64), answers == 5, codes=answers))
    array([0, 2])
    """

    needs_answers = True

    def __init__(self, grid: Sequence[int] = (2, 4, 8, 16, 32)) -> None:
        self.grid = check_grid(grid)
        self.k_max = self.grid[-1]

    def __repr__(self) -> str:
        return f"Unanimity({self.grid})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.grid[0], np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        if outcomes.codes is None:
            raise ValueError("codes: got None; need answer codes; because the rule compares answers")
        following = np.append(self.grid, self.k_max)[np.searchsorted(self.grid, outcomes.drawn, side="right")]
        agree = ((outcomes.codes == outcomes.codes[:, :1]) & (outcomes.codes >= 0) | ~outcomes.live).all(1) & (outcomes.drawn >= 2)
        return np.where(agree, 0, np.maximum(following - outcomes.drawn, 0)).astype(np.int64)
