"""What calibrated budgets would have drawn, saved and lost on these logs.  Every number comes from ``conformal_core``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from conformal_core import ReplayReport, SignalBudget, as_level, k_mix, min_calibration_size, uniforms

from .drift import Window, windows_of
from .groups import Groups, one_per_prompt
from .replays import RuleResult, replay_rules
from .waste import Waste, waste_of

__all__ = ["BudgetAudit", "audit_budgets", "budget_grid", "check_settings"]


@dataclass(frozen=True)
class BudgetAudit:
    """The answer of ``rollout-audit budgets``."""

    waste: Waste
    k_max: int
    grid: tuple[int, ...]
    delta: str
    n_calibration: int
    n_evaluation: int
    recalibrate_every: int
    prompts_per_step: float
    rules: tuple[RuleResult, ...] = ()
    windows: tuple[Window, ...] = ()
    fixed_curve: tuple[float, ...] = ()
    unknown: tuple[str, ...] = ()
    reports: Mapping[str, ReplayReport] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values (without the per-prompt replay reports)."""
        return asdict(replace(self, reports={}))

    def rule(self, name: str) -> RuleResult | None:
        """The result of a rule by its name."""
        return next((r for r in self.rules if r.rule == name), None)

    @property
    def rivals(self) -> tuple[RuleResult, ...]:
        """Fixed group sizes."""
        return tuple(r for r in self.rules if r.family == "fixed")

    @property
    def calibrated(self) -> tuple[RuleResult, ...]:
        """Everything else."""
        return tuple(r for r in self.rules if r.family != "fixed")

    def best(self) -> RuleResult | None:
        """The calibrated rule that saves most, calibration counted, among those that bound an error."""
        return max((r for r in self.calibrated if r.bounded), key=lambda r: r.savings_with_calibration, default=None)


def budget_grid(k_max: int) -> tuple[int, ...]:
    """Powers of two from 2, and ``k_max``.

    >>> budget_grid(32), budget_grid(12)
    ((2, 4, 8, 16, 32), (2, 4, 8, 12))
    """
    grid = [k for k in (2**i for i in range(1, 16)) if k < k_max]
    return (*grid, k_max)


def _usable_width(groups: Groups, asked: int | None) -> int:
    """The largest group size that 95 % of the groups have, at most ``asked``."""
    if asked is not None:
        return asked
    ordered = np.sort(groups.size)
    return int(ordered[int(0.05 * ordered.size)])


def check_settings(
    delta: str = "0.1",
    *,
    k_max: int | None = None,
    grid: Sequence[int] | None = None,
    n_calibration: int = 200,
    recalibrate_every: int = 50,
    max_groups: int = 50_000,
    **_: Any,
) -> None:
    """``ValueError`` for settings of :func:`audit_budgets` that are out of range, before anything is read."""
    as_level(delta)
    counted = {"k_max": (k_max, 2), "n_calibration": (n_calibration, 1), "recalibrate_every": (recalibrate_every, 1)}
    for name, (value, least) in (counted | {"max_groups": (max_groups, 2)}).items():
        if value is not None and value < least:
            raise ValueError(f"{name}: got {value}; need {least} or more; because it counts responses, prompts, steps or groups")
    if grid is not None:
        SignalBudget(tuple(grid), delta=delta)
    if grid is not None and k_max is not None and tuple(grid)[-1] != k_max:
        raise ValueError(f"k_max: got {k_max} with a grid to {tuple(grid)[-1]}; need one of the two; because a grid ends at k_max")


