"""Arguments of :class:`CGRPOTrainer`: TRL's ``GRPOConfig`` plus budgets, masks, pruning and a wall-clock limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trl import GRPOConfig

__all__ = ["CGRPOConfig"]

_MASKS = ("carm", "geomean", "none")


@dataclass
class CGRPOConfig(GRPOConfig):
    """``GRPOConfig`` with calibrated budgets and response masks.

    No field shadows a TRL field with another meaning: the miscoverage level belongs to the rollout policy, and
    ``delta`` keeps TRL's meaning (a clip bound).

    Parameters
    ----------
    response_mask : {"none", "carm", "geomean"}
        Rule that decides which responses may move the policy, against the log-probabilities recorded while sampling.
    response_mask_threshold : float
        Ratio-domain ``tau >= 1``: CARM keeps a response iff ``mean_t |log pi_theta - log pi_rollout| <= log tau``.
    prune : {"zero_variance", "none"}
        Drop groups whose rewards are all equal before any forward pass: their advantage is 0.
    kl_on_pruned : bool
        With ``beta > 0``, keep pruned groups for their KL term (they then cost a forward and a backward).
    success_threshold : float
        A response passes iff its weighted total reward exceeds this number.
    old_logps : {"rollout", "recompute"}
        Denominator of the importance ratio, and what the mask compares with: the log-probabilities recorded while sampling (one forward
        pass less), or a scoring pass over the trained rows with the weights that sampled them.  Settings that edit logits while sampling
        (``repetition_penalty``, ``min_new_tokens``, ...) need ``"recompute"``.
    rollout_batch_size, calibration_batch_size : int
        Most rows per call of ``generate``, while training and while calibrating.
    max_seconds : float or None
        Stop at the first optimizer step that ends after this wall-clock time, calibration included.
    calibration_progress : bool
        Show a progress bar while calibrating.

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

    response_mask: str = field(default="none", metadata={"help": "none | carm | geomean"})
    response_mask_threshold: float = field(default=1.02, metadata={"help": "tau, a ratio >= 1"})
    prune: str = field(default="zero_variance", metadata={"help": "zero_variance | none"})
    kl_on_pruned: bool = field(default=False, metadata={"help": "with beta > 0, keep pruned groups for their KL term"})
    success_threshold: float = field(default=0.5, metadata={"help": "a response passes iff its total reward exceeds this"})
    old_logps: str = field(default="rollout", metadata={"help": "rollout | recompute"})
    rollout_batch_size: int = field(default=1024, metadata={"help": "most rows per generate call while training"})
    calibration_batch_size: int = field(default=2048, metadata={"help": "most rows per generate call while calibrating"})
    max_seconds: float | None = field(default=None, metadata={"help": "wall-clock limit of training, calibration included"})
    calibration_progress: bool = field(default=True, metadata={"help": "progress bar while calibrating"})

    def __post_init__(self) -> None:
        for name, allowed in (("response_mask", _MASKS), ("prune", ("zero_variance", "none")), ("old_logps", ("rollout", "recompute"))):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}; need one of {', '.join(allowed)}; because no other rule is implemented here"
                )
        tau = self.response_mask_threshold
        if not (math.isfinite(tau) and tau >= 1):
            hint = f" (did you mean {1 + tau:g}?)" if 0 < tau < 1 else ""
            raise ValueError(f"response_mask_threshold: got {tau!r}; need a ratio >= 1; because tau bounds exp(mean |log-ratio|){hint}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds: got {self.max_seconds!r}; need a positive number of seconds; because it limits training")
        if not math.isfinite(self.success_threshold):
            raise ValueError(
                f"success_threshold: got {self.success_threshold!r}; need a finite number; because rewards are compared with it"
            )
        for name in ("rollout_batch_size", "calibration_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; need at least 1; because it counts rows per generate call")
        if self.response_mask != "none":
            if self.off_policy_mask_threshold not in (None, math.log(tau)):
                raise ValueError(
                    f"off_policy_mask_threshold: got {self.off_policy_mask_threshold!r} beside response_mask="
                    f"{self.response_mask!r}; need one of the two; because both use TRL's off-policy hook"
                )
            self.off_policy_mask_threshold = math.log(tau)
        super().__post_init__()
