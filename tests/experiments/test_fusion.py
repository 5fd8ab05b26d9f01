"""The SandboxFusion client against a local stand-in: order, retries, time-outs, and no guessed verdicts."""

import json
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "https://", "http:///run", "http://:80", "x", "", "http://bad host", "http://x:port", "http://x:99999", "http://x\n",
            "http://x?y", "http://[::1", None, b"http://x"]
)  # fmt: skip
def test_addresses_that_are_none(url):
    with pytest.raises(ValueError, match=r"(?s)url: got .*; need http:// or https:// and a host; because"):
        SandboxFusion(url)


@pytest.mark.parametrize("url", ["http://x", "https://x.y:8080/", "http://127.0.0.1:1/base/path", "http://[::1]:80"])
def test_addresses(url):
    assert SandboxFusion(url).url == url.rstrip("/")


@pytest.mark.parametrize("name", ["workers", "retries", "backoff", "timeout"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True, [1]])
def test_numbers_out_of_range(name, value):
    with pytest.raises(ValueError, match=rf"{name}: got .*; need .*; because"):
        SandboxFusion("http://x", **{name: value})
    if name in ("workers", "retries"):
        with pytest.raises(ValueError, match=rf"{name}: got 1.5; need an integer"):
            SandboxFusion("http://x", **{name: 1.5})


RIGHT = {"status": "Finished", "return_code": 0, "stdout": "3", "stderr": "", "execution_time": 0.1}


def reply(status="Success", **changes):
    return {"status": status, "message": "", "compile_result": None, "run_result": RIGHT | changes}


ONE = Job(ADD, ProgramTests(CASES.cases[:1]))
NO_TEXT = [1, 1.5, True, ["Finished"], {"a": 1}, [], {}]
MALFORMED = [
    *(reply(**{field: value}) for field in ("stdout", "stderr", "status") for value in NO_TEXT),
    *(reply(return_code=value) for value in ("0", "", 0.0, 0.5, False, True, [0], {}, None)),
    *(reply(execution_time=value) for value in ("abc", "", True, [1], {}, float("nan"), float("inf"))),
    *(reply() | {"run_result": value} for value in ([1], [], "x", "", 1, True, None)),
    *(reply() | {"status": value} for value in (["Success"], {}, None, 1, True, "success", "", "SandboxError")),
    *(reply("Failed") | {"run_result": value} for value in (None, [], "x")),
    *({k: v for k, v in reply().items() if k != field} for field in ("status", "run_result")),
    reply() | {"run_result": RIGHT | {"status": "Killed"}},
    reply("Failed"),
    reply(return_code=1) | {"status": "Success"},
    None, [], "x", 1, {},
]  # fmt: skip
NO_JSON = [b"", b"<html>", b"\xff\xff", b"[" * 100_000, b'{"a":' * 100_000, b"null", json.dumps(reply()).encode()[:-3], b"\0", b"{}{}"]


@pytest.mark.parametrize("body", [*NO_JSON, *(json.dumps(m).encode() for m in MALFORMED)])
def test_malformed_replies_are_retried_then_an_error_never_a_verdict(body):
    with StandIn({0: body}) as server:
        assert client(server, retries=1).check_all([ONE])[0].passed
    with StandIn({0: body, 1: body}) as server:
        with pytest.raises(SandboxUnavailable, match="after 2 attempts; need a reply; because no verdict is guessed"):
            client(server, retries=1).check_all([ONE])
        assert len(server.requests) == 2


#: Values of every kind that JSON has, where the interface wants another.
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["", "0", "Finished", "Error", "Success", "3"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["status", "return_code", "stdout"]), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_only_a_run_that_finished_with_code_0_can_pass(data):
    """Any reply gives a run or one kind of error; it is accepted as right only if every field says so."""
    fields = data.draw(st.sets(st.sampled_from(["status", *RIGHT]), max_size=2))
    result = RIGHT | {f: data.draw(anything) for f in fields if f != "status"}
    changed = {"status": data.draw(anything) if "status" in fields else "Success", "run_result": result}
    remote = SandboxFusion("http://x")
    try:
        run = remote._read(json.dumps(changed).encode())
    except ValueError:
        return
    if run.ok:
        assert changed["status"] == "Success" and result["status"] == "Finished"
        assert type(result["return_code"]) is int and result["return_code"] == 0
        assert run.stdout == (result["stdout"] or "")


@pytest.mark.parametrize("code", [0, 1, None])
@pytest.mark.parametrize(("overall", "ended"), [("Success", "Error"), ("Failed", "Error"), ("Failed", "TimeLimitExceeded")])
def test_a_run_that_the_service_calls_failed_does_not_pass(overall, ended, code):
    with StandIn({0: json.dumps(reply(overall) | {"run_result": RIGHT | {"status": ended, "return_code": code}}).encode()}) as server:
        assert not client(server).check_all([ONE])[0].passed
        assert len(server.requests) == 1


def test_a_reply_without_end_is_an_output_limit():
    with StandIn({0: json.dumps(reply(stdout="3" * 10**7)).encode()}) as server:
        assert client(server, limits=Limits(wall=5, output=1000)).check_all([ONE])[0].message == "test 0: output limit"


@pytest.mark.parametrize("fault", ["drip", "drip header", "hang"])
def test_an_attempt_ends_in_time_however_slowly_the_reply_drips(fault):
    began = time.monotonic()
    with StandIn({0: fault}, hang=4.0) as server:
        assert client(server, retries=1, timeout=1.0).check_all([ONE])[0].passed
    with StandIn({0: fault, 1: fault}, hang=4.0) as server, pytest.raises(SandboxUnavailable, match=r"no whole reply in 1.0 s after 2"):
        client(server, retries=1, timeout=1.0).check_all([ONE])
    assert time.monotonic() - began < 20


def test_a_handshake_that_never_comes_ends_in_time():
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"https://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SandboxUnavailable, match="after 2 attempts"):
            SandboxFusion(address, retries=1, backoff=0, timeout=0.5).check_all([ONE])
    assert time.monotonic() - began < 20
