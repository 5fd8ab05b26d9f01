"""Tables, figures and the HTML page of a demo, from the JSON files its arms left behind."""

from __future__ import annotations

import base64
import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Report", "load", "text_table", "verdict", "write"]

PHASES = ("generate", "reward", "train", "calibrate", "other")
_PHASE_COLOURS = {"generate": "#0072b2", "reward": "#cc79a7", "train": "#e69f00", "calibrate": "#d55e00", "other": "#b8bcc2"}
_STYLE = {
    "released": ("#d55e00", "s", "-"),
    "cgrpo": ("#0072b2", "D", "-"),
    "signal": ("#009e73", "o", "-"),
}
_FIXED_STYLE = (("#9aa0a6", "v", ":"), ("#5f6368", "^", "--"), ("#111111", "P", "-."))


@dataclass(frozen=True)
class Report:
    """The settings of a demo and the results of its arms, in running order."""

    settings: dict[str, Any]
    arms: list[dict[str, Any]]

    @property
    def k_max(self) -> int:
        return int(self.arms[0]["k_max"])

    def style(self, arm: dict[str, Any]) -> tuple[str, str, str]:
        """Colour, marker and line style of an arm, the same in every figure."""
        kind = arm["arm"]["kind"]
        if kind != "fixed":
            return _STYLE[kind]
        fixed = [a["arm"]["key"] for a in self.arms if a["arm"]["kind"] == "fixed"]
        return _FIXED_STYLE[fixed.index(arm["arm"]["key"]) % len(_FIXED_STYLE)]


def load(folder: Path) -> Report:
    """Read ``settings.json`` and every ``<arm>.json`` of a folder.

    Raises
    ------
    BadInput
        If the folder holds no results.
    """
    from .demo import BadInput, arms

    path = Path(folder) / "settings.json"
    if not path.is_file():
        raise BadInput(
            f"dir: got {folder}; need a folder with settings.json; because `python -m experiments demo` leaves its results there"
        )
    settings = json.loads(path.read_text())
    files = [Path(folder) / f"{a.key}.json" for a in arms(tuple(settings["grid"]))]
    results = [json.loads(f.read_text()) for f in files if f.is_file()]
    if not results:
        raise BadInput(f"dir: got {folder} with no arm's JSON; need at least one; because the report shows what the arms measured")
    return Report(settings, results)


# ------------------------------------------------------------------------------------------------------------ numbers


