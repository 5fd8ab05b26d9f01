"""Nested calibration sets: many prompts at the cheap budgets, few at the dear ones, each budget with its own exact rank."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf, isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .keys import uniforms
from .level import Level, as_level, conformal_rank, exact, min_calibration_size
from .outcomes import Outcomes
from .policy import RolloutPolicy
from .quantile import conformal_quantile
from .thresholds import check_grid

__all__ = ["NestedRollout", "NestedThresholds", "nested_budgets", "nested_cost", "nested_thresholds"]


def _sizes(grid: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    budgets, counts = check_grid(grid), tuple(sizes)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in counts)
    if not whole or len(counts) != len(budgets) or counts[-1] < 1 or any(a < b for a, b in pairwise(counts)):
        raise ValueError(
            f"sizes: got {counts!r}; need {len(budgets)} integers >= 1 that do not increase; because a prompt with k responses has "
            "been calibrated at every smaller budget too"
        )
    return budgets, tuple(int(n) for n in counts)


def nested_cost(grid: Sequence[int], sizes: Sequence[int]) -> int:
    """Responses to draw for ``n_k`` calibration prompts at each budget: ``sum_j n_j (k_j - k_{j-1})``.

    ``ValueError`` unless there is one size per budget and sizes do not increase.

    Examples
    --------
    >>> nested_cost((2, 8, 32), (400, 200, 100)), nested_cost((2, 8, 32), (200, 200, 200))
    (4400, 6400)
    """
    budgets, counts = _sizes(grid, sizes)
    return sum(n * (k - before) for n, k, before in zip(counts, budgets, (0, *budgets), strict=False))


def nested_budgets(
    prompt_ids: NDArray[np.uint64], grid: Sequence[int], sizes: Sequence[int], *, seed: int = 0, step: int = 0
) -> NDArray[np.int64]:
    """Budget of each calibration prompt, so that exactly ``n_k`` prompts reach each budget k of the grid.

    Prompts are ranked by a keyed uniform number (ties by id): who is rolled out further is settled before anything is sampled, which
    is what keeps the scores at every budget exchangeable.

    Parameters
    ----------
    prompt_ids : array of uint64, shape (n,)
        At least ``sizes[0]`` prompts; those beyond get 0.
    grid, sizes : sequences of M ints
        Budgets, ascending, and calibration sizes, not increasing.
    seed, step : int
        Key.

    Returns
    -------
    int64 array, shape (n,)

    Raises
    ------
    ValueError
        If sizes do not fit the grid or the prompts.

    Examples
    --------
    >>> budgets = nested_budgets(np.arange(10, dtype=np.uint64), (2, 8), (6, 3))
    >>> [int((budgets >= k).sum()) for k in (2, 8)]
    [6, 3]
    """
    budgets, counts = _sizes(grid, sizes)
    ids = np.asarray(prompt_ids, np.uint64)
    if len(ids) < counts[0]:
        raise ValueError(f"prompt_ids: got {len(ids)} prompts; need {counts[0]}; because so many are calibrated at budget {budgets[0]}")
    order = np.lexsort((ids, uniforms(ids, seed=seed, step=step, stream="nested")))
    drawn = np.zeros(len(ids), np.int64)
    for k, n in zip(budgets, counts, strict=True):
        drawn[order[:n]] = k
    return drawn


class NestedRollout(RolloutPolicy):
    """Roll each calibration prompt out, in one go, to the largest budget whose share exceeds the prompt's keyed uniform number.

    Each prompt decides alone, so calibration prompts may be spread over processes, and always alike, so its budget is known at any later
    step; the sizes ``n_k`` are then random (binomial), and the ranks of :func:`nested_thresholds` are exact given them, since they do not
    depend on any score.

    Parameters
    ----------
    grid : sequence of M ints
        Budgets.
    shares : sequence of M numbers
        Share of the prompts that reach each budget, in (0, 1], not increasing.
    seed : int
        Key.

    Examples
    --------
    >>> NestedRollout((2, 8), (1, "0.25")).first(np.arange(6, dtype=np.uint64), step=0).tolist()
    [2, 8, 8, 2, 2, 2]
    """

    def __init__(self, grid: Sequence[int], shares: Sequence[Level], seed: int = 0) -> None:
        self.grid = check_grid(grid)
        self.k_max = self.grid[-1]
        self.seed = int(seed)
        self.shares = tuple(Fraction(1) if exact(share) == 1 else as_level(share, "shares") for share in shares)
        if len(self.shares) != len(self.grid) or any(a < b for a, b in pairwise(self.shares)):
            raise ValueError(f"shares: got {list(shares)}; need {len(self.grid)} that do not increase; because the sets are nested")

    def __repr__(self) -> str:
        return f"NestedRollout({self.grid}, {tuple(map(str, self.shares))})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        u = uniforms(prompt_ids, seed=self.seed, step=0, stream="nested")
        reached = (u[:, None] < np.array([float(s) for s in self.shares])).sum(axis=1)
        return np.asarray(np.array((0, *self.grid), np.int64)[reached])

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return np.zeros(outcomes.n, np.int64)


@dataclass(frozen=True)
class NestedThresholds:
    """Thresholds ``q_k`` from calibration sets of sizes ``n_k``.

    Attributes
    ----------
    grid, q, ranks, n, attainable : tuples
        Per budget: k, threshold (``inf`` where the rank exceeds ``n_k``), rank among the ``n_k`` scores, ``n_k``, ``rank <= n_k``.
    delta, level : Fraction
        Miscoverage asked for, and the level spent at each budget.
    multiplicity, guarantee : str
        The rule, and what holds under which assumption.
    """

    grid: tuple[int, ...]
    q: tuple[float, ...]
    ranks: tuple[int, ...]
    n: tuple[int, ...]
    attainable: tuple[bool, ...]
    delta: Fraction
    level: Fraction
    multiplicity: str
    guarantee: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; fractions as ``"p/q"``, an infinite threshold as ``"inf"``."""
        lists = {name: list(getattr(self, name)) for name in ("grid", "ranks", "n", "attainable")}
        values = [q if isfinite(q) else str(q) for q in self.q]
        return vars(self) | lists | {"q": values, "delta": str(self.delta), "level": str(self.level)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NestedThresholds:
        """Inverse of :meth:`to_json`."""
        d = dict(data) | {name: tuple(data[name]) for name in ("grid", "ranks", "n", "attainable")}
        d |= {"q": tuple(float(q) for q in data["q"]), "delta": Fraction(data["delta"]), "level": Fraction(data["level"])}
        return cls(**d)


def nested_thresholds(
    scores: NDArray[np.float64],
    drawn: NDArray[np.int64],
    grid: Sequence[int],
    delta: Level,
    multiplicity: Literal["per_budget", "bonferroni"] = "per_budget",
) -> NestedThresholds:
    """Split-conformal threshold at each budget from the prompts that reached it: rank ``ceil((n_k + 1)(1 - level))``.

    Parameters
    ----------
    scores : array of float, shape (n, M)
        Score of the gold answer of each prompt at each budget; what lies beyond ``drawn`` is not read.
    drawn : array of int, shape (n,)
        Budget to which each prompt was *assigned* before sampling (:func:`nested_budgets`); one that depends on outcomes voids the
        guarantee.
    grid : sequence of M ints
    delta : number
        Miscoverage, in (0, 1).
    multiplicity : {"per_budget", "bonferroni"}
        ``level = delta``, or ``delta / M``.

    Returns
    -------
    NestedThresholds
        *Guarantee*, for a prompt exchangeable with the calibration prompts: ``P(S_k <= q_k) >= 1 - level`` at each fixed k, and under
        ``"bonferroni"`` at all k together; the sets may be nested, since a union bound needs no independence.

    Raises
    ------
    ValueError
        If shapes or level are out of range, no prompt reached the first budget, or a score within ``drawn`` is NaN.

    Warns
    -----
    UserWarning
        If too few prompts reached a budget: its threshold is ``inf`` and nothing stops there; the message names the size that would do.

    Examples
    --------
    >>> t = nested_thresholds(np.arange(20.0).reshape(10, 2), np.array([4] * 4 + [2] * 6), (2, 4), "0.2")
    >>> t.n, t.ranks, t.q
    ((10, 4), (9, 4), (16.0, 7.0))
    """
    budgets = check_grid(grid)
    table, reach = np.asarray(scores, np.float64), np.asarray(drawn)
    if table.ndim != 2 or table.shape[1] != len(budgets) or reach.shape != table.shape[:1]:
        raise ValueError(
            f"scores: got shape {table.shape} with drawn {reach.shape}; need (n, {len(budgets)}) and (n,); because each prompt has "
            "one score per budget"
        )
    if multiplicity not in ("per_budget", "bonferroni"):
        raise ValueError(f"multiplicity: got {multiplicity!r}; need 'per_budget' or 'bonferroni'; because those set the level of a budget")
    total = as_level(delta)
    level = total / len(budgets) if multiplicity == "bonferroni" else total
    counts = [int((reach >= k).sum()) for k in budgets]
    if counts[0] < 1:
        raise ValueError(f"drawn: got {counts} prompts at budgets {budgets}; need 1 at the first; because a threshold is a score")
    ranks = tuple(conformal_rank(n, level) for n in counts)
    q = tuple(conformal_quantile(table[reach >= k, j], level).value if counts[j] else inf for j, k in enumerate(budgets))
    where = f"all {len(budgets)} budgets" if multiplicity == "bonferroni" else "each fixed budget"
    attainable = tuple(rank <= n for rank, n in zip(ranks, counts, strict=True))
    short = [k for k, enough in zip(budgets, attainable, strict=True) if not enough]
    need = min_calibration_size(level)
    lacking = f"; budgets {short} have fewer than {need} prompts and never stop" if short else ""
    if short:
        warnings.warn(
            f"drawn: got {counts} prompts at budgets {budgets}; need {need} at each; because with fewer no threshold at level {level} is "
            f"finite, and nothing stops at budgets {short}",
            UserWarning,
            stacklevel=2,
        )
    return NestedThresholds(
        grid=budgets,
        q=q,
        ranks=ranks,
        n=tuple(counts),
        attainable=attainable,
        delta=total,
        level=level,
        multiplicity=multiplicity,
        guarantee=f"P(S_k <= q_k) >= 1 - {total} at {where}, for a prompt exchangeable with the calibration prompts, whose budgets were "
        f"assigned before sampling{lacking}",
    )
