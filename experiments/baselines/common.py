"""What several baselines share: counts of a group, the GRPO advantage, a memory keyed by prompt, exact-sum rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes

__all__ = ["Memory", "at_least", "check_config", "counts", "grpo_advantages", "round_to_sum", "within"]

#: TRL's guard against division by a zero standard deviation.
EPSILON = 1e-4


def at_least(name: str, value: int, low: int, because: str) -> int:
    """``value`` as an int, or ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise ValueError(f"{name}: got {value!r}; need an integer >= {low}; because {because}")
    return int(value)


def within(name: str, value: float, low: float, high: float, because: str) -> float:
    """``value`` as a float in ``[low, high]``, or ``ValueError``."""
    if not low <= value <= high:
        raise ValueError(f"{name}: got {value!r}; need a number in [{low:g}, {high:g}]; because {because}")
    return float(value)


def counts(outcomes: Outcomes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``(n,)`` successes and responses drawn."""
    return (outcomes.passes & outcomes.live).sum(1), outcomes.drawn


def grpo_advantages(outcomes: Outcomes, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """``(r - mean) / (std + 1e-4)`` over the kept responses of each group, with the sample standard deviation; 0 elsewhere."""
    size = np.maximum(kept.sum(1, keepdims=True), 1)
    centred = np.where(kept, outcomes.passes - (outcomes.passes & kept).sum(1, keepdims=True) / size, 0.0)
    std = np.sqrt((centred**2).sum(1, keepdims=True) / np.maximum(size - 1, 1))
    return centred / (std + EPSILON)


def round_to_sum(x: NDArray[np.float64], total: int, low: int, high: int) -> NDArray[np.int64]:
    """Integers in ``[low, high]`` with sum ``total`` nearest to ``x`` up to a common factor.

    The factor ``s`` is such that ``clip(s x, low, high)`` sums to ``total`` (bisection); the remainders are rounded up where they are
    largest, the first of equals first.  ``total`` is clipped to what ``[low, high]`` allows.
    """
    n = len(x)
    if not n:
        return np.zeros(0, np.int64)
    total = int(np.clip(total, n * low, n * high))
    x = np.maximum(x, 1e-12)
    lo, hi = 0.0, high / x.min()
    for _ in range(200):
        mid = (lo + hi) / 2
        lo, hi = (mid, hi) if np.clip(mid * x, low, high).sum() < total else (lo, mid)
    target = np.clip(hi * x, low, high)
    out = np.floor(target + 1e-9).astype(np.int64)
    while (missing := total - int(out.sum())) != 0:
        step = 1 if missing > 0 else -1
        free = (out < high) if step > 0 else (out > low)
        order = np.argsort(np.where(free, -step * (target - out), np.inf), kind="stable")
        out[order[: min(abs(missing), int(free.sum()))]] += step
    return out


class Memory:
    """Per-prompt numbers, keyed by content hash; JSON in and out."""

    def __init__(self, blank: Callable[[], list[Any]]) -> None:
        self._blank = blank
        self._rows: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self._rows.values())

    def __contains__(self, prompt_id: Any) -> bool:
        return int(prompt_id) in self._rows

    def __getitem__(self, prompt_id: Any) -> list[Any]:
        """A prompt's row; a blank one, not remembered, for a prompt never seen."""
        return self._rows.get(int(prompt_id)) or self._blank()

    def __setitem__(self, prompt_id: Any, row: list[Any]) -> None:
        self._rows[int(prompt_id)] = row

    def dump(self) -> dict[str, list[Any]]:
        return {str(key): row for key, row in self._rows.items()}

    def load(self, rows: Mapping[str, list[Any]]) -> None:
        self._rows = {int(key): list(row) for key, row in rows.items()}


def check_config(state: Mapping[str, Any], policy: object) -> None:
    """Refuse a state that another rule, or one with other arguments, saved."""
    if state.get("policy") != repr(policy):
        raise ValueError(f"state: got that of {state.get('policy')}; need that of {policy!r}; because they remember different things")
