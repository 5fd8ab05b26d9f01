"""One conformal threshold per budget of the grid, with or without the Bonferroni factor that makes them hold together."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .level import Level, as_level, min_calibration_size
from .quantile import conformal_quantile

__all__ = ["BudgetThresholds", "calibrate_thresholds"]


def check_grid(grid: Sequence[int]) -> tuple[int, ...]:
    """The budget grid as a tuple of ints: strictly ascending, from 1 on, ``K_max >= 2``."""
    values = tuple(grid)
    whole = all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) for k in values)
    if not values or not whole or values[0] < 1 or values[-1] < 2 or any(a >= b for a, b in pairwise(values)):
        raise ValueError(
            f"grid: got {values!r}; need strictly ascending integers >= 1 that end at 2 or more; "
            "because a prompt moves up the grid, drawing responses until it stops"
        )
    return tuple(int(k) for k in values)


@dataclass(frozen=True)
class BudgetThresholds:
    """Thresholds ``q_k``, one per budget.

    Attributes
    ----------
    grid : tuple of int
        Budgets ``k_1 < ... < k_M``.
    q : tuple of float
        Thresholds in grid order, ``inf`` where the rank exceeds ``n``.  A budget with ``q >= 1`` never stops (scores bounded by 1).
    ranks : tuple of int
        Rank of each threshold among the ``n`` scores; ``n + 1`` is unattainable.
    n : int
        Calibration prompts.
    delta, level : Fraction
        Miscoverage asked for, and the level spent at each budget (``delta / (M T_c)`` under Bonferroni).
    attainable : tuple of bool
        Whether ``rank <= n``.
    score, multiplicity, guarantee : str
        The nonconformity score, the multiplicity rule, and what is guaranteed under which assumption.
    """

    grid: tuple[int, ...]
    q: tuple[float, ...]
    ranks: tuple[int, ...]
    n: int
    delta: Fraction
    level: Fraction
    attainable: tuple[bool, ...]
    score: str
    multiplicity: str
    guarantee: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; fractions as ``"p/q"``, an infinite threshold as ``"inf"`` (JSON has no infinity)."""
        fields = vars(self) | {name: list(getattr(self, name)) for name in ("grid", "ranks", "attainable")}
        return fields | {"q": [q if isfinite(q) else str(q) for q in self.q], "delta": str(self.delta), "level": str(self.level)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BudgetThresholds:
        """Inverse of :meth:`to_json`, bit for bit."""
        d = dict(data)
        d |= {name: tuple(d[name]) for name in ("grid", "ranks", "attainable")}
        d |= {"q": tuple(float(q) for q in d["q"]), "delta": Fraction(d["delta"]), "level": Fraction(d["level"])}
        return cls(**d)


def calibrate_thresholds(
    scores: NDArray[np.float64],
    grid: Sequence[int],
    delta: Level,
    multiplicity: Literal["per_budget", "bonferroni"] = "per_budget",
    checkpoints: int = 1,
    score_name: str = "",
) -> BudgetThresholds:
    """Split-conformal threshold at every budget: ``q_k`` = the ``ceil((n+1)(1-level))``-th smallest score at budget ``k``.

    Parameters
    ----------
    scores : array of float, shape (n, M)
        Score of the gold answer of each calibration prompt at each budget; ``inf`` is legitimate (never covered), NaN is not.
    grid : sequence of int, length M
        Budgets.
    delta : number
        Miscoverage, in (0, 1).
    multiplicity : {"per_budget", "bonferroni"}
        ``level = delta``, or ``level = delta / (M * checkpoints)`` (C-GRPO, Thm 5).
    checkpoints : int
        Calibrations ``T_c`` that share one bonferroni budget.
    score_name : str
        Recorded in the result.

    Returns
    -------
    BudgetThresholds
        *Guarantee*, for a prompt exchangeable with the calibration prompts and a policy that does not depend on them:
        ``per_budget``: ``P(S_k <= q_k) >= 1 - delta`` at each fixed ``k``; at a budget chosen from the responses only
        ``P(miss) <= M delta``.  ``bonferroni``: ``P(S_k <= q_k for every k) >= 1 - delta``, so at any budget however chosen.

    Raises
    ------
    ValueError
        If shapes, grid, level or checkpoints are out of range, or a score is NaN.

    Warns
    -----
    UserWarning
        If ``n`` is too small for the Bonferroni level: every threshold is then ``inf``; the message names the ``n`` that would do.

    Examples
    --------
    >>> import numpy as np
    >>> t = calibrate_thresholds(np.linspace(0.01, 1, 100)[:, None] * [1.0, 0.5], (2, 4), "0.1")
    >>> t.ranks, [round(q, 3) for q in t.q]
    ((91, 91), [0.91, 0.455])
    >>> calibrate_thresholds(np.zeros((19, 2)), (2, 4), "0.1", "bonferroni").level
    Fraction(1, 20)
    """
    grid = check_grid(grid)
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] != len(grid):
        raise ValueError(f"scores: got shape {scores.shape}; need (n, {len(grid)}); because there is one column per budget of {grid}")
    if multiplicity not in ("per_budget", "bonferroni"):
        raise ValueError(f"multiplicity: got {multiplicity!r}; need 'per_budget' or 'bonferroni'; because those set the level of a budget")
    if not isinstance(checkpoints, (int, np.integer)) or checkpoints < 1 or (checkpoints > 1 and multiplicity != "bonferroni"):
        raise ValueError(f"checkpoints: got {checkpoints}; need 1, or more under 'bonferroni'; because only that divides the level")
    total = as_level(delta)
    tests = len(grid) * checkpoints if multiplicity == "bonferroni" else 1
    level = total / tests
    columns = [conformal_quantile(scores[:, j], level) for j in range(len(grid))]
    n = int(scores.shape[0])
    if multiplicity == "bonferroni" and not columns[0].attainable:
        need = min_calibration_size(total, budgets=len(grid), checkpoints=checkpoints)
        warnings.warn(
            f"n: got {n} calibration prompts; need {need} for level {level} = {total}/({len(grid)} budgets x {checkpoints} checkpoints); "
            "because below that every threshold is infinite and nothing can stop",
            UserWarning,
            stacklevel=2,
        )
    fresh = "for a prompt exchangeable with the calibration prompts and a policy that does not depend on them"
    if multiplicity == "bonferroni":
        guarantee = f"P(S_k <= q_k at all {tests} budgets and checkpoints) >= 1 - {total}, at any adaptive budget, {fresh}"
    else:
        guarantee = f"P(S_k <= q_k) >= 1 - {total} at each fixed budget, P(miss) <= {len(grid)} * {total} at an adaptive one, {fresh}"
    return BudgetThresholds(
        grid=grid,
        q=tuple(float(c.value) for c in columns),
        ranks=tuple(int(c.rank) for c in columns),
        n=n,
        delta=total,
        level=level,
        attainable=tuple(bool(c.attainable) for c in columns),
        score=score_name,
        multiplicity=multiplicity,
        guarantee=guarantee,
    )
