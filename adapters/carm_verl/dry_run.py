"""Resolve a whole verl configuration, run verl's and our checks, and evaluate the loss once: no GPU, no Ray, no model, no data."""

import os
from dataclasses import dataclass
from typing import Any

import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.utils.losses import ppo_loss

from .checks import GROUP, SETTINGS
from .config import CARMPolicyLossConfig


@dataclass(frozen=True)
class DryRun:
    """What a launch with these overrides would train with.

    Attributes:
        config: the whole tree, resolved.
        rule: the rule as written.
        certificate: its guarantee on accepted responses for the configured clip band, in words.
        p_out: the largest fraction of out-of-band tokens of an accepted response (1.0: certifies nothing).
        loss: verl's `ppo_loss` on the probe batch.
        rejected: how many of the probe's two responses the rule rejects.
        metrics: what the loss logged.
    """

    config: dict[str, Any]
    rule: str
    certificate: str
    p_out: float
    loss: float
    rejected: int
    metrics: dict[str, float]

    def __str__(self) -> str:
        actor, data = self.config["actor_rollout_ref"]["actor"], self.config["data"]
        n, steps = self.config["actor_rollout_ref"]["rollout"]["n"], data["train_batch_size"] // actor["ppo_mini_batch_size"]
        loss = actor["policy_loss"]
        return "\n".join(
            [
                f"rule         {self.rule}, loss_mode={loss['loss_mode']}, normalize={loss['normalize']}, {actor['loss_agg_mode']}",
                f"certificate  p_out <= {self.p_out:.4g} outside [{1 - actor['clip_ratio_low']:g}, {1 + actor['clip_ratio_high']:g}]: "
                f"{self.certificate}",
                f"batch        {data['train_batch_size']} prompts x {n} responses, {steps} optimizer steps of "
                f"{actor['ppo_mini_batch_size'] * n} responses, lr {actor['optim']['lr']}",
                f"probe        two responses, one on-policy, one drifting by +-0.5 in turn: rejected {self.rejected}, loss {self.loss:.6g}",
            ]
        )


def compose_config(overrides: list[str], config_name: str = "ppo_trainer") -> DictConfig:
    """verl's own configuration `config_name` with `overrides`, exactly as ``python -m verl.trainer.main_ppo`` composes it.

    Raises: hydra's errors for unknown keys and options.
    """
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        return compose(config_name, overrides=list(overrides))


def dry_run(overrides: list[str], config_name: str = "ppo_trainer") -> DryRun:
    """Everything a launch does before it needs a GPU.

    Raises: ValueError when the recipe group is missing or a check fails (hydra wraps it in InstantiationException), AssertionError or
    ValueError from verl's own `validate_config`, KeyError or hydra errors for settings that do not resolve.
    """
    config = compose_config(overrides, config_name)
    section = OmegaConf.select(config, "actor_rollout_ref.actor.policy_loss")
    if section is None or section.get("_target_") != f"{CARMPolicyLossConfig.__module__.split('.')[0]}.CARMPolicyLossConfig":
        mode = None if section is None else section.get("loss_mode")
        raise ValueError(
            f"actor_rollout_ref.actor.policy_loss: got verl's own, loss_mode={mode!r}; need a mask; because the overrides lack {GROUP}"
        )
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    typed = [key for key in section.get("run") or {} if key in SETTINGS and not OmegaConf.is_interpolation(section.run, key)]
    if typed:
        raise ValueError(
            f"policy_loss.run.{typed[0]}: got {section.run[typed[0]]!r}; need nothing typed; because {GROUP} reads it from "
            f"{SETTINGS[typed[0]]}"
        )
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    prompts, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts < mini:
        raise ValueError(f"data.train_batch_size: got {prompts}; need >= ppo_mini_batch_size = {mini}; because no optimizer step fits")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss, metrics = probe(actor)
    certificate = actor.policy_loss.rule.certificate((1 - actor.clip_ratio_low, 1 + actor.clip_ratio_high))
    if not torch.isfinite(loss):
        raise ValueError(f"loss: got {float(loss)}; need a finite value; because the probe's log-probabilities are finite")
    return DryRun(
        config=resolved,
        rule=repr(actor.policy_loss.rule),
        certificate=certificate.guarantee,
        p_out=certificate.p_out,
        loss=float(loss),
        rejected=int(metrics["actor/carm/rejected"]),
        metrics=metrics,
    )


def probe(actor: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """verl's own `ppo_loss` on two responses without padding, as a worker calls it: (loss, metrics).

    The first response is on-policy, the second has log-ratios +0.5 and -0.5 in turn, a drift that cancels in the signed mean.
    """
    prompts, response = torch.ones(2, dtype=torch.int64), torch.ones(8, dtype=torch.int64)
    drift = torch.tensor([0.5, -0.5]).repeat(4)
    old = [torch.full((8,), -7.0), -7.0 - drift]
    log_probs = torch.full((2, 8), -7.0, requires_grad=True)
    jagged = tensordict_utils.nested_tensor_from_tensor_list
    data = TensorDict(
        {
            "prompts": jagged([prompts, prompts]),
            "responses": jagged([response, response]),
            "response_mask": jagged([response, response]),
            "old_log_probs": jagged(old),
            "advantages": jagged([torch.full((8,), -1.0), torch.full((8,), -1.0)]),
        },
        batch_size=2,
    )
    tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=16, global_batch_size=2)
    # verl's model output covers prompt and response, shifted left by one token.
    rows = [torch.cat([log_probs.new_zeros(1), row, log_probs.new_zeros(1)]) for row in log_probs]
    output = {"log_probs": torch.cat(rows)}
    if getattr(actor, "use_kl_loss", False):
        data["ref_log_prob"] = jagged(old)
    loss, metrics = ppo_loss(actor, output, data)
    loss.backward()
    return loss.detach(), {k: float(v.aggregate()) if hasattr(v, "aggregate") else float(v) for k, v in metrics.items()}
