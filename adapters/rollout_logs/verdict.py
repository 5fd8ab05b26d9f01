"""The answer first: a paragraph of verdicts with evidence and price, what the files cannot tell, and settings to copy."""

from __future__ import annotations

from conformal_core import as_level

from .budgets import BudgetAudit
from .ledger import LedgerTotals
from .mask_audit import MaskAudit
from .replays import RuleResult

__all__ = ["budget_settings", "budget_unknown", "budget_verdict", "ledger_verdict", "mask_settings", "mask_verdict", "percent"]


def percent(x: float, digits: int = 1) -> str:
    """``0.314`` as ``31.4 %``."""
    return f"{100 * x:.{digits}f} %"


def _span(low: float, high: float) -> str:
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def _hours(share: float, gpu_hours: float | None) -> str:
    return "" if gpu_hours is None else f" (about {share * gpu_hours:,.1f} of {gpu_hours:,.0f} GPU-hours, if hours go with responses)"


def per_thousand(rule: RuleResult) -> float:
    """Groups with variance per 1,000 rollouts."""
    return 1000 * rule.with_variance[0] / rule.mean_k[0]


def best_fixed(audit: BudgetAudit) -> RuleResult | None:
    """The fixed group size that buys most groups with variance per rollout."""
    return max(audit.rivals, key=per_thousand, default=None)


def choice(audit: BudgetAudit) -> tuple[str, RuleResult | None]:
    """``("fixed", None)`` where a fixed group does as well as the best calibrated rule for no more responses, else ``("rule", it)``."""
    best = audit.best()
    if best is None or best.savings_with_calibration <= 0:
        return "none", best
    spent = audit.k_max * (1 - best.savings_with_calibration)
    if best.fixed_equal is not None and best.fixed_equal <= spent:
        return "fixed", best
    return "rule", best


def budget_verdict(audit: BudgetAudit, gpu_hours: float | None = None) -> list[str]:
    """Sentences, most important first."""
    w = audit.waste
    if w.rollouts == w.groups:
        counted = f"({w.groups:,} prompts, {percent(w.pass_rate)} pass)"
        return [f"These logs hold one response a prompt {counted}: without groups there is no budget to audit."]
    idle = w.no_signal / w.groups
    neither = w.no_signal - w.all_passed - w.all_failed
    odd = f", {neither:,} with equal rewards in between" if neither else ""
    tokens = "" if w.token_share is None else f", {percent(w.token_share)} of all {w.unit}"
    out = [
        f"{percent(w.rollout_share)} of the rollouts bought no gradient{_hours(w.rollout_share, gpu_hours)}: {w.no_signal:,} "
        f"of {w.groups:,} groups "
        f"({percent(idle)}, 95 % interval {_span(*w.interval)}{tokens}) could not move the weights: {w.all_passed:,} solved by "
        "every response, "
        f"{w.all_failed:,} by none{odd}."
    ]
    if w.all_passed + w.all_failed:
        hard = w.all_failed / (w.all_passed + w.all_failed)
        if hard >= 0.75:
            out.append("They are mostly too hard: more responses help only those a longer group would solve; easier prompts help the rest.")
        elif hard <= 0.25:
            out.append("They are mostly too easy: smaller groups or harder prompts, not more responses.")
    if not audit.rules:
        return out
    kind, best = choice(audit)
    if best is not None:
        saved = best.savings_with_calibration
        wrong = "" if best.wrong_stops is None else f", {percent(best.wrong_stops[0])} {_span(*best.wrong_stops[1:])} stopped wrongly"
        out.append(
            f"The calibrated rule that saves most, {best.rule} at delta = {audit.delta}, would draw {best.mean_k[0]:.1f} of "
            f"{audit.k_max} responses a "
            f"prompt: {percent(saved)} fewer with calibration counted{_hours(max(saved, 0.0), gpu_hours)}, losing "
            f"{percent(best.lost_groups[0])} "
            f"{_span(*best.lost_groups[1:])} of prompts that {audit.k_max} responses would have made mixed{wrong}."
            if saved > 0
            else f"No calibrated rule saves anything at delta = {audit.delta}: the best, {best.rule}, saves {percent(saved)} with "
            "calibration counted."
        )
        equal = best.fixed_equal
        if equal is not None and saved > 0:
            spent = audit.k_max * (1 - saved)
            out.append(
                f"A fixed group of {equal} keeps as many groups with variance and draws "
                + (f"no more ({equal} against {spent:.1f}): take it." if kind == "fixed" else f"more ({equal} against {spent:.1f}).")
            )
    small = best_fixed(audit)
    if small is not None:
        top = audit.rule(f"fixed G={audit.k_max}")
        now = "" if top is None else f", against {per_thousand(top):.0f} at {audit.k_max}"
        mine = "" if best is None else f" and {per_thousand(best):.0f} under {best.rule}"
        out.append(
            f"With prompts to spare, {small.rule} is the rival to beat: {per_thousand(small):.0f} groups with variance per "
            f"1,000 rollouts{now}{mine}."
        )
    if len(audit.windows) > 1:
        moved = [w.thresholds["signal f"] for w in audit.windows]
        errors = [w.lost_by_first_clock for w in audit.windows if w.lost_by_first_clock is not None]
        worst = max(errors, key=lambda e: e[0])
        stale = worst[1] > as_level(audit.delta)
        out.append(
            f"Over {len(audit.windows)} windows of the run the signal clock moves from {moved[0]:g} to {moved[-1]:g} draws; "
            "the first window's clock would "
            f"have lost at most {percent(worst[0])} {_span(*worst[1:])} of a later window: "
            + ("recalibrate on the way." if stale else "drift does not break it here.")
        )
    return out


