"""Tables: numbers for programs, text for people, one definition for console, HTML, CSV and pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .budgets import BudgetAudit, RuleResult, Share
from .masks import MaskAudit
from .verdict import per_thousand

__all__ = ["Table", "budget_tables", "mask_tables"]


@dataclass(frozen=True)
class Table:
    """A table: ``columns``, ``rows`` of numbers, ``shown`` rows of text under ``heads``, and which rows matter most (``main``)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    heads: tuple[str, ...]
    shown: tuple[tuple[str, ...], ...]
    main: tuple[int, ...]
    caption: str = ""

    def frame(self) -> Any:
        """As a ``pandas.DataFrame``."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(self.columns))

    def csv(self) -> str:
        """As CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return out.getvalue()


def _pct(x: float | None) -> str:
    return "" if x is None else f"{100 * x:.1f}"


def _share(x: Share | None) -> str:
    return "" if x is None else f"{100 * x[0]:.1f} [{100 * x[1]:.0f}, {100 * x[2]:.0f}]"


def _num(x: float) -> str:
    return "∞" if x == float("inf") else f"{x:.4g}"


def _triple(x: Share | None) -> tuple[Any, ...]:
    return (None, None, None) if x is None else x


def _main_rules(rules: Sequence[RuleResult]) -> tuple[int, ...]:
    """The fixed sizes, and of each family the rules that save most."""
    keep = [i for i, r in enumerate(rules) if r.family in ("fixed", "signal", "risk control")]
    for family in ("first success", "answers"):
        mine = [i for i, r in enumerate(rules) if r.family == family and not r.note]
        keep += sorted(mine, key=lambda i: -rules[i].savings_with_calibration)[:2]
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
        columns += [f"{name}{end}" for name in triples for end in ("", "_low", "_high")] + ["note", "guarantee"]
        rows = [
            (
                r.rule,
                r.family,
                r.savings_with_calibration,
                r.fixed_equal,
                per_thousand(r),
                *(x for name in triples for x in _triple(getattr(r, name))),
                r.note,
                r.guarantee,
            )
            for r in audit.rules
        ]
        heads = ("rule", "mean k", "saved net %", "lost %", "wrong %", "mixed %", "fixed G", "per 1,000")
        shown = [
            (
                r.rule,
                f"{r.mean_k[0]:.1f}",
                _pct(r.savings_with_calibration),
                _share(r.lost_groups),
                _share(r.wrong_stops),
                _share(r.with_variance),
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
            f"{audit.n_calibration:,} prompts calibrate, {audit.n_evaluation:,} others are judged. Saved net: against "
            f"{audit.k_max} for every prompt; calibration "
            f"is charged every {audit.recalibrate_every} steps of {audit.prompts_per_step:.0f} prompts (signal calibrates on "
            "the stream: its never-cut share "
            "is in mean k). Lost: prompts that the full group would have made mixed and the rule does not. Fixed G as good: "
            "the smallest fixed group "
            "with as many mixed groups. Per 1,000: groups with variance per 1,000 rollouts. Brackets: 95 % intervals over prompts.",
        )
        named = [(r.rule, name, value) for r in audit.rules for name, value in r.thresholds.items()]
        out["thresholds"] = Table(
            "Thresholds",
            ("rule", "threshold", "value"),
            tuple(named),
            ("rule", "thresholds"),
            tuple((r.rule, ", ".join(f"{k} = {_num(v)}" for k, v in r.thresholds.items())) for r in audit.rules if r.thresholds),
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
                    _pct(w.pass_rate),
                    _pct(w.no_signal),
                    *(_num(w.thresholds[n]) if n in w.thresholds else "" for n in names),
                    _share(w.lost_by_first_clock),
                )
                for w in audit.windows
            ),
            tuple(range(len(audit.windows))),
            "Each window calibrates by itself; the last column judges the first window's signal clock on later ones.",
        )
    return out


def mask_tables(audit: MaskAudit) -> dict[str, Table]:
    """``masks``, ``pairs``, ``sweep`` and ``responses``."""
    low, high = audit.band
    p = audit.paired
    sweep = [(t, a, b, c) for t, a, b, c in audit.sweep]
    return {
        "masks": Table(
            "What each mask rejects",
            (
                "rule",
                "rejected",
                "rejected_share",
                "rejected_token_share",
                "rewarded_share_of_rejected",
                "certified",
                "worst_kept",
                "guarantee",
            ),
            tuple(
                (r.rule, r.rejected, r.rejected_share, r.rejected_tokens, r.masked_correct, r.certified, r.worst_kept, r.guarantee)
                for r in audit.rules
            ),
            ("rule", "rejected %", "tokens %", "rewarded, of rejected %", "certified out of band %", "worst kept %"),
            tuple(
                (
                    r.rule,
                    _pct(r.rejected_share),
                    _pct(r.rejected_tokens),
                    _pct(r.masked_correct),
                    "none" if r.certified >= 1 else f"≤ {100 * r.certified:.2f}",
                    f"{100 * r.worst_kept:.2f}",
                )
                for r in audit.rules
            ),
            tuple(range(len(audit.rules))),
            f"Of {audit.responses:,} responses, {audit.tokens:,} tokens ({audit.empty:,} empty ones left out). Certified: the "
            "largest share of tokens outside "
            f"[{low:g}, {high:g}] in any response the rule keeps, in the worst case; none: it can be all of them. IcePop drops "
            "tokens, not responses.",
        ),
        "pairs": Table(
            "CARM against GeoMean",
            ("both", "only_carm", "only_geomean", "neither"),
            ((p.both, p.only_first, p.only_second, p.neither),),
            ("kept by both", "only CARM", "only GeoMean", "neither"),
            ((f"{p.both:,}", f"{p.only_first:,}", f"{p.only_second:,}", f"{p.neither:,}"),),
            (0,),
            f"Mean |log-ratio| {audit.mean_d:.4g} (CARM), absolute signed mean {audit.mean_geomean:.4g} (GeoMean): in the mean "
            f"response {100 * audit.cancelled:.1f} % cancels.",
        ),
        "sweep": Table(
            "Rejected at shared thresholds",
            ("tau", "carm", "geomean", "certified_by_carm"),
            tuple(sweep),
            ("tau", "CARM %", "GeoMean %", "certified by CARM %"),
            tuple((f"{t:g}", _pct(a), _pct(b), f"≤ {100 * c:.2f}") for t, a, b, c in sweep),
            tuple(range(len(sweep))),
        ),
        "responses": Table(
            "Responses to look at",
            ("why", "file", "row", "tokens", "d", "geomean", "reward"),
            tuple((e.why, e.file, e.row, e.length, e.d, e.geomean, e.reward if e.reward == e.reward else None) for e in audit.examples),
            ("why", "where", "tokens", "CARM", "GeoMean", "reward"),
            tuple(
                (
                    e.why,
                    f"{e.file.rsplit('/', 1)[-1]}:{e.row}",
                    f"{e.length:,}",
                    f"{e.d:.4f}",
                    f"{e.geomean:.4f}",
                    "" if e.reward != e.reward else f"{e.reward:g}",
                )
                for e in audit.examples
            ),
            tuple(range(min(8, len(audit.examples)))),
            "Scores in nats: compare with log tau.",
        ),
    }
