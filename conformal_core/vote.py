"""Adaptive majority voting without gold: stop once the vote is settled enough, by a knob with a guarantee or by a named heuristic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nextafter
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from .climb import StoppingPolicy
from .level import Level, as_level, min_calibration_size
from .outcomes import UNPARSABLE, Outcomes
from .policy import CalibrationRequest, FixedBudget
from .schedule import RecalibrationSchedule, positive
from .score import answer_codes
from .vote_rule import VoteLoss, VoteRule, calibrate_vote, vote_loss_level
from .vote_statistics import VoteStatistic, settledness

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


class _Vote(StoppingPolicy):
    """Stop at the first budget whose statistic exceeds the knob, or where the leader can no longer be overtaken."""

    needs_answers = True

    def __init__(self, grid: Sequence[int], statistic: VoteStatistic, lam: float) -> None:
        super().__init__(grid)
        if statistic not in get_args(VoteStatistic):
            raise ValueError(f"statistic: got {statistic!r}; need one of {get_args(VoteStatistic)}; because the knob is on its scale")
        if lam != lam:
            raise ValueError("lam: got NaN; need a number or +-inf; because no statistic would ever exceed it")
        self.statistic: VoteStatistic = statistic
        self.lam = lam

    def stop_at(self, j: int, outcomes: Outcomes) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Of several leading answers at ``K_max`` the one that appeared first is committed to; earlier, a tie never stops."""
        k = self.grid[j]
        value, leader = settledness(answer_codes(outcomes), k, self.k_max, self.statistic)
        return (value > self.lam) | (value == inf) | (k == self.k_max), leader

    def stops(self, outcomes: Outcomes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        answer_codes(outcomes)
        return super().stops(outcomes)

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
    under a flat prior, and looking after every response is not accounted for.  ``ValueError`` for a grid that does not ascend.

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

    ``ValueError`` for a grid that does not ascend.

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
        mine = {"grid": list(self.grid), "delta": str(self.delta), "loss": self.loss, "statistic": self.statistic}
        return mine | {"n_calibration": self.n_calibration, "recalibrate_every": self._schedule.every}

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
