"""Two processes (gloo, CPU) take the decisions of one, and reach its losses and gradients."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("ddp_worker.py")

CASES = {
    "conformal under carm": {"policy": "conformal", "config": {"response_mask": "carm", "response_mask_threshold": 1.05}},
    "signal, four micro-batches": {"policy": "signal", "parts": 4, "config": {"loss_type": "grpo"}},
    "per micro-batch": {"config": {"loss_type": "bnpo"}},
    "sequence level": {"config": {"loss_type": "luspo", "importance_sampling_level": "sequence", "scale_rewards": "batch"}},
    "lora": {"policy": "signal", "lora": True, "config": {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.1}},
    "the paper's": {"config": {"objective": "cgrpo"}},
    "retained": {
        "parts_alone": 1,
        "config": {"response_mask": "carm", "response_mask_threshold": 1.05, "response_mask_normalize": "retained"},
    },
    "a stream, with tables": {"stream": True, "config": {"log_completions": True, "num_completions_to_print": 0, "logging_steps": 1}},
    "high-entropy tokens": {"parts_alone": 1, "config": {"top_entropy_quantile": 0.5}},
    "adaptive entropy": {"policy": "signal", "config": {"use_adaptive_entropy": True, "entropy_target": 9.0}},
    "half of the prompts fail": {"policy": "conformal", "parts": 8, "rank_fails": True, "config": {"loss_type": "sapo"}},
    "few rows": {"parts": 8, "few": True, "config": {"response_mask": "carm"}},
    "all stopped, nothing to train": {"policy": "conformal", "alike": True, "all_fail": True},
    "all rejected": {"drifts": 1.0, "config": {"response_mask": "trm", "response_mask_threshold": 1e-9}},
}


def launched(cases: dict, world: int, folder: Path) -> list[dict]:
    """The report of every process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    out = folder / f"report{world}"
    command = [str(WORKER), str(out), json.dumps(cases)]
    if world > 1:
        command = ["-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-port", port, *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(world)]


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    alone = launched(CASES, 1, tmp_path)[0]
    first, second = launched(CASES, 2, tmp_path)
    for name in CASES:
        one, two = alone[name], first[name]
        assert "error" not in one and "error" not in two, (name, one, two)
        for decided in ("drawn", "policy", "totals"):
            assert one[decided] == two[decided] == second[name][decided], (name, decided)
        assert one["table"] == two["table"] and not second[name]["table"], name
        assert two["calls"] == second[name]["calls"], name  # where a forward or a generation is a collective, none is skipped
        np.testing.assert_allclose(two["losses"], one["losses"], atol=1e-6, err_msg=name)
        assert two["weights"] == pytest.approx(second[name]["weights"], abs=0), name
        for ours, theirs in zip(two["gradients"], one["gradients"], strict=True):
            assert ours.keys() == theirs.keys(), name
            for parameter in theirs:
                np.testing.assert_allclose(ours[parameter], theirs[parameter], atol=1e-6, rtol=1e-5, err_msg=f"{name} {parameter}")
        for ours, theirs in zip(two["metrics"], one["metrics"], strict=True):
            for metric in theirs:
                if not metric.startswith("mask/"):  # means over micro-batches, of which a process has fewer
                    assert ours[metric] == pytest.approx(theirs[metric], abs=1e-6), (name, metric)
    table = alone["a stream, with tables"]["table"]
    assert len(table) == alone["a stream, with tables"]["totals"]["generated"] == 32
    assert alone["all stopped, nothing to train"]["totals"]["trained"] == 0
    assert 0 < alone["few rows"]["totals"]["trained"] < 8
    assert alone["all rejected"]["totals"]["masked"] == alone["all rejected"]["totals"]["masked_of"] > 0
    assert alone["conformal under carm"]["totals"]["calibration"] > 0


@pytest.mark.slow
def test_a_group_split_over_processes_is_refused(tmp_path):
    for report in launched({"split": {"per_device": 6}}, 2, tmp_path):
        assert "a group would be split over processes" in report["split"]["error"]
