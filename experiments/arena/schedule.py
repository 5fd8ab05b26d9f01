"""Run everything that is not finished yet, some processes at a time, with the time left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .settings import Run, Settings

__all__ = ["compare", "results"]


def results(folder: Path) -> list[dict[str, Any]]:
    """Finished runs, in the order they finished; a last line cut off by a kill is left out."""
    path = folder / "results.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def _finished(s: Settings) -> dict[str, dict[str, Any]]:
    return {Run(**r["run"]).name: r for r in results(Path(s.out))}


def compare(s: Settings) -> Path:
    """Run what is missing and write the report; returns the folder.  A second call with the same settings resumes."""
    from . import report
    from .run import start_tables

    out = Path(s.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "settings.json"
    if path.exists():
        old = Settings.load(path)
        varying = {"command", "versions", "jobs", "seeds", "rules", "masks", "regimes"}
        differs = [k for k, v in asdict(s).items() if k not in varying and asdict(old)[k] != v]
        if differs:
            raise ValueError(
                f"out: got {out} of a comparison with other {', '.join(differs)}; need a new folder or the same settings; "
                "because its finished runs would be mixed with these"
            )
    s.save(path)
    _repair(out / "results.jsonl")
    for regime in s.regimes:
        start_tables(s, regime)
    _run_all(s, s.tuning(), "choosing learning rates")
    _run_all(s, s.runs(list(_finished(s).values())), "comparing")
    report.write(s, results(out), out)
    print(report.text(s, results(out)))
    print(f"\nreport: {out / 'report.html'}, {out / 'table.csv'}, {out / 'table.md'}")
    return out


def _repair(path: Path) -> None:
    """Drop a last line that a kill cut off, so that the next one starts a line."""
    if path.exists():
        text = path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):
            path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")


def _run_all(s: Settings, runs: list[Run], what: str) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = _finished(s)
    todo = [r for r in runs if r.name not in done]
    if not todo:
        return
    out = Path(s.out)
    (out / "logs").mkdir(exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "TOKENIZERS_PARALLELISM": "false"}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[now]}"))
    running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
    with Progress(*columns, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=len(runs), completed=len(runs) - len(todo), now="")
        try:
            while todo or running:
                while todo and len(running) < s.jobs:
                    run = todo.pop(0)
                    log = out / "logs" / f"{run.name}.log"
                    spec = json.dumps({**asdict(run), "settings": str(out / "settings.json")})
                    with log.open("w") as file:
                        command = [sys.executable, "-m", "experiments", "compare-run", spec]
                        running[run.name] = (subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env), log)
                time.sleep(0.2)
                bar.update(task, now=", ".join(running))
                for name, (process, log) in list(running.items()):
                    if process.poll() is None:
                        continue
                    if process.returncode:
                        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                        raise RuntimeError(f"run {name} failed (exit {process.returncode}); the end of {log}:\n{tail}")
                    del running[name]
                    bar.advance(task)
                    if not sys.stderr.isatty():
                        print(f"{what}: {name} ({len(todo) + len(running)} left)", flush=True)
        finally:
            for process, _ in running.values():
                process.terminate()
                process.wait()
