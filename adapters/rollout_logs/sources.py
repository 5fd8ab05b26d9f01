"""Which files: paths, folders and globs become a list of logs; what is set aside or cannot be read is named."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Intake", "LogFile", "Problem", "find_logs"]

KINDS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".npz": "npz", ".safetensors": "safetensors"}
COMPRESSED = (".gz", ".zst", ".bz2", ".lz4")
_SHOWN_PER_FILE = 20


@dataclass(frozen=True)
class Problem:
    """Something that could not be read: where (file, row from 1, column) and why."""

    file: str
    row: int | None
    column: str | None
    what: str

    def __str__(self) -> str:
        where = self.file + (f", row {self.row}" if self.row is not None else "") + (f", column {self.column}" if self.column else "")
        return f"{where}: {self.what}"


@dataclass
class Intake:
    """What was read and what was not.  ``problems`` names the first few of each file, ``counts`` counts them all.

    Attributes
    ----------
    files, rows, used : int
        Files read, rows seen, rows that entered the audit.
    set_aside : list of str
        Files of a folder that are no rollout logs, with the reason.
    problems : list of Problem
    counts : Counter
        ``{what: rows or files}``; nothing is dropped without an entry.
    notes : list of str
        Choices made for the reader (which column is what, thresholds, repeated batches).
    lines : int
        Lines of text seen, blank ones included.
    doubts : list of str
        What these files cannot tell.
    """

    files: int = 0
    rows: int = 0
    used: int = 0
    set_aside: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    lines: int = 0
    doubts: list[str] = field(default_factory=list)
    _shown: Counter[str] = field(default_factory=Counter, repr=False)

    def report(self, file: str, row: int | None, column: str | None, what: str, found: str = "") -> None:
        """Count one problem under ``what``, and name it, with what was ``found``, if the file has not filled its share of the list."""
        self.counts[what] += 1
        self._shown[file] += 1
        if self._shown[file] <= _SHOWN_PER_FILE:
            self.problems.append(Problem(file, row, column, f"{what}: {found}" if found else what))

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def doubt(self, text: str) -> None:
        """Name once what the files cannot tell."""
        if text not in self.doubts:
            self.doubts.append(text)

    def merge(self, other: Intake) -> None:
        """Add what another reader met."""
        self.files, self.rows, self.used = self.files + other.files, self.rows + other.rows, self.used + other.used
        self.set_aside += other.set_aside
        shown = Counter(p.file for p in self.problems)
        for problem in other.problems:
            shown[problem.file] += 1
            if shown[problem.file] <= _SHOWN_PER_FILE:
                self.problems.append(problem)
        self.counts += other.counts
        self._shown += other._shown
        self.lines += other.lines
        for text in other.notes:
            self.note(text)
        for text in other.doubts:
            self.doubt(text)

    @property
    def unread(self) -> int:
        """Rows and files that could not be read."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class LogFile:
    """One file: its path, its kind and whether the user named it (a file found in a folder may turn out to be no log).

    ``span`` is the piece to read: row groups of a parquet file, bytes of JSON lines; ``None`` is all of it.
    """

    path: str
    kind: str
    named: bool
    span: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return os.path.getsize(self.path)

    @property
    def compressed(self) -> bool:
        """Whether the file is a compressed stream of text."""
        return self.path.lower().endswith(COMPRESSED)


def _kind(path: Path) -> str | None:
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes = suffixes[:-1]
        kind = KINDS.get(suffixes[-1]) if suffixes else None
        return kind if kind in ("jsonl", "json") else None
    return KINDS.get(suffixes[-1]) if suffixes else None


def _natural(path: str) -> list[tuple[int, int | str]]:
    """Sort key that puts ``2.jsonl`` before ``10.jsonl``."""
    parts: list[tuple[int, int | str]] = []
    digits = text = ""
    for c in path + "\0":
        if c.isdigit():
            if text:
                parts.append((1, text))
                text = ""
            digits += c
        else:
            if digits:
                parts.append((0, int(digits)))
                digits = ""
            text += c
    return [*parts, (1, text)]


def find_logs(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[LogFile], Intake]:
    """The logs under files, folders (searched through) and globs, in natural order.

    Parameters
    ----------
    paths : sequence of paths

    Returns
    -------
    logs : list of LogFile
    intake : Intake
        Files of unknown type that were named become problems; those found in a folder are set aside.

    Raises
    ------
    ValueError
        If a path matches nothing.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    intake, found = Intake(), dict[str, LogFile]()
    for given in map(os.fspath, paths):
        matches = [given] if os.path.exists(given) else sorted(glob.glob(given, recursive=True), key=_natural)
        if not matches:
            raise ValueError(f"paths: got {given!r}; need a file, folder or glob that exists; because there is nothing to read")
        for match in matches:
            if os.path.isdir(match):
                inside = (os.path.join(root, name) for root, _, names in os.walk(match) for name in names if not name.startswith("."))
                for path in sorted(inside, key=_natural):
                    kind = _kind(Path(path))
                    if kind is None:
                        intake.set_aside.append(f"{path}: not a rollout log by its name")
                    else:
                        found.setdefault(path, LogFile(path, kind, named=False))
            else:
                kind = _kind(Path(match))
                if kind is None:
                    wanted = ", ".join(KINDS)
                    intake.report(match, None, None, f"unknown type; need one of {wanted} (JSON may be .gz, .zst, .bz2 or .lz4)")
                else:
                    found[match] = LogFile(match, kind, named=True)
    return sorted(found.values(), key=lambda log: _natural(log.path)), intake
