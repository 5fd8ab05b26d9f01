"""Climbing a budget grid: the walk that every policy with a stop shares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .outcomes import UNPARSABLE, Outcomes
from .policy import RolloutPolicy
from .thresholds import check_grid

__all__ = ["ClimbingPolicy", "StoppingPolicy"]


class ClimbingPolicy(RolloutPolicy):
    """Draw up to the first budget of the grid, then up to the next one until the prompt is finished, or holds ``K_max`` responses.

    Parameters
    ----------
    grid : sequence of int
        Budgets, strictly ascending, ``K_max >= 2``.
    """

    def __init__(self, grid: Sequence[int]) -> None:
        self.grid = check_grid(grid)
        self.k_max = self.grid[-1]

    @abstractmethod
    def finished(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        """``(n,)``: prompts that need no further response."""

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.grid[0], np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        following = np.append(self.grid, self.k_max)[np.searchsorted(self.grid, outcomes.drawn, side="right")]
        return np.where(self.finished(outcomes), 0, np.maximum(following - outcomes.drawn, 0)).astype(np.int64)


class StoppingPolicy(ClimbingPolicy):
    """Finish a prompt at the first budget at which it stops, on the answer it stops on."""

    @abstractmethod
    def stop_at(self, j: int, outcomes: Outcomes) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which of these prompts, all of which hold ``grid[j]`` responses and did not stop before, stop there; and on which answer."""

    def stops(self, outcomes: Outcomes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """``(n,)`` budget at which each prompt stopped (0: it did not), and the code of its answer (-1: none)."""
        at = np.zeros(outcomes.n, np.int64)
        answer = np.full(outcomes.n, UNPARSABLE, np.int64)
        for j, k in enumerate(self.grid):
            rows = np.flatnonzero((at == 0) & (outcomes.drawn >= k))
            if rows.size:
                stop, on = self.stop_at(j, outcomes.take(rows))
                at[rows[stop]], answer[rows[stop]] = k, on[stop]
        return at, answer

    def finished(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        return np.asarray(self.stops(outcomes)[0] > 0)

    def committed(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """``(n,)`` code of the answer on which each prompt stopped; -1 where it did not stop, or on no answer."""
        return self.stops(outcomes)[1]
