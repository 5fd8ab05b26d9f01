"""Token-level logs, streamed: what every rule decides about every response, in a few dozen bytes a response."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from carm_core import IcePop, Rule, log_ratio, response_scores

from .cells import as_floats, completion_of
from .readers import Batch, Unreadable, as_list, is_array, read_batches
from .responses import Plan
from .sources import Intake

__all__ = ["Example", "MaskWork", "TokenScores", "read_tokens"]

_CELLS = 1 << 20
_KEEP_TOKENS = 20_000
_SAMPLE = 64


@dataclass(frozen=True)
class MaskWork:
    """What to do with one file: the plan, the rules (their index is a bit of ``TokenScores.bits``), the band, the top list's length."""

    plan: Plan
    rules: tuple[Rule, ...]
    band: tuple[float, float]
    top: int = 6
    pass_threshold: float | None = None

    @property
    def log(self) -> Any:
        """The file."""
        return self.plan.log


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


@dataclass(eq=False)
class TokenScores:
    """Per-response arrays (see :func:`carm_core.response_scores`), rule decisions as bits, and a few responses in full."""

    d: NDArray[np.float64]
    g: NDArray[np.float64]
    length: NDArray[np.int32]
    p_out: NDArray[np.float32]
    bits: NDArray[np.uint32]
    reward: NDArray[np.float32]
    noise: NDArray[np.float64]
    clipped_tokens: int = 0
    nonfinite: int = 0
    icepop_dropped: float = 0.0
    has_advantages: bool = True
    has_rewards: bool = True
    noise_source: str = ""
    examples: list[Example] = field(default_factory=list)
    sample: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Number of responses, empty ones included."""
        return int(self.d.size)


@dataclass(frozen=True, eq=False)
class _Ragged:
    """Rows of numbers: ``flat[offsets[i] : offsets[i + 1]]``; ``missing`` marks rows that are null."""

    flat: NDArray[Any]
    offsets: NDArray[np.int64]
    missing: NDArray[np.bool_]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def padded(self, rows: NDArray[np.int64], width: int, fill: float) -> NDArray[np.float64]:
        sizes = self.sizes[rows]
        out = np.full((rows.size, width), fill)
        live = np.arange(width) < sizes[:, None]
        if rows.size and (np.diff(rows) == 1).all():
            out[live] = self.flat[self.offsets[rows[0]] : self.offsets[rows[-1] + 1]]
        elif rows.size:
            out[live] = np.concatenate([self.flat[self.offsets[i] : self.offsets[i + 1]] for i in rows])
        return out


def _ragged(column: Any, n: int, path: str, batch: Batch, file: str, intake: Intake) -> _Ragged:
    if isinstance(column, np.ndarray) and column.ndim == 2:
        return _Ragged(column.reshape(-1), np.arange(n + 1, dtype=np.int64) * column.shape[1], np.zeros(n, np.bool_))
    if is_array(column) and (
        pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type)
    ):
        inner = column.type.value_type
        if pa.types.is_floating(inner) or pa.types.is_integer(inner) or pa.types.is_boolean(inner):
            missing = np.asarray(column.is_null())
            sizes = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)
            flat = pc.list_flatten(column)
            flat = flat.cast(pa.int8()) if pa.types.is_boolean(inner) else flat
            values = np.asarray(flat.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
            return _Ragged(values, np.concatenate([[0], np.cumsum(sizes)]), missing)
    parts: list[NDArray[np.float64]] = []
    missing = np.zeros(n, np.bool_)
    for i, cell in enumerate(column if isinstance(column, list) else as_list(column)):
        try:
            part = np.array([np.nan if x is None else x for x in cell], np.float64) if cell is not None else None
        except (TypeError, ValueError):
            intake.report(file, batch.row(i), path, f"no list of numbers: {str(cell)[:40]!r}")
            part = None
        missing[i] = part is None or part.ndim != 1
        parts.append(np.zeros(0) if missing[i] or part is None else part)
    sizes = np.array([p.size for p in parts], np.int64)
    return _Ragged(np.concatenate([*parts, np.zeros(0)]), np.concatenate([[0], np.cumsum(sizes)]), missing)


def read_tokens(work: MaskWork) -> tuple[TokenScores | None, Intake]:
    """Score one file.  Responses without log-probabilities, or whose lists differ in length, are named and left out."""
    plan, intake = work.plan, Intake(files=1)
    needed = plan.schema.needed()
    parts: list[TokenScores] = []
    heaps: dict[str, list[tuple[float, int, int, Example]]] = {}
    try:
        for batch in read_batches(plan.log, needed, intake):
            intake.rows += batch.n
            parts.extend(_score(batch, work, intake, heaps))
    except Unreadable as error:
        intake.report(plan.log.path, None, None, f"cannot be read{' to the end' if parts else ''}: {error}")
    if not parts:
        if not intake.unread:
            intake.report(plan.log.path, None, None, "0 rows: nothing to read")
        return None, intake
    scores = merge_scores(parts)
    scores.examples = [example for heap in heaps.values() for _, _, _, example in sorted(heap, reverse=True, key=lambda item: item[:3])]
    intake.used = scores.n
    return scores, intake


def merge_scores(parts: Sequence[TokenScores]) -> TokenScores:
    """Scores of several batches or files."""
    arrays = {name: np.concatenate([getattr(p, name) for p in parts]) for name in ("d", "g", "length", "p_out", "bits", "reward", "noise")}
    return TokenScores(
        **arrays,
        clipped_tokens=sum(p.clipped_tokens for p in parts),
        nonfinite=sum(p.nonfinite for p in parts),
        icepop_dropped=sum(p.icepop_dropped for p in parts),
        has_advantages=all(p.has_advantages for p in parts),
        has_rewards=all(p.has_rewards for p in parts),
        noise_source=next((p.noise_source for p in parts if p.noise_source), ""),
        examples=[e for p in parts for e in p.examples],
        sample=[z for p in parts for z in p.sample][:512],
    )


def _score(batch: Batch, work: MaskWork, intake: Intake, heaps: dict[str, list[Any]]) -> Iterator[TokenScores]:
    plan = work.plan
    columns, file = plan.schema.columns, plan.log.path
    roles = _roles(columns)
    ragged: dict[str, _Ragged] = {}
    for role in {*roles, "token_mask", "old_logps"} & set(columns):
        column = batch.get(columns[role])
        if column is not None:
            ragged[role] = _ragged(column, batch.n, columns[role], batch, file, intake)
    for role in roles:
        if role not in ragged:
            for i in range(batch.n):
                intake.report(file, batch.row(i), columns[role], "an empty cell where a list was due")
            return
    ok = np.ones(batch.n, np.bool_)
    main = ragged[roles[-1]]
    for role in (*roles, *({"token_mask"} & set(ragged))):
        gone = ragged[role].missing & ok
        for i in np.flatnonzero(gone):
            intake.report(file, batch.row(int(i)), columns[role], "an empty cell where a list was due")
        ok &= ~gone
        uneven = ok & (ragged[role].sizes != main.sizes)
        for i in np.flatnonzero(uneven):
            what = f"{ragged[role].sizes[i]} values for {main.sizes[i]} in {columns[roles[-1]]}"
            intake.report(file, batch.row(int(i)), columns[role], what)
        ok &= ~uneven
    side = {role: _per_response(batch, columns, role, ragged, file, intake) for role in ("advantage", "reward")}
    if side["reward"] is None and "passed" in columns:
        side["reward"] = as_floats(batch, columns["passed"], file, intake)
    stale = _on_policy(batch, columns, file, intake)
    lengths = np.asarray(as_list(batch.columns["lengths"])) if "lengths" in batch.columns and "token_mask" not in ragged else None
    rows = np.flatnonzero(ok)
    start = 0
    while start < rows.size:
        stop, width = start + 1, max(1, int(main.sizes[rows[start]]))
        while stop < rows.size and max(width, main.sizes[rows[stop]]) * (stop + 1 - start) <= _CELLS:
            width = max(width, int(main.sizes[rows[stop]]))
            stop += 1
        chosen = rows[start:stop]
        yield _chunk(batch, work, chosen, width, ragged, side, stale, lengths, heaps)
        start = stop


def _roles(columns: Any) -> tuple[str, ...]:
    if "log_ratio" in columns and not {"current_logps", "rollout_logps"} <= set(columns):
        return ("log_ratio",)
    return ("current_logps", "rollout_logps") if "current_logps" in columns else ("old_logps", "rollout_logps")


def _per_response(batch: Batch, columns: Any, role: str, ragged: Any, file: str, intake: Intake) -> NDArray[np.float64] | None:
    """A column with one value per response; of a list per token (verl's advantages), the value at the first live token."""
    if role not in columns:
        return None
    column = batch.get(columns[role])
    nested = (isinstance(column, np.ndarray) and column.ndim == 2) or (
        is_array(column) and (pa.types.is_list(column.type) or pa.types.is_large_list(column.type))
    )
    if nested or (isinstance(column, list) and any(isinstance(c, list) for c in column)):
        values = _ragged(column, batch.n, columns[role], batch, file, intake)
        mask = ragged.get("token_mask")
        out = np.full(batch.n, np.nan)
        for i in range(batch.n):
            cells = values.flat[values.offsets[i] : values.offsets[i + 1]]
            live = None if mask is None else mask.flat[mask.offsets[i] : mask.offsets[i + 1]] != 0
            cells = cells[live] if live is not None and live.size == cells.size else cells
            out[i] = np.nan if not cells.size else cells.sum() if role == "reward" else cells[0]
        return out
    return as_floats(batch, columns[role], file, intake)


def _on_policy(batch: Batch, columns: Any, file: str, intake: Intake) -> NDArray[np.bool_] | None:
    if "on_policy" in columns:
        return as_floats(batch, columns["on_policy"], file, intake) > 0
    if "staleness" in columns:
        return as_floats(batch, columns["staleness"], file, intake) == 0
    return None


def _chunk(
    batch: Batch,
    work: MaskWork,
    rows: NDArray[np.int64],
    width: int,
    ragged: dict[str, _Ragged],
    side: dict[str, NDArray[np.float64] | None],
    stale: NDArray[np.bool_] | None,
    lengths: NDArray[Any] | None,
    heaps: dict[str, list[Any]],
) -> TokenScores:
    columns = work.plan.schema.columns
    roles = _roles(columns)
    main = ragged[roles[-1]]
    sizes = main.sizes[rows] if lengths is None else np.minimum(lengths[rows], main.sizes[rows])
    mask = np.arange(width) < sizes[:, None]
    if "token_mask" in ragged:
        marked = ragged["token_mask"].padded(rows, width, 0.0)
        mask &= (marked != 0) & ~np.isnan(marked)
    rollout = np.zeros((rows.size, width)) if len(roles) == 1 else main.padded(rows, width, 0.0)
    ratio = log_ratio(ragged[roles[0]].padded(rows, width, 0.0), rollout, mask)
    scores = response_scores(ratio.z, mask)
    advantage = None if side["advantage"] is None else np.nan_to_num(side["advantage"][rows])
    bits = np.zeros(rows.size, np.uint32)
    dropped = 0.0
    for j, rule in enumerate(work.rules):
        if advantage is None and rule.conditioning == "negative":
            continue
        bits |= np.asarray(rule.keep(ratio.z, mask, advantage)).astype(np.uint32) << np.uint32(j)
        if isinstance(rule, IcePop):
            dropped += float(mask.sum() - np.count_nonzero(rule.weights(ratio.z, mask)))
    low, high = np.log(work.band[0]), np.log(work.band[1])
    outside = (((ratio.z < low) | (ratio.z > high)) & mask).sum(axis=1) / np.maximum(ratio.length, 1)
    noise, source = np.zeros(0), ""
    live = ~ratio.empty
    if (
        "old_logps" in ragged
        and roles == ("current_logps", "rollout_logps")
        and (ragged["old_logps"].sizes[rows] == main.sizes[rows]).all()
    ):
        old = log_ratio(ragged["old_logps"].padded(rows, width, 0.0), rollout, mask)
        noise = np.asarray(response_scores(old.z, mask).d)[live & ~old.nonfinite]
        source = f"{columns['old_logps']} against {columns['rollout_logps']}"
    elif stale is not None:
        noise = scores.d[stale[rows] & live & ~ratio.nonfinite]
        source = f"responses marked on-policy by {columns.get('on_policy', columns.get('staleness'))}"
    reward = np.full(rows.size, np.nan) if side["reward"] is None else side["reward"][rows]
    _push(batch, work, rows, ratio, mask, scores, bits, reward, heaps)
    return TokenScores(
        d=np.asarray(scores.d),
        g=np.asarray(scores.g),
        length=np.asarray(ratio.length, np.int32),
        p_out=outside.astype(np.float32),
        bits=bits,
        reward=reward.astype(np.float32),
        noise=noise,
        clipped_tokens=int(ratio.clipped.sum()),
        nonfinite=int((ratio.nonfinite & live).sum()),
        icepop_dropped=dropped,
        has_advantages=advantage is not None,
        has_rewards=side["reward"] is not None,
        noise_source=source,
        sample=[ratio.z[i][mask[i]][:4096] for i in range(min(_SAMPLE, rows.size))] if batch.first == 1 else [],
    )


def _push(
    batch: Batch, work: MaskWork, rows: Any, ratio: Any, mask: Any, scores: Any, bits: Any, reward: Any, heaps: dict[str, list[Any]]
) -> None:
    """Keep the responses worth looking at: most cancelled among those that GeoMean keeps and CARM rejects, and the farthest."""
    d, gap = np.nan_to_num(scores.d), np.nan_to_num(scores.d - scores.geomean)
    cancelled = ((bits & 1) == 0) & ((bits & 2) != 0)
    for why, value, among in (
        ("kept by GeoMean, rejected by CARM", gap, cancelled),
        ("largest CARM score", d, np.ones(d.size, np.bool_)),
        ("kept by CARM, closest to the threshold", d, (bits & 1) != 0),
    ):
        heap = heaps.setdefault(why, [])
        for i in np.flatnonzero(among)[np.argsort(-value[among], kind="stable")][
            : work.top if why != "kept by CARM, closest to the threshold" else 1
        ]:
            limit = work.top if why != "kept by CARM, closest to the threshold" else 1
            if len(heap) < limit or value[i] > heap[0][0]:
                row = int(rows[i])
                item = (float(value[i]), -(batch.first + row), len(heap), _example(batch, work, row, why, i, ratio, mask, scores, reward))
                (heapq.heappush if len(heap) < limit else heapq.heapreplace)(heap, item)


def _example(batch: Batch, work: MaskWork, row: int, why: str, i: int, ratio: Any, mask: Any, scores: Any, reward: Any) -> Example:
    columns = work.plan.schema.columns

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
        file=work.plan.log.path,
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
