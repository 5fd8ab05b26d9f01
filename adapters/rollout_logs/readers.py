"""Streaming readers: every kind of file becomes batches of columns, a few thousand rows at a time, whatever its size."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from .pieces import blocks
from .sources import Intake, LogFile
from .tensors import npz_batches, npz_columns, safetensors_batches, safetensors_columns

__all__ = ["Batch", "Unreadable", "columns_of", "read_batches"]

ROWS = 8192
BATCH = 8 << 20
_JSON_ARRAY_LIMIT = 256 << 20


class Unreadable(Exception):
    """A file, or the rest of it, cannot be read; the message says why."""


@dataclass(frozen=True)
class Batch:
    """Rows ``first .. first + n - 1`` (from 1) of a file; columns are Arrow arrays or lists of Python values."""

    first: int
    n: int
    columns: Mapping[str, Any]

    def row(self, i: int) -> int:
        """The row of the file (from 1) that entry ``i`` comes from."""
        return int(self.columns["\0row"][i]) if "\0row" in self.columns else self.first + i

    def get(self, path: str) -> Any:
        """The column at a dotted path (a struct's field), or None where the batch has no such column."""
        name = path if path in self.columns else path.split(".")[0]
        column = self.columns.get(name)
        if column is None or name == path:
            return column
        for field in path[len(name) + 1 :].split("."):
            if isinstance(column, (pa.Array, pa.ChunkedArray)) and pa.types.is_struct(column.type):
                if column.type.get_field_index(field) < 0:
                    return None
                column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
                column = column.flatten()[column.type.get_field_index(field)]
            else:
                values = column.to_pylist() if isinstance(column, (pa.Array, pa.ChunkedArray)) else column
                values = [json.loads(v) if isinstance(v, str) and v.startswith("{") else v for v in values]
                column = [v.get(field) if isinstance(v, dict) else None for v in values]
        return column


def _tree(t: pa.DataType) -> Any:
    return {t.field(i).name: _tree(t.field(i).type) for i in range(t.num_fields)} if pa.types.is_struct(t) else None


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_floating(t) or pa.types.is_integer(t) or pa.types.is_null(t)


def columns_of(log: LogFile) -> tuple[dict[str, Any], list[str]]:
    """Columns of a file (``{name: nested fields or None}``) and those that hold numbers, from its head.

    Raises
    ------
    Unreadable
        If the file is damaged, empty or not what its name says.
    """
    try:
        if log.kind == "parquet":
            schema = pq.read_schema(log.path)
            return {f.name: _tree(f.type) for f in schema}, [f.name for f in schema if _is_number(f.type)]
        if log.kind == "npz":
            return npz_columns(log.path), []
        if log.kind == "safetensors":
            return safetensors_columns(log.path), []
        columns: dict[str, Any] = {}
        numbers: dict[str, bool] = {}
        for _, row in _head(log):
            _see(row, columns)
            for name, value in row.items():
                fits = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
                numbers[name] = numbers.get(name, True) and fits
        return columns, [name for name, fits in numbers.items() if fits]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, pa.ArrowException) as error:
        raise Unreadable(_why(error)) from error


def _see(row: Mapping[str, Any], columns: dict[str, Any]) -> None:
    for name, value in row.items():
        if isinstance(value, dict):
            if not isinstance(columns.get(name), dict):
                columns[name] = {}
            _see(value, columns[name])
        else:
            columns.setdefault(name, None)


