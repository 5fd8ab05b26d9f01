"""DAPO dynamic sampling: draw groups for further prompts until enough of them have variance."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes, RolloutPolicy

from .common import at_least, check_config, counts

__all__ = ["DynamicSampling"]


class DynamicSampling(RolloutPolicy):
    """Groups of ``n`` for ``prompts`` prompts at a time, until ``prompts`` groups hold a success and a failure.

    The batch handed to :meth:`first` is the reserve: its first ``prompts`` are sampled, the others wait.  While fewer than the target
    have variance, :meth:`more` samples as many further prompts as are missing, divided by the share that had variance so far.

    Parameters
    ----------
    n : int
        Group size.
    prompts : int
        Groups with variance wanted per step.
    max_batches : int
        Prompts sampled per step, at most this many times ``prompts``.

    Notes
    -----
    Source: DAPO (arXiv 2503.14476), verl's ``recipe/dapo``.  Three faults of that code are mended and tested: on exhaustion it raises,
    here the step trains on what there is and says so; its refill draws whole batches, here it draws what is missing; it throws away
    surplus groups, here they train, on the weights that drew them, and the next target is lowered by as many (``carried``).
    A group without variance is dropped from the update (:meth:`keep`); a group of one response counts as having none.

    Examples
    --------
    >>> import numpy as np
    >>> rule = DynamicSampling(2, prompts=1, max_batches=3)
    >>> ids = np.arange(3, dtype=np.uint64)
    >>> rule.first(ids, 0)
    array([2, 0, 0])
    >>> rule.more(Outcomes(ids, np.zeros((3, 2), bool), np.array([2, 0, 0])))
    array([0, 2, 0])
    """

    whole_batch = True

    def __init__(self, n: int = 16, *, prompts: int, max_batches: int = 10) -> None:
        self.k_max = at_least("n", n, 2, "a group of one response has no variance")
        self.prompts = at_least("prompts", prompts, 1, "it counts groups")
        self.max_batches = at_least("max_batches", max_batches, 1, "the first prompts are a batch")
        self.carried = 0
        self._last = {"batches": 0.0, "exhausted": 0.0}

    def __repr__(self) -> str:
        return f"DynamicSampling({self.k_max}, prompts={self.prompts}, max_batches={self.max_batches})"

    @property
    def target(self) -> int:
        """Groups with variance this step asks for: ``prompts`` less the surplus of earlier steps."""
        return max(self.prompts - self.carried, 0)

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.where(np.arange(len(prompt_ids)) < self.target, self.k_max, 0).astype(np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        started = outcomes.drawn > 0
        have, tried = int(self._varies(outcomes).sum()), int(started.sum())
        allowed = min(self.max_batches * self.prompts, outcomes.n) - tried
        want = self.target - have
        if want <= 0 or allowed <= 0:
            return np.zeros(outcomes.n, np.int64)
        share = max(have / max(tried, 1), 1 / self.prompts)
        waiting = np.flatnonzero(~started)[: min(allowed, int(np.ceil(want / share)))]
        extra = np.zeros(outcomes.n, np.int64)
        extra[waiting] = self.k_max
        return extra

    def _varies(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        c, n = counts(outcomes)
        return (c > 0) & (c < n)

    def keep(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        return outcomes.live & self._varies(outcomes)[:, None]

    def update(self, outcomes: Outcomes) -> None:
        have, tried = int(self._varies(outcomes).sum()), int((outcomes.drawn > 0).sum())
        short = self.target - have
        self._last = {"batches": tried / self.prompts, "exhausted": float(short > 0)}
        if short > 0:
            warnings.warn(
                f"DynamicSampling: {have} of {self.target} groups have variance after {tried} prompts; the step trains on these",
                stacklevel=2,
            )
        self.carried = max(-short, 0)

    def metrics(self) -> Mapping[str, float]:
        """``batches`` sampled in the last step, whether it was ``exhausted``, groups ``carried`` into the next."""
        return self._last | {"carried": float(self.carried)}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": repr(self), "carried": self.carried, "last": dict(self._last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_config(state, self)
        self.carried = int(state["carried"])
        self._last = dict(state["last"])
