"""What crosses between a program and its tests arrives as it was: values, changes in place, aliases, exceptions, functions."""

import datetime
import math
import os
import threading
from collections import deque
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.sandbox import FunctionTests, Limits, ProgramTests, Sandbox, plain
from experiments.sandbox.candidate_side import Served
from experiments.sandbox.tests_side import Link, Lost, Remote

QUICK = settings(max_examples=150, deadline=None)


@pytest.fixture(scope="module")
def box():
    return Sandbox(workers=2)


@contextmanager
def connected(**objects):
    """Both sides in this process, with a pipe each way, as the two sandboxes have it."""
    (ask_read, ask_write), (reply_read, reply_write) = os.pipe(), os.pipe()
    with open(ask_read) as requests, open(reply_write, "w") as answers, open(reply_read) as replies:
        served = Served(requests, answers)
        served.module.__dict__.update(objects)

        def serve():
            for line in requests:
                served.answer(line)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with open(ask_write, "w") as asking:
            link = Link(asking, replies)
            link.space = globals()
            yield {name: Remote(link, {"name": name}) for name in objects}
        thread.join(20)
        assert not thread.is_alive()


zones = st.none() | st.builds(datetime.timezone, st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.timedeltas()
    | st.datetimes(timezones=zones)
    | st.times(timezones=zones)
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9))
)
keys = st.integers() | st.text(max_size=2) | st.tuples(st.integers(), st.dates())
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.sets(keys, max_size=3)
        | st.frozensets(keys, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    return type(a) is type(b) and repr(a) == repr(b) if isinstance(a, (float, complex, Decimal)) else type(a) is type(b) and a == b


@QUICK
@given(values)
def test_values_arrive_as_they_were(value):
    assert same(plain.decode(plain.encode(value, id), int), value)
    with connected(f=lambda x: x) as program:
        assert same(program["f"](value), value)


def step(container, kind, other):
    """One change in place of any container."""
    if isinstance(container, (list, deque)):
        {0: container.reverse, 1: lambda: container.append(other), 2: container.clear, 3: lambda: container.extend([other, 7])}[kind]()
    elif isinstance(container, dict):
        {0: lambda: container.update(a=other), 1: container.clear, 2: lambda: container.pop("a", None), 3: lambda: container.update(b=1)}[
            kind
        ]()
    elif isinstance(container, set):
        {0: container.clear, 1: lambda: container.add(9), 2: lambda: container.discard(9), 3: lambda: container.update("ab")}[kind]()


def scenario(shape):
    """Containers that hold each other, twice the same where ``shape`` says so."""
    row, rest, names, bag = [1, 2], deque([3]), {"a": 1}, {4}
    row.append(names)
    pool = [row, rest, names, bag, [row, row, rest], {"row": row, "bag": bag}, ([names], bag)]
    return row, rest, names, bag, [pool[i] for i in shape]


def play(shape, script, call):
    row, rest, names, bag, arguments = scenario(shape)

    def change(*given, **named):
        everything = [*given, *named.values()]
        flat = [c for c in everything if not isinstance(c, tuple)] + [x for c in everything if isinstance(c, (list, tuple)) for x in c]
        flat = [c for c in flat if isinstance(c, (list, deque, dict, set))]
        for at, kind, other in script:
            if flat:
                step(flat[at % len(flat)], kind, other if isinstance(other, int) else [other])
        return everything[at % len(everything)] if everything else None

    result = call(change, arguments)
    held = [row, rest, names, bag, *arguments]
    return held, result, [result is a for a in held], [[a is b for a in held] for b in held]


@QUICK
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers() | st.text(max_size=1)), min_size=1, max_size=4),
    st.booleans(),
)
def test_changes_in_place_are_seen_by_everyone_who_holds_the_container(shape, script, by_keyword):
    def near(change, arguments):
        return change(*arguments[1:], first=arguments[0]) if by_keyword else change(*arguments)

    def far(change, arguments):
        with connected(change=change) as program:
            return near(program["change"], arguments)

    wanted, got = play(shape, script, near), play(shape, script, far)
    assert got[0] == wanted[0] and got[1] == wanted[1]
    if not isinstance(wanted[1], tuple):
        assert got[2:] == wanted[2:]


class Own(ValueError):
    pass


class OwnKey(Own, KeyError):
    pass


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b


RAISED = [
    (ValueError("bad", 3), ValueError),
    (Own("bad"), ValueError),
    (OwnKey("k"), ValueError),
    (KeyError("k"), KeyError),
    (FileNotFoundError(2, "gone", "x"), FileNotFoundError),
    (OSError("o"), OSError),
    (AttributeError("a"), AttributeError),
    (ZeroDivisionError(), ZeroDivisionError),
    (UnicodeDecodeError("utf-8", b"x", 0, 1, "r"), UnicodeError),
    (UnicodeError("u"), UnicodeError),
    (RecursionError("r"), RecursionError),
    (NotImplementedError("n"), NotImplementedError),
    (Odd(1, 2), Exception),
    (UserWarning("w"), UserWarning),
    (AssertionError([1]), AssertionError),
    (StopIteration(3), Exception),
    (SystemExit(0), RuntimeError),
    (KeyboardInterrupt(), RuntimeError),
    (GeneratorExit(), RuntimeError),
    (ExceptionGroup("g", [ValueError(1)]), Exception),
]


