"""Adaptive majority voting without gold: stop once the vote is settled enough, by a knob with a guarantee or by a named heuristic."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite, nextafter
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .level import Level, as_level, min_calibration_size
from .outcomes import UNPARSABLE, Outcomes
from .policy import CalibrationRequest, FixedBudget, RolloutPolicy
from .quantile import conformal_quantile
from .schedule import RecalibrationSchedule, positive
from .thresholds import check_grid
from .vote_statistics import VoteStatistic, count_votes, settledness

__all__ = [
    "ConformalVote",
    "FixedVote",
    "VoteLoss",
    "VoteRule",
    "adaptive_consistency",
    "calibrate_vote",
    "unanimous_vote",
    "vote_loss_level",
]

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


def _codes(outcomes: Outcomes) -> NDArray[np.int64]:
    if outcomes.codes is None:
        raise ValueError("outcomes.codes: got None; need answer codes; because answers are what is voted on (see encode_answers)")
    return outcomes.codes


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
    codes = _codes(outcomes)
    final = count_votes(codes, budgets[-1]).answer
    level = np.full(outcomes.n, -inf)
    record = np.full(outcomes.n, -inf)
    for k in budgets[:-1]:
        value, answer = settledness(codes, k, budgets[-1], statistic)
        level = np.where((value > record) & _loses(answer, final, outcomes.gold, loss), value, level)
        record = np.maximum(record, value)
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


class _Vote(RolloutPolicy):
    """Stop at the first budget whose statistic exceeds the knob, or where the leader can no longer be overtaken."""

    needs_answers = True

    def __init__(self, grid: Sequence[int], statistic: VoteStatistic, lam: float) -> None:
        self.grid = check_grid(grid)
        self.k_max = self.grid[-1]
        if statistic not in get_args(VoteStatistic):
            raise ValueError(f"statistic: got {statistic!r}; need one of {get_args(VoteStatistic)}; because the knob is on its scale")
        self.statistic: VoteStatistic = statistic
        self.lam = lam

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.grid[0], np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        at, _ = self.stops(outcomes)
        following = np.append(self.grid, self.k_max)[np.searchsorted(self.grid, outcomes.drawn, side="right")]
        return np.where(at > 0, 0, np.maximum(following - outcomes.drawn, 0)).astype(np.int64)

    def committed(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """``(n,)`` code of the answer each prompt commits to; -1: not yet, or no answer was parsed."""
        return self.stops(outcomes)[1]

    def stops(self, outcomes: Outcomes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """``(n,)`` budget at which each prompt commits (0: not yet), and the code of its answer (-1: none, or no answer was parsed).

        Of several leading answers at ``K_max`` the one that appeared first is committed to; earlier, a tie never stops.
        """
        codes = _codes(outcomes)
        at = np.zeros(outcomes.n, np.int64)
        answer = np.full(outcomes.n, UNPARSABLE, np.int64)
        for k in self.grid:
            rows = np.flatnonzero((at == 0) & (outcomes.drawn >= k))
            if not rows.size:
                continue
            value, leader = settledness(codes[rows], k, self.k_max, self.statistic)
            stop = (value > self.lam) | (value == inf) if k < self.k_max else np.ones(rows.size, np.bool_)
            at[rows[stop]], answer[rows[stop]] = k, leader[stop]
        return at, answer

    def audit(self, outcomes: Outcomes) -> Mapping[str, tuple[int, int]]:
        """``{"wrong": (committed answers that are not gold, prompts that committed)}``; nothing where gold is unknown."""
        if outcomes.gold is None:
            return {}
        at, answer = self.stops(outcomes)
        return {"wrong": (int(((at > 0) & ((answer != outcomes.gold) | (answer == UNPARSABLE))).sum()), int((at > 0).sum()))}


class FixedVote(_Vote):
    """The same stop with a knob of one's own: a heuristic, **no guarantee**.  See :func:`adaptive_consistency`, :func:`unanimous_vote`.

    Examples
    --------
    >>> FixedVote((2, 4, 8), "share", 0.7).more(Outcomes([1], np.zeros((1, 4), bool), codes=np.array([[0, 0, 0, 1]])))
    array([0])
    """

    def __repr__(self) -> str:
        return f"FixedVote({self.grid}, {self.statistic!r}, {self.lam!r})"


def adaptive_consistency(grid: Sequence[int] = tuple(range(1, 41)), confidence: float = 0.95) -> FixedVote:
    """Adaptive-consistency: stop when ``P(Beta(c1 + 1, c2 + 1) > 1/2) > confidence``.  A heuristic: the posterior is that of two answers
    under a flat prior, and looking after every response is not accounted for.

    References
    ----------
    Aggarwal, Madaan, Yang, Mausam (2023), *Let's sample step by step*, Sect. 3 (Beta criterion).

    Examples
    --------
    >>> adaptive_consistency((4, 8)).more(Outcomes([1], np.zeros((1, 4), bool), codes=np.array([[0, 0, 0, 0]])))
    array([0])
    """
    return FixedVote(grid, "beta", confidence)


def unanimous_vote(grid: Sequence[int]) -> FixedVote:
    """Stop where all responses give one answer, an unparsable response being none (or the leader cannot be overtaken).  A heuristic.

    Examples
    --------
    >>> unanimous_vote((2, 4)).more(Outcomes([1, 2], np.zeros((2, 2), bool), codes=np.array([[0, 0], [0, -1]])))
    array([0, 2])
    """
    return FixedVote(grid, "share", nextafter(1.0, 0.0))


class ConformalVote(_Vote):
    """Adaptive self-consistency with a guarantee: the vote stops early, and ``E[loss] <= delta``.

    Parameters
    ----------
    grid : sequence of int
        Budgets, ``K_max`` last.
    delta : number
        Bound on the expected loss.
    loss : {"differs", "worse", "wrong"}
        See :data:`VoteLoss`; only ``"differs"`` needs no gold in calibration.  Gold is never read when stopping.
    statistic : {"margin", "lead", "beta", "share"}
        See :func:`settledness`.  The guarantee holds for each; the choice decides how early the vote stops.
    n_calibration : int
        Prompts per calibration, each with ``K_max`` responses.
    recalibrate_every : int, optional
        Steps between calibrations.  Default: one calibration, as at inference the policy does not change.

    Attributes
    ----------
    rule : VoteRule or None
        The calibrated rule.  Before the first calibration nothing stops before the vote can no longer change.

    Notes
    -----
    *Guarantee*: that of :func:`calibrate_vote`.  Unparsable answers have no vote but count as responses; ties go to the answer
    that appeared first.

    Raises
    ------
    ValueError
        If an argument is out of range, or ``n_calibration`` too small for ``delta``.

    References
    ----------
    Wang et al. (2023), *Self-consistency*; Angelopoulos et al. (2024), *Conformal risk control*.

    Examples
    --------
    >>> vote = ConformalVote((2, 4), delta="0.2", n_calibration=9)
    >>> codes = np.zeros((9, 4), np.int64)
    >>> vote.calibrate(Outcomes(np.arange(9, dtype=np.uint64), codes > 0, codes=codes))
    >>> vote.more(Outcomes([77], np.zeros((1, 2), bool), codes=np.array([[3, 3]])))
    array([0])
    """

    def __init__(
        self,
        grid: Sequence[int] = (2, 3, 4, 6, 8, 12, 16, 24, 32),
        *,
        delta: Level = "0.05",
        loss: VoteLoss = "differs",
        statistic: VoteStatistic = "margin",
        n_calibration: int = 200,
        recalibrate_every: int | None = None,
    ) -> None:
        super().__init__(grid, statistic, inf)
        if loss not in get_args(VoteLoss):
            raise ValueError(f"loss: got {loss!r}; need one of {get_args(VoteLoss)}; because its expectation is bounded")
        self.delta = as_level(delta)
        self.loss: VoteLoss = loss
        self.n_calibration = positive("n_calibration", n_calibration)
        need = min_calibration_size(self.delta)
        if self.n_calibration < need:
            raise ValueError(f"n_calibration: got {n_calibration}; need {need}; because with fewer no bound of {self.delta} is attainable")
        self._schedule = RecalibrationSchedule(2**62 if recalibrate_every is None else recalibrate_every)
        self.rule: VoteRule | None = None

    def __repr__(self) -> str:
        return f"ConformalVote({self.grid}, delta={str(self.delta)!r}, loss={self.loss!r}, statistic={self.statistic!r})"

    def calibration(self, step: int) -> CalibrationRequest | None:
        """``n_calibration`` prompts with ``K_max`` responses each, when due."""
        why = self._schedule.due(step)
        return None if why is None else CalibrationRequest(self.n_calibration, FixedBudget(self.k_max), f"vote of step {step}: {why}")

    def calibrate(self, outcomes: Outcomes) -> None:
        """Compute :attr:`rule`; see :func:`calibrate_vote`."""
        self.rule = calibrate_vote(outcomes, self.grid, self.delta, self.loss, self.statistic)
        self.lam = self.rule.lam
        self._schedule.calibrated(outcomes)

    def metrics(self) -> Mapping[str, float]:
        """``delta`` and ``lambda``; nothing before the first calibration."""
        return {} if self.rule is None else {"delta": float(self.delta), "lambda": self.lam}

    def _config(self) -> dict[str, Any]:
        return {"grid": list(self.grid), "delta": str(self.delta), "loss": self.loss, "statistic": self.statistic}

    def state_dict(self) -> dict[str, Any]:
        """Clock and rule."""
        rule = None if self.rule is None else self.rule.to_json()
        return {"config": self._config(), "rule": rule, "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; ``ValueError`` if it was saved by a policy with other arguments."""
        if state.get("config") != self._config():
            raise ValueError(
                f"state: got the state of {state.get('config')}; need that of {self._config()}; because a knob calibrated for one is not "
                "valid for the other"
            )
        self._schedule.load_state_dict(state["schedule"])
        self.rule = None if state["rule"] is None else VoteRule.from_json(state["rule"])
        self.lam = inf if self.rule is None else self.rule.lam
