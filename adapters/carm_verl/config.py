"""The section ``actor_rollout_ref.actor.policy_loss`` of verl's config tree, when a mask is on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl.workers.config import PolicyLossConfig

from carm_core import Rule

from .checks import GROUP, run_faults
from .rules import build_rule


@dataclass
class CARMPolicyLossConfig(PolicyLossConfig):
    """verl's `PolicyLossConfig` plus a mask. verl builds it on the driver before Ray starts and again in every worker, from the same tree,
    so importing and checking happen in each process that evaluates the loss.

    Attributes:
        loss_mode: a key of `LOSSES`.
        tau: ratio-domain threshold (>= 1) of carm, carm_negative and geomean; None takes the mode's default.
        delta: threshold of trm (z^2/2) and opsm (nats); None takes the mode's default.
        normalize: "fixed" divides by verl's counts, taken before any rejection (the paper's experiments); "retained" divides, within each
            micro-batch, by what was kept (CARM, Eq. 3).
        inert_after: consecutive micro-batches in which every log-ratio is exactly 0 before the loss raises; 0 never raises.
        run: the settings of `checks.SETTINGS`; the recipe group interpolates them, nobody types them.
        rollout_correction: verl's section for loss_mode=bypass_mode; must stay empty here.

    Raises: ValueError listing every fault: an unknown mode, an unread or out-of-range threshold, a run in which old_log_probs are not the
    sampler's, a second correction. Source: CARM, Section 3.2 and Appendix B.
    """

    loss_mode: str = "carm"
    tau: float | None = None
    delta: float | None = None
    normalize: str = "fixed"
    inert_after: int = 64
    run: Any = None
    rollout_correction: Any = None

    def __post_init__(self) -> None:
        build_rule(self.loss_mode, self.tau, self.delta)
        if self.normalize not in ("fixed", "retained"):
            raise ValueError(f"policy_loss.normalize: got {self.normalize!r}; need 'fixed' or 'retained'; because it names a denominator")
        if not (isinstance(self.inert_after, int) and self.inert_after >= 0):
            raise ValueError(f"policy_loss.inert_after: got {self.inert_after!r}; need an integer >= 0; because it counts micro-batches")
        if not isinstance(self.run, Mapping):
            raise ValueError(f"policy_loss.run: got {self.run!r}; need the settings of the run; because they are filled in by {GROUP}")
        faults = run_faults(self.run, self.normalize)
        if self.rollout_correction is not None:
            faults.append(
                f"policy_loss.rollout_correction: got {self.rollout_correction}; need nothing; because only loss_mode=bypass_mode reads it"
            )
        if faults:
            raise ValueError("the mask would not see what it needs:\n  " + "\n  ".join(faults))

    @property
    def rule(self) -> Rule:
        """The `carm_core` rule that decides."""
        return build_rule(self.loss_mode, self.tau, self.delta)
