"""CARM masks on torch tensors: padded and packed responses, the masked loss, no host sync, safe under torch.compile."""

from .distributed import global_denominator
from .masks import keep_mask, masked_policy_loss, packed_keep_mask, packed_policy_loss
from .packed import PackedRows

__all__ = ["PackedRows", "global_denominator", "keep_mask", "masked_policy_loss", "packed_keep_mask", "packed_policy_loss"]
