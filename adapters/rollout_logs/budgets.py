"""What calibrated budgets would have drawn, saved and lost on these logs.  Every number comes from ``conformal_core``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import (
    APS,
    ConformalBudget,
    FirstSuccess,
    FixedBudget,
    MassAbove,
    Outcomes,
    ReleasedAPS,
    ReplayReport,
    RolloutPolicy,
    Score,
    SignalBudget,
    calibrate_thresholds,
    clopper_pearson,
    k_mix,
    min_calibration_size,
    released_cgrpo,
    replay,
    risk_control,
    uniforms,
)

from .groups import Groups, one_per_prompt

__all__ = ["BudgetAudit", "RuleResult", "Waste", "Window", "audit_budgets", "budget_grid", "waste_of"]

MULTIPLICITIES = ("per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score")
KNOBS = ("risk_control", "learn_then_test")
Share = tuple[float, float, float]  # estimate, low, high


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


@dataclass(frozen=True)
class RuleResult:
    """One rule replayed over the evaluation groups.

    Shares are of evaluation prompts, with the interval of :func:`conformal_core.replay`.  ``fixed_equal`` is the smallest fixed group size
    that keeps as many groups with variance.  ``savings_with_calibration`` charges the calibration prompts at the run's own pace.
    """

    rule: str
    family: str
    mean_k: Share
    savings: Share
    savings_with_calibration: float
    wrong_stops: Share | None
    lost_groups: Share
    with_variance: Share
    fixed_equal: int | None
    thresholds: Mapping[str, float]
    guarantee: str
    note: str = ""


@dataclass(frozen=True)
class Window:
    """Groups of consecutive steps: thresholds calibrated on them, and how the first window's signal clock errs on them."""

    first_step: int
    last_step: int
    groups: int
    pass_rate: float
    no_signal: float
    thresholds: Mapping[str, float]
    lost_by_first_clock: Share | None


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
        sound = [
            r for r in self.calibrated if r.family in ("signal", "risk control") or r.rule.endswith(("bonferroni", "max_rank", "max_score"))
        ]
        return max(sound, key=lambda r: r.savings_with_calibration, default=None)


def budget_grid(k_max: int) -> tuple[int, ...]:
    """Powers of two from 2, and ``k_max``.

    >>> budget_grid(32), budget_grid(12)
    ((2, 4, 8, 16, 32), (2, 4, 8, 12))
    """
    grid = [k for k in (2**i for i in range(1, 16)) if k < k_max]
    return (*grid, k_max)


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


def _usable_width(groups: Groups, asked: int | None) -> int:
    """The largest group size that 95 % of the groups have, at most ``asked``."""
    if asked is not None:
        return asked
    ordered = np.sort(groups.size)
    return int(ordered[int(0.05 * ordered.size)])


