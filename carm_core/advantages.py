"""Group-relative advantages: how much better than its siblings is a response?"""

from typing import Any, Literal

from ._namespace import namespace, upcast

Scale = Literal["group", "none"]


def group_advantages(rewards: Any, *, scale: Scale = "group", eps: float = 0.0) -> Any:
    """A_ij = (R_ij - mean_j R_ij) / (std_j R_ij + eps) within each group of G responses; exactly 0 where a group's rewards are all equal.

    The standard deviation is the population one (divisor G), as in the GRPO paper; TRL divides by the sample one and adds 1e-4.
    ``scale="none"`` leaves out the division (Dr. GRPO).

    Args:
        rewards: (..., G), NumPy or torch, finite.
        eps: added to the standard deviation, >= 0.

    Returns: (..., G), float64 in NumPy and at least float32 in torch.
    Raises: ValueError for no group axis, an unknown `scale` or a negative `eps`; TypeError for anything but an array.
    Source: GRPO (arXiv 2402.03300), Section 4.1; CARM, Section 3.1.

    >>> import numpy as np
    >>> group_advantages(np.array([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [[1.0, -1.0], [0.0, 0.0]]
    """
    xp = namespace(rewards)
    if scale not in ("group", "none"):
        raise ValueError(f"scale: got {scale!r}; need 'group' or 'none'; because a group is scaled by its own spread or not at all")
    if not eps >= 0.0:
        raise ValueError(f"eps: got {eps}; need >= 0; because it keeps a standard deviation away from 0")
    if not rewards.shape or rewards.shape[-1] == 0:
        raise ValueError(f"rewards: got shape {tuple(rewards.shape)}; need (..., G) with G >= 1; because a group is the last axis")
    wide = upcast(rewards)
    equal = xp.amax(wide, -1)[..., None] == xp.amin(wide, -1)[..., None]
    centred = xp.where(equal, 0.0, wide - xp.mean(wide, -1)[..., None])
    if scale == "none":
        return centred
    peak = xp.where(equal, 1.0, xp.amax(abs(centred), -1)[..., None])
    unit = centred / peak  # squares of it neither vanish nor overflow
    return unit / (xp.sqrt(xp.mean(unit * unit, -1))[..., None] + xp.where(equal, 1.0, eps / peak))
