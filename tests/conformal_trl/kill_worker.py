"""A run that is killed at a named moment (SIGKILL), or resumed from its newest whole checkpoint; under torchrun, of several processes.

python tests/conformal_trl/kill_worker.py FOLDER MOMENT     MOMENT: none | resume | calibration | generation | backward | checkpoint
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PrinterCallback

from conformal_core import ConformalBudget
from conformal_trl import CGRPOConfig, CGRPOTrainer
from tests.conformal_trl.ddp_worker import tiny

AT_STEP = 4  # one step after the checkpoint of step 3, which lies inside a generation cycle


def reward(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


def arm(trainer: CGRPOTrainer, moment: str) -> None:
    """Put the kill where it belongs: in the last process alone, or in the first, which alone writes the state of a checkpoint."""
    rank = 0 if moment == "checkpoint" else trainer.accelerator.num_processes - 1
    if trainer.accelerator.process_index != rank:
        return

    def before(owner, name, when=lambda: True, after=False):
        original = getattr(owner, name)

        def killing(*args, **kwargs):
            armed = trainer.state.global_step >= AT_STEP and when()
            if armed and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if armed:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, killing)

    if moment == "calibration":  # its rollouts are drawn, its thresholds not yet computed
        before(trainer.rollout_policy, "calibrate")
    elif moment == "generation":  # calibrated; the first increment is drawn and verified
        before(trainer.rollouts, "draw", lambda: trainer.ledger._absorbing is None, after=True)
    elif moment == "backward":
        before(trainer.accelerator, "backward", after=True)
    elif moment == "checkpoint":  # the model and the trainer's own files of step 6 are written, ours are not
        import conformal_trl.trainer as module

        before(module, "write_state")


def main(folder: str, moment: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model, tokenizer = tiny()
    problems = [{"prompt": f"{i}+{i % 7}=", "answer": str(i % 5)} for i in range(40)]
    calibration = [{**p, "prompt": p["prompt"].replace("+", "*")} for p in problems]
    config = CGRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="steps", save_steps=3, save_total_limit=1,
        report_to="none", disable_tqdm=True, num_generations=4, per_device_train_batch_size=24 // world, max_completion_length=6,
        max_steps=8, logging_steps=2, learning_rate=1e-3, num_iterations=2, seed=3, calibration_progress=False, response_mask="carm",
        response_mask_threshold=1.05,
    )  # fmt: skip
    trainer = CGRPOTrainer(
        model, reward, config, Dataset.from_list(problems), processing_class=tokenizer, calibration_dataset=Dataset.from_list(calibration),
        answer_fn=lambda text: text[:1] or None, gold_column="answer",
        rollout_policy=ConformalBudget((2, 4), delta="0.3", multiplicity="risk_control", n_calibration=20, recalibrate_every=2),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    arm(trainer, moment)
    trainer.train(resume_from_checkpoint=True if moment == "resume" else None)
    history = [{k: v for k, v in r.items() if not k.startswith(("seconds", "clock"))} for r in trainer.ledger.history]
    log = [{k: v for k, v in h.items() if k != "step_time"} for h in trainer.state.log_history if "loss" in h]
    rank = trainer.accelerator.process_index
    torch.save({n: p.detach() for n, p in trainer.model.named_parameters()}, Path(folder) / f"weights{rank}.pt")
    (Path(folder) / f"run{rank}.json").write_text(json.dumps({"history": history, "log": log}))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
