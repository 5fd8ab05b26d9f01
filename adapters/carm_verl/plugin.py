"""Entry point of the group ``verl.plugins``: importing this module puts the losses into verl's registry."""

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss

from .loss import MaskedPolicyLoss
from .rules import LOSSES


def register() -> tuple[str, ...]:
    """Register every name of `LOSSES` in this process; calling it again changes nothing.

    Raises: RuntimeError when another plug-in owns a name (verl would overwrite it in silence).
    """
    for name in LOSSES:
        owner = POLICY_LOSS_REGISTRY.get(name)
        if isinstance(owner, MaskedPolicyLoss):
            continue
        if owner is not None:
            raise RuntimeError(
                f"policy loss {name!r}: got one from {owner.__module__}; need a free name; because verl overwrites in silence"
            )
        register_policy_loss(name)(MaskedPolicyLoss(name))
    return tuple(LOSSES)


register()
