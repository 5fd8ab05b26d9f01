"""Cores x files: pieces of logs read by fresh interpreters that never import the caller's script, so it needs no ``__main__`` guard."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import IO, Any

from .pieces import cut
from .sources import Intake

__all__ = ["parallel", "serve"]

_PARALLEL_FROM = 32 << 20
_COMMAND = "from rollout_logs.workers import serve; serve()"


class _Worker:
    """One interpreter that answers calls one after the other."""

    def __init__(self) -> None:
        path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **threads, "PYTHONPATH": path},
        )

    def call(self, request: bytes) -> tuple[str, Any]:
        """``("done", result)``, ``("raised", exception)``, ``("unknown", text)`` for work the worker cannot import, ``("died", code)``."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            _send(self.process.stdin, request)
            answer: tuple[str, Any] = pickle.loads(_receive(self.process.stdout))
            return answer
        except (EOFError, BrokenPipeError):
            return "died", self.process.wait()

    def close(self) -> None:
        """End the interpreter."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(8, "little"))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    head = stream.read(8)
    size = int.from_bytes(head, "little")
    data = stream.read(size) if len(head) == 8 else b""
    if len(head) < 8 or len(data) < size:
        raise EOFError
    return data


def serve() -> None:
    """What a worker does: read ``(work, plan)`` on standard input, answer on standard output, until the input ends."""
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            request = _receive(calls)
        except EOFError:
            return
        answer: tuple[str, Any]
        try:
            work, plan = pickle.loads(request)
        except (AttributeError, ImportError) as error:
            answer = ("unknown", str(error))
        else:
            try:
                answer = ("done", work(plan))
            except Exception as error:
                answer = ("raised", error)
        _send(answers, pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))


def parallel(work: Callable[[Any], tuple[Any, Intake]], plans: Sequence[Any], jobs: int | None) -> Iterator[tuple[Any, Any, Intake]]:
    """``(plan, result, intake)`` for each plan or piece of one, in the order of the files.

    With several processes and at least 32 MiB to read, large parquet files are cut by row groups and JSON lines by byte ranges
    (:func:`rollout_logs.pieces.cut`), so that one file uses every core; results are those of one process.

    Parameters
    ----------
    work : callable
        From a plan to a result and what was met.
    plans : sequence
        Dataclasses with a field ``log``.
    jobs : int, optional
        Processes; default one per core.

    Raises
    ------
    RuntimeError
        If a process dies (out of memory, or killed); the message names the file.

    Warns
    -----
    UserWarning
        If the work cannot be handed to another process (a rule defined in a notebook); it is then done in this one.
    """
    jobs = jobs if jobs is not None else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = sum(p.log.size for p in plans)
    notes: list[str] = []
    if jobs > 1 and total >= _PARALLEL_FROM:
        plans = [p.at(log) for p in plans for log in cut(p.log, total, jobs, notes)]
    jobs = min(jobs, len(plans))
    if jobs <= 1 or total < _PARALLEL_FROM:
        results = ((plan, *work(plan)) for plan in plans)
    else:
        results = _in_workers(work, plans, jobs)
    lines = 0
    for plan, result, met in results:
        log = plan.log
        if log.span is not None and log.span[0] > 0:
            met.files = 0
        lines = lines if log.span is not None and log.span[0] > 0 else 0
        if lines and log.kind == "jsonl":  # a piece counts its lines from 1
            met.problems = [replace(p, row=None if p.row is None else p.row + lines) for p in met.problems]
            result = result if result is None or not hasattr(result, "shifted") else result.shifted(lines)
        lines += met.lines
        for text in notes:
            met.note(text)
        notes = []
        yield plan, result, met


def _in_workers(work: Callable[[Any], Any], plans: Sequence[Any], jobs: int) -> Iterator[Any]:
    idle: SimpleQueue[_Worker] = SimpleQueue()
    workers = [_Worker() for _ in range(jobs)]
    for worker in workers:
        idle.put(worker)

    def one(plan: Any) -> tuple[str, Any]:
        try:
            request = pickle.dumps((work, plan), protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError) as error:
            return "unknown", str(error)
        worker = idle.get()
        try:
            return worker.call(request)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(jobs)
    told = False
    try:
        for plan, (how, found) in zip(plans, pool.map(one, plans), strict=True):
            if how == "raised":
                raise found
            if how == "died":
                raise RuntimeError(f"{plan.log.path}: the process reading it ended with code {found}; fewer --jobs need less memory")
            if how == "unknown" and not told:
                told = True
                warnings.warn(f"read in one process: the work cannot be handed to another ({found})", UserWarning, stacklevel=2)
            yield (plan, *(work(plan) if how == "unknown" else found))
    except BaseException:
        for worker in workers:
            worker.process.kill()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()
