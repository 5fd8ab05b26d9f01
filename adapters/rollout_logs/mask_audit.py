"""The answer of ``rollout-audit masks``: what each rule rejects and certifies, sweeps, and the recommendation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from carm_core import MaskReport, PairedDecisions, TauChoice

from .examples import Example
from .knobs import SweepRow
from .tokens import TokenScores

__all__ = ["MaskAudit", "MaskedBy", "label"]


@dataclass(frozen=True)
class MaskedBy:
    """One rule: shares over responses with live tokens; ``masked_correct`` of the rejected had a positive reward.

    ``certified`` bounds the share of out-of-band tokens of every kept response (1: certifies nothing); ``worst_kept`` is the largest here.
    """

    rule: str
    rejected: int
    rejected_share: float
    rejected_tokens: float
    masked_correct: float | None
    certified: float
    worst_kept: float
    guarantee: str


@dataclass(frozen=True)
class MaskAudit:
    """The answer of ``rollout-audit masks``."""

    responses: int
    tokens: int
    empty: int
    nonfinite: int
    clipped_tokens: int
    band: tuple[float, float]
    tau: float
    mean_d: float
    median_d: float
    mean_geomean: float
    cancelled: float
    rules: tuple[MaskedBy, ...]
    paired: PairedDecisions
    sweep: tuple[tuple[float, float, float, float], ...]
    thresholds: tuple[SweepRow, ...]
    noise: TauChoice | None
    noise_source: str
    recommended_tau: float
    recommended_why: str
    recommended_reject: float
    recommended_bound: float
    warnings: tuple[str, ...]
    report: MaskReport | None
    examples: tuple[Example, ...] = field(default=(), repr=False)
    unknown: tuple[str, ...] = ()
    scores: TokenScores | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; examples without their tokens."""
        out = asdict(replace(self, scores=None, examples=()))
        if self.noise is not None:
            out["noise"]["level"] = str(self.noise.level)
        out["examples"] = [
            {"file": e.file, "row": e.row, "why": e.why, "d": e.d, "geomean": e.geomean, "length": e.length, "reward": _finite(e.reward)}
            for e in self.examples
        ]
        return out

    def rule(self, name: str) -> MaskedBy | None:
        """The result of a rule by its name."""
        return next((r for r in self.rules if r.rule == name), None)


def _finite(x: float) -> float | None:
    return x if x == x else None


def label(rule: str) -> str:
    """``"CARM(conditioning='both', tau=1.02)"`` as ``"CARM 1.02"``.

    >>> label("IcePop(conditioning='both', alpha=0.5, beta=5.0, weighted=True)")
    'IcePop 0.5 5.0'
    """
    name, _, inside = rule.partition("(")
    fields = dict(part.split("=", 1) for part in inside.rstrip(")").split(", ") if "=" in part)
    shown = [v for k, v in fields.items() if k not in ("conditioning", "weighted") and v not in ("inf", "0.0", "None")]
    return " ".join([name, *shown])
