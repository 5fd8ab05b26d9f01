"""What the logged groups bought: which of them could move the weights, and what the others cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conformal_core import clopper_pearson

from .groups import Groups

__all__ = ["Waste", "waste_of"]


@dataclass(frozen=True)
class Waste:
    """What the logged groups bought: counts over all groups read.

    ``no_signal`` groups could not move the weights: all their responses passed (``all_passed``), all failed (``all_failed``), or neither.
    ``rollout_share`` and ``token_share`` are theirs of all responses and of ``unit``; ``interval`` is that of the share of groups.
    """

    groups: int
    rollouts: int
    prompts: int
    steps: int
    no_signal: int
    all_passed: int
    all_failed: int
    rollout_share: float
    token_share: float | None
    unit: str
    interval: tuple[float, float]
    pass_rate: float
    sizes: Mapping[int, int]


def waste_of(groups: Groups) -> Waste:
    """What the groups bought, counted over all of them."""
    idle = ~groups.signal
    rollouts = int(groups.size.sum())
    tokens = groups.tokens
    low, high = clopper_pearson(int(idle.sum()), groups.n)
    sizes, counts = np.unique(groups.size, return_counts=True)
    top = np.argsort(-counts, kind="stable")[:8]
    unit = groups.responses.length_unit
    return Waste(
        groups=groups.n,
        rollouts=rollouts,
        prompts=int(np.unique(groups.prompt).size),
        steps=int(np.unique(groups.step).size),
        no_signal=int(idle.sum()),
        all_passed=int((idle & (groups.solved == 1)).sum()),
        all_failed=int((idle & (groups.solved == 0)).sum()),
        rollout_share=float(groups.size[idle].sum() / rollouts),
        token_share=None if tokens is None or not tokens.sum() or unit == "mixed" else float(tokens[idle].sum() / tokens.sum()),
        unit=unit,
        interval=(low, high),
        pass_rate=float((groups.solved * groups.size).sum() / rollouts),
        sizes={int(sizes[i]): int(counts[i]) for i in sorted(top)},
    )
