"""Groups: the responses of one prompt at one step, as the arrays the cores take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import NOT_DRAWN, Outcomes, encode_answers, uniforms

from .responses import Plan, Responses, concatenate, plan_file, read_responses
from .sources import Intake, find_logs

__all__ = ["Groups", "group_responses", "load_groups", "plan_files"]

Progress = Callable[[str, int, int], None]
_SLAB = 4096
_PARALLEL_FROM = 32 << 20


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of responses, in order of step and appearance.

    Attributes
    ----------
    prompt : uint64 array, shape (n,)
        Content hash of the prompt (:func:`conformal_core.prompt_ids` of its text) or of the group id.
    step, size : int32 arrays, shape (n,)
    signal : bool array, shape (n,)
        Whether the group could move the weights: its logged advantages are not all 0, or, without advantages, its rewards differ.
    solved : float array, shape (n,)
        Share of responses that passed.
    tokens : float array, shape (n,), or None
        Tokens (see ``length_unit``) of all responses of the group.
    order, starts : int64 arrays
        Group i holds the responses ``order[starts[i] : starts[i + 1]]`` of ``responses`` (``order`` is None where they lie in order).
    responses : Responses
    passes : bool array
        Verdict of every response.
    """

    prompt: NDArray[np.uint64]
    step: NDArray[np.int32]
    size: NDArray[np.int32]
    signal: NDArray[np.bool_]
    solved: NDArray[np.float64]
    tokens: NDArray[np.float64] | None
    starts: NDArray[np.int64]
    order: NDArray[np.int64] | None
    responses: Responses
    passes: NDArray[np.bool_]
    intake: Intake

    @property
    def n(self) -> int:
        """Number of groups."""
        return int(self.prompt.size)

    @property
    def usual_size(self) -> int:
        """The most common group size."""
        return int(np.bincount(self.size).argmax()) if self.n else 0

    def cells(self, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """``(len(rows), width)`` positions of the first responses of the chosen groups, each of which has that many."""
        where = self.starts[rows][:, None] + np.arange(width)
        return where if self.order is None else self.order[where]

    def outcomes(self, rows: NDArray[np.int64], width: int) -> Outcomes:
        """The first ``width`` responses of the chosen groups as the cores take them.

        Answers become codes by :func:`conformal_core.encode_answers`.  Where the logs hold no gold answer, it is the most common answer
        among the accepted responses of the group; where nothing was accepted, an answer nobody gave.
        """
        passes = self.passes[self.cells(rows, width)]
        codes = gold = None
        if self.responses.answer is not None:
            codes = np.full((rows.size, width), NOT_DRAWN, np.int64)
            gold = np.zeros(rows.size, np.int64)
            for a in range(0, rows.size, _SLAB):
                cells = self.cells(rows[a : a + _SLAB], width)
                answers = self.responses.answer[cells].tolist()
                named = [[x or None for x in row] for row in answers]
                truth = self._gold(cells, named, passes[a : a + _SLAB])
                found, found_gold = encode_answers(named, gold=truth)
                codes[a : a + _SLAB, : found.shape[1]] = found
                gold[a : a + _SLAB] = found_gold
        return Outcomes(self.prompt[rows], passes, codes=codes, gold=gold)

    def _gold(self, cells: NDArray[np.int64], named: list[list[Any]], passes: NDArray[np.bool_]) -> list[Any]:
        known = [0] * len(named) if self.responses.gold is None else self.responses.gold[cells[:, 0]].tolist()
        out: list[Any] = []
        for truth, row, ok in zip(known, named, passes, strict=True):
            accepted = [x for x, passed in zip(row, ok.tolist(), strict=True) if passed and x is not None]
            if accepted and (not truth or truth not in accepted):  # the verifier's word: equal to gold in a form of its own
                truth = max(dict.fromkeys(accepted), key=accepted.count)
            out.append(truth or "\0 an answer nobody gave")
        return out


def plan_files(paths: Sequence[str], overrides: Mapping[str, str] | None = None, answer: str = "auto") -> tuple[list[Plan], Intake]:
    """Find the logs and decide how to read each; the schemas found are noted.

    Raises
    ------
    ValueError
        If a path matches nothing or an override names a column that does not exist.
    """
    logs, intake = find_logs(paths)
    plans = [plan for log in logs if (plan := plan_file(log, overrides or {}, intake, answer)) is not None]
    kinds: dict[str, list[Plan]] = {}
    for plan in plans:
        rule = {None: "answers: as logged", "none": "answers: none"}.get(plan.answer_rule, f"answers: rule {plan.answer_rule}")
        kinds.setdefault(f"{plan.schema.show()}; {rule}", []).append(plan)
    for shown, members in kinds.items():
        intake.note(f"{len(members)} file{'s' * (len(members) > 1)} read as {shown}")
    return plans, intake


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
    parts: list[Responses] = []
    windows: list[Responses] = []
    for i, (part, met) in enumerate(parallel(read_responses, mine, jobs)):
        intake.merge(met)
        if part is not None:
            (windows if mine[i].schema.framework == "trl" else parts).append(part)
        if progress is not None:
            progress(mine[i].log.path, i + 1, len(mine))
    if windows:
        parts.append(_without_repeats(concatenate(windows), intake))
        del windows
    if not parts:
        return None
    partial = [name for name in ("answer", "gold", "advantage", "length") if len({getattr(p, name) is None for p in parts}) > 1]
    for name in partial:
        intake.note(f"{name}: only some files have it, so it is used for none; audit them apart")
    responses = concatenate(parts)
    return group_responses(responses, intake, pass_threshold)


def parallel(work: Callable[[Any], Any], plans: Sequence[Plan], jobs: int | None) -> Any:
    """Results of ``work`` for each plan, in order: cores x files where there is enough to read."""
    jobs = min(len(plans), jobs if jobs is not None else os.cpu_count() or 1)
    if jobs <= 1 or sum(p.log.size for p in plans) < _PARALLEL_FROM:
        yield from map(work, plans)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, plans)


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