def budget_unknown(audit: BudgetAudit | None, gpu_hours: float | None) -> list[str]:
    """What the outcome logs cannot tell."""
    if audit is None:
        return ["Budgets: no file holds prompts with rewards."]
    out = list(audit.unknown)
    out.append("How the model would have developed under another budget: a replay draws from these groups, it trains nothing.")
    if gpu_hours is None:
        out.append("The price in hours: give --gpu-hours.")
    if audit.waste.token_share is None:
        out.append("The price in tokens: the files hold no completions or lengths of one kind.")
    elif audit.waste.unit == "characters":
        out.append("The price in tokens: lengths are in characters (--map length=COLUMN gives tokens).")
    return out


def budget_settings(audit: BudgetAudit) -> str:
    """Settings for the trainer: what the replay recommends, else the rival."""
    kind, best = choice(audit)
    if best is None or kind == "none":
        small = best_fixed(audit)
        size = audit.k_max if small is None else small.fixed_equal or audit.k_max
        return (
            "# nothing calibrated pays on these logs; with prompts to spare:\n"
            f"num_generations={size}                      # TRL\n# actor_rollout_ref.rollout.n={size}         # verl\n"
        )
    if kind == "fixed":
        size = best.fixed_equal
        return (
            "# a fixed group does as well here\n"
            f"num_generations={size}                      # TRL\n# actor_rollout_ref.rollout.n={size}         # verl\n"
        )
    outer = best.settings.partition("(")[0]
    names = [
        n for n in ("APS", "ConformalBudget", "FirstSuccess", "MassAbove", "SignalBudget", "StreamCalibrated") if f"{n}(" in best.settings
    ]
    extra = (
        ""
        if outer in ("SignalBudget", "StreamCalibrated")
        else "\n# CGRPOTrainer(..., calibration_dataset=..., answer_fn=..., gold_column=...)"
    )
    equal = best.fixed_equal
    if equal is not None and equal < audit.k_max:
        fixed = f"a fixed group of {equal} keeps as many mixed groups"
        extra += f"\n# without budgets per prompt, {fixed} (verl: actor_rollout_ref.rollout.n={equal})"
    return (
        f"from conformal_core import {', '.join(names)}\nfrom conformal_trl import CGRPOConfig, CGRPOTrainer\n\npolicy = {best.settings}\n"
        f"config = CGRPOConfig(num_generations=policy.k_max)\n# CGRPOTrainer(..., config, rollout_policy=policy){extra}\n"
    )


