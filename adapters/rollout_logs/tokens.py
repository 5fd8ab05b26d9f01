"""Token-level logs, streamed: what every rule decides about every response, in a few dozen bytes a response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm_core import IcePop, Rule, log_ratio, response_scores

from .cells import as_floats
from .examples import Example, Heaps, push
from .knobs import Tally, knob_scores, tally
from .plans import Plan
from .ragged import Ragged, as_ragged, on_policy, per_response
from .readers import Batch, Unreadable, as_list, read_batches
from .sources import Intake, LogFile

__all__ = ["Example", "MaskWork", "TokenScores", "read_tokens"]

_CELLS = 1 << 20
_SAMPLE = 64
_NOISE = ("GeoMean", "TRM", "TRMMean", "MeanExpAbs", "SeqMIS", "OPSM")


@dataclass(frozen=True)
class MaskWork:
    """What to do with one file: the plan, the rules (their index is a bit of ``TokenScores.bits``), the band, the length of the top list,
    and the thresholds swept.
    """

    plan: Plan
    rules: tuple[Rule, ...]
    band: tuple[float, float]
    top: int = 6
    grids: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def log(self) -> LogFile:
        """The file."""
        return self.plan.log

    def at(self, log: LogFile) -> MaskWork:
        """The same for a piece of the file."""
        return replace(self, plan=self.plan.at(log))


@dataclass(eq=False)
class TokenScores:
    """Per-response arrays (see :func:`carm_core.response_scores`), rule decisions as bits, sweeps as counts, a few responses in full.

    ``noise`` holds the CARM scores of on-policy responses; where there are some, ``more`` (max k2, mean k3, mean e^|z| - 1, sign of the
    advantage) and ``noise_more`` hold the scores of the other rules.
    """

    d: NDArray[np.float64]
    g: NDArray[np.float64]
    length: NDArray[np.int32]
    p_out: NDArray[np.float32]
    bits: NDArray[np.uint32]
    reward: NDArray[np.float32]
    noise: NDArray[np.float64]
    more: NDArray[np.float32]
    noise_more: NDArray[np.float32]
    tally: Tally
    clipped_tokens: int = 0
    nonfinite: int = 0
    icepop_dropped: float = 0.0
    has_advantages: bool = True
    has_rewards: bool = True
    noise_source: str = ""
    examples: list[Example] = field(default_factory=list)
    sample: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Number of responses, empty ones included."""
        return int(self.d.size)

    def shifted(self, rows: int) -> TokenScores:
        """The same, with examples that lie ``rows`` rows further on in the file."""
        return replace(self, examples=[replace(e, row=e.row + rows) for e in self.examples])

    def by_rule(self) -> dict[str, NDArray[np.float64]]:
        """Scores of every rule with a threshold; empty unless responses are known to be on-policy."""
        if not self.n or self.more.shape[0] != self.n:
            return {}
        k2, k3, excess, negative = self.more.T
        found = {"CARM": self.d, "GeoMean": np.abs(self.g), "TRM": k2, "TRMMean": k3, "MeanExpAbs": excess, "SeqMIS": self.g * self.length}
        return found | ({"OPSM": np.where((negative > 0) | np.isnan(self.g), -self.g, -np.inf)} if self.has_advantages else {})

    def noise_by_rule(self) -> dict[str, NDArray[np.float64]]:
        """On-policy scores of the rules."""
        return {"CARM": self.noise} | {name: self.noise_more[:, j].astype(np.float64) for j, name in enumerate(_NOISE)}


def read_tokens(work: MaskWork) -> tuple[TokenScores | None, Intake]:
    """Score one file.  Responses without log-probabilities, or whose lists differ in length, are named and left out."""
    plan, intake = work.plan, Intake(files=1)
    needed = plan.schema.needed()
    parts: list[TokenScores] = []
    heaps: Heaps = {}
    try:
        for batch in read_batches(plan.log, needed, intake):
            intake.rows += batch.n
            parts.extend(_score(batch, work, intake, heaps))
    except Unreadable as error:
        intake.report(plan.log.path, None, None, f"cannot be read{' to the end' if parts else ''}: {error}")
    if not parts:
        if not intake.unread and plan.log.span is None:
            intake.report(plan.log.path, None, None, "0 rows: nothing to read")
        return None, intake
    scores = merge_scores(parts)
    scores.examples = [example for heap in heaps.values() for _, _, _, example in sorted(heap, reverse=True, key=lambda item: item[:3])]
    intake.used = scores.n
    return scores, intake


