"""Mutation testing of a core: cosmic-ray makes the mutants, forked workers run the tests of the mutated module on them.

    python -m benchmarks.mutants conformal_core [--modules level,replay] [--jobs 2] [--out build/mutants.json]

Nothing is written into the source tree: a worker imports the mutated source through a loader of its own.  NumPy, SciPy, Hypothesis and
pytest are imported once, before the forks.  Tests: ``tests/<core>/test_<module>.py`` and the doctests of the module, then every other test
of the core or of a claim that mentions the module or one of its public names.  Hypothesis runs few, derandomised examples.  A mutant that
differs only in annotations or docstrings is not counted.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build" / "mutation"

COMPARISONS = [
    "Eq_NotEq",
    "NotEq_Eq",
    "Lt_LtE",
    "Lt_GtE",
    "LtE_Lt",
    "LtE_Gt",
    "Gt_GtE",
    "Gt_LtE",
    "GtE_Gt",
    "GtE_Lt",
    "Is_IsNot",
    "IsNot_Is",
]
BINARY = [
    "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul",
    "BitAnd_BitOr", "BitOr_BitAnd", "BitXor_BitOr", "LShift_RShift", "RShift_LShift",
]  # fmt: skip
OPERATORS = (
    [f"core/ReplaceComparisonOperator_{pair}" for pair in COMPARISONS]
    + [f"core/ReplaceBinaryOperator_{pair}" for pair in BINARY]
    + [f"core/ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")]
    + [
        f"core/{name}"
        for name in (
            "NumberReplacer", "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
            "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "ExceptionReplacer",
        )
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    module: str
    operator: str
    line: int
    before: str
    after: str
    source: str


def essence(source: str) -> str:
    """The program without annotations and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(tree)


def mutants(core: str, module: str) -> Iterator[Mutant]:
    """Every mutant of one module, once."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    source = (ROOT / core / f"{module}.py").read_text(encoding="utf-8")
    seen, lines = {essence(source)}, source.splitlines()
    known = set(operator_names())
    for name in OPERATORS:
        if name not in known:
            continue
        operator, occurrence = get_operator(name)(), 0
        while (mutated := mutate_code(source, operator, occurrence)) is not None:
            occurrence += 1
            try:
                what = essence(mutated)
            except SyntaxError:
                continue
            if what in seen:
                continue
            seen.add(what)
            changed = mutated.splitlines()
            at = next((i for i, (a, b) in enumerate(zip(lines, changed, strict=False)) if a != b), len(lines) - 1)
            yield Mutant(module, name.removeprefix("core/"), at + 1, lines[at].strip(), changed[at].strip(), mutated)


def tests_of(core: str, module: str) -> list[str]:
    """Test files, the module's own first, and its doctests."""
    source = (ROOT / core / f"{module}.py").read_text(encoding="utf-8")
    public = re.search(r"^__all__ = \[(.*?)\]", source, re.M | re.S)
    names = re.findall(r'"(\w+)"', public[1]) if public else []
    mentions = re.compile(r"\b(" + "|".join([rf"{core}\.{module}", *map(re.escape, names)]) + r")\b")
    own = ROOT / "tests" / core / f"test_{module}.py"
    folders = [ROOT / "tests" / core, ROOT / "tests" / "claims"]
    others = [
        p for folder in folders for p in sorted(folder.glob("test_*.py")) if p != own and mentions.search(p.read_text(encoding="utf-8"))
    ]
    return [str(p) for p in ([own] if own.exists() else []) + [ROOT / core / f"{module}.py"] + others]


class Mutated(importlib.machinery.SourceFileLoader):
    """Loads given source under a module's name."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> object:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class Finder:
    """Finds one module in its mutated form."""

    def __init__(self, name: str, path: str, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=Mutated(name, self.path, self.source))


class Plant:
    """Puts the finder ahead of pytest's own, which would read the file from disk to rewrite its assertions."""

    def __init__(self, finder: Finder) -> None:
        self.finder = finder

    def pytest_sessionstart(self) -> None:
        sys.meta_path.insert(0, self.finder)


