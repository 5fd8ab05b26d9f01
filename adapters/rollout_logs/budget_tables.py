"""The tables of a budget audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .budgets import BudgetAudit
from .replays import RuleResult, Share
from .tables import Table, number, percents, share
from .verdict import per_thousand

__all__ = ["budget_tables"]


def _triple(x: Share | None) -> tuple[Any, ...]:
    return (None, None, None) if x is None else x


def _main_rules(rules: Sequence[RuleResult]) -> tuple[int, ...]:
    """The fixed sizes, and of each family the rules that save most."""
    keep = [i for i, r in enumerate(rules) if r.family in ("fixed", "signal", "risk control") or r.rule == "vote differs"]
    for family in ("first success", "answers"):
        mine = [i for i, r in enumerate(rules) if r.family == family and not r.note]
        keep += sorted(mine, key=lambda i: (not rules[i].bounded, -rules[i].savings_with_calibration))[:2]
    return tuple(sorted(keep))


def budget_tables(audit: BudgetAudit) -> dict[str, Table]:
    """``groups``, ``rules``, ``thresholds`` and ``drift``."""
    w = audit.waste
    counts = [
        ("groups", w.groups),
        ("prompts", w.prompts),
        ("steps", w.steps),
        ("rollouts", w.rollouts),
        ("groups without gradient", w.no_signal),
        ("solved by every response", w.all_passed),
        ("solved by none", w.all_failed),
        ("pass rate", round(w.pass_rate, 4)),
    ]
    out = {
        "groups": Table(
            "What was logged",
            ("what", "count"),
            tuple(counts),
            ("", ""),
            tuple((name, f"{value:,}") for name, value in counts),
            tuple(range(len(counts))),
            f"Group sizes: {', '.join(f'{size} x {count:,}' for size, count in w.sizes.items())}.",
        )
    }
    if audit.rules:
        triples = ("mean_k", "savings", "lost_groups", "wrong_stops", "with_variance")
        columns = ["rule", "family", "savings_with_calibration", "fixed_equal", "groups_per_1000"]
        columns += [f"{name}{end}" for name in triples for end in ("", "_low", "_high")]
        columns += ["differs_from_full_vote", "calibration_rollouts", "bounded", "note", "guarantee", "settings"]
        rows = [
            (
                r.rule,
                r.family,
                r.savings_with_calibration,
                r.fixed_equal,
                per_thousand(r),
                *(x for name in triples for x in _triple(getattr(r, name))),
                None if r.differs is None else r.differs[0],
                r.calibration_rollouts,
                r.bounded,
                r.note,
                r.guarantee,
                r.settings,
            )
            for r in audit.rules
        ]
        heads = ("rule", "mean k", "saved net %", "lost %", "wrong %", "mixed %", "fixed G", "per 1,000")
        shown = [
            (
                r.rule + ("" if r.bounded or r.family in ("fixed", "vote") else " †"),
                f"{r.mean_k[0]:.1f}",
                percents(r.savings_with_calibration),
                share(r.lost_groups),
                share(r.wrong_stops),
                share(r.with_variance),
                str(r.fixed_equal or ""),
                f"{per_thousand(r):.0f}",
            )
            for r in audit.rules
        ]
        out["rules"] = Table(
            f"Rules replayed at delta = {audit.delta}",
            tuple(columns),
            tuple(rows),
            heads,
            tuple(shown),
            _main_rules(audit.rules),
            _rules_caption(audit),
        )
        named = [(r.rule, name, value) for r in audit.rules for name, value in r.thresholds.items()]
        out["thresholds"] = Table(
            "Thresholds",
            ("rule", "threshold", "value"),
            tuple(named),
            ("rule", "thresholds"),
            tuple((r.rule, ", ".join(f"{k} = {number(v)}" for k, v in r.thresholds.items())) for r in audit.rules if r.thresholds),
            (),
            "A threshold of 1 or ∞ never stops (scores bounded by 1).",
        )
    if audit.windows:
        names = list(dict.fromkeys(name for w in audit.windows for name in w.thresholds))
        out["drift"] = Table(
            "Thresholds over the run",
            ("first_step", "last_step", "groups", "pass_rate", "no_signal", *names, "lost_by_first_clock"),
            tuple(
                (
                    w.first_step,
                    w.last_step,
                    w.groups,
                    w.pass_rate,
                    w.no_signal,
                    *(w.thresholds.get(n) for n in names),
                    None if w.lost_by_first_clock is None else w.lost_by_first_clock[0],
                )
                for w in audit.windows
            ),
            ("steps", "pass rate %", "no gradient %", *names, "lost by clock 1 %"),
            tuple(
                (
                    f"{w.first_step}-{w.last_step}",
                    percents(w.pass_rate),
                    percents(w.no_signal),
                    *(number(w.thresholds[n]) if n in w.thresholds else "" for n in names),
                    share(w.lost_by_first_clock),
                )
                for w in audit.windows
            ),
            tuple(range(len(audit.windows))),
            "Each window calibrates by itself; the last column judges the first window's signal clock on later ones.",
        )
    return out


def _rules_caption(audit: BudgetAudit) -> str:
    pace = f"every {audit.recalibrate_every} steps of {audit.prompts_per_step:.0f} prompts"
    return (
        f"{audit.n_calibration:,} prompts calibrate, {audit.n_evaluation:,} others are judged. Saved net: against {audit.k_max} for every "
        f"prompt; a calibration is charged {pace} at what it draws (first_success: until a success; nested: few prompts at the large "
        "budgets); signal and stream rules calibrate on training prompts, which is in mean k. Lost: prompts that the full group would have "
        "made mixed and the rule does not. Fixed G as good: the smallest fixed group with as many mixed groups. Per 1,000: groups with "
        f"variance per 1,000 rollouts. †: no bound on errors over the whole path.{_votes(audit)} Brackets: 95 % intervals over prompts."
    )


def _votes(audit: BudgetAudit) -> str:
    """What the label-free votes controlled."""
    told = [f"{r.rule}: {share(r.differs)} %" for r in audit.rules if r.differs is not None]
    if not told:
        return ""
    return f" Votes need no verifier and bound their difference from the vote of {audit.k_max}, here {'; '.join(told)} (wrong: not gold)."
