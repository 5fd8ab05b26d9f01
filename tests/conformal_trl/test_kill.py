"""Killed anywhere and resumed, a run takes the decisions and reaches the weights of the run that was never stopped, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conformal_trl.checkpoint import STATE_FILE, last_whole_checkpoint, read_state

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("kill_worker.py")


def worker(folder: Path, moment: str, world: int = 1) -> int:
    """Exit status of a run of ``world`` processes; under torchrun 1 if one of them was killed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [str(WORKER), str(folder), moment]
    if world > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = ["-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-port", port, *command]
    return subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, timeout=300).returncode


def finished(folder: Path, world: int = 1) -> tuple[list[dict], list[dict[str, torch.Tensor]]]:
    """What each process reports, and its weights."""
    runs = [json.loads((folder / f"run{rank}.json").read_text()) for rank in range(world)]
    return runs, [torch.load(folder / f"weights{rank}.pt") for rank in range(world)]


def same(folder: Path, whole: tuple[list[dict], list[dict[str, torch.Tensor]]]) -> None:
    """Decisions, losses, metrics and weights of every process, bit for bit."""
    runs, weights = finished(folder, len(whole[0]))
    assert runs == whole[0], folder.name
    for mine, expected in zip(weights, whole[1], strict=True):
        assert all(torch.equal(mine[name], expected[name]) for name in expected), folder.name


@pytest.mark.slow
def test_killed_anywhere_and_resumed(tmp_path):
    assert worker(tmp_path / "whole", "none") == 0
    whole = finished(tmp_path / "whole")
    history = whole[0][0]["history"]
    assert [r["step"] for r in history] == [0, 2, 4, 6] and all(r["calibration"] for r in history)
    assert any(r["masked"] for r in history) and [h["step"] for h in whole[0][0]["log"]] == [2, 4, 6, 8]
    for moment in ("calibration", "generation", "backward", "checkpoint"):
        folder = tmp_path / moment
        assert worker(folder, moment) == -signal.SIGKILL, moment
        kept = sorted(p.name for p in folder.glob("checkpoint-*"))
        assert kept == (["checkpoint-3", "checkpoint-6"] if moment == "checkpoint" else ["checkpoint-3"]), moment
        assert worker(folder, "resume") == 0, moment
        same(folder, whole)


@pytest.mark.slow
def test_two_processes_of_which_one_is_killed_and_resumed(tmp_path):
    """One process dies at a moment of its own and takes the run with it; both resume, each with its own rollouts and random state."""
    assert worker(tmp_path / "whole", "none", 2) == 0
    whole = finished(tmp_path / "whole", 2)
    (first, second), weights = whole
    assert all(r["calibration"] for r in first["history"]) and first["log"]
    assert [r["drawn"] for r in first["history"]] == [r["drawn"] for r in second["history"]]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    for moment in ("generation", "backward", "checkpoint"):
        folder = tmp_path / moment
        assert worker(folder, moment, 2) == 1, moment
        kept = sorted(p.name for p in folder.glob("checkpoint-*"))
        assert kept == (["checkpoint-3", "checkpoint-6"] if moment == "checkpoint" else ["checkpoint-3"]), moment
        assert worker(folder, "resume", 2) == 0, moment
        same(folder, whole)


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_needs_two(tmp_path):
    assert worker(tmp_path, "backward", 2) == 1
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(WORKER), str(tmp_path), "resume"], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1 and "of 2 processes; need as many as now (1)" in done.stderr


def test_only_whole_checkpoints_are_resumed_from(tmp_path):
    for step, whole in ((2, True), (9, True), (10, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if whole:
            (folder / STATE_FILE).write_text("{}")
    (tmp_path / "checkpoint-10" / f"{STATE_FILE}.part").write_text('{"poli')
    with pytest.warns(UserWarning, match="checkpoint-10 was cut short"):
        assert last_whole_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-9")
    with pytest.raises(ValueError, match="was cut short, or is not this trainer's"):
        read_state(str(tmp_path / "checkpoint-10"))
    assert last_whole_checkpoint(str(tmp_path / "nowhere")) is None
