"""Arguments of :class:`CGRPOTrainer`: TRL's ``GRPOConfig`` plus budgets, masks, pruning, the paper's objective and a wall-clock limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from .masks import RULES, WEIGHING, make_rule
from .migration import read_grid

__all__ = ["CGRPOConfig"]

_CHOICES = {
    "response_mask": ("none", *RULES),
    "response_mask_conditioning": (None, "both", "negative"),
    "response_mask_normalize": ("fixed", "retained"),
    "nonfinite_logps": ("reject", "raise", "drop_token"),
    "prune": ("zero_variance", "none"),
    "old_logps": ("auto", "rollout", "recompute"),
    "objective": ("trl", "cgrpo"),
    "multiplicity": ("per_budget", "bonferroni", "risk_control"),
}


@dataclass
class CGRPOConfig(GRPOConfig):
    """``GRPOConfig`` with calibrated budgets and response masks.

    No field shadows a TRL field with another meaning: the miscoverage level is ``miscoverage``, and ``delta`` keeps TRL's meaning
    (a clip bound above 1; below 1 it is read as trl-cgrpo's name for ``miscoverage``, with a message).

    Parameters
    ----------
    response_mask : str
        Rule that decides which responses may move the policy, against the log-probabilities recorded while sampling: ``"none"`` or
        one of ``carm``, ``geomean``, ``trm``, ``trm_mean``, ``mean_exp_abs``, ``opsm``, ``seq_mis``, ``seq_tis``,
        ``token_mis``, ``token_tis``, ``icepop``,
        ``no_mask`` (rejects non-finite log-probabilities only).  A rule object goes to the trainer's ``mask_rule``.
    response_mask_threshold : float or None
        The rule's threshold in its own units (``carm``: the ratio ``tau >= 1``, keep iff ``mean_t |log pi_theta - log pi_rollout| <=
        log tau``; ``trm``: nats squared over 2; ``opsm``: nats; ``seq_*``: a cap on the product of ratios; ``icepop``: the upper
        ratio).  ``None``: the value of its paper.
    response_mask_conditioning : {"both", "negative"} or None
        Whether responses of either sign of advantage are gated.  ``None``: as the rule has it.
    response_mask_normalize : {"fixed", "retained"}
        Whether rejected responses stay in the loss's denominator (TRL's and the paper's choice) or leave it.  ``"retained"`` counts over
        all ranks and needs one micro-batch per optimizer step.
    nonfinite_logps : {"reject", "raise", "drop_token"}
        What becomes of a response with a token whose log-probability the engine could not give.
    mask_warn_after : int
        Passes in a row with 95% of responses rejected before a warning.
    prune : {"zero_variance", "none"}
        Drop groups whose rewards are all equal before any forward pass: their advantage is 0.
    kl_on_pruned : bool
        With ``beta > 0``, keep pruned groups for their KL term (they then cost a forward and a backward).
    success_threshold : float
        A response passes iff its weighted total reward exceeds this number.
    old_logps : {"auto", "rollout", "recompute"}
        Denominator of the importance ratio, and what the mask compares with where this trainer samples: the log-probabilities recorded
        while sampling (one forward pass less), or a scoring pass over the trained rows with the weights that sampled them.  Settings that
        edit logits while sampling (``repetition_penalty``, ``min_new_tokens``, ...) need ``"recompute"``.  ``"auto"`` is ``"recompute"``
        under vLLM with ``vllm_importance_sampling_correction``, whose weight is the ratio of the two, and ``"rollout"`` otherwise.
    objective : {"trl", "cgrpo"}
        TRL's ``loss_type``, or the C-GRPO paper's Eq. 10-11 (see :meth:`paper`), for which ``loss_type`` is not read.
    degenerate_tokens, degenerate_reward : int, float
        A response shorter than ``degenerate_tokens`` tokens gets ``degenerate_reward``, whatever the reward functions say; 0 is off.
    rollout_batch_size, calibration_batch_size : int
        Most rows per call of the engine and process, while training and while calibrating.
    max_seconds : float or None
        Stop at the first optimizer step that ends after this wall-clock time, calibration included.
    calibration_progress : bool
        Show a progress bar while calibrating.
    budget_grid, miscoverage, multiplicity, score, delta_margin, split_delta, recalibrate_every, num_calibration_samples, \