@pytest.mark.parametrize(("error", "kind"), RAISED, ids=lambda v: getattr(v, "__name__", type(v).__name__))
def test_an_exception_arrives_as_its_nearest_builtin_class_with_its_arguments(error, kind):
    def f():
        raise error

    with connected(f=f) as program:
        with pytest.raises(kind) as caught:
            program["f"]()
        assert type(caught.value) is kind
        if kind not in (RuntimeError, UnicodeError) and not isinstance(error, ExceptionGroup):
            assert caught.value.args == error.args
        with pytest.raises(kind):
            program["f"]()


def test_a_json_error_is_a_value_error():
    import json

    with connected(f=json.loads) as program, pytest.raises(ValueError, match="Expecting value"):
        program["f"]("x")


class Node:
    def __init__(self, value, left=None):
        self.value, self.left = value, left

    def total(self):
        return self.value + (self.left.total() if self.left else 0)


def test_attributes_are_set_on_the_programs_objects():
    with connected(Node=Node, depth=lambda n: 0 if n is None else 1 + depth_of(n.left), kind=lambda c, n: isinstance(n, c)) as program:
        root = program["Node"](1)
        root.left = program["Node"](2, left=program["Node"](3))
        root.left.value = 10
        assert root.total() == 14 and program["depth"](root) == 3 and root.left is root.left
        assert program["kind"](program["Node"], root) is True
        root.left = None
        assert root.left is None and root.total() == 1
        with pytest.raises(AttributeError):
            root.__class__ = int
        with pytest.raises(AttributeError):
            _ = root.missing


def depth_of(node):
    return 0 if node is None else 1 + depth_of(node.left)


def test_iterators_and_iterables():
    def count():
        i = 0
        while True:
            yield i
            i += 1

    def stops():
        yield 1
        yield 2
        raise KeyError("end")

    class Bag:
        def __init__(self):
            self.items = []

        def add(self, x):
            self.items.append(x)

        def __iter__(self):
            return iter(self.items)

    with connected(count=count, stops=stops, Bag=Bag, view=dict.keys, seven=lambda: 7) as program:
        numbers = program["count"]()
        assert [next(numbers), next(numbers)] == [0, 1]
        assert [x for x, _ in zip(numbers, range(5), strict=False)] == [2, 3, 4, 5, 6]
        assert next(iter(numbers)) > 6
        assert [x for x, _ in zip(program["count"](), range(3000), strict=False)] == list(range(3000))
        got = []
        with pytest.raises(KeyError):
            got.extend(program["stops"]())
        assert got == [1, 2]
        bag = program["Bag"]()
        bag.add(1)
        assert list(bag) == list(bag) == [1]
        bag.add(2)
        assert list(bag) == [1, 2] and 2 in bag
        with pytest.raises(TypeError, match="no iterator"):
            next(bag)
        once = program["stops"]()
        assert next(once) == 1
        assert sorted(program["view"]({"b": 1, "a": 2})) == ["a", "b"]


