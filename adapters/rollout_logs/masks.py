"""What a response mask keeps and rejects on these logs, and what that certifies.  Every number comes from ``carm_core``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from carm_core import (
    CARM,
    OPSM,
    TRM,
    Certificate,
    GeoMean,
    IcePop,
    MaskReport,
    MeanExpAbs,
    PairedDecisions,
    Rule,
    SeqMIS,
    TauChoice,
    TRMMean,
    calibrated_tau,
    cancellation_share,
    carm_bound,
    mask_report,
    paired_decisions,
    rejection_curve,
    tau_for_certificate,
)

from .groups import parallel
from .responses import Plan
from .sources import Intake
from .tokens import Example, MaskWork, TokenScores, merge_scores, read_tokens

__all__ = ["MaskAudit", "MaskedBy", "audit_masks", "default_rules"]

TAUS = (1.005, 1.01, 1.02, 1.03, 1.05, 1.1, 1.2)


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


def default_rules(tau: float, geomean_tau: float = 1.005) -> tuple[Rule, ...]:
    """CARM and GeoMean at ``tau`` and ``geomean_tau`` first, then the others at their papers' settings."""
    return (
        CARM(tau),
        GeoMean(geomean_tau),
        *(() if tau == geomean_tau else (GeoMean(tau),)),
        TRM(0.05),
        TRMMean(0.001),
        MeanExpAbs(tau),
        OPSM(0.02),
        SeqMIS(3.0),
        IcePop(0.5, 5.0),
    )