def mean_interval(x: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its normal 95% interval over independent entries (prompts, or steps): ``(mean, low, high)``."""
    a = np.asarray(x, float)
    half = 1.96 * a.std(ddof=1) / math.sqrt(a.size) if a.size > 1 else math.nan
    return float(a.mean()), float(a.mean() - half), float(a.mean() + half)


def savings(arm: dict[str, Any]) -> dict[str, float]:
    """Share of the responses of fixed K_max that the arm did not draw, without and with calibration counted."""
    t = arm["totals"]
    full = max(t["prompts"], 1) * arm["k_max"]
    return {"without": 1 - t["generated"] / full, "with": 1 - (t["generated"] + t["calibration"]) / full}


def audits(arm: dict[str, Any]) -> dict[str, tuple[int, int, float, float]]:
    """``{event: (occurred, trials, low, high)}`` with exact (Clopper-Pearson) 95% intervals."""
    from conformal_core import clopper_pearson

    out = {}
    for event, (x, n) in arm["totals"].get("audit", {}).items():
        low, high = clopper_pearson(int(x), int(n)) if n else (0.0, 1.0)
        out[event] = (int(x), int(n), float(low), float(high))
    return out


def measures(arm: dict[str, Any]) -> dict[str, Any]:
    """Everything the CSV holds about one arm, as plain numbers."""
    t, ev = arm["totals"], arm["evaluation"]
    updates = max(len(arm["history"]), 1)
    start, final = mean_interval(ev["start"]), mean_interval(ev["final"])
    gain = mean_interval(np.subtract(ev["final"], ev["start"]))
    saved = savings(arm)
    row: dict[str, Any] = {
        "rule": arm["arm"]["label"],
        "prompts_per_generation": arm["arm"]["prompts"],
        "generations": len(arm["history"]),
        "optimizer_steps": t["optimizer_steps"],
        "responses_per_generation": t["generated"] / updates,
        "prompts": t["prompts"],
        "mean_k": t["generated"] / max(t["prompts"], 1),
    }
    for name in ("generated", "kept", "trained", "calibration"):
        row[f"{name}_rollouts"] = t[name]
    for name in ("generated", "kept", "trained", "calibration"):
        if f"{name}_tokens" in t:
            row[f"{name}_tokens"] = t[f"{name}_tokens"]
    for phase in (*PHASES, "total"):
        row[f"seconds_{phase}"] = t.get(f"seconds_{phase}", 0.0)
    row["groups_with_variance"] = t["groups_with_variance"] / max(t["groups"], 1)
    row["masked_fraction"] = t["masked"] / t["masked_of"] if t["masked_of"] else math.nan
    row["tau"] = arm["tau"]
    row["certified_out_of_band"] = arm["certificate"]
    for event, (x, n, low, high) in audits(arm).items():
        row |= {f"{event}_count": x, f"{event}_trials": n, f"{event}_low": low, f"{event}_high": high}
    row |= {"savings_without_calibration": saved["without"], "savings_with_calibration": saved["with"]}
    for name, (m, low, high) in (("start_pass1", start), ("pass1", final), ("gain", gain)):
        row |= {name: m, f"{name}_low": low, f"{name}_high": high}
    return row


def verdict(data: Report) -> str:
    """In plain words: which rule is best at equal wall-clock, and whether that can be told apart from the best fixed group."""
    final = {a["arm"]["label"]: np.asarray(a["evaluation"]["final"], float) for a in data.arms}
    adaptive = [a["arm"]["label"] for a in data.arms if a["arm"]["kind"] != "fixed"]
    fixed = [a["arm"]["label"] for a in data.arms if a["arm"]["kind"] == "fixed"]
    best = max(final, key=lambda k: final[k].mean())
    text = f"The highest pass@1 after the same seconds is {best}'s, {_pct(final[best].mean())}."
    if not fixed or not adaptive:
        return text
    rival = max(fixed, key=lambda k: final[k].mean())
    challenger = max(adaptive, key=lambda k: final[k].mean())
    d, low, high = mean_interval(final[challenger] - final[rival])
    told = (
        "the interval holds 0, so the two cannot be told apart on these prompts"
        if low <= 0 <= high
        else f"so {challenger if d > 0 else rival} is ahead on these prompts"
    )
    text += (
        f" The best adaptive rule, {challenger}, differs from the best fixed group, {rival}, by {100 * d:+.1f} points "
        f"(95% interval {100 * low:+.1f} to {100 * high:+.1f}, paired over prompts): {told}."
    )
    small = [k for k in fixed if k != f"fixed G={data.k_max}"]
    if small and rival not in small:
        rival = max(small, key=lambda k: final[k].mean())
        d, low, high = mean_interval(final[challenger] - final[rival])
        text += f" Against the best small group, {rival}: {100 * d:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})."
    tied = [k for k in final if k != best and (lambda i: i[1] <= 0 <= i[2])(mean_interval(final[best] - final[k]))]
    text += f" Not told apart from {best}: {', '.join(tied)}." if tied else f" Every other rule is behind {best} by more than its interval."
    gained = {a["arm"]["label"]: mean_interval(np.subtract(a["evaluation"]["final"], a["evaluation"]["start"])) for a in data.arms}
    up, down = [k for k, i in gained.items() if i[1] > 0], [k for k, i in gained.items() if i[2] < 0]
    text += f" Better than the start model by more than the interval: {', '.join(up) or 'none'}; worse: {', '.join(down) or 'none'}."
    return (
        text + " One training seed: the intervals cover the choice of held-out prompts and sampling, not the luck of a training run, nor "
        "that the two compared were picked for being best."
    )


# -------------------------------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Row:
    """One line of the printed table; without cells it is a heading."""

    name: str
    cells: tuple[str, ...] = ()


def rows(data: Report) -> list[Row]:
    """The table as printed: one line per measure, one column per rule."""
    m = [measures(a) for a in data.arms]
    t = [a["totals"] for a in data.arms]

    def line(name: str, show: Any) -> Row:
        return Row(name, tuple(show(i) for i in range(len(m))))

    def tokens(name: str) -> Row:
        return line(
            f"{name} rollouts / tokens" if f"{name}_tokens" in t[0] else f"{name} rollouts",
            lambda i: f"{_si(t[i][name])} / {_si(t[i][f'{name}_tokens'])}" if f"{name}_tokens" in t[i] else _si(t[i][name]),
        )

    out = [Row("held-out pass@1, 95% interval over prompts")]
    out += [
        line("pass@1", lambda i: f"{_pct(m[i]['pass1'])} ± {_points(m[i], 'pass1')}"),
        line("start model", lambda i: f"{_pct(m[i]['start_pass1'])} ± {_points(m[i], 'start_pass1')}"),
        line("gain, paired (points)", lambda i: f"{100 * m[i]['gain']:+.1f} ± {_points(m[i], 'gain')}"),
        Row("rollouts / tokens"),
        *(tokens(name) for name in ("generated", "kept", "trained", "calibration")),
        Row("budget"),
        line("mean k", lambda i: f"{m[i]['mean_k']:.1f}"),
        line(f"saved against G={data.k_max}", lambda i: _pct(m[i]["savings_without_calibration"])),
        line("  calibration counted", lambda i: _pct(m[i]["savings_with_calibration"])),
        line("responses per update", lambda i: f"{m[i]['responses_per_generation']:.0f}"),
        line("prompts per update", lambda i: str(m[i]["prompts_per_generation"])),
        line("generations / steps", lambda i: f"{m[i]['generations']} / {m[i]['optimizer_steps']}"),
        line("groups with variance", lambda i: _pct(m[i]["groups_with_variance"])),
    ]
    events: list[str] = []
    for a in data.arms:
        events += [e for e in a["totals"].get("audit", {}) if e not in events]
    if events:
        out.append(Row("error events, exact 95% interval"))
    exact = [audits(a) for a in data.arms]
    for e in events:
        name = _words(e)
        out.append(line(name, lambda i, e=e: f"{exact[i][e][0]}/{exact[i][e][1]}" if e in exact[i] else "-"))
        out.append(
            line("  rate [interval]", lambda i, e=e: _rate(exact[i][e]) if e in exact[i] and exact[i][e][1] else "-"),
        )
    out += [
        Row(f"CARM mask, tau {data.arms[0]['tau']:g}"),
        line("masked responses", lambda i: "-" if math.isnan(m[i]["masked_fraction"]) else _pct(m[i]["masked_fraction"])),
        line("certified out-of-band", lambda i: f"<= {_pct(m[i]['certified_out_of_band'])}"),
        Row("seconds"),
        *(line(p, lambda i, p=p: f"{m[i][f'seconds_{p}']:.1f}") for p in (*PHASES, "total")),
    ]
    return out


def text_table(data: Report) -> str:
    """The table for a terminal: aligned, headings on lines of their own."""
    lines = rows(data)
    labels = [_short(a["arm"]["label"]) for a in data.arms]
    first = max(len(r.name) + 2 for r in lines if r.cells)
    widths = [max(len(label), *(len(r.cells[i]) for r in lines if r.cells)) for i, label in enumerate(labels)]
    head = " " * first + "".join(f"  {x:>{w}}" for x, w in zip(labels, widths, strict=True))
    out = [head, "-" * len(head)]
    for r in lines:
        out.append(
            "  " + f"{r.name:<{first - 2}}" + "".join(f"  {x:>{w}}" for x, w in zip(r.cells, widths, strict=True)) if r.cells else r.name
        )
    return "\n".join(out)


def markdown_table(data: Report) -> str:
    """The same table in Markdown."""
    labels = [a["arm"]["label"] for a in data.arms]
    out = ["| | " + " | ".join(labels) + " |", "|---|" + "---:|" * len(labels)]
    for r in rows(data):
        cells = r.cells or ("",) * len(labels)
        name = r.name.strip() if r.cells else f"**{r.name}**"
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def _pct(x: float) -> str:
    return f"{100 * x:.1f}%"


def _points(row: dict[str, Any], name: str) -> str:
    return f"{100 * (row[f'{name}_high'] - row[name]):.1f}"


def _rate(a: tuple[int, int, float, float]) -> str:
    return f"{100 * a[0] / a[1]:.1f}% [{100 * a[2]:.1f}, {100 * a[3]:.1f}]"


def _si(x: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(x) >= 10 * size or (unit == "M" and abs(x) >= size):
            return f"{x / size:.1f}{unit}"
    return f"{x:.0f}"


def _words(event: str) -> str:
    return event.split("/")[-1].replace("_", " ")


def _short(label: str) -> str:
    return label.replace("C-GRPO risk control", "C-GRPO risk c.")


# ------------------------------------------------------------------------------------------------------------ figures


def _clock(arm: dict[str, Any]) -> np.ndarray:
    """Training seconds at the end of each generation step."""
    ends = [*(float(h["clock"]) for h in arm["history"][1:]), float(arm["totals"]["seconds_total"])]
    return np.array(ends[: len(arm["history"])])


def _axes(data: Report, width: float = 8.6, height: float = 4.4) -> Any:
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), dpi=130, layout="constrained")
    ax = fig.add_subplot()
    _clean(ax)
    return fig, ax


def _clean(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e3e5e8", lw=0.7)
    ax.set_axisbelow(True)


def _legend(fig: Any, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)


def budget_figure(data: Report) -> Any:
    """Mean k over training time, per twentieth of the run."""
    fig, ax = _axes(data)
    for arm in data.arms:
        h = arm["history"]
        if not h:
            continue
        colour, _, ls = data.style(arm)
        clock, k = _clock(arm), np.array([float(x["mean_k"]) for x in h])
        chunks = np.array_split(np.arange(len(h)), max(1, min(20, len(h) // 4)))
        x = [clock[c].mean() for c in chunks]
        stats = np.array([mean_interval(k[c]) for c in chunks])
        ax.plot(x, stats[:, 0], color=colour, ls=ls, lw=1.9, label=arm["arm"]["label"])
        ax.fill_between(x, stats[:, 1], stats[:, 2], color=colour, alpha=0.16, lw=0)
    ax.set(xlabel="training time, calibration included (s)", ylabel="responses per prompt, mean k", title="Budget over time")
    ax.set_xlim(left=0)
    ax.set_yscale("log", base=2)
    ticks = [k for k in (2, 4, 8, 16, 32, 64, 128) if k <= data.k_max]
    ax.set_yticks(ticks, [str(t) for t in ticks])
    ax.set_ylim(max(1, min(ticks) * 0.9), data.k_max * 1.15)
    _legend(fig, ax)
    return fig


_THRESHOLD = re.compile(r"(?:^|/)(?:q|threshold)[_/]?(\d+)$")
_ONE = {"lambda": "lambda", "lam": "lambda", "f": "futility f", "futility": "futility f", "threshold": "threshold", "q": "q"}


_THRESHOLD_AXIS = {"released": "threshold q (answer mass)", "cgrpo": "lambda (top answer's share)", "signal": "draws before giving up, f"}


def _threshold_series(arm: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every threshold the policy logged, by its name in the legend; steps without it are NaN."""
    names: dict[str, str] = {}
    for h in arm["history"]:
        for key in h.get("policy", {}):
            hit = _THRESHOLD.search(key)
            last = key.split("/")[-1]
            if hit:
                names[key] = f"q at k={hit[1]}"
            elif last in _ONE:
                names[key] = _ONE[last]
    ordered = sorted(names, key=lambda n: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", names[n])])
    return {names[n]: np.array([float(h.get("policy", {}).get(n, math.nan)) for h in arm["history"]]) for n in ordered}


def thresholds_figure(data: Report) -> Any:
    """One panel per adaptive rule: its thresholds over training time; infinite ones at the top."""
    from matplotlib.figure import Figure

    adaptive = [a for a in data.arms if a["arm"]["kind"] != "fixed"]
    fig = Figure(figsize=(4.0 * max(len(adaptive), 1), 3.9), dpi=130, layout="constrained")
    for i, arm in enumerate(adaptive):
        ax = fig.add_subplot(1, len(adaptive), i + 1)
        _clean(ax)
        series = {k: v for k, v in _threshold_series(arm).items() if not np.isnan(v).all()}
        finite = np.concatenate([v[np.isfinite(v)] for v in series.values()]) if series else np.array([])
        low, high = (0.0, float(finite.max())) if finite.size else (0.0, 1.0)
        high = max(high, float(data.k_max) if arm["arm"]["kind"] == "signal" else 1.0)
        top = high * 1.12
        infinite, clock = False, _clock(arm)
        for j, (name, v) in enumerate(series.items()):
            infinite |= bool(np.isinf(v).any())
            shown = np.where(np.isinf(v), top * (1 - 0.006 * j), v)
            colour = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#111111")[j % 7]
            ax.step(clock, shown, where="post", color=colour, lw=2.4 - 0.28 * min(j, 5), ls=("-", "--", "-.", ":")[j % 4], label=name)
        if infinite:
            ax.axhline(top, color="#9aa0a6", lw=0.8, zorder=0)
            ax.text(1.0, top, " ∞: never stops", transform=ax.get_yaxis_transform(), ha="right", va="bottom", fontsize=8, color="#454a50")
        if not series:
            ax.text(0.5, 0.5, "no finite threshold yet", transform=ax.transAxes, ha="center", color="#454a50")
        ax.set(xlabel="training time (s)", title=arm["arm"]["label"], xlim=(0, None), ylim=(low, high * (1.24 if infinite else 1.06)))
        ax.set_ylabel(_THRESHOLD_AXIS[arm["arm"]["kind"]])
        if series:
            ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.19), ncols=3)
    fig.suptitle("Thresholds over time")
    return fig