calibration_answer_column :
        A :class:`~conformal_core.ConformalBudget` in trl-cgrpo's arguments, used if ``budget_grid`` is given and the trainer gets no
        ``rollout_policy``.  ``miscoverage=None`` chooses the level at every calibration; ``recalibrate_every=0`` calibrates once.

    Raises
    ------
    ValueError
        Before any model is loaded, for a value outside these ranges.

    Examples
    --------
    >>> CGRPOConfig(use_cpu=True, bf16=False, response_mask="carm", response_mask_threshold=0.02)
    Traceback (most recent call last):
    ...
    ValueError: response_mask_threshold: got 0.02; need a ratio >= 1; because tau bounds exp(mean |log-ratio|) (did you mean 1.02?)
    """

    response_mask: str = field(default="none", metadata={"help": "none | " + " | ".join(RULES)})
    response_mask_threshold: float | None = field(default=None, metadata={"help": "threshold in the rule's own units"})
    response_mask_conditioning: str | None = field(default=None, metadata={"help": "both | negative"})
    response_mask_normalize: str = field(default="fixed", metadata={"help": "fixed | retained"})
    nonfinite_logps: str = field(default="reject", metadata={"help": "reject | raise | drop_token"})
    mask_warn_after: int = field(default=10, metadata={"help": "passes in a row with nearly everything rejected before a warning"})
    prune: str = field(default="zero_variance", metadata={"help": "zero_variance | none"})
    kl_on_pruned: bool = field(default=False, metadata={"help": "with beta > 0, keep pruned groups for their KL term"})
    success_threshold: float = field(default=0.5, metadata={"help": "a response passes iff its total reward exceeds this"})
    old_logps: str = field(default="auto", metadata={"help": "auto | rollout | recompute"})
    objective: str = field(default="trl", metadata={"help": "trl | cgrpo"})
    degenerate_tokens: int = field(default=0, metadata={"help": "responses shorter than this get degenerate_reward; 0 is off"})
    degenerate_reward: float = field(default=-1.0, metadata={"help": "total reward of a degenerate response"})
    rollout_batch_size: int = field(default=1024, metadata={"help": "most rows per engine call while training"})
    calibration_batch_size: int = field(default=2048, metadata={"help": "most rows per engine call while calibrating"})
    max_seconds: float | None = field(default=None, metadata={"help": "wall-clock limit of training, calibration included"})
    calibration_progress: bool = field(default=True, metadata={"help": "progress bar while calibrating"})
    budget_grid: list[int] | None = field(default=None, metadata={"help": "budgets of the policy built from this config"})
    miscoverage: float | None = field(default=None, metadata={"help": "miscoverage level; None chooses it at every calibration"})
    multiplicity: str = field(default="per_budget", metadata={"help": "per_budget | bonferroni | risk_control"})
    score: str = field(default="aps", metadata={"help": "aps | first_success"})
    delta_margin: float = field(default=0.05, metadata={"help": "margin added to the miss rate when miscoverage is None"})
    split_delta: bool = field(default=True, metadata={"help": "choose the level and the thresholds on disjoint halves"})
    recalibrate_every: int = field(default=50, metadata={"help": "optimizer steps between calibrations; 0 calibrates once"})
    num_calibration_samples: int | None = field(default=None, metadata={"help": "calibration prompts; None: all"})
    calibration_answer_column: str = field(default="answer", metadata={"help": "column of the gold answer"})

    @classmethod
    def paper(cls, **overrides: Any) -> CGRPOConfig:
        """The C-GRPO paper's update: Eq. 10-11, KL k3 with beta .05, reward -1 below five tokens, AdamW (.9, .95) at 2e-6, one
        on-policy step; ``overrides`` win.

        Source: C-GRPO, Eq. 10-11 and Appendix D.
        """
        preset: dict[str, Any] = dict(
            objective="cgrpo", beta=0.05, degenerate_tokens=5, degenerate_reward=-1.0, kl_on_pruned=True, num_iterations=1,
            learning_rate=2e-6, adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.01, max_grad_norm=0.5, temperature=1.0,
            vllm_importance_sampling_correction=False,
        )  # fmt: skip
        return cls(**(preset | overrides))

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}; need one of {', '.join(map(str, allowed))}; because nothing else is implemented"
                )
        tau = self.response_mask_threshold
        if self.response_mask in ("carm", "geomean") and tau is not None and not (math.isfinite(tau) and tau >= 1):
            hint = f" (did you mean {1 + tau:g}?)" if 0 < tau < 1 else ""
            raise ValueError(f"response_mask_threshold: got {tau!r}; need a ratio >= 1; because tau bounds exp(mean |log-ratio|){hint}")
        rule = make_rule(self.response_mask, tau, self.response_mask_conditioning)
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds: got {self.max_seconds!r}; need a positive number of seconds; because it limits training")
        for name in ("success_threshold", "degenerate_reward"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name}: got {getattr(self, name)!r}; need a finite number; because it is compared with rewards")
        for name, least in (("rollout_batch_size", 1), ("calibration_batch_size", 1), ("mask_warn_after", 1), ("degenerate_tokens", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; need at least {least}; because it counts")
        if self.recalibrate_every < 0:
            raise ValueError(f"recalibrate_every: got {self.recalibrate_every}; need at least 0; because it counts optimizer steps")
        read_grid(self)
        self._resolve_old_logps()
        if rule is not None and self.off_policy_mask_threshold is not None:
            raise ValueError(
                f"off_policy_mask_threshold: got {self.off_policy_mask_threshold!r} beside response_mask={self.response_mask!r}; need one "
                "of the two; because both use TRL's off-policy hook"
            )
        super().__post_init__()
        self._check_window()

    def _resolve_old_logps(self) -> None:
        corrected = self.use_vllm and self.vllm_importance_sampling_correction
        if self.old_logps == "rollout" and corrected:
            raise ValueError(
                'old_logps: got "rollout" beside vllm_importance_sampling_correction; need "recompute", or the correction off; because its '
                "weight is the ratio of recomputed and recorded log-probabilities"
            )
        if self.old_logps == "auto":
            self.old_logps = "recompute" if corrected or self.use_transformers_continuous_batching else "rollout"
        if self.use_transformers_continuous_batching and self.old_logps == "rollout":
            raise ValueError(
                'old_logps: got "rollout" beside use_transformers_continuous_batching; need "recompute"; because that engine records none'
            )
        if self.response_mask in WEIGHING and self.old_logps == "rollout":
            raise ValueError(
                f'old_logps: got "rollout" beside response_mask={self.response_mask!r}; need "recompute"; because the rule weighs by '
                "pi_old / pi_rollout, which is 1 if pi_old is what was recorded"
            )
        if self.nonfinite_logps == "drop_token" and self.old_logps == "rollout" and self.use_vllm:
            raise ValueError(
                'nonfinite_logps: got "drop_token" beside old_logps="rollout"; need "recompute"; because its ratio is missing too'
            )

    def _check_window(self) -> None:
        if self.response_mask_normalize == "retained" and self.response_mask != "none" and self.gradient_accumulation_steps > 1:
            raise ValueError(
                f"response_mask_normalize: got 'retained' with gradient_accumulation_steps={self.gradient_accumulation_steps}; need 1; "
                "because the count of kept responses spans micro-batches that have not been computed when the first is"
            )
        if self.objective == "cgrpo":
            for name, neutral, why in (
                ("entropy_coef", 0.0, "Eq. 10-11 has no entropy term"),
                ("use_adaptive_entropy", False, "Eq. 10-11 has no entropy term"),
                ("top_entropy_quantile", 1.0, "Eq. 10-11 weighs all tokens of a response alike"),
                ("importance_sampling_level", "token", "Eq. 10-11 has no importance ratio"),
                ("multi_objective_aggregation", "sum_then_normalize", "Eq. 10 standardises one total reward"),
                ("off_policy_mask_threshold", None, "TRL's off-policy mask is part of its losses; response_mask='opsm' is the same rule"),
            ):
                if getattr(self, name) != neutral:
                    raise ValueError(f"{name}: got {getattr(self, name)!r}; need {neutral!r}; because {why}")
            if self.use_vllm and self.vllm_importance_sampling_correction:
                raise ValueError(
                    "vllm_importance_sampling_correction: got True; need False; because Eq. 10-11 has no importance ratio (a response_mask "
                    "may reject what the engine sampled too far off)"
                )
            if self.response_mask_normalize == "retained":
                raise ValueError("response_mask_normalize: got 'retained'; need 'fixed'; because Eq. 10 divides by |B|")
