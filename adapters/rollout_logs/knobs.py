"""Every rule that has a threshold, swept over many at once: shares rejected, certificates, and the threshold that spares engine noise.

Decisions at a threshold come from scores already computed, so a sweep costs a comparison a response.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm_core import CARM, OPSM, TRM, GeoMean, IcePop, MeanExpAbs, Rule, Scores, SeqMIS, TRMMean
from conformal_core import conformal_quantile

__all__ = ["KNOBS", "TAUS", "Knob", "SweepRow", "Tally", "calibrated_rows", "knob_scores", "parse_sweeps", "tally", "tally_rows"]

TAUS = (1.005, 1.01, 1.02, 1.03, 1.05, 1.1, 1.2)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Knob:
    """A rule as a function of one number.

    ``edge`` takes a threshold to the scale of the score (keep iff score <= edge) and ``threshold`` back; ``tokens``: the rule drops tokens.
    """

    name: str
    make: Callable[[float], Rule]
    defaults: tuple[float, ...]
    edge: Callable[[float], float]
    threshold: Callable[[float], float]
    tokens: bool = False


def _same(x: float) -> float:
    return x


def _positive(x: float) -> float:
    return max(x, 1e-12)


def _above_one(x: float) -> float:
    return 1.0 + max(x, 0.0)


def _ratio(x: float) -> float:
    tau = math.exp(min(max(x, 0.0), 700.0))
    while math.log(tau) < x < 700.0:
        tau = math.nextafter(tau, math.inf)
    return tau


def _excess(x: float) -> float:
    return x - 1.0


def _icepop(beta: float) -> Rule:
    return IcePop(1 / beta, beta)


KNOBS: dict[str, Knob] = {
    k.name: k
    for k in (
        Knob("CARM", CARM, TAUS, math.log, _ratio),
        Knob("GeoMean", GeoMean, TAUS, math.log, _ratio),
        Knob("TRM", TRM, (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5), _same, _positive),
        Knob("TRMMean", TRMMean, (1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03), _same, _positive),
        Knob("MeanExpAbs", MeanExpAbs, TAUS, _excess, _above_one),
        Knob("OPSM", OPSM, (0.005, 0.01, 0.02, 0.05, 0.1), _same, _positive),
        Knob("SeqMIS", SeqMIS, (1.5, 2.0, 3.0, 5.0, 10.0), math.log, _ratio),
        Knob("IcePop", _icepop, (1.25, 1.5, 2.0, 3.0, 5.0), math.log, _ratio, tokens=True),
    )
}


def parse_sweeps(items: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """``["TRM=0.02,0.05"]`` as ``{"TRM": (0.02, 0.05)}``; ``ValueError`` for an unknown rule or a threshold it refuses.

    >>> parse_sweeps(["trm=0.05,0.02"])
    {'TRM': (0.02, 0.05)}
    """
    out: dict[str, tuple[float, ...]] = {}
    known = {name.lower(): name for name in KNOBS}
    for item in items:
        name, _, values = item.partition("=")
        try:
            numbers = tuple(sorted(float(x) for x in values.split(",")))
        except ValueError:
            numbers = ()
        if name.lower() not in known or not numbers:
            raise ValueError(
                f"sweep: got {item!r}; need RULE=NUMBER,NUMBER with a rule of {', '.join(KNOBS)}; because a sweep is over a threshold"
            )
        for x in numbers:
            KNOBS[known[name.lower()]].make(x)
        out[known[name.lower()]] = numbers
    return out


def knob_scores(s: Scores, negative: NDArray[np.bool_] | None) -> dict[str, Floats]:
    """Score of each rule that drops responses; +-inf in OPSM's where the sign of the advantage decides."""
    g = np.asarray(s.g)
    out = {
        "CARM": np.asarray(s.d),
        "GeoMean": np.abs(g),
        "TRM": np.asarray(s.max_k2),
        "TRMMean": np.asarray(s.mean_k3),
        "MeanExpAbs": np.asarray(s.mean_exp_abs) - 1.0,
        "SeqMIS": g * np.asarray(s.length),
    }
    if negative is not None:
        out["OPSM"] = np.where(negative | np.isnan(g), -g, -np.inf)
    return out


