"""Client of SandboxFusion, an HTTP service that runs programs on a cluster: batches, time-outs, retries.

Interface used: ``POST {url}/run_code`` with ``code``, ``language``, ``stdin``, ``run_timeout``, ``compile_timeout``, ``memory_limit_MB``;
the reply carries ``status`` ("Success", "Failed", "SandboxError") and ``run_result`` with ``status`` ("Finished", "Error",
"TimeLimitExceeded"), ``return_code``, ``stdout``, ``stderr`` and ``execution_time``.
"""

from __future__ import annotations

import http.client
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .results import Limits, Run, Verdict
from .runner import FunctionTests, Job, ProgramTests, Runner, SandboxUnavailable, judge

__all__ = ["SandboxFusion"]

_RETRIED = (408, 425, 429, 500, 502, 503, 504)


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
    retries : further attempts after a time-out, a refused connection, or a reply that says "later" (429, 5xx, SandboxError).
    backoff : seconds before the first retry, doubled for each further one, with a random part against stampedes.
    functions : runner of function tests, such as a `Sandbox`.
    timeout : seconds after which a request that hangs is given up; default 5 more than compiling and running may take.

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
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url: got {url!r}; need http:// or https://; because SandboxFusion is an HTTP service")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: got {timeout}; need a number of seconds > 0; because a request that hangs is given up then")
        for name, value, least in (("workers", workers, 1), ("retries", retries, 0), ("backoff", backoff, 0)):
            if value < least:
                raise ValueError(f"{name}: got {value}; need at least {least}; because requests are repeated and shared out by it")
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
        reply = self._post(json.dumps(body).encode())
        return self._read(reply)

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

    def _post(self, body: bytes) -> dict[str, Any]:
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.backoff * 2 ** (attempt - 1) * (1 + self._random.random()))
            try:
                request = urllib.request.Request(f"{self.url}/run_code", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    reply = json.load(response)
                if isinstance(reply, dict) and reply.get("status") in ("Success", "Failed"):
                    return reply
                problem = f"reply {str(reply)[:200]}"
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}"
                if error.code not in _RETRIED:
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
        raise SandboxUnavailable(f"{self.url}: got {problem} after {attempt + 1} attempts; need a reply; because no verdict is guessed")

    def _read(self, reply: dict[str, Any]) -> Run:
        result = reply.get("run_result") or {}
        status = {"Finished": "finished", "Error": "finished", "TimeLimitExceeded": "wall-clock limit"}.get(result.get("status"), "failed")
        stdout, stderr = (str(result.get(name) or "") for name in ("stdout", "stderr"))
        if len(stdout) + len(stderr) > self.limits.output:
            status = "output limit"
        code = result.get("return_code")
        if code is None and result.get("status") == "Finished":
            code = 0
        return Run(status, code, stdout[: self.limits.output], stderr[: self.limits.output], float(result.get("execution_time") or 0))
