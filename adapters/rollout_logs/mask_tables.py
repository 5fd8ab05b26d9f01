"""The tables of a mask audit."""

from __future__ import annotations

from collections.abc import Sequence

from .knobs import SweepRow
from .mask_audit import MaskAudit
from .tables import Table, percents

__all__ = ["mask_tables"]


def _certified(x: float) -> str:
    return "none" if x >= 1 else f"≤ {100 * x:.2f}"


def _telling(rows: Sequence[SweepRow]) -> tuple[int, ...]:
    """The calibrated thresholds; where nothing is known to be on-policy, of each rule the tightest that rejects at most a tenth."""
    calibrated = tuple(i for i, r in enumerate(rows) if r.how == "calibrated")
    if calibrated:
        return calibrated
    chosen: dict[str, int] = {}
    for i, r in enumerate(rows):
        share = r.rejected_tokens if r.rejected_share is None else r.rejected_share
        if share <= 0.1:
            chosen.setdefault(r.rule, i)
    return tuple(sorted(chosen.values()))


def mask_tables(audit: MaskAudit) -> dict[str, Table]:
    """``masks``, ``pairs``, ``sweep``, ``mask_thresholds`` and ``responses``."""
    low, high = audit.band
    p = audit.paired
    sweep = [(t, a, b, c) for t, a, b, c in audit.sweep]
    return {
        "masks": Table(
            "What each mask rejects",
            (
                "rule",
                "rejected",
                "rejected_share",
                "rejected_token_share",
                "rewarded_share_of_rejected",
                "certified",
                "worst_kept",
                "guarantee",
            ),
            tuple(
                (r.rule, r.rejected, r.rejected_share, r.rejected_tokens, r.masked_correct, r.certified, r.worst_kept, r.guarantee)
                for r in audit.rules
            ),
            ("rule", "rejected %", "tokens %", "rewarded, of rejected %", "certified out of band %", "worst kept %"),
            tuple(
                (
                    r.rule,
                    percents(r.rejected_share),
                    percents(r.rejected_tokens),
                    percents(r.masked_correct),
                    _certified(r.certified),
                    f"{100 * r.worst_kept:.2f}",
                )
                for r in audit.rules
            ),
            tuple(range(len(audit.rules))),
            f"Of {audit.responses:,} responses, {audit.tokens:,} tokens ({audit.empty:,} empty ones left out). Certified: the "
            "largest share of tokens outside "
            f"[{low:g}, {high:g}] in any response the rule keeps, in the worst case; none: it can be all of them. IcePop drops "
            "tokens, not responses.",
        ),
        "pairs": Table(
            "CARM against GeoMean",
            ("both", "only_carm", "only_geomean", "neither"),
            ((p.both, p.only_first, p.only_second, p.neither),),
            ("kept by both", "only CARM", "only GeoMean", "neither"),
            ((f"{p.both:,}", f"{p.only_first:,}", f"{p.only_second:,}", f"{p.neither:,}"),),
            (0,),
            f"Mean |log-ratio| {audit.mean_d:.4g} (CARM), absolute signed mean {audit.mean_geomean:.4g} (GeoMean): in the mean "
            f"response {100 * audit.cancelled:.1f} % cancels.",
        ),
        "sweep": Table(
            "Rejected at shared thresholds",
            ("tau", "carm", "geomean", "certified_by_carm"),
            tuple(sweep),
            ("tau", "CARM %", "GeoMean %", "certified by CARM %"),
            tuple((f"{t:g}", percents(a), percents(b), f"≤ {100 * c:.2f}") for t, a, b, c in sweep),
            tuple(range(len(sweep))),
        ),
        "mask_thresholds": Table(
            "Every rule over its threshold",
            ("rule", "threshold", "how", "rejected_share", "rejected_token_share", "rewarded_share_of_rejected", "certified"),
            tuple(
                (r.rule, r.threshold, r.how, r.rejected_share, r.rejected_tokens, r.masked_correct, r.certified) for r in audit.thresholds
            ),
            ("rule", "threshold", "rejected %", "tokens %", "rewarded, of rejected %", "certified out of band %"),
            tuple(
                (
                    r.rule,
                    f"{r.threshold:.6g}" + (" *" if r.how == "calibrated" else ""),
                    percents(r.rejected_share),
                    percents(r.rejected_tokens),
                    percents(r.masked_correct),
                    _certified(r.certified),
                )
                for r in audit.thresholds
            ),
            _telling(audit.thresholds),
            "* calibrated: the conformal quantile of the rule's own score over on-policy responses, which spares engine noise; without "
            "on-policy responses, of each rule the tightest threshold that rejects at most 10 % is shown. IcePop "
            "keeps tokens with a ratio in [1 / threshold, threshold]. --sweep RULE=NUMBER,NUMBER sets the thresholds.",
        ),
        "responses": Table(
            "Responses to look at",
            ("why", "file", "row", "tokens", "d", "geomean", "reward"),
            tuple((e.why, e.file, e.row, e.length, e.d, e.geomean, e.reward if e.reward == e.reward else None) for e in audit.examples),
            ("why", "where", "tokens", "CARM", "GeoMean", "reward"),
            tuple(
                (
                    e.why,
                    f"{e.file.rsplit('/', 1)[-1]}:{e.row}",
                    f"{e.length:,}",
                    f"{e.d:.4f}",
                    f"{e.geomean:.4f}",
                    "" if e.reward != e.reward else f"{e.reward:g}",
                )
                for e in audit.examples
            ),
            tuple(range(min(8, len(audit.examples)))),
            "Scores in nats: compare with log tau.",
        ),
    }