def savings_figure(data: Report) -> Any:
    """Responses saved against fixed K_max, with and without calibration, intervals over generation steps."""
    fig, ax = _axes(data)
    shown = [a for a in data.arms if not (a["arm"]["kind"] == "fixed" and a["arm"]["k"] == data.k_max)]
    y = np.arange(len(shown))
    for offset, which, colour in ((-0.19, "without", "#56b4e9"), (0.19, "with", "#0b4f7d")):
        value = np.array([savings(a)[which] for a in shown]) * 100
        half = []
        for a in shown:
            k = [float(h["mean_k"]) for h in a["history"]]
            m, _, high = mean_interval(k) if len(k) > 1 else (0.0, 0.0, 0.0)
            half.append(100 * (high - m) / data.k_max)
        label = "calibration not counted" if which == "without" else "calibration counted"
        ax.barh(y + offset, value, 0.36, color=colour, label=label, xerr=half, error_kw={"lw": 1.2, "capsize": 3, "ecolor": "#111111"})
        for v, h, at in zip(value, half, y + offset, strict=True):
            ax.annotate(
                f"{v:.1f}%",
                (v + (h if v >= 0 else -h), at),
                xytext=(5 if v >= 0 else -5, 0),
                textcoords="offset points",
                ha="left" if v >= 0 else "right",
                va="center",
                fontsize=8,
            )
    ax.set_yticks(y, [a["arm"]["label"] for a in shown])
    ax.invert_yaxis()
    ax.axvline(0, color="#111111", lw=0.9)
    ax.margins(x=0.14)
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", color="#e3e5e8", lw=0.7)
    ax.set(xlabel=f"responses saved per prompt against fixed G={data.k_max} (%)", title="Savings with and without calibration")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return fig


