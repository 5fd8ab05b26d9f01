"""Run what is missing, some worker processes at a time, with progress and the time left."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from . import source as store
from .source import Run, Source

__all__ = ["execute", "minutes", "missing", "paper_command", "records", "run_all", "sources", "wanted", "worker"]


def sources() -> dict[str, Source]:
    """Every source by name."""
    from . import cgrpo_runs, code_runs, coverage_runs, mask_runs, response_runs

    return {m.SOURCE.id: m.SOURCE for m in (cgrpo_runs, mask_runs, coverage_runs, response_runs, code_runs)}


def wanted(needs: Iterable[tuple[str, str]], scale: str) -> list[Run]:
    """The runs behind ``needs`` at a scale, each once, seed by seed, so that an interrupted list holds whole seeds."""
    known = sources()
    out: dict[tuple[int, str, str], None] = {}
    for source, variant in needs:
        v = known[source].variants[variant]
        seeds = {"small": v.seeds, "tiny": min(v.seeds, 1), "paper": v.paper_seeds if v.paper else 0}[scale]
        out |= dict.fromkeys((seed, source, variant) for seed in range(seeds))
    return [Run(source, variant, seed, scale) for seed, source, variant in sorted(out, key=lambda x: x[0])]


def missing(runs: Iterable[Run], folder: Path) -> list[Run]:
    """Those without a result."""
    runs = list(runs)
    done: set[Run] = set()
    for source, scale in {(r.source, r.scale) for r in runs}:
        done |= {Run(source, x["variant"], x["seed"], scale) for x in store.finished(folder, scale, sources()[source])}
    return [r for r in runs if r not in done]


def minutes(runs: Iterable[Run], jobs: int = 2) -> float:
    """Expected small-scale time on ``jobs`` threads."""
    known = sources()
    return sum(known[r.source].variants[r.variant].minutes for r in runs) / max(jobs, 1)


def paper_command(run: Run, folder: Path) -> list[str]:
    """The shell commands of a run at paper scale."""
    out = folder / "paper" / run.name.replace("/", ".").replace(" ", "-")
    return [c.format(seed=run.seed, out=out) for c in sources()[run.source].variants[run.variant].paper]


def execute(run: Run, folder: Path) -> None:
    """One run, in this process (or, at paper scale, by its command), and its line of results."""
    source = sources()[run.source]
    began = time.perf_counter()
    if run.scale == "paper":
        result = _by_command(run, folder)
    else:
        result = source.run(run.variant, run.seed, run.scale, folder / run.scale / "work")
    store.append(folder, run, source.settings(run.scale), {**result, "seconds": round(time.perf_counter() - began, 2)})


def _by_command(run: Run, folder: Path) -> dict[str, Any]:
    from .training import condense

    for command in paper_command(run, folder):
        done = subprocess.run(command, shell=True, check=False)
        if done.returncode:
            raise RuntimeError(f"run {run.name} failed (exit {done.returncode}): {command}")
    out = Path(paper_command(run, folder)[-1].split("--out ")[-1])
    return condense(json.loads((out / "run.json").read_text(encoding="utf-8")))


def run_all(runs: list[Run], folder: Path, jobs: int, done: Callable[[Run], None] = lambda run: None) -> None:
    """Execute ``runs`` and call ``done`` after each; ``jobs = 0``: in this process.

    ``RuntimeError`` with the end of the log if one fails; what is finished is kept.
    """
    if not runs:
        return
    left, past, began = minutes(runs, jobs or 1), 0.0, time.perf_counter()

    def finished(run: Run, count: int) -> None:
        nonlocal past
        past += minutes([run], jobs or 1)
        elapsed = (time.perf_counter() - began) / 60
        rest = max(0.0, left - past) * (elapsed / past if past > 0 else 1.0)
        print(f"{count} of {len(runs)}: {run.name} ({elapsed:.1f} min gone, about {rest:.0f} min left)", flush=True)
        done(run)

    if jobs == 0 or runs[0].scale == "paper":
        for count, run in enumerate(runs, 1):
            execute(run, folder)
            finished(run, count)
        return
    _parallel(runs, folder, jobs, finished)


def _parallel(runs: list[Run], folder: Path, jobs: int, finished: Callable[[Run, int], None]) -> None:
    """Workers that import once and take one run after the other."""
    logs = folder / runs[0].scale / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "TOKENIZERS_PARALLELISM": "false"}
    todo, count = list(runs), 0
    busy: dict[int, Run] = {}
    heard: queue.Queue[tuple[int, str]] = queue.Queue()
    workers: list[tuple[subprocess.Popen[str], IO[str], Path]] = []

    def give(i: int) -> None:
        pipe = workers[i][0].stdin
        if todo and pipe is not None:
            busy[i] = todo.pop(0)
            with contextlib.suppress(BrokenPipeError):  # a worker that died is reported by its end of output
                pipe.write(json.dumps(asdict(busy[i])) + "\n")
                pipe.flush()

    def listen(i: int, pipe: IO[str]) -> None:
        for line in pipe:
            heard.put((i, line.strip()))
        heard.put((i, "@end"))

    try:
        for i in range(min(jobs, len(todo))):
            log = logs / f"worker{i}.log"
            file = log.open("w", encoding="utf-8")
            process = subprocess.Popen(
                [sys.executable, "-m", "experiments", "reproduce-worker", str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, env=env,
            )  # fmt: skip
            workers.append((process, file, log))
            assert process.stdout is not None
            threading.Thread(target=listen, args=(i, process.stdout), daemon=True).start()
            give(i)
        while busy:
            i, line = heard.get()
            if line == "@done":
                count += 1
                finished(busy.pop(i), count)
                give(i)
            elif line == "@end" and i in busy:
                process, _, log = workers[i]
                tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
                raise RuntimeError(f"run {busy[i].name} failed (exit {process.wait()}); the end of {log}:\n{tail}")
    finally:
        for process, file, _ in workers:
            process.terminate()
            process.wait()
            file.close()


def worker(folder: Path) -> None:
    """Execute the runs that come as JSON lines on stdin; ``@done`` on stdout after each."""
    import gc
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for line in sys.stdin:
        run = Run(**json.loads(line))
        print(f"@run {run.name}", file=sys.stderr, flush=True)
        with contextlib.redirect_stdout(sys.stderr):
            execute(run, folder)
        gc.collect()
        print("@done", flush=True)


def records(folder: Path, scale: str, needs: Iterable[tuple[str, str]]) -> list[Mapping[str, Any]]:
    """Results behind ``needs``, each with its ``source``."""
    wants, out = set(needs), []
    for source in {s for s, _ in wants}:
        for record in store.finished(folder, scale, sources()[source]):
            if (source, record["variant"]) in wants:
                out.append({"source": source, **record})
    return out
