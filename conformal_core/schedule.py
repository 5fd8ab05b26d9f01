"""When to calibrate again: every so many steps, and earlier when the prompts no longer behave as those of the calibration did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .keys import uniforms
from .level import Level, as_level
from .martingale import DriftMonitor
from .outcomes import Outcomes

__all__ = ["RecalibrationSchedule", "first_stage_passes"]


def first_stage_passes(outcomes: Outcomes, k: int) -> NDArray[np.int64]:
    """How many of the first ``k`` responses passed, for the prompts that have ``k``; the others are left out.

    A score that every prompt has, wherever it stopped, if ``k`` is the first budget: what it watches costs nothing and is not
    censored by the stopping rule, unlike the budget at which a prompt stopped.  ``ValueError`` if ``k`` is no integer >= 1.

    Examples
    --------
    >>> first_stage_passes(Outcomes([1, 2], np.array([[True, True, False], [False] * 3]), drawn=np.array([3, 1])), 2).tolist()
    [2]
    """
    positive("k", k)
    return np.asarray(outcomes.passes[outcomes.drawn >= k, :k].sum(axis=1), np.int64)


class RecalibrationSchedule:
    """Calibration is due before the first step, at every multiple of ``every``, and after an alarm of the drift monitor.

    Parameters
    ----------
    every : int
        Steps between calibrations.
    alarm : number, optional
        Level of a :class:`DriftMonitor`: the probability of a calibration that no drift called for, from one calibration to the next.
        Default: no monitor, the clock alone.
    stage : int
        The monitor watches :func:`first_stage_passes` of this budget, the first of the grid.
    seed : int
        Key of the uniform numbers that smooth the p-values.

    Notes
    -----
    The monitor starts at each calibration with the calibration prompts as its history and bets on the training prompts after them, in
    the order of their ids within a step.  *Guarantee*: :class:`DriftMonitor`; calibration and training prompts must be draws from one
    population.  A calibration moves the clock when it arrives (:meth:`calibrated`), not when it is due.

    Examples
    --------
    >>> schedule = RecalibrationSchedule(50)
    >>> schedule.due(0)
    'first calibration'
    >>> schedule.calibrated(Outcomes([1, 2], np.array([[True, False], [False, False]])))
    >>> schedule.due(49), schedule.due(50)
    (None, '50 steps')
    """

    def __init__(self, every: int, *, alarm: Level | None = None, stage: int = 1, seed: int = 0) -> None:
        self.every = positive("every", every)
        self.stage = positive("stage", stage)
        self.monitor = None if alarm is None else DriftMonitor(as_level(alarm, "alarm"))
        self.seed = int(seed)
        self.calibrated_at: int | None = None

    def due(self, step: int) -> str | None:
        """Why a calibration is due before ``step``, or ``None``.  A pure question."""
        if self.calibrated_at is None:
            return "first calibration"
        if self.monitor is not None and self.monitor.alarm:
            return f"drift alarm at level {self.monitor.alpha}"
        return f"{self.every} steps" if step // self.every > self.calibrated_at // self.every else None

    def calibrated(self, outcomes: Outcomes) -> None:
        """A calibration of step ``outcomes.step`` has arrived: its prompts are the monitor's history."""
        self.calibrated_at = outcomes.step
        if self.monitor is not None:
            self.monitor.restart(first_stage_passes(outcomes, self.stage))

    def observe(self, outcomes: Outcomes) -> bool:
        """Show the training prompts of one step to the monitor; returns whether it has raised an alarm."""
        if self.monitor is None:
            return False
        order = np.argsort(outcomes.prompt_ids, kind="stable")
        mine = outcomes.take(order[outcomes.drawn[order] >= self.stage])
        coins = uniforms(mine.prompt_ids, seed=self.seed, step=mine.step, stream="monitor")
        return self.monitor.observe(first_stage_passes(mine, self.stage), coins)

    def metrics(self) -> Mapping[str, float]:
        """``drift_evidence``: the monitor's logarithmic capital (an alarm at ``log(1 / alpha)``); nothing without a monitor."""
        return {} if self.monitor is None else {"drift_evidence": self.monitor.log_capital}

    def state_dict(self) -> dict[str, Any]:
        """Clock and monitor."""
        return {"calibrated_at": self.calibrated_at, "monitor": None if self.monitor is None else self.monitor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; ``ValueError`` if one has a monitor and the other has none."""
        if (state["monitor"] is None) != (self.monitor is None):
            raise ValueError("state: got a monitor on one side only; need it on both or neither; because its alarms move the clock")
        self.calibrated_at = state["calibrated_at"]
        if self.monitor is not None:
            self.monitor.load_state_dict(state["monitor"])


def positive(name: str, value: int) -> int:
    """``value`` as an int, at least 1."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: got {value!r}; need an integer >= 1; because it counts prompts, responses or steps")
    return int(value)
