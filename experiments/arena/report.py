"""Tables and figures of a comparison: paired over seeds, every cost from the ledger."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from .rules import budget, mask
from .settings import Settings

__all__ = ["interval", "pass_at", "summary", "text", "write"]

COLUMNS = {
    "regime": "prompts",
    "label": "rule",
    "runs": "seeds",
    "lr": "learning rate",
    "pass1": "pass@1",
    "pass1_low": "low",
    "pass1_high": "high",
    "diff": "minus best fixed",
    "diff_low": "diff low",
    "diff_high": "diff high",
    "pass_k": "pass@k",
    "pool": "pass@1 on the pool",
    "generated": "responses drawn",
    "calibration_share": "calibration share",
    "mean_k": "mean k",
    "responses_per_update": "responses per update",
    "updates": "updates",
    "distinct": "distinct prompts",
    "signal": "groups with variance per response",
    "mass": "gradient mass per response",
    "wrong_stops": "wrong stops",
    "lost_groups": "lost groups",
    "masked": "masked",
    "generate": "generate s",
    "train": "train s",
    "calibrate": "calibrate s",
    "other": "other s",
    "cpu": "least CPU seconds per second",
}


def pass_at(counts: Sequence[int], n: int, k: int) -> float:
    """Unbiased pass@k from ``counts`` successes in ``n`` samples of each prompt."""
    return float(np.mean([1 - math.comb(n - c, k) / math.comb(n, k) for c in counts]))


def interval(x: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% Student interval over seeds; infinite with one seed."""
    from scipy.stats import t

    a = np.asarray(x, float)
    half = float(t.ppf(0.975, a.size - 1) * a.std(ddof=1) / math.sqrt(a.size)) if a.size > 1 else math.inf
    return float(a.mean()), float(a.mean() - half), float(a.mean() + half)


def label(rule: str, mask_key: str) -> str:
    return budget(rule).label + ("" if mask_key == "none" else f" + {mask(mask_key).label}")


