"""Row readers: whatever stands in a column, a reader gives an example that can be used or one clear line."""

import base64
import json
import pickle
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.sandbox import Sandbox
from experiments.tasks import Example, rows, task
from experiments.tasks.rows import NoTests
from experiments.verifiers.code import job_of

CASE = {"input": "1\n[1, 2]", "output": "3", "testtype": "functional"}
MBPP = {"task_id": 1, "text": "t", "code": "", "test_list": ["assert f(1) == 1"], "test_setup_code": ""}
#: A row that can be used, by task.
GOOD = {
    "gsm8k": {"question": "q", "answer": "x\n#### 1,234"},
    "math500": {"problem": "p", "answer": "1", "unique_id": "u"},
    "math_algebra": {"problem": "p", "solution": r"so $\boxed{\frac{1}{2}}$"},
    "aime24": {"ID": "2", "Problem": "p", "Answer": 33},
    "dapo_math": {"prompt": [{"role": "user", "content": "What?"}], "reward_model": {"ground_truth": "34"}},
    "gpqa_diamond": {
        "Question": "q",
        "Correct Answer": "a",
        "Incorrect Answer 1": "b",
        "Incorrect Answer 2": "c",
        "Incorrect Answer 3": "d",
    },
    "humaneval": {"task_id": "x", "prompt": "def f():\n    'd'\n", "test": "def check(c):\n    assert c() == 1", "entry_point": "f"},
    "mbpp": MBPP,
    "mbpp_plus": MBPP | {"test_imports": ["import math"], "test": "assert f(1) == 1"},
    "taco": {"question": "q", "starter_code": "", "input_output": {"inputs": ["1"], "outputs": ["1"]}},
    "livecodebench_v6": {
        "question_content": "q",
        "starter_code": "",
        "public_test_cases": json.dumps([CASE]),
        "private_test_cases": "[]",
        "metadata": '{"func_name": "f"}',
    },
}
WRONG = [
    None,
    5,
    -1.5,
    True,
    "",
    " ",
    "\0",
    "None",
    "a string",
    [],
    [None],
    [1],
    ["x"],
    [[]],
    {},
    {"a": 1},
    float("nan"),
    b"bytes",
    10**6000,
    "[" * 10**5,
]
#: Columns that may hold any text, "None" among them.
TEXTS = ("question", "Question", "problem", "Problem", "prompt", "text", "question_content")
COLUMNS = [(name, column) for name, row in GOOD.items() for column in row]


def usable(example):
    assert isinstance(example, Example) and all(isinstance(v, str) for v in vars(example).values())
    assert example.question.strip() and example.answer.strip() not in ("", "None", "nan")
    assert "None" not in example.question and "Ellipsis" not in example.question


def check(name, row):
    """The reader's example, or the message of what it raised."""
    try:
        example = task(name).parse(row)
    except KeyError as missing:
        return str(missing)
    except ValueError as error:
        message = str(error)
    else:
        usable(example)
        return example
    assert all(word in message for word in (": got ", "; need ", "; because ")), message
    assert len(message) < 1000
    return message


@pytest.mark.parametrize("name", GOOD)
def test_good_rows_are_read(name):
    usable(task(name).parse(GOOD[name]))


@pytest.mark.parametrize(("name", "column"), COLUMNS)
@pytest.mark.parametrize("value", WRONG, ids=lambda v: str(type(v).__name__))
def test_a_wrong_value_in_any_column_is_one_clear_line_or_harmless(name, column, value):
    if column in TEXTS and value in ("None", "\0"):
        return
    check(name, GOOD[name] | {column: value})


