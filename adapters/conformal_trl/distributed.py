"""Collectives over processes whose micro-batches differ in rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["ragged_gather"]


@contextmanager
def ragged_gather(accelerator: Any) -> Iterator[None]:
    """Within the block ``accelerator.gather`` takes one-dimensional tensors of unequal lengths, and pads the short ones with NaN.

    TRL's loss gathers one clip share per row and reads only their NaN-aware extremes; a plain gather of unequal lengths aborts or hangs.
    """
    if accelerator.num_processes == 1:
        yield
        return
    gather = accelerator.gather

    def padded(tensor: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 1 and tensor.is_floating_point():
            tensor = accelerator.pad_across_processes(tensor, dim=0, pad_index=math.nan)
        return gather(tensor)

    accelerator.gather = padded
    try:
        yield
    finally:
        del accelerator.gather
