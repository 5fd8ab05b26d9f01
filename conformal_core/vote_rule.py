"""The knob of an adaptive vote, calibrated by conformal risk control: one number per prompt describes its loss at every knob."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .lead import record_intervals
from .level import Level, as_level, min_calibration_size
from .outcomes import UNPARSABLE, Outcomes
from .quantile import conformal_quantile
from .score import answer_codes
from .thresholds import check_grid
from .vote_statistics import VoteStatistic, count_votes, settledness

__all__ = ["VoteLoss", "VoteRule", "calibrate_vote", "vote_loss_level"]

#: ``"differs"``: the committed answer is not the vote at ``K_max`` (needs no gold); ``"wrong"``: it is not gold; ``"worse"``: it is not
#: gold although the vote at ``K_max`` is.
VoteLoss = Literal["differs", "wrong", "worse"]


@dataclass(frozen=True)
class VoteRule:
    """A calibrated stop: at the first budget of ``grid`` whose statistic exceeds ``lam``, else at ``K_max``, commit to the leading answer.

    Attributes
    ----------
    grid : tuple of int
        Budgets.
    statistic, loss : str
        See :func:`settledness` and :data:`VoteLoss`.
    lam : float
        The knob; +inf stops only where the leader can no longer be overtaken, -inf at the first budget with a single leader.
    n, rank : int
        Calibration prompts; ``lam`` is the ``rank``-th smallest of their loss levels, ``n + 1`` standing for +inf.
    delta : Fraction
        Bound on the expected loss.
    attainable : bool
        Whether the bound holds: enough prompts, and for ``"wrong"`` a vote at ``K_max`` that is itself right often enough.
    guarantee : str
        In words.
    """

    grid: tuple[int, ...]
    statistic: VoteStatistic
    loss: VoteLoss
    lam: float
    n: int
    rank: int
    delta: Fraction
    attainable: bool
    guarantee: str
    method: str = "conformal risk control on the stop"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: ``delta`` as ``"p/q"``, an infinite knob as ``"inf"`` or ``"-inf"``."""
        lam = self.lam if isfinite(self.lam) else str(self.lam)
        return vars(self) | {"grid": list(self.grid), "lam": lam, "delta": str(self.delta)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VoteRule:
        """Inverse of :meth:`to_json`."""
        return cls(**(dict(data) | {"grid": tuple(data["grid"]), "lam": float(data["lam"]), "delta": Fraction(data["delta"])}))


def vote_loss_level(outcomes: Outcomes, grid: Sequence[int], statistic: VoteStatistic, loss: VoteLoss) -> NDArray[np.float64]:
    r"""``w_i``: the smallest knob at and above which prompt ``i`` commits without loss; its loss at ``lam`` is at most ``1[lam < w_i]``.

    The stop is at j for the knobs between the highest statistic before j and the one at j, so only record values count: ``w_i`` is the
    highest record at which the leader means a loss; -inf if there is none, and +inf if even the vote at ``K_max`` is a loss.

    Parameters
    ----------
    outcomes : Outcomes
        With codes, ``K_max`` responses each, and gold unless ``loss`` is ``"differs"``.
    grid : sequence of int
    statistic, loss : str
        See :func:`settledness` and :data:`VoteLoss`.

    Returns
    -------
    float array, shape (n,)

    Raises
    ------
    ValueError
        If codes or gold are missing, a prompt has fewer than ``K_max`` responses, or ``loss`` is unknown.

    Examples
    --------
    >>> o = Outcomes([1], np.zeros((1, 4), bool), codes=np.array([[1, 1, 0, 0]]), gold=np.array([0]))
    >>> [vote_loss_level(o, (1, 2, 4), "share", loss).item() for loss in get_args(VoteLoss)]
    [-inf, inf, -inf]
    """
    budgets = check_grid(grid)
    if loss not in get_args(VoteLoss):
        raise ValueError(f"loss: got {loss!r}; need one of {get_args(VoteLoss)}; because its expectation is bounded")
    if outcomes.n and outcomes.drawn.min() < budgets[-1]:
        raise ValueError(
            f"outcomes.drawn: got a minimum of {outcomes.drawn.min()}; need {budgets[-1]} responses for each prompt; because the vote at "
            "K_max and at every earlier budget is compared"
        )
    if loss != "differs" and outcomes.gold is None:
        raise ValueError(f"outcomes.gold: got None; need the gold code of every prompt; because loss {loss!r} compares with it")
    codes = answer_codes(outcomes)
    final = count_votes(codes, budgets[-1]).answer
    level = np.full(outcomes.n, -inf)
    path = ((k, *settledness(codes, k, budgets[-1], statistic)) for k in budgets[:-1])
    for stop in record_intervals(path, level):
        level = np.where((stop.high > stop.low) & _loses(stop.answer, final, outcomes.gold, loss), stop.high, level)
    return np.where(_loses(final, final, outcomes.gold, loss), inf, level)


def _loses(answer: NDArray[np.int64], final: NDArray[np.int64], gold: NDArray[np.int64] | None, loss: VoteLoss) -> NDArray[np.bool_]:
    if loss == "differs" or gold is None:
        return np.asarray(answer != final)
    wrong = (answer != gold) | (answer == UNPARSABLE)
    return np.asarray(wrong if loss == "wrong" else wrong & (final == gold) & (final != UNPARSABLE))


def calibrate_vote(
    outcomes: Outcomes, grid: Sequence[int], delta: Level, loss: VoteLoss = "differs", statistic: VoteStatistic = "margin"
) -> VoteRule:
    r"""Smallest knob whose calibrated expected loss is at most ``delta``.

    ``lam = min{l : (sum_i 1[w_i > l] + 1) / (n + 1) <= delta}``, which is the conformal quantile of ``w``.

    Parameters
    ----------
    outcomes : Outcomes
        Calibration prompts: ``K_max`` responses each, with codes, and gold unless ``loss`` is ``"differs"``.
    grid : sequence of int
        Budgets at which the vote may stop, ``K_max`` included.
    delta : number
        Bound on the expected loss, in (0, 1).
    loss, statistic : str
        See :data:`VoteLoss` and :func:`settledness`.

    Returns
    -------
    VoteRule
        *Guarantee*: ``E[loss] <= delta`` for a prompt exchangeable with the calibration prompts, at the budget the rule itself chooses.
        ``"worse"`` (and ``"differs"``, which implies it) bounds what stopping costs: accuracy is at least that of the vote at ``K_max``
        less delta.  ``"wrong"`` bounds the error itself, and no knob can if the vote at ``K_max`` errs more often: then ``attainable``
        is False.  In every case ``P(loss and the calibration was attainable) <= delta``.

    Raises
    ------
    ValueError
        If an argument is out of range, there are no prompts, or codes, gold or responses are missing.

    Warns
    -----
    UserWarning
        If the bound is not attainable, with the reason.

    References
    ----------
    Angelopoulos, Bates, Fisch, Lei, Schuster, *Conformal risk control*, ICLR 2024, Thm 1.

    Examples
    --------
    >>> codes = np.array([[0, 0, 0, 0]] * 9 + [[1, 1, 0, 0]])
    >>> o = Outcomes(np.arange(10, dtype=np.uint64), np.zeros((10, 4), bool), codes=codes, gold=np.zeros(10, np.int64))
    >>> calibrate_vote(o, (2, 4), "0.2", "wrong", "share").lam
    -inf
    """
    budgets = check_grid(grid)
    if outcomes.n < 1:
        raise ValueError("outcomes: got 0 prompts; need at least 1; because a risk is calibrated on prompts")
    level = as_level(delta)
    q = conformal_quantile(vote_loss_level(outcomes, budgets, statistic, loss), level)
    attainable = q.value < inf
    what = {
        "differs": f"the committed answer is not the vote at {budgets[-1]}",
        "wrong": "the committed answer is not gold",
        "worse": f"the committed answer is not gold and the vote at {budgets[-1]} is",
    }[loss]
    guarantee = f"E[loss] <= {level} ({what}) for a prompt exchangeable with the {outcomes.n} calibration prompts"
    if not attainable:
        if not q.attainable:
            message = (
                f"n: got {outcomes.n} calibration prompts; need {min_calibration_size(level)}; because a rule that never errs is bounded "
                f"only by 1/{outcomes.n + 1} > {level}"
            )
        else:
            message = f"delta: got {level}; need more than the error of the vote at K_max = {budgets[-1]}; because no stop makes it better"
        warnings.warn(message, UserWarning, stacklevel=2)
        guarantee = f"none; stops only where the vote can no longer change: {message}"
    return VoteRule(budgets, statistic, loss, q.value, outcomes.n, q.rank, level, attainable, guarantee)