@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_a_missing_column_is_named_or_not_needed(name, column):
    check(name, {k: v for k, v in GOOD[name].items() if k != column})


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("row", [None, "x", ["x"], 5, [GOOD["gsm8k"]]])
def test_a_row_that_is_no_object(name, row):
    with pytest.raises(ValueError, match=r"row: got a .*; need an object; because columns have names"):
        task(name).parse(row)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["assert f(1) == 1", "1", "def f(): 1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inputs", "outputs", "fn_name", "content", "ground_truth", "input", "output", "testtype"]), inner, max_size=4
        )
    ),
    max_leaves=6,
)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(COLUMNS), values, st.booleans())
def test_any_value_in_any_column(place, value, as_json):
    name, column = place
    if isinstance(value, str) and column in TEXTS:
        return
    check(name, GOOD[name] | {column: json.dumps(value) if as_json else value})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gsm8k", {"answer": "a ####"}),
        ("gsm8k", {"answer": "####  "}),
        ("gsm8k", {"question": " \n"}),
        ("math500", {"answer": "", "solution": r"\boxed{1}"}),
        ("math500", {"answer": None, "solution": "The answer is 5."}),
        ("math_algebra", {"solution": r"There are 3 of 12, \boxed{}"}),
        ("dapo_math", {"prompt": []}),
        ("dapo_math", {"reward_model": {"ground_truth": None}}),
        ("dapo_math", {"reward_model": {"ground_truth": "None"}}),
        ("gpqa_diamond", {"Incorrect Answer 1": None}),
        ("gpqa_diamond", {"Incorrect Answer 1": "a "}),
        ("gpqa_diamond", {"Incorrect Answer 3": "c"}),
        ("humaneval", {"test": "def verify(c): pass"}),
        ("humaneval", {"test": "    def check(c): pass"}),
        ("humaneval", {"test": "def check(c): assert ("}),
        ("humaneval", {"entry_point": "f()"}),
        ("humaneval", {"entry_point": "class"}),
        ("mbpp", {"test_list": "assert f(1) == 1"}),
        ("mbpp", {"test_list": []}),
        ("mbpp", {"test_list": ["", " "]}),
        ("mbpp", {"test_list": ["assert True"]}),
        ("mbpp", {"test_list": ["assert f(1 == 1"]}),
        ("mbpp", {"test_setup_code": "root = Node("}),
        ("taco", {"input_output": '{"inputs": ["1"], "outputs": []}'}),
        ("taco", {"input_output": {"inputs": "1", "outputs": "1"}}),
        ("taco", {"input_output": {"inputs": [[1]], "outputs": [1], "fn_name": "f g"}}),
        ("taco", {"input_output": {"inputs": ["12"], "outputs": [1], "fn_name": "f"}}),
        ("taco", {"input_output": {"inputs": [[None]], "outputs": ["1"]}}),
        ("livecodebench_v6", {"public_test_cases": "[]"}),
        ("livecodebench_v6", {"private_test_cases": json.dumps([CASE | {"testtype": "stdin"}])}),
        ("livecodebench_v6", {"private_test_cases": "%%%"}),
        ("livecodebench_v6", {"private_test_cases": base64.b64encode(b"no zlib").decode()}),
        ("livecodebench_v6", {"private_test_cases": base64.b64encode(zlib.compress(b"no pickle")).decode()}),
        ("livecodebench_v6", {"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps("[1]"))).decode()}),
        ("livecodebench_v6", {"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(7))).decode()}),
        ("livecodebench_v6", {"metadata": '{"func_name": ""}'}),
    ],
)
def test_rows_that_would_be_answered_wrongly_are_refused(name, change):
    assert isinstance(check(name, GOOD[name] | change), str)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("taco", {"input_output": v}) for v in ("", None, {}, "{}", "null", " ", '{"inputs": [], "outputs": []}')),
        ("mbpp", {"test_list": []}),
        ("livecodebench_v6", {"public_test_cases": "[]"}),
    ],
)
def test_rows_without_tests_have_an_error_of_their_own(name, change):
    with pytest.raises(NoTests, match="because a program without tests is never right"):
        task(name).parse(GOOD[name] | change)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"There are 3 so $\boxed 7$ of 12.", "7"),
        (r"\boxed{1}, no, \boxed{2}.", "2"),
        (r"$\fbox{x+1}$ and 5", "x+1"),
        (r"\boxed{\text{(A)}}", r"\text{(A)}"),
    ],
)
def test_the_gold_answer_is_the_last_box(solution, answer):
    assert rows.competition({"problem": "p", "solution": solution}).answer == answer


