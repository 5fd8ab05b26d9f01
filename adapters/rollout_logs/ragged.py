"""Columns of lists, whatever holds them, as one flat array with offsets; and columns with one value a response beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .cells import as_floats
from .readers import Batch, as_list, is_array
from .sources import Intake

__all__ = ["Ragged", "as_ragged", "on_policy", "per_response"]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of numbers: ``flat[offsets[i] : offsets[i + 1]]``; ``missing`` marks rows that are none, and ``found`` says what is there."""

    flat: NDArray[Any]
    offsets: NDArray[np.int64]
    missing: NDArray[np.bool_]
    found: Mapping[int, str] = field(default_factory=dict)

    def name(self, row: int, where: Batch, column: str, file: str, intake: Intake) -> None:
        """Report a missing row."""
        if row in self.found:
            intake.report(file, where.row(row), column, "no list of numbers", self.found[row])
        else:
            intake.report(file, where.row(row), column, "an empty cell where a list was due")

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


def as_ragged(column: Any, n: int) -> Ragged:
    """Any column of ``n`` lists (a padded array, Arrow lists, Python lists); cells that are none are marked."""
    if isinstance(column, np.ndarray) and column.ndim == 2:
        return Ragged(column.reshape(-1), np.arange(n + 1, dtype=np.int64) * column.shape[1], np.zeros(n, np.bool_))
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
            return Ragged(values, np.concatenate([[0], np.cumsum(sizes)]), missing)
    parts: list[NDArray[np.float64]] = []
    missing = np.zeros(n, np.bool_)
    found: dict[int, str] = {}
    for i, cell in enumerate(column if isinstance(column, list) else as_list(column)):
        try:
            part = np.array([np.nan if x is None else x for x in cell], np.float64) if cell is not None else None
        except (TypeError, ValueError, OverflowError):
            part = None
        missing[i] = part is None or part.ndim != 1
        if missing[i] and cell is not None:
            found[i] = repr(str(cell)[:40])
        parts.append(np.zeros(0) if missing[i] or part is None else part)
    sizes = np.array([p.size for p in parts], np.int64)
    return Ragged(np.concatenate([*parts, np.zeros(0)]), np.concatenate([[0], np.cumsum(sizes)]), missing, found)


def per_response(batch: Batch, columns: Any, role: str, ragged: Any, file: str, intake: Intake) -> NDArray[np.float64] | None:
    """A column with one value per response; of a list per token (verl's advantages), the value at the first live token."""
    if role not in columns:
        return None
    column = batch.get(columns[role])
    nested = (isinstance(column, np.ndarray) and column.ndim == 2) or (
        is_array(column) and (pa.types.is_list(column.type) or pa.types.is_large_list(column.type))
    )
    if nested or (isinstance(column, list) and any(isinstance(c, list) for c in column)):
        values = as_ragged(column, batch.n)
        for i in values.found:
            values.name(i, batch, columns[role], file, intake)
        mask = ragged.get("token_mask")
        out = np.full(batch.n, np.nan)
        for i in range(batch.n):
            cells = values.flat[values.offsets[i] : values.offsets[i + 1]]
            live = None if mask is None else mask.flat[mask.offsets[i] : mask.offsets[i + 1]] != 0
            cells = cells[live] if live is not None and live.size == cells.size else cells
            out[i] = np.nan if not cells.size else cells.sum() if role == "reward" else cells[0]
        return out
    return as_floats(batch, columns[role], file, intake)


def on_policy(batch: Batch, columns: Any, file: str, intake: Intake) -> NDArray[np.bool_] | None:
    """Which responses were drawn at the weights they are judged at, where the logs say so."""
    if "on_policy" in columns:
        return as_floats(batch, columns["on_policy"], file, intake) > 0
    if "staleness" in columns:
        return as_floats(batch, columns["staleness"], file, intake) == 0
    return None
