"""From files to groups: reading in several processes, repeats of rolling tables, one run a folder and kind of file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .grouping import group_responses
from .groups import Groups
from .plans import Plan, plan_files
from .responses import Responses, concatenate, read_responses
from .sources import Intake
from .workers import parallel

__all__ = ["load_groups", "read_groups"]

Progress = Callable[[str, int, int], None]


def load_groups(
    paths: Sequence[str],
    overrides: Mapping[str, str] | None = None,
    *,
    answer: str = "auto",
    pass_threshold: float | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Groups | None:
    """Read logs and group their responses; ``None`` if they hold no outcomes (see :func:`plan_files` for what they do hold).

    Parameters
    ----------
    paths : sequence of str
        Files, folders, globs.
    overrides : mapping
        ``{role: column}``.
    answer : str
        ``"auto"`` or one of ``ANSWER_RULES``.
    pass_threshold : float, optional
        A response passed iff its reward is above; default by the rewards found.
    jobs : int, optional
        Processes; default one per core when there is enough to read.
    progress : callable, optional
        Told ``(file, files done, files)``.
    """
    plans, intake = plan_files(paths, overrides, answer)
    return read_groups(plans, intake, pass_threshold=pass_threshold, jobs=jobs, progress=progress)


def read_groups(
    plans: Sequence[Plan],
    intake: Intake,
    *,
    pass_threshold: float | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Groups | None:
    """:func:`load_groups` for files already planned; ``intake`` is added to."""
    mine = [p for p in plans if p.schema.has_outcomes]
    place = {p.log.path: i for i, p in enumerate(mine, 1)}
    runs: dict[tuple[str, str], list[Responses]] = {}
    rolling: set[tuple[str, str]] = set()
    for plan, part, met in parallel(read_responses, mine, jobs):
        intake.merge(met)
        run = (plan.folder, plan.kind)
        if part is not None:
            runs.setdefault(run, []).append(part)
            rolling |= {run} if plan.schema.framework == "trl" else set()
        if progress is not None:
            progress(plan.log.path, place[plan.log.path], len(mine))
    if not runs:
        return None
    parts: list[Responses] = []
    for number, run in enumerate(runs):
        some = [_without_repeats(concatenate(runs[run]), intake)] if run in rolling else runs[run]
        numbered = [replace(p, run=np.full(p.n, number, np.int32)) for p in some] if len(runs) > 1 else some
        parts += numbered
        some.clear()
    kinds = list(runs)
    del runs, some, numbered
    for name in ("answer", "gold", "advantage", "length"):
        if len({getattr(p, name) is None for p in parts}) > 1:
            intake.note(f"{name}: only some files have it, so it is used for none; audit them apart")
    if len(kinds) > 1:
        folders = list(dict.fromkeys(folder for folder, _ in kinds))
        where = f"{len(folders)} folders" if len(folders) > 1 else "one folder"
        listed = ", ".join(folders[:4]) + (", ..." if len(folders) > 4 else "")
        intake.note(
            f"files of {len(kinds)} kinds or places ({where}: {listed}): groups are formed "
            "within each, so the same rows logged twice count twice; audit runs apart, or side by side with `rollout-audit compare`"
        )
    return group_responses(concatenate(parts), intake, pass_threshold, kinds=[kind for _, kind in kinds])


def _without_repeats(r: Responses, intake: Intake) -> Responses:
    """Drop rows that a TRL table repeats: TRL writes its rolling window of completions at every logging step, renewed or not."""
    if r.content is None or not r.n:
        return r
    row = r.key ^ (r.content * np.uint64(0x9E3779B97F4A7C15))
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(r.step)) + 1, [r.n]])
    keep = np.ones(r.n, np.bool_)
    for a, b, c in zip(cuts[:-2], cuts[1:-1], cuts[2:], strict=True):
        before, after = row[a:b], row[b:c]
        for start in np.flatnonzero(before == after[0]):
            overlap = before.size - start
            if overlap <= after.size and (before[start:] == after[:overlap]).all():
                keep[b : b + overlap] = False
                break
    repeated = int((~keep).sum())
    if not repeated:
        return r
    intake.used -= repeated
    intake.note(
        f"{repeated:,} rows are repeats: TRL logs its window of completions at every logging step, also where no new ones were generated; "
        "each completion counts once, at the step that first shows it"
    )
    return r.take(keep)
