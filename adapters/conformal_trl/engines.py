"""Weights that correct for an engine whose probabilities are not the trainer's (TRL's ``vllm_importance_sampling_*``)."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["importance_ratio"]


def importance_ratio(args: Any, old: torch.Tensor, sampling: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``pi_old / pi_engine``, truncated to or masked outside ``[clip_min, clip_max]``: (B, T) for token modes, (B, 1) for sequence modes.

    A token whose engine log-probability is missing (NaN) counts as a ratio of 1.
    """
    gap = torch.nan_to_num((old - sampling) * mask, nan=0.0)
    mode = args.vllm_importance_sampling_mode
    ratio = torch.exp(gap.sum(-1, keepdim=True) if mode.startswith("sequence") else gap)
    low, high = args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=low, max=high)
    outside = torch.zeros_like(ratio, dtype=torch.bool)
    if low is not None:
        outside = outside | (ratio < low)
    if high is not None:
        outside = outside | (ratio > high)
    return ratio.masked_fill(outside, 0.0)
