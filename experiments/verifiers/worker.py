"""Symbolic work under a budget that really ends.

No list of bad shapes is ever complete, and a power of two long integers cannot be interrupted from Python.  So answers are read in a
process of their own: the kernel ends it when one answer has used up its processor time or its memory, the answer counts as unreadable, and
the next one gets a fresh process.  Processor time, not the clock, so that a loaded machine does not change what an answer is worth; the
clock is a backstop only.

The process is started from scratch at the first question (no fork of a program that holds CUDA or threads), serves all threads of its
parent one at a time, belongs to the process that started it (a forked child starts its own), and ends when its parent does.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time

#: Processor seconds for one answer: some hundred times what an ordinary answer needs.
CPU_SECONDS = 1.0
WALL_SECONDS = 60.0
START_SECONDS = 120.0
MEMORY_BYTES = 4 << 30

_SERVE = "from experiments.verifiers.worker import serve; serve({cpu!r}, {memory!r})"


class Worker:
    """A process that reads answers; see the module.

    Parameters
    ----------
    cpu_seconds, wall_seconds : the budget of one answer, of the processor and by the clock.
    memory_bytes : the address space of the process.
    """

    def __init__(self, cpu_seconds: float = CPU_SECONDS, wall_seconds: float = WALL_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self.cpu_seconds, self.wall_seconds, self.memory_bytes = cpu_seconds, wall_seconds, memory_bytes
        self.starts = 0
        self._ended_early = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        os.register_at_fork(after_in_child=self._forget)

    def code(self, text: str) -> str | None:
        """The code of ``text`` by `experiments.verifiers.symbolic.code`; None where it is not mathematics or outlasts the budget."""
        with self._lock:
            reply = self._ask(text)
            if reply is None and self._ended_early:  # not by its budget: by another hand, or by a crash that would repeat itself
                reply = self._ask(text)
            code: str | None = None if reply is None else json.loads(reply)
            return code

    def agrees(self, gold: str, response: str) -> bool:
        """math-verify's verdict on a whole response; False where it outlasts the budget."""
        with self._lock:
            reply = self._ask([gold, response])
            if reply is None and self._ended_early:
                reply = self._ask([gold, response])
            return reply is not None and json.loads(reply) is True

    def close(self) -> None:
        """End the process; the next question starts another."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._stop()
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE.format(cpu=self.cpu_seconds, memory=self.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
        )
        self.starts += 1
        try:
            ready = self._line(START_SECONDS)
        except EOFError:
            ready = None
        if ready != b'"ready"\n':
            self._stop()
            raise RuntimeError(f"verifier process: got {ready!r}; need 'ready'; because answers are read there (is SymPy installed?)")

    def _ask(self, question: str | list[str]) -> bytes | None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        reply = None
        try:
            line = json.dumps(question).encode() + b"\n"
            while line:
                line = line[self._process.stdin.write(line) :]
            reply = self._line(self.wall_seconds)
            self._ended_early = False
        except (BrokenPipeError, EOFError):
            self._ended_early = self._process.wait(START_SECONDS) != -signal.SIGPROF
        finally:  # also when a signal's exception comes between question and reply: the next question must not read this reply
            if reply is None:
                self._stop()
        return reply

    def _line(self, seconds: float) -> bytes | None:
        """One line from the process; None when the clock ran out."""
        assert self._process is not None and self._process.stdout is not None
        end, line = time.monotonic() + seconds, b""
        poller = select.poll()
        poller.register(self._process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poller.poll(max(0.0, 1000 * (end - time.monotonic()))):
                return None
            chunk = self._process.stdout.read(1 << 16)
            if not chunk:
                raise EOFError("the process that reads answers has ended")
            line += chunk
        return line

    def _stop(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._close_pipes()
            self._process = None

    def _close_pipes(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _forget(self) -> None:
        """In a forked child: the process is the parent's, and so may the lock be."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._close_pipes()
            self._process.returncode = 0
            self._process = None


def serve(cpu_seconds: float, memory_bytes: int) -> None:
    """Answer questions from standard input, one JSON line each, until it ends; a question over budget ends the process."""
    import resource

    questions, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from .symbolic import code, library_verdict

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    code("x^2-1")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    reply: str | bool | None = "ready"
    while True:
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
        line = questions.readline()
        if not line:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            question = json.loads(line)
            reply = code(question) if isinstance(question, str) else library_verdict(*question)
        except Exception:  # SymPy raises a little of everything on input without meaning; all of it means: not readable
            reply = None
        signal.setitimer(signal.ITIMER_PROF, 0)


_shared = Worker()
atexit.register(_shared.close)


def code_within_budget(text: str) -> str | None:
    """`Worker.code` by the one worker of this process."""
    return _shared.code(text)


def verdict_within_budget(gold: str, response: str) -> bool:
    """`Worker.agrees` by the one worker of this process."""
    return _shared.agrees(gold, response)
