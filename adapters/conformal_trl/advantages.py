"""TRL's advantages on ragged groups, and the paper's: means and deviations run over the responses that exist."""

from __future__ import annotations

import torch
from trl.trainer.utils import nanstd

__all__ = ["batch_standardised", "combine", "group_advantages", "per_function_advantages"]


def combine(per_function: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted total of reward functions over the last axis; NaN where no function applied."""
    total = (per_function * weights).nansum(-1)
    return torch.where(per_function.isnan().all(-1), torch.nan, total)


def _varies(rewards: torch.Tensor) -> torch.Tensor:
    high = torch.where(rewards.isnan(), -torch.inf, rewards).amax(1)
    low = torch.where(rewards.isnan(), torch.inf, rewards).amin(1)
    return high - low > 1e-9


def _std(rewards: torch.Tensor) -> torch.Tensor:
    return torch.where(_varies(rewards), nanstd(rewards, dim=1), 0.0)


def _batch_std(values: torch.Tensor) -> torch.Tensor:
    finite = values[~values.isnan()]
    return finite.std() if finite.numel() > 1 else values.new_zeros(())


def group_advantages(rewards: torch.Tensor, scale: str) -> tuple[torch.Tensor, torch.Tensor]:
    """``A_ij = (r_ij - mean_j r_ij) / (std + 1e-4)``, ``std`` of the group (``"group"``), of the batch (``"batch"``) or none.

    Parameters
    ----------
    rewards : (prompts, width) float tensor, NaN where there is no response.

    Returns
    -------
    advantages : same shape, 0 where there is no response.
    varies : (prompts,) bool, whether the rewards of the group differ.
    """
    varies = _varies(rewards)
    advantages = rewards - rewards.nanmean(dim=1, keepdim=True)
    if scale == "group":
        advantages = advantages / (_std(rewards)[:, None] + 1e-4)
    elif scale == "batch":
        advantages = advantages / (_batch_std(rewards) + 1e-4)
    return torch.nan_to_num(advantages, nan=0.0), varies


def per_function_advantages(per_function: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's ``normalize_then_sum``: each reward function is standardised within its group, the weighted sum over the batch.

    ``per_function`` is (prompts, width, functions), NaN where there is no response or the function did not apply.
    """
    means = per_function.nanmean(dim=1, keepdim=True)
    deviations = torch.stack([_std(per_function[..., f]) for f in range(per_function.size(2))], -1)[:, None]
    total = combine((per_function - means) / (deviations + 1e-4), weights)
    advantages = (total - total.nanmean()) / (_batch_std(total) + 1e-4)
    varies = torch.stack([_varies(per_function[..., f]) for f in range(per_function.size(2))]).any(0)
    return torch.nan_to_num(advantages, nan=0.0), varies


def batch_standardised(rewards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """C-GRPO, Eq. 10: ``d = r - mean of the group``, ``A = (d - mean_B d) / (std_B d + 1e-8)`` over all responses of the step."""
    centred = rewards - rewards.nanmean(dim=1, keepdim=True)
    std = _batch_std(centred)
    advantages = (centred - centred.nanmean()) / (std + 1e-8) if std > 1e-8 else torch.zeros_like(centred)
    return torch.nan_to_num(advantages, nan=0.0), _varies(rewards)
