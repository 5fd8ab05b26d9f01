"""Adaptive conformal inference: between recalibrations the level follows the errors that are seen, whatever the drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .level import Level, as_level, exact
from .quantile import conformal_quantile

__all__ = ["AdaptiveLevel", "adaptive_level"]


@dataclass(frozen=True)
class AdaptiveLevel:
    r"""The working level ``delta_t`` of adaptive conformal inference, as a value: :meth:`after` gives the next one.

    ``delta_{t+1} = delta_t + gamma (delta - err_t)`` with ``err_t`` in [0, 1] the share of errors at time t.  The level is never clipped:
    at or below 0 the threshold is +inf ("everything", no error possible), at or above 1 it is -inf ("nothing", only errors).

    *Guarantee*, deterministic, for any sequence of scores, calibration sets and drifts: if errors are ``score > threshold``,

        ``|err_1 + ... + err_T - T delta| <= (max(delta, 1 - delta) + gamma) / gamma``   for every T,

    because ``delta_t`` then stays within ``[-gamma, 1 + gamma]``.  It says nothing about any single time.

    Attributes
    ----------
    delta : Fraction
        Level aimed for in the long run; also where ``delta_t`` starts.
    gamma : Fraction
        Step, > 0.  Large follows fast and oscillates; the bound on the average error is of order ``1 / (gamma T)``.
    updates : int
        T so far.
    errors : Fraction
        ``err_1 + ... + err_T``.  Level and errors are rational, so a million updates lose nothing to rounding.

    References
    ----------
    Gibbs, Candes (2021), *Adaptive conformal inference under distribution shift*, Eq. 2, Lemma 4.1 and Prop. 4.1.

    Examples
    --------
    >>> level = adaptive_level("0.1", gamma="0.05")
    >>> level.after(1).level, level.after(1).after(0).level
    (Fraction(11, 200), Fraction(3, 50))
    >>> AdaptiveLevel.from_json(level.after(1).to_json()) == level.after(1)
    True
    """

    delta: Fraction
    gamma: Fraction
    updates: int = 0
    errors: Fraction = Fraction(0)

    @property
    def level(self) -> Fraction:
        """``delta_t = delta + gamma (T delta - errors)``: may leave [0, 1]."""
        return self.delta + self.gamma * (self.updates * self.delta - self.errors)

    def threshold(self, scores: ArrayLike) -> float:
        """Accept a score iff ``<=`` this: the conformal quantile of ``scores`` at :attr:`level`; -inf at a level of 1 or more.

        +inf at a level of 0 or less, and where ``scores`` are too few for the level.
        """
        if self.level >= 1:
            return -inf
        if self.level <= 0 or not np.size(scores):
            return inf
        return conformal_quantile(scores, self.level).value

    def after(self, share: Level | bool) -> AdaptiveLevel:
        """The level after a time at which a share ``share`` of the scores were errors; ``ValueError`` outside [0, 1].

        ``score > level.threshold(scores)`` will do for a single score.
        """
        err = Fraction(int(share)) if isinstance(share, (bool, np.bool_)) else exact(share)
        if err is None or not 0 <= err <= 1:
            raise ValueError(f"share: got {share!r}; need a number in [0, 1]; because it is a share of errors")
        return replace(self, updates=self.updates + 1, errors=self.errors + err)

    @property
    def bound(self) -> Fraction | None:
        """Bound on ``|errors / T - delta|`` after T updates; ``None`` before the first."""
        if not self.updates:
            return None
        return (max(self.delta, 1 - self.delta) + self.gamma) / (self.gamma * self.updates)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; fractions as ``"p/q"``."""
        return vars(self) | {name: str(getattr(self, name)) for name in ("delta", "gamma", "errors")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AdaptiveLevel:
        """Inverse of :meth:`to_json`."""
        fractions = {name: Fraction(data[name]) for name in ("delta", "gamma", "errors")}
        return cls(updates=int(data["updates"]), **fractions)


def adaptive_level(delta: Level, gamma: Level = "0.02") -> AdaptiveLevel:
    """The level before any error was seen.

    Parameters
    ----------
    delta : number
        Long-run share of errors, in (0, 1).
    gamma : number
        Step, > 0; a float is read as the nearest rational of denominator at most 10**6.

    Returns
    -------
    AdaptiveLevel

    Raises
    ------
    ValueError
        If ``delta`` is outside (0, 1) or ``gamma`` is not a positive number.

    Examples
    --------
    >>> adaptive_level(0.1, 0.5).level
    Fraction(1, 10)
    """
    step = exact(gamma)
    if step is None or step <= 0:
        rounded = step == 0 and isinstance(gamma, (float, np.floating)) and gamma > 0
        why = "a float below 5e-7 is read as 0: write it as a string" if rounded else "it is the step by which the level moves"
        raise ValueError(f"gamma: got {gamma!r}; need a number above 0; because {why}")
    return AdaptiveLevel(as_level(delta), step)
