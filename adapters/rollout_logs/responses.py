"""One log file as compact columns: a few bytes a response, whatever the length of its text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .cells import as_answers, as_floats, as_hashes, completion_of, gold_of, hash_text
from .plans import Plan
from .readers import Batch, Unreadable, as_list, is_array, read_batches
from .schema import Schema
from .sources import Intake

__all__ = ["Responses", "concatenate", "read_responses"]


@dataclass(frozen=True, eq=False)
class Responses:
    """Columns of ``n`` responses; ``None`` where the logs do not have them.

    ``key`` identifies the prompt (or group id), ``answer`` and ``gold`` are hashes (0: unparsable, unknown), ``length`` is in tokens,
    or in characters with ``length_unit == "characters"``; ``content`` hashes completions of rolling tables; ``run`` numbers the folders and
    kinds of files (``None``: there is one).
    """

    key: NDArray[np.uint64]
    step: NDArray[np.int32]
    reward: NDArray[np.float32] | None = None
    passed: NDArray[np.float32] | None = None
    advantage: NDArray[np.float32] | None = None
    answer: NDArray[np.uint64] | None = None
    gold: NDArray[np.uint64] | None = None
    length: NDArray[np.int32] | None = None
    content: NDArray[np.uint64] | None = None
    run: NDArray[np.int32] | None = None
    explicit_group: bool = False
    has_step: bool = True
    length_unit: str = "tokens"

    @property
    def n(self) -> int:
        """Number of responses."""
        return int(self.key.size)

    def take(self, rows: Any) -> Responses:
        """The chosen rows."""
        columns = {name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **columns)


def _explode(batch: Batch, schema: Schema) -> Batch:
    """One row per prompt with lists of rewards (and completions) becomes one row per response."""
    judge = next((schema.columns[r] for r in ("reward", "passed", "advantage") if r in schema.columns), None)
    column = None if judge is None else batch.get(judge)
    if column is None or schema.rewards:
        return batch
    nested = is_array(column) and (pa.types.is_list(column.type) or pa.types.is_large_list(column.type))
    if not nested and not (isinstance(column, list) and any(isinstance(c, list) for c in column)):
        return batch
    cells = [[None] if cell == [] else cell for cell in as_list(column)]  # a group without responses is a row without a verdict
    text = batch.get(schema.columns["completion"]) if "completion" in schema.columns else None
    texts = None if text is None else as_list(text)
    if texts is not None and not any(isinstance(t, list) and not (t and isinstance(t[0], dict)) for t in texts):
        return batch  # a list of rewards for one completion: rewards per token, which sum
    sizes = [len(c) if isinstance(c, list) else 1 for c in cells]
    out: dict[str, list[Any]] = {}
    for name in batch.columns:
        values = cells if name == judge else as_list(batch.columns[name])
        out[name] = [
            v
            for value, size in zip(values, sizes, strict=True)
            for v in (value if isinstance(value, list) and len(value) == size else [value] * size)
        ]
    out["\0row"] = [batch.first + i for i, size in enumerate(sizes) for _ in range(size)]
    out["\0group"] = out["\0row"]
    return Batch(batch.first, sum(sizes), out)


def read_responses(plan: Plan) -> tuple[Responses | None, Intake]:
    """Read one file to compact columns.  Rows without prompt or verdict are named and left out; a damaged rest is named."""
    schema, log, intake = plan.schema, plan.log, Intake(files=1)
    parts: list[Responses] = []
    needed = [n for n in schema.needed() if n not in _token_only(schema, plan)]
    try:
        for raw in read_batches(log, needed, intake):
            intake.rows += raw.n
            part = _columns(_explode(raw, schema), plan, intake)
            if part.n:
                parts.append(part)
    except Unreadable as error:
        intake.report(log.path, None, None, f"cannot be read{' to the end' if parts else ''}: {error}")
    if not parts:
        if not intake.unread and log.span is None:
            intake.report(log.path, None, None, "0 rows: nothing to read")
        return None, intake
    merged = concatenate(parts)
    intake.used = merged.n
    return merged, intake


def _token_only(schema: Schema, plan: Plan) -> set[str]:
    """Columns that only the mask audit reads."""
    wanted = {p.split(".")[0] for r, p in schema.columns.items() if r in _OUTCOME_ROLES} | {p.split(".")[0] for p in schema.rewards}
    if plan.answer_rule is None or plan.answer_rule == "none":
        keep_text = "length" not in schema.columns or schema.framework == "trl"
        if not keep_text and "completion" in schema.columns:
            wanted.discard(schema.columns["completion"].split(".")[0])
    return set(schema.needed()) - wanted


_OUTCOME_ROLES = (
    "prompt",
    "completion",
    "step",
    "group",
    "passed",
    "reward",
    "advantage",
    "answer",
    "gold",
    "length",
    "token_mask",
    "token_ids",
)


def _columns(batch: Batch, plan: Plan, intake: Intake) -> Responses:
    schema, file = plan.schema, plan.log.path
    c = schema.columns

    def floats(role: str, missing: str | None = None) -> NDArray[np.float32] | None:
        return _narrow(as_floats(batch, c[role], file, intake, missing=missing)) if role in c else None

    reward: NDArray[np.float32] | None
    if schema.rewards:
        each = np.stack([as_floats(batch, path, file, intake) for path in schema.rewards])
        unknown = np.isnan(each).all(axis=0)
        reward = _narrow(np.where(unknown, np.nan, np.nansum(np.where(unknown, 0.0, each), axis=0)))
        for i in np.flatnonzero(unknown):
            intake.report(file, batch.row(int(i)), " + ".join(schema.rewards), "no reward")
    else:
        reward = floats("reward", None if "passed" in c else "no reward")
    passed = floats("passed", "no verdict" if reward is None else None)
    advantage = floats("advantage")
    explicit = "\0group" in batch.columns or "group" in c
    if "\0group" in batch.columns:
        key = np.array([hash_text(f"{file}#{plan.log.span}#{row}") for row in batch.columns["\0group"]], np.uint64)
        if "prompt" in c:
            key = as_hashes(batch, c["prompt"])
            explicit = "group" in c
    else:
        key = as_hashes(batch, c.get("prompt") or c["group"])
    usable = key != 0
    for i in np.flatnonzero(~usable):
        intake.report(file, batch.row(int(i)), c.get("prompt") or c["group"], "no prompt")
    verdict = reward if reward is not None else passed if passed is not None else advantage
    if verdict is not None:
        judged = ~np.isnan(verdict)
        if passed is not None and reward is not None:
            judged |= ~np.isnan(passed)
        usable &= judged
    step = np.full(batch.n, plan.step, np.int32)
    if "step" in c:
        given = as_floats(batch, c["step"], file, intake)
        known = np.abs(given) < 2**31  # False for NaN
        if not known.all():
            intake.note(f"{file}: rows whose step is missing or no step number count as step {plan.step}")
        step = np.where(known, given, plan.step).astype(np.int32)
    length, unit = _lengths(batch, schema, file, intake)
    answer = None
    if plan.answer_rule != "none":
        path = c["answer"] if plan.answer_rule is None else c.get("completion")
        answer = None if path is None else as_answers(batch, path, plan.answer_rule)
    found = Responses(
        key=key,
        step=step,
        reward=reward,
        passed=passed,
        advantage=advantage,
        answer=answer,
        gold=as_hashes(batch, c["gold"], gold_of) if "gold" in c and answer is not None else None,
        length=length,
        content=as_hashes(batch, c["completion"]) if schema.framework == "trl" and "completion" in c else None,
        explicit_group=explicit and "prompt" not in c,
        has_step="step" in c,
        length_unit=unit,
    )
    return found if usable.all() else found.take(usable)


def _narrow(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """Single precision; what it cannot hold becomes its largest number."""
    top = float(np.finfo(np.float32).max)
    return np.clip(x, -top, top).astype(np.float32)


def _lengths(batch: Batch, schema: Schema, file: str, intake: Intake) -> tuple[NDArray[np.int32] | None, str]:
    c = schema.columns
    if "length" in c:
        return np.clip(np.nan_to_num(as_floats(batch, c["length"], file, intake)), 0, 2**31 - 1).astype(np.int32), "tokens"
    mask = batch.get(c["token_mask"]) if "token_mask" in c else None
    if mask is not None and is_array(mask) and pa.types.is_list(mask.type) and not mask.null_count:
        live = np.concatenate([[0], np.cumsum(np.asarray(mask.flatten().cast(pa.float32())) != 0)])
        ends = np.concatenate([[0], np.cumsum(np.asarray(pc.list_value_length(mask)))])
        return np.diff(live[ends]).astype(np.int32), "tokens"
    if "completion" not in c:
        return None, "tokens"
    column = batch.get(c["completion"])
    if column is None:
        return None, "tokens"
    if is_array(column) and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return pc.fill_null(pc.utf8_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int32), "characters"
    return np.array([len(completion_of(cell) or "") for cell in as_list(column)], np.int32), "characters"


def concatenate(parts: list[Responses]) -> Responses:
    """Responses of several batches or files; ``parts`` is emptied and released column by column, so that nothing is held twice.

    A column that some lack is dropped, except ``reward`` and ``passed``, which are NaN there.
    """
    fields = [dict(vars(p)) for p in parts]
    sizes = [p.n for p in parts]
    parts.clear()
    columns: dict[str, Any] = {}
    for name, value in list(fields[0].items()):
        values = [f.pop(name) for f in fields]
        if name in ("explicit_group", "has_step"):
            columns[name] = all(values)
        elif name == "length_unit":
            columns[name] = value if len(set(values)) == 1 else "mixed"
        elif all(v is not None for v in values):
            columns[name] = np.concatenate(values)
        elif name in ("reward", "passed") and any(v is not None for v in values):
            columns[name] = np.concatenate([np.full(n, np.nan, np.float32) if v is None else v for n, v in zip(sizes, values, strict=True)])
        else:
            columns[name] = None
        del values, value
    return Responses(**columns)