def mask_verdict(audit: MaskAudit, gpu_hours: float | None = None) -> list[str]:
    """Sentences, most important first."""
    carm, other = audit.rules[0], next((r for r in audit.rules if r.rule.startswith("GeoMean")), None)
    correct = "" if carm.masked_correct is None else f"; {percent(carm.masked_correct)} of what it rejects was rewarded"
    spent = "" if gpu_hours is None else f"{carm.rejected_tokens * gpu_hours:,.1f} of {gpu_hours:,.0f} GPU-hours"
    price = f", about {spent} if hours go with tokens" if spent else ""
    low, high = audit.band
    out = [
        f"{carm.rule} rejects {percent(carm.rejected_share)} of {audit.responses:,} responses ({percent(carm.rejected_tokens)} "
        f"of their tokens{price}{correct}), "
        f"and certifies that no response it keeps has more than {percent(carm.certified, 2)} of its tokens outside [{low:g}, {high:g}] "
        f"(worst seen: {percent(carm.worst_kept, 2)})."
    ]
    if other is not None:
        p = audit.paired
        out.append(
            f"{other.rule} rejects {percent(other.rejected_share)} and certifies nothing: both keep {p.both:,}, only CARM "
            f"{p.only_first:,}, only GeoMean "
            f"{p.only_second:,}, neither {p.neither:,}. In the mean response, {percent(audit.cancelled)} of the drift cancels "
            "in its signed mean."
        )
    out.append(
        f"Recommended: tau = {audit.recommended_tau:.6g}, {audit.recommended_why}; here it rejects "
        f"{percent(audit.recommended_reject)} and certifies "
        f"{percent(audit.recommended_bound, 2)}."
    )
    if audit.recommended_reject > 0.5:
        floor = (
            "no response is known to be on-policy, so engine noise cannot be told from drift"
            if audit.noise is None or not audit.noise.attainable
            else "and it is no engine noise"
        )
        out.append(
            f"Do not switch that on blindly: it would leave {percent(1 - audit.recommended_reject)} of the responses to train on "
            f"({floor}). Look at how far engine and trainer are apart first, or allow more with a larger tau."
        )
    if audit.nonfinite:
        out.append(f"{audit.nonfinite:,} responses hold a log-probability that is not finite; every rule rejects them.")
    if audit.clipped_tokens:
        out.append(f"{audit.clipped_tokens:,} tokens lie beyond 20 nats and are guarded to 20.")
    out.extend(f"Look at the numbers first: {warning}" for warning in audit.warnings)
    return out


def mask_settings(audit: MaskAudit) -> str:
    """Settings for the trainer."""
    tau = f"{audit.recommended_tau:.6g}"
    return (
        f'# TRL: CGRPOConfig(..., response_mask="carm", response_mask_threshold={tau})\n'
        f"# verl: +carm=default actor_rollout_ref.actor.policy_loss.tau={tau}\n"
        f"# any loop: keep = carm_core.CARM({tau}).keep(carm_core.log_ratio(current, rollout, mask).z, mask)\n"
    )


def ledger_verdict(ledger: LedgerTotals) -> str:
    """What the trainer's own ledger says."""
    events = "; ".join(f"{event.replace('_', ' ')} {hit:,} of {trials:,}" for event, (hit, trials) in ledger.audit.items() if trials)
    return (
        f"The run's own ledger ({ledger.steps} generation steps): {ledger.generated:,} responses for training and "
        f"{ledger.calibration:,} for calibration, "
        f"{ledger.trained:,} trained; {ledger.groups_with_variance:,} of {ledger.groups:,} groups moved the weights"
        + (f"; {events}." if events else ".")
    )