_D_FLOOR = 1e-5


def scores_figure(data: Report) -> Any:
    """CARM scores of the responses met in the loss, one panel per rule, with log tau."""
    from matplotlib.figure import Figure

    columns = 3
    n_rows = math.ceil(len(data.arms) / columns)
    fig = Figure(figsize=(9.6, 2.7 * n_rows + 0.4), dpi=130, layout="constrained")
    per_arm = [np.array([float(d) for h in a["history"] for d in h.get("d_scores", [])]) for a in data.arms]
    finite = [d[np.isfinite(d)] for d in per_arm]
    high = max([1.0, *(d.max() for d in finite if d.size)])
    edges = np.logspace(math.log10(_D_FLOOR), math.log10(high) + 0.01, 46)
    first = None
    for i, (arm, d) in enumerate(zip(data.arms, finite, strict=True)):
        ax = fig.add_subplot(n_rows, columns, i + 1, sharex=first, sharey=first)
        first = first or ax
        _clean(ax)
        colour = data.style(arm)[0]
        if d.size:
            ax.hist(np.maximum(d, _D_FLOOR * 1.01), bins=edges, weights=np.full(d.size, 100 / d.size), color=colour, alpha=0.8)
        ax.set_xscale("log")
        ax.axvline(math.log(arm["tau"]), color="#b00020", lw=1.4, ls="--", label=f"log tau = {math.log(arm['tau']):.4f}")
        t = arm["totals"]
        masked = f"masked {_pct(t['masked'] / t['masked_of'])} of {_si(t['masked_of'])}" if t["masked_of"] else "nothing masked"
        ax.set_title(f"{arm['arm']['label']}\n{masked}, n = {d.size} shown", fontsize=9)
        ax.tick_params(labelsize=8)
    for i, ax in enumerate(fig.axes):
        ax.tick_params(labelbottom=i + columns >= len(fig.axes), labelleft=i % columns == 0)
    fig.supxlabel(
        "CARM score d, mean absolute log-ratio per token (nats); first bar: d <= 1e-5, sampled by the current weights", fontsize=9
    )
    fig.supylabel("responses (%)", fontsize=9)
    fig.legend(*first.get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=9)
    fig.suptitle("CARM scores: right of the line a response is masked", fontsize=11, x=0.01, ha="left")
    return fig


