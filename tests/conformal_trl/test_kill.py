"""Killed anywhere and resumed, a run takes the decisions and reaches the weights of the run that was never stopped, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conformal_trl.checkpoint import STATE_FILE, last_whole_checkpoint, read_state

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("kill_worker.py")


def worker(folder: Path, moment: str) -> int:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, str(WORKER), str(folder), moment], env=env, cwd=ROOT, capture_output=True, timeout=120
    ).returncode


@pytest.mark.slow
def test_killed_anywhere_and_resumed(tmp_path):
    assert worker(tmp_path / "whole", "none") == 0
    whole = json.loads((tmp_path / "whole/run.json").read_text())
    weights = torch.load(tmp_path / "whole/weights.pt")
    assert [r["step"] for r in whole["history"]] == [0, 2, 4, 6] and all(r["calibration"] for r in whole["history"])
    assert any(r["masked"] for r in whole["history"])
    for moment in ("calibration", "generation", "backward", "checkpoint"):
        folder = tmp_path / moment
        assert worker(folder, moment) == -signal.SIGKILL, moment
        kept = sorted(p.name for p in folder.glob("checkpoint-*"))
        assert kept == (["checkpoint-3", "checkpoint-6"] if moment == "checkpoint" else ["checkpoint-3"]), moment
        assert worker(folder, "resume") == 0, moment
        resumed = json.loads((folder / "run.json").read_text())
        assert resumed == whole, moment
        for name, value in torch.load(folder / "weights.pt").items():
            assert torch.equal(value, weights[name]), (moment, name)


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
