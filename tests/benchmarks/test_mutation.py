"""Planting of mutants into living functions, and how long a verdict holds; what needs no mutation tool."""

from __future__ import annotations

import gc
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from benchmarks.mutation.operators import Mutant, spans
from benchmarks.mutation.planting import differ, living_functions, replacements
from benchmarks.mutation.store import Reasons, Results, report

SOURCE = '''"""A module."""
from functools import lru_cache

LIMIT = 10


@lru_cache(maxsize=64)
def cached(x):
    return x + 1


def default(x=3):
    return [y * 2 for y in (x, LIMIT)]


def adder(n):
    def add(x):
        return x - n

    return add


minus_two = adder(2)
PAIR = (lambda x: x + 5), (lambda x: x * 5)


class Thing:
    SIZE = 7

    @property
    def area(self):
        return self.SIZE ** 2
'''


@pytest.fixture
def planted(tmp_path: Path) -> tuple[str, ModuleType]:
    path = tmp_path / "core" / "module.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    module = ModuleType("module")
    exec(compile(SOURCE, str(path), "exec", dont_inherit=True), vars(module))
    return str(path), module


def plant(path: str, before: str, after: str) -> list[FunctionType] | None:
    mutated = SOURCE.replace(before, after, 1)
    assert mutated != SOURCE
    found = replacements(path, SOURCE, mutated, living_functions(str(Path(path).parent)))
    for function, code in found or ():
        function.__code__ = code
    return None if found is None else [function for function, _ in found]


@pytest.mark.parametrize(
    ("before", "after", "value", "was", "becomes"),
    [
        ("return x + 1", "return x - 1", lambda m: m.cached.__wrapped__(5), 6, 4),
        ("y * 2", "y / 2", lambda m: m.default(), [6, 20], [1.5, 5.0]),
        ("return x - n", "return x + n", lambda m: (m.minus_two(5), m.adder(2)(5)), (3, 3), (7, 7)),
        ("x + 5", "x - 5", lambda m: [f(10) for f in m.PAIR], [15, 50], [5, 50]),
        ("x * 5", "x / 5", lambda m: [f(10) for f in m.PAIR], [15, 50], [15, 2.0]),
        ("SIZE ** 2", "SIZE * 2", lambda m: m.Thing().area, 49, 14),
    ],
)
def test_a_change_inside_of_a_function_reaches_whatever_refers_to_it(planted, before, after, value, was, becomes) -> None:
    path, module = planted
    assert value(module) == was
    assert plant(path, before, after)
    assert value(module) == becomes


@pytest.mark.parametrize(("before", "after"), [("LIMIT = 10", "LIMIT = 11"), ("x=3", "x=4"), ("SIZE = 7", "SIZE = 8"), ("=64", "=65")])
def test_a_change_outside_of_functions_is_left_to_an_import_anew(planted, before: str, after: str) -> None:
    assert plant(planted[0], before, after) is None


def test_functions_of_frozen_garbage_collection_are_not_found(planted) -> None:
    """Which is why the session looks for them before it freezes."""
    folder = str(Path(planted[0]).parent)
    assert living_functions(folder)
    gc.freeze()
    try:
        assert not living_functions(folder)
    finally:
        gc.unfreeze()


def test_programs_that_compile_alike_do_not_differ() -> None:
    assert not differ("f.py", "x = 2 * 3\n", "x = 3 * 2\n") and differ("f.py", "x = 2 * 3\n", "x = 2 + 3\n")
    assert not differ("f.py", "def f():\n    return 1\n", "def f():\n\n    return 1\n")


def test_spans_are_statements_and_headers() -> None:
    found = spans("if (a and\n    b):\n    c = [\n        1,\n    ]\n")
    assert found == {1: (1, 2), 2: (1, 2), 3: (3, 5), 4: (3, 5), 5: (3, 5)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in (("core/module.py", SOURCE), ("tests/core/test_module.py", ""), ("tests/core/test_other.py", "")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "docs").mkdir()
    return tmp_path


def mutant(line: int, before: str, after: str) -> Mutant:
    return Mutant("module", "operator", line, (line, line), before, after, "")


def test_verdicts_hold_while_what_they_rest_on_is_the_same(tree: Path) -> None:
    results = Results(tree, "core", "module", tree / "store")
    killers = {
        "killed": "tests/core/test_module.py::test",
        "slow": "timeout in tests/core/test_module.py::test",
        "alive": None,
        "late": None,
    }
    for name, killer in killers.items():
        results.record(name, mutant(1, name, ""), killer, name != "late")
    results.number = 4
    results.save(killers)

    def held() -> set[str]:
        again = Results(tree, "core", "module", tree / "store")
        return {name for name in killers if again.holds(name)}

    assert held() == {"killed", "slow", "alive"}  # what is not decided is tried again
    (tree / "tests/core/test_other.py").write_text("x = 1")
    assert held() == {"killed", "slow"}
    (tree / "tests/core/test_module.py").write_text("x = 1")
    assert held() == set()
    (tree / "tests/core/test_module.py").write_text("")
    (tree / "core/module.py").write_text("x = 1")
    assert held() == set()


def test_reasons_and_the_report(tree: Path) -> None:
    (tree / "reasons.toml").write_text(
        '[[survivor]]\nmodule = "module"\nbefore = "a"\nafter = "b"\nwhy = "whole"\n'
        '[[survivor]]\nbefore = "strict=True"\nafter = "strict=False"\nwhy = "part"\n'
        '[[survivor]]\nmodule = "module"\ncontains = "st."\nwhy = "line"\n'
    )
    reasons = Reasons(tree / "reasons.toml")
    assert [reasons.why("module", *pair) for pair in (("a", "b"), ("a", "c"), ("f(strict=True)", "f(strict=False)"), ("st.x", "y"))] == [
        "whole", None, "part", "line",
    ]  # fmt: skip
    assert reasons.why("other", "a", "b") is None and Reasons(tree / "none.toml").why("module", "a", "b") is None
    results = Results(tree, "core", "module", tree / "store")
    results.number = 9
    for line, (before, killer, decided) in enumerate(
        [("a", None, True), ("k", "tests/core/test_module.py::test", True), ("s", None, True), ("u", None, False)], start=1
    ):
        results.record(before, mutant(line, before, "b"), killer, decided)
    report(tree, "core", [results], reasons)
    assert (tree / "docs/mutation_core.csv").read_text().splitlines()[1:] == ["module,9,4,1,1,1,1", "total,9,4,1,1,1,1"]
    text = (tree / "docs/mutation.md").read_text()
    assert "1 of 4 mutants killed (25.0%), of 9 there are; 1 equivalent, 1\nsurvivors, 1 not decided." in text
    for line in ("line 1: `a` -> `b`: whole", "line 3: `s` -> `b`: no test fails", "line 4: `u` -> `b`: not decided: not all tests ran"):
        assert line in text
    report(tree, "core", [results], reasons)
    assert (tree / "docs/mutation.md").read_text() == text
