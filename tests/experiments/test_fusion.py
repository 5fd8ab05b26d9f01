"""The SandboxFusion client against a local stand-in: order, retries, time-outs, and no guessed verdicts."""

import pytest

from experiments.sandbox import FunctionTests, Job, Limits, ProgramTests, Sandbox, SandboxUnavailable
from experiments.sandbox.fusion import SandboxFusion
from experiments.sandbox.stand_in import StandIn

ADD = "print(sum(map(int, input().split())))"
CASES = ProgramTests((("1 2", "3"), ("4 5", "9")))


def client(server, **options):
    return SandboxFusion(server.url, options.pop("limits", Limits(wall=5)), workers=4, backoff=0.01, **options)


def test_verdicts_in_order():
    jobs = [Job(ADD if i % 2 else "print(3)", CASES) for i in range(8)]
    with StandIn() as server:
        verdicts = client(server).check_all(jobs)
    assert [v.passed for v in verdicts] == [False, True] * 4
    assert verdicts[0].message == "test 1: wrong output '3\\n'" and verdicts[1].calls == 2
    assert {r["language"] for r in server.requests} == {"python"} and "9" not in {r["stdin"] for r in server.requests}


def test_cheats_and_limits():
    cheats = ["import sys; sys.exit(0)", "import os; os._exit(0)", "print('Success')", "raise SystemExit", "x ="]
    with StandIn() as server:
        assert [v.passed for v in client(server).check_all([Job(c, CASES) for c in cheats])] == [False] * 5
        slow = client(server, limits=Limits(wall=0.5)).check_all([Job("import time; time.sleep(9)", CASES)])
        loud = client(server, limits=Limits(wall=5, output=10)).check_all([Job("print('x' * 100)", CASES)])
    assert slow[0].message == "test 0: wall-clock limit" and loud[0].message == "test 0: output limit"


@pytest.mark.parametrize("fault", [429, 500, 503, "close", "SandboxError"])
def test_passing_faults_are_retried(fault):
    with StandIn({0: fault, 1: fault}) as server:
        assert client(server).check_all([Job(ADD, CASES)])[0].passed
    assert len(server.requests) == 4


def test_a_service_that_hangs_is_left():
    with StandIn({0: "hang"}, hang=2.0) as server:
        assert client(server, retries=1, timeout=1.0).check_all([Job(ADD, ProgramTests(CASES.cases[:1]))])[0].passed


@pytest.mark.parametrize(("fault", "attempts"), [(503, 3), (404, 1), ("close", 3)])
def test_lasting_faults_are_an_error_not_a_verdict(fault, attempts):
    with (
        StandIn(dict.fromkeys(range(9), fault)) as server,
        pytest.raises(SandboxUnavailable, match=rf"after {attempts} attempts; need a reply; because no verdict is guessed"),
    ):
        client(server, retries=2).check_all([Job(ADD, CASES)])
    assert len(server.requests) == attempts


def test_nobody_there():
    with pytest.raises(SandboxUnavailable, match="after 2 attempts"):
        SandboxFusion("http://127.0.0.1:9", retries=1, backoff=0).check_all([Job(ADD, CASES)])


def test_tests_of_functions_stay_here():
    jobs = [
        Job("def f(): return 1", FunctionTests("assert f() == 1")),
        Job(ADD, CASES),
        Job("def f(): return 2", FunctionTests("assert f() == 1")),
    ]
    with StandIn() as server:
        assert [v.passed for v in client(server, functions=Sandbox()).check_all(jobs)] == [True, True, False]
        assert len(server.requests) == 2


def test_what_cannot_be_judged_remotely_is_refused():
    remote = SandboxFusion("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="jobs: got tests of functions"):
        remote.check_all([Job("", FunctionTests("assert f()"))])
    with pytest.raises(ValueError, match="url: got 'ftp://x'"):
        SandboxFusion("ftp://x")
    with pytest.raises(ValueError, match="retries: got -1"):
        SandboxFusion("http://x", retries=-1)