def _apart(x: Sequence[float], gap: float) -> np.ndarray:
    """Shifts that set equal or nearly equal values at least ``gap`` apart, around where they were."""
    order = np.argsort(x, kind="stable")
    moved = np.array(x, float)[order]
    for _ in range(50):
        for i in range(len(moved) - 1):
            lack = gap - (moved[i + 1] - moved[i])
            if lack > 1e-12:
                moved[i] -= lack / 2
                moved[i + 1] += lack / 2
    out = np.empty(len(moved))
    out[order] = moved
    return out - np.asarray(x, float)


def accuracy_figure(data: Report) -> Any:
    """pass@1 after the run against the tokens it generated; hollow: calibration tokens left out."""
    fig, ax = _axes(data)
    start, low, high = mean_interval(data.arms[0]["evaluation"]["start"])
    ax.axhline(100 * start, color="#7a7f85", lw=1.3, ls="--", label=f"start model, {_pct(start)}")
    ax.axhspan(100 * low, 100 * high, color="#7a7f85", alpha=0.13, lw=0)
    own = [a["totals"]["generated_tokens"] / 1e3 for a in data.arms]
    total = [x + a["totals"].get("calibration_tokens", 0) / 1e3 for x, a in zip(own, data.arms, strict=True)]
    apart = _apart(total, 0.012 * max(total))
    for arm, x0, x1, shift in zip(data.arms, own, total, apart, strict=True):
        colour, marker, _ = data.style(arm)
        m, low, high = mean_interval(arm["evaluation"]["final"])
        if x1 > x0:
            ax.plot([x0, x1 + shift], [100 * m] * 2, color=colour, lw=1.0, ls=":")
            ax.plot([x0], [100 * m], marker=marker, ms=7, mfc="white", mec=colour, ls="")
        bar = [[100 * (m - low)], [100 * (high - m)]]
        ax.errorbar([x1 + shift], [100 * m], yerr=bar, fmt=marker, color=colour, ms=7, capsize=3, lw=1.4, label=arm["arm"]["label"])
    ax.set(
        xlabel="tokens generated in the run, calibration counted (thousands); hollow: not counted",
        ylabel="held-out pass@1 (%), 95% interval",
        title=f"Accuracy against generated tokens, {data.settings['seconds']:g} s of training each",
    )
    ax.margins(x=0.08)
    ax.set_xlim(left=0)
    _legend(fig, ax)
    return fig


