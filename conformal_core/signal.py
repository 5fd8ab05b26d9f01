"""Signal stopping: draw until the group has something to learn from, and give up where a calibrated clock says it will not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .auto_delta import _rational
from .conformal_budget import _is_due, _positive
from .keys import uniforms
from .level import Level, as_level, min_calibration_size
from .outcomes import Outcomes
from .policy import CalibrationRequest, RolloutPolicy
from .quantile import conformal_quantile
from .scores import k_mix, signal_score
from .thresholds import check_grid

__all__ = ["SignalBudget"]


class _UntilResolved(RolloutPolicy):
    """Climb the grid until the group holds ``m`` successes and ``m`` failures, or ``K_max`` responses."""

    def __init__(self, grid: Sequence[int], m: int) -> None:
        self.grid = check_grid(grid)
        self.k_max = self.grid[-1]
        self.m = _positive("m", m)
        if self.k_max < 2 * self.m:
            raise ValueError(f"m: got {m}; need at most {self.k_max // 2}; because a group of {self.k_max} cannot hold {m} of each")

    def __repr__(self) -> str:
        return f"_UntilResolved({self.grid}, m={self.m})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.grid[0], np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        following = np.append(self.grid, self.k_max)[np.searchsorted(self.grid, outcomes.drawn, side="right")]
        return np.where(self._k_mix(outcomes) > 0, 0, np.maximum(following - outcomes.drawn, 0)).astype(np.int64)

    def _k_mix(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """First budget within ``K_max`` and the responses drawn with ``m`` successes and ``m`` failures; 0 if there is none."""
        return k_mix(outcomes.passes[:, : self.k_max], self.m, drawn=outcomes.drawn)


class SignalBudget(_UntilResolved):
    r"""Stop when the group holds ``m`` successes and ``m`` failures; give up at ``f`` draws if it does not.

    ``f = 1 + q`` with ``q`` the conformal quantile, at level ``delta``, of ``S_i = k_mix,i - 1`` if calibration prompt ``i`` becomes
    mixed by ``K_max`` (``k_mix`` responses being the fewest that hold ``m`` of each), else 0.  An unresolved prompt stops at the first
    budget of the grid that is at least ``f``.  With too few calibration prompts ``f`` is infinite and nobody gives up.

    *Guarantee*: P(a prompt would have become mixed by ``K_max`` and is cut off before) ``<= delta``, for a prompt exchangeable with those
    of the calibration window, the policy being fixed while the window was filled (drift makes it approximate; :meth:`audit` measures it).
    The event is ``S > q`` for one number per prompt, so no factor for the budgets is paid.  On a grid ``f`` rounds up, which only lowers
    the loss.  With ``by_first_outcome`` the bound holds within each of the two classes.

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

    Raises
    ------
    ValueError
        If an argument is out of range, or the window (offline: ``n_calibration``) is too short for ``delta``; the message names the size
        that would do.

    Notes
    -----
    Source: this project (spec: signal stopping); the quantile is split conformal prediction (Vovk, Gammerman, Shafer 2005).
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
    ) -> None:
        super().__init__(grid, m)
        self.delta = as_level(delta)
        self.share = _rational("share", share)
        if self.share == 0:
            raise ValueError("share: got 0; need a share in (0, 1]; because without designated prompts the window is never refreshed")
        self.window = _positive("window", window)
        self.seed = int(seed)
        self.by_first_outcome = bool(by_first_outcome)
        if calibration not in ("stream", "offline"):
            raise ValueError(f"calibration: got {calibration!r}; need 'stream' or 'offline'; because S is learnt from one or the other")
        self.mode = calibration
        self.n_calibration = _positive("n_calibration", n_calibration)
        self.recalibrate_every = _positive("recalibrate_every", recalibrate_every)
        self._need = min_calibration_size(self.delta)
        name, size = ("window", self.window) if self.mode == "stream" else ("n_calibration", self.n_calibration)
        if size < self._need:
            raise ValueError(f"{name}: got {size}; need {self._need}; because with fewer no f at delta = {self.delta} is finite")
        classes = 2 if self.by_first_outcome else 1
        self._windows: list[list[int]] = [[] for _ in range(classes)]
        self._clock: tuple[tuple[float, ...], tuple[bool, ...]] = self._read_windows()
        #: Step of the last update, and the clock under which it was sampled.
        self._updated: tuple[int, tuple[float, ...], tuple[bool, ...]] | None = None
        self._calibrated_at: int | None = None
        self._designated_share = 0.0

    def __repr__(self) -> str:
        return f"SignalBudget({self.grid}, m={self.m}, delta={str(self.delta)!r}, calibration={self.mode!r})"

    # -- the clock ---------------------------------------------------------------------------------------------------------

    def _read_windows(self) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        """Per class: ``f``, and whether the window is too short for ``delta``."""
        clock = []
        for scores in self._windows:
            q = conformal_quantile(np.array(scores, np.float64), self.delta) if scores else None
            clock.append(1.0 + q.value if q is not None and q.attainable else inf)
        return tuple(clock), tuple(len(scores) < self._need for scores in self._windows)

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
        """Offline mode: ``n_calibration`` prompts rolled until resolved, at step 0 and every ``recalibrate_every`` steps.  Else none."""
        if self.mode == "stream" or not _is_due(step, self._calibrated_at, self.recalibrate_every):
            return None
        return CalibrationRequest(self.n_calibration, _UntilResolved(self.grid, self.m), f"futility clock of step {step}")

    def calibrate(self, outcomes: Outcomes) -> None:
        """Replace the window by the scores of these prompts, each resolved or drawn to ``K_max``; ``ValueError`` otherwise.

        ``outcomes.step`` is the step of the request: it sets the clock of the next calibration.
        """
        scores = self._finished(outcomes)
        which = self._class_of(outcomes)
        self._windows = [[int(s) for s in scores[which == c]] for c in range(len(self._windows))]
        self._clock, self._updated = self._read_windows(), None
        self._calibrated_at = outcomes.step

    def update(self, outcomes: Outcomes) -> None:
        """Append S of the designated prompts to the window, in the order of their ids; ``ValueError`` if one was cut off."""
        if self.mode == "offline":
            return
        chosen = self.designated(outcomes) & (outcomes.drawn > 0)
        self._designated_share = float(chosen.mean()) if outcomes.n else 0.0
        f, short = self._clock_of(outcomes.step)
        mine = outcomes.take(np.flatnonzero(chosen)[np.argsort(outcomes.prompt_ids[chosen], kind="stable")])
        scores, which = self._finished(mine), self._class_of(mine)
        for c, window in enumerate(self._windows):
            window.extend(int(s) for s in scores[which == c])
            del window[: -self.window]
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
        first = self._k_mix(outcomes)
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
        finite = np.isfinite(np.array(self._clock_of(outcomes.step)[0]))[self._class_of(outcomes)]
        mine = outcomes.take(self.designated(outcomes) & (outcomes.drawn > 0) & finite)
        first = self._k_mix(mine)
        f = np.array(self._clock_of(outcomes.step)[0])[self._class_of(mine)]
        where = np.searchsorted(self.grid, f)  # first budget of the grid >= f
        cut_at = np.append(np.array(self.grid, np.float64), inf)[where]
        return {"lost_group": (int(((first > 0) & (cut_at < first)).sum()), mine.n)}

    def metrics(self) -> Mapping[str, float]:
        """``f`` (or ``f_pass``, ``f_fail``; infinite while nothing is cut off), ``designated_share`` of the last step, ``window`` size."""
        names = ("f_pass", "f_fail") if self.by_first_outcome else ("f",)
        clock = dict(zip(names, self._clock[0], strict=True))
        return clock | {"designated_share": self._designated_share, "window": float(sum(map(len, self._windows)))}

    def _config(self) -> dict[str, Any]:
        return {
            "grid": list(self.grid),
            "m": self.m,
            "delta": str(self.delta),
            "share": str(self.share),
            "window": self.window,
            "seed": self.seed,
            "by_first_outcome": self.by_first_outcome,
            "calibration": self.mode,
        }

    def state_dict(self) -> dict[str, Any]:
        """Windows, clocks and the clock of the last updated step."""
        updated = None
        if self._updated is not None:
            updated = [self._updated[0], [repr(f) for f in self._updated[1]], list(self._updated[2])]
        return {
            "config": self._config(),
            "windows": [list(w) for w in self._windows],
            "updated": updated,
            "calibrated_at": self._calibrated_at,
            "designated_share": self._designated_share,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; raises ``ValueError`` if it was saved by a policy with other arguments."""
        if state.get("config") != self._config():
            raise ValueError(
                f"state: got the state of {state.get('config')}; need that of {self._config()}; "
                "because a clock calibrated for one is not valid for the other"
            )
        self._windows = [[int(s) for s in w] for w in state["windows"]]
        self._clock = self._read_windows()
        self._updated = None
        if state["updated"] is not None:
            step, f, short = state["updated"]
            self._updated = (int(step), tuple(float(x) for x in f), tuple(bool(x) for x in short))
        self._calibrated_at = state["calibrated_at"]
        self._designated_share = float(state["designated_share"])