def audit_budgets(
    groups: Groups,
    *,
    delta: str = "0.1",
    k_max: int | None = None,
    grid: Sequence[int] | None = None,
    n_calibration: int = 200,
    recalibrate_every: int = 50,
    max_groups: int = 200_000,
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
            f"{dict(waste.sizes)})."
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
    rules, reports, refused = _replay_all(audit, cal, table, seed, progress)
    unknown += [f"What a rule would do with more calibration prompts: {why}." for why in refused]
    mixed = k_mix(table.passes)
    curve = tuple(float(((mixed > 0) & (mixed <= k)).mean()) for k in range(1, width + 1))
    return replace(
        audit,
        rules=tuple(rules),
        reports=reports,
        fixed_curve=curve,
        windows=_windows(groups, fits, width, chosen, delta, windows, max_groups, seed),
        unknown=tuple(unknown),
    )


def _scores(has_answers: bool) -> dict[str, Score]:
    named: dict[str, Score] = {"first_success": FirstSuccess()}
    if has_answers:
        named |= {"randomized": APS(), "inclusive": APS("inclusive"), "mass_above": MassAbove(), "released": ReleasedAPS()}
    return named


def _policies(
    audit: BudgetAudit, cal: Outcomes, seed: int, refused: list[str]
) -> dict[str, tuple[str, RolloutPolicy, Mapping[str, float], str, int]]:
    """``{rule: (family, policy, thresholds, guarantee, calibration rollouts)}``, calibrated."""
    grid, delta, k_max = audit.grid, audit.delta, audit.k_max
    out: dict[str, tuple[str, RolloutPolicy, Mapping[str, float], str, int]] = {}
    for k in grid:
        out[f"fixed G={k}"] = ("fixed", FixedBudget(k), {}, "", 0)
    full_cost = cal.n * k_max
    if cal.n >= min_calibration_size(delta):
        quarter = max(2, k_max // 4)
        even = (*range(quarter, k_max, quarter), k_max)
        for g in dict.fromkeys((grid, even)):
            clock = SignalBudget(g, delta=delta, window=max(cal.n, min_calibration_size(delta)), seed=seed)
            clock.calibrate(cal)
            name = f"signal {'-'.join(map(str, g))}"
            text = f"P(a prompt that would have become mixed by {k_max} is cut off) <= {delta}"
            out[name] = ("signal", clock, {key: value for key, value in clock.metrics().items() if key.startswith("f")}, text, 0)
    rules: list[tuple[str, str, dict[str, Any]]] = []
    for name, score in _scores(cal.codes is not None).items():
        family = "first success" if name == "first_success" else "answers"
        rules += [(f"{name} {m}", family, {"score": score, "multiplicity": m}) for m in MULTIPLICITIES]
    if cal.codes is not None:
        rules += [(m, "risk control", {"multiplicity": m}) for m in KNOBS]
    for name, family, arguments in rules:
        try:
            policy = ConformalBudget(grid, delta=delta, n_calibration=cal.n, seed=seed, **arguments)
            policy.calibrate(cal)
        except ValueError as error:
            refused.append(f"{name}: {error}")
            continue
        guarantee = "none: it stops on unanimity" if name.startswith("released") else str(getattr(policy.stop_rule, "guarantee", ""))
        out[name] = (family, policy, dict(policy.metrics()), guarantee, full_cost)
    if cal.codes is not None and cal.n > 1:
        paper = released_cgrpo(grid, n_calibration=cal.n, seed=seed)
        paper.calibrate(cal)
        out["released auto delta"] = (
            "answers",
            paper,
            dict(paper.metrics()),
            "none: delta and thresholds from the same prompts",
            full_cost,
        )
    return out


def _replay_all(
    audit: BudgetAudit, cal: Outcomes, table: Outcomes, seed: int, progress: Callable[[str, int, int], None] | None
) -> tuple[list[RuleResult], dict[str, ReplayReport], list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an unattainable level shows in the table
        refused: list[str] = []
        policies = _policies(audit, cal, seed, refused)
        mixed = k_mix(table.passes)
        results: list[RuleResult] = []
        reports: dict[str, ReplayReport] = {}
        for i, (name, (family, policy, thresholds, guarantee, cost)) in enumerate(policies.items(), 1):
            report = replay(policy, table)
            results.append(_result(name, family, report, thresholds, guarantee, cost, audit, mixed))
            reports[name] = report
            if progress is not None:
                progress(name, i, len(policies))
    return results, reports, refused


def _result(
    name: str,
    family: str,
    report: ReplayReport,
    thresholds: Mapping[str, float],
    guarantee: str,
    cost: int,
    audit: BudgetAudit,
    mixed: NDArray[np.int64],
) -> RuleResult:
    full = audit.k_max

    def share(field_name: str) -> Share:
        return (getattr(report, field_name) / report.n, *report.intervals[field_name])

    low, high = report.intervals["mean_k"]
    charged = cost / (audit.recalibrate_every * audit.prompts_per_step * full)
    equal = next((k for k in range(2, full + 1) if int(((mixed > 0) & (mixed <= k)).sum()) >= report.groups_with_variance), None)
    fixed = family == "fixed"
    lost = int((mixed > 0).sum()) - report.groups_with_variance if fixed else report.lost_groups
    idle = not fixed and report.early_stops == 0
    return RuleResult(
        rule=name,
        family=family,
        mean_k=(report.mean_k, low, high) if not fixed else (report.mean_k,) * 3,
        savings=(1 - report.mean_k / full, 1 - high / full, 1 - low / full) if not fixed else (1 - report.mean_k / full,) * 3,
        savings_with_calibration=1 - report.mean_k / full - charged,
        wrong_stops=None if family in ("fixed", "signal") else share("wrong_stops"),
        lost_groups=(lost / report.n, *clopper_pearson(lost, report.n)),
        with_variance=share("groups_with_variance"),
        fixed_equal=equal,
        thresholds=dict(thresholds),
        guarantee=guarantee,
        note="nothing stops early" if idle else "",
    )


def _windows(
    groups: Groups, fits: NDArray[np.int64], width: int, grid: tuple[int, ...], delta: str, count: int, max_groups: int, seed: int
) -> tuple[Window, ...]:
    """Thresholds over the run: each window of steps calibrated by itself."""
    need = max(2 * min_calibration_size(delta), 20)
    steps = np.unique(groups.step[fits])
    count = min(count, steps.size, fits.size // need)
    if count < 2:
        return ()
    found: list[Window] = []
    first: SignalBudget | None = None
    ordered = fits[np.argsort(groups.step[fits], kind="stable")]
    bounds = np.searchsorted(groups.step[ordered], steps[[i * steps.size // count for i in range(count)]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for a, b in zip(bounds, [*bounds[1:], ordered.size], strict=True):
            rows = ordered[a:b][: max_groups // count]
            table = groups.outcomes(rows, width)
            clock = SignalBudget(grid, delta=delta, calibration="offline", n_calibration=max(table.n, min_calibration_size(delta)))
            clock.calibrate(table)
            shown: dict[str, float] = {"signal f": float(clock.metrics()["f"])}
            if table.codes is not None:
                shown["lambda"] = float(risk_control(table, grid, delta).lam)
            u = uniforms(table.prompt_ids, seed=seed, stream="aps")
            score = APS() if table.codes is not None else FirstSuccess()
            q = calibrate_thresholds(score.gold_scores(table, grid, u), grid, delta)
            shown |= {f"q_{k}": float(x) for k, x in zip(grid, q.q, strict=True)}
            lost: Share | None = None
            if first is not None:
                report = replay(first, table)
                lost = (report.lost_groups / report.n, *report.intervals["lost_groups"])
            first = first or clock
            found.append(
                Window(
                    first_step=int(groups.step[rows[0]]),
                    last_step=int(groups.step[rows[-1]]),
                    groups=int(rows.size),
                    pass_rate=float(table.passes.mean()),
                    no_signal=float((~groups.signal[rows]).mean()),
                    thresholds=shown,
                    lost_by_first_clock=lost,
                )
            )
    return tuple(found)
