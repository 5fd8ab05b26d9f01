"""Reductions over packed responses: one flat token axis, boundaries in cu_seqlens."""

import torch
from torch import Tensor

from carm_core import Rows


class PackedRows(Rows):
    """Responses packed on one axis: response i is tokens cu_seqlens[i] : cu_seqlens[i + 1]; later tokens are padding.

    `z` and `token_mask` (N,), `cu_seqlens` (B + 1,) non-decreasing integers. Sums accumulate in float64 where the device has it.
    """

    def __init__(self, z: Tensor, token_mask: Tensor, cu_seqlens: Tensor) -> None:
        if z.dim() != 1 or cu_seqlens.dim() != 1 or cu_seqlens.numel() < 1:
            raise ValueError(f"z, cu_seqlens: got {z.dim()} and {cu_seqlens.dim()} axes; need 1 and 1; because tokens are packed")
        self.n = cu_seqlens.numel() - 1
        positions = torch.arange(z.numel(), device=z.device, dtype=cu_seqlens.dtype)
        self.ids = torch.searchsorted(cu_seqlens[1:].contiguous(), positions, right=True)
        inside = (self.ids < self.n) & (positions >= cu_seqlens[0])
        super().__init__(z, (token_mask != 0) & inside)

    def sum(self, x: Tensor) -> Tensor:
        if not x.dtype.is_floating_point:
            wide, out = torch.int64, torch.int64
        else:
            wide, out = (x.dtype if x.device.type == "mps" else torch.float64), x.dtype
        total = torch.zeros(self.n + 1, dtype=wide, device=x.device).index_add(0, self.ids, x.to(wide))
        return total[: self.n].to(out)

    def max(self, x: Tensor) -> Tensor:
        return torch.zeros(self.n + 1, dtype=x.dtype, device=x.device).scatter_reduce(0, self.ids, x, "amax")[: self.n]

    def spread(self, per_row: Tensor) -> Tensor:
        return torch.cat([per_row, per_row.new_zeros(1)])[self.ids]
