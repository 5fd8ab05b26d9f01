"""Verdicts kept between runs, and the report of them."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .operators import Mutant


def digest(root: Path, parts: Sequence[str]) -> str:
    """Of all Python and data files below some folders (or of single files)."""
    state = hashlib.blake2b(digest_size=12)
    for part in parts:
        place = root / part
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in (".py", ".json") and path.is_file():
                state.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return state.hexdigest()


class Reasons:
    """Why some mutants cannot be told from the source, from a file of entries.

    An entry names a mutant by ``module``, ``before`` and ``after``; without ``module`` the two are parts of a line of any module;
    ``contains`` stands for every mutant of a line with that text.
    """

    def __init__(self, path: Path) -> None:
        self.entries = tomllib.loads(path.read_text(encoding="utf-8"))["survivor"] if path.exists() else []

    def why(self, module: str, before: str, after: str) -> str | None:
        for e in self.entries:
            here = e.get("module", module) == module
            whole = (e.get("before"), e.get("after")) == (before, after)
            part = "before" in e and "module" not in e and e["before"] in before and before.replace(e["before"], e["after"]) == after
            if here and (whole or part or ("contains" in e and e["contains"] in before)):
                return str(e["why"])
        return None


class Results:
    """Verdicts of one module: a kill holds while the module and the killing test's file are the same, survival while all tests are."""

    def __init__(self, tree: Path, core: str, module: str, store: Path) -> None:
        self.tree, self.module = tree, module
        self.path = store / "results" / core / f"{module}.json"
        self.source = digest(tree, [f"{core}/{module}.py"])
        self.tests = digest(tree, [f"tests/{core}", "tests/claims", "tests/data", core])
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.number = int(known.get("number", 0))  # of mutants, tried or not
        self.known: dict[str, Any] = {k: v for k, v in known.get("mutants", {}).items() if known.get("source") == self.source}

    @staticmethod
    def key(mutants: Iterable[Mutant]) -> list[str]:
        """Names of mutants within a module; equal changes of one line are numbered."""
        seen: dict[str, int] = {}
        names = []
        for m in mutants:
            name = f"{m.line}: {m.before} -> {m.after} ({m.operator})"
            seen[name] = seen.get(name, 0) + 1
            names.append(f"{name} #{seen[name]}" if seen[name] > 1 else name)
        return names

    def holds(self, name: str) -> bool:
        entry = self.known.get(name)
        if entry is None or not entry.get("decided"):
            return False
        return bool(entry["tests"] == self.state(entry["killer"]))

    def state(self, killer: str | None) -> str:
        """Of the file that the killing test is in ("timeout in" it, "crash in" it), or of all tests."""
        file = "" if killer is None else killer.removeprefix("timeout in ").removeprefix("crash in ").split("::")[0]
        return digest(self.tree, [file]) if "/" in file else self.tests

    def record(self, name: str, mutant: Mutant, killer: str | None, decided: bool) -> None:
        self.known[name] = {
            "line": mutant.line, "operator": mutant.operator, "before": mutant.before, "after": mutant.after,
            "killer": killer, "decided": decided, "tests": self.state(killer),
        }  # fmt: skip

    def save(self, names: Iterable[str]) -> None:
        self.known = {name: self.known[name] for name in names if name in self.known}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"source": self.source, "number": self.number, "mutants": self.known}, indent=1) + "\n")


def report(root: Path, core: str, results: Sequence[Results], reasons: Reasons) -> None:
    """``docs/mutation_<core>.csv`` and the section of the core in ``docs/mutation.md``."""
    rows, listed = [], []
    for result in results:
        alive = [m for m in result.known.values() if m["killer"] is None]
        equivalent, undecided = 0, 0
        for m in alive:
            reason = reasons.why(result.module, m["before"], m["after"])
            equivalent += reason is not None
            undecided += reason is None and not bool(m.get("decided"))
            reason = reason or ("no test fails" if m.get("decided") else "not decided: not all tests ran")
            listed.append(f"- `{result.module}`, line {m['line']}: `{m['before']}` -> `{m['after']}`: {reason}")
        tried = len(result.known)
        survivors = len(alive) - equivalent - undecided
        rows.append([result.module, result.number, tried, tried - len(alive), equivalent, survivors, undecided])
    total = [sum(row[i] for row in rows) for i in range(1, 7)]
    with open(root / "docs" / f"mutation_{core}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["module", "mutants", "tried", "killed", "equivalent", "survivors", "undecided"])
        writer.writerows([*rows, ["total", *total]])
    number, tried, killed, equivalent, survivors, undecided = total
    section = [
        f"## {core}",
        "",
        f"{killed} of {tried} mutants killed ({killed / max(tried, 1):.1%}), of {number} there are; {equivalent} equivalent, {survivors}",
        f"survivors, {undecided} not decided.  By module in [mutation_{core}.csv](mutation_{core}.csv).  `make mutants CORE={core}`",
        "",
        "Alive:",
        "",
        *(listed or ["none."]),
    ]
    path = root / "docs" / "mutation.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    others = [part for part in re.split(r"(?m)^(?=## )", text) if not part.startswith(f"## {core}\n")]
    parts = sorted([*others[1:], "\n".join(section) + "\n"], reverse=True)
    path.write_text("\n".join([HEAD, *(part.rstrip("\n") + "\n" for part in parts)]), encoding="utf-8")


HEAD = """# Mutation testing

cosmic-ray's operators change one comparison, operator, number, constant, condition or loop of a core at a time.  A mutant is killed when a
test fails on it, or takes ten times its usual time.  Annotations and docstrings are not mutated, nor are changes that compile to the same
program.  A Hypothesis test runs at most 30 derandomised examples at first, and as many as it declares on what survives.  Equivalent: no
test can tell the mutant from the source, for the reason given.  Not decided: not all tests that execute the change ran in the time given;
counted as alive.
"""