def summary(s: Settings, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per regime and contestant, in the order of the settings."""
    final = [r for r in results if not r["run"]["tuning"]]
    rows = []
    for regime in s.regimes:
        scores: dict[tuple[str, str], dict[int, float]] = {}
        for r in final:
            if r["run"]["regime"] == regime:
                scores.setdefault((r["run"]["rule"], r["run"]["mask"]), {})[r["run"]["seed"]] = pass_at(r["test_counts"], s.eval_samples, 1)
        fixed = {key: float(np.mean(list(x.values()))) for key, x in scores.items() if key[0].startswith("fixed-") and key[1] == s.masks[0]}
        best = max(fixed, key=lambda key: fixed[key]) if fixed else None
        for key in product(s.rules, s.masks):
            mine = [r for r in final if (r["run"]["regime"], r["run"]["rule"], r["run"]["mask"]) == (regime, *key)]
            if mine:
                rows.append(_row(s, regime, key, mine, scores[key], None if best in (None, key) else scores[best]))  # type: ignore[index]
                rows[-1]["best_fixed"] = key == best
    return rows


def _row(
    s: Settings, regime: str, key: tuple[str, str], runs: list[dict[str, Any]], mine: dict[int, float], rival: dict[int, float] | None
) -> dict[str, Any]:
    def total(name: str) -> float:
        return float(sum(r["totals"][name] for r in runs))

    def event(name: str) -> str:
        pairs = [r["totals"]["audit"][name] for r in runs if name in r["totals"]["audit"]]
        return f"{sum(p[0] for p in pairs)}/{sum(p[1] for p in pairs)}" if pairs else ""

    seconds = total("seconds_total")
    drawn = total("generated") + total("calibration")
    updates = max(total("optimizer_steps"), 1)
    shared = sorted(set(mine) & set(rival)) if rival else []
    mean, low, high = interval(list(mine.values()))
    diff = interval([mine[x] - rival[x] for x in shared]) if rival and shared else (math.nan,) * 3
    lrs = sorted({r["run"]["lr"] for r in runs})
    return {
        "regime": regime,
        "rule": key[0],
        "mask": key[1],
        "label": label(*key),
        "runs": len(runs),
        "lr": "/".join(f"{x:g}" for x in lrs),
        "pass1": mean,
        "pass1_low": low,
        "pass1_high": high,
        "diff": diff[0],
        "diff_low": diff[1],
        "diff_high": diff[2],
        "pass_k": float(np.mean([pass_at(r["test_counts"], s.eval_samples, s.eval_samples) for r in runs])),
        "pool": float(np.mean([r["pool"] for r in runs])) if all("pool" in r for r in runs) else math.nan,
        "generated": drawn / len(runs),
        "calibration_share": total("calibration") / max(drawn, 1),
        "mean_k": total("generated") / max(total("prompts"), 1),
        "responses_per_update": total("generated") / updates,
        "updates": updates / len(runs),
        "distinct": float(np.mean([r["distinct_prompts"] for r in runs])),
        "signal": total("groups_with_variance") / max(drawn, 1),
        "mass": sum(r["mass"] for r in runs) / max(drawn, 1),
        "wrong_stops": event("wrong_stop"),
        "lost_groups": event("lost_group"),
        "masked": total("masked") / total("masked_of") if total("masked_of") else math.nan,
        **{phase: total(f"seconds_{phase}") / len(runs) for phase in ("generate", "train", "calibrate")},
        "other": (total("seconds_other") + total("seconds_reward")) / len(runs) if seconds else 0.0,
        "cpu": min((r["cpu_seconds"] / r["wall_seconds"] for r in runs if "cpu_seconds" in r), default=math.nan),
    }


def _cell(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        return f"{value:.4f}" if abs(value) < 2 else f"{value:,.0f}"
    return str(value)


def text(s: Settings, results: list[dict[str, Any]]) -> str:
    """The table and one sentence for each regime."""
    rows = summary(s, results)
    lines = []
    for regime in s.regimes:
        mine = sorted((r for r in rows if r["regime"] == regime), key=lambda r: -r["pass1"])
        if not mine:
            continue
        lines.append(f"{regime} prompts, {s.by} {s.amount:g} each:")
        for r in mine:
            gap = "  best fixed group" if r["best_fixed"] else ""
            if math.isfinite(r["diff"]):
                gap = f"  {r['diff']:+.4f} [{r['diff_low']:+.4f}, {r['diff_high']:+.4f}] against the best fixed group"
            lines.append(f"  {r['label']:<32} {r['pass1']:.4f}{gap}")
        lines += [verdict(mine), ""]
    return "\n".join(lines).rstrip()


def verdict(rows: list[dict[str, Any]]) -> str:
    """What wins in one regime, and whether the interval over seeds says so."""
    best = next((r for r in rows if r["best_fixed"]), None)
    if best is None:
        return "No fixed group took part, so nothing is said about gains."
    above = [r for r in rows if math.isfinite(r["diff_low"]) and r["diff_low"] > 0]
    below = [r for r in rows if math.isfinite(r["diff_high"]) and r["diff_high"] < 0]
    names = ", ".join(r["label"] for r in above) or "nothing"
    return (
        f"The best fixed group is {best['label']}; above it with a 95% interval over {best['runs']} seeds that excludes zero: {names}; "
        f"below it: {len(below)} of {len(rows) - 1}; the rest cannot be told from it.  The best fixed group was chosen after the fact, "
        "which favours it."
    )


def _csv(rows: list[dict[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*COLUMNS, "rule", "mask", "best_fixed"], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: (f"{v:.6g}" if isinstance(v, float) else v) for k, v in r.items()} for r in rows)
    return buffer.getvalue()


def _markdown(rows: list[dict[str, Any]]) -> str:
    names = [
        "regime",
        "label",
        "runs",
        "lr",
        "pass1",
        "diff",
        "diff_low",
        "diff_high",
        "pass_k",
        "pool",
        "mean_k",
        "calibration_share",
        "signal",
    ]
    names += ["mass", "updates", "responses_per_update", "lost_groups"] + (
        ["masked"] if any(math.isfinite(r["masked"]) for r in rows) else []
    )
    head = "| " + " | ".join(COLUMNS[n] for n in names) + " |\n|" + " --- |" * len(names)
    return "\n".join([head, *("| " + " | ".join(_cell(r[n]) for n in names) + " |" for r in rows)]) + "\n"


def _figure(rows: list[dict[str, Any]], regimes: Sequence[str]) -> Any:
    from matplotlib.figure import Figure

    fig = Figure(figsize=(4.8 * len(regimes) + 2.4, 0.34 * max(len(rows) // len(regimes), 4) + 1.6), layout="constrained")
    for i, regime in enumerate(regimes):
        ax = fig.add_subplot(1, len(regimes), i + 1)
        mine = sorted((r for r in rows if r["regime"] == regime), key=lambda r: r["pass1"])
        for y, r in enumerate(mine):
            colour = "#111111" if r["best_fixed"] else "#9aa0a6" if r["rule"].startswith("fixed-") else "#0072b2"
            low, high = (r["pass1_low"], r["pass1_high"]) if math.isfinite(r["pass1_low"]) else (r["pass1"], r["pass1"])
            ax.plot([low, high], [y, y], color=colour, lw=2)
            ax.plot(r["pass1"], y, "o", color=colour)
        ax.set_yticks(range(len(mine)), [r["label"] for r in mine], fontsize=8)
        ax.set_xlabel("pass@1 on sealed prompts, mean and 95% interval over seeds", fontsize=8)
        ax.set_title(f"{regime} prompts", fontsize=10, loc="left")
        ax.grid(axis="x", color="#e3e5e8")
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
    return fig


def _curves(s: Settings, results: list[dict[str, Any]]) -> Any:
    """Reward, entropy, gradient norm and masked share against steps, mean over seeds."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    names = {"reward": "reward", "entropy": "entropy", "grad_norm": "gradient norm", "mask/seq_masked_fraction": "masked share"}
    final = [r for r in results if not r["run"]["tuning"]]
    have = {k: v for k, v in names.items() if any(k in c for r in final for c in r["curves"])}
    if not have:
        return None
    fig = Figure(figsize=(9, 2.3 * len(have) + 0.8), layout="constrained")
    for i, (key, name) in enumerate(have.items()):
        ax = fig.add_subplot(len(have), 1, i + 1)
        for number, (rule, mask_key) in enumerate(product(s.rules, s.masks)):
            colour = colormaps["tab20"](2 * number % 20 + number // 10 % 2)  # the same in every panel, whoever is missing there
            runs = [r for r in final if (r["run"]["rule"], r["run"]["mask"], r["run"]["regime"]) == (rule, mask_key, s.regimes[0])]
            lines = [[(c["step"], c[key]) for c in r["curves"] if key in c] for r in runs]
            lines = [x for x in lines if x]
            if lines:
                grid = np.linspace(0, min(x[-1][0] for x in lines), 60)
                mean = np.mean([np.interp(grid, *zip(*x, strict=True)) for x in lines], 0)
                ax.plot(grid, mean, lw=1.3, color=colour, ls="-" if number < 10 else "--", label=label(rule, mask_key))
        ax.set_ylabel(name, fontsize=8)
    ax.set_xlabel("optimizer step", fontsize=8)
    fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    return fig


def write(s: Settings, results: list[dict[str, Any]], folder: Path) -> None:
    """``table.csv``, ``table.md``, ``pass1.png``, ``curves.png`` and a self-contained ``report.html``."""
    from jinja2 import Environment, FileSystemLoader

    rows = summary(s, results)
    (folder / "table.csv").write_text(_csv(rows), encoding="utf-8")
    (folder / "table.md").write_text(_markdown(rows), encoding="utf-8")
    figures = []
    captions = {
        "pass1": "Pass@1 on sealed prompts. Black: the best fixed group, chosen after the fact; grey: the other fixed groups.",
        "curves": f"Means over seeds, {s.regimes[0]} prompts.",
    }
    for name, fig in (("pass1", _figure(rows, s.regimes)), ("curves", _curves(s, results))):
        if fig is not None:
            fig.savefig(folder / f"{name}.png", dpi=130)
            data = base64.b64encode((folder / f"{name}.png").read_bytes()).decode()
            figures.append({"title": name, "caption": captions[name], "data": data})
    shown = {k: v for k, v in COLUMNS.items() if k != "regime" and any(_cell(r[k]) for r in rows)}
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("report.html.j2").render(
        s=s,
        columns=list(shown.values()),
        regimes=[
            {
                "name": regime,
                "verdict": verdict([r for r in rows if r["regime"] == regime]),
                "rows": [[_cell(r[k]) for k in shown] for r in rows if r["regime"] == regime],
            }
            for regime in s.regimes
            if any(r["regime"] == regime for r in rows)
        ],
        figures=figures,
        policies=sorted({(r["run"]["rule"], r["policy"], r["prompts_per_step"]) for r in results if not r["run"]["tuning"]}),
    )
    (folder / "report.html").write_text(page, encoding="utf-8")
