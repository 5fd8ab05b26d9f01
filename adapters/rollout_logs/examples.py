"""Responses worth looking at: most cancelled among those that GeoMean keeps and CARM rejects, and the farthest."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cells import completion_of
from .plans import Plan
from .readers import Batch, is_array

__all__ = ["Example", "best", "push"]

_KEEP_TOKENS = 20_000
CANCELLED, FARTHEST, NEAREST = "kept by GeoMean, rejected by CARM", "largest CARM score", "kept by CARM, closest to the threshold"
Heaps = dict[str, list[tuple[float, int, int, "Example"]]]


@dataclass(frozen=True, eq=False)
class Example:
    """One response to look at: where it is, its scores, its guarded log-ratios on live tokens, and what is known of its text."""

    file: str
    row: int
    why: str
    d: float
    geomean: float
    reward: float
    length: int
    z: NDArray[np.float32]
    tokens: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    text: str = ""


def best(examples: Sequence[Example], top: int) -> list[Example]:
    """The first few of each reason."""
    out: list[Example] = []
    for why in dict.fromkeys(e.why for e in examples):
        key = (lambda e: e.geomean - e.d) if why == CANCELLED else (lambda e: -e.d)
        out += sorted((e for e in examples if e.why == why), key=key)[: _limit(why, top)]
    return out


def _limit(why: str, top: int) -> int:
    return 1 if why == NEAREST else top


def push(batch: Batch, plan: Plan, top: int, rows: Any, ratio: Any, mask: Any, scores: Any, bits: Any, reward: Any, heaps: Heaps) -> None:
    """Keep the responses of a chunk that beat those in the heaps; bit 0 of ``bits`` is CARM's decision, bit 1 GeoMean's."""
    d, gap = np.nan_to_num(scores.d), np.nan_to_num(scores.d - scores.geomean)
    cancelled = ((bits & 1) == 0) & ((bits & 2) != 0)
    for why, value, among in (
        (CANCELLED, gap, cancelled),
        (FARTHEST, d, np.ones(d.size, np.bool_)),
        (NEAREST, d, (bits & 1) != 0),
    ):
        heap = heaps.setdefault(why, [])
        limit = _limit(why, top)
        for i in np.flatnonzero(among)[np.argsort(-value[among], kind="stable")][:limit]:
            if len(heap) < limit or value[i] > heap[0][0]:
                row = int(rows[i])
                item = (float(value[i]), -(batch.first + row), len(heap), _example(batch, plan, row, why, i, ratio, mask, scores, reward))
                (heapq.heappush if len(heap) < limit else heapq.heapreplace)(heap, item)


def _example(batch: Batch, plan: Plan, row: int, why: str, i: int, ratio: Any, mask: Any, scores: Any, reward: Any) -> Example:
    columns = plan.schema.columns

    def cell(role: str) -> Any:
        column = batch.get(columns[role]) if role in columns else None
        if column is None:
            return None
        value = column[row]
        return value.as_py() if is_array(column) else value.tolist() if isinstance(value, np.ndarray) else value

    live = np.flatnonzero(mask[i])

    def picked(values: Any) -> list[Any]:
        """Per-token values at the live tokens (the list may be as long as the row, or as the live part of it)."""
        if not isinstance(values, list):
            return []
        if len(values) > (live[-1] if live.size else -1):
            return [values[t] for t in live[:_KEEP_TOKENS]]
        return values[:_KEEP_TOKENS] if len(values) == live.size else []

    tokens, ids = picked(cell("tokens")), picked(cell("token_ids"))
    if tokens and not isinstance(tokens[0], str):
        tokens, ids = [], ids or tokens
    return Example(
        file=plan.log.path,
        row=batch.first + row,
        why=why,
        d=float(scores.d[i]),
        geomean=float(scores.geomean[i]),
        reward=float(reward[i]),
        length=int(ratio.length[i]),
        z=ratio.z[i][live].astype(np.float32)[:_KEEP_TOKENS],
        tokens=tuple(str(t) for t in tokens),
        token_ids=tuple(ids) if all(isinstance(t, int) for t in ids) else (),
        text=(completion_of(cell("completion")) or "")[:4000],
    )
