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


class Results:
    """Verdicts of one module: a kill holds while the module and the killing test's file are the same, survival while all tests are."""

    def __init__(self, tree: Path, core: str, module: str, store: Path) -> None:
        self.tree, self.module = tree, module
        self.path = store / "results" / core / f"{module}.json"
        self.source = digest(tree, [f"{core}/{module}.py"])
        self.tests = digest(tree, ["tests", core])
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
        if entry is None:
            return False
        if entry["killer"] is None or "::" not in entry["killer"]:
            return entry["killer"] is not None or bool(entry["tests"] == self.tests)
        return bool(entry["tests"] == self.file_of(entry["killer"]))

    def file_of(self, test: str) -> str:
        return digest(self.tree, [test.split("::")[0]])

    def record(self, name: str, mutant: Mutant, killer: str | None) -> None:
        tests = self.tests if killer is None or "::" not in killer else self.file_of(killer)
        self.known[name] = {
            "line": mutant.line, "operator": mutant.operator, "before": mutant.before, "after": mutant.after,
            "killer": killer, "tests": tests,
        }  # fmt: skip

    def save(self, names: Iterable[str]) -> None:
        self.known = {name: self.known[name] for name in names if name in self.known}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"source": self.source, "number": self.number, "mutants": self.known}, indent=1) + "\n")


def report(root: Path, core: str, results: Sequence[Results], explained: Path) -> None:
    """``docs/mutation_<core>.csv`` and the section of the core in ``docs/mutation.md``."""
    reasons = tomllib.loads(explained.read_text(encoding="utf-8"))["survivor"] if explained.exists() else []

    def why(module: str, before: str, after: str) -> str:
        for e in reasons:
            here = e.get("module", module) == module
            whole = (e.get("before"), e.get("after")) == (before, after)
            part = "before" in e and "module" not in e and e["before"] in before and before.replace(e["before"], e["after"]) == after
            if here and (whole or part or ("contains" in e and e["contains"] in before)):
                return str(e["why"])
        return "no reason given, or a test written since not tried yet"

    rows, listed, number, total, alive = [], [], 0, 0, 0
    for result in results:
        survivors = [m for m in result.known.values() if m["killer"] is None]
        tried = len(result.known)
        rows.append([result.module, result.number, tried, tried - len(survivors), len(survivors)])
        number, total, alive = number + result.number, total + tried, alive + len(survivors)
        for m in survivors:
            reason = why(result.module, m["before"], m["after"])
            listed.append(f"- `{result.module}`, line {m['line']}: `{m['before']}` -> `{m['after']}`: {reason}")
    with open(root / "docs" / f"mutation_{core}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["module", "mutants", "tried", "killed", "survivors"])
        writer.writerows([*rows, ["total", number, total, total - alive, alive]])
    section = [
        f"## {core}",
        "",
        f"{total - alive} of {total} mutants killed ({(total - alive) / max(total, 1):.1%}), of {number} there are; by module in",
        f"[mutation_{core}.csv](mutation_{core}.csv).  `make mutants CORE={core}`",
        "",
        "Survivors:",
        "",
        *(listed or ["none."]),
    ]
    path = root / "docs" / "mutation.md"
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    others = [part for part in re.split(r"(?m)^(?=## )", text) if not part.startswith(f"## {core}\n")]
    head, rest = others[0], others[1:]
    parts = sorted([*rest, "\n".join(section) + "\n"], reverse=True)
    path.write_text("\n".join([head.rstrip("\n") + "\n", *(part.rstrip("\n") + "\n" for part in parts)]), encoding="utf-8")


HEAD = """# Mutation testing

cosmic-ray's operators change one comparison, operator, number, constant, condition or loop of a core at a time; a mutant is killed when a
test fails on it.  Annotations and docstrings are not mutated.  A Hypothesis test runs at most 30 derandomised examples.
"""
