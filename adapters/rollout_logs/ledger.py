"""The ledger that ``conformal_trl`` saves with every checkpoint: what the run really drew, calibration included."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LedgerTotals", "read_ledger"]

FILE = "rollout_policy.json"


@dataclass(frozen=True)
class LedgerTotals:
    """Totals of the longest ledger found.

    ``audit`` is ``{event: (occurred, trials)}`` of the policy's own error events.
    """

    path: str
    policy: str
    steps: int
    generated: int
    kept: int
    trained: int
    calibration: int
    generated_tokens: int
    calibration_tokens: int
    groups: int
    groups_with_variance: int
    audit: dict[str, tuple[int, int]]


def read_ledger(paths: Sequence[str]) -> LedgerTotals | None:
    """The ledger with most steps under these paths, or None if there is none (or none that can be read)."""
    best: LedgerTotals | None = None
    for given in paths:
        root = Path(given)
        found = [root] if root.name == FILE else sorted(root.rglob(FILE)) if root.is_dir() else []
        for path in found:
            try:
                state = json.loads(path.read_text(encoding="utf-8"))
                history = state["ledger"]["history"]
                policy = str(state["policy"].get("config", ""))
            except (OSError, ValueError, KeyError, AttributeError):
                continue
            if best is None or len(history) > best.steps:
                best = _totals(os.fspath(path), policy, history)
    return best


def _totals(path: str, policy: str, history: Sequence[Mapping[str, Any]]) -> LedgerTotals:
    def total(name: str) -> int:
        return sum(int(record.get(name, 0) or 0) for record in history)

    audit: dict[str, tuple[int, int]] = {}
    for record in history:
        for event, (occurred, trials) in dict(record.get("audit") or {}).items():
            before = audit.get(event, (0, 0))
            audit[event] = before[0] + int(occurred), before[1] + int(trials)
    names = ("generated", "kept", "trained", "calibration", "generated_tokens", "calibration_tokens", "groups", "groups_with_variance")
    return LedgerTotals(path=path, policy=policy, steps=len(history), audit=audit, **{name: total(name) for name in names})