def run(core: str, module: str, source: str | None, files: list[str]) -> int:
    """In a forked child: run the tests on the mutated source; 0 if all pass."""
    import hypothesis
    import pytest

    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    hypothesis.settings.register_profile("mutants", max_examples=25, derandomize=True, deadline=None, database=None)
    hypothesis.settings.load_profile("mutants")
    plugins = [] if source is None else [Plant(Finder(f"{core}.{module}", str(ROOT / core / f"{module}.py"), source))]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not gpu"]
    return int(pytest.main([*options, *files], plugins=plugins))


class Worker:
    """One forked test run."""

    def __init__(self, core: str, module: str, source: str | None, files: list[str], limit: float) -> None:
        self.began, self.limit = time.monotonic(), limit
        self.pid = os.fork()
        if not self.pid:
            code = 70
            try:
                code = run(core, module, source, files)
            finally:
                os._exit(code)

    def poll(self) -> str | None:
        """ "passed", "failed" or "timeout" once finished."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        if time.monotonic() - self.began > self.limit:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return "timeout"
        return None

    def wait(self) -> tuple[str, float]:
        while (result := self.poll()) is None:
            time.sleep(0.01)
        return result, time.monotonic() - self.began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("core", choices=["conformal_core", "carm_core"])
    parser.add_argument("--modules", help="comma-separated; default all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, help="at most so many mutants a module, evenly spread")
    parser.add_argument("--tools", type=Path, default=TOOLS, metavar="DIR", help="where cosmic-ray is installed")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.json")
    args = parser.parse_args()
    sys.path.append(str(args.tools))
    for name in ("numpy", "scipy.stats", "scipy.special", "hypothesis", "hypothesis.strategies", "pytest", "_pytest.assertion.rewrite"):
        importlib.import_module(name)
    every = [p.stem for p in sorted((ROOT / args.core).glob("*.py")) if p.stem != "__init__"]
    survivors: list[Mutant] = []
    killed = timeouts = 0
    began = time.monotonic()
    for module in args.modules.split(",") if args.modules else every:
        files = tests_of(args.core, module)
        state, spent = Worker(args.core, module, None, files, 600).wait()
        if state != "passed":
            sys.exit(f"{module}: the tests do not pass on the source as it is ({state}); nothing can be learnt from its mutants")
        todo = list(mutants(args.core, module))
        if args.limit and len(todo) > args.limit:
            todo = [todo[i * len(todo) // args.limit] for i in range(args.limit)]
        running: list[tuple[Mutant, Worker]] = []
        count, alive, started = len(todo), 0, time.monotonic()
        while todo or running:
            while todo and len(running) < args.jobs:
                mutant = todo.pop()
                running.append((mutant, Worker(args.core, module, mutant.source, files, 10 + 4 * spent)))
            time.sleep(0.01)
            for item in list(running):
                result = item[1].poll()
                if result is None:
                    continue
                running.remove(item)
                if result == "passed":
                    survivors.append(item[0])
                    alive += 1
                    print(f"  survived  {args.core}/{module}.py:{item[0].line}  {item[0].before}  ->  {item[0].after}", flush=True)
                killed += result != "passed"
                timeouts += result == "timeout"
        minutes = (time.monotonic() - started) / 60
        print(
            f"{module}: {count - alive} of {count} killed; tests take {spent:.1f} s; {count / max(minutes, 1e-9):.0f} mutants a minute",
            flush=True,
        )
    total = killed + len(survivors)
    spent = (time.monotonic() - began) / 60
    print(f"{args.core}: {killed} of {total} killed ({killed / max(total, 1):.1%}), {timeouts} by timeout, {spent:.1f} minutes")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    listed = [{k: v for k, v in asdict(m).items() if k != "source"} for m in survivors]
    args.out.write_text(json.dumps({"core": args.core, "mutants": total, "killed": killed, "survivors": listed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
