"""Calibration from the training stream: a random share of the training prompts is rolled until its score is known, and trains too.

*Why it is exact for a fixed policy.*  Whether a prompt is designated is decided by a keyed uniform number before anything of it is sampled,
so it depends neither on its responses nor on any stop.  A designated prompt is rolled until its score is known whatever the threshold
of the day, so no score is censored by a stop.  With the policy fixed while the window was filled, the window's scores and the score of
a fresh prompt are therefore independent draws from one law, and the threshold in force at a step comes from earlier steps only: split
conformal prediction applies as it stands.  The designated prompts train like any other, so the only cost is that they are not
cut short.

*Under drift* the scores in the window come from older policies.  ``drift="recency"`` bounds the loss of coverage by the weighted total
variation between old and present scores; ``drift="aci"`` bounds the long-run share of errors whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .auto_delta import _rational
from .keys import uniforms
from .level import Level
from .outcomes import Outcomes
from .policy import RolloutPolicy
from .schedule import RecalibrationSchedule, positive
from .stream_window import StreamWindow

__all__ = ["StreamCalibrated", "StreamWindow"]


class StreamCalibrated(RolloutPolicy):
    """Any policy that asks for calibration rollouts, calibrated on a share of its own training prompts instead.

    Designated prompts are rolled as the policy's calibration request asks (first-success: until a success; answer scores: ``K_max``), and
    until the policy itself would stop; they train like any other.  After every step the policy is calibrated on the last ``window`` of
    them.  Until the window is full every prompt is designated.

    *Guarantee*: that of the policy, for a model fixed within the window (see the module); under drift approximate.  With ``alarm`` a
    monitor on :func:`first_stage_passes` empties the window when it finds the drift; for a fixed model that happens with
    probability at most ``alpha`` from one emptying to the next, and a bound delta becomes at most ``delta / (1 - alpha)``.

    Parameters
    ----------
    policy : RolloutPolicy
        One whose ``calibration(0)`` is a request.
    share : number
        Share of the prompts designated, in (0, 1], by a keyed uniform before sampling.
    window : int, optional
        Designated prompts remembered.  Default: as many as the policy asks for.
    alarm : number, optional
        Level of the drift monitor.  Default: none.
    seed : int
        Key of the designation.

    Raises
    ------
    ValueError
        If the policy asks for no calibration, or an argument is out of range.

    Examples
    --------
    >>> from conformal_core import ConformalBudget, FirstSuccess
    >>> policy = StreamCalibrated(ConformalBudget((2, 4), score=FirstSuccess(), delta="0.2", n_calibration=9))
    >>> policy.calibration(0) is None, policy.window
    (True, 9)
    """

    def __init__(
        self, policy: RolloutPolicy, *, share: Level = "0.1", window: int | None = None, alarm: Level | None = None, seed: int = 0
    ) -> None:
        request = policy.calibration(0)
        if request is None:
            raise ValueError(f"policy: got {policy!r}; need one that asks for calibration; because there is nothing to calibrate")
        own = getattr(policy, "_schedule", None)
        if isinstance(own, RecalibrationSchedule) and own.monitor is not None:
            raise ValueError(f"policy: got an alarm of its own in {policy!r}; need alarm here; because nobody asks it what is due")
        self.policy, self.rollout = policy, request.rollout
        self.k_max = max(policy.k_max, self.rollout.k_max)
        self.needs_answers = policy.needs_answers or self.rollout.needs_answers
        self.share = _rational("share", share)
        if self.share == 0:
            raise ValueError("share: got 0; need a share in (0, 1]; because without designated prompts the window is never refreshed")
        self.window = request.n if window is None else positive("window", window)
        if self.window < request.n:
            raise ValueError(f"window: got {self.window}; need {request.n}; because {policy!r} calibrates on that many")
        self.seed = int(seed)
        stage = int(policy.first(np.zeros(1, np.uint64), 0)[0])
        self._schedule = RecalibrationSchedule(1, alarm=alarm, stage=max(stage, 1), seed=seed)
        self._rows: list[Outcomes] = []
        self._designated_share = self._extra_share = 0.0

    def __repr__(self) -> str:
        return f"StreamCalibrated({self.policy!r}, share={str(self.share)!r}, window={self.window})"

    def designated(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.bool_]:
        """``(n,)``: prompts that feed the window, settled before sampling; all of them until it is full."""
        if len(self._rows) < self.window:
            return np.ones(len(prompt_ids), np.bool_)
        return np.asarray(uniforms(prompt_ids, seed=self.seed, step=step, stream="designate") < float(self.share))

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        own, wanted = self.policy.first(prompt_ids, step), self.rollout.first(prompt_ids, step)
        return np.where(self.designated(prompt_ids, step), np.maximum(own, wanted), own).astype(np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        extra = np.array(self.policy.more(outcomes), np.int64)
        rows = np.flatnonzero((extra == 0) & self.designated(outcomes.prompt_ids, outcomes.step))
        extra[rows] = self.rollout.more(outcomes.take(rows))
        return extra

    def keep(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        return self.policy.keep(outcomes)

    def advantages(self, outcomes: Outcomes) -> NDArray[np.float64] | None:
        return self.policy.advantages(outcomes)

    def audit(self, outcomes: Outcomes) -> Mapping[str, tuple[int, int]]:
        return self.policy.audit(outcomes)

    @property
    def committed(self) -> Callable[[Outcomes], NDArray[np.int64]] | None:
        """The policy's own ``committed``; ``None`` if it has none."""
        return getattr(self.policy, "committed", None)

    def update(self, outcomes: Outcomes) -> None:
        """Append the designated prompts in the order of their ids, and calibrate the policy on the window if it is full."""
        chosen = np.flatnonzero(self.designated(outcomes.prompt_ids, outcomes.step) & (outcomes.drawn > 0))
        mine = outcomes.take(chosen[np.argsort(outcomes.prompt_ids[chosen], kind="stable")])
        self._designated_share = mine.n / outcomes.n if outcomes.n else 0.0
        self._extra_share = int((mine.drawn - self._undesignated(mine)).sum()) / max(int(outcomes.drawn.sum()), 1)
        self.policy.update(outcomes)
        if self._schedule.observe(outcomes):
            self._schedule.calibrated(outcomes.take(np.zeros(0, np.int64)))
            self._rows = []
            return
        self._rows = [*self._rows, *(mine.take(np.array([i])) for i in range(mine.n))][-self.window :]
        if len(self._rows) == self.window:
            self.policy.calibrate(replace(_stacked(self._rows, self.k_max), step=outcomes.step))

    def _undesignated(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """What these prompts would have drawn if the policy alone had decided."""
        drawn = np.minimum(self.policy.first(outcomes.prompt_ids, outcomes.step), outcomes.drawn)
        rows = np.flatnonzero(drawn < outcomes.drawn)
        while rows.size:
            extra = self.policy.more(outcomes.take(rows).prefix(drawn[rows]))
            drawn[rows] = np.minimum(drawn[rows] + extra, outcomes.drawn[rows])
            rows = rows[(extra > 0) & (drawn[rows] < outcomes.drawn[rows])]
        return np.asarray(drawn, np.int64)

    def metrics(self) -> Mapping[str, float]:
        """The policy's own, and of the last step: ``designated_share``, ``calibration_extra_share`` (responses drawn only to know a score,
        over all responses), ``window`` (designated prompts held)."""
        mine = {"designated_share": self._designated_share, "calibration_extra_share": self._extra_share, "window": float(len(self._rows))}
        return {**self.policy.metrics(), **self._schedule.metrics(), **mine}

    def _config(self) -> dict[str, Any]:
        return {"share": str(self.share), "window": self.window, "seed": self.seed}

    def state_dict(self) -> dict[str, Any]:
        """Window, monitor and the policy's state."""
        return {
            "config": self._config(),
            "rows": [_row_to_json(row) for row in self._rows],
            "shares": [self._designated_share, self._extra_share],
            "schedule": self._schedule.state_dict(),
            "policy": self.policy.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; ``ValueError`` if it was saved by a policy with other arguments."""
        if state.get("config") != self._config():
            raise ValueError(
                f"state: got the state of {state.get('config')}; need that of {self._config()}; because the window would not fit"
            )
        self.policy.load_state_dict(state["policy"])
        self._schedule.load_state_dict(state["schedule"])
        self._rows = [_row_from_json(row) for row in state["rows"]]
        self._designated_share, self._extra_share = map(float, state["shares"])


def _stacked(rows: Sequence[Outcomes], width: int) -> Outcomes:
    """One batch of single prompts of different widths, ``width`` at least."""
    wide = [row.widen(max(width, *(row.width for row in rows))) for row in rows]
    codes = [row.codes for row in wide if row.codes is not None]
    gold = [row.gold for row in wide if row.gold is not None]
    return Outcomes(
        np.concatenate([row.prompt_ids for row in wide]),
        np.concatenate([row.passes for row in wide]),
        np.concatenate([row.drawn for row in wide]),
        np.concatenate(codes) if len(codes) == len(wide) else None,
        np.concatenate(gold) if len(gold) == len(wide) else None,
    )


def _row_to_json(row: Outcomes) -> list[Any]:
    k = int(row.drawn[0])
    return [
        int(row.prompt_ids[0]),
        row.passes[0, :k].astype(int).tolist(),
        None if row.codes is None else row.codes[0, :k].tolist(),
        None if row.gold is None else int(row.gold[0]),
    ]


def _row_from_json(data: Sequence[Any]) -> Outcomes:
    name, passes, codes, gold = data
    return Outcomes(
        np.array([name], np.uint64),
        np.array([passes], np.bool_),
        codes=None if codes is None else np.array([codes], np.int64),
        gold=None if gold is None else np.array([gold], np.int64),
    )
