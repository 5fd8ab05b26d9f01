"""``python -m experiments reproduce``: the options."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import schedule, write
from .catalogue import ITEMS, item
from .item import Item
from .source import SCALES, repair

__all__ = ["add_parser", "main", "reproduce"]

OUT = "runs/reproduce"
JOBS = 2


def add_parser(sub: Any, formatter: Any) -> None:
    """Add ``reproduce`` and, for its own processes, ``reproduce-worker``."""
    c = sub.add_parser(
        "reproduce", help="measure the tables and figures of both papers again; a second call resumes", formatter_class=formatter
    )
    c.add_argument("items", nargs="*", metavar="ITEM", help="names as --list shows them, or all: those that are missing, shortest first")
    c.add_argument("--list", action="store_true", help="print every item with its small-scale time and whether results exist, and stop")
    c.add_argument("--commands", action="store_true", help="print the paper-scale commands of the items, and stop")
    c.add_argument("--scale", default="small", help=f"{', '.join(SCALES)}: this CPU, the papers' configurations on GPUs, or a test")
    c.add_argument("--out", default=OUT, metavar="DIR", help="folder of runs and reports")
    c.add_argument("--report", metavar="DIR", help="folder of tables and figures (default: beside the runs)")
    c.add_argument("--jobs", type=int, default=JOBS, help="processes at the same time, one thread each; 0: in this process")
    c.add_argument("--only-write", action="store_true", help="write tables and figures from the runs that exist; run nothing")
    r = sub.add_parser("reproduce-worker")
    r.add_argument("folder", type=Path)


def main(args: argparse.Namespace) -> None:
    """Run the sub-command; a ``ValueError`` is an option that cannot work."""
    if args.scale not in SCALES:
        raise ValueError(f"scale: got {args.scale!r}; need one of {', '.join(SCALES)}; because those are prepared")
    if args.jobs < 0:
        raise ValueError(f"jobs: got {args.jobs}; need at least 0; because it counts processes")
    out = Path(args.out)
    if args.list:
        print(listing(out, args.scale))
        return
    if not args.items:
        raise ValueError(f"item: got nothing; need some of {', '.join(ITEMS)} or all; because they say what to measure (--list shows them)")
    chosen = list(ITEMS.values()) if "all" in args.items else [item(name) for name in dict.fromkeys(args.items)]
    if args.commands:
        print(commands(chosen, out))
        return
    reproduce(chosen, out, args.scale, args.jobs, run=not args.only_write, skip="all" in args.items, report=args.report)


def reproduce(
    items: list[Item], out: Path, scale: str, jobs: int, *, run: bool = True, skip: bool = False, report: str | None = None
) -> None:
    """Run what the items lack, shortest first, and write each as soon as its runs are finished.

    ``skip`` leaves out items that are written and lack nothing.
    """
    if run and scale == "paper":
        _check_gpu()
    place = None if report is None else Path(report)
    for name, folder in (("out", out), ("report", place)):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{name}: got {folder}; need a folder that can be written; because {error.strerror}") from None
    repair(out, scale, schedule.sources().values())
    needs = {i.id: schedule.wanted(i.needs, scale) for i in items}
    missing = {name: schedule.missing(runs, out) for name, runs in needs.items()}
    ordered = sorted(items, key=lambda i: schedule.minutes(missing[i.id]))
    if skip:
        ordered = [i for i in ordered if missing[i.id] or not (write.folder_of(i, out, scale, place) / "table.md").exists()]
    queue = list(dict.fromkeys(r for i in ordered for r in missing[i.id])) if run else []
    if queue:
        print(f"{len(queue)} runs, about {schedule.minutes(queue, jobs or 1):.0f} min at small scale on {jobs or 1} threads", flush=True)
    written: set[str] = set()

    def put(due: list[Item]) -> None:
        for i in due:
            folder = write.write(i, schedule.records(out, scale, i.needs), out, scale, place)
            written.add(i.id)
            print(f"written: {folder / 'table.md'}", flush=True)

    lacking = {i.id: set(missing[i.id]) for i in ordered}

    def done(run: schedule.Run) -> None:
        for rest in lacking.values():
            rest.discard(run)
        put([i for i in ordered if i.id not in written and not lacking[i.id]])

    put([i for i in ordered if not missing[i.id] or not run])
    schedule.run_all(queue, out, jobs, done)
    put([i for i in ordered if i.id not in written])


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise ValueError(
            "scale: got paper; need a CUDA device; because the papers train models of 4B to 9B parameters (--commands prints what to run)"
        )


def listing(out: Path, scale: str) -> str:
    """Items in order of their small-scale time alone, what they measure, and how many of their runs exist."""
    rows = []
    for i in ITEMS.values():
        runs = schedule.wanted(i.needs, scale)
        have = len(runs) - len(schedule.missing(runs, out))
        state = f"{have} of {len(runs)} runs"
        if runs and have == len(runs):
            spent = sum(r["seconds"] for r in schedule.records(out, scale, i.needs)) / 60 / JOBS
            state = f"results, {spent:.1f} min"
        rows.append((schedule.minutes(schedule.wanted(i.needs, "small"), JOBS), i.id, i.place, i.title, state))
    width = max(len(r[1]) for r in rows), max(len(r[2]) for r in rows), max(len(r[3]) for r in rows)
    text = [
        f"{m:5.1f} min  {name:<{width[0]}}  {place:<{width[1]}}  {title:<{width[2]}}  {state}"
        for m, name, place, title, state in sorted(rows)
    ]
    total = schedule.minutes(_union("small"), JOBS)
    left = schedule.minutes(schedule.missing(_union(scale), out), JOBS) if scale == "small" else 0.0
    text.append(f"\nall together {total:.0f} min on {JOBS} threads (runs are shared)" + (f", {left:.0f} min of them left" if left else ""))
    return "\n".join(text)


def _union(scale: str) -> list[schedule.Run]:
    return schedule.wanted({n: None for i in ITEMS.values() for n in i.needs}, scale)


def commands(items: list[Item], out: Path) -> str:
    """Paper-scale commands, each run once; where there is none, why."""
    known = schedule.sources()
    text: list[str] = []
    for i in items:
        text.append(f"# {i.id}: {i.paper}, {i.place}: {i.title}")
        for source, variant in i.needs:
            v = known[source].variants[variant]
            if not v.paper:
                text.append(f"# {source}/{variant}: {v.why}")
            for seed in range(v.paper_seeds):
                text += schedule.paper_command(schedule.Run(source, variant, seed, "paper"), out)
    return "\n".join(dict.fromkeys(text))


def worker(args: argparse.Namespace) -> None:
    """The ``reproduce-worker`` command."""
    schedule.worker(args.folder)
    sys.exit(0)
