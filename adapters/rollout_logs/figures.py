"""Matplotlib figures of a report: rules, drift, rejection curves, drift of single responses as in the CARM paper's Figure 1."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from carm_core import cancellation_share, prefix_drift

from .budgets import BudgetAudit
from .examples import Example
from .mask_audit import MaskAudit
from .verdict import percent

if TYPE_CHECKING:
    from .report import Report

__all__ = ["all_figures", "drift_figure", "response_figure", "rules_figure", "sweep_figure"]

COLOURS = {
    "fixed": "#555555",
    "signal": "#0072b2",
    "first success": "#e69f00",
    "answers": "#cc79a7",
    "risk control": "#009e73",
    "vote": "#56b4e9",
}
_RED, _GREEN = "#c0392b", "#1e8449"


def _figure(height: float = 3.2) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.2, height))
    figure.subplots_adjust(left=0.12, right=0.87, top=0.97, bottom=0.5 / height)
    axes = figure.subplots()
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def rules_figure(audit: BudgetAudit) -> Figure:
    """Groups with variance against responses drawn: above the line of fixed sizes is better than any fixed size."""
    figure, axes = _figure(3.6)
    ks = np.arange(1, len(audit.fixed_curve) + 1)
    axes.plot(ks[1:], [100 * y for y in audit.fixed_curve[1:]], color=COLOURS["fixed"], linewidth=1.2, label="fixed G, every size")
    seen: set[str] = set()
    for r in audit.rules:
        if r.family == "fixed" or r.note:
            continue
        spent = audit.k_max * (1 - r.savings_with_calibration)
        label = None if r.family in seen else r.family
        seen.add(r.family)
        axes.plot(spent, 100 * r.with_variance[0], "o", color=COLOURS[r.family], markersize=5, alpha=0.75, label=label)
    axes.set_xlabel("responses a prompt, calibration counted")
    axes.set_ylabel("groups with variance, %")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return figure


def drift_figure(audit: BudgetAudit) -> Figure:
    """The signal clock and the share of groups without gradient over windows of the run."""
    figure, axes = _figure(2.8)
    x = [(w.first_step + w.last_step) / 2 for w in audit.windows]
    clock = [w.thresholds["signal f"] if np.isfinite(w.thresholds["signal f"]) else audit.k_max for w in audit.windows]
    axes.step(x, clock, where="mid", color=COLOURS["signal"], marker="o", markersize=4)
    axes.set_ylim(0, audit.k_max * 1.05)
    axes.set_xlabel("step")
    axes.set_ylabel("signal clock f, draws", color=COLOURS["signal"])
    other = axes.twinx()
    other.plot(x, [100 * w.no_signal for w in audit.windows], color=COLOURS["answers"], marker="s", markersize=4)
    other.set_ylim(0, 100)
    other.set_ylabel("no gradient, %", color=COLOURS["answers"])
    other.spines["top"].set_visible(False)
    return figure


def sweep_figure(audit: MaskAudit) -> Figure:
    """Rejection rates of CARM and GeoMean at shared thresholds (CARM paper, Figure 3 right)."""
    figure, axes = _figure(2.8)
    taus, carm, geomean, bound = zip(*audit.sweep, strict=True)
    axes.plot(taus, [100 * x for x in carm], marker="o", markersize=4, color=COLOURS["signal"], label="CARM rejects")
    axes.plot(taus, [100 * x for x in geomean], marker="o", markersize=4, color=COLOURS["first success"], label="GeoMean rejects")
    axes.plot(taus, [100 * x for x in bound], linestyle="--", color=COLOURS["fixed"], label="out of band, certified by CARM")
    axes.axvline(audit.recommended_tau, color=COLOURS["risk control"], linewidth=1, label=f"recommended {audit.recommended_tau:.4g}")
    axes.set_xlabel("tau")
    axes.set_ylabel("%")
    axes.legend(frameon=False, fontsize=8)
    return figure


def response_figure(example: Example) -> Figure:
    """Signed drift along one response: positive and negative log-ratio mass, and both scores of every prefix."""
    z = example.z.astype(np.float64)
    drift = prefix_drift(z, np.ones(z.size, np.bool_))
    t, up, down = drift.length, drift.positive, -drift.negative
    figure = Figure(figsize=(5.2, 3.8))
    figure.subplots_adjust(left=0.14, right=0.98, top=0.98, bottom=0.12, hspace=0.12)
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.fill_between(t, up, color=_RED, alpha=0.35, linewidth=0)
    top.fill_between(t, down, color=_GREEN, alpha=0.35, linewidth=0)
    top.plot(t, drift.signed, color="black", linewidth=1)
    top.set_ylabel("log-ratio mass")
    top.text(0.01, 0.93, f"+{up[-1]:.2f}", transform=top.transAxes, color=_RED, va="top", fontsize=8)
    top.text(0.01, 0.05, f"{down[-1]:.2f}", transform=top.transAxes, color=_GREEN, fontsize=8)
    bottom.plot(t, drift.absolute / t, color=COLOURS["signal"], linewidth=1.2, label="CARM of the prefix")
    bottom.plot(t, np.abs(drift.signed) / t, color=COLOURS["first success"], linewidth=1.2, label="GeoMean of the prefix")
    bottom.set_ylim(0, 1.6 * max(example.d, 1e-12) if z.size > 20 else None)
    bottom.set_xlabel("token")
    bottom.set_ylabel("nats")
    bottom.legend(frameon=False, fontsize=8, ncols=2)
    for axes in (top, bottom):
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def all_figures(report: Report) -> dict[str, Figure]:
    """``rules``, ``drift``, ``sweep`` and ``response-1``, ... as far as the report goes."""
    out: dict[str, Figure] = {}
    if report.budgets is not None and report.budgets.rules:
        out["rules"] = rules_figure(report.budgets)
        if report.budgets.windows:
            out["drift"] = drift_figure(report.budgets)
    if report.masks is not None:
        out["sweep"] = sweep_figure(report.masks)
        for i, example in enumerate(e for e in report.masks.examples if e.z.size > 1):
            out[f"response-{i + 1}"] = response_figure(example)
    return out


def svg_text(figure: Figure) -> str:
    """A figure as SVG with its text as text."""
    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def headline(example: Example) -> str:
    """One line about a response."""
    gone = float(cancellation_share(np.array(example.d), np.array(example.geomean)))
    return f"{example.length:,} tokens, CARM {example.d:.5f}, GeoMean {example.geomean:.5f}: {percent(gone)} of the mass cancels"