def phases_figure(data: Report) -> Any:
    """Where the seconds went."""
    fig, ax = _axes(data, height=3.8)
    y, left = np.arange(len(data.arms)), np.zeros(len(data.arms))
    for phase in PHASES:
        value = np.array([float(a["totals"].get(f"seconds_{phase}", 0.0)) for a in data.arms])
        ax.barh(y, value, 0.62, left=left, color=_PHASE_COLOURS[phase], label=phase)
        left += value
    ax.set_yticks(y, [a["arm"]["label"] for a in data.arms])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", color="#e3e5e8", lw=0.7)
    ax.set(xlabel="wall-clock (s)", title="Seconds per phase")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return fig


_ACCURACY = (
    "Held-out pass@1 at the end of training against the tokens generated on the way. Bars: 95% interval over prompts; band: that of the "
    "start model. Points that would hide each other are set a little apart."
)
_BUDGET = "Mean responses per prompt over training time (log scale). Bands: 95% interval of the mean over the generations of each stretch."
_THRESHOLDS = (
    "The numbers that decide when a prompt stops. Infinite: the rule stops nothing (for signal: gives up on nothing) at that time."
)
_SAVINGS = "Responses saved per training prompt. Negative: calibration drew more than the rule saved. Bars: 95% interval over generations."
_SCORES = "How far responses had drifted from the weights that sampled them when the loss met them. Up to 64 responses per generation."
_PHASES = "Every rule had the same seconds; this is what it spent them on."

