"""C-GRPO as a rollout policy: draw responses up the budget grid until a calibrated rule stops the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .budget_calibration import AutoDelta, AutoRule, BudgetCalibration
from .climb import StoppingPolicy
from .keys import uniforms
from .lead import Statistic
from .learn_then_test import StopRisk
from .level import Level, as_level
from .nested import NestedThresholds
from .outcomes import Outcomes
from .policy import CalibrationRequest
from .schedule import RecalibrationSchedule, positive
from .score import nobody
from .scores import APS, Score
from .stop_rules import KNOB_RULES, RuleName, StopOptions, StopRule, rule_from_json, rule_stop
from .thresholds import BudgetThresholds

__all__ = ["ConformalBudget"]


class ConformalBudget(StoppingPolicy):
    """Stop a prompt at the first budget of the grid at which the calibrated rule is satisfied, else at ``K_max``.

    One score object gives the calibration scores and the stopping test, and :attr:`stop_rule` is the very object that
    :meth:`calibrate` produced: it is impossible to calibrate one rule and train with another.  Before the first calibration nothing stops.

    Parameters
    ----------
    grid : sequence of int
        Budgets, strictly ascending, ``K_max >= 2``.
    score : Score, optional
        Nonconformity score that calibrates and stops; default ``APS()``.  The two knob rules do not use it: they calibrate and stop on
        ``statistic``.
    delta : "auto" or number
        Miscoverage.  ``"auto"`` takes it from the solve rate at ``K_max`` at every calibration; see ``auto_rule``.
    multiplicity : {"per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score", "risk_control", "learn_then_test"}
        What the level is spent on; see *Guarantee*.  The first five give a threshold of the score at every budget
        (:func:`calibrate_thresholds`), the last two are knob rules (:func:`risk_control`, :func:`learn_then_test`).
    n_calibration, recalibrate_every : int
        Prompts per calibration, and steps between calibrations (the first is before step 0).  A calibration prompt is rolled out until its
        score is known (:func:`calibration_rollout`): first-success thresholds cost a full group only where nothing passes.
    split : bool
        With ``delta="auto"``: choose delta on a random half of the prompts and the thresholds on the other.  ``False`` is the protocol
        of the paper's reported figures (both on the same prompts), for which no guarantee holds.
    epsilon : number, optional
        Slack of :func:`auto_delta`, read with ``delta="auto"`` alone.  Default 0.05.
    auto_rule : {"epsilon", "clopper_pearson"}, optional
        With ``delta="auto"``: :func:`auto_delta`, the default, or :func:`auto_delta_upper`, the bound at gamma = 1/10 in place of a slack.
    statistic : {"top_share", "margin"}, optional
        For the knob rules: what the knob is on (:func:`conformal_core.lead.lead`).  Default ``"top_share"``.
    gamma, risk : optional
        For ``"learn_then_test"``: probability of an unlucky calibration set (default 1/10), and whether delta bounds ``"wrong_stop"``, the
        default, or ``"wrong_given_stop"``.
    alarm : number, optional
        Level of a :class:`DriftMonitor` on the passes among the first ``grid[0]`` responses of every training prompt; its alarm makes a
        calibration due.  Default: the clock alone.
    nested : sequence of numbers, optional
        Shares of the calibration prompts that are rolled to each budget, beginning with 1 (:class:`NestedRollout`): many prompts where they
        are cheap, few where they are dear, exact ranks at every budget (:func:`nested_thresholds`).  Only with a fixed delta, a score that
        reads answers, and ``"per_budget"`` or ``"bonferroni"``, which rank each budget on its own.
    seed : int
        Key of the random streams; one uniform per prompt and step, shared over answers and budgets.

    Attributes
    ----------
    stop_rule : BudgetThresholds or NestedThresholds or RiskControl or LearnThenTest or None
        The calibrated object that :meth:`more` reads.

    Notes
    -----
    *Guarantee*, at one calibration, for a prompt exchangeable with the calibration prompts, a policy that does not depend on them, and
    delta fixed or chosen with ``split=True``: P(stop on a wrong answer) is at most ``M delta`` under ``"per_budget"`` (``delta`` only
    at each fixed budget), and at most ``delta`` under ``"bonferroni"``, the joint rules and ``"risk_control"``.  It is a bound on the joint
    event and says nothing given that a prompt stopped.  Under ``"learn_then_test"``, for i.i.d. prompts, the named risk, which may be
    P(wrong | stop), is at most ``delta`` with probability ``1 - gamma`` over the calibration set.  ``ReleasedAPS`` carries no guarantee
    under any of them, because it stops on unanimity when its threshold is 1.  With ``alarm`` a bound delta becomes at most
    ``delta / (1 - alarm)``, since a rule is in force only while no alarm was raised.

    Raises
    ------
    ValueError
        If an argument is out of range or is not read by the rule, or ``n_calibration`` is too small for a fixed ``delta``; the message
        names the size that would do.

    Source: C-GRPO, Algorithm 1, Eq. 8-9 and 13-14, Thm 5; risk control: Angelopoulos et al., ICLR 2024.

    Examples
    --------
    >>> import numpy as np
    >>> policy = ConformalBudget((2, 4), delta="0.2", multiplicity="risk_control", n_calibration=9)
    >>> policy.calibration(0).n
    9
    >>> codes = np.zeros((9, 4), np.int64)
    >>> policy.calibrate(Outcomes(np.arange(9, dtype=np.uint64), codes == 0, codes=codes, gold=codes[:, 0]))
    >>> policy.stop_rule.lam
    Fraction(0, 1)
    >>> policy.more(Outcomes(np.array([77], np.uint64), np.array([[False, False]]), codes=np.array([[3, 3]])))
    array([0])
    """

    def __init__(
        self,
        grid: Sequence[int] = (2, 4, 8, 16, 32),
        *,
        score: Score | None = None,
        delta: Level = "auto",
        multiplicity: RuleName = "per_budget",
        n_calibration: int = 200,
        recalibrate_every: int = 50,
        split: bool = True,
        epsilon: Level | None = None,
        auto_rule: AutoRule | None = None,
        statistic: Statistic | None = None,
        gamma: Level | None = None,
        risk: StopRisk | None = None,
        alarm: Level | None = None,
        nested: Sequence[Level] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(grid)
        self.score: Score = APS() if score is None else score
        if not isinstance(self.score, Score):
            raise ValueError(f"score: got {score!r}; need a Score such as APS(); because it both calibrates and stops")
        self.multiplicity: RuleName = multiplicity
        self.n_calibration = positive("n_calibration", n_calibration)
        self.split, self.seed = bool(split), int(seed)
        self.auto = isinstance(delta, str) and delta == "auto"
        chooser = AutoDelta.of(auto_rule, epsilon, self.split)
        if auto_rule is not None and not self.auto:
            raise ValueError(f"auto_rule: got {auto_rule!r}; need none; because delta = {delta!r} is given")
        self.delta: Fraction | None = None if self.auto else as_level(delta)
        options = StopOptions(multiplicity, statistic, gamma, risk)
        self._calibration = BudgetCalibration(
            self.grid, self.score, options, chooser if self.delta is None else self.delta, nested, self.n_calibration, self.seed
        )
        self.recalibrate_every = positive("recalibrate_every", recalibrate_every)
        self._schedule = RecalibrationSchedule(self.recalibrate_every, alarm=alarm, stage=self.grid[0], seed=self.seed)
        self.needs_answers = multiplicity in KNOB_RULES or self.score.needs_answers
        self.stop_rule: StopRule | None = None

    def __repr__(self) -> str:
        delta = "auto" if self.auto else str(self.delta)
        what = "" if self.multiplicity in KNOB_RULES else f"score={self.score!r}, "
        return f"ConformalBudget({self.grid}, {what}delta={delta!r}, multiplicity={self.multiplicity!r})"

    # -- calibration -------------------------------------------------------------------------------------------------------

    def calibration(self, step: int) -> CalibrationRequest | None:
        """``n_calibration`` prompts until their scores are known: first, every ``recalibrate_every`` steps and after an alarm."""
        why = self._schedule.due(step)
        if why is None:
            return None
        return CalibrationRequest(self.n_calibration, self._calibration.rollout, f"stopping rule of step {step}: {why}")

    def calibrate(self, outcomes: Outcomes) -> None:
        """Compute delta (if automatic) and :attr:`stop_rule` from the prompts asked for, with known gold if the score reads answers.

        ``outcomes.step`` is the step of the request: it keys the random streams and sets the clock of the next calibration.

        Raises
        ------
        ValueError
            If there are no prompts (two, if they are to be split) or what was drawn of one does not determine its score: ``K_max``
            responses, or a success before for first-success thresholds, or the budget assigned under ``nested``.
        """
        wide = outcomes.widen(self.k_max)
        self._calibration.check(wide)
        self.stop_rule = self._calibration.rule(wide, self._u)
        self.delta = self.stop_rule.delta
        self._schedule.calibrated(wide)

    def update(self, outcomes: Outcomes) -> None:
        """Show the training prompts of a step to the drift monitor, if there is one."""
        self._schedule.observe(outcomes)

    # -- decisions ---------------------------------------------------------------------------------------------------------

    def _u(self, outcomes: Outcomes) -> NDArray[np.float64]:
        return uniforms(outcomes.prompt_ids, seed=self.seed, step=outcomes.step, stream="aps")

    def stop_at(self, j: int, outcomes: Outcomes) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        if self.stop_rule is None:
            return nobody(outcomes.n)
        return rule_stop(self.stop_rule, j, self.grid[j], outcomes, self.score, self._u(outcomes))

    # -- reports -----------------------------------------------------------------------------------------------------------

    def audit(self, outcomes: Outcomes) -> Mapping[str, tuple[int, int]]:
        """``{"false_stop": (prompts stopped by the rule on a wrong answer, prompts)}``.

        Wrong is ``committed != gold``; where gold is unknown, an answer no response of which was accepted; for a score without
        answers, a stop without an accepted response.
        """
        at, committed = self.stops(outcomes)
        stopped = at > 0
        if self.needs_answers and outcomes.gold is not None:
            right = committed == outcomes.gold
        else:
            seen = outcomes.passes & (np.arange(outcomes.width) < at[:, None])
            if self.needs_answers and outcomes.codes is not None:
                seen &= outcomes.codes == committed[:, None]
            right = seen.any(axis=1)
        return {"false_stop": (int((stopped & ~right).sum()), outcomes.n)}

    def metrics(self) -> Mapping[str, float]:
        """Once calibrated, ``delta`` and ``q_<k>`` per budget, or ``delta`` and ``lambda``; with ``alarm``, ``drift_evidence``."""
        rule, drift = self.stop_rule, dict(self._schedule.metrics())
        if rule is None:
            return drift
        if not isinstance(rule, BudgetThresholds | NestedThresholds):
            return {"delta": float(rule.delta), "lambda": float(rule.lam)} | drift
        return {"delta": float(rule.delta)} | {f"q_{k}": q for k, q in zip(rule.grid, rule.q, strict=True)} | drift

    def _config(self) -> dict[str, Any]:
        return self._calibration.config() | {"n_calibration": self.n_calibration, "recalibrate_every": self.recalibrate_every}

    def state_dict(self) -> dict[str, Any]:
        """Clock and monitor, delta and rule.  A calibration that was asked for but not received is asked for again after a restart."""
        rule = self.stop_rule
        return {
            "config": self._config(),
            "schedule": self._schedule.state_dict(),
            "delta": None if self.delta is None else str(self.delta),
            "rule": None if rule is None else [type(rule).__name__, rule.to_json()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; raises ``ValueError`` if it was saved by a policy with other arguments."""
        mine = self._config()
        if state.get("config") != mine:
            raise ValueError(
                f"state: got the state of {state.get('config')}; need that of {mine}; "
                "because a rule calibrated for one is not valid for the other"
            )
        self._schedule.load_state_dict(state["schedule"])
        self.delta = None if state["delta"] is None else Fraction(state["delta"])
        self.stop_rule = None
        if state["rule"] is not None:
            self.stop_rule = rule_from_json(*state["rule"])
