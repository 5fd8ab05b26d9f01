"""Pilot-Commit: a pilot for every prompt, a full group for those of intermediate difficulty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes, RolloutPolicy

from .common import Memory, at_least, check_config, counts, within

__all__ = ["PilotCommit"]


class PilotCommit(RolloutPolicy):
    """``pilot`` responses; ``commit`` more where ``lower <= c / pilot <= upper``; ``train`` of them, half and half, enter the update.

    Prompts outside the range are dropped from the update; one whose pilot is at least ``exclude`` is skipped from its next visit on.

    Notes
    -----
    Source: ``databricks/pilot-commit``, with the values of its scripts (.125, .75, 1.0; pilot 8, commit 48).  Chosen here: the commit is
    drawn in the same step (there, survivors wait up to four steps to be batched with later pilots), the half-and-half subset is the
    first responses of each class, a shortage of one being filled from the other.
    """

    def __init__(
        self, pilot: int = 8, commit: int = 24, *, train: int = 16, lower: float = 0.125, upper: float = 0.75, exclude: float = 1.0
    ) -> None:
        self.pilot = at_least("pilot", pilot, 1, "a rate is read off the pilot")
        self.commit = at_least("commit", commit, 1, "a commit draws something")
        self.k_max = self.pilot + self.commit
        self.train = at_least("train", train, 2, "both classes train")
        self.lower = within("lower", lower, 0, 1, "it is a rate")
        self.upper = within("upper", upper, self.lower, 1, "the range is not empty")
        self.exclude = within("exclude", exclude, self.upper, 1, "what is committed to is not excluded")
        self._out = Memory(lambda: [0])

    def __repr__(self) -> str:
        return f"PilotCommit({self.pilot}, {self.commit}, train={self.train}, range=[{self.lower}, {self.upper}], exclude={self.exclude})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.array([0 if i in self._out else self.pilot for i in prompt_ids], np.int64)

    def _rate(self, outcomes: Outcomes) -> NDArray[np.float64]:
        return np.asarray((outcomes.passes & outcomes.live)[:, : self.pilot].sum(1) / self.pilot)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        rate = self._rate(outcomes)
        chosen = (rate >= self.lower) & (rate <= self.upper) & (outcomes.drawn == self.pilot)
        return np.where(chosen, self.commit, 0).astype(np.int64)

    def keep(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        c, n = counts(outcomes)
        half = self.train // 2
        good = np.minimum(c, np.maximum(half, self.train - (n - c)))
        bad = np.minimum(n - c, self.train - good)
        right, wrong = outcomes.passes & outcomes.live, ~outcomes.passes & outcomes.live
        kept = (right & (right.cumsum(1) <= good[:, None])) | (wrong & (wrong.cumsum(1) <= bad[:, None]))
        return kept & (n > self.pilot)[:, None]

    def update(self, outcomes: Outcomes) -> None:
        for i in outcomes.prompt_ids[(self._rate(outcomes) >= self.exclude) & (outcomes.drawn > 0)]:
            self._out[i] = [1]

    def metrics(self) -> Mapping[str, float]:
        """Prompts ``excluded`` so far."""
        return {"excluded": float(len(self._out))}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": repr(self), "excluded": self._out.dump()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_config(state, self)
        self._out.load(state["excluded"])
