"""Baselines by name, with sizes read off a budget grid: what configurations and their ``budget.rule`` use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformal_core import RolloutPolicy
from conformal_core.thresholds import check_grid

from .aero import AERO
from .dynamic_sampling import DynamicSampling
from .gdro import PromptGDRO, RolloutGDRO, SquareRootBudget
from .greso import GRESO
from .knapsack import Knapsack
from .pilot_commit import PilotCommit
from .reinforce_ada import ReinforceAdaEst, ReinforceAdaSeq
from .unanimity import Unanimity

__all__ = ["NAMES", "named"]

#: A quarter of the prompts handed to a step of dynamic sampling is sampled at first, the others are its reserve.
RESERVE = 4


def _rounds(k: int) -> int:
    return max(r for r in (1, 2, 3, 4) if k % r == 0)


_RULES: dict[str, Callable[[tuple[int, ...], int, int], RolloutPolicy]] = {
    "unanimity": lambda g, prompts, seed: Unanimity(g),
    "dapo": lambda g, prompts, seed: DynamicSampling(g[-1], prompts=max(1, prompts // RESERVE), max_batches=RESERVE),
    "aero": lambda g, prompts, seed: AERO(max(2, g[-1] // 2), n_max=g[-1], seed=seed),
    "gdro-prompt": lambda g, prompts, seed: PromptGDRO(g[-1]),
    "gdro-rollout": lambda g, prompts, seed: RolloutGDRO(g[len(g) // 2], n_min=g[0], n_max=g[-1]),
    "sqrt": lambda g, prompts, seed: SquareRootBudget(g[len(g) // 2], n_min=g[0], n_max=g[-1]),
    "greso": lambda g, prompts, seed: GRESO(g[-1], seed=seed),
    "ada-seq": lambda g, prompts, seed: ReinforceAdaSeq(4, per_round=g[-1] // _rounds(g[-1]), rounds=_rounds(g[-1]), seed=seed),
    "ada-est": lambda g, prompts, seed: ReinforceAdaEst(g[len(g) // 2], n_min=g[0], n_max=g[-1]),
    "pilot": lambda g, prompts, seed: PilotCommit(max(1, g[-1] // 4), g[-1] - max(1, g[-1] // 4), train=max(2, g[-1] // 2)),
    "knapsack": lambda g, prompts, seed: Knapsack(g[len(g) // 2], n_min=g[0], n_max=g[-1]),
}
NAMES = tuple(_RULES)


def named(name: str, grid: Sequence[int], *, prompts: int, seed: int = 0) -> RolloutPolicy:
    """The baseline of that name, with ``k_max = grid[-1]``.

    Parameters
    ----------
    name : str
        ``unanimity`` stops along the grid; ``dapo``, ``gdro-prompt`` and ``greso`` draw groups of ``grid[-1]``; ``aero`` screens with
        half of it and ``pilot`` with a quarter; ``ada-seq`` draws it in up to four rounds; ``gdro-rollout``, ``sqrt``, ``ada-est`` and
        ``knapsack`` spread budgets over ``[grid[0], grid[-1]]``, at a mean of the grid's middle entry.  The rest is each rule's default.
    grid : sequence of int
        Ascending budgets.
    prompts : int
        Prompts handed to a step; ``dapo`` samples a quarter of them at first and keeps the others in reserve.
    seed : int
        Of the rules that draw at random.

    Raises
    ------
    ValueError : for an unknown name, and for sizes that the rule cannot use.

    Examples
    --------
    >>> named("sqrt", (2, 4, 8, 16, 32), prompts=4)
    SquareRootBudget(8, n_min=2, n_max=32)
    >>> named("ada-seq", (2, 4, 8), prompts=4).k_max
    8
    """
    if name not in _RULES:
        raise ValueError(f"name: got {name!r}; need one of {', '.join(NAMES)}; because these are the baselines")
    return _RULES[name](check_grid(grid), prompts, seed)
