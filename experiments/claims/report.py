"""The ledger as text, JSON and one HTML page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .ledger import EXTRA, FALSE, HOLDS, Result, Search

#: Headings of the page, by the first letter of an id.
SECTIONS = {
    "A": "Split-conformal machinery", "E": "The answer set", "F": "False stops", "G": "Several budgets and checkpoints",
    "H": "Better policies and rollouts", "I": "Learning signal", "J": "Automatic delta", "L": "Shift and printed numbers (C-GRPO)",
    "M": "CARM", "N": "pass@k", "S": "Beyond both papers",
}  # fmt: skip
MARKS = {HOLDS: "holds", EXTRA: "assumes", FALSE: "false"}


def summary(results: Sequence[Result]) -> str:
    count = Counter(r.evidence.verdict for r in results)
    wrong = [r.claim.id for r in results if not r.agrees]
    tail = "every verdict is the expected one" if not wrong else f"NOT as expected: {', '.join(wrong)}"
    return (
        f"{len(results)} claims: {count[HOLDS]} hold, {count[EXTRA]} hold under an assumption, {count[FALSE]} are false as stated; {tail}"
    )


def _search(s: Search | None) -> dict[str, Any] | None:
    return None if s is None else {"tried": s.tried, "failed": s.failed, "smallest": s.smallest, "method": s.method}


def as_dict(r: Result) -> dict[str, Any]:
    """One entry, without anything that differs between two runs of the same code."""
    c, e = r.claim, r.evidence
    return {
        "id": c.id,
        "place": c.place,
        "statement": c.says,
        "verdict": e.verdict,
        "expected": c.expected,
        "agrees": r.agrees,
        "assumption": c.assumption,
        "repaired": c.repaired,
        "guard": c.guard,
        "evidence": {
            "stated": _search(e.stated),
            "assuming": _search(e.assuming),
            "repaired": _search(e.repaired),
            "figures": [{"name": f.name, "computed": f.shown, "recorded": f.recorded, "agrees": f.agrees} for f in e.figures],
        },
    }


def package_version() -> str:
    try:
        return version("conformal-carm")
    except PackageNotFoundError:
        return "not installed"


def to_json(results: Sequence[Result], command: str) -> str:
    data = {"command": command, "version": package_version(), "summary": summary(results), "claims": [as_dict(r) for r in results]}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def described(s: Search) -> str:
    """``12 tried, none fails`` or ``3 of 12 fail``."""
    return f"{s.tried} tried, none fails" if not s.failed else f"{s.failed} of {s.tried} fail"


def print_text(results: Sequence[Result], full: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    colour = {HOLDS: "green", EXTRA: "yellow", FALSE: "red"}
    if not full:
        table = Table(box=None, pad_edge=False)
        for column in ("id", "verdict", "statement", "evidence"):
            table.add_column(column, overflow="fold")
        for r in results:
            verdict = f"[{colour[r.evidence.verdict]}]{r.evidence.verdict}[/]" + ("" if r.agrees else " [bold red](unexpected)[/]")
            table.add_row(r.claim.id, verdict, escape(r.claim.says), described(r.evidence.stated))
        console.print(table)
    for r in results if full else ():
        c, e = r.claim, r.evidence
        console.print(
            f"[bold]{c.id}[/]  {escape(c.place)}\n  {escape(c.says)}",
            f"  [{colour[e.verdict]}]{e.verdict}[/], expected: {c.expected}",
            sep="\n",
        )
        lines = [("as stated", e.stated), ("under the assumption", e.assuming), ("repaired", e.repaired)]
        for name, s in lines:
            if s is not None:
                console.print(f"  {name}: {described(s)} ({s.method})")
                if s.smallest:
                    console.print(f"    smallest counterexample: {s.smallest}", markup=False)
        for f in e.figures:
            console.print(f"  {f.name}: {f.shown}, on record {f.recorded}" + ("" if f.agrees else "  DIFFERS"), markup=False)
        for name, text in (("assumption", c.assumption), ("instead", c.repaired), ("guarded by", c.guard)):
            if text:
                console.print(f"  {name}: {text}", markup=False)
    print("\n" + summary(results))


def write(results: Sequence[Result], folder: Path, command: str) -> list[Path]:
    """``claims.json``, ``claims.html`` and the figures as PNG."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from .figures import draw

    folder.mkdir(parents=True, exist_ok=True)
    figures = draw(folder)
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    sections = [(letter, title, [r for r in results if r.claim.id[0] == letter]) for letter, title in SECTIONS.items()]
    page = env.get_template("claims.html.j2").render(
        sections=[s for s in sections if s[2]],
        summary=summary(results),
        figures=figures,
        marks=MARKS,
        described=described,
        command=command,
        version=package_version(),
        counts=[(mark, name, sum(r.evidence.verdict == name for r in results)) for name, mark in MARKS.items()],
        total=len(results),
    )
    (folder / "claims.html").write_text(page, encoding="utf-8")
    (folder / "claims.json").write_text(to_json(results, command), encoding="utf-8")
    return [folder / "claims.html", folder / "claims.json", *(folder / f["file"] for f in figures)]
