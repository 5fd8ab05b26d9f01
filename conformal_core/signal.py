"""Signal stopping: draw until the group has something to learn from, and give up where a calibrated clock says it will not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .auto_delta import _rational
from .early import UntilMixed
from .keys import uniforms
from .level import Level, as_level, min_calibration_size
from .outcomes import Outcomes
from .policy import CalibrationRequest
from .schedule import RecalibrationSchedule, positive
from .scores import signal_score
from .stream_window import StreamWindow

__all__ = ["SignalBudget"]


class SignalBudget(UntilMixed):
    r"""Stop when the group holds ``m`` successes and ``m`` failures; give up at ``f`` draws if it does not.

    ``f = 1 + q`` with ``q`` the conformal quantile, at level ``delta``, of ``S_i = k_mix,i - 1`` if calibration prompt ``i`` becomes
    mixed by ``K_max`` (``k_mix`` responses being the fewest that hold ``m`` of each), else 0.  An unresolved prompt stops at the first
    budget of the grid that is at least ``f``.  With too few calibration prompts ``f`` is infinite and nobody gives up.

    *Guarantee*: P(a prompt would have become mixed by ``K_max`` and is cut off before) ``<= delta``, for a prompt exchangeable with those
    of the calibration window, the policy being fixed while the window was filled (:meth:`audit` measures what drift does to it).
    The event is ``S > q`` for one number per prompt, so no factor for the budgets is paid.  On a grid ``f`` rounds up, which only lowers
    the loss.  With ``by_first_outcome`` the bound holds within each of the two classes.  Under ``drift`` the guarantees of
    :class:`StreamWindow` take its place; with ``alarm`` a bound delta becomes at most ``delta / (1 - alarm)``, each false alarm (of
    probability ``alarm`` at most) opening a new window.

    Parameters
    ----------
    grid : sequence of int
        Budgets at which a prompt may stop, ``K_max >= 2 m``.
    m : int
        Successes and failures a group must hold.
    delta : number
        Bound on the share of prompts lost, in (0, 1).
    share : number
        Stream calibration: share of the training prompts that are never cut off and feed the window; designated before sampling by a
        keyed uniform.  They train like any other, so calibration throws nothing away.  While the window is too short for ``delta``, all
        prompts (of that class) are designated.
    window : int
        Designated prompts remembered (per class under ``by_first_outcome``).
    seed : int
        Key of the designation stream.
    by_first_outcome : bool
        Calibrate prompts whose first response passed and failed separately (Mondrian).
    calibration : {"stream", "offline"}
        Where S comes from: the training stream, or ``n_calibration`` prompts rolled out every ``recalibrate_every`` steps until resolved.
        With ``"offline"`` no training prompt is designated.
    n_calibration, recalibrate_every : int
        Offline calibration only.
    drift : {"none", "recency", "aci"}
        Stream calibration only: how scores of older policies are treated; see :class:`StreamWindow`.
    recency, gamma : number
        Its parameters: the weight of a score falls by ``recency`` per step; the level moves by ``gamma`` times the error.
    alarm : number, optional
        Level of a :class:`DriftMonitor` on the number of passes among the first ``grid[0]`` responses of every training prompt, which
        costs nothing.  An alarm empties the window (stream) or makes a calibration due (offline).  Default: no monitor.

    Raises
    ------
    ValueError
        If an argument is out of range, or the window (offline: ``n_calibration``) is too short for ``delta``; the message names the size
        that would do.

    Notes
    -----
    Source: this project; the quantile is split conformal prediction (Vovk, Gammerman, Shafer 2005).
    :meth:`update` and :meth:`audit` expect the outcomes of a step as :meth:`more` left them.

    Examples
    --------
    >>> import numpy as np
    >>> policy = SignalBudget((2, 4, 8), delta="0.5", calibration="offline", n_calibration=3)
    >>> passes = np.array([[1, 0] + [0] * 6, [0, 0, 1] + [0] * 5, [0] * 8], bool)
    >>> policy.calibrate(Outcomes(np.arange(3, dtype=np.uint64), passes))
    >>> dict(policy.metrics())["f"]
    2.0
    >>> policy.more(Outcomes(np.array([9], np.uint64), np.array([[False, False]])))
    array([0])
    """

    def __init__(
        self,
        grid: Sequence[int] = (8, 16, 32),
        *,
        m: int = 1,
        delta: Level = "0.1",
        share: Level = "0.1",
        window: int = 200,
        seed: int = 0,
        by_first_outcome: bool = False,
        calibration: Literal["stream", "offline"] = "stream",
        n_calibration: int = 200,
        recalibrate_every: int = 50,
        drift: Literal["none", "recency", "aci"] = "none",
        recency: Level = "0.98",
        gamma: Level = "0.02",
        alarm: Level | None = None,
    ) -> None:
        super().__init__(grid, m)
        self.delta = as_level(delta)
        self.share = _rational("share", share)
        if self.share == 0:
            raise ValueError("share: got 0; need a share in (0, 1]; because without designated prompts the window is never refreshed")
        self.window = positive("window", window)
        self.seed = int(seed)
        self.by_first_outcome = bool(by_first_outcome)
        if calibration not in ("stream", "offline"):
            raise ValueError(f"calibration: got {calibration!r}; need 'stream' or 'offline'; because S is learnt from one or the other")
        self.mode = calibration
        self.n_calibration = positive("n_calibration", n_calibration)
        if self.mode == "offline" and drift != "none":
            raise ValueError(f"drift: got {drift!r}; need 'none'; because an offline window holds one policy's scores, and no later ones")
        need = min_calibration_size(self.delta)
        name, size = ("window", self.window) if self.mode == "stream" else ("n_calibration", self.n_calibration)
        if size < need:
            raise ValueError(f"{name}: got {size}; need {need}; because with fewer no f at delta = {self.delta} is finite")
        self._windows = [
            StreamWindow(self.delta, size, drift=drift, recency=recency, gamma=gamma) for _ in range(2 if self.by_first_outcome else 1)
        ]
        every = positive("recalibrate_every", recalibrate_every)
        self._schedule = RecalibrationSchedule(every, alarm=alarm, stage=self.grid[0], seed=self.seed)
        self._clock = self._read_windows()
        #: Step of the last update, and the clock under which it was sampled.
        self._updated: tuple[int, tuple[float, ...], tuple[bool, ...]] | None = None
        self._shares = {"designated_share": 0.0, "calibration_extra_share": 0.0}
        self._alarms = 0

    def __repr__(self) -> str:
        return f"SignalBudget({self.grid}, m={self.m}, delta={str(self.delta)!r}, calibration={self.mode!r})"

    # -- the clock ---------------------------------------------------------------------------------------------------------

    def _read_windows(self) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        """Per class: ``f``, and whether the window is too short for ``delta``."""
        return tuple(1 + w.threshold for w in self._windows), tuple(w.short for w in self._windows)

    def _clock_of(self, step: int) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        """The clock under which ``step`` was (or is) sampled: that of before the last update, if ``step`` is what was updated."""
        if self._updated is not None and self._updated[0] == step:
            return self._updated[1], self._updated[2]
        return self._clock

    def _class_of(self, outcomes: Outcomes) -> NDArray[np.int64]:
        if not self.by_first_outcome or not outcomes.width:
            return np.zeros(outcomes.n, np.int64)
        return np.where(outcomes.passes[:, 0] & (outcomes.drawn > 0), 0, 1).astype(np.int64)

    def designated(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        """``(n,)``: prompts that are rolled until resolved or ``K_max`` and feed the window; none in offline mode.

        Decided by the keyed stream before sampling, except that every prompt of a class with a short window is designated.
        """
        if self.mode == "offline":
            return np.zeros(outcomes.n, np.bool_)
        drawn = uniforms(outcomes.prompt_ids, seed=self.seed, step=outcomes.step, stream="designate") < float(self.share)
        short = np.array(self._clock_of(outcomes.step)[1], np.bool_)
        return drawn | short[self._class_of(outcomes)]

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        f = np.array(self._clock_of(outcomes.step)[0])[self._class_of(outcomes)]
        futile = (outcomes.drawn >= f) & (outcomes.drawn > 0) & ~self.designated(outcomes)
        return np.where(futile, 0, super().more(outcomes))

    # -- calibration -------------------------------------------------------------------------------------------------------

    def calibration(self, step: int) -> CalibrationRequest | None:
        """Offline mode: ``n_calibration`` prompts rolled until resolved, first, every ``recalibrate_every`` steps and after an alarm."""
        why = None if self.mode == "stream" else self._schedule.due(step)
        if why is None:
            return None
        return CalibrationRequest(self.n_calibration, UntilMixed(self.grid, self.m), f"futility clock of step {step}: {why}")

    def calibrate(self, outcomes: Outcomes) -> None:
        """Replace the window by the scores of these prompts, each resolved or drawn to ``K_max``; ``ValueError`` otherwise.

        ``outcomes.step`` is the step of the request: it sets the clock of the next calibration.
        """
        scores, which = self._finished(outcomes), self._class_of(outcomes)
        for c, window in enumerate(self._windows):
            window.replace(scores[which == c], outcomes.step)
        self._clock, self._updated = self._read_windows(), None
        self._schedule.calibrated(outcomes)

    def update(self, outcomes: Outcomes) -> None:
        """Append S of the designated prompts to the window, in the order of their ids; ``ValueError`` if one was cut off.

        After an alarm the windows are emptied instead, of this step's prompts too: the alarm has looked at them.
        """
        alarm = self._schedule.observe(outcomes)
        if self.mode == "offline":
            return
        chosen = self.designated(outcomes) & (outcomes.drawn > 0)
        f, short = self._clock_of(outcomes.step)
        mine = outcomes.take(np.flatnonzero(chosen)[np.argsort(outcomes.prompt_ids[chosen], kind="stable")])
        scores, which = self._finished(mine), self._class_of(mine)
        spent = int((mine.drawn - np.minimum(mine.drawn, self._cut_at(mine))).sum())
        self._shares = {
            "designated_share": float(chosen.mean()) if outcomes.n else 0.0,
            "calibration_extra_share": spent / max(int(outcomes.drawn.sum()), 1),
        }
        for c, window in enumerate(self._windows):
            if alarm:
                window.replace([], outcomes.step)
            else:
                window.extend(scores[which == c], outcomes.step, f[c] - 1)
        if alarm:
            self._alarms += 1
            self._schedule.calibrated(outcomes.take(np.zeros(0, np.int64)))
        if self._updated is not None and self._updated[0] == outcomes.step and self._clock != (f, short):
            warnings.warn(
                f"outcomes.step: got {outcomes.step} again after an update; the clock of before that update stays in force until the "
                "step advances",
                stacklevel=2,
            )
        self._updated = (outcomes.step, f, short)
        self._clock = self._read_windows()

    def _finished(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """S of each prompt, all of which must be resolved or at ``K_max``."""
        first = self.happened_at(outcomes)
        cut = (first == 0) & (outcomes.drawn < self.k_max)
        if cut.any():
            raise ValueError(
                f"outcomes: got {int(cut.sum())} calibration prompts cut off unresolved before {self.k_max} responses; "
                "need them resolved or complete; because leaving them out would bias the window towards prompts that resolve early"
            )
        return signal_score(outcomes.passes[:, : self.k_max], self.m, drawn=outcomes.drawn).astype(np.int64)

    # -- reports -----------------------------------------------------------------------------------------------------------

    def audit(self, outcomes: Outcomes) -> Mapping[str, tuple[int, int]]:
        """``{"lost_group": (designated prompts the current clock would have cut off before they became mixed, designated prompts)}``.

        Only prompts under a finite clock are trials: while nobody gives up, nothing can be lost.  Call before :meth:`update`: the
        window does not yet hold these prompts.  In offline mode there are none.
        """
        finite = np.array(self._clock_of(outcomes.step)[0])[self._class_of(outcomes)] < inf
        mine = outcomes.take(self.designated(outcomes) & (outcomes.drawn > 0) & finite)
        return {"lost_group": (int((self.happened_at(mine) > self._cut_at(mine)).sum()), mine.n)}

    def _cut_at(self, outcomes: Outcomes) -> NDArray[np.float64]:
        """First budget of the grid that is at least ``f``: where the clock ends an unresolved prompt; infinite if nowhere."""
        f = np.array(self._clock_of(outcomes.step)[0])[self._class_of(outcomes)]
        return np.append(np.array(self.grid, np.float64), inf)[np.searchsorted(self.grid, f)]

    def metrics(self) -> Mapping[str, float]:
        """``f`` (or ``f_pass``, ``f_fail``; infinite while nothing is cut off) and ``window`` size; of the last step, ``designated_share``
        and ``calibration_extra_share`` (responses drawn only because their prompt was designated, over all responses); under ``"aci"`` the
        working ``level``; with a monitor ``drift_evidence`` and ``alarms``."""
        names = ("f_pass", "f_fail") if self.by_first_outcome else ("f",)
        found = {name: max(f, 1.0) for name, f in zip(names, self._clock[0], strict=True)}
        found |= {**self._shares, "window": float(sum(len(w.scores) for w in self._windows)), **self._schedule.metrics()}
        if self._windows[0].drift == "aci":
            found |= {name.replace("f", "level", 1): float(w.level.level) for name, w in zip(names, self._windows, strict=True)}
        return found if self._schedule.monitor is None else found | {"alarms": float(self._alarms)}

    def _config(self) -> dict[str, Any]:
        return {
            "grid": list(self.grid),
            "m": self.m,
            "delta": str(self.delta),
            "share": str(self.share),
            "window": self.window,
            "seed": self.seed,
            "by_first_outcome": self.by_first_outcome,
            "calibration": [self.mode, self.n_calibration, self._schedule.every],
            "drift": [self._windows[0].drift, str(self._windows[0].recency), str(self._windows[0].level.gamma)],
        }

    def state_dict(self) -> dict[str, Any]:
        """Windows, monitor, and the clock of the last updated step."""
        updated = None
        if self._updated is not None:
            updated = [self._updated[0], [repr(f) for f in self._updated[1]], list(self._updated[2])]
        return {
            "config": self._config(),
            "windows": [w.state_dict() for w in self._windows],
            "updated": updated,
            "schedule": self._schedule.state_dict(),
            "shares": dict(self._shares),
            "alarms": self._alarms,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; raises ``ValueError`` if it was saved by a policy with other arguments."""
        if state.get("config") != self._config():
            raise ValueError(
                f"state: got the state of {state.get('config')}; need that of {self._config()}; "
                "because a clock calibrated for one is not valid for the other"
            )
        for window, saved in zip(self._windows, state["windows"], strict=True):
            window.load_state_dict(saved)
        self._schedule.load_state_dict(state["schedule"])
        self._clock = self._read_windows()
        self._updated = None
        if state["updated"] is not None:
            step, f, short = state["updated"]
            self._updated = (int(step), tuple(float(x) for x in f), tuple(bool(x) for x in short))
        self._shares = {name: float(share) for name, share in state["shares"].items()}
        self._alarms = int(state["alarms"])
