"""Every rule of ``conformal_core`` calibrated on one half of the prompts and replayed on the other, calibration charged as drawn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import (
    APS,
    ConformalBudget,
    ConformalVote,
    FirstSuccess,
    FixedBudget,
    MassAbove,
    Outcomes,
    ReleasedAPS,
    ReplayReport,
    RolloutPolicy,
    Score,
    SignalBudget,
    StreamCalibrated,
    as_level,
    clopper_pearson,
    k_mix,
    min_calibration_size,
    released_cgrpo,
    replay,
    vote_report,
)

__all__ = ["RuleResult", "Share", "replay_rules"]

MULTIPLICITIES = ("per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score")
JOINT = ("bonferroni", "max_rank", "max_score")
KNOBS = ("risk_control", "learn_then_test")
Share = tuple[float, float, float]  # estimate, low, high


@dataclass(frozen=True)
class RuleResult:
    """One rule replayed over the evaluation groups.

    Shares are of evaluation prompts, with the interval of :func:`conformal_core.replay`.  ``fixed_equal`` is the smallest fixed group size
    that keeps as many groups with variance.  ``savings_with_calibration`` charges ``calibration_rollouts``, what the rule's own calibration
    request draws of the calibration prompts, at the run's pace; rules calibrated on the training stream pay in ``mean_k``.
    ``bounded``: the rule bounds an error over the whole path (not one at each budget, not none).  ``differs`` is, of a vote, the share of
    prompts whose answer is not the vote of the full group.  ``settings`` is the policy as code.
    """

    rule: str
    family: str
    mean_k: Share
    savings: Share
    savings_with_calibration: float
    wrong_stops: Share | None
    lost_groups: Share
    with_variance: Share
    fixed_equal: int | None
    thresholds: Mapping[str, float]
    guarantee: str
    note: str = ""
    bounded: bool = False
    calibration_rollouts: int = 0
    differs: Share | None = None
    settings: str = ""


@dataclass(frozen=True)
class _Candidate:
    """A policy to replay, as object and as code; ``stream``: it calibrates on training prompts, at no cost but its own draws."""

    name: str
    family: str
    policy: RolloutPolicy
    settings: str
    bounded: bool = False
    stream: bool = False
    guarantee: str = ""


def _written(cls: type, *positional: Any, **named: Any) -> str:
    shown = [*map(_code, positional), *(f"{name}={_code(value)}" for name, value in named.items())]
    return f"{cls.__name__}({', '.join(shown)})"


def _code(x: Any) -> str:
    return f'"{x}"' if isinstance(x, (str, Fraction)) else f"({', '.join(map(_code, x))})" if isinstance(x, tuple) else repr(x)


def nested_shares(grid: Sequence[int], delta: str, n: int) -> tuple[Fraction, ...] | None:
    """Shares of calibration prompts rolled to each budget: halved from budget to budget, as far as the level stays attainable.

    None where that saves nothing.

    >>> nested_shares((2, 4, 8), "0.1", 200), nested_shares((2, 4, 8), "0.1", 40)
    ((Fraction(1, 1), Fraction(1, 2), Fraction(1, 4)), None)
    """
    enough = Fraction(3 * min_calibration_size(as_level(delta) / len(grid)), 2 * n)
    shares = tuple(max(Fraction(1, 2**j), min(Fraction(1), enough)) for j in range(len(grid)))
    return shares if shares[-1] < 1 else None


def _candidates(grid: tuple[int, ...], delta: str, cal: Outcomes, seed: int, refused: list[str]) -> Iterator[_Candidate]:
    k_max, n = grid[-1], cal.n
    answers = cal.codes is not None
    need = min_calibration_size(delta)
    for k in grid:
        yield _Candidate(f"fixed G={k}", "fixed", FixedBudget(k), f"FixedBudget({k})")
    if n >= need:
        quarter = max(2, k_max // 4)
        for g in dict.fromkeys((grid, (*range(quarter, k_max, quarter), k_max))):
            clock = SignalBudget(g, delta=delta, window=max(n, need), seed=seed)
            text = f"P(a prompt that would have become mixed by {k_max} is cut off) <= {delta}"
            code = _written(SignalBudget, grid=g, delta=delta, seed=seed)
            yield _Candidate(f"signal {'-'.join(map(str, g))}", "signal", clock, code, True, True, text)

    def budget(name: str, family: str, bounded: bool, *, stream: bool = False, **arguments: Any) -> Iterator[_Candidate]:
        named = {"delta": delta, **arguments, "n_calibration": n, "seed": seed}
        try:
            inner = ConformalBudget(grid, **named)
            policy: RolloutPolicy = StreamCalibrated(inner, seed=seed) if stream else inner
        except ValueError as error:
            refused.append(f"{name}: {error}")
            return
        code = _written(ConformalBudget, grid, **named)
        yield _Candidate(name, family, policy, f"StreamCalibrated({code}, seed={seed})" if stream else code, bounded, stream)

    scores: dict[str, Score] = {"first_success": FirstSuccess()}
    if answers:
        scores |= {"randomized": APS(), "inclusive": APS("inclusive"), "mass_above": MassAbove(), "released": ReleasedAPS()}
    for name, score in scores.items():
        family = "first success" if name == "first_success" else "answers"
        for m in MULTIPLICITIES:
            yield from budget(f"{name} {m}", family, m in JOINT and name != "released", score=score, multiplicity=m)
    for m in JOINT:
        yield from budget(f"first_success stream {m}", "first success", True, stream=True, score=FirstSuccess(), multiplicity=m)
    if not answers:
        return
    shares = nested_shares(grid, delta, n)
    for name in ("randomized", "mass_above") if shares is not None else ():
        nested = tuple(str(s) for s in shares or ())
        yield from budget(f"{name} nested bonferroni", "answers", True, score=scores[name], multiplicity="bonferroni", nested=nested)
    for m in KNOBS:
        yield from budget(m, "risk control", True, multiplicity=m)
    for loss in ("differs", "worse") if n >= need else ():
        vote = ConformalVote(grid, delta=delta, loss=loss, n_calibration=n)
        code = _written(ConformalVote, grid, delta=delta, loss=loss, n_calibration=n)
        yield _Candidate(f"vote {loss}", "vote", vote, code)
    if n > 1:
        text = "none: delta and thresholds from the same prompts"
        code = f"released_cgrpo({_code(grid)}, n_calibration={n}, seed={seed})"
        paper = released_cgrpo(grid, n_calibration=n, seed=seed)
        yield _Candidate("released auto delta", "answers", paper, code, guarantee=text)


def _calibrated(candidate: _Candidate, cal: Outcomes) -> tuple[int, Mapping[str, float], str]:
    """Calibrate; rollouts drawn for it alone, thresholds, guarantee."""
    policy, cost = candidate.policy, 0
    if candidate.family == "fixed":
        return 0, {}, ""
    if isinstance(policy, StreamCalibrated):
        policy.update(cal)
    elif candidate.stream:
        policy.calibrate(cal)
    else:
        request = policy.calibration(0)
        assert request is not None
        drawn = replay(request.rollout, cal).drawn  # what the rule asks for: until the score is known, or nested sizes
        cost = int(drawn.sum())
        policy.calibrate(cal.prefix(drawn))
    keys = policy.metrics().items()
    thresholds = {k: v for k, v in keys if k.startswith("f")} if isinstance(policy, SignalBudget) else dict(keys)
    thresholds = {k: v for k, v in thresholds.items() if k not in ("designated_share", "calibration_extra_share", "window")}
    rule = getattr(policy, "rule", None) or getattr(getattr(policy, "policy", policy), "stop_rule", None)
    text = "none: it stops on unanimity" if candidate.name.startswith("released") else str(getattr(rule, "guarantee", ""))
    return cost, thresholds, candidate.guarantee or text


def replay_rules(
    grid: tuple[int, ...],
    delta: str,
    cal: Outcomes,
    table: Outcomes,
    *,
    pace: float,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[list[RuleResult], dict[str, ReplayReport], list[str]]:
    """Every rule on the evaluation prompts ``table``, calibrated on ``cal``.

    Parameters
    ----------
    grid : tuple of int
        Budgets.
    delta : str
        Miscoverage.
    cal, table : Outcomes
        Full groups of ``grid[-1]`` responses.
    pace : float
        Training prompts over which the cost of one calibration is spread.
    seed : int
    progress : callable, optional
        Told ``(rule, done, of)``.

    Returns
    -------
    results, reports, refused
        ``refused`` says which rules need more calibration prompts.
    """
    refused: list[str] = []
    results: list[RuleResult] = []
    reports: dict[str, ReplayReport] = {}
    mixed = k_mix(table.passes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an unattainable level shows in the table
        candidates = list(_candidates(grid, delta, cal, seed, refused))
        for i, candidate in enumerate(candidates, 1):
            cost, thresholds, guarantee = _calibrated(candidate, cal)
            report = replay(candidate.policy, table)
            found = _result(candidate, report, thresholds, guarantee, cost, grid[-1], pace, mixed)
            if isinstance(candidate.policy, ConformalVote):
                votes = vote_report(candidate.policy, table)
                found = replace(found, differs=(votes.differs / votes.n, *votes.differs_interval))
            results.append(found)
            reports[candidate.name] = report
            if progress is not None:
                progress(candidate.name, i, len(candidates))
    return results, reports, refused


def _result(
    candidate: _Candidate,
    report: ReplayReport,
    thresholds: Mapping[str, float],
    guarantee: str,
    cost: int,
    full: int,
    pace: float,
    mixed: NDArray[np.int64],
) -> RuleResult:
    family = candidate.family

    def share(field_name: str) -> Share:
        return (getattr(report, field_name) / report.n, *report.intervals[field_name])

    low, high = report.intervals["mean_k"]
    charged = cost / (pace * full)
    equal = next((k for k in range(2, full + 1) if int(((mixed > 0) & (mixed <= k)).sum()) >= report.groups_with_variance), None)
    fixed = family == "fixed"
    lost = int((mixed > 0).sum()) - report.groups_with_variance if fixed else report.lost_groups
    idle = not fixed and report.early_stops == 0
    return RuleResult(
        rule=candidate.name,
        family=family,
        mean_k=(report.mean_k, low, high) if not fixed else (report.mean_k,) * 3,
        savings=(1 - report.mean_k / full, 1 - high / full, 1 - low / full) if not fixed else (1 - report.mean_k / full,) * 3,
        savings_with_calibration=1 - report.mean_k / full - charged,
        wrong_stops=None if family in ("fixed", "signal") else share("wrong_stops"),
        lost_groups=(lost / report.n, *clopper_pearson(lost, report.n)),
        with_variance=share("groups_with_variance"),
        fixed_equal=equal,
        thresholds=dict(thresholds),
        guarantee=guarantee,
        note="nothing stops early" if idle else "",
        bounded=candidate.bounded,
        calibration_rollouts=cost,
        settings=candidate.settings,
    )
