"""What a response mask keeps and rejects on these logs, and what that certifies.  Every number comes from ``carm_core``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    Rule,
    SeqMIS,
    TRMMean,
    calibrated_tau,
    cancellation_share,
    carm_bound,
    mask_report,
    paired_decisions,
    rejection_curve,
    tau_for_certificate,
)
from conformal_core import as_level

from .examples import best
from .knobs import KNOBS, TAUS, calibrated_rows, tally_rows
from .mask_audit import MaskAudit, MaskedBy, label
from .plans import Plan
from .sources import Intake
from .tokens import MaskWork, TokenScores, merge_scores, read_tokens
from .workers import parallel

__all__ = ["audit_masks", "default_rules"]


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
    sweeps: Mapping[str, Sequence[float]] | None = None,
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
        Thresholds at which CARM and GeoMean are swept.
    sweeps : mapping, optional
        ``{rule: thresholds}`` in place of the defaults of :data:`rollout_logs.knobs.KNOBS`.
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
    as_level(delta, "noise_delta")
    grids = {name: knob.defaults for name, knob in KNOBS.items()} | {"CARM": tuple(taus), "GeoMean": tuple(taus)} | dict(sweeps or {})
    for name, thresholds in grids.items():
        for x in thresholds:
            KNOBS[name].make(x)
    mine = [MaskWork(p, chosen, band, top, grids) for p in plans if p.schema.has_tokens]
    parts: list[TokenScores] = []
    place = {work.log.path: i for i, work in enumerate(mine, 1)}
    for work, part, met in parallel(read_tokens, mine, jobs):
        intake.merge(met)
        if part is not None:
            parts.append(part)
        if progress is not None:
            progress(work.log.path, place[work.log.path], len(mine))
    if not parts:
        return None
    scores = merge_scores(parts)
    scores.examples = best(scores.examples, top)
    del parts
    return _summary(scores, chosen, certificates, tau, taus, grids, band, delta, certificate)


def _summary(
    s: TokenScores,
    rules: tuple[Rule, ...],
    certificates: Sequence[Certificate],
    tau: float,
    taus: Sequence[float],
    grids: Mapping[str, Sequence[float]],
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
    swept = tally_rows(grids, s.tally, n, tokens, s.has_rewards, band)
    if noise is not None:
        swept += calibrated_rows(s.noise_by_rule(), s.by_rule(), s.length, s.reward if s.has_rewards else None, delta, band)
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
        thresholds=tuple(swept),
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
