"""One large file as several pieces: parquet by row groups, JSON lines by byte ranges that start at a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from .sources import LogFile

__all__ = ["blocks", "cut"]

BLOCK = 4 << 20
_SMALLEST = 16 << 20
_PER_WORKER = 4
_FEED = 1 << 20


def cut(log: LogFile, total: int, jobs: int, notes: list[str]) -> list[LogFile]:
    """The file, or pieces of it of about ``total / (4 jobs)`` bytes (at least 16 MiB).

    A file that would keep one process busy while others wait, and cannot be cut, is named in ``notes``.
    """
    wanted = max(_SMALLEST, total // (_PER_WORKER * jobs))
    count = log.size // wanted
    if count < 2:
        return [log]
    if log.kind == "jsonl" and not log.compressed:
        edges = [log.size * i // count for i in range(count + 1)]
        return [replace(log, span=(a, b)) for a, b in pairwise(edges)]
    bounds = _row_groups(log, wanted) if log.kind == "parquet" else [0]
    if len(bounds) > 2:
        return [replace(log, span=(a, b)) for a, b in pairwise(bounds)]
    if log.size > total // jobs:
        why = "a compressed stream" if log.compressed else "one row group" if log.kind == "parquet" else f"{log.kind} is read forward"
        notes.append(f"{log.path}: read by one process ({why}, cannot be cut)")
    return [log]


def _row_groups(log: LogFile, wanted: int) -> list[int]:
    try:
        footer = pq.read_metadata(log.path)
    except (OSError, pa.ArrowException):
        return [0]
    bounds, size = [0], 0
    for i in range(footer.num_row_groups):
        size += sum(footer.row_group(i).column(c).total_compressed_size for c in range(footer.num_columns))
        if size >= wanted or i == footer.num_row_groups - 1:
            bounds.append(i + 1)
            size = 0
    return bounds


def blocks(log: LogFile) -> Iterator[bytes]:
    """Whole lines of a JSON-lines file (or of its span), a few MiB at a time; the last one may lack its newline.

    Of a compressed stream that breaks off, what can be decompressed is given first; then the error is raised.
    """
    rest: list[bytes] = []
    held = 0
    feed = _feed(log)
    while True:
        try:
            part = next(feed, b"")
        except (OSError, EOFError, pa.ArrowException):
            if rest:
                yield b"".join(rest)
            raise
        rest.append(part)
        held += len(part)
        if part and (held < BLOCK or b"\n" not in part):
            continue
        whole = b"".join(rest)
        end = whole.rfind(b"\n") + 1 if part else len(whole)
        if end:
            yield whole[:end]
        rest, held = ([whole[end:]], len(whole) - end) if part else ([], 0)
        if not part:
            return


def _feed(log: LogFile) -> Iterator[bytes]:
    if log.span is not None and not log.compressed:
        yield from _span(log.path, *log.span)
        return
    done = 0
    try:
        with pa.input_stream(log.path, compression="detect") as stream:
            while part := stream.read(_FEED):
                done += len(part)
                yield part
    except (OSError, EOFError, pa.ArrowException):
        if log.compressed:
            yield from _tail(log, done)
        raise


def _tail(log: LogFile, done: int) -> Iterator[bytes]:
    """What a broken stream still gives after ``done`` bytes, in small reads, since a failed read gives nothing."""
    try:
        with pa.input_stream(log.path, compression="detect", buffer_size=0) as stream:
            while done > 0 and (part := stream.read(min(done, _FEED))):
                done -= len(part)
            while part := stream.read(64):
                yield part
    except (OSError, EOFError, pa.ArrowException):
        return


def _span(path: str, start: int, end: int) -> Iterator[bytes]:
    """The lines that begin in ``[start, end)``."""
    with open(path, "rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        while (at := file.tell()) < end:
            part = file.read(min(_FEED, end - at))
            if not part:
                return
            if at + len(part) >= end and not part.endswith(b"\n"):
                part += file.readline()
            yield part
