"""What the rest of verl's config tree must say for a mask to see the right numbers."""

from collections.abc import Mapping
from typing import Any

GROUP = "the recipe group (+carm=default)"

SETTINGS: dict[str, str] = {
    "bypass_mode": "algorithm.rollout_correction.bypass_mode",
    "correction_is": "algorithm.rollout_correction.rollout_is",
    "correction_rs": "algorithm.rollout_correction.rollout_rs",
    "correction_loss_type": "algorithm.rollout_correction.loss_type",
    "rollout_name": "actor_rollout_ref.rollout.name",
    "calculate_log_probs": "actor_rollout_ref.rollout.calculate_log_probs",
    "logprobs_mode": "actor_rollout_ref.rollout.logprobs_mode",
    "engine_logprobs_mode": "actor_rollout_ref.rollout.engine_kwargs.vllm.logprobs_mode",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "top_p": "actor_rollout_ref.rollout.top_p",
    "top_k": "actor_rollout_ref.rollout.top_k",
    "loss_agg_mode": "actor_rollout_ref.actor.loss_agg_mode",
    "distillation": "distillation.enabled",
    "use_v1": "trainer.use_v1",
    "experimental": "rollout.nnodes",
}
"""The keys of ``policy_loss.run`` and the settings that the recipe group interpolates into them."""


def run_faults(run: Mapping[str, Any], normalize: str) -> list[str]:
    """Every setting of the run that would make a mask read the wrong numbers, correct twice, or do nothing; empty when all is well.

    `run` has the keys of `SETTINGS`. Each fault reads "setting: got X; need Y; because Z".

    Raises: ValueError when keys of `SETTINGS` are missing, or others are there.

    >>> good = dict(bypass_mode=True, correction_is=None, correction_rs=None, correction_loss_type="ppo_clip", rollout_name="vllm",
    ...             calculate_log_probs=True, logprobs_mode="processed_logprobs", engine_logprobs_mode=None, temperature=1.0, top_p=1,
    ...             top_k=-1, loss_agg_mode="token-mean", distillation=False, use_v1=True, experimental=None)
    >>> run_faults(good, "fixed"), len(run_faults({**good, "top_p": 0.95, "bypass_mode": False}, "fixed"))
    ([], 2)
    """
    missing = sorted(SETTINGS.keys() - run.keys())
    if missing:
        raise ValueError(f"policy_loss.run: got no {', '.join(missing)}; need every setting; because they are filled in by {GROUP}")
    unknown = sorted(run.keys() - SETTINGS.keys())
    if unknown:
        raise ValueError(f"policy_loss.run: got {', '.join(unknown)}; need {', '.join(SETTINGS)}; because nothing reads another key")
    found: list[str] = []

    def need(ok: bool, key: str, wanted: str, because: str) -> None:
        if not ok:
            found.append(f"{SETTINGS[key]}: got {run[key]!r}; need {wanted}; because {because}")

    need(run["use_v1"] is True, "use_v1", "true", "the legacy trainer replaces policy_loss.loss_mode by 'bypass_mode'")
    need(
        run["experimental"] is None, "experimental", "no such key",
        "verl.experimental's fully-async and one-step-off trainers replace policy_loss.loss_mode by 'bypass_mode' as well "
        "(trainer.v1.trainer_mode=separate_async or colocate_async of the default trainer does what they do)",
    )  # fmt: skip
    need(
        run["bypass_mode"] is True, "bypass_mode", "true",
        "the loss is given old_log_probs only, and these are the sampler's log-probabilities in bypass mode alone",
    )  # fmt: skip
    need(run["calculate_log_probs"] is True, "calculate_log_probs", "true", "the rollout engine otherwise returns no log-probabilities")
    twice = "in bypass mode this loss never reads it (set it to null), and with it a response would be corrected twice"
    need(run["correction_is"] is None, "correction_is", "null", twice)
    need(run["correction_rs"] is None, "correction_rs", "null", twice)
    need(run["correction_loss_type"] == "ppo_clip", "correction_loss_type", "'ppo_clip'", "the masked surrogate is the clipped one")
    need(run["distillation"] is not True, "distillation", "false", "verl's distillation loss replaces or drops the policy loss")
    truncated = "truncated sampling renormalises the sampler's log-probabilities: log S is added to every token and most responses fail"
    need(run["top_p"] is not None and float(run["top_p"]) == 1.0, "top_p", "1", truncated)
    need(run["top_k"] in (-1, 0, None), "top_k", "-1", truncated)
    temperature = run["temperature"]
    sampled = temperature is not None and float(temperature) > 0
    need(sampled, "temperature", "a number > 0", "greedy rollouts have no sampling distribution to compare with")
    if run["rollout_name"] == "vllm":
        modes = ("processed_logprobs",) if not sampled or float(temperature) != 1.0 else ("processed_logprobs", "raw_logprobs")
        key = "logprobs_mode" if run["engine_logprobs_mode"] is None else "engine_logprobs_mode"  # the engine's own keyword wins
        need(
            run[key] in modes, key, " or ".join(map(repr, modes)),
            f"the trainer divides logits by temperature {temperature}, so the sampler's log-probabilities must have been divided as well",
        )  # fmt: skip
    need(
        not (normalize == "retained" and run["loss_agg_mode"] == "token-sum"), "loss_agg_mode", "a mean",
        "normalize=retained changes a denominator and token-sum has none",
    )  # fmt: skip
    return found
