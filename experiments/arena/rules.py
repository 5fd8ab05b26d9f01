"""The contestants: how each budget rule is built, and each mask rule with the threshold it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_core import ConformalBudget, Outcomes, RolloutPolicy, SignalBudget

from .. import baselines

__all__ = ["BUDGETS", "MASKS", "BudgetRule", "MaskRule", "PerPrompt", "budget", "mask"]


@dataclass(frozen=True)
class BudgetRule:
    """A budget rule by name.

    ``make(prompts, seed)`` builds the policy for ``prompts`` groups per step; ``reserve`` is the number of prompts handed over for each
    that is expected to be sampled (dynamic sampling draws from a reserve).
    """

    key: str
    label: str
    make: Callable[[int, int], RolloutPolicy]
    reserve: int = 1


@dataclass(frozen=True)
class MaskRule:
    """A mask rule by name: the trainer's ``response_mask``, its threshold, and which signs of advantage it judges."""

    key: str
    label: str
    rule: str
    threshold: float
    conditioning: str = "both"


class PerPrompt(SignalBudget):
    """The signal rule with every prompt weighing the same, however many responses it got.

    A loss that averages over rows or tokens lets a prompt count in proportion to its responses, and dividing by the group's standard
    deviation raises hard prompts further.  Here ``A_ij = s (r_ij - mean_i) / (n_i - 1)``, so that a prompt's rows add up to the
    leave-one-out estimate of the gradient of its success rate; ``s`` makes the root mean square over rows that are not zero 1.
    """

    def advantages(self, outcomes: Outcomes) -> NDArray[np.float64]:
        n = outcomes.drawn[:, None]
        centred = np.where(outcomes.live, outcomes.passes - (outcomes.passes & outcomes.live).sum(1)[:, None] / np.maximum(n, 1), 0.0)
        weighed = centred / np.maximum(n - 1, 1)
        acting = weighed[weighed != 0]
        return weighed / np.sqrt(np.mean(acting**2)) if acting.size else weighed


def _fixed(k: int) -> BudgetRule:
    return BudgetRule(f"fixed-{k}", f"fixed G={k}", lambda prompts, seed: baselines.FixedBudget(k))


def _signal(key: str, label: str, grid: tuple[int, ...], **options: object) -> BudgetRule:
    return BudgetRule(key, label, lambda prompts, seed: SignalBudget(grid, seed=seed, **options))  # type: ignore[arg-type]


BUDGETS: dict[str, BudgetRule] = {
    rule.key: rule
    for rule in (
        *map(_fixed, (2, 4, 8, 16, 32)),
        _signal("signal-2", "signal 2,4,8", (2, 4, 8), delta="0.3", window=100),
        _signal("signal-2-tail", "signal 2,8,32", (2, 8, 32), delta="0.2", window=100),
        BudgetRule(
            "signal-2-even",
            "signal 2,4,8, prompts weigh the same",
            lambda prompts, seed: PerPrompt((2, 4, 8), delta="0.3", window=100, seed=seed),
        ),
        BudgetRule(
            "signal-2-tail-even",
            "signal 2,8,32, prompts weigh the same",
            lambda prompts, seed: PerPrompt((2, 8, 32), delta="0.2", window=100, seed=seed),
        ),
        _signal("signal-4", "signal 4,8,16,32", (4, 8, 16, 32), delta="0.2", window=100),
        _signal("signal-8", "signal 8,16,24,32", (8, 16, 24, 32), delta="0.1", window=100),
        _signal("signal-4-2step", "signal 4,12", (4, 12), delta="0.2", window=100),
        BudgetRule(
            "cgrpo-risk",
            "C-GRPO risk control",
            lambda prompts, seed: ConformalBudget(
                (2, 4, 8, 16, 32), delta="0.1", multiplicity="risk_control", n_calibration=100, recalibrate_every=50, seed=seed
            ),
        ),
        BudgetRule(
            "cgrpo-bonferroni",
            "C-GRPO Theorem 5",
            lambda prompts, seed: ConformalBudget(
                (2, 4, 8, 16, 32), delta="0.2", multiplicity="bonferroni", n_calibration=100, recalibrate_every=50, seed=seed
            ),
        ),
        BudgetRule(
            "released",
            "C-GRPO as released",
            lambda prompts, seed: baselines.released_cgrpo(grid=(2, 4, 8, 16, 32), n_calibration=100, recalibrate_every=50, seed=seed),
        ),
        BudgetRule("unanimity", "unanimity", lambda prompts, seed: baselines.Unanimity((2, 4, 8, 16, 32))),
        BudgetRule("dapo", "DAPO, G=8", lambda prompts, seed: baselines.DynamicSampling(8, prompts=prompts, max_batches=4), reserve=4),
        BudgetRule("aero", "AERO", lambda prompts, seed: baselines.AERO(8, seed=seed)),
        BudgetRule("gdro-prompt", "Prompt-GDRO, G=8", lambda prompts, seed: baselines.PromptGDRO(8)),
        BudgetRule("gdro-rollout", "Rollout-GDRO, mean 4", lambda prompts, seed: baselines.RolloutGDRO(4)),
        BudgetRule("sqrt", "square root, mean 8", lambda prompts, seed: baselines.SquareRootBudget(8)),
        BudgetRule("greso", "GRESO, G=8", lambda prompts, seed: baselines.GRESO(8, seed=seed)),
        BudgetRule("ada-seq", "Reinforce-Ada-Seq", lambda prompts, seed: baselines.ReinforceAdaSeq(4, seed=seed)),
        BudgetRule(
            "ada-seq-positive",
            "Reinforce-Ada-Seq, positive",
            lambda prompts, seed: baselines.ReinforceAdaSeq(4, exit="positive_focused", seed=seed),
        ),
        BudgetRule("ada-est", "Reinforce-Ada-Est, mean 8", lambda prompts, seed: baselines.ReinforceAdaEst(8)),
        BudgetRule("pilot", "Pilot-Commit", lambda prompts, seed: baselines.PilotCommit(8, 24)),
        BudgetRule("knapsack", "Knapsack, mean 8", lambda prompts, seed: baselines.Knapsack(8, n_max=32)),
    )
}

MASKS: dict[str, MaskRule] = {
    rule.key: rule
    for rule in (
        MaskRule("none", "no mask", "none", 1.02),
        *(MaskRule(f"carm-{tau:g}", f"CARM {tau:g}", "carm", tau) for tau in (1.005, 1.01, 1.02, 1.05, 1.1)),
        MaskRule("carm-negative", "CARM 1.02, negative only", "carm", 1.02, "negative"),
        MaskRule("geomean", "GeoMean 1.01", "geomean", 1.01),
        MaskRule("trm", "TRM .05", "trm", 0.05),
        MaskRule("opsm", "OPSM .02", "opsm", 0.02, "negative"),
        MaskRule("icepop", "IcePop [.5, 5]", "icepop", 5.0),
    )
}


def budget(key: str) -> BudgetRule:
    """The budget rule of that name; ``ValueError`` with all names otherwise."""
    if key not in BUDGETS:
        raise ValueError(f"rules: got {key!r}; need some of {', '.join(BUDGETS)}; because these are the budget rules")
    return BUDGETS[key]


def mask(key: str) -> MaskRule:
    """The mask rule of that name; ``ValueError`` with all names otherwise."""
    if key not in MASKS:
        raise ValueError(f"masks: got {key!r}; need some of {', '.join(MASKS)}; because these are the mask rules")
    return MASKS[key]