def test_functions_of_the_tests_can_be_called_by_the_program():
    def fold(f, items):
        return [f(x) for x in items]

    def guarded(f):
        try:
            return f(0)
        except ZeroDivisionError as error:
            return str(error)

    with connected(fold=fold, guarded=guarded, back=lambda f: f, twice=lambda f, x: f(f(x))) as program:
        assert program["fold"](square, [1, 2, 3]) == [1, 4, 9]
        assert program["fold"](lambda x: program["twice"](square, x), [2]) == [16]
        assert program["guarded"](lambda x: 1 / x) == "division by zero"
        assert program["back"](square) is square
        with pytest.raises(ZeroDivisionError):
            program["fold"](lambda x: 1 // x, [0])
        with pytest.raises(TypeError, match="cannot cross as data"):
            program["back"](eval)
        with pytest.raises(TypeError, match="cannot cross as data"):
            program["back"](math.sqrt)


def square(x):
    return x * x


def test_a_missing_function_is_no_exception_that_tests_may_want():
    with connected(f=1) as program, pytest.raises(Lost, match="does not define g"):
        Remote(object.__getattribute__(program["f"], "__parts")["link"], {"name": "g"})()


CLASS = "class S:\n    def __init__(self, x): self.x = x\n    def get(self): return self.x\n"
HONEST = {
    "dataclass": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef f(): return A(1).x",
        "assert f() == 1",
    ),
    "pickle of its own class": ("import pickle\nclass A: x = 1\ndef f(): return pickle.loads(pickle.dumps(A())).x", "assert f() == 1"),
    "source of its own": (
        "import inspect\ndef g(): return 5\ndef f(): return inspect.getsource(g)",
        "assert f() == 'def g(): return 5\\n'",
    ),
    "import of itself": ("import sys\nY = 3\ndef f(): return sys.modules[__name__].Y", "assert f() == 3"),
    "dates": (
        "import datetime\ndef f(d): return d + datetime.timedelta(1)",
        "import datetime as t\nassert f(t.date(2020, 1, 1)) == t.date(2020, 1, 2)",
    ),
    "attribute set": (CLASS, "s = S(3)\ns.x = 4\nassert s.get() == 4"),
    "names with underscores": (CLASS, "s = S(3)\ns._link = 4\ns._where = 5\nassert (s._link, s._where, s.get()) == (4, 5, 3)"),
    "next": ("def f(): yield 1", "assert next(f()) == 1"),
    "endless": (
        "import itertools\ndef f(): return itertools.count()",
        "from itertools import islice\nassert list(islice(f(), 3)) == [0, 1, 2]",
    ),
    "function": ("def f(g, x): return g(g(x))", "assert f(lambda x: x + 1, 2) == 4"),
    "keyword in place": ("def f(m): m.reverse()", "m = [1, 2]\nf(m=m)\nassert m == [2, 1]"),
    "row in place": ("def f(m): m[0].reverse()", "row = [1, 2]\nf([row])\nassert row == [2, 1]"),
    "rows exchanged": ("def f(m): m[0], m[1] = m[1], m[0]", "a, b = [1], [2]\nm = [a, b]\nf(m)\nassert m[0] is b and a == [1]"),
    "own exception": (
        "class E(ValueError): pass\ndef f(): raise E('no')",
        "try:\n    f()\nexcept ValueError as e:\n    assert str(e) == 'no'\nelse: assert False",
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_right_programs_of_every_kind_pass(box, name):
    source, tests = HONEST[name]
    verdict = box.check(source, FunctionTests(tests))
    assert verdict.passed, verdict


def test_a_setup_that_builds_objects_of_the_program(box):
    source = (
        "class Node:\n    def __init__(self, v): self.v, self.left = v, None\ndef depth(n): return 0 if n is None else 1 + depth(n.left)"
    )
    setup = "root = Node(1)\nroot.left = Node(2)"
    for tests in (FunctionTests("assert depth(root) == 2", (), setup), FunctionTests(f"{setup}\nassert depth(root) == 2")):
        assert box.check(source, tests).passed
        assert not box.check(source.replace("1 +", "2 +"), tests).passed
        verdict = box.check("def depth(n): return 2", tests)
        assert not verdict.passed and "does not define Node" in verdict.message


SUM = "input(); print(sum(map(int, input().split())))"
PROGRAMS = {
    "standard input by name": "print(sum(map(int, open('/dev/stdin').read().split()[1:])))",
    "large stack": f"import sys, threading\nsys.setrecursionlimit(10**7)\nthreading.stack_size(512 << 20)\ndef main(): {SUM}\n"
    "t = threading.Thread(target=main); t.start(); t.join()",
    "deep recursion in a thread": "import sys, threading\nsys.setrecursionlimit(10**7)\nthreading.stack_size(1 << 28)\n"
    f"def deep(n): return n and 1 + deep(n - 1)\ndef main():\n    deep(50_000)\n    {SUM}\n"
    "t = threading.Thread(target=main); t.start(); t.join()",
    "pool": "import multiprocessing as m\nif __name__ == '__main__':\n    input()\n"
    "    with m.Pool(2) as p: print(sum(p.map(int, input().split())))",
    "executor": "from concurrent.futures import ProcessPoolExecutor as E\nif __name__ == '__main__':\n    input()\n"
    "    with E(2) as p: print(sum(p.map(int, input().split())))",
    "shared memory": f"from multiprocessing import shared_memory as s\n"
    f"m = s.SharedMemory(create=True, size=100)\nm.buf[0] = 1\nm.close()\nm.unlink()\n{SUM}",
    "NumPy": "import numpy as np\ninput(); print(np.array(input().split(), dtype=int).sum())",
    "long integers as text": f"str(10**6000)\n{SUM}",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_main_programs_of_every_kind_pass(name):
    verdict = Sandbox(Limits(wall=60, cpu=30)).check(PROGRAMS[name], ProgramTests((("3\n1 2 3\n", "6\n"),)))
    assert verdict.passed, verdict


def test_fractions_and_infinities_keep_their_kind():
    for value in (Fraction(1, 3), Decimal("1.10"), math.inf, -0.0, {Fraction(1): {(1, 2)}}):
        assert repr(plain.decode(plain.encode(value, id), int)) == repr(value)
