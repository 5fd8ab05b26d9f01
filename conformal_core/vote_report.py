"""What an adaptive vote saves and what it costs, against the vote at ``K_max`` over the same responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb
from typing import Any

from .intervals import mean_interval
from .laws import clopper_pearson
from .level import Level, as_level
from .outcomes import UNPARSABLE, Outcomes
from .vote import ConformalVote, FixedVote
from .vote_statistics import count_votes

__all__ = ["VoteReport", "vote_report"]

Interval = tuple[float, float]


@dataclass(frozen=True)
class VoteReport:
    """Paired comparison on ``n`` prompts.  All intervals have coverage at least ``level`` for any n, given the rule.

    Attributes
    ----------
    n, k_max : int
        Prompts; responses of the full vote.
    mean_k, saved : float
        Responses per prompt; ``1 - mean_k / k_max``.
    saved_interval : (float, float)
        Empirical Bernstein (:func:`mean_interval`): the share saved lies in [0, 1] for each prompt.
    differs : int
        Prompts whose committed answer is not the vote at ``K_max``.
    differs_interval : (float, float)
        Clopper-Pearson.
    level : Fraction
        Confidence.
    right, right_full : int or None
        Prompts on which the committed answer, and the vote at ``K_max``, is gold; ``None`` without gold, as is what follows.
    lost, won : int or None
        Prompts on which stopping made a right answer wrong, and a wrong one right.
    accuracy_difference, accuracy_difference_interval
        ``(won - lost) / n``; from Clopper-Pearson intervals of either share at half the error each.
    mcnemar_p : float or None
        Exact two-sided McNemar test of equal accuracy: ``lost`` of ``lost + won`` as fair coin tosses.
    """

    n: int
    k_max: int
    mean_k: float
    saved: float
    saved_interval: Interval
    differs: int
    differs_interval: Interval
    level: Fraction
    right: int | None = None
    right_full: int | None = None
    lost: int | None = None
    won: int | None = None
    accuracy_difference: float | None = None
    accuracy_difference_interval: Interval | None = None
    mcnemar_p: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        pairs = {name: value and list(value) for name, value in vars(self).items() if name.endswith("interval")}
        return vars(self) | pairs | {"level": str(self.level)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VoteReport:
        """Inverse of :meth:`to_json`."""
        pairs = {name: value and tuple(value) for name, value in data.items() if name.endswith("interval")}
        return cls(**(dict(data) | pairs | {"level": Fraction(data["level"])}))


def vote_report(policy: ConformalVote | FixedVote, table: Outcomes, level: Level = "0.95") -> VoteReport:
    """Let a vote stop within a table of finished groups, and compare it with the vote at ``K_max``.

    Parameters
    ----------
    policy : ConformalVote or FixedVote
        Calibrated on other prompts.
    table : Outcomes
        With codes, at least ``K_max`` responses each; with gold, accuracy is reported too.
    level : number
        Confidence of the intervals.

    Returns
    -------
    VoteReport

    Raises
    ------
    ValueError
        If the table is empty or too narrow, or has no codes.

    Examples
    --------
    >>> import numpy as np
    >>> from conformal_core.vote import unanimous_vote
    >>> codes = np.array([[0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]])
    >>> table = Outcomes([1, 2, 3], codes == 0, codes=codes, gold=np.zeros(3, np.int64))
    >>> report = vote_report(unanimous_vote((2, 4)), table)
    >>> report.mean_k, report.differs, report.lost, report.won, report.mcnemar_p
    (2.6666666666666665, 0, 0, 0, 1.0)
    """
    if table.codes is None or table.n < 1 or table.drawn.min() < policy.k_max:
        raise ValueError(
            f"table: got {table.n} prompts{'' if table.codes is not None else ' without codes'}; need at least one, with codes and "
            f"{policy.k_max} responses each; because the vote at K_max is the yardstick"
        )
    confidence = as_level(level, "level")
    at, answer = policy.stops(table)
    final = count_votes(table.codes, policy.k_max).answer
    n, differs, mean_k = table.n, int((answer != final).sum()), float(at.mean())
    report = VoteReport(
        n=n,
        k_max=policy.k_max,
        mean_k=mean_k,
        saved=1 - mean_k / policy.k_max,
        saved_interval=mean_interval(1 - at / policy.k_max, confidence),
        differs=differs,
        differs_interval=clopper_pearson(differs, n, confidence),
        level=confidence,
    )
    if table.gold is None:
        return report
    right = (answer == table.gold) & (answer != UNPARSABLE)
    right_full = (final == table.gold) & (final != UNPARSABLE)
    lost, won = int((right_full & ~right).sum()), int((right & ~right_full).sum())
    halved = 1 - (1 - confidence) / 2
    (lost_low, lost_high), (won_low, won_high) = clopper_pearson(lost, n, halved), clopper_pearson(won, n, halved)
    return replace(
        report,
        right=int(right.sum()),
        right_full=int(right_full.sum()),
        lost=lost,
        won=won,
        accuracy_difference=(won - lost) / n,
        accuracy_difference_interval=(won_low - lost_high, won_high - lost_low),
        mcnemar_p=_mcnemar(lost, won),
    )


def _mcnemar(lost: int, won: int) -> float:
    tosses, fewer = lost + won, min(lost, won)
    return float(min(Fraction(1), Fraction(2 * sum(comb(tosses, i) for i in range(fewer + 1)), 2**tosses)))
