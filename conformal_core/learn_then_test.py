"""Learn-then-test on the stop: a knob whose risk is small with high probability over the calibration set, also given that it stopped."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isclose, log, log1p
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .laws import binomial_cdf
from .lead import Statistic, knobs, stop_intervals
from .level import Level, as_level
from .outcomes import Outcomes
from .risk_control import known_gold
from .thresholds import check_grid

__all__ = ["LearnThenTest", "StopRisk", "learn_then_test"]

#: ``wrong_stop``: P(stop with a wrong answer).  ``wrong_given_stop``: P(wrong answer | stop).
StopRisk = Literal["wrong_stop", "wrong_given_stop"]


@dataclass(frozen=True)
class LearnThenTest:
    """A knob of :func:`conformal_core.margin_stop` that passed its tests.

    Attributes
    ----------
    lam : Fraction
        Stop at the first budget with a unique leading answer whose statistic is above ``lam``; the largest knob never stops.
    n : int
        Calibration prompts.
    delta, gamma : Fraction
        Bound on the risk, and on the probability that the calibration set was unlucky.
    risk : {"wrong_stop", "wrong_given_stop"}
    stops, wrong : int
        Calibration prompts that stop with this knob, and those of them that stop with a wrong answer.
    p_value : float
        Of the hypothesis that the risk at ``lam`` exceeds delta.
    attainable : bool
        False if no knob passed; then nothing stops.
    guarantee : str
        What holds, and under which assumption.
    statistic : {"top_share", "margin"}
        The scale of ``lam``.
    """

    lam: Fraction
    n: int
    delta: Fraction
    gamma: Fraction
    risk: StopRisk
    stops: int
    wrong: int
    p_value: float
    attainable: bool
    guarantee: str
    statistic: Statistic

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; fractions as ``"p/q"``."""
        return vars(self) | {name: str(getattr(self, name)) for name in ("lam", "delta", "gamma")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LearnThenTest:
        """Inverse of :meth:`to_json`."""
        d = dict(data)
        return cls(**(d | {name: Fraction(d[name]) for name in ("lam", "delta", "gamma")}))


def learn_then_test(
    outcomes: Outcomes,
    grid: Sequence[int],
    delta: Level,
    gamma: Level = "0.1",
    *,
    risk: StopRisk = "wrong_stop",
    statistic: Statistic = "top_share",
    starts: int | None = None,
) -> LearnThenTest:
    r"""Smallest knob that fixed-sequence testing certifies to have risk at most ``delta``.

    At each knob l the hypothesis ``R(l) > delta`` has the exact p-value ``P(Bin(m, delta) <= w)`` with w the calibration prompts that stop
    with a wrong answer and m all of them (``wrong_stop``) or those that stop (``wrong_given_stop``).  Knobs are tested from the one that
    stops least downwards, at level ``gamma / starts``, until one fails.

    Parameters
    ----------
    outcomes : Outcomes
        Calibration prompts with codes and gold, ``K_max`` responses each.
    grid : sequence of int
        Budgets at which the rule may stop.
    delta, gamma : number
        Bound on the risk; probability of being wrong about it.
    risk : {"wrong_stop", "wrong_given_stop"}
        The second is the share of wrong answers *among stops*, which no marginal guarantee bounds.
    statistic : {"top_share", "margin"}
        See :func:`conformal_core.lead.lead`.
    starts : int, optional
        Number of evenly spaced knobs (at most all) at which a sequence starts, each at level ``gamma / starts``.  Default: 1 for
        ``wrong_stop``, 4 for ``wrong_given_stop``, which with one start fails at once where the strictest knob stops too few prompts to
        show anything.

    Returns
    -------
    LearnThenTest
        *Guarantee*: ``P(R(lam) <= delta) >= 1 - gamma`` over calibration prompts drawn independently from the law of the prompts, for a
        policy that does not depend on them.  No monotonicity of the risk is used.  If nothing is certified, nothing stops.

    Raises
    ------
    ValueError
        If a level, the grid, ``risk``, ``statistic`` or ``starts`` is out of range, there are no prompts, or codes, gold or responses are
        missing.

    Warns
    -----
    UserWarning
        If nothing is certified; where ``n`` prompts without a single error could not pass, the message names the ``n`` that would do.

    References
    ----------
    Angelopoulos, Bates, Candes, Jordan, Lei (2021), *Learn then Test*, with the binomial p-value of a 0-1 loss.

    Examples
    --------
    >>> import numpy as np
    >>> codes = np.array([[0, 0, 0, 0]] * 118 + [[1, 1, 0, 0]] * 2)
    >>> o = Outcomes(np.arange(120, dtype=np.uint64), codes == 0, codes=codes, gold=np.zeros(120, np.int64))
    >>> rule = learn_then_test(o, (2, 4), "0.1", "0.1", risk="wrong_given_stop")
    >>> rule.lam, rule.stops, rule.wrong
    (Fraction(0, 1), 120, 2)
    """
    grid = check_grid(grid)
    level, unlucky = as_level(delta), as_level(gamma, "gamma")
    _check_certifiable(level, unlucky)
    if risk not in get_args(StopRisk):
        raise ValueError(f"risk: got {risk!r}; need one of {get_args(StopRisk)}; because that is what delta bounds")
    starts = default_starts(risk) if starts is None else starts
    if isinstance(starts, bool) or not isinstance(starts, (int, np.integer)) or starts < 1:
        raise ValueError(f"starts: got {starts!r}; need an integer >= 1; because it counts sequences of tests")
    n = outcomes.n
    if n < 1:
        raise ValueError("outcomes: got 0 prompts; need at least 1; because a risk is tested on prompts")
    candidates = knobs(grid, statistic)
    stops, wrong = _path_counts(outcomes, grid, statistic, candidates)
    trials = stops if risk == "wrong_given_stop" else np.full_like(stops, n)
    each = unlucky / int(starts)
    best = 0
    sequences = min(int(starts), len(candidates) - 1)
    for j in range(sequences):
        at = 1 + j * (len(candidates) - 1) // sequences
        while at < len(candidates) and binomial_below(int(wrong[at]), int(trials[at]), level, each):
            best = at
            at += 1
    if not best:
        need = certifiable_size(level, each)
        why = "not even a rule without an error" if n < need else "no knob tested"
        warnings.warn(
            f"n: got {n} calibration prompts; need {need if n < need else 'fewer wrong stops, or more'}; because {why} is certified at "
            f"delta = {level}, gamma = {each}, and nothing can stop",
            UserWarning,
            stacklevel=2,
        )
    what = "P(wrong answer | stop)" if risk == "wrong_given_stop" else "P(stop with a wrong answer)"
    return LearnThenTest(
        lam=candidates[best],
        n=n,
        delta=level,
        gamma=unlucky,
        risk=risk,
        stops=int(stops[best]),
        wrong=int(wrong[best]),
        p_value=_p_value(int(wrong[best]), int(trials[best]), level) if best else 1.0,
        attainable=best > 0,
        guarantee=f"with probability >= 1 - {unlucky} over the calibration set, {what} <= {level} at the adaptive budget, for i.i.d. "
        "prompts and a policy that does not depend on them" + ("" if best else "; no knob passed, so nothing stops"),
        statistic=statistic,
    )


def default_starts(risk: StopRisk) -> int:
    """Sequences of tests: several where a strict knob may stop too few prompts to be certified."""
    return 4 if risk == "wrong_given_stop" else 1


def _check_certifiable(delta: Fraction, gamma: Fraction) -> None:
    for name, number, least in (("delta", delta, Fraction(1, 10**6)), ("gamma", gamma, Fraction(1, 10**300))):
        if number < least:
            raise ValueError(
                f"{name}: got {number}; need at least {float(least):g}; because a smaller one takes millions of prompts to certify"
            )


def certifiable_size(delta: Fraction, gamma: Fraction) -> int:
    """Fewest trials whose complete success certifies the level: the smallest m with ``(1 - delta)**m <= gamma``."""
    _check_certifiable(delta, gamma)
    m = max(1, int(log(gamma) / log1p(-delta)) - 2)
    while not binomial_below(0, m, delta, gamma):
        m += 1
    return m


def binomial_below(x: int, m: int, p: Fraction, level: Fraction) -> bool:
    """Whether ``P(Bin(m, p) <= x) <= level``: in floating point, and in integers where that is too close to tell."""
    value = _p_value(x, m, p)
    if not isclose(value, float(level), rel_tol=1e-9):
        return value < float(level)
    return binomial_cdf(x, m, p) <= level


def _p_value(x: int, m: int, p: Fraction) -> float:
    from scipy.stats import binom  # type: ignore[import-untyped, unused-ignore]

    return float(binom.cdf(x, m, float(p)))


def _path_counts(
    outcomes: Outcomes, grid: Sequence[int], statistic: Statistic, candidates: list[Fraction]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompts that stop, and that stop with a wrong answer, at every knob."""
    gold = known_gold(outcomes)
    values = np.array([float(c) for c in candidates])[::-1]
    change = np.zeros((2, len(values) + 1), np.int64)
    for stop in stop_intervals(outcomes, grid, statistic):
        low, high = (np.searchsorted(values, end) for end in (stop.low, stop.high))
        for row, chosen in enumerate((np.ones(outcomes.n, np.bool_), stop.answer != gold)):
            np.add.at(change[row], low[chosen], 1)
            np.add.at(change[row], high[chosen], -1)
    stops, wrong = change[:, :-1].cumsum(axis=1)[:, ::-1]
    return stops, wrong
