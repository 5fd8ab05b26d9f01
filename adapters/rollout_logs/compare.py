"""Two runs side by side: the same audit, the same settings."""

from __future__ import annotations

from typing import Any

from .replays import Share
from .report import Report
from .tables import Table
from .verdict import per_thousand

__all__ = ["compare_reports"]


def compare_reports(a: Report, b: Report) -> Table:
    """One row a figure: A, B, difference, and whether their 95 % intervals overlap (where there are intervals).

    Overlap is a cautious reading: intervals that do not overlap are surely apart; those that do may still differ.
    """
    rows: list[tuple[str, Any, Any, str]] = []

    def add(name: str, x: Any, y: Any) -> None:
        if isinstance(x, tuple) and isinstance(y, tuple):
            apart = x[2] < y[1] or y[2] < x[1]
            rows.append((name, x[0], y[0], "apart" if apart else "overlap"))
        elif x is not None or y is not None:
            rows.append((name, x, y, ""))

    if a.budgets is not None and b.budgets is not None:
        wa, wb = a.budgets.waste, b.budgets.waste
        add("groups", wa.groups, wb.groups)
        add("rollouts", wa.rollouts, wb.rollouts)
        add("pass rate", wa.pass_rate, wb.pass_rate)
        add("groups without gradient", _waste(wa), _waste(wb))
        add("rollouts without gradient", wa.rollout_share, wb.rollout_share)
        add("solved by every response", wa.all_passed / wa.groups, wb.all_passed / wb.groups)
        add("solved by none", wa.all_failed / wa.groups, wb.all_failed / wb.groups)
        for rule in a.budgets.rules:
            other = b.budgets.rule(rule.rule)
            if other is not None and rule.family in ("signal", "risk control"):
                add(f"{rule.rule}: saved, calibration counted", rule.savings_with_calibration, other.savings_with_calibration)
                add(f"{rule.rule}: lost groups", rule.lost_groups, other.lost_groups)
                add(f"{rule.rule}: groups with variance per 1,000", per_thousand(rule), per_thousand(other))
    if a.masks is not None and b.masks is not None:
        add("mean CARM score", a.masks.mean_d, b.masks.mean_d)
        add("drift that cancels", a.masks.cancelled, b.masks.cancelled)
        add("recommended tau", a.masks.recommended_tau, b.masks.recommended_tau)
        for masked in a.masks.rules:
            counterpart = b.masks.rule(masked.rule)
            if counterpart is not None:
                add(f"{masked.rule}: rejected", masked.rejected_share, counterpart.rejected_share)
    missing = [name for name in ("budgets", "masks") if (getattr(a, name) is None) != (getattr(b, name) is None)]
    caption = "".join(f"Only one of the two can be audited for {name}. " for name in missing)
    return Table(
        "A against B",
        ("figure", "a", "b", "difference", "intervals"),
        tuple((name, x, y, None if x is None or y is None else y - x, how) for name, x, y, how in rows),
        ("figure", "A", "B", "B - A", "95 % intervals"),
        tuple((name, _text(x), _text(y), "" if x is None or y is None else _text(y - x, sign=True), how) for name, x, y, how in rows),
        tuple(range(len(rows))),
        caption,
    )


def _waste(w: Any) -> Share:
    return (w.no_signal / w.groups, *w.interval)


def _text(x: Any, *, sign: bool = False) -> str:
    if x is None:
        return ""
    plus = "+" if sign else ""
    return format(x, f"{plus},") if isinstance(x, int) else format(x, f"{plus}.4g")
