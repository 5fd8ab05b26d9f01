"""Guarded log-ratios read block by block, so that a mask costs no more memory than one block, whatever the batch."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from carm_core import Rows, Rule
from carm_core._namespace import accumulator, namespace, upcast
from carm_core.rows import check_advantages

CPU_BLOCK = 1 << 16
"""Tokens per block on a CPU: float32 temporaries of it fit a core's L2 cache."""

DEVICE_BLOCK = 1 << 23
"""Tokens per block elsewhere, where starting a kernel costs more than reading a megabyte."""


def block_size(x: Tensor) -> int:
    """Tokens to evaluate at once on the device of `x`."""
    return CPU_BLOCK if x.device.type == "cpu" else DEVICE_BLOCK


def guarded(current: Tensor, rollout: Tensor, token_mask: Tensor, clip: float, drop: bool) -> tuple[Tensor, Tensor]:
    """``(z, live)`` of `carm_core.log_ratio`, without its counts and without gradient: NaN at live tokens that are not finite."""
    live = token_mask.bool()
    raw = upcast(current) - upcast(rollout)
    if drop:
        live = live & raw.isfinite()
    z = raw.clamp(-clip, clip).add_(raw, alpha=0.0)  # 0 times raw: nothing where it is finite, NaN elsewhere
    return zero_dead(z, live), live


def zero_dead(z: Tensor, live: Tensor) -> Tensor:
    """``torch.where(live, z, 0.0)`` in place. Outside the compiler by clearing bits, which takes a CPU a third of the time."""
    if torch.compiler.is_compiling():
        return torch.where(live, z, 0.0)
    bits = torch.int32 if z.dtype == torch.float32 else torch.int64
    z.view(bits).bitwise_and_(live.view(torch.int8).neg().to(bits))
    return z


def count(live: Tensor) -> Tensor:
    """``live.sum(-1)``, int64; fast on a CPU for up to 2**31 tokens a response."""
    if torch.compiler.is_compiling():
        return live.sum(-1)
    return live.view(torch.int8).to(torch.int32).sum(-1, dtype=torch.int32).to(torch.int64)


class GuardedRows(Rows):
    """Padded (B, T) log-probabilities, evaluated whole."""

    def __init__(self, current: Tensor, rollout: Tensor, token_mask: Tensor, clip: float, drop: bool) -> None:
        self.xp = torch
        self.z, self.live = guarded(current, rollout, token_mask, clip, drop)
        self.length = count(self.live)

    def finite(self) -> Tensor:
        return self.z.sum(-1).isfinite()


class StreamedRows(Rows):
    """Responses whose tokens are held one block at a time; offers `length`, `*_of`, `finite` and `advantage`, all a blockwise rule needs.

    A layout says how the token axis is cut (`blocks`), what a piece holds (`read`: z and live) and how its values join the running
    per-response `add` and `largest`.
    """

    xp = torch

    def __init__(self, totals: int, current: Tensor, rollout: Tensor) -> None:
        self._totals, self._device, self._tokens = totals, current.device, tuple(current.shape)
        self._dtype = torch.promote_types(torch.promote_types(current.dtype, rollout.dtype), torch.float32)
        self.length = self._stream(torch.int64, lambda where: self.read(where)[1])

    def blocks(self) -> Iterator[slice]:
        """Pieces of the token axis, in order; each layout has its own."""
        raise NotImplementedError

    def read(self, where: slice) -> tuple[Tensor, Tensor]:
        """z and live of a piece; each layout has its own."""
        raise NotImplementedError

    def add(self, totals: Tensor, where: slice, values: Tensor) -> Tensor:
        """Running sums per response; each layout has its own."""
        raise NotImplementedError

    def largest(self, totals: Tensor, where: slice, values: Tensor) -> Tensor:
        """Running maxima per response; each layout has its own."""
        raise NotImplementedError

    def finish(self, totals: Tensor) -> Tensor:
        """One value per response from the running totals."""
        return totals

    def total_of(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        return self._stream(self._wide(), lambda where: f(self.read(where)[0])).to(self._dtype)

    def mean_of(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        return self._mean(lambda where: f(self.read(where)[0]))

    def max_of(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        totals = self._zeros(self._dtype)
        for where in self.blocks():
            totals = self.largest(totals, where, f(self.read(where)[0]))
        return self.finish(totals)

    def per_token(self, advantages: Tensor) -> Tensor | None:
        """The advantages along the token axis, or None where there is one per response."""
        return advantages if advantages.shape == self._tokens else None

    def check(self, advantages: Tensor) -> None:
        namespace(self.length, advantages)
        check_advantages(advantages, self.length.shape, self._tokens)

    def advantage(self, advantages: Tensor) -> Tensor:
        tokens = self.per_token(advantages)
        if tokens is None:
            return advantages.reshape(self.length.shape)
        return self._mean(lambda where: torch.where(self.read(where)[1], upcast(tokens[..., where]), 0.0))

    def _mean(self, values: Callable[[slice], Tensor]) -> Tensor:
        total = self._stream(self._wide(), values)
        return (total / self.length.clip(1).to(total.dtype)).to(self._dtype)

    def _stream(self, dtype: torch.dtype, values: Callable[[slice], Tensor]) -> Tensor:
        totals = self._zeros(dtype)
        for where in self.blocks():
            totals = self.add(totals, where, values(where).to(dtype))
        return self.finish(totals)

    def _wide(self) -> torch.dtype:
        return accumulator(self._zeros(self._dtype))

    def _zeros(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self._totals, dtype=dtype, device=self._device)


class ColumnBlocks(StreamedRows):
    """Padded (B, T) log-probabilities, read some columns of every response at a time."""

    def __init__(self, current: Tensor, rollout: Tensor, token_mask: Tensor, clip: float, drop: bool, block: int) -> None:
        self._arrays, self._guard = (current, rollout, token_mask), (clip, drop)
        self._step = max(1, block // max(1, current.shape[0]))
        super().__init__(current.shape[0], current, rollout)

    def blocks(self) -> Iterator[slice]:
        return (slice(at, at + self._step) for at in range(0, self._tokens[-1], self._step))

    def read(self, where: slice) -> tuple[Tensor, Tensor]:
        return guarded(*(x[:, where] for x in self._arrays), *self._guard)

    def add(self, totals: Tensor, where: slice, values: Tensor) -> Tensor:
        return totals + values.sum(-1)

    def largest(self, totals: Tensor, where: slice, values: Tensor) -> Tensor:
        return torch.maximum(totals, values.amax(-1))


def keep_padded(
    rule: Rule, current: Tensor, rollout: Tensor, token_mask: Tensor, advantages: Tensor | None, *, clip: float, drop: bool, block: int
) -> Tensor:
    """`Rule.keep_rows` on (B, T) log-probabilities, a few whole rows at a time, or a few columns of one row where rows are long."""
    rows, width = current.shape
    if advantages is not None:
        namespace(current, advantages)
        check_advantages(advantages, (rows,), (rows, width))
    step = max(1, block // max(1, width))
    keeps = []
    for at in range(0, rows, step):
        part = slice(at, at + step)
        arrays = current[part], rollout[part], token_mask[part], clip, drop
        signs = None if advantages is None else advantages[part]
        keeps.append(rule.keep_rows(ColumnBlocks(*arrays, block) if width > block else GuardedRows(*arrays), signs))
    return torch.cat(keeps) if keeps else torch.ones(0, dtype=torch.bool, device=current.device)
