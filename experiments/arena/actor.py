"""A trainer whose responses come from older or rounded weights: actor lag and a foreign engine, on one machine."""

from __future__ import annotations

from collections import deque
from typing import Any

__all__ = ["rounded", "stale"]


def rounded(state: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The same weights after a round trip through ``dtype``."""
    import torch

    kind = getattr(torch, dtype)
    return {k: v.detach().clone().to(kind).to(v.dtype) if v.is_floating_point() else v.detach().clone() for k, v in state.items()}


def stale(trainer_class: Any, delay: int, dtype: str) -> Any:
    """``trainer_class`` that samples, and records sampling log-probabilities, with weights ``delay`` generations old, rounded."""

    class Stale(trainer_class):  # type: ignore[misc]
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            if not self.model.training:
                return super()._generate_single_turn(*args, **kwargs)
            past = self.__dict__.setdefault("_past", deque(maxlen=delay + 1))
            if not past or past[-1][0] != self.state.global_step:
                past.append((self.state.global_step, rounded(self.model.state_dict(), dtype)))
            now = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
            self.model.load_state_dict(past[0][1])
            try:
                return super()._generate_single_turn(*args, **kwargs)
            finally:
                self.model.load_state_dict(now)

    return Stale
