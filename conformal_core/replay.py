"""Run a rollout policy over tables of finished groups: what it would have drawn, saved, lost and got wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .checks import int64_codes
from .intervals import mean_interval, share_interval
from .keys import uniforms
from .level import Level, as_level
from .outcomes import UNPARSABLE, Outcomes
from .policy import RolloutPolicy
from .replay_report import ReplayReport
from .schedule import positive

__all__ = ["ReplayReport", "replay"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: Calibration prompts: a pool to draw from, or a function of (prompts wanted, step).
Source = Outcomes | Callable[[int, int], Outcomes]


def replay(
    policy: RolloutPolicy,
    table: Outcomes | Iterable[Outcomes],
    step: int = 0,
    *,
    calibration: Source | None = None,
    learn: bool = False,
    observe: Callable[[Outcomes], None] | None = None,
    k_max: int | None = None,
    level: Level = "0.95",
) -> ReplayReport:
    r"""Let ``policy`` draw from tables of finished groups, seeing of each prompt only the responses it has asked for.

    Parameters
    ----------
    policy : RolloutPolicy
        The object that trains.  With neither ``calibration`` nor ``learn`` it is left unchanged.
    table : Outcomes or iterable of Outcomes
        One table, or one per optimizer step (a generator is read as the replay proceeds); at least ``k_max`` responses of each prompt,
        with gold if the policy's audit needs it.
    step : int
        Step the policy is told for the first table; the next ones follow.
    calibration : Outcomes or callable, optional
        Where :meth:`RolloutPolicy.calibration` gets its prompts from, before each step at which it asks: a pool, of which a keyed random
        draw is taken, or ``f(n, step) -> Outcomes``.  They are rolled out by the policy's own request and counted.  ``None``: the policy
        was calibrated beforehand, and that cost is not known here.
    learn : bool
        Call ``policy.update`` after each step, as a trainer does.
    observe : callable, optional
        Receives the final outcomes of each step (how a simulated model learns).
    k_max : int, optional
        The full group that savings, lost groups and gradient mass are judged against, at least the default ``policy.k_max``: gives policies
        of different reach one yardstick.
    level : number
        Confidence of the intervals.

    Returns
    -------
    ReplayReport
        *Intervals*: over one table, Clopper-Pearson for shares and the empirical Bernstein bound for mean k (Maurer & Pontil 2009, Thm 4,
        on both sides), valid at every ``n`` for prompts drawn independently from one law and a policy fixed before them (calibrated on
        other prompts).  Over several tables, Azuma-Hoeffding, ``+- sqrt(log(2/(1-level)) / (2n))`` times the range: valid for the average
        over prompts of the probability given the past, however policy and model change between steps.

    Raises
    ------
    ValueError
        If a table is empty or too narrow, ``k_max`` is below that of the policy, the calibration source gives too few prompts, or the
        policy asks for a negative number of responses, for more than its ``k_max``, or answers in the wrong shape.

    Warns
    -----
    UserWarning
        If the policy asks for calibration before the first step and no source is given.

    Notes
    -----
    Time and memory are linear in prompts; one call of ``more`` per round, none per prompt.

    Examples
    --------
    >>> import numpy as np
    >>> from conformal_core.policy import FixedBudget
    >>> table = Outcomes(np.arange(3, dtype=np.uint64), np.array([[1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]], bool))
    >>> report = replay(FixedBudget(2), table)
    >>> report.mean_k, report.groups_with_variance, report.lost_groups
    (2.0, 1, 0)
    >>> [round(x, 3) for x in report.intervals["groups_with_variance"]]
    [0.008, 0.906]
    """
    confidence = as_level(level, "level")
    full = policy.k_max if k_max is None else positive("k_max", k_max)
    if full < policy.k_max:
        raise ValueError(f"k_max: got {full}; need at least {policy.k_max}; because the policy may draw that many")
    tally = _Tally(full)
    for at, asked in enumerate([table] if isinstance(table, Outcomes) else table, start=step):
        current = _checked(asked, full, "table", 1, at)
        request = policy.calibration(at) if calibration is not None or at == step else None
        if request is not None and calibration is None:
            warnings.warn(
                f"calibration: got None; need a source of {request.n} prompts; because the policy asks for them before step {at} and "
                "decides without",
                UserWarning,
                stacklevel=2,
            )
        elif request is not None:
            assert calibration is not None
            pool = _draw(calibration, request.n, at) if isinstance(calibration, Outcomes) else calibration(request.n, at)
            seen = _roll(request.rollout, _checked(pool, request.rollout.k_max, "calibration", request.n, at))
            tally.calibration_rollouts += int(seen.drawn.sum())
            policy.calibrate(seen)
        final = _roll(policy, current)
        tally.add(policy, current, final)
        if learn:
            policy.update(final)
        if observe is not None:
            observe(final)
    if not tally.drawn:
        raise ValueError("table: got no tables; need at least one; because there is nothing to replay")
    return tally.report(confidence)


def _checked(table: Outcomes, k_max: int, name: str, need: int, step: int) -> Outcomes:
    fewest = int(table.drawn.min()) if table.n else 0
    if table.n < need or fewest < k_max:
        raise ValueError(
            f"{name}: got {table.n} prompts with at least {fewest} responses; need {k_max} responses of at least {need} prompts; "
            "because the policy may ask for that many"
        )
    return replace(table, step=step)


def _draw(pool: Outcomes, n: int, step: int) -> Outcomes:
    return pool.take(np.argsort(uniforms(pool.prompt_ids, seed=0, step=step, stream="replay/calibration"), kind="stable")[:n])


def _roll(policy: RolloutPolicy, table: Outcomes) -> Outcomes:
    """Final outcomes of one batch."""
    drawn = _counts(policy, policy.first(table.prompt_ids, table.step), np.zeros(table.n, np.int64))
    extra, asked = drawn, np.arange(table.n)
    while extra.any():
        asked = asked if policy.whole_batch else asked[extra > 0]
        extra = _counts(policy, policy.more(table.take(asked).prefix(drawn[asked])), drawn[asked])
        drawn[asked] += extra
    return table.prefix(drawn)


def _counts(policy: RolloutPolicy, answer: Ints, drawn: Ints) -> Ints:
    extra = np.array(answer)
    if extra.shape != drawn.shape or extra.dtype.kind not in "iu":
        raise ValueError(
            f"policy: got {extra.dtype} of shape {extra.shape}; need integers of shape {drawn.shape}; because it draws responses"
        )
    if extra.min(initial=0) < 0 or (drawn + extra).max(initial=0) > policy.k_max:
        raise ValueError(
            f"policy: got requests from {extra.min()} up to a total of {(drawn + extra).max()} responses; need 0 or more, at most "
            f"{policy.k_max} in total; because that is its k_max"
        )
    return extra.astype(np.int64)


def _stops(policy: RolloutPolicy, final: Outcomes, early: Bools) -> tuple[Bools, Bools]:
    """Prompts that were stopped, and those that were stopped wrongly."""
    right = final.passes.any(axis=1)
    committed = getattr(policy, "committed", None)
    if committed is None or final.codes is None:
        return early, early & ~right
    answer = int64_codes("policy.committed", committed(final), (final.n,))
    named = answer != UNPARSABLE
    own = answer == final.gold if final.gold is not None else (final.passes & (final.codes == answer[:, None])).any(axis=1)
    stopped = early | named
    return stopped, stopped & ~np.where(named, own, right)


#: Names of intervals that are not audited events.
_REPORTED = ("mean_k", "savings", "savings_with_calibration", "wrong_stops", "lost_groups", "groups_with_variance")


class _Tally:
    """Sums over steps."""

    def __init__(self, k_max: int) -> None:
        self.k_max = k_max
        self.drawn: list[Ints] = []
        self.calibration_rollouts = 0
        self.counts: dict[str, int] = {}
        self.audit: dict[str, tuple[int, int]] = {}
        self.mass = 0.0
        self.mixed_at = np.zeros(k_max + 1, np.int64)  # groups by the first budget with both verdicts; 0: never
        self.mass_at = np.zeros(k_max + 1)  # gradient mass of a fixed budget

    def add(self, policy: RolloutPolicy, table: Outcomes, final: Outcomes) -> None:
        kept = np.asarray(policy.keep(final))
        if kept.shape != final.passes.shape or kept.dtype != np.bool_:
            raise ValueError(
                f"policy.keep: got {kept.dtype} of shape {kept.shape}; need bool of shape {final.passes.shape}; because it keeps or drops "
                "each response"
            )
        kept = kept & final.live
        size, accepted = kept.sum(axis=1), (final.passes & kept).sum(axis=1)
        varied = (accepted > 0) & (accepted < size)
        early = (final.drawn > 0) & (final.drawn < policy.k_max)
        stopped, wrong = _stops(policy, final, early)
        successes, first_mixed = np.zeros(table.n, np.int64), np.zeros(table.n, np.int64)
        for k in range(1, self.k_max + 1):
            successes += table.passes[:, k - 1]
            first_mixed[(first_mixed == 0) & (successes > 0) & (successes < k)] = k
            self.mass_at[k] += (successes * (k - successes)).sum() / k
        self.mixed_at += np.bincount(first_mixed, minlength=self.k_max + 1)
        self.mass += float((accepted * (size - accepted) / np.maximum(size, 1)).sum())
        self.drawn.append(final.drawn)
        for name, count in {
            "early_stops": int(early.sum()),
            "early_with_variance": int((early & varied).sum()),
            "stops": int(stopped.sum()),
            "wrong_stops": int(wrong.sum()),
            "lost_groups": int(((first_mixed > 0) & ~varied).sum()),
            "groups_with_variance": int(varied.sum()),
            "solvable": int((successes > 0).sum()),
            "solvable_kept": int((accepted > 0).sum()),
            "positives": int(successes.sum()),
            "positives_kept": int(accepted.sum()),
        }.items():
            self.counts[name] = self.counts.get(name, 0) + count
        for event, (hits, trials) in policy.audit(final).items():
            if event in _REPORTED:
                raise ValueError(f"policy.audit: got an event named {event!r}; need another name; because the report has an interval of it")
            before = self.audit.get(event, (0, 0))
            self.audit[event] = before[0] + int(hits), before[1] + int(trials)

    def report(self, level: Fraction) -> ReplayReport:
        drawn = np.concatenate(self.drawn)
        n, steps, mean_k = len(drawn), len(self.drawn), float(drawn.mean())
        cost = self.calibration_rollouts / (n * self.k_max)
        low, high = mean_interval(drawn / self.k_max, level, adaptive=steps > 1)
        shares = {name: (self.counts[name], n) for name in ("wrong_stops", "lost_groups", "groups_with_variance")}
        below = int(mean_k)
        weights = np.zeros(self.k_max + 2)
        weights[below : below + 2] = 1 - (mean_k - below), mean_k - below
        groups_at = np.append(0, self.mixed_at[1:].cumsum())
        full = self.mass_at[-1] or np.nan
        return ReplayReport(
            n=n,
            k_max=self.k_max,
            steps=steps,
            drawn=drawn,
            mean_k=mean_k,
            savings=1 - mean_k / self.k_max,
            calibration_rollouts=self.calibration_rollouts,
            savings_with_calibration=1 - mean_k / self.k_max - cost,
            fixed_groups_with_variance=float(weights[:-1] @ groups_at),
            gradient_mass=float(self.mass / full),
            fixed_gradient_mass=float(weights[:-1] @ self.mass_at / full),
            audit=self.audit,
            intervals={"mean_k": (low * self.k_max, high * self.k_max), "savings": (1 - high, 1 - low)}
            | {"savings_with_calibration": (1 - high - cost, 1 - low - cost)}
            | {name: share_interval(hits, trials, level, adaptive=steps > 1) for name, (hits, trials) in (shares | self.audit).items()},
            level=level,
            method="clopper-pearson; mean k: empirical bernstein" if steps == 1 else "azuma-hoeffding",
            guarantee="each interval covers with the stated level: prompts drawn independently from one law, policy fixed before them"
            if steps == 1
            else "each interval covers with the stated level the average over prompts of the probability given the past: prompts of a step "
            "drawn independently from the law of that step, trials of an audited event not depending on earlier outcomes",
            **self.counts,
        )
