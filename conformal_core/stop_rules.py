"""The calibrated stopping rules by the name of what their level is spent on, and how each of them stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .auto_delta import disjoint_split
from .lead import Statistic, margin_stop
from .learn_then_test import LearnThenTest, StopRisk, certifiable_size, default_starts, learn_then_test
from .level import Level, as_level
from .nested import NestedThresholds
from .outcomes import Outcomes
from .risk_control import RiskControl, risk_control
from .score import Score
from .thresholds import BudgetThresholds, calibrate_thresholds, calibration_need

__all__ = ["KNOB_RULES", "RULES", "RuleName", "StopOptions", "StopRule"]

StopRule = BudgetThresholds | NestedThresholds | RiskControl | LearnThenTest
RuleName = Literal["per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score", "risk_control", "learn_then_test"]
#: Rules that give a threshold of a score at every budget, and rules that give one knob on the lead of the leading answer.
THRESHOLD_RULES: tuple[RuleName, ...] = ("per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score")
KNOB_RULES: tuple[RuleName, ...] = ("risk_control", "learn_then_test")
RULES = THRESHOLD_RULES + KNOB_RULES


class StopOptions:
    """What a rule needs beyond score, grid and level; an option given to a rule that does not read it is an error.

    Parameters
    ----------
    rule : str
        One of :data:`RULES`.
    statistic : {"top_share", "margin"}, optional
        For the knob rules.  Default ``"top_share"``.
    gamma : level, optional
        For ``learn_then_test``.  Default 1/10.
    risk : {"wrong_stop", "wrong_given_stop"}, optional
        For ``learn_then_test``.  Default ``"wrong_stop"``.

    Raises
    ------
    ValueError
        For another rule or value, or an option that the rule does not read.
    """

    def __init__(
        self, rule: RuleName, statistic: Statistic | None = None, gamma: Level | None = None, risk: StopRisk | None = None
    ) -> None:
        if rule not in RULES:
            raise ValueError(f"multiplicity: got {rule!r}; need one of {RULES}; because that is what delta is spent on")
        read = {"risk_control": ("statistic",), "learn_then_test": ("statistic", "gamma", "risk")}.get(rule, ())
        for name, value, allowed in (
            ("statistic", statistic, ("top_share", "margin")),
            ("gamma", gamma, None),
            ("risk", risk, ("wrong_stop", "wrong_given_stop")),
        ):
            if value is not None and name not in read:
                raise ValueError(f"{name}: got {value!r}; need none; because {rule!r} does not read it")
            if value is not None and allowed and value not in allowed:
                raise ValueError(f"{name}: got {value!r}; need one of {allowed}; because those are the ones there are")
        self.rule = rule
        self.statistic: Statistic = statistic or "top_share"
        self.gamma = Fraction(1, 10) if gamma is None else as_level(gamma, "gamma")
        self.risk: StopRisk = risk or "wrong_stop"

    def need(self, delta: Level, budgets: int) -> int:
        """Fewest calibration prompts with which the rule can stop anything at level ``delta``."""
        if self.rule == "learn_then_test":
            return certifiable_size(as_level(delta), self.gamma / default_starts(self.risk))
        least = calibration_need(delta, self.rule, budgets)
        return max(2, 2 * least - 1) if self.rule == "split_ecdf" else least

    def calibrate(
        self,
        outcomes: Outcomes,
        grid: Sequence[int],
        delta: Level,
        score: Score,
        u: NDArray[np.float64],
        *,
        reference: Sequence[int] | NDArray[np.int64],
        rows: NDArray[np.int64],
        seed: Sequence[int],
    ) -> StopRule:
        """The rule from the prompts ``rows``; ``reference`` rows, or a random half of ``rows``, fix the scale of ``split_ecdf``."""
        if self.rule == "risk_control":
            return risk_control(outcomes.take(rows), grid, delta, self.statistic)
        if self.rule == "learn_then_test":
            return learn_then_test(outcomes.take(rows), grid, delta, self.gamma, risk=self.risk, statistic=self.statistic)
        others = np.asarray(reference, dtype=np.int64)
        if self.rule == "split_ecdf" and not others.size:
            first, second = disjoint_split(len(rows), seed=seed)
            others, rows = rows[first], rows[second]
        scores = score.gold_scores(outcomes.take(rows), grid, u[rows])
        known = score.gold_scores(outcomes.take(others), grid, u[others]) if self.rule == "split_ecdf" else None
        return calibrate_thresholds(scores, grid, delta, self.rule, score_name=score.name, reference=known)


def rule_stop(
    rule: StopRule, j: int, k: int, outcomes: Outcomes, score: Score, u: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which prompts stop at the j-th budget of the grid, k, and on which answer."""
    if isinstance(rule, BudgetThresholds | NestedThresholds):
        return score.stop(outcomes, k, rule.q[j], u)
    return margin_stop(outcomes, k, rule.lam, rule.statistic)


def without_guarantee(rule: StopRule, why: str) -> StopRule:
    """The same rule, saying that nothing is guaranteed."""
    return replace(rule, guarantee=f"none: {why}")


def rule_from_json(kind: str, data: Mapping[str, Any]) -> StopRule:
    """Inverse of ``to_json`` of the rule class named ``kind``."""
    kinds: dict[str, Callable[[Mapping[str, Any]], StopRule]] = {
        c.__name__: c.from_json for c in (BudgetThresholds, NestedThresholds, RiskControl, LearnThenTest)
    }
    return kinds[kind](data)
