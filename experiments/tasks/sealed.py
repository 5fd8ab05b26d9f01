"""A test split that is opened once per report, on record."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from .rows import Example

__all__ = ["SealedTest"]


class SealedTest:
    """Test examples behind a record of who looked.

    A number measured on a test split is unbiased the first time; every later choice that saw it makes it optimistic.  So the examples
    are handed out once per report, the opening is written to ``record`` before they are, and a second opening needs a reason in words,
    which is recorded too.

    Parameters
    ----------
    examples : the test split.
    record : JSON-lines file of all openings; created when missing.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> sealed = SealedTest([Example("2+2=", "4")], folder / "opened.jsonl")
    >>> len(sealed.open("table-1"))
    1
    >>> sealed.open("table-1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: report: got 'table-1'; need a report that has not opened this test split; because it was opened at ...
    >>> len(sealed.open("table-1", again="the plot was wrong, numbers unchanged"))
    1
    """

    def __init__(self, examples: Sequence[Example], record: Path) -> None:
        if not examples:
            raise ValueError("examples: got none; need at least one; because an empty test measures nothing")
        self._examples = tuple(examples)
        self.record = Path(record)
        #: Content hash of the split, whatever its order.
        self.digest = hashlib.blake2b("".join(sorted(e.key for e in examples)).encode(), digest_size=16).hexdigest()

    def openings(self) -> list[dict[str, str]]:
        """All openings of this split, oldest first."""
        if not self.record.exists():
            return []
        entries = [json.loads(line) for line in self.record.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [e for e in entries if e["digest"] == self.digest]

    def open(self, report: str, again: str | None = None) -> list[Example]:
        """The examples, recorded under ``report``; ``again`` says why a report opens them another time."""
        if not report.strip():
            raise ValueError(f"report: got {report!r}; need a name; because openings are counted per report")
        before = [e for e in self.openings() if e["report"] == report]
        if before and not (again and again.strip()):
            raise ValueError(
                f"report: got {report!r}; need a report that has not opened this test split; because it was opened at {before[-1]['at']}; "
                "name a reason with again=..."
            )
        entry = {
            "report": report,
            "digest": self.digest,
            "n": str(len(self._examples)),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if before:
            entry["again"] = str(again)
        self.record.parent.mkdir(parents=True, exist_ok=True)
        with self.record.open("a", encoding="utf-8") as f:
            f.write(json.dumps(entry) + "\n")
            f.flush()
            os.fsync(f.fileno())
        return list(self._examples)
