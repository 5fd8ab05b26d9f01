"""Checkpoints that are whole or do not count: the state file is written last, at once, and only a folder that holds it is resumed from."""

from __future__ import annotations

import json
import os
import re
import warnings
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

__all__ = ["REFERENCE_FILE", "STATE_FILE", "buffer_file", "last_whole_checkpoint", "read_state", "write_state"]

STATE_FILE = "rollout_policy.json"
#: Weights of a reference model that follows the policy.
REFERENCE_FILE = "ref_model.pt"


def buffer_file(rank: int) -> str:
    """Where a process keeps the micro-batches it has not trained on yet."""
    return f"rollout_buffer_{rank}.pt"


def write_state(folder: str, state: dict[str, Any]) -> None:
    """Write the state file through a rename, so that it is there whole or not at all."""
    path = os.path.join(folder, STATE_FILE)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


def read_state(folder: str) -> dict[str, Any]:
    """The state of a checkpoint; ``ValueError`` if its writing was cut short or it is another trainer's."""
    path = os.path.join(folder, STATE_FILE)
    if not os.path.exists(path):
        raise ValueError(
            f"resume_from_checkpoint: got {folder} without {STATE_FILE}; need it; because the budgets resume from it; it is "
            "written last, so this checkpoint was cut short, or is not this trainer's"
        )
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def last_whole_checkpoint(folder: str) -> str | None:
    """The newest checkpoint that was written to its end; incomplete newer ones are named in a warning."""
    if not os.path.isdir(folder):
        return None
    found = [m for m in map(re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)").fullmatch, os.listdir(folder)) if m]
    for match in sorted(found, key=lambda m: -int(m[1])):
        path = os.path.join(folder, match[0])
        if os.path.exists(os.path.join(path, STATE_FILE)):
            return path
        warnings.warn(f"resume_from_checkpoint: {path} was cut short while it was written; passed over", stacklevel=3)
    return None
