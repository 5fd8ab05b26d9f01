"""Knapsack RL: budgets that maximise the expected value of the batch under a total."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes, RolloutPolicy

from .common import Memory, at_least, check_config, counts

__all__ = ["Knapsack"]


class Knapsack(RolloutPolicy):
    r"""Maximise ``sum_x value_x(N_x)`` subject to ``sum_x N_x = mean_k`` times the prompts and ``n_min <= N_x <= n_max``.

    ``value_x(N) = (1 - p^N - (1 - p)^N) p (1 - p)^2``: the chance that a group of ``N`` has variance times the gain of a success.
    Solved exactly: each value is concave in ``N`` (its increments ``p^N (1 - p) + (1 - p)^N p`` fall), so taking the largest increments
    one by one is optimal; ties go to the earlier prompt.

    Notes
    -----
    Source: Knapsack RL (arXiv 2509.25849), where a dynamic programme solves the same problem.  Chosen here: ``p = (c + 1) / (n + 2)`` over
    the last visit (there: the last epoch's rate, prompts with 0 or 1 apart), ``n_max`` 128 by default.

    Examples
    --------
    >>> import numpy as np
    >>> Knapsack(8).first(np.arange(3, dtype=np.uint64), 0)
    array([8, 8, 8])
    """

    def __init__(self, mean_k: int = 8, *, n_min: int = 2, n_max: int = 128) -> None:
        self.n_min = at_least("n_min", n_min, 1, "every prompt is sampled")
        self.mean_k = at_least("mean_k", mean_k, self.n_min, "the mean lies above the smallest budget")
        self.k_max = at_least("n_max", n_max, self.mean_k, "the mean lies below the largest budget")
        self._memory = Memory(lambda: [0, 0])  # successes and responses of the last visit

    def __repr__(self) -> str:
        return f"Knapsack({self.mean_k}, n_min={self.n_min}, n_max={self.k_max})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        n = len(prompt_ids)
        rows = np.array([self._memory[i] for i in prompt_ids], np.float64).reshape(-1, 2)
        p = ((rows[:, 0] + 1) / (rows[:, 1] + 2))[:, None]
        at = np.arange(self.n_min, self.k_max)[None, :]
        gain = (p**at * (1 - p) + (1 - p) ** at * p) * p * (1 - p) ** 2
        spare = (self.mean_k - self.n_min) * n
        # The k-th increment of every prompt before the (k+1)-th of any with the same gain, so that equal prompts get equal budgets.
        prompt, level = (np.broadcast_to(x, gain.shape).ravel() for x in (np.arange(n)[:, None], at))
        order = np.lexsort((prompt, level, -gain.ravel()))
        taken = np.bincount(order[:spare] // max(gain.shape[1], 1), minlength=n) if n else np.zeros(0, np.int64)
        return (self.n_min + taken).astype(np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return np.zeros(outcomes.n, np.int64)

    def update(self, outcomes: Outcomes) -> None:
        for i, c, n in zip(outcomes.prompt_ids, *(x.tolist() for x in counts(outcomes)), strict=True):
            if n:
                self._memory[i] = [c, n]

    def state_dict(self) -> dict[str, Any]:
        return {"policy": repr(self), "memory": self._memory.dump()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_config(state, self)
        self._memory.load(state["memory"])
