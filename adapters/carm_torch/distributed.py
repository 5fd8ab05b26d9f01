"""Counts over all ranks, so that the loss of a global batch does not depend on how it was split."""

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor


def global_denominator(
    token_mask: Tensor,
    keep: Tensor,
    *,
    normalize: Literal["fixed", "retained"] = "retained",
    aggregate: Literal["token", "sequence"] = "token",
    group: dist.ProcessGroup | None = None,
    gradients: Literal["averaged", "summed"] = "averaged",
) -> Tensor:
    """The count that `carm_core.masked_loss` takes as `denominator` so that all ranks together give the loss of the global batch.

    One all-reduce; every rank must call it, those with nothing kept too. Without an initialised process group it is the local count.

    Args:
        token_mask: (B, T) of this rank, non-zero at live tokens (after drops: `log_ratio(...).live`). B and T may differ between ranks.
        keep: (B,) bool of this rank.
        normalize: "fixed" counts all live tokens, "retained" those of kept responses.
        aggregate: "token" counts tokens, "sequence" responses with a live token.
        group: the process group, default the world.
        gradients: "averaged" over ranks, as DDP and FSDP do (the count is divided by the number of ranks), or "summed".

    Returns: float64 (float32 on mps) scalar tensor on the device of `token_mask`, no gradient, no host synchronisation of its own.
    With gradient accumulation, add the counts of all micro-batches first.

    Raises: ValueError for shapes that do not fit or an unknown option.

    >>> global_denominator(torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([True, False])).item()
    2.0
    """
    for name, value, choices in (
        ("normalize", normalize, ("fixed", "retained")),
        ("aggregate", aggregate, ("token", "sequence")),
        ("gradients", gradients, ("averaged", "summed")),
    ):
        if value not in choices:
            raise ValueError(f"{name}: got {value!r}; need {choices[0]!r} or {choices[1]!r}; because it decides what is counted")
    if keep.shape != token_mask.shape[:-1]:
        raise ValueError(f"keep: got shape {tuple(keep.shape)}; need {tuple(token_mask.shape[:-1])}; because a response is kept whole")
    live = token_mask.bool()
    counted = live if normalize == "fixed" else live & keep.bool()[..., None]
    count = (counted.any(-1) if aggregate == "sequence" else counted).sum()
    count = count.to(torch.float32 if count.device.type == "mps" else torch.float64)
    if not (dist.is_available() and dist.is_initialized()):
        return count
    dist.all_reduce(count, op=dist.ReduceOp.SUM, group=group)
    return count / dist.get_world_size(group) if gradients == "averaged" else count