@dataclass(eq=False)
class Tally:
    """Per rule and threshold: responses rejected, their tokens, the rewarded among them (for token rules: tokens dropped)."""

    counts: dict[str, NDArray[np.int64]]

    def __add__(self, other: Tally) -> Tally:
        names = [name for name in self.counts if name in other.counts]
        return Tally({name: self.counts[name] + other.counts[name] for name in names})


def tally(
    grids: Mapping[str, Sequence[float]], scores: Mapping[str, Floats], length: Any, rewarded: NDArray[np.bool_], distance: Floats
) -> Tally:
    """Count one chunk; ``distance`` is |z| of its live tokens, ``rewarded`` marks responses with a positive reward."""
    live = length > 0
    out: dict[str, NDArray[np.int64]] = {}
    for name, grid in grids.items():
        knob = KNOBS[name]
        found = np.zeros((len(grid), 3), np.int64)
        if knob.tokens:
            found[:, 1] = [int(np.count_nonzero(~(distance <= knob.edge(x)))) for x in grid]
        elif name in scores:
            for j, x in enumerate(grid):
                gone = live & ~(scores[name] <= knob.edge(x))
                found[j] = gone.sum(), length[gone].sum(), (gone & rewarded).sum()
        else:
            continue
        out[name] = found
    return Tally(out)


@dataclass(frozen=True)
class SweepRow:
    """One rule at one threshold.

    ``how``: ``"swept"``, or ``"calibrated"``: the conformal quantile of the rule's own score over on-policy responses, so that engine
    noise alone is rejected with probability at most delta.  Shares are ``None`` where the rule has no such decision.
    """

    rule: str
    threshold: float
    how: str
    rejected_share: float | None
    rejected_tokens: float
    masked_correct: float | None
    certified: float


def tally_rows(
    grids: Mapping[str, Sequence[float]], found: Tally, responses: int, tokens: int, has_rewards: bool, band: tuple[float, float]
) -> list[SweepRow]:
    """Shares from counts."""
    rows: list[SweepRow] = []
    for name, counts in found.counts.items():
        for x, (gone, lost, rewarded) in zip(grids[name], counts.tolist(), strict=True):
            rows.append(
                SweepRow(
                    rule=name,
                    threshold=float(x),
                    how="swept",
                    rejected_share=None if KNOBS[name].tokens else gone / max(responses, 1),
                    rejected_tokens=lost / max(tokens, 1),
                    masked_correct=rewarded / gone if has_rewards and gone else None,
                    certified=KNOBS[name].make(x).certificate(band).p_out,
                )
            )
    return rows


def calibrated_rows(
    noise: Mapping[str, Floats], scores: Mapping[str, Floats], length: Any, reward: Any, delta: str, band: tuple[float, float]
) -> list[SweepRow]:
    """Each rule at the conformal quantile of its on-policy scores; rules whose level is not attainable are left out."""
    rows: list[SweepRow] = []
    live = length > 0
    for name, values in noise.items():
        known = values[np.isfinite(values)]
        if name not in scores or not known.size:
            continue
        quantile = conformal_quantile(known, delta)
        if not quantile.attainable:
            continue
        knob = KNOBS[name]
        threshold = knob.threshold(float(quantile.value))
        gone = live & ~(scores[name] <= max(float(quantile.value), knob.edge(threshold)))
        lost = int(gone.sum())
        rows.append(
            SweepRow(
                rule=name,
                threshold=threshold,
                how="calibrated",
                rejected_share=lost / max(int(live.sum()), 1),
                rejected_tokens=float(length[gone].sum(dtype=np.int64) / max(int(length.sum(dtype=np.int64)), 1)),
                masked_correct=None if reward is None or not lost else float((reward[gone] > 0).mean()),
                certified=knob.make(threshold).certificate(band).p_out,
            )
        )
    return rows
