"""Which responses are one group, which of them passed, and whether the group could move the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .groups import Groups
from .responses import Responses
from .sources import Intake

__all__ = ["group_responses"]


def group_responses(r: Responses, intake: Intake, pass_threshold: float | None = None, *, kinds: Sequence[str] = ()) -> Groups:
    """Gather responses of one prompt at one step, wherever they lie in the files of one run (``kinds[r.run]`` names its kind).

    Without steps, consecutive responses to one prompt are a group.  A prompt drawn several times in one step shows as a group of a
    multiple of the usual size and is cut into groups of that size.
    """
    key = r.key if r.run is None else r.key ^ (r.run.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    change = np.flatnonzero((key[1:] != key[:-1]) | (r.step[1:] != r.step[:-1])) + 1
    starts = np.concatenate([[0], change, [r.n]]).astype(np.int64)
    order: NDArray[np.int64] | None = None
    if r.has_step or r.explicit_group:
        run_key, run_step = key[starts[:-1]], r.step[starts[:-1]]
        by = np.lexsort((run_key, run_step))
        same = (run_key[by][1:] == run_key[by][:-1]) & (run_step[by][1:] == run_step[by][:-1])
        if same.any():
            chance = np.random.default_rng(0).random(r.n, np.float32)
            order = np.lexsort((chance, key, r.step)).astype(np.int64)
            del chance
            intake.note(
                "the responses of a group do not lie together (a trainer that balances batches by length reorders them): "
                "their order within the group is drawn at random, since the order of drawing is lost"
            )
            k, s = key[order], r.step[order]
            starts = np.concatenate([[0], np.flatnonzero((k[1:] != k[:-1]) | (s[1:] != s[:-1])) + 1, [r.n]]).astype(np.int64)
            del k, s
    starts = _split_multiples(starts, intake)
    first = starts[:-1] if order is None else order[starts[:-1]]
    passes = _verdicts(r, pass_threshold, kinds, intake)

    def reduce(op: Any, values: Any, dtype: Any = None) -> Any:
        return op.reduceat(values if order is None else values[order], starts[:-1], dtype=dtype)

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
        solved=reduce(np.add, passes, np.int32) / size,
        tokens=None if r.length is None else reduce(np.add, r.length, np.int64).astype(np.float64),
        starts=starts,
        order=order,
        responses=r,
        passes=passes,
        intake=intake,
    )


def _verdicts(r: Responses, given: float | None, kinds: Sequence[str], intake: Intake) -> NDArray[np.bool_]:
    """Which responses passed; each kind of file has a threshold of its own, since rewards of different logs differ in scale."""
    named = list(dict.fromkeys(kinds))
    if r.run is None or len(named) < 2:
        return _threshold(r.passed, r.reward, r.advantage, given, intake, "")
    of_kind = np.array([named.index(kind) for kind in kinds])[r.run]
    passes = np.zeros(r.n, np.bool_)
    for j, kind in enumerate(named):
        rows = np.flatnonzero(of_kind == j)
        passed, reward, advantage = (None if x is None else x[rows] for x in (r.passed, r.reward, r.advantage))
        if passed is not None and np.isnan(passed).all():
            passed = None
        if reward is not None and np.isnan(reward).all():
            reward = None
        passes[rows] = _threshold(passed, reward, advantage, given, intake, f" ({kind.split(';')[0]})")
    return passes


def _threshold(passed: Any, reward: Any, advantage: Any, given: float | None, intake: Intake, whose: str) -> NDArray[np.bool_]:
    if passed is not None and given is None and not np.isnan(passed).any():
        intake.note(f"passed: as logged (at least 0.5){whose}")
        return np.asarray(passed >= 0.5)
    verdict = reward if reward is not None else advantage if passed is None else passed
    assert verdict is not None
    threshold = given
    if threshold is None:
        low, high = float(np.nanmin(verdict)), float(np.nanmax(verdict))
        near, far = _bulk(verdict)
        beyond = "" if not near < far or (near, far) == (low, high) else f", where all but a few of [{low:g}, {high:g}] lie"
        low, high = (near, far) if near < far else (low, high)
        threshold = (low + high) / 2 if high > low else 0.0 if high != 0.0 else 0.5
        what = "reward" if reward is not None else "advantage" if passed is None else "passed"
        intake.note(f"passed: {what} above {threshold:g}, the middle of [{low:g}, {high:g}]{beyond} (--pass-threshold){whose}")
        if what == "advantage":
            intake.note(f"no rewards: a group without spread in its advantages cannot be told solved from unsolved{whose}")
        elif what == "reward" and _many_values(verdict):
            intake.doubt(
                f"Which responses are correct: rewards take more than two values, and above {threshold:g} counts as passed{whose}."
            )
    passes = np.asarray(verdict > threshold)
    if passed is not None and given is None:
        passes = np.where(np.isnan(passed), passes, passed >= 0.5)
    return passes


def _bulk(x: NDArray[np.float32]) -> tuple[float, float]:
    """The 1 % and 99 % quantiles of at most 100,000 of the values, so that a stray reward moves no threshold."""
    rows = np.arange(x.size) if x.size <= 100_000 else np.random.default_rng(0).integers(0, x.size, 100_000)
    known = np.sort(x[rows][~np.isnan(x[rows])])
    if not known.size:
        return 0.0, 0.0
    return float(known[int(0.01 * known.size)]), float(known[known.size - 1 - int(0.01 * known.size)])


def _many_values(x: NDArray[np.float32]) -> bool:
    known = x[~np.isnan(x)]
    return bool(known.size) and bool(((known != known.min()) & (known != known.max())).any())


def _split_multiples(starts: NDArray[np.int64], intake: Intake) -> NDArray[np.int64]:
    size = np.diff(starts)
    usual = int(np.bincount(size).argmax())
    many = (size > usual) & (size % usual == 0) if usual > 1 else np.zeros(size.size, np.bool_)
    if not many.any():
        return starts
    intake.note(f"{int(many.sum()):,} prompts occur several times in one step; cut into groups of {usual}")
    inner = [np.arange(starts[i] + usual, starts[i + 1], usual) for i in np.flatnonzero(many)]
    return np.sort(np.concatenate([starts, *inner]))
