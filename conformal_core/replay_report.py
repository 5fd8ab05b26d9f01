"""What a replay found, as one frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReplayReport"]


@dataclass(frozen=True, eq=False)
class ReplayReport:
    """What a policy did with one or more tables.

    Counts are of prompts unless said otherwise; divide by ``n`` for shares.

    Attributes
    ----------
    n, k_max, steps : int
        Prompts over all steps; the full group everything is judged against; steps.
    drawn : int64 array, shape (n,)
        Responses drawn per prompt, in the order of the tables.
    mean_k : float
        Mean of ``drawn``.
    savings : float
        ``1 - mean_k / k_max``: share of responses saved against ``k_max`` for every prompt; calibration is not counted.
    calibration_rollouts : int
        Responses drawn for calibration during the replay.
    savings_with_calibration : float
        ``1 - (sum of drawn + calibration_rollouts) / (n k_max)``; negative if calibration costs more than is saved.
    early_stops, early_with_variance : int
        Prompts stopped before the policy's own ``k_max`` (not those skipped); those of them whose kept responses are neither all accepted
        nor all rejected.
    stops, wrong_stops : int
        Prompts stopped by the policy: those for which its ``committed`` names an answer, be it at ``k_max``, and early stops; those of them
        that are wrong: the answer named is not gold (gold unknown: no response accepted has it); where none is named, no response drawn
        was accepted.
    lost_groups : int
        Groups with both verdicts among the first ``k_max`` responses of the table but one or none among the kept.
    groups_with_variance : int
        Groups whose kept responses are neither all accepted nor all rejected: those that move the weights.
    fixed_groups_with_variance : float
        The same for the rival, a fixed group size of the same mean: interpolated between the two nearest integers.
    solvable, solvable_kept : int
        Prompts with an accepted response among the first ``k_max``; those that keep one.
    positives, positives_kept : int
        Accepted responses among the first ``k_max`` of every prompt; those kept.
    gradient_mass, fixed_gradient_mass : float
        ``sum k phat (1 - phat)`` over prompts, the expected push of a group-normalised update, relative to ``k_max`` for every prompt; the
        same for the rival.  NaN if no group of the table has both verdicts.
    audit : dict of str to (int, int)
        The policy's own error events, occurred and trials.
    intervals : dict of str to (float, float)
        Confidence intervals of mean k, of both savings (given the calibration cost), of the shares ``wrong_stops / n``,
        ``lost_groups / n``, ``groups_with_variance / n``, and of each audited event; (0, 1) without trials.
    level : Fraction
        Confidence of each interval by itself.
    method, guarantee : str
        Which interval, and what it assumes.
    """

    n: int
    k_max: int
    steps: int
    drawn: NDArray[np.int64]
    mean_k: float
    savings: float
    calibration_rollouts: int
    savings_with_calibration: float
    early_stops: int
    early_with_variance: int
    stops: int
    wrong_stops: int
    lost_groups: int
    groups_with_variance: int
    fixed_groups_with_variance: float
    solvable: int
    solvable_kept: int
    positives: int
    positives_kept: int
    gradient_mass: float
    fixed_gradient_mass: float
    audit: Mapping[str, tuple[int, int]]
    intervals: Mapping[str, tuple[float, float]]
    level: Fraction
    method: str
    guarantee: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the level as ``"p/q"``, NaN as ``None``."""
        pairs = {name: {event: list(pair) for event, pair in getattr(self, name).items()} for name in ("audit", "intervals")}
        masses = {name: None if np.isnan(getattr(self, name)) else getattr(self, name) for name in ("gradient_mass", "fixed_gradient_mass")}
        return vars(self) | pairs | masses | {"drawn": self.drawn.tolist(), "level": str(self.level)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReplayReport:
        """Inverse of :meth:`to_json`."""
        d = dict(data)
        d |= {"drawn": np.array(d["drawn"], np.int64), "level": Fraction(d["level"])}
        d |= {name: np.nan if d[name] is None else d[name] for name in ("gradient_mass", "fixed_gradient_mass")}
        d |= {name: {event: tuple(pair) for event, pair in d[name].items()} for name in ("audit", "intervals")}
        return cls(**d)
