"""Ragged groups as compact batches: rows that were never generated, or were pruned, do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl.trainer.utils import nanstd, pad

__all__ = ["ROW_MEAN_LOSSES", "compact_batch", "group_advantages", "split_rows"]

#: TRL losses that average over the rows of a micro-batch; unequal micro-batches need a weight to make the window's mean exact.
ROW_MEAN_LOSSES = ("grpo", "sapo", "dr_grpo", "luspo")


def group_advantages(rewards: torch.Tensor, scale: str) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's advantages on ragged groups.

    ``A_ij = (r_ij - mean_j r_ij) / (std + 1e-4)``, where ``std`` is the group's (``scale="group"``), the batch's
    (``"batch"``) or absent (``"none"``); means and standard deviations (n - 1) run over the responses that exist.

    Parameters
    ----------
    rewards : (prompts, width) float tensor, NaN where there is no response.

    Returns
    -------
    advantages : same shape, 0 where there is no response.
    varies : (prompts,) bool, whether the rewards of the group differ.
    """
    filled_high = torch.where(rewards.isnan(), -torch.inf, rewards).amax(1)
    filled_low = torch.where(rewards.isnan(), torch.inf, rewards).amin(1)
    varies = filled_high - filled_low > 1e-9
    advantages = rewards - rewards.nanmean(dim=1, keepdim=True)
    if scale == "group":
        std = torch.where(varies, nanstd(rewards, dim=1), 0.0)
        advantages = advantages / (std[:, None] + 1e-4)
    elif scale == "batch":
        finite = rewards[~rewards.isnan()]
        advantages = advantages / ((finite.std() if finite.numel() > 1 else finite.new_zeros(())) + 1e-4)
    return torch.nan_to_num(advantages, nan=0.0), varies


def compact_batch(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    logps: Sequence[Sequence[float]],
    advantages: Sequence[float],
    pad_token_id: int,
    device: torch.device,
) -> dict[str, Any]:
    """Padded tensors of the given rows (prompts left, completions right), the inputs of TRL's ``_compute_loss``."""

    def stack(rows: list[torch.Tensor], value: float, side: str) -> torch.Tensor:
        return pad(rows, padding_value=value, padding_side=side).to(device) if rows else torch.zeros(0, 0, dtype=torch.long, device=device)

    prompt_rows = [torch.tensor(p) for p in prompts]
    completion_rows = [torch.tensor(c) for c in completions]
    completion_mask = stack([torch.ones_like(c) for c in completion_rows], 0, "right")
    sampling = stack([torch.tensor(row, dtype=torch.float32) for row in logps], 0.0, "right").float()
    return {
        "prompt_ids": stack(prompt_rows, pad_token_id, "left"),
        "prompt_mask": stack([torch.ones_like(p) for p in prompt_rows], 0, "left"),
        "completion_ids": stack(completion_rows, pad_token_id, "right"),
        "completion_mask": completion_mask,
        "advantages": torch.tensor(list(advantages), dtype=torch.float32, device=device),
        "sampling_per_token_logps": sampling,
        "num_items_in_batch": completion_mask.sum(),
    }


def split_rows(batch: dict[str, Any], parts: int, window: int) -> list[dict[str, Any]]:
    """Shuffle rows, deal them into ``parts`` micro-batches as evenly as rows allow, and trim each to its own longest row.

    A part may be empty.  ``row_weight`` makes a mean over the rows of unequal parts, averaged over each window of ``window``
    consecutive parts, the mean over the rows of that window.
    """
    rows = batch["advantages"].size(0)
    order = torch.randperm(rows)
    bounds = [rows * i // parts for i in range(parts + 1)]
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor) and value.dim() > 0}
    shared = {name: value for name, value in batch.items() if name not in tensors}
    out = []
    for i in range(parts):
        picked = order[bounds[i] : bounds[i + 1]].to(batch["advantages"].device)
        first = i - i % window
        in_window = bounds[min(first + window, parts)] - bounds[first]
        part = {name: value[picked] for name, value in tensors.items()} | shared
        part["row_weight"] = picked.numel() * window / in_window if in_window else 0.0
        if picked.numel():
            prompt_width = int(part["prompt_mask"].sum(1).max())
            width = max(int(part["completion_mask"].sum(1).max()), 1)
            for name, value in part.items():
                if name in ("prompt_ids", "prompt_mask"):
                    part[name] = value[:, value.size(1) - prompt_width :]
                elif name in tensors and value.dim() == 2:
                    part[name] = value[:, :width]
        out.append(part)
    return out
