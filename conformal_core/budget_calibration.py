"""From calibration prompts to a stopping rule: what to draw of them, which of them choose delta, which give the thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .auto_delta import _rational, auto_delta, auto_delta_upper, disjoint_split
from .early import UntilFirstSuccess, calibration_rollout
from .level import Level
from .nested import NestedRollout, nested_thresholds
from .outcomes import Outcomes
from .policy import FixedBudget, RolloutPolicy
from .score import Score
from .scores import FirstSuccess
from .stop_rules import KNOB_RULES, StopOptions, StopRule, without_guarantee

__all__ = ["AutoDelta", "AutoRule", "BudgetCalibration"]

AutoRule = Literal["epsilon", "clopper_pearson"]


@dataclass(frozen=True)
class AutoDelta:
    """Delta from the solve rate at ``K_max``.

    Attributes
    ----------
    rule : {"epsilon", "clopper_pearson"}
        :func:`auto_delta` with slack ``epsilon``, or :func:`auto_delta_upper` at its default gamma, 1/10.
    epsilon : Fraction
        Read by ``"epsilon"`` alone.
    split : bool
        Whether the prompts that choose delta are others than those that give the thresholds.
    """

    rule: AutoRule
    epsilon: Fraction
    split: bool

    @classmethod
    def of(cls, rule: AutoRule | None, epsilon: Level | None, split: bool) -> AutoDelta:
        """Defaults filled in; ``ValueError`` for another rule or a slack that the rule does not read."""
        if rule not in (None, "epsilon", "clopper_pearson"):
            raise ValueError(f"auto_rule: got {rule!r}; need 'epsilon' or 'clopper_pearson'; because those set delta from the solve rate")
        if rule == "clopper_pearson" and epsilon is not None:
            raise ValueError(f"epsilon: got {epsilon!r}; need none; because 'clopper_pearson' adds no slack to its bound")
        return cls(rule or "epsilon", _rational("epsilon", "0.05" if epsilon is None else epsilon), bool(split))

    def choose(self, outcomes: Outcomes, k_max: int) -> Fraction:
        """The level, from groups of ``K_max`` responses, or fewer that hold a success."""
        solved, n = int((outcomes.passes & outcomes.live)[:, :k_max].any(axis=1).sum()), outcomes.n
        return auto_delta(solved, n, epsilon=self.epsilon) if self.rule == "epsilon" else auto_delta_upper(solved, n)


class BudgetCalibration:
    """What :class:`ConformalBudget` draws to calibrate, and the rule it makes of it.

    Parameters
    ----------
    grid, score, options
        As the policy has them.
    delta : Fraction or AutoDelta
        Level, or how to choose it at every calibration.
    nested : sequence of numbers, optional
        Shares of the prompts that are rolled to each budget, the first 1.
    n : int
        Prompts per calibration.
    seed : int
        Key of the split, of the coin of the scores and of the nested shares.

    Attributes
    ----------
    rollout : RolloutPolicy
        What to draw: until the first success for a first-success threshold, whose score is then known at every budget; to the budget
        drawn by lot under ``nested``; else ``K_max`` responses.

    Raises
    ------
    ValueError
        If ``n`` is too small for delta, or ``nested`` does not fit rule, score or level.
    """

    def __init__(
        self,
        grid: tuple[int, ...],
        score: Score,
        options: StopOptions,
        delta: Fraction | AutoDelta,
        nested: Sequence[Level] | None,
        n: int,
        seed: int,
    ) -> None:
        self.grid, self.k_max, self.score, self.options, self.delta, self.seed = grid, grid[-1], score, options, delta, seed
        by_score = options.rule not in KNOB_RULES
        self.rollout: RolloutPolicy = calibration_rollout(score, grid) if by_score else FixedBudget(self.k_max)
        shares: tuple[Fraction, ...] = (Fraction(1),)
        if nested is not None:
            self.rollout = self._nested(nested, seed)
            shares = self.rollout.shares
        if isinstance(delta, AutoDelta):
            if delta.split and n < 2:
                raise ValueError(f"n_calibration: got {n}; need 2; because split=True takes delta and thresholds from different prompts")
            return
        need = options.need(delta, len(grid))
        if n < need:
            raise ValueError(
                f"n_calibration: got {n}; need {need}; because with fewer prompts no threshold "
                f"at delta = {delta} under {options.rule!r} is finite, and nothing can stop"
            )
        least = int(shares[-1] * n)
        if least < need:
            raise ValueError(
                f"nested: got {[str(share) for share in shares]} of {n} prompts, {least} at the last budget; need {need} there; "
                f"because with fewer no threshold at delta = {delta} under {options.rule!r} is finite"
            )

    def _nested(self, shares: Sequence[Level], seed: int) -> NestedRollout:
        rollout = NestedRollout(self.grid, shares, seed)
        why = None
        if self.options.rule not in ("per_budget", "bonferroni"):
            why = f"{self.options.rule!r} reads every prompt at every budget; 'per_budget' and 'bonferroni' rank each budget on its own"
        elif isinstance(self.delta, AutoDelta):
            why = "an automatic delta is the solve rate at K_max, which only the prompts at the last budget show; give delta"
        elif isinstance(self.score, FirstSuccess):
            why = "a first-success calibration stops at the first success already, and its score is then known at every budget"
        elif rollout.shares[0] != 1:
            why = "every prompt drawn for calibration is rolled to the first budget, so the first share is 1"
        if why is not None:
            raise ValueError(f"nested: got {[str(s) for s in rollout.shares]}; need none, or shares that begin with 1; because {why}")
        return rollout

    def check(self, outcomes: Outcomes) -> None:
        """``ValueError`` if a score is not determined by what was drawn."""
        if isinstance(self.rollout, UntilFirstSuccess):
            short, what = ~self.rollout.known(outcomes), f"{self.k_max} responses or a first success"
        elif isinstance(self.rollout, NestedRollout):
            short, what = outcomes.drawn < self.assigned(outcomes), "the budget assigned to it"
        else:
            short, what = outcomes.drawn < self.k_max, f"{self.k_max} responses"
        if not outcomes.n or bool(short.any()):
            raise ValueError(
                f"outcomes: got {outcomes.n} prompts, {int(short.sum())} of them with too few responses; need {what} of each of at least "
                "one prompt; because every budget of the grid is calibrated, and what was cut short is no random part of the prompts"
            )

    def assigned(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """``(n,)`` budget that each prompt was assigned under ``nested``, whatever was drawn beyond it."""
        return self.rollout.first(outcomes.prompt_ids, outcomes.step)

    def rule(self, outcomes: Outcomes, u: Callable[[Outcomes], NDArray[np.float64]]) -> StopRule:
        """The stopping rule from checked outcomes of at least ``K_max`` columns; ``u`` gives the coin of each prompt."""
        rows = np.argsort(outcomes.prompt_ids, kind="stable").astype(np.int64)  # so that a split ignores the order of the rows
        reference, key = rows[:0], (self.seed % 2**64, outcomes.step)
        if isinstance(self.rollout, NestedRollout):
            assert isinstance(self.delta, Fraction)
            scores = self.score.gold_scores(outcomes, self.grid, u(outcomes))
            by_itself: Literal["per_budget", "bonferroni"] = "bonferroni" if self.options.rule == "bonferroni" else "per_budget"
            return nested_thresholds(scores, self.assigned(outcomes), self.grid, self.delta, by_itself)
        delta = self.delta
        if isinstance(delta, AutoDelta):
            first = rows
            if delta.split:
                idx_delta, idx_q = disjoint_split(outcomes.n, seed=key)
                reference, rows = rows[idx_delta], rows[idx_q]
                first = reference
            delta = delta.choose(outcomes.take(first), self.k_max)
        rule = self.options.calibrate(outcomes, self.grid, delta, self.score, u(outcomes), reference=reference, rows=rows, seed=key)
        if isinstance(self.delta, AutoDelta) and not self.delta.split:
            return without_guarantee(rule, f"delta = {delta} was chosen by looking at the same prompts")
        return rule

    def config(self) -> dict[str, Any]:
        """What a saved state must agree on."""
        auto = self.delta if isinstance(self.delta, AutoDelta) else None
        return {
            "grid": list(self.grid),
            "score": None if self.options.rule in KNOB_RULES else repr(self.score),
            "multiplicity": self.options.rule,
            "options": [self.options.statistic, str(self.options.gamma), self.options.risk],
            "delta": "auto" if auto else str(self.delta),
            "auto": None if auto is None else [auto.rule, str(auto.epsilon), auto.split],
            "nested": [str(share) for share in self.rollout.shares] if isinstance(self.rollout, NestedRollout) else None,
            "seed": self.seed,
        }