def audit_masks(
    plans: Sequence[Plan],
    intake: Intake,
    *,
    tau: float = 1.02,
    geomean_tau: float = 1.005,
    taus: Sequence[float] = TAUS,
    band: tuple[float, float] = (0.8, 1.28),
    delta: str = "0.05",
    certificate: float = 0.1,
    rules: Sequence[Rule] | None = None,
    top: int = 6,
    jobs: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> MaskAudit | None:
    """Score every response under every rule; ``None`` if no file holds log-probabilities of both policies.

    Parameters
    ----------
    plans, intake
        From :func:`rollout_logs.plan_files`; ``intake`` is added to.
    tau, geomean_tau : float
        Ratio-domain thresholds of CARM and GeoMean.
    taus : sequence of float
        Thresholds swept.
    band : (float, float)
        Ratio band of the certificates.
    delta : str
        Share of on-policy responses a calibrated tau may reject.
    certificate : float
        Share of out-of-band tokens to certify where nothing is known to be on-policy.
    rules : sequence of Rule, optional
        Default :func:`default_rules`; the first two are compared in pairs.
    top : int
        Responses kept to look at, per reason.

    Raises
    ------
    ValueError
        For a tau below 1 or a band that does not contain 1.
    """
    chosen = tuple(rules) if rules is not None else default_rules(tau, geomean_tau)
    certificates = [rule.certificate(band) for rule in chosen]
    mine = [MaskWork(p, chosen, band, top) for p in plans if p.schema.has_tokens]
    parts: list[TokenScores] = []
    for i, (part, met) in enumerate(parallel(read_tokens, mine, jobs)):
        intake.merge(met)
        if part is not None:
            parts.append(part)
        if progress is not None:
            progress(mine[i].log.path, i + 1, len(mine))
    if not parts:
        return None
    scores = merge_scores(parts)
    scores.examples = _best(scores.examples, top)
    del parts
    return _summary(scores, chosen, certificates, tau, taus, band, delta, certificate)


def _best(examples: Sequence[Example], top: int) -> list[Example]:
    out: list[Example] = []
    for why in dict.fromkeys(e.why for e in examples):
        limit = 1 if why.startswith("kept by CARM") else top
        key = (lambda e: e.geomean - e.d) if why.startswith("kept by GeoMean") else (lambda e: -e.d)
        out += sorted((e for e in examples if e.why == why), key=key)[:limit]
    return out


def _summary(
    s: TokenScores,
    rules: tuple[Rule, ...],
    certificates: Sequence[Certificate],
    tau: float,
    taus: Sequence[float],
    band: tuple[float, float],
    delta: str,
    certificate: float,
) -> MaskAudit:
    live = s.length > 0
    n, tokens = int(live.sum()), int(s.length.sum(dtype=np.int64))
    finite = live & np.isfinite(s.d)
    unknown: list[str] = []
    if not s.has_rewards:
        unknown.append("How many correct responses are masked: the files hold no rewards.")
    results: list[MaskedBy] = []
    for j, (rule, found) in enumerate(zip(rules, certificates, strict=True)):
        if rule.conditioning == "negative" and not s.has_advantages:
            unknown.append(f"What {rule!r} rejects: it looks at the sign of the advantage, and the files hold none.")
            continue
        kept = ((s.bits >> np.uint32(j)) & 1).astype(np.bool_)
        gone = live & ~kept
        lost = int(gone.sum())
        share = (
            s.icepop_dropped / max(tokens, 1) if isinstance(rule, IcePop) else float(s.length[gone].sum(dtype=np.int64) / max(tokens, 1))
        )
        results.append(
            MaskedBy(
                rule=repr(rule),
                rejected=lost,
                rejected_share=lost / max(n, 1),
                rejected_tokens=share,
                masked_correct=float((s.reward[gone] > 0).mean()) if s.has_rewards and lost else None,
                certified=found.p_out,
                worst_kept=float(s.p_out[live & kept].max(initial=0.0)),
                guarantee=found.guarantee,
            )
        )
    results = [replace(r, rule=label(r.rule)) for r in results]
    first, second = ((s.bits >> np.uint32(j)) & 1 for j in (0, 1))
    geomean = np.abs(s.g)
    curve_d, curve_g = rejection_curve(s.d, taus, empty=~live), rejection_curve(geomean, taus, empty=~live)
    noise = calibrated_tau(s.noise, delta) if s.noise.size else None
    if noise is None:
        unknown.append(
            "What engine noise alone would reject: no response is marked on-policy (--map on_policy=COLUMN, --map "
            "staleness=COLUMN) and there are "
            "no log-probabilities of the trainer at the rollout weights (--map old_logps=COLUMN)."
        )
    chosen = tau_for_certificate(certificate, band)
    why = f"the largest that certifies at most {certificate:.0%} of the tokens of a kept response outside [{band[0]}, {band[1]}]"
    if noise is not None and not noise.attainable:
        unknown.append(f"What engine noise alone would reject at delta = {delta}: {noise.guarantee}.")
    elif noise is not None and noise.tau > chosen:
        chosen = noise.tau
        why = (
            f"the noise floor: a smaller one would reject responses for engine noise alone with probability above {delta} "
            f"({noise.n:,} on-policy "
            f"scores: {s.noise_source}); no tau both spares them and certifies {certificate:.0%}"
        )
    elif noise is not None:
        why += (
            f", and above the noise floor {noise.tau:.6g}: engine noise alone is rejected with probability <= {delta} "
            f"({noise.n:,} scores: {s.noise_source})"
        )
    if noise is not None and noise.attainable:
        results.insert(1, _carm_at(s, noise.tau, band, live, tokens))
    report = _warn(s) if s.sample else None
    d, g = s.d[finite], geomean[finite]
    return MaskAudit(
        responses=n,
        tokens=tokens,
        empty=int((~live).sum()),
        nonfinite=s.nonfinite,
        clipped_tokens=s.clipped_tokens,
        band=band,
        tau=tau,
        mean_d=float(d.mean()) if d.size else 0.0,
        median_d=float(np.median(d)) if d.size else 0.0,
        mean_geomean=float(g.mean()) if g.size else 0.0,
        cancelled=float(cancellation_share(d, g).mean()) if d.size else 0.0,
        rules=tuple(results),
        paired=paired_decisions(first.astype(bool), second.astype(bool), empty=~live),
        sweep=tuple((float(t), float(a), float(b), carm_bound(t, band)) for t, a, b in zip(taus, curve_d, curve_g, strict=True)),
        noise=noise,
        noise_source=s.noise_source,
        recommended_tau=chosen,
        recommended_why=why,
        recommended_reject=float(rejection_curve(s.d, [chosen], empty=~live)[0]),
        recommended_bound=carm_bound(chosen, band),
        warnings=() if report is None else report.warnings,
        report=report,
        examples=tuple(s.examples),
        unknown=tuple(unknown),
        scores=s,
    )


def _warn(s: TokenScores) -> MaskReport:
    """:func:`carm_core.mask_report` on a few responses of every file: patterns that mean the numbers are not what they seem."""
    width = max(1, max(z.size for z in s.sample))
    z = np.zeros((len(s.sample), width))
    mask = np.zeros(z.shape, np.bool_)
    for i, row in enumerate(s.sample):
        z[i, : row.size], mask[i, : row.size] = row, True
    report = mask_report(z, mask, np.ones(len(s.sample), np.bool_))
    return replace(report, warnings=tuple(w for w in report.warnings if "every response is rejected" not in w))


def _carm_at(s: TokenScores, tau: float, band: tuple[float, float], live: Any, tokens: int) -> MaskedBy:
    """CARM at a threshold known only after the scores."""
    rule = CARM(tau)
    kept = live & (s.d <= rule.log_tau)
    gone = live & ~kept
    lost, found = int(gone.sum()), rule.certificate(band)
    return MaskedBy(
        rule=f"CARM {tau:.6g} (noise floor)",
        rejected=lost,
        rejected_share=lost / max(int(live.sum()), 1),
        rejected_tokens=float(s.length[gone].sum(dtype=np.int64) / max(tokens, 1)),
        masked_correct=float((s.reward[gone] > 0).mean()) if s.has_rewards and lost else None,
        certified=found.p_out,
        worst_kept=float(s.p_out[kept].max(initial=0.0)),
        guarantee=found.guarantee,
    )


def label(rule: str) -> str:
    """``"CARM(conditioning='both', tau=1.02)"`` as ``"CARM 1.02"``.

    >>> label("IcePop(conditioning='both', alpha=0.5, beta=5.0, weighted=True)")
    'IcePop 0.5 5.0'
    """
    name, _, inside = rule.partition("(")
    fields = dict(part.split("=", 1) for part in inside.rstrip(")").split(", ") if "=" in part)
    shown = [v for k, v in fields.items() if k not in ("conditioning", "weighted") and v not in ("inf", "0.0", "None")]
    return " ".join([name, *shown])
