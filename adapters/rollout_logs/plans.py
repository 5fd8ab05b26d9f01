"""How each file is to be read: its schema, the rule that finds answers, the step it belongs to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .cells import ANSWER_RULES, choose_answer_rule, completion_of
from .readers import Unreadable, as_list, columns_of, read_batches
from .schema import Schema, guess_schema
from .sources import Intake, LogFile, find_logs

__all__ = ["Plan", "plan_file", "plan_files"]


@dataclass(frozen=True)
class Plan:
    """How to read one file: its schema, the rule that finds answers, the step it belongs to where rows do not say."""

    log: LogFile
    schema: Schema
    answer_rule: str | None = None  # None: the answer column; "none": no answers
    step: int = 0

    @property
    def kind(self) -> str:
        """Schema and answer rule in words: files of one kind are read alike."""
        rule = {None: "answers: as logged", "none": "answers: none"}.get(self.answer_rule, f"answers: rule {self.answer_rule}")
        return f"{self.schema.show()}; {rule}"

    @property
    def folder(self) -> str:
        """Where the file lies."""
        return os.path.dirname(self.log.path) or "."

    def at(self, log: LogFile) -> Plan:
        """The same for a piece of the file."""
        return replace(self, log=log)


def plan_files(paths: Sequence[str], overrides: Mapping[str, str] | None = None, answer: str = "auto") -> tuple[list[Plan], Intake]:
    """Find the logs and decide how to read each; the schemas found are noted.

    Raises
    ------
    ValueError
        If a path matches nothing, an override names a column that does not exist, or the answer rule is unknown.
    """
    if answer not in ("auto", *ANSWER_RULES):
        raise ValueError(f"answer: got {answer!r}; need one of auto, {', '.join(ANSWER_RULES)}; because answers are found by a known rule")
    logs, intake = find_logs(paths)
    plans = [plan for log in logs if (plan := plan_file(log, overrides or {}, intake, answer)) is not None]
    kinds: dict[str, list[Plan]] = {}
    for plan in plans:
        kinds.setdefault(plan.kind, []).append(plan)
    for shown, members in kinds.items():
        intake.note(f"{len(members)} file{'s' * (len(members) > 1)} read as {shown}")
    return plans, intake


def plan_file(log: LogFile, overrides: Mapping[str, str], intake: Intake, answer: str = "auto") -> Plan | None:
    """Look at the head of a file; ``None`` (and a line in ``intake``) if it cannot be read or is no rollout log."""
    try:
        columns, numeric = columns_of(log)
    except Unreadable as error:
        if log.named or log.kind != "json":
            intake.report(log.path, None, None, f"cannot be read: {error}")
        else:
            intake.set_aside.append(f"{log.path}: {error}")
        return None
    wanted = {role: path for role, path in overrides.items() if not _only_if_present(path, columns, log)}
    schema = guess_schema(columns, numeric, wanted, complete=log.kind not in ("jsonl", "json"))
    if not columns:
        intake.report(log.path, None, None, "0 rows: nothing to read")
        return None
    if not (schema.has_outcomes or schema.has_tokens):
        shown = ", ".join(list(columns)[:12])
        what = f"no prompt with a reward and no log-probabilities among the columns {shown}; name them with --map ROLE=COLUMN"
        if log.named:
            intake.report(log.path, None, None, what)
        else:
            intake.set_aside.append(f"{log.path}: {what}")
        return None
    return Plan(log, schema, _answer_rule(log, schema, answer), _step_of(Path(log.path)))


def _step_of(path: Path) -> int:
    """The last number in the file's name, else that of a folder like ``step_12``, else 0."""
    digits = re.findall(r"\d+", path.name.split(".")[0]) or re.findall(r"(?:step|iter|iteration)s?[_-]?(\d+)$", path.parent.name.lower())
    return int(digits[-1][-9:]) if digits else 0


def _only_if_present(path: str, columns: Mapping[str, Any], log: LogFile) -> bool:
    """In a folder of several kinds of files, an override concerns those that have its column."""
    return not log.named and re.split(r"[.+]", path)[0].lower() not in {c.lower() for c in columns}


def _answer_rule(log: LogFile, schema: Schema, answer: str) -> str | None:
    if answer != "auto":
        return answer
    if "answer" in schema.columns:
        return None
    if "completion" not in schema.columns or not schema.has_outcomes:
        return "none"
    path = schema.columns["completion"]
    quiet = Intake()
    try:
        for batch in read_batches(log, [path.split(".")[0]], quiet):
            column = batch.get(path)
            if column is None:
                return "none"
            cells = as_list(column[:256])
            flat = [c for cell in cells for c in (cell if isinstance(cell, list) and cell and isinstance(cell[0], str) else [cell])]
            return choose_answer_rule([completion_of(c) or "" for c in flat])
    except Unreadable:
        return "none"
    return "none"
