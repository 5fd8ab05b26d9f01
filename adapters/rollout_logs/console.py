"""The report on a terminal: the answer first, then the tables that matter, then what was read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table as RichTable
from rich.text import Text

from .report import Report
from .sources import Intake
from .tables import Table

__all__ = ["print_intake", "print_report", "print_table", "progress_bar"]

_PROBLEMS = 10
_INTERVAL = re.compile(r" \[[-\d., ]+\]$")


@contextmanager
def progress_bar(console: Console, *, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on the terminal's error stream; none when it is not a terminal."""
    if quiet or not console.is_terminal:
        yield None
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), console=console, transient=True
    ) as bar:
        task = bar.add_task("reading", total=None)

        def told(what: str, done: int, of: int) -> None:
            bar.update(task, description=what.rsplit("/", 1)[-1][:40], completed=done, total=of)

        yield told


def print_table(console: Console, table: Table, *, everything: bool = False) -> None:
    """A table; only the rows that matter unless ``everything``."""
    if not everything and not table.main:
        return
    rich = RichTable(
        title=table.title, title_justify="left", title_style="bold", caption=table.caption, caption_justify="left", box=None, pad_edge=False
    )
    rows = range(len(table.shown)) if everything else table.main
    narrow = console.width < 112
    cells = [[_INTERVAL.sub("", cell) if narrow else cell for cell in table.shown[i]] for i in rows]
    shown = len(table.heads)
    while (widths := _widths(table.heads[:shown], [row[:shown] for row in cells], console.width)) is None:
        shown -= 1
    for j, head in enumerate(table.heads[:shown]):
        rich.add_column(head, justify="left" if j == 0 else "right", width=widths[j], overflow="fold")
    for row in cells:
        rich.add_row(*map(Text, row[:shown]))
    console.print(Padding(rich, (1, 0, 0, 0)))
    if shown < len(table.heads):
        console.print(f"[dim]{len(table.heads) - shown} more columns in a wider terminal[/dim]")
    if len(rows) < len(table.shown):
        console.print(f"[dim]{len(table.shown) - len(rows)} more rows with --all[/dim]")


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> list[int | None] | None:
    """Widths that break no number and no word of a head; the first column takes what is left.  None: they do not fit.

    A width of None lets the terminal decide.
    """
    columns = [[row[j] for row in cells] for j in range(len(heads))]
    natural = [max(map(len, [head, *column])) for head, column in zip(heads, columns, strict=True)]
    gaps = len(heads) - 1
    if sum(natural) + gaps <= room:
        return [None] * len(heads)
    least = [min(max(map(len, [*head.split(), *column])), room // 3) for head, column in zip(heads, columns, strict=True)]
    first = room - sum(least[1:]) - gaps
    if first < min(least[0], 12) and len(heads) > 2:
        return None
    return [min(max(first, 4), natural[0]), *least[1:]]


def print_intake(console: Console, purpose: str, intake: Intake) -> None:
    """What was read, what was not, and where."""
    console.print(
        f"[bold]Read for {purpose}[/bold]: {intake.files:,} files, {intake.rows:,} rows, {intake.used:,} responses used, "
        f"{intake.unread:,} rows or files not read, {len(intake.set_aside):,} files set aside.",
        highlight=False,
    )
    for note in intake.notes:
        console.print(f"  - {note}", highlight=False, markup=False)
    for what, count in intake.counts.items():
        console.print(f"  ! {count:,} not read: {what}", style="yellow", highlight=False, markup=False)
    for problem in intake.problems[:_PROBLEMS]:
        console.print(f"    {problem}", highlight=False, markup=False)
    if len(intake.problems) > _PROBLEMS:
        console.print(f"    and {intake.unread - _PROBLEMS:,} more (--json names them)", highlight=False)


def print_report(console: Console, report: Report, *, everything: bool = False) -> None:
    """The whole report."""
    for sentences in report.verdict().values():
        console.print()
        console.print(sentences[0], style="bold", highlight=False, markup=False)
        if sentences[1:]:
            console.print(" ".join(sentences[1:]), highlight=False, markup=False)
    for snippet in report.settings().values():
        console.print()
        console.print(snippet.rstrip(), style="cyan", highlight=False, markup=False, soft_wrap=True)
    for table in report.tables().values():
        print_table(console, table, everything=everything)
    console.print()
    console.print("[bold]What these files cannot tell[/bold]")
    for line in report.unknown():
        console.print(f"  - {line}", highlight=False, markup=False)
    for purpose, intake in report.intakes.items():
        if not intake.files and len(report.intakes) > 1:
            continue
        console.print()
        print_intake(console, purpose, intake)
