"""CSV, figure and Markdown of an item."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from . import schedule
from .item import Item, Line, Records, lines

__all__ = ["folder_of", "markdown", "write"]


def folder_of(item: Item, out: Path, scale: str, report: Path | None = None) -> Path:
    """Where the files of an item lie: beside the runs, or under ``report``."""
    return (out / scale if report is None else report) / item.id


def _digits(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "-"
    if unit in ("responses", "tokens") and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if unit in ("ratio", "nats", "distance") else f"{value:.2f}"


def markdown(item: Item, table: Sequence[Line], scale: str, finished: int, wanted: int) -> str:
    """Paper, ours and the interval side by side, then what cannot be met and why."""
    runs = f"{finished} of {wanted} runs" + ("" if finished == wanted else " (unfinished)")
    setting = {"paper": "the paper's configuration", "tiny": "a test of the path, its numbers mean nothing"}.get(scale, item.small)
    out = [f"### {item.paper}, {item.place}: {item.title}", "", f"Measured: {item.measures}.", f"Scale {scale}, {runs}: {setting}."]
    out += [f"Command: `python -m experiments reproduce {item.id}{'' if scale == 'small' else f' --scale {scale}'}`.", ""]
    out += ["| | paper | ours | interval | unit | place | how |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for x in table:
        span = f"{_digits(x.low, x.unit)} to {_digits(x.high, x.unit)}" if math.isfinite(x.low) and math.isfinite(x.high) else "-"
        out.append(f"| {x.name} | {_digits(x.paper, x.unit)} | {_digits(x.ours, x.unit)} | {span} | {x.unit} | {x.place} | {x.how} |")
    out += ["", "Cannot be met:" if item.unmet else "Nothing printed here is known to be out of reach.", ""]
    for u in item.unmet:
        ids = f" ({', '.join(u.claims)})" if u.claims else ""
        out.append(f"- {u.what}: {u.why}{ids}.")
    return "\n".join(out) + "\n"


def table_csv(table: Sequence[Line]) -> str:
    """The lines with full precision; empty where a number is missing."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["name", "unit", "paper", "place", "ours", "low", "high", "how"])
    for x in table:
        numbers = [f"{v:.8g}" if math.isfinite(v) else "" for v in (x.paper, x.ours, x.low, x.high)]
        writer.writerow([x.name, x.unit, numbers[0], x.place, *numbers[1:], x.how])
    return buffer.getvalue()


def write(item: Item, records: Records, out: Path, scale: str, report: Path | None = None) -> Path:
    """``table.csv``, ``figure.png`` and ``table.md`` of an item from the runs that are finished; returns their folder."""
    table = lines(item, item.build(records))
    wanted = schedule.wanted(item.needs, scale)
    finished = len(wanted) - len(schedule.missing(wanted, out))
    folder = folder_of(item, out, scale, report)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.csv").write_text(table_csv(table), encoding="utf-8")
    (folder / "table.md").write_text(markdown(item, table, scale, finished, len(wanted)), encoding="utf-8")
    item.draw(records, table).savefig(folder / "figure.png", dpi=110)
    return folder