def _why(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _head(log: LogFile, rows: int = 64) -> list[tuple[int, dict[str, Any]]]:
    if log.kind == "json":
        return [(i, row) for i, row in enumerate(_json_array(log), 1)][:rows]
    out: list[tuple[int, dict[str, Any]]] = []
    number, text = 0, b""
    try:
        for text in blocks(log):
            for line in text.split(b"\n"):
                number += 1
                if len(out) >= rows or number > 4 * rows:
                    return out
                try:
                    row = json.loads(line.decode("utf-8-sig", errors="replace"))
                except ValueError:
                    continue
                if isinstance(row, dict):
                    out.append((number, row))
    except (OSError, EOFError, pa.ArrowException):
        if not out:
            raise
    if not out and log.size and (text[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in text[:4096]):
        raise Unreadable("not UTF-8 (UTF-16 or binary); need JSON lines in UTF-8")
    if not out and text.strip():
        raise Unreadable(f"none of its first {number:,} lines is a JSON object")
    return out


def _json_array(log: LogFile) -> list[dict[str, Any]]:
    if log.size > _JSON_ARRAY_LIMIT:
        raise Unreadable(f"a JSON array of {log.size >> 20} MiB; need JSON lines or parquet, which stream")
    with pa.input_stream(log.path, compression="detect") as stream:
        data = json.loads(stream.read())
    if isinstance(data, dict):
        lists = [v for v in data.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        data = lists[0] if len(lists) == 1 else [data]
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise Unreadable("no array of objects")
    return data


def read_batches(log: LogFile, needed: Sequence[str], intake: Intake) -> Iterator[Batch]:
    """Batches of the ``needed`` top-level columns.

    Rows that are no JSON objects are reported by number and left out of the batches; a damaged file ends the stream.

    Raises
    ------
    Unreadable
        If the file, or its rest, cannot be read.
    """
    try:
        if log.kind == "parquet":
            yield from _parquet(log, needed)
        elif log.kind == "jsonl":
            yield from _jsonl(log, needed, intake)
        elif log.kind == "json":
            rows = _json_array(log)
            for first in range(0, len(rows), ROWS):
                part = rows[first : first + ROWS]
                yield Batch(first + 1, len(part), {name: [row.get(name) for row in part] for name in needed})
        elif log.kind == "npz":
            yield from (Batch(first, n, columns) for first, n, columns in npz_batches(log.path, needed))
        else:
            yield from (Batch(first, n, columns) for first, n, columns in safetensors_batches(log.path, needed))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, pa.ArrowException) as error:
        raise Unreadable(_why(error)) from error


def _parquet(log: LogFile, needed: Sequence[str]) -> Iterator[Batch]:
    with pq.ParquetFile(log.path, memory_map=False, buffer_size=1 << 16) as file:
        columns = [n for n in needed if n in file.schema_arrow.names]
        start, end = log.span or (0, file.num_row_groups)
        first = 1 + sum(file.metadata.row_group(i).num_rows for i in range(start))
        for group in range(start, end):  # a row group at a time, so that no read-ahead holds several
            rows = _rows(file.metadata.row_group(group), columns)
            for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
                yield Batch(first, batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True)))
                first += batch.num_rows


def _rows(group: pq.RowGroupMetaData, needed: Sequence[str]) -> int:
    """Rows of a batch: a few MiB of the columns needed, however long the responses."""
    columns = (group.column(i) for i in range(group.num_columns))
    size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in needed)
    return min(ROWS, max(16, BATCH * group.num_rows // max(size, 1)))


def _jsonl(log: LogFile, needed: Sequence[str], intake: Intake) -> Iterator[Batch]:
    for lines in blocks(log):
        n = lines.count(b"\n") + (not lines.endswith(b"\n"))
        yield from _block(log, lines, intake.lines + 1, n, needed, intake)
        intake.lines += n


def _block(log: LogFile, lines: bytes, first: int, n: int, needed: Sequence[str], intake: Intake) -> Iterator[Batch]:
    """Arrow's parser where every line is an object of one shape, Python's line by line elsewhere (NaN, mixed types, damage)."""
    try:
        lines.decode("utf-8")  # Arrow takes text as it comes
        options = pa_json.ReadOptions(use_threads=False, block_size=max(len(lines), 1 << 12))
        table = pa_json.read_json(io.BytesIO(lines), read_options=options)
        table.validate(full=True)  # on values of mixed types its parser may hand out arrays that contradict themselves
        columns = {name: table.column(name).combine_chunks() for name in needed if name in table.column_names}
        fits = table.num_rows == n and not any(pa.types.is_timestamp(c.type) for c in columns.values())  # it reads dates as times
    except (UnicodeDecodeError, pa.ArrowException, IndexError):
        fits = False
    if fits:
        yield Batch(first, n, columns)
        return
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines.splitlines() if b"\r" not in lines else lines.split(b"\n"), first):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError:
            intake.report(log.path, number, None, "not UTF-8")
            intake.rows += 1
            continue
        except ValueError:
            intake.report(log.path, number, None, "not valid JSON (a line cut short?)")
            intake.rows += 1
            continue
        if isinstance(row, dict):
            rows.append((number, row))
        else:
            intake.report(log.path, number, None, "not a JSON object")
            intake.rows += 1
    start = 0
    for i in range(1, len(rows) + 1):  # runs of consecutive line numbers, so that a batch knows its rows
        if i == len(rows) or rows[i][0] != rows[i - 1][0] + 1:
            part = [row for _, row in rows[start:i]]
            yield Batch(rows[start][0], len(part), {name: [row.get(name) for row in part] for name in needed})
            start = i


def is_array(column: Any) -> bool:
    """Whether a column is an Arrow array (else a list of Python values or a NumPy array)."""
    return isinstance(column, (pa.Array, pa.ChunkedArray))


def as_list(column: Any) -> list[Any]:
    """Any column as Python values."""
    if is_array(column):
        return list(column.to_pylist())
    return column.tolist() if isinstance(column, np.ndarray) else list(column)
