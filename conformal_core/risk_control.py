"""Conformal risk control on the stop itself: one knob, the whole trajectory as one datum, no multiplicity factor."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lead import Statistic, knobs, stop_intervals
from .level import Level, as_level, min_calibration_size
from .outcomes import Outcomes
from .thresholds import check_grid

__all__ = ["RiskControl", "risk_control", "wrong_stop_level"]


@dataclass(frozen=True)
class RiskControl:
    """The calibrated knob of :func:`conformal_core.margin_stop`.

    Attributes
    ----------
    lam : Fraction
        Stop at the first budget with a unique leading answer whose statistic is above ``lam``; 1 (``K_max`` for ``margin``) never stops.
    n : int
        Calibration prompts.
    delta : Fraction
        Bound asked for on P(stop with a wrong answer).
    risk : Fraction
        The calibrated bound ``(sum_i L~_i(lam) + 1) / (n + 1)``; at most ``delta`` when attainable.
    attainable : bool
        False if even ``1 / (n + 1) > delta``; then nothing stops.
    guarantee : str
        What holds, and under which assumption.
    statistic : {"top_share", "margin"}
        The scale of ``lam``; see :func:`conformal_core.lead.lead`.
    """

    lam: Fraction
    n: int
    delta: Fraction
    risk: Fraction
    attainable: bool
    guarantee: str
    statistic: Statistic = "top_share"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; fractions as ``"p/q"``."""
        return vars(self) | {name: str(getattr(self, name)) for name in ("lam", "delta", "risk")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RiskControl:
        """Inverse of :meth:`to_json`."""
        d = dict(data)
        return cls(**(d | {name: Fraction(d[name]) for name in ("lam", "delta", "risk")}))


def wrong_stop_level(outcomes: Outcomes, grid: Sequence[int], statistic: Statistic = "top_share") -> NDArray[np.float64]:
    r"""``w_i``: the smallest knob at and above which prompt ``i`` never stops with a wrong answer.

    The knobs for which it stops at k are an interval (:func:`conformal_core.lead.stop_intervals`), so the monotone envelope of the loss is
    a step: ``max_{l >= lam} L_i(l) = 1[lam < w_i]`` with ``w_i`` the highest end of an interval whose answer is wrong (0 if none).  The
    whole path in ``lam`` is this one number per prompt.

    Parameters
    ----------
    outcomes : Outcomes
        With codes and gold; at least ``K_max`` responses each.
    grid : sequence of int
        Budgets.
    statistic : {"top_share", "margin"}

    Returns
    -------
    float array, shape (n,)
        Correctly rounded, so equal statistics are equal floats.

    Raises
    ------
    ValueError
        If codes or gold are missing, or a prompt has fewer than ``K_max`` responses.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes(np.array([1], np.uint64), np.zeros((1, 4), bool), codes=np.array([[1, 1, 0, 0]]), gold=np.array([0]))
    >>> wrong_stop_level(o, (2, 4)).tolist(), wrong_stop_level(o, (2, 4), "margin").tolist()
    ([1.0], [2.0])
    """
    grid = check_grid(grid)
    gold = known_gold(outcomes)
    level = np.zeros(outcomes.n)
    for stop in stop_intervals(outcomes, grid, statistic):
        level = np.where((stop.high > stop.low) & (stop.answer != gold), stop.high, level)
    return level


def known_gold(outcomes: Outcomes) -> NDArray[np.int64]:
    """The gold codes, which a loss needs."""
    if outcomes.gold is None:
        raise ValueError("outcomes.gold: got None; need the gold code of every prompt; because the loss is stopping with another answer")
    return outcomes.gold


def risk_control(outcomes: Outcomes, grid: Sequence[int], delta: Level, statistic: Statistic = "top_share") -> RiskControl:
    r"""Smallest knob whose calibrated risk of a wrong stop is at most ``delta``.

    ``lam = min{ l : (sum_i L~_i(l) + 1)/(n + 1) <= delta }`` where ``L_i(l) = 1[the rule with knob l stops prompt i with a wrong answer]``
    and ``L~_i(l) = max_{l' >= l} L_i(l')`` its monotone envelope; compared in integers.

    Parameters
    ----------
    outcomes : Outcomes
        Calibration prompts with codes and gold, ``K_max`` responses each.
    grid : sequence of int
        Budgets at which the rule may stop, ``K_max`` included.
    delta : number
        Bound on the risk, in (0, 1).
    statistic : {"top_share", "margin"}
        What the knob is on.  ``top_share`` is 1 for every unanimous group: if more than the allowed share of calibration prompts are
        unanimous and wrong at the smallest budget, nothing may stop.  ``margin`` tells two equal answers from 32 and keeps stopping later.

    Returns
    -------
    RiskControl
        *Guarantee*: ``E[1(stop with a wrong answer)] <= delta`` for a prompt exchangeable with the calibration prompts and a policy
        that does not depend on them, at the budget the rule itself chooses: the datum is the whole trajectory, one test is made,
        and no factor M is paid.  It says nothing given that the prompt stopped.

    Raises
    ------
    ValueError
        If the level or grid is out of range, there are no prompts, or codes, gold or responses are missing.

    Warns
    -----
    UserWarning
        If ``1/(n+1) > delta``: nothing will stop; the message names the ``n`` that would do.

    Notes
    -----
    Source: Angelopoulos, Bates, Fisch, Lei, Schuster, Conformal Risk Control, ICLR 2024, Thm 1.  For this loss the rule is a
    split-conformal quantile of :func:`wrong_stop_level`.

    Examples
    --------
    >>> import numpy as np
    >>> codes = np.array([[0, 0, 0, 0]] * 9 + [[1, 1, 1, 0]])
    >>> o = Outcomes(np.arange(10, dtype=np.uint64), codes == 0, codes=codes, gold=np.zeros(10, np.int64))
    >>> risk_control(o, (2, 4), "0.2").lam, risk_control(o, (2, 4), "0.1").lam
    (Fraction(0, 1), Fraction(1, 1))
    """
    grid = check_grid(grid)
    level = as_level(delta)
    if outcomes.n < 1:
        raise ValueError("outcomes: got 0 prompts; need at least 1; because a risk is calibrated on prompts")
    n = outcomes.n
    allowed = level.numerator * (n + 1) // level.denominator - 1  # prompts that may exceed: (allowed + 1)/(n + 1) <= delta
    wrong = np.sort(wrong_stop_level(outcomes, grid, statistic))[::-1]
    never = knobs(grid, statistic)[0]
    if allowed < 0:
        need = min_calibration_size(level)
        message = f"n: got {n} calibration prompts; need {need}; because a rule that never errs is bounded only by 1/{n + 1} > {level}"
        warnings.warn(message, UserWarning, stacklevel=2)
        return RiskControl(never, n, level, Fraction(1, n + 1), False, f"none needed: nothing stops; {message}", statistic)
    lam = Fraction(float(wrong[allowed])).limit_denominator(grid[-1])
    hits = int((wrong > float(lam)).sum())
    return RiskControl(
        lam=lam,
        n=n,
        delta=level,
        risk=Fraction(hits + 1, n + 1),
        attainable=True,
        guarantee=f"E[1(stop with a wrong answer)] <= {level} at the adaptive budget, for a prompt exchangeable with the calibration "
        "prompts and a policy that does not depend on them",
        statistic=statistic,
    )
