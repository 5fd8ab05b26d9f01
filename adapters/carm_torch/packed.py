"""Reductions over packed responses: one flat token axis, boundaries in cu_seqlens."""

from collections.abc import Iterator

import torch
from torch import Tensor

from carm_core import Rows
from carm_core._namespace import accumulator, namespace, upcast
from carm_core.rows import check_advantages

from .blocks import StreamedRows, guarded


def packed_live(tokens: Tensor, cu_seqlens: Tensor, token_mask: Tensor | None) -> Tensor:
    """(N,) bool: inside the packed responses, and selected by the mask where there is one."""
    positions = torch.arange(tokens.numel(), device=tokens.device)
    inside = (positions >= cu_seqlens[0]) & (positions < cu_seqlens[-1])
    return inside if token_mask is None else inside & (token_mask != 0)


def check_bounds(cu_seqlens: Tensor) -> None:
    """ValueError unless the boundaries are a 1-d integer tensor with at least one element."""
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dim() != 1 or cu_seqlens.numel() < 1 or cu_seqlens.dtype.is_floating_point:
        got = f"{cu_seqlens.dtype} {tuple(cu_seqlens.shape)}" if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise ValueError(f"cu_seqlens: got {got}; need a (B + 1,) integer tensor; because it holds the boundaries of B responses")


def check_packed(advantages: Tensor, length: Tensor, tokens: int) -> None:
    """ValueError or TypeError unless there is one advantage per response, or one per token as (N,) or (1, N)."""
    namespace(length, advantages)
    check_advantages(advantages, length.shape, (tokens,), (1, tokens))


def packed_per_token(advantages: Tensor, rows: torch.Size, tokens: int) -> Tensor | None:
    """(N,) advantages of the tokens; None where there is one per response, as a flat one is read if there are as many responses."""
    if advantages.shape == (1, tokens):
        return advantages[0]
    return None if advantages.shape in (rows, (*rows, 1)) else advantages


class PackedRows(Rows):
    """Responses packed on one axis: response i is tokens cu_seqlens[i] : cu_seqlens[i + 1]; later tokens are padding.

    `z` and `token_mask` (N,), `cu_seqlens` (B + 1,) non-decreasing integers. Sums accumulate in float64 where the device has it.
    """

    def __init__(self, z: Tensor, token_mask: Tensor, cu_seqlens: Tensor) -> None:
        check_bounds(cu_seqlens)
        if z.dim() != 1:
            raise ValueError(f"z: got shape {tuple(z.shape)}; need (N,); because responses are packed on one axis")
        self.n = cu_seqlens.numel() - 1
        positions = torch.arange(z.numel(), device=z.device, dtype=cu_seqlens.dtype)
        self.ids = torch.searchsorted(cu_seqlens[1:].contiguous(), positions, right=True)
        inside = (self.ids < self.n) & (positions >= cu_seqlens[0])
        super().__init__(z, (token_mask != 0) & inside)

    def check(self, advantages: Tensor) -> None:
        check_packed(advantages, self.length, self.z.numel())

    def per_token(self, advantages: Tensor) -> Tensor | None:
        """The advantages along the token axis, or None where there is one per response."""
        return packed_per_token(advantages, self.length.shape, self.z.numel())

    def advantage(self, advantages: Tensor) -> Tensor:
        tokens = self.per_token(advantages)
        if tokens is None:
            return advantages.reshape(self.length.shape)
        return self.mean(torch.where(self.live, upcast(tokens), 0.0))

    def sum(self, x: Tensor) -> Tensor:
        return self._accumulate(x).to(x.dtype if x.dtype.is_floating_point else torch.int64)

    def _accumulate(self, x: Tensor) -> Tensor:
        wide = accumulator(x) if x.dtype.is_floating_point else torch.int64
        return torch.zeros(self.n + 1, dtype=wide, device=x.device).index_add(0, self.ids, x.to(wide))[: self.n]

    def max(self, x: Tensor) -> Tensor:
        return torch.zeros(self.n + 1, dtype=x.dtype, device=x.device).scatter_reduce(0, self.ids, x, "amax")[: self.n]

    def spread(self, per_row: Tensor) -> Tensor:
        return torch.cat([per_row, per_row.new_zeros(1)])[self.ids]


class PackedBlocks(StreamedRows):
    """Packed (N,) log-probabilities, read one block of tokens at a time; the last running total is that of the padding."""

    def __init__(
        self, current: Tensor, rollout: Tensor, token_mask: Tensor | None, cu_seqlens: Tensor, clip: float, drop: bool, block: int
    ) -> None:
        self._arrays, self._guard, self._step = (current, rollout, token_mask), (clip, drop), block
        self._bounds = cu_seqlens.to(torch.int64).contiguous()
        super().__init__(cu_seqlens.numel(), current, rollout)

    def check(self, advantages: Tensor) -> None:
        check_packed(advantages, self.length, self._tokens[0])

    def per_token(self, advantages: Tensor) -> Tensor | None:
        return packed_per_token(advantages, self.length.shape, self._tokens[0])

    def blocks(self) -> Iterator[slice]:
        return (slice(at, at + self._step) for at in range(0, self._tokens[0], self._step))

    def read(self, where: slice) -> tuple[Tensor, Tensor]:
        current, rollout, mask = self._arrays
        positions = self._positions(where)
        inside = (positions >= self._bounds[0]) & (positions < self._bounds[-1])
        return guarded(current[where], rollout[where], inside if mask is None else inside & (mask[where] != 0), *self._guard)

    def add(self, totals: Tensor, where: slice, values: Tensor) -> Tensor:
        return totals.index_add_(0, self._ids(where), values)

    def largest(self, totals: Tensor, where: slice, values: Tensor) -> Tensor:
        return totals.scatter_reduce_(0, self._ids(where), values, "amax")

    def finish(self, totals: Tensor) -> Tensor:
        return totals[:-1]

    def _positions(self, where: slice) -> Tensor:
        return torch.arange(where.start, min(where.stop, self._tokens[0]), device=self._bounds.device)

    def _ids(self, where: slice) -> Tensor:
        return torch.searchsorted(self._bounds[1:], self._positions(where), right=True)