def _threshold(r: Responses, given: float | None, intake: Intake) -> NDArray[np.bool_]:
    if r.passed is not None and given is None:
        known = ~np.isnan(r.passed)
        if known.all():
            intake.note("passed: as logged (at least 0.5)")
            return np.asarray(r.passed >= 0.5)
    threshold = given
    verdict = r.reward if r.reward is not None else r.advantage if r.passed is None else r.passed
    assert verdict is not None
    if given is None:
        low, high = float(np.nanmin(verdict)), float(np.nanmax(verdict))
        given = (low + high) / 2 if high > low else 0.0 if high != 0.0 or low != 0.0 else 0.5
        what = "reward" if r.reward is not None else "advantage"
        intake.note(f"passed: {what} above {given:g}, the middle of [{low:g}, {high:g}] (--pass-threshold)")
        if what == "advantage":
            intake.note("no rewards: a group without spread in its advantages cannot be told solved from unsolved")
    passes = np.asarray(verdict > given)
    if r.passed is not None and threshold is None:
        passes = np.where(np.isnan(r.passed), passes, r.passed >= 0.5)
    return passes


def group_responses(r: Responses, intake: Intake, pass_threshold: float | None = None) -> Groups:
    """Gather responses of one prompt at one step, wherever they lie in the files.

    Without steps, consecutive responses to one prompt are a group.  A prompt drawn several times in one step shows as a group of a
    multiple of the usual size and is cut into groups of that size.
    """
    change = np.flatnonzero((r.key[1:] != r.key[:-1]) | (r.step[1:] != r.step[:-1])) + 1
    starts = np.concatenate([[0], change, [r.n]]).astype(np.int64)
    order: NDArray[np.int64] | None = None
    if r.has_step or r.explicit_group:
        run_key, run_step = r.key[starts[:-1]], r.step[starts[:-1]]
        by = np.lexsort((run_key, run_step))
        same = (run_key[by][1:] == run_key[by][:-1]) & (run_step[by][1:] == run_step[by][:-1])
        if same.any():
            chance = np.random.default_rng(0).random(r.n, np.float32)
            order = np.lexsort((chance, r.key, r.step)).astype(np.int64)
            del chance
            intake.note(
                "the responses of a group do not lie together (a trainer that balances batches by length reorders them): "
                "their order within the group is drawn at random, since the order of drawing is lost"
            )
            k, s = r.key[order], r.step[order]
            starts = np.concatenate([[0], np.flatnonzero((k[1:] != k[:-1]) | (s[1:] != s[:-1])) + 1, [r.n]]).astype(np.int64)
            del k, s
    starts = _split_multiples(starts, intake)
    first = starts[:-1] if order is None else order[starts[:-1]]
    passes = _threshold(r, pass_threshold, intake)

    def reduce(op: Any, values: Any) -> Any:
        return op.reduceat(values if order is None else values[order], starts[:-1])

    size = np.diff(starts).astype(np.int32)
    if r.advantage is not None and not np.isnan(r.advantage).any():
        signal = reduce(np.maximum, np.abs(r.advantage)) > 1e-6
        intake.note("a group moves the weights iff its logged advantages are not all 0")
    elif r.reward is not None and not np.isnan(r.reward).any():
        signal = reduce(np.maximum, r.reward) > reduce(np.minimum, r.reward)
        intake.note("a group moves the weights iff its rewards differ")
    else:
        signal = reduce(np.maximum, passes) != reduce(np.minimum, passes)
        intake.note("a group moves the weights iff some of its responses passed and some failed")
    return Groups(
        prompt=r.key[first],
        step=r.step[first],
        size=size,
        signal=np.asarray(signal, np.bool_),
        solved=reduce(np.add, passes.astype(np.int32)) / size,
        tokens=None if r.length is None else reduce(np.add, r.length.astype(np.int64)).astype(np.float64),
        starts=starts,
        order=order,
        responses=r,
        passes=passes,
        intake=intake,
    )


def _split_multiples(starts: NDArray[np.int64], intake: Intake) -> NDArray[np.int64]:
    size = np.diff(starts)
    usual = int(np.bincount(size).argmax())
    many = (size > usual) & (size % usual == 0) if usual > 1 else np.zeros(size.size, np.bool_)
    if not many.any():
        return starts
    intake.note(f"{int(many.sum()):,} prompts occur several times in one step; cut into groups of {usual}")
    inner = [np.arange(starts[i] + usual, starts[i + 1], usual) for i in np.flatnonzero(many)]
    return np.sort(np.concatenate([starts, *inner]))


def one_per_prompt(groups: Groups, rows: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """One of the groups of each prompt, drawn by a keyed uniform, so that rows are exchangeable over prompts."""
    draw = uniforms(groups.prompt[rows] ^ groups.step[rows].astype(np.uint64), seed=seed, stream="one group per prompt")
    by = np.lexsort((draw, groups.prompt[rows]))
    sorted_prompts = groups.prompt[rows][by]
    first = np.concatenate([[True], sorted_prompts[1:] != sorted_prompts[:-1]]) if rows.size else np.zeros(0, np.bool_)
    return np.sort(rows[by[first]])