def merge_scores(parts: list[TokenScores]) -> TokenScores:
    """Scores of several batches or files; ``parts`` is emptied column by column, so that nothing is held twice."""
    arrays: dict[str, Any] = {}
    for name in ("d", "g", "length", "p_out", "bits", "reward", "noise", "more", "noise_more"):
        arrays[name] = np.concatenate([getattr(p, name) for p in parts])
        for p in parts:
            delattr(p, name)
    total = parts[0].tally
    for p in parts[1:]:
        total = total + p.tally
    return TokenScores(
        **arrays,
        tally=total,
        clipped_tokens=sum(p.clipped_tokens for p in parts),
        nonfinite=sum(p.nonfinite for p in parts),
        icepop_dropped=sum(p.icepop_dropped for p in parts),
        has_advantages=all(p.has_advantages for p in parts),
        has_rewards=all(p.has_rewards for p in parts),
        noise_source=next((p.noise_source for p in parts if p.noise_source), ""),
        examples=[e for p in parts for e in p.examples],
        sample=[z for p in parts for z in p.sample][:512],
    )


def _score(batch: Batch, work: MaskWork, intake: Intake, heaps: Heaps) -> Iterator[TokenScores]:
    plan = work.plan
    columns, file = plan.schema.columns, plan.log.path
    roles = _roles(columns)
    ragged: dict[str, Ragged] = {}
    for role in {*roles, "token_mask", "old_logps"} & set(columns):
        column = batch.get(columns[role])
        if column is not None:
            ragged[role] = as_ragged(column, batch.n)
    for role in roles:
        if role not in ragged:
            for i in range(batch.n):
                intake.report(file, batch.row(i), columns[role], "an empty cell where a list was due")
            return
    ok = np.ones(batch.n, np.bool_)
    main = ragged[roles[-1]]
    for role in (*roles, *({"token_mask"} & set(ragged))):
        gone = ragged[role].missing & ok
        for i in np.flatnonzero(gone):
            ragged[role].name(int(i), batch, columns[role], file, intake)
        ok &= ~gone
    for role in (*roles, *({"token_mask"} & set(ragged))):
        uneven = ok & (ragged[role].sizes != main.sizes)
        for i in np.flatnonzero(uneven):
            found = f"{ragged[role].sizes[i]} values for {main.sizes[i]} in {columns[roles[-1]]}"
            intake.report(file, batch.row(int(i)), columns[role], "lists of different lengths", found)
        ok &= ~uneven
    side = {role: per_response(batch, columns, role, ragged, file, intake) for role in ("advantage", "reward")}
    if side["reward"] is None and "passed" in columns:
        side["reward"] = as_floats(batch, columns["passed"], file, intake)
    stale = on_policy(batch, columns, file, intake)
    lengths = np.asarray(as_list(batch.columns["lengths"])) if "lengths" in batch.columns and "token_mask" not in ragged else None
    rows = np.flatnonzero(ok)
    start = 0
    while start < rows.size:
        stop, width = start + 1, max(1, int(main.sizes[rows[start]]))
        while stop < rows.size and max(width, main.sizes[rows[stop]]) * (stop + 1 - start) <= _CELLS:
            width = max(width, int(main.sizes[rows[stop]]))
            stop += 1
        chosen = rows[start:stop]
        yield _chunk(batch, work, chosen, width, ragged, side, stale, lengths, heaps)
        start = stop


def _roles(columns: Any) -> tuple[str, ...]:
    if "log_ratio" in columns and not {"current_logps", "rollout_logps"} <= set(columns):
        return ("log_ratio",)
    return ("current_logps", "rollout_logps") if "current_logps" in columns else ("old_logps", "rollout_logps")