BIG = 7**20_000


def program(answer, source):
    return Sandbox().check_all([job_of(f"```python\n{source}\n```", answer)])[0]


@pytest.mark.parametrize("digits", [10, 999, 1001, 4300, 4301, 20_000])
def test_integers_of_any_size_are_tests_like_others(digits):
    number = "1" * digits
    spec = f'{{"fn_name": "f", "inputs": [[{number}], [-{number}]], "outputs": [[{number}], [-{number}]]}}'
    calls = rows.taco(GOOD["taco"] | {"input_output": spec}).answer
    assert program(calls, "def f(x): return x").passed and not program(calls, "def f(x): return x + 1").passed
    lines = rows.taco(GOOD["taco"] | {"input_output": f'{{"inputs": [[{number}]], "outputs": [[{number}]]}}'}).answer
    assert program(lines, "print(int(input()))").passed and not program(lines, "print(int(input()) + 1)").passed
    case = CASE | {"input": number, "output": number}
    cases = rows.livecodebench(GOOD["livecodebench_v6"] | {"public_test_cases": json.dumps([case])}).answer
    assert program(cases, "def f(x): return x").passed and not program(cases, "def f(x): return x + 1").passed


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3), max_leaves=8
)


@settings(max_examples=300, deadline=None)
@given(plain)
def test_values_keep_their_meaning_in_the_source_of_tests(value):
    assert eval(rows._literal(value), {"__builtins__": {}}) == value


def test_a_setup_may_build_objects_of_the_program_and_import_before_it():
    setup = "from math import *\nclass Helper:\n    pass\nbase = abs(-1)"
    example = rows.mbpp(MBPP | {"test_setup_code": setup, "test_list": ["assert sqrt(base) == 2"], "code": "def sqrt(x): return x + 1"})
    assert program(example.answer, "def sqrt(x): return x + 1").passed
    assert not program(example.answer, "import math\nsqrt = math.sqrt").passed


STARTER = "class Solution:\n    def f(self, xs: List[int], k: Optional[int] = None) -> int:\n        "


@pytest.mark.parametrize("head", ["", "from __future__ import annotations\n", "from typing import List, Optional\nimport collections\n"])
def test_starter_code_of_a_class_needs_no_imports_of_its_own(head):
    spec = {"fn_name": "f", "inputs": [[[3, 1]], [[2, 2]]], "outputs": [[1], [2]]}
    taco = rows.taco(GOOD["taco"] | {"input_output": spec, "starter_code": STARTER}).answer
    case = CASE | {"input": "[3, 1]", "output": "1"}
    changes = {"public_test_cases": json.dumps([case]), "starter_code": STARTER}
    lines = rows.livecodebench(GOOD["livecodebench_v6"] | changes).answer
    for answer in (taco, lines):
        assert program(answer, f"{head}{STARTER}return heapq.nsmallest(1, Counter(xs))[0]").passed
        assert program(answer, f"{head}{STARTER}return int(pow(min(xs), 1))").passed
        assert not program(answer, f"{head}{STARTER}return max(xs) + 1").passed
    plain_function = rows.taco(GOOD["taco"] | {"input_output": spec}).answer
    for answer, source in ((plain_function, "def f(xs): return min(xs)"), (taco, f"{STARTER}return min(xs)")):
        response = f"```python\n{source}\n```\nUsage:\n```python\nprint(f([1]))\n```"
        assert Sandbox().check_all([job_of(response, answer)])[0].passed
