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

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .aci import AdaptiveLevel, adaptive_level
from .auto_delta import _rational
from .keys import uniforms
from .level import Level, as_level, min_calibration_size
from .outcomes import Outcomes
from .policy import RolloutPolicy
from .quantile import conformal_quantile, weighted_quantile
from .schedule import RecalibrationSchedule, positive

__all__ = ["StreamCalibrated", "StreamWindow"]


class StreamWindow:
    r"""The last ``size`` scores of designated prompts, and the threshold they give.

    Parameters
    ----------
    delta : number
        Miscoverage.
    size : int
        Scores remembered, at least ``min_calibration_size(delta)``.
    drift : {"none", "recency", "aci"}
        *Guarantee*, for the score S of a prompt of step t and q the threshold of :meth:`threshold`:

        ``"none"``: ``P(S <= q) >= 1 - delta`` for a policy fixed within the window.
        ``"recency"``: score i weighs ``w_i = recency ** age_i`` (steps), the test point 1, and
        ``P(S <= q) >= 1 - delta - sum_i w~_i TV(Z, Z^i)``, ``w~_i = w_i / (1 + sum w)``, Z^i being the scores with i-th and test point
        swapped; for independent scores ``TV(Z, Z^i) <= 2 TV(S_i, S)``.  The weights are fixed: they depend on steps, not on scores.
        ``"aci"``: the level moves with the errors seen (:class:`AdaptiveLevel`, one update per step with designated prompts);
        over T such steps the mean share of designated scores above their thresholds is within
        ``(max(delta, 1 - delta) + gamma) / (gamma T)`` of delta, for any drift.  A fresh prompt's error rate at a step is the mean of that
        share, as designation is random.
    recency : number
        In (0, 1]; 1 weighs all scores alike.
    gamma : number
        Step of ``"aci"``.

    Raises
    ------
    ValueError
        If an argument is out of range or ``size`` too small for ``delta``.

    References
    ----------
    Barber, Candes, Ramdas, Tibshirani (2023), *Conformal prediction beyond exchangeability*, Thm 2 and Lemma 1; Gibbs, Candes (2021).

    Examples
    --------
    >>> window = StreamWindow("0.2", 9)
    >>> window.threshold, window.short
    (inf, True)
    >>> window.extend([1, 2, 3, 4], step=0)
    >>> window.threshold, window.short
    (4.0, False)
    """

    def __init__(
        self,
        delta: Level,
        size: int,
        *,
        drift: Literal["none", "recency", "aci"] = "none",
        recency: Level = "0.98",
        gamma: Level = "0.02",
    ) -> None:
        self.delta = as_level(delta)
        self.size = positive("window", size)
        if drift not in ("none", "recency", "aci"):
            raise ValueError(f"drift: got {drift!r}; need 'none', 'recency' or 'aci'; because those are the ways to weigh old scores")
        need = min_calibration_size(self.delta)
        if self.size < need:
            raise ValueError(f"window: got {self.size}; need {need}; because with fewer no threshold at delta = {self.delta} is finite")
        self.drift = drift
        self.recency = _rational("recency", recency)
        if self.recency == 0:
            raise ValueError("recency: got 0; need a number in (0, 1]; because old scores would weigh nothing")
        self.level: AdaptiveLevel = adaptive_level(self.delta, gamma)
        self.scores: list[float] = []
        self.steps: list[int] = []
        self._read()

    def _read(self) -> None:
        self.short = len(self.scores) < min_calibration_size(self.delta)
        if self.drift == "aci":
            self.threshold = inf if self.short else self.level.threshold(self.scores)
        elif self.drift == "recency" and self.scores:
            now = self.steps[-1] + 1
            q = weighted_quantile(self.scores, [float(self.recency) ** (now - s) for s in self.steps], 1, self.delta)
            self.threshold, self.short = q.value, self.short or not q.attainable
        else:
            self.threshold = inf if self.short else conformal_quantile(self.scores, self.delta).value

    #: Accept a score iff ``<= threshold``; +inf while :attr:`short`, and -inf where an adaptive level has reached 1.
    threshold: float
    #: Whether the scores are too few (or, by weight, too old) for a finite threshold.
    short: bool

    def extend(self, scores: ArrayLike, step: int, in_force: float | None = None) -> None:
        """Append scores of one step; the oldest leave.

        ``in_force`` is the threshold under which that step was sampled (default: the present one), against which ``"aci"`` counts errors.
        A step with an infinite threshold for want of scores is no evidence and moves no level.
        """
        new = [float(s) for s in np.asarray(scores, np.float64)]
        if any(np.isnan(new)):
            raise ValueError("scores: got NaN; need numbers or +inf; because a designated prompt is rolled until its score is known")
        q = self.threshold if in_force is None else in_force
        if self.drift == "aci" and new and not self.short:
            self.level = self.level.after(Fraction(sum(s > q for s in new), len(new)))
        self.scores = [*self.scores, *new][-self.size :]
        self.steps = [*self.steps, *[int(step)] * len(new)][-self.size :]
        self._read()
        if self.drift == "recency" and self.short and len(self.scores) == self.size:
            warnings.warn(
                f"recency: got {self.recency}; need more, or more designated prompts per step; because the test point alone carries more "
                f"than delta = {self.delta} of the weight of a full window, so no threshold is finite",
                stacklevel=2,
            )

    def replace(self, scores: ArrayLike, step: int) -> None:
        """Forget all scores and remember these (all of them, whatever ``size``)."""
        self.scores = [float(s) for s in np.asarray(scores, np.float64)]
        self.steps = [int(step)] * len(self.scores)
        self._read()

    def state_dict(self) -> dict[str, Any]:
        """Scores, steps and level."""
        scores = [s if isfinite(s) else str(s) for s in self.scores]
        return {"scores": scores, "steps": list(self.steps), "level": self.level.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.scores = [float(s) for s in state["scores"]]
        self.steps = [int(s) for s in state["steps"]]
        self.level = AdaptiveLevel.from_json(state["level"])
        self._read()


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