#: File name, function that draws it, caption; in the order of the page.
FIGURES = (
    ("accuracy", accuracy_figure, _ACCURACY),
    ("budget", budget_figure, _BUDGET),
    ("thresholds", thresholds_figure, _THRESHOLDS),
    ("savings", savings_figure, _SAVINGS),
    ("scores", scores_figure, _SCORES),
    ("phases", phases_figure, _PHASES),
)


# --------------------------------------------------------------------------------------------------------------- page


def write(data: Report, folder: Path) -> None:
    """Write ``table.csv``, ``table.md``, the PNG figures and ``report.html`` (self-contained) into a folder."""
    folder = Path(folder)
    all_measures = [measures(a) for a in data.arms]
    fields = list(dict.fromkeys(k for m in all_measures for k in m))
    with (folder / "table.csv").open("w", newline="") as f:
        out = csv.DictWriter(f, fields, restval="")
        out.writeheader()
        out.writerows(all_measures)
    (folder / "table.md").write_text(markdown_table(data))
    for name, draw, _ in FIGURES:
        draw(data).savefig(folder / f"{name}.png")
    (folder / "report.html").write_text(html(data, folder), encoding="utf-8")


def opening(data: Report) -> str:
    """The first paragraph: what was run and what is compared."""
    s, n = data.settings, len(data.arms[0]["evaluation"]["start"])
    start = mean_interval(data.arms[0]["evaluation"]["start"])[0]
    labels = [a["arm"]["label"] for a in data.arms]
    return (
        f"The same start model ({s['model']}, pass@1 {_pct(start)}) was trained with reinforcement learning on arithmetic "
        f"under {len(labels)} rules for how many responses to draw per prompt: {', '.join(labels[:-1])} and {labels[-1]}. "
        f"Each rule had {s['seconds']:g} seconds of wall-clock on one thread, calibration included, and aimed at the same number "
        f"of responses per update. Every batch of responses was used for {s['num_iterations']} optimizer steps, so later steps are "
        f"off-policy, and CARM masked responses whose log-probabilities had drifted beyond tau = {s['tau']:g}. What is compared is "
        f"the solve rate on {n} held-out prompts afterwards, and what it cost. Fixed small groups are the rival to beat: they cost "
        "little and need no calibration."
    )


def notes(data: Report) -> str:
    """What the lines of the table mean."""
    low, high = data.arms[0]["band"]
    return (
        "Generated: drawn in training. Kept: allowed into the update by the rule. Trained: entered the loss, after groups without "
        "reward variance were dropped. Calibration: drawn only to set thresholds. pass@1 is the mean over prompts of the share of "
        f"{data.arms[0]['evaluation']['samples']} samples that pass. Error events are each rule's own: a false stop is a prompt "
        "stopped on a wrong answer; a lost group is one that would have become mixed and was cut off; their intervals "
        "(Clopper-Pearson) take prompts as independent, although the policy changes during training, and delta bounds "
        "the rate on average over calibration sets: one run with few calibration prompts can lie above it. Certified out-of-band: no "
        "response that CARM accepts can have a larger share of tokens with a probability ratio outside "
        f"[{low:g}, {high:g}]."
    )


def html(data: Report, folder: Path) -> str:
    """The page, with the figures of ``folder`` inside it."""
    from jinja2 import Environment

    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    s = data.settings
    setup = (
        f"Seed {s['seed']}; grid {', '.join(map(str, s['grid']))}; delta {s['delta']}; {s['n_calibration']} calibration prompts every "
        f"{s['recalibrate_every']} optimizer steps; learning rate {s['learning_rate']:g}, constant; "
        f"{s['jobs']} rules at a time, one thread each. " + ", ".join(f"{k} {v}" for k, v in s.get("versions", {}).items()) + "."
    )
    return (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            opening=opening(data),
            verdict=verdict(data),
            labels=[a["arm"]["label"] for a in data.arms],
            rows=rows(data),
            notes=notes(data),
            figures=[
                {"title": name, "caption": caption, "data": base64.b64encode((folder / f"{name}.png").read_bytes()).decode()}
                for name, _, caption in FIGURES
            ],
            command=s.get("command", ""),
            setup=setup,
            policies=[(a["arm"]["label"], a["policy"]) for a in data.arms],
        )
    )
