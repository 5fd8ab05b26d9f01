"""CARM masks on torch tensors: padded and packed responses, the masked loss, no host sync, safe under torch.compile."""

from .masks import keep_mask, masked_policy_loss, packed_keep_mask
from .packed import PackedRows

__all__ = ["PackedRows", "keep_mask", "masked_policy_loss", "packed_keep_mask"]
