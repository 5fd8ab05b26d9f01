"""An actor configuration and the keyword call, as verl's worker makes them."""

import pytest

pytest.importorskip("verl", reason="verl is not installed (make installs it: pip install --no-deps verl)")

from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

import carm_verl

RUN = {
    "bypass_mode": True,
    "correction_is": None,
    "correction_rs": None,
    "correction_loss_type": "ppo_clip",
    "rollout_name": "vllm",
    "calculate_log_probs": True,
    "logprobs_mode": "processed_logprobs",
    "engine_logprobs_mode": None,
    "temperature": 1.0,
    "top_p": 1,
    "top_k": -1,
    "loss_agg_mode": "token-mean",
    "distillation": False,
    "use_v1": True,
    "experimental": None,
}
AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def policy_loss(loss_mode: str = "carm", run: dict[str, Any] | None = None, **settings: Any) -> carm_verl.CARMPolicyLossConfig:
    return carm_verl.CARMPolicyLossConfig(loss_mode=loss_mode, run={**RUN, **(run or {})}, **settings)


def actor(section: PolicyLossConfig, agg: str = "token-mean", **info: Any) -> ActorConfig:
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2, clip_ratio_high=0.28, policy_loss=section,
        loss_agg_mode=agg,
    )  # fmt: skip
    config.global_batch_info.update({"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None, "loss_scale_factor": None, **info})
    return config


def call(
    config: ActorConfig, old: Tensor, new: Tensor, advantages: Tensor, mask: Tensor, loss: Any = None
) -> tuple[Tensor, dict[str, float]]:
    """The registered loss, called by keyword as `verl.workers.utils.losses.ppo_loss` calls it."""
    function = get_policy_loss_fn(config.policy_loss.loss_mode) if loss is None else loss
    return function(
        old_log_prob=old, log_prob=new, advantages=advantages, response_mask=mask, loss_agg_mode=config.loss_agg_mode, config=config,
        rollout_is_weights=None,
    )  # fmt: skip


def batch(seed: int, rows: int = 6, width: int = 9, scale: float = 0.05, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """(old, new, advantages, mask): ragged right-padded responses, one with tool tokens in its middle, drifts from none to `scale`."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand((rows, width), generator=g, dtype=dtype) * 3 - 0.1
    drift = torch.randn((rows, width), generator=g, dtype=dtype) * torch.linspace(0, scale, rows, dtype=dtype)[:, None]
    lengths = torch.randint(1, width + 1, (rows,), generator=g)
    lengths[0] = width
    mask = torch.arange(width) < lengths[:, None]
    mask[0, 3:5] = False
    advantages = (torch.randn((rows, 1), generator=g, dtype=dtype)).expand(rows, width).clone()
    return old, (old + drift).requires_grad_(), advantages, mask
