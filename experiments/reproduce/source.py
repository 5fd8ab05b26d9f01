"""Runs that several items share: what they are, where their results lie, one JSON line per finished run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SCALES", "Run", "Source", "Variant", "append", "finished", "repair"]

SCALES = ("small", "paper", "tiny")


@dataclass(frozen=True)
class Variant:
    """One setting of a source.

    Parameters
    ----------
    minutes : float
        Of one run at small scale, on one thread.
    seeds : int
        Runs at small scale; at paper scale as many as the paper has.
    paper : tuple of str
        Commands at paper scale, ``{seed}`` and ``{out}`` open; empty where the command line has no such setting.
    paper_seeds : int
        Runs that the paper has.
    why : str
        Where ``paper`` is empty: why.
    """

    minutes: float
    seeds: int = 1
    paper: tuple[str, ...] = ()
    paper_seeds: int = 1
    why: str = ""


@dataclass(frozen=True)
class Source:
    """A set of runs.

    Parameters
    ----------
    id : str
        Name, also of its file of results.
    variants : mapping of str to Variant
        Its settings.
    settings : callable
        What a scale holds equal over all variants, as plain JSON values; written into every result.
    run : callable
        ``run(variant, seed, scale, folder)`` gives one result as plain JSON values.
    """

    id: str
    variants: Mapping[str, Variant]
    settings: Callable[[str], dict[str, Any]]
    run: Callable[[str, int, str, Path], dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """One run: a variant of a source, with a seed, at a scale."""

    source: str
    variant: str
    seed: int
    scale: str

    @property
    def name(self) -> str:
        """Unique within a folder of results; the name of its log."""
        return f"{self.source}.{self.variant}.seed{self.seed}"


def path(folder: Path, scale: str, source: str) -> Path:
    """File of a source's results."""
    return folder / scale / "runs" / f"{source}.jsonl"


def append(folder: Path, run: Run, settings: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Add one line in one write, so that processes may append side by side."""
    file = path(folder, run.scale, run.source)
    file.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"variant": run.variant, "seed": run.seed, "settings": settings, **result}) + "\n"
    with file.open("a", encoding="utf-8") as out:
        out.write(line)


def repair(folder: Path, scale: str, sources: Iterable[Source]) -> None:
    """Drop last lines that a kill cut off, so that the next result starts a line."""
    for source in sources:
        file = path(folder, scale, source.id)
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if text and not text.endswith("\n"):
            file.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")


def finished(folder: Path, scale: str, source: Source) -> list[dict[str, Any]]:
    """Results so far; a last line cut off by a kill is left out.  ``ValueError`` if they were run with other settings."""
    file = path(folder, scale, source.id)
    if not file.exists():
        return []
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
    now = json.loads(json.dumps(source.settings(scale)))
    for record in found:
        differ = sorted(k for k in {*now, *record["settings"]} if now.get(k) != record["settings"].get(k))
        if differ:
            raise ValueError(
                f"out: got {file} of runs with other {', '.join(differ)}; need a new folder, or the file removed; "
                "because their results would be mixed with these"
            )
    return found
