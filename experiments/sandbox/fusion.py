"""Client of SandboxFusion, an HTTP service that runs programs on a cluster: batches, time-outs, retries.

Interface used: ``POST {url}/run_code`` with ``code``, ``language``, ``stdin``, ``run_timeout``, ``compile_timeout``, ``memory_limit_MB``;
the reply carries ``status`` ("Success", "Failed", "SandboxError") and ``run_result`` with ``status`` ("Finished", "Error",
"TimeLimitExceeded"), ``return_code``, ``stdout``, ``stderr`` and ``execution_time``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import random
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .results import Limits, Run, Verdict
from .runner import FunctionTests, Job, ProgramTests, Runner, SandboxUnavailable, judge

__all__ = ["SandboxFusion"]

_SHOWN = 200
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_STATUSES = {"Finished": "finished", "Error": "failed", "TimeLimitExceeded": "wall-clock limit"}


class Malformed(ValueError):
    """A reply that is not what the interface says."""


class SandboxFusion:
    """Verdicts of programs that read standard input and write standard output, from a SandboxFusion service.

    Expected outputs stay here: the service only runs programs, and what they print is compared on this side, so a program cannot forge
    its verdict.  Tests of functions need a second, trusted process beside the program, which the service does not offer: they go to
    ``functions``, and are refused without it.

    Parameters
    ----------
    url : base address of the service.
    limits : the service enforces ``wall`` and ``memory``; output is cut at ``output`` here.
    workers : requests under way at the same time.
    retries : further attempts after a time-out, a refused connection, a reply that says "later" (429, 5xx, SandboxError) or one that
        is not what the interface says.
    backoff : seconds before the first retry, doubled for each further one, with a random part against stampedes.
    functions : runner of function tests, such as a `Sandbox`.
    timeout : seconds after which an attempt is given up, however much of the reply came; default 5 more than compiling and running
        may take.

    Raises
    ------
    ValueError : an address that is not http(s), or counts out of range.
    SandboxUnavailable : by `check_all`, when the service fails every attempt; a verdict is never guessed.
    """

    def __init__(
        self,
        url: str,
        limits: Limits | None = None,
        *,
        workers: int = 32,
        retries: int = 4,
        backoff: float = 0.5,
        timeout: float | None = None,
        functions: Runner | None = None,
        seed: int = 0,
    ) -> None:
        if not _is_address(url):
            raise ValueError(f"url: got {url!r}; need http:// or https:// and a host; because SandboxFusion is an HTTP service")
        if timeout is not None and not _is_number(timeout, above=0):
            raise ValueError(f"timeout: got {timeout!r}; need a number of seconds > 0; because a request that hangs is given up then")
        for name, value, least in (("workers", workers, 1), ("retries", retries, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}: got {value!r}; need an integer >= {least}; because requests are repeated and shared out by it")
        if not _is_number(backoff) or backoff < 0:
            raise ValueError(f"backoff: got {backoff!r}; need a number of seconds >= 0; because attempts wait for it")
        self.url = url.rstrip("/")
        self.limits = limits or Limits()
        self.workers, self.retries, self.backoff = workers, retries, backoff
        self.functions = functions
        self.timeout = 2 * self.limits.wall + 5 if timeout is None else timeout
        self._random = random.Random(seed)

    def run(self, source: str, stdin: str = "") -> Run:
        """Run ``source`` as a main program on the service."""
        body = {
            "code": source,
            "language": "python",
            "stdin": stdin,
            "run_timeout": self.limits.wall,
            "compile_timeout": self.limits.wall,
            "memory_limit_MB": self.limits.memory >> 20,
        }
        return self._post(json.dumps(body).encode())

    def check_all(self, jobs: Sequence[Job]) -> list[Verdict]:
        """Verdicts in the order of ``jobs``; all cases of all jobs share the ``workers`` connections."""
        here = [i for i, job in enumerate(jobs) if isinstance(job.tests, FunctionTests)]
        if self.functions is None and here:
            raise ValueError(
                "jobs: got tests of functions; need programs with standard input and output; because inside one remote process a "
                "program could forge the verdict (Sandbox runs such tests)"
            )
        there = [i for i, job in enumerate(jobs) if isinstance(job.tests, ProgramTests)]
        with ThreadPoolExecutor(self.workers) as pool:
            verdicts = dict(zip(there, pool.map(self._check, [jobs[i] for i in there]), strict=True))
        if self.functions is not None and here:
            verdicts |= zip(here, self.functions.check_all([jobs[i] for i in here]), strict=True)
        return [verdicts[i] for i in range(len(jobs))]

    def _check(self, job: Job) -> Verdict:
        assert isinstance(job.tests, ProgramTests)
        began = time.monotonic()
        if not job.tests.cases:
            return Verdict(False, "there are no tests", 0, 0.0)
        for i, (stdin, expected) in enumerate(job.tests.cases):
            message = judge(self.run(job.source, stdin), expected)
            if message:
                return Verdict(False, f"test {i}: {message}", i, time.monotonic() - began)
        return Verdict(True, "", len(job.tests.cases), time.monotonic() - began)

    def _post(self, body: bytes) -> Run:
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.backoff * 2 ** (attempt - 1) * (1 + self._random.random()))
            try:
                return self._read(self._attempt(body))
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}"
                error.close()
                if error.code not in _RETRIED:
                    break
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                problem = f"{type(error).__name__}: {error}"
        raise SandboxUnavailable(f"{self.url}: got {problem} after {attempt + 1} attempts; need a reply; because no verdict is guessed")

    def _attempt(self, body: bytes) -> bytes:
        """The reply to one request, or more of it than may be read; ``TimeoutError`` when it is not complete in time."""
        request = urllib.request.Request(f"{self.url}/run_code", body, {"Content-Type": "application/json"})
        with _Deadline(self.timeout) as deadline:
            try:
                with deadline.opener.open(request, timeout=self.timeout) as response:
                    reply: bytes = response.read(self._longest_reply + 1)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if deadline.passed or isinstance(getattr(error, "reason", error), TimeoutError):
                    raise TimeoutError(f"no whole reply in {self.timeout} s") from None
                raise
            if deadline.passed:
                raise TimeoutError(f"no whole reply in {self.timeout} s")
        return reply

    @property
    def _longest_reply(self) -> int:
        """Bytes that no reply needs: JSON writes a character in at most 12, and two texts share the limit."""
        return 12 * self.limits.output + (1 << 20)

    def _read(self, data: bytes) -> Run:
        if len(data) > self._longest_reply:
            return Run("output limit", None, "", "", 0.0)
        reply = json.loads(data)
        status = _field(reply, "status", str)
        if status not in ("Success", "Failed"):
            raise Malformed(f"status: got {status!r}; need 'Success' or 'Failed'; because {str(reply.get('message'))[:_SHOWN]}")
        result = reply.get("run_result")
        if result is None and status == "Failed" and isinstance(reply.get("compile_result"), dict):
            return Run("failed", None, "", "", 0.0)
        ended = _field(result, "status", str)
        if ended not in _STATUSES:
            raise Malformed(f"run_result.status: got {ended[:_SHOWN]!r}; need one of {', '.join(_STATUSES)}; because it decides")
        code = _field(result, "return_code", int, none=True)
        if ended == "Finished" and (code is None or (code == 0) != (status == "Success")):
            raise Malformed(f"return_code: got {code} with {status!r}; need 0 where and only where it succeeded; because they contradict")
        outcome = "finished" if ended == "Error" and code else _STATUSES[ended]
        stdout, stderr = (_field(result, name, str, none=True) or "" for name in ("stdout", "stderr"))
        seconds = _field(result, "execution_time", float, none=True) or 0.0
        if len(stdout) + len(stderr) > self.limits.output:
            outcome = "output limit"
        return Run(outcome, code, stdout[: self.limits.output], stderr[: self.limits.output], seconds)


def _field(reply: Any, name: str, kind: type, *, none: bool = False) -> Any:
    """``reply[name]`` if it is of ``kind`` (finite, if a number), or None where that may be."""
    if not isinstance(reply, dict):
        raise Malformed(f"reply: got a {type(reply).__name__}; need an object; because {name} is a field of it")
    value = reply.get(name)
    if value is None and none:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise Malformed(f"{name}: got {str(value)[:_SHOWN]!r}; need a {kind.__name__}; because that is the interface")
    if kind is float and not _is_number(value):
        raise Malformed(f"{name}: got {value}; need a finite number; because that is the interface")
    return value


def _is_number(value: Any, above: float = -math.inf) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > above


def _is_address(url: Any) -> bool:
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return False
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        return False


class _Deadline:
    """Ends a request at a fixed time.  A socket's own time-out starts anew with every byte, so a thread shuts the connection down."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._held: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self.opener = urllib.request.build_opener(_Handler(self._hold))

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for held in self._held:
                held.close()
            self._held.clear()

    def _hold(self, connected: socket.socket) -> None:
        with self._lock:
            self._held.append(connected.dup())
        if self.passed:
            self._end()

    def _end(self) -> None:
        self.passed = True
        with self._lock:
            for held in self._held:
                with contextlib.suppress(OSError):  # the other side was quicker
                    held.shutdown(socket.SHUT_RDWR)


class _Http(http.client.HTTPConnection):
    """Tells ``hold`` of its socket, before any encryption, as soon as there is one."""

    hold: Callable[[socket.socket], None]

    def connect(self) -> None:
        super().connect()
        self.hold(self.sock)


class _Https(http.client.HTTPSConnection, _Http):
    pass


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, hold: Callable[[socket.socket], None]) -> None:
        super().__init__()
        self._hold = hold

    def _made(self, kind: type[_Http]) -> Callable[..., http.client.HTTPConnection]:
        def make(*arguments: Any, **keywords: Any) -> http.client.HTTPConnection:
            connection = kind(*arguments, **keywords)
            connection.hold = self._hold
            return connection

        return make

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made(_Http), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made(_Https), request)