def _chunk(
    batch: Batch,
    work: MaskWork,
    rows: NDArray[np.int64],
    width: int,
    ragged: dict[str, Ragged],
    side: dict[str, NDArray[np.float64] | None],
    stale: NDArray[np.bool_] | None,
    lengths: NDArray[Any] | None,
    heaps: Heaps,
) -> TokenScores:
    columns = work.plan.schema.columns
    roles = _roles(columns)
    main = ragged[roles[-1]]
    sizes = main.sizes[rows] if lengths is None else np.minimum(lengths[rows], main.sizes[rows])
    mask = np.arange(width) < sizes[:, None]
    if "token_mask" in ragged:
        marked = ragged["token_mask"].padded(rows, width, 0.0)
        mask &= (marked != 0) & ~np.isnan(marked)
    rollout = np.zeros((rows.size, width)) if len(roles) == 1 else main.padded(rows, width, 0.0)
    ratio = log_ratio(ragged[roles[0]].padded(rows, width, 0.0), rollout, mask)
    scores = response_scores(ratio.z, mask)
    advantage = None if side["advantage"] is None else np.nan_to_num(side["advantage"][rows])
    bits = np.zeros(rows.size, np.uint32)
    dropped = 0.0
    for j, rule in enumerate(work.rules):
        if advantage is None and rule.conditioning == "negative":
            continue
        bits |= np.asarray(rule.keep(ratio.z, mask, advantage)).astype(np.uint32) << np.uint32(j)
        if isinstance(rule, IcePop):
            dropped += float(mask.sum() - np.count_nonzero(rule.weights(ratio.z, mask)))
    low, high = np.log(work.band[0]), np.log(work.band[1])
    outside = (((ratio.z < low) | (ratio.z > high)) & mask).sum(axis=1) / np.maximum(ratio.length, 1)
    live = ~ratio.empty
    negative = None if advantage is None else np.asarray(advantage) < 0
    mine = knob_scores(scores, negative)
    noise, noise_more, source = np.zeros(0), np.zeros((0, len(_NOISE)), np.float32), ""
    if (
        "old_logps" in ragged
        and roles == ("current_logps", "rollout_logps")
        and (ragged["old_logps"].sizes[rows] == main.sizes[rows]).all()
    ):
        old = log_ratio(ragged["old_logps"].padded(rows, width, 0.0), rollout, mask)
        noise, noise_more = _noise(knob_scores(response_scores(old.z, mask), negative), live & ~old.nonfinite)
        source = f"{columns['old_logps']} against {columns['rollout_logps']}"
    elif stale is not None:
        noise, noise_more = _noise(mine, stale[rows] & live & ~ratio.nonfinite)
        source = f"responses marked on-policy by {columns.get('on_policy', columns.get('staleness'))}"
    more = np.zeros((0, 4), np.float32)
    if source:
        side_by_side = (mine["TRM"], mine["TRMMean"], mine["MeanExpAbs"], np.zeros(rows.size) if negative is None else negative)
        more = np.stack(side_by_side, axis=1).astype(np.float32)
    first = batch.first == 1 and (work.log.span is None or work.log.span[0] == 0)
    reward = np.full(rows.size, np.nan) if side["reward"] is None else side["reward"][rows]
    push(batch, work.plan, work.top, rows, ratio, mask, scores, bits, reward, heaps)
    return TokenScores(
        d=np.asarray(scores.d),
        g=np.asarray(scores.g),
        length=np.asarray(ratio.length, np.int32),
        p_out=outside.astype(np.float32),
        bits=bits,
        reward=reward.astype(np.float32),
        noise=noise,
        more=more,
        noise_more=noise_more,
        tally=tally(work.grids, mine, np.asarray(ratio.length), np.asarray(reward > 0), np.abs(np.asarray(ratio.z)[mask])),
        clipped_tokens=int(ratio.clipped.sum()),
        nonfinite=int((ratio.nonfinite & live).sum()),
        icepop_dropped=dropped,
        has_advantages=advantage is not None,
        has_rewards=side["reward"] is not None,
        noise_source=source,
        sample=[ratio.z[i][mask[i]][:4096] for i in range(min(_SAMPLE, rows.size))] if first else [],
    )


def _noise(scores: Mapping[str, Any], rows: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """CARM scores, and those of the other rules side by side (NaN where a rule has none)."""
    empty = np.full(rows.size, np.nan)
    return scores["CARM"][rows], np.stack([scores.get(name, empty)[rows] for name in _NOISE], axis=1).astype(np.float32)
