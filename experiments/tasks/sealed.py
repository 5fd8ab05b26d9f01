"""A test split that is opened once per report, on record."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from .rows import Example

__all__ = ["SealedTest", "report_name"]


def report_name(report: str) -> str:
    """The name under which openings are counted: white space and Unicode forms that look alike are one name.

    >>> report_name(" table  1 ") == report_name("table 1")
    True
    """
    name = " ".join(unicodedata.normalize("NFKC", report).split()) if isinstance(report, str) else ""
    if not name:
        raise ValueError(f"report: got {report!r}; need a name; because openings are counted per report")
    return name


class SealedTest:
    """Test examples behind a record of who looked.

    A number measured on a test split is unbiased the first time; every later choice that saw it makes it optimistic.  So the examples
    are handed out once per report, the opening is written to ``record`` before they are, and a second opening needs a reason in words,
    which is recorded too.  Of several processes that open one split under one name at the same time, one succeeds.

    Parameters
    ----------
    examples : the test split.
    record : JSON-lines file of all openings; created when missing.

    Attributes
    ----------
    questions : content hash of the questions, whatever their order: what an opening has looked at, and what a second one is refused for.
        Corrected gold answers do not make a seen question unseen.
    digest : content hash of questions and answers: what a number was measured against.

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

    def __init__(self, examples: Sequence[Example], record: str | Path) -> None:
        if not examples:
            raise ValueError("examples: got none; need at least one; because an empty test measures nothing")
        self._examples = tuple(examples)
        self.record = Path(record)
        self.questions = _hash(e.key for e in examples)
        self.digest = _hash(json.dumps([e.key, e.answer]) for e in examples)

    def openings(self) -> list[dict[str, str]]:
        """All openings of this split's questions, oldest first.

        Raises
        ------
        ValueError : where the record cannot be read, or a line of it is no entry, for that may be an opening of this split.
        """
        try:
            with self.record.open("rb") as f:
                fcntl.flock(f, fcntl.LOCK_SH)
                return self._ours(f.read())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from None

    def check(self, report: str, again: str | None = None) -> None:
        """Refuse what `open` would refuse, and record nothing."""
        self._previous(self.openings(), report_name(report), again)

    def open(self, report: str, again: str | None = None) -> list[Example]:
        """The examples, recorded under ``report``; ``again`` says why a report opens them another time."""
        name = report_name(report)
        try:
            self.record.parent.mkdir(parents=True, exist_ok=True)
            with self.record.open("a+b") as f:
                fcntl.flock(f, fcntl.LOCK_EX)
                f.seek(0)
                content = f.read()
                before = self._previous(self._ours(content), name, again)
                entry = {"report": name, "questions": self.questions, "digest": self.digest, "n": str(len(self._examples))}
                entry["at"] = datetime.now(UTC).isoformat(timespec="seconds")
                if before:
                    entry["again"] = str(again)
                f.write(b"\n" * (content[-1:] not in (b"", b"\n")) + json.dumps(entry).encode() + b"\n")
                f.flush()
                os.fsync(f.fileno())
        except OSError as error:
            raise self._unusable(error) from None
        return list(self._examples)

    def _previous(self, openings: list[dict[str, str]], name: str, again: str | None) -> list[dict[str, str]]:
        before = [e for e in openings if report_name(e["report"]) == name]
        if before and not (again and again.strip()):
            other = "" if before[-1]["digest"] in (self.digest, self.questions) else ", with other gold answers"
            raise ValueError(
                f"report: got {name!r}; need a report that has not opened this test split; because it was opened at {before[-1]['at']}"
                f"{other}; name a reason with again=..."
            )
        return before

    def _ours(self, content: bytes) -> list[dict[str, str]]:
        entries = [self._entry(i, line) for i, line in enumerate(content.splitlines(), 1) if line.strip()]
        return [e for e in entries if e.get("questions", e["digest"]) == self.questions]  # older records hold the questions' hash alone

    def _entry(self, number: int, line: bytes) -> dict[str, str]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) and entry[k].strip() for k in ("report", "digest", "at")):
            raise ValueError(
                f"record: got line {number} of {self.record}, {line[:60]!r}; need a JSON object with report, digest and at; because it may "
                "be what is left of an opening of this test split: mend it, or remove it if it is none"
            )
        return entry

    def _unusable(self, error: OSError) -> ValueError:
        return ValueError(f"record: got {str(self.record)!r}; need a file that can be read and written; because {error.strerror or error}")


def _hash(parts: Iterable[str]) -> str:
    return hashlib.blake2b("".join(sorted(parts)).encode(), digest_size=16).hexdigest()