def audit_budgets(
    groups: Groups,
    *,
    delta: str = "0.1",
    k_max: int | None = None,
    grid: Sequence[int] | None = None,
    n_calibration: int = 200,
    recalibrate_every: int = 50,
    max_groups: int = 50_000,
    windows: int = 6,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> BudgetAudit:
    """Replay every rule on the groups: one half of the prompts calibrates, the other is judged.

    Parameters
    ----------
    groups : Groups
    delta : str
        Miscoverage, exact as written.
    k_max, grid : optional
        Largest budget (default: the size 95 % of the groups have) and the budgets (default: powers of two).
    n_calibration : int
        Calibration prompts used, at most half of all, as a trainer would.
    recalibrate_every : int
        Steps between calibrations, over which their cost is spread.
    max_groups : int
        Above it, a keyed random draw of the evaluation groups is replayed (memory stays bounded); counts of waste are of all.
    windows : int
        Windows of steps for the drift of thresholds.
    seed : int
        Key of the split.

    Raises
    ------
    ValueError
        If the level or grid is out of range.
    """
    check_settings(delta, k_max=k_max, grid=grid, n_calibration=n_calibration, recalibrate_every=recalibrate_every, max_groups=max_groups)
    waste = waste_of(groups)
    width = _usable_width(groups, k_max)
    unknown: list[str] = []
    chosen = tuple(grid) if grid else budget_grid(max(width, 2))
    width = chosen[-1] if grid else width
    fits = np.flatnonzero(groups.size >= width)
    per_step = groups.n / max(waste.steps, 1)
    empty = BudgetAudit(waste, width, chosen, str(delta), 0, 0, recalibrate_every, per_step)
    if width < 2 or fits.size < 2:
        unknown.append(
            f"What another budget would do: {int((groups.size >= max(width, 2)).sum()):,} of {groups.n:,} groups hold {max(width, 2)} "
            f"responses (sizes {dict(waste.sizes)})."
        )
        return replace(empty, unknown=tuple(unknown))
    if fits.size < groups.n or groups.size.max() > width:
        unknown.append(
            f"What happens beyond {width} responses: the replay uses the first {width} of the {fits.size:,} groups that have them "
            f"(of {groups.n:,}; sizes {dict(waste.sizes)})."
        )
    rows = fits
    if waste.prompts < groups.n:
        rows = one_per_prompt(groups, fits, seed)
        if rows.size < fits.size:
            groups.intake.note(
                f"{fits.size:,} groups come from {rows.size:,} prompts: one group of each, drawn at random, is replayed, so that prompts "
                "are exchangeable; waste is counted over all"
            )
    side = uniforms(groups.prompt[rows], seed=seed, stream="calibration half") < 0.5
    order = np.argsort(uniforms(groups.prompt[rows], seed=seed, stream="calibration draw"), kind="stable")
    calibration = rows[order[side[order]]][:n_calibration]
    evaluation = rows[order[~side[order]]][:max_groups]
    if evaluation.size < (~side).sum():
        groups.intake.note(f"{evaluation.size:,} of {int((~side).sum()):,} evaluation groups, drawn at random, are replayed (--max-groups)")
    if not calibration.size or not evaluation.size:
        unknown.append(f"What another budget would do: {rows.size} prompts cannot be split into calibration and evaluation.")
        return replace(empty, unknown=tuple(unknown))
    cal, table = groups.outcomes(calibration, width), groups.outcomes(np.sort(evaluation), width)
    need = min_calibration_size(delta)
    if cal.n < need:
        unknown.append(f"Calibrated rules at delta = {delta}: {cal.n} calibration prompts; need {need}.")
    if table.codes is None:
        unknown.append(
            "Answer-based rules (the C-GRPO paper's): no answers were found; name their column (--map answer=COLUMN) or --answer RULE."
        )
    elif groups.responses.gold is None:
        groups.intake.note("no gold answers: the most common accepted answer of a group stands for its gold")
    if not groups.responses.has_step:
        unknown.append("How thresholds drift over the run: the logs hold no step; each file counts as one step.")
    audit = replace(empty, n_calibration=cal.n, n_evaluation=table.n)
    pace = recalibrate_every * per_step
    rules, reports, refused = replay_rules(chosen, str(delta), cal, table, pace=pace, seed=seed, progress=progress)
    unknown += [f"What a rule would do with more calibration prompts: {why}." for why in refused]
    mixed = k_mix(table.passes)
    curve = tuple(float(((mixed > 0) & (mixed <= k)).mean()) for k in range(1, width + 1))
    return replace(
        audit,
        rules=tuple(rules),
        reports=reports,
        fixed_curve=curve,
        windows=windows_of(groups, fits, width, chosen, delta, windows, max_groups, seed),
        unknown=tuple(unknown),
    )
