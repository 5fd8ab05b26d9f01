"""From a loss_mode and its threshold to a `carm_core` rule."""

from collections.abc import Callable
from dataclasses import dataclass

from carm_core import CARM, OPSM, TRM, GeoMean, NoMask, Rule


@dataclass(frozen=True)
class LossMode:
    """One registered name: which threshold it reads, its default, and the rule it builds."""

    threshold: str | None
    default: float | None
    build: Callable[[float | None], Rule]
    says: str


LOSSES: dict[str, LossMode] = {
    "carm": LossMode("tau", 1.02, lambda tau: CARM(tau), "keep iff exp(mean |z|) <= tau"),
    "carm_negative": LossMode("tau", 1.02, lambda tau: CARM(tau, conditioning="negative"), "the same, asked of negative advantages only"),
    "geomean": LossMode("tau", 1.005, lambda tau: GeoMean(tau), "keep iff exp(|mean z|) <= tau"),
    "trm": LossMode("delta", 0.05, lambda delta: TRM(delta), "keep iff max z^2/2 <= delta"),
    "opsm": LossMode("delta", 0.5, lambda delta: OPSM(delta), "drop iff advantage < 0 and mean(-z) > delta"),
    "no_mask": LossMode(None, None, lambda _: NoMask(), "keep everything finite: the unmasked baseline with the same metrics"),
}
"""Registered loss modes. Defaults: the CARM paper's Table 3 and best thresholds of Table 4; OPSM's as TRL suggests."""


def build_rule(loss_mode: str, tau: float | None = None, delta: float | None = None) -> Rule:
    """The rule behind `loss_mode`, with its default threshold where none is given.

    Raises: ValueError for an unknown mode, a threshold out of range, or one that the mode does not read (it would be inert).

    >>> build_rule("carm").tau, build_rule("trm", delta=0.1).delta, build_rule("carm_negative", tau=1.03).conditioning
    (1.02, 0.1, 'negative')
    """
    if loss_mode not in LOSSES:
        hint = "; verl's geo_mean is GMPO, the response mask is geomean" if loss_mode == "geo_mean" else ""
        raise ValueError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode: got {loss_mode!r}; need one of {', '.join(LOSSES)}; "
            f"because this policy_loss section belongs to carm_verl (a legacy trainer overwrites it with 'bypass_mode'){hint}"
        )
    mode = LOSSES[loss_mode]
    given = {"tau": tau, "delta": delta}
    for name, value in given.items():
        if value is not None and name != mode.threshold:
            need = f"none, or {mode.threshold}" if mode.threshold else "none"
            raise ValueError(
                f"actor_rollout_ref.actor.policy_loss.{name}: got {value}; need {need}; because loss_mode={loss_mode} does not read it"
            )
    value = given[mode.threshold] if mode.threshold else None
    return mode.build(mode.default if value is None else value)
