"""The last scores of designated prompts, and the threshold they give with the policy fixed or drifting."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fractions import Fraction
from math import inf, isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .aci import AdaptiveLevel, adaptive_level
from .auto_delta import _rational
from .checks import as_floats
from .level import Level, as_level, min_calibration_size
from .quantile import conformal_quantile, weighted_quantile
from .schedule import positive

__all__ = ["StreamWindow"]


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
        #: The last step seen, with scores or without: ages count from the one after it.
        self.clock = -1
        self._read()

    def _read(self) -> None:
        self.short = len(self.scores) < min_calibration_size(self.delta)
        if self.drift == "aci":
            self.threshold = inf if self.short else self.level.threshold(self.scores)
        elif self.drift == "recency" and self.scores:
            q = weighted_quantile(self.scores, [float(self.recency) ** (self.clock + 1 - s) for s in self.steps], 1, self.delta)
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
        A step with an infinite threshold for want of scores is no evidence and moves no level.  Call it at steps without scores too: the
        scores held grow older.  ``ValueError`` for a NaN, or under ``"recency"`` for a step before the last one.
        """
        new = _known(scores)
        q = self.threshold if in_force is None else in_force
        if np.isnan(q):
            raise ValueError("in_force: got NaN; need a number or +-inf; because errors are counted against it")
        if self.drift == "recency" and step < self.clock:
            raise ValueError(
                f"step: got {step} after {self.clock}; need one that is not earlier; because a score from the future would outweigh all"
            )
        if self.drift == "aci" and new and not self.short:
            self.level = self.level.after(Fraction(sum(s > q for s in new), len(new)))
        self.scores = [*self.scores, *new][-self.size :]
        self.steps = [*self.steps, *[int(step)] * len(new)][-self.size :]
        self.clock = int(step)
        self._read()
        if self.drift == "recency" and self.short and len(self.scores) == self.size:
            warnings.warn(
                f"recency: got {self.recency}; need more, or more designated prompts per step; because the test point alone carries more "
                f"than delta = {self.delta} of the weight of the window, so no threshold is finite",
                stacklevel=2,
            )

    def replace(self, scores: ArrayLike, step: int) -> None:
        """Forget all scores and remember these (all of them, whatever ``size``); ``ValueError`` for a NaN."""
        self.scores = _known(scores)
        self.steps = [int(step)] * len(self.scores)
        self.clock = int(step)
        self._read()

    def state_dict(self) -> dict[str, Any]:
        """Scores, steps, clock and level."""
        scores = [s if isfinite(s) else str(s) for s in self.scores]
        return {"scores": scores, "steps": list(self.steps), "clock": self.clock, "level": self.level.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.scores = [float(s) for s in state["scores"]]
        self.steps = [int(s) for s in state["steps"]]
        self.clock = int(state["clock"])
        self.level = AdaptiveLevel.from_json(state["level"])
        self._read()


def _known(scores: ArrayLike) -> list[float]:
    found = [float(s) for s in as_floats("scores", scores)]
    if any(np.isnan(found)):
        raise ValueError("scores: got NaN; need numbers or +inf; because a designated prompt is rolled until its score is known")
    return found
