"""The figures of the items: bars of paper and ours, curves, points, one response."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .item import Line, Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["bars", "curves", "drawn", "new", "smooth"]

PAPER, OURS = "#9aa0a6", "#0072b2"
WEIGHT = 0.8


def new(rows: int = 1, columns: int = 1, width: float = 5.2, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, without the frames that carry nothing."""
    from matplotlib.figure import Figure as Made

    figure = Made(figsize=(width * columns, height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color="#eceef0")
    return figure, axes


def bars(lines: Sequence[Line], title: str) -> Figure:
    """Every line with both numbers of one unit: paper grey, ours blue with its interval; one panel per unit."""
    shown = [line for line in lines if math.isfinite(line.ours)]
    units = list(dict.fromkeys(line.unit for line in shown)) or [""]
    tallest = max((sum(line.unit == u for line in shown) for u in units), default=1)
    figure, axes = new(1, len(units), 5.4, max(2.2, 0.24 * tallest + 1.0))
    for ax, unit in zip(axes, units, strict=True):
        mine = [line for line in shown if line.unit == unit][::-1]
        for y, line in enumerate(mine):
            if math.isfinite(line.low) and math.isfinite(line.high):
                ax.plot([line.low, line.high], [y, y], color=OURS, lw=1.4, alpha=0.6)
            ax.plot(line.ours, y, "o", color=OURS, ms=4)
            if math.isfinite(line.paper):
                ax.plot(line.paper, y, "s", color=PAPER, ms=4)
        ax.set_yticks(range(len(mine)), [line.name for line in mine], fontsize=7)
        ax.set_xlabel(unit, fontsize=8)
        ax.tick_params(axis="x", labelsize=7)
    figure.suptitle(f"{title}: paper (grey squares), ours (blue, 95%)", fontsize=9)
    return figure


def drawn(title: str) -> Callable[[Records, Sequence[Line]], Figure]:
    """An item's ``draw`` that shows its lines as `bars`."""
    return lambda records, lines: bars(lines, title)


def smooth(values: Sequence[float], weight: float = WEIGHT) -> np.ndarray:
    """Exponential moving average with the papers' weight.

    >>> smooth([1.0, 0.0], 0.8).tolist()
    [1.0, 0.8]
    """
    out = np.array(values, float)
    for i in range(1, len(out)):
        out[i] = weight * out[i - 1] + (1 - weight) * out[i]
    return out


def curves(records: Records, keys: Mapping[str, str], labels: Mapping[str, str], title: str, log: tuple[str, ...] = ()) -> Figure:
    """One panel per key of ``keys`` (name in the log: name shown), one line per variant of ``labels``: first seed, raw faint, smoothed."""
    figure, axes = new(len(keys), 1, 7.0, 2.2)
    for ax, (key, name) in zip(axes, keys.items(), strict=True):
        for i, (variant, label) in enumerate(labels.items()):
            mine = [r for r in records if r["variant"] == variant]
            points = [(c["step"], c[key]) for c in (mine[0]["curves"] if mine else ()) if math.isfinite(c.get(key, math.nan))]
            if points:
                x, y = zip(*points, strict=True)
                ax.plot(x, y, color=f"C{i}", alpha=0.25, lw=0.8)
                ax.plot(x, smooth(y), color=f"C{i}", lw=1.4, label=label)
        if key in log:
            ax.set_yscale("symlog", linthresh=1e-3)
        ax.set_ylabel(name, fontsize=8)
        ax.tick_params(labelsize=7)
    axes[-1].set_xlabel("optimizer step", fontsize=8)
    handles, names = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside right upper", fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=9)
    return figure
