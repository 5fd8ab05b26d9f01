"""The rows of TRL's completions table: every generated response once, in the table of the first log after it was drawn."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .rows import Group

__all__ = ["add_rows", "as_json", "beside", "from_json", "no_rows"]


def no_rows() -> dict[str, Any]:
    """An empty table in the form TRL keeps its own.

    TRL's is a window of the last ``generation_batch_size`` rows: with ragged groups it would repeat rows of former steps, and after
    several generations without a log it would have dropped some.  This one grows until it is logged.
    """
    return {"images": [], "prompt": [], "completion": [], "rewards": defaultdict(list), "advantages": [], "extra": defaultdict(list)}


def add_rows(table: dict[str, Any], groups: Sequence[Group], advantages: Any, reward_names: Sequence[str]) -> None:
    """Append the responses of ``groups``; a column of ``log_extra`` that a row lacks holds ``None`` there."""
    before = len(table["prompt"])
    for i, group in enumerate(groups):
        table["prompt"].extend([group.example["prompt"]] * len(group.responses))
        table["completion"].extend(r.completion for r in group.responses)
        table["advantages"].extend(advantages[i, : len(group.responses)].tolist())
    responses = [r for g in groups for r in g.responses]
    for i, name in enumerate(reward_names):
        table["rewards"][name].extend(r.rewards[i] for r in responses)
    for column in sorted({*table["extra"], *(column for r in responses for column in r.extra)}):
        known = table["extra"][column]
        known.extend([None] * (before - len(known)))
        known.extend(r.extra.get(column) for r in responses)


@contextmanager
def beside(folder: str, step: int, name: str) -> Iterator[None]:
    """What is written within the block as the table of ``step`` gets ``name`` in its file name, and a table that was there stays.

    TRL names a table after the step alone, so that the evaluation after a logged step would replace the table of its training rows.
    """
    path = os.path.join(folder, f"completions_{step:05d}.parquet")
    kept = path + ".kept"
    if os.path.exists(path):
        os.replace(path, kept)
    try:
        yield
    finally:
        if os.path.exists(path):
            os.replace(path, f"{path.removesuffix('.parquet')}_{name}.parquet")
        if os.path.exists(kept):
            os.replace(kept, path)


def as_json(table: dict[str, Any]) -> dict[str, Any]:
    """A table (or metrics) for a checkpoint: numbers of NumPy and torch as plain ones, anything else that JSON lacks as its text."""
    return json.loads(json.dumps(table, default=lambda value: value.item() if hasattr(value, "item") else str(value)))


def from_json(state: dict[str, Any]) -> dict[str, Any]:
    """What :func:`as_json` wrote."""
    return {name: defaultdict(list, value) if isinstance(value, dict) else list(value) for name, value in state.items()}
