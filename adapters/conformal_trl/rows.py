"""Ragged groups as compact micro-batches: rows that were never generated, or were pruned, do not exist."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import pad

__all__ = ["Deal", "Group", "Response", "Row", "compact_batch"]


@dataclass
class Response:
    """One verified response.  ``mask`` marks the tokens the policy wrote (``None``: all), ``logps`` is ``None`` if nobody recorded them."""

    prompt: np.ndarray
    ids: np.ndarray
    logps: np.ndarray | None
    mask: np.ndarray | None
    completion: Any
    text: str
    answer: Hashable | None = None
    rewards: tuple[float, ...] = ()
    total: float = float("nan")
    passed: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens the policy wrote."""
        return len(self.ids) if self.mask is None else int(self.mask.sum())


@dataclass
class Group:
    """The responses of one prompt, in the order they were drawn."""

    example: dict[str, Any]
    responses: list[Response] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A response that trains, and how it is weighed."""

    response: Response
    advantage: float


@dataclass(frozen=True)
class Deal:
    """How ``rows`` rows are dealt to ``parts`` micro-batches on each of ``world`` ranks, as evenly as rows allow.

    Micro-batch ``i`` of rank ``r`` is hand ``i * world + r`` of the shuffled rows, so one rank with ``parts * world`` micro-batches and
    ``world`` ranks with ``parts`` each hold the same hands.  ``window`` consecutive micro-batches (over all ranks) make one optimizer step.
    """

    rows: int
    parts: int
    world: int
    window: int

    def hand(self, part: int, rank: int) -> slice:
        """The rows of one micro-batch of one rank."""
        hands, m = self.parts * self.world, part * self.world + rank
        return slice(self.rows * m // hands, self.rows * (m + 1) // hands)

    def rows_at(self, part: int) -> int:
        """Rows of one micro-batch over all ranks."""
        return self.hand(part, self.world - 1).stop - self.hand(part, 0).start

    def rows_of_window(self, part: int) -> int:
        """Rows, over all ranks, of the window that holds a micro-batch."""
        first = part - part % self.window
        return self.hand(min(first + self.window, self.parts) - 1, self.world - 1).stop - self.hand(first, 0).start

    def weight(self, part: int, rank: int) -> float:
        """What makes a mean over the rows of this micro-batch, averaged over the window and the ranks, the mean over the window's rows."""
        hand, total = self.hand(part, rank), self.rows_of_window(part)
        return (hand.stop - hand.start) * self.window * self.world / total if total else 0.0


def compact_batch(rows: Sequence[Row], pad_token_id: int, device: torch.device) -> dict[str, Any]:
    """Padded tensors of the given rows (prompts left, completions right), the inputs of TRL's ``_compute_loss``."""
    if not rows:
        return {"advantages": torch.zeros(0, device=device)}

    def stack(values: list[np.ndarray], value: float, side: str, dtype: torch.dtype = torch.long) -> torch.Tensor:
        tensors = [torch.from_numpy(np.ascontiguousarray(v)).to(dtype) for v in values]
        return pad(tensors, padding_value=value, padding_side=side).to(device)

    responses = [row.response for row in rows]
    batch: dict[str, Any] = {
        "prompt_ids": stack([r.prompt for r in responses], pad_token_id, "left"),
        "prompt_mask": stack([np.ones_like(r.prompt) for r in responses], 0, "left"),
        "completion_ids": stack([r.ids for r in responses], pad_token_id, "right"),
        "completion_mask": stack([np.ones_like(r.ids) for r in responses], 0, "right"),
        "advantages": torch.tensor([row.advantage for row in rows], dtype=torch.float32, device=device),
        "passed": torch.tensor([r.passed for r in responses], device=device),
    }
    if any(r.mask is not None for r in responses):
        batch["tool_mask"] = stack([np.ones_like(r.ids) if r.mask is None else r.mask for r in responses], 1, "right")
    if all(r.logps is not None for r in responses):
        batch["sampling_per_token_logps"] = stack([r.logps for r in responses], 0.0, "right", torch.float32)
    return batch
