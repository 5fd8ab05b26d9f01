"""One conformal threshold per budget of the grid, each on its own or all of them together."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf, isfinite
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from .level import Level, as_level, conformal_rank, min_calibration_size
from .simultaneous import max_rank, max_score, score_matrix, split_ecdf

__all__ = ["BudgetThresholds", "Multiplicity", "calibrate_thresholds"]

#: What the thresholds of the M budgets share one level by.
Multiplicity = Literal["per_budget", "bonferroni", "max_rank", "max_rank_uncorrected", "split_ecdf", "max_score"]


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
        Rank of each threshold among the scores of its budget; one more than there are is unattainable.
    n : int
        Calibration prompts.
    delta, level : Fraction
        Miscoverage asked for, and the level spent on a rank (``delta / (M T_c)`` under Bonferroni, ``delta / T_c`` under the joint rules).
    attainable : tuple of bool
        Whether a calibration score will do, ``rank <= n`` (``rank <= n_reference`` under ``split_ecdf``).
    score, multiplicity, guarantee : str
        The nonconformity score, the multiplicity rule, and what is guaranteed under which assumption.
    n_reference : int
        Prompts of the disjoint reference sample of ``split_ecdf``, whose ranks ``ranks`` then are; else 0.
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
    n_reference: int = 0

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
    scores: ArrayLike,
    grid: Sequence[int],
    delta: Level,
    multiplicity: Multiplicity = "per_budget",
    checkpoints: int = 1,
    score_name: str = "",
    *,
    reference: ArrayLike | None = None,
) -> BudgetThresholds:
    """A threshold at every budget, from the scores of the calibration prompts.

    ``per_budget``, ``bonferroni``: ``q_k`` is the ``ceil((n+1)(1-level))``-th smallest score at budget k, with ``level = delta`` or
    ``delta / (M * checkpoints)``.  ``max_rank``, ``split_ecdf``, ``max_score``: the joint rules of :mod:`conformal_core.simultaneous`,
    which use how the scores of one prompt move together over the budgets.

    Parameters
    ----------
    scores : array of float, shape (n, M)
        Score of the gold answer of each calibration prompt at each budget; ``inf`` is legitimate (never covered), NaN is not.
    grid : sequence of int, length M
        Budgets.
    delta : number
        Miscoverage, in (0, 1).
    multiplicity : {"per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score", "max_rank_uncorrected"}
        See *Guarantee*.  The last is the published form of max-rank, kept to be refuted: no guarantee.
    checkpoints : int
        Calibrations ``T_c`` over which all of them are to hold together; each then has ``delta / T_c``.  Not with ``"per_budget"``.
    score_name : str
        Recorded in the result.
    reference : array of float, shape (m, M)
        Scores of other prompts, for ``"split_ecdf"`` alone.

    Returns
    -------
    BudgetThresholds
        *Guarantee*, for a prompt exchangeable with the calibration prompts and a policy that does not depend on them:
        ``per_budget``: ``P(S_k <= q_k) >= 1 - delta`` at each fixed ``k``; at a budget chosen from the responses only
        ``P(miss) <= M delta``.  ``bonferroni`` (C-GRPO, Thm 5), ``max_rank``, ``split_ecdf``, ``max_score``:
        ``P(S_k <= q_k for every k) >= 1 - delta``, so at any budget however chosen.  Over several checkpoints the same holds jointly, by
        the union bound, only if no policy in the sequence depends on the calibration prompts: thresholds that steer training make the
        next policy depend on them, and then fresh calibration prompts are needed at every checkpoint.

    Raises
    ------
    ValueError
        If shapes, grid, level or checkpoints are out of range, a score is NaN, or ``reference`` is given to or missing from a rule.

    Warns
    -----
    UserWarning
        If no threshold is attainable: all are ``inf`` and nothing can stop; the message names the ``n`` that would do.

    Examples
    --------
    >>> import numpy as np
    >>> t = calibrate_thresholds(np.linspace(0.01, 1, 100)[:, None] * [1.0, 0.5], (2, 4), "0.1")
    >>> t.ranks, [round(q, 3) for q in t.q]
    ((91, 91), [0.91, 0.455])
    >>> calibrate_thresholds(np.zeros((19, 2)), (2, 4), "0.1", "bonferroni").level
    Fraction(1, 20)
    >>> calibrate_thresholds(np.linspace(0.01, 1, 100)[:, None] * [1.0, 0.5], (2, 4), "0.1", "max_rank").ranks
    (92, 92)
    """
    grid = check_grid(grid)
    s = score_matrix(scores)
    if s.shape[1] != len(grid):
        raise ValueError(f"scores: got shape {s.shape}; need (n, {len(grid)}); because there is one column per budget of {grid}")
    if multiplicity not in get_args(Multiplicity):
        raise ValueError(f"multiplicity: got {multiplicity!r}; need one of {get_args(Multiplicity)}; because those share a level")
    whole = isinstance(checkpoints, (int, np.integer)) and not isinstance(checkpoints, bool)
    if not whole or checkpoints < 1 or (checkpoints > 1 and multiplicity == "per_budget"):
        raise ValueError(f"checkpoints: got {checkpoints}; need 1, or more under a joint rule; because 'per_budget' divides no level")
    if (reference is not None) != (multiplicity == "split_ecdf"):
        raise ValueError(
            f"reference: got {'none' if reference is None else 'scores'}; need {'scores' if reference is None else 'none'}; "
            f"because {multiplicity!r} {'compares' if reference is None else 'does not compare'} scores with those of other prompts"
        )
    total, n, m, checkpoints = as_level(delta), len(s), 0, int(checkpoints)
    tests = checkpoints * (len(grid) if multiplicity == "bonferroni" else 1)
    level = total / tests
    last = n
    if multiplicity in ("per_budget", "bonferroni"):
        rank = conformal_rank(n, level)
        at = np.full(len(grid), inf) if rank > n else np.partition(s, rank - 1, axis=0)[rank - 1]
    else:
        if multiplicity == "split_ecdf":
            assert reference is not None
            last = m = len(score_matrix(reference, "reference"))
            joint = split_ecdf(reference, s, level)
        elif multiplicity == "max_score":
            joint = max_score(s, level)
        else:
            joint = max_rank(s, level, corrected=multiplicity == "max_rank")
        at, rank = joint
    if rank > last:
        _warn_unattainable(n, m, level, multiplicity, len(grid))
    return BudgetThresholds(
        grid=grid,
        q=tuple(at.tolist()),
        ranks=(rank,) * len(grid),
        n=n,
        delta=total,
        level=level,
        attainable=(rank <= last,) * len(grid),
        score=score_name,
        multiplicity=multiplicity,
        guarantee=_guarantee(multiplicity, total, len(grid), checkpoints),
        n_reference=m,
    )


def calibration_need(delta: Level, multiplicity: str, budgets: int, checkpoints: int = 1) -> int:
    """Fewest calibration prompts with which the rule can have a finite threshold (under ``max_rank`` if the budgets agree)."""
    factor = {"bonferroni": budgets, "max_rank": 2}.get(multiplicity, 1)
    return min_calibration_size(delta, budgets=factor, checkpoints=checkpoints)


def _warn_unattainable(n: int, m: int, level: Fraction, multiplicity: str, budgets: int) -> None:
    need = calibration_need(level, multiplicity if multiplicity == "max_rank" else "per_budget", budgets)
    if n < need:
        message = f"n: got {n} calibration prompts; need {need} at level {level} under {multiplicity!r}"
    elif multiplicity == "split_ecdf":
        message = f"reference: got {m} prompts; need one that scores at least as high at each budget as a share 1 - {level} of the others"
    else:
        enough = min_calibration_size(level, budgets=budgets + 1)
        message = f"n: got {n} calibration prompts; need up to {enough} for a joint rank at level {level}"
    warnings.warn(f"{message}; because below that every threshold is infinite and nothing can stop", UserWarning, stacklevel=3)


def _guarantee(multiplicity: str, delta: Fraction, budgets: int, checkpoints: int) -> str:
    fresh = "for a prompt exchangeable with the calibration prompts and a policy that does not depend on them"
    if multiplicity == "per_budget":
        return f"P(S_k <= q_k) >= 1 - {delta} at each fixed budget, P(miss) <= {budgets} * {delta} at an adaptive one, {fresh}"
    if multiplicity == "max_rank_uncorrected":
        return "none: the ranks leave the new prompt out, and joint coverage falls short of 1 - delta in finite samples"
    over = f" and {checkpoints} checkpoints, none of whose policies depends on the calibration prompts" if checkpoints > 1 else ""
    return f"P(S_k <= q_k at all {budgets} budgets{over}) >= 1 - {delta}, at any adaptive budget, {fresh}"
