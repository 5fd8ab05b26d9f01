"""What is checked once the model is loaded: sampling that recorded numbers do not describe is refused, what cannot act is said."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from .checks import LOGIT_EDITS

__all__ = ["check_processes", "check_router", "check_sampling", "warn_if_inert"]


def check_processes(trainer: Any) -> None:
    """Refuse tools where a turn of one process is a collective: processes take different numbers of turns."""
    shared = (trainer.use_vllm and (trainer.vllm_mode == "server" or trainer.vllm_tensor_parallel_size > 1)) or (
        trainer._dist.is_fsdp or trainer._dist.is_zero3
    )
    if trainer.tools and shared and trainer.accelerator.num_processes > 1:
        raise ValueError(
            f"tools: got {len(trainer.tools)} on {trainer.accelerator.num_processes} processes that generate together; need one process, "
            "plain data parallelism, or a rollout_func; because TRL's tool loop takes as many turns as each process happens to need"
        )


def check_router(trainer: Any) -> None:
    """Refuse the paper's objective for a model whose router loss TRL would add to it."""
    if trainer.args.objective == "cgrpo" and trainer.aux_loss_enabled:
        raise ValueError(f"router_aux_loss_coef: got {trainer.router_aux_loss_coef}; need 0.0; because Eq. 10-11 has no term for a router")


def _asked(trainer: Any) -> dict[str, Any]:
    """Generation settings as the engine reads them: what is unset comes from the model's own generation config."""
    args = trainer.args
    if trainer.own_sampler:
        sources = [trainer.model.generation_config.to_dict(), trainer.generation_config.to_dict()]
    else:
        sources = [{n: getattr(args, n) for n in ("repetition_penalty", "temperature", "top_p", "top_k", "min_p")}]
    asked: dict[str, Any] = {}
    for source in (*sources, args.generation_kwargs or {}):
        asked |= {name: value for name, value in source.items() if value is not None}
    return asked


def check_sampling(trainer: Any) -> None:
    """Refuse generation settings that the recorded log-probabilities do not describe."""
    args = trainer.args
    asked = _asked(trainer)
    if asked["temperature"] != trainer.temperature:
        raise ValueError(
            f"generation_kwargs: got temperature={asked['temperature']!r} beside temperature={trainer.temperature}; need one value; "
            "because the loss divides logits by the latter, so every ratio would compare two policies"
        )
    several = [name for name in ("num_beams", "num_return_sequences", "n") if (asked.get(name) or 1) > 1]
    if several:
        raise ValueError(f"{several[0]}: got {asked[several[0]]}; need 1; because a rollout is one sampled response per row")
    edits = [name for name, neutral in LOGIT_EDITS.items() if asked.get(name) not in (None, neutral)]
    if edits and trainer.reads_recorded and args.old_logps == "rollout":
        raise ValueError(
            f'old_logps: got "rollout" beside {edits[0]}={asked[edits[0]]!r}; need "recompute"; because that setting edits logits '
            "while sampling, so recorded log-probabilities are not the policy's"
        )


def warn_if_inert(trainer: Any) -> None:
    """Say which settings cannot have the effect their name promises."""
    args, level = trainer.args, 4
    steps, accumulation = args.steps_per_generation, args.gradient_accumulation_steps
    if steps % accumulation:
        warnings.warn(
            f"steps_per_generation: got {steps} with gradient_accumulation_steps={accumulation}; an accumulation window then spans "
            "generations, which weigh alike however many of their rows were pruned",
            stacklevel=level,
        )
    if args.kl_on_pruned and trainer.beta == 0:
        warnings.warn("kl_on_pruned: has no effect with beta=0; there is no KL term", stacklevel=level)
    if args.sync_ref_model and trainer.ref_model is not None and not trainer.keeps_reference:
        warnings.warn(
            "sync_ref_model: a reference that is sharded over processes is not in the checkpoint; a resumed run starts from the first one",
            stacklevel=level,
        )
    if trainer.calibration_dataset is not None and trainer.rollout_policy.calibration(0) is None:
        warnings.warn(f"calibration_dataset: is not used; {trainer.rollout_policy!r} asks for no calibration", stacklevel=level)
    if trainer.gold_column is not None and trainer.answer_fn is None:
        warnings.warn("gold_column: is not used without answer_fn", stacklevel=level)
    if args.objective == "cgrpo" and trainer.off_policy:
        warnings.warn(
            'objective: "cgrpo" has no importance ratio, and rollouts train after optimizer steps that moved the policy; set '
            "num_iterations=1 and steps_per_generation=gradient_accumulation_steps",
            stacklevel=level,
        )
    if trainer.mask_rule is not None:
        _warn_about_mask(trainer, level + 1)


def _warn_about_mask(trainer: Any, level: int) -> None:
    dropout = any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in trainer.model.modules())
    if dropout or (getattr(trainer.model.config, "attention_dropout", 0.0) or 0.0) > 0:
        warnings.warn("dropout: the trained policy is not the one that sampled; the mask counts its noise as drift", stacklevel=level)
    asked = _asked(trainer)
    truncated = [n for n, off in (("top_p", (1.0,)), ("top_k", (0, -1)), ("min_p", (0.0,))) if asked.get(n, off[0]) not in off]
    if truncated:
        warnings.warn(
            f"{', '.join(truncated)}: truncated sampling draws from another law than the one the mask compares with; every "
            "log-ratio understates the drift by the truncated mass",
            stacklevel=level,
        )
    if trainer.use_vllm and trainer.vllm_mode == "server" and not trainer.corrects and trainer.accelerator.is_main_process:
        mode = trainer.vllm_generation.vllm_client.get_server_info()["model_config"]["logprobs_mode"]
        if mode != "processed_logprobs":
            warnings.warn(
                f"--logprobs-mode: got {mode}; need processed_logprobs of the vLLM server; because the mask would compare with numbers "
                "from before temperature",
                stacklevel=level,
            )
    if not trainer.off_policy and trainer.own_sampler:
        warnings.warn(
            "response_mask: every rollout trains once, before the first optimizer step after it was drawn, so log-ratios are "
            "numerical noise and the mask rejects nothing; raise num_iterations or steps_per_generation",
            stacklevel=level,
        )
