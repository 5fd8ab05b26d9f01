"""C-GRPO as a rollout policy: draw responses up the budget grid until a calibrated rule stops the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .auto_delta import _rational, auto_delta, disjoint_split
from .keys import uniforms
from .lead import Statistic
from .learn_then_test import StopRisk
from .level import Level, as_level
from .outcomes import UNPARSABLE, Outcomes
from .policy import CalibrationRequest, FixedBudget, RolloutPolicy
from .scores import APS, Score
from .stop_rules import KNOB_RULES, RuleName, StopOptions, StopRule, rule_from_json, rule_stop, without_guarantee
from .thresholds import BudgetThresholds, check_grid

__all__ = ["ConformalBudget"]


def _is_due(step: int, last: int | None, every: int) -> bool:
    """Whether a multiple of ``every`` was reached since the calibration of step ``last``."""
    return last is None or step // every > last // every


def _positive(name: str, value: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: got {value!r}; need an integer >= 1; because it counts prompts or steps")
    return int(value)


def _need_width(outcomes: Outcomes, k_max: int) -> None:
    if outcomes.n < 1 or outcomes.drawn.min() < k_max:
        raise ValueError(
            f"outcomes: got {outcomes.n} prompts with at least {outcomes.drawn.min() if outcomes.n else 0} responses; "
            f"need {k_max} responses of at least one prompt; because every budget of the grid is calibrated"
        )


class ConformalBudget(RolloutPolicy):
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
        Miscoverage.  ``"auto"`` takes it from the solve rate at ``K_max`` at every calibration (:func:`auto_delta`).
    multiplicity : {"per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score", "risk_control", "learn_then_test"}
        What the level is spent on; see *Guarantee*.  The first five give a threshold of the score at every budget
        (:func:`calibrate_thresholds`), the last two are knob rules (:func:`risk_control`, :func:`learn_then_test`).
    n_calibration, recalibrate_every : int
        Prompts per calibration, and steps between calibrations (the first is before step 0).
    split : bool
        With ``delta="auto"``: choose delta on a random half of the prompts and the thresholds on the other.  ``False`` is the protocol
        of the paper's reported figures (both on the same prompts), for which no guarantee holds.
    epsilon : number
        Slack of :func:`auto_delta`.
    statistic : {"top_share", "margin"}, optional
        For the knob rules: what the knob is on (:func:`conformal_core.lead.lead`).  Default ``"top_share"``.
    gamma, risk : optional
        For ``"learn_then_test"``: probability of an unlucky calibration set (default 1/10), and whether delta bounds ``"wrong_stop"``, the
        default, or ``"wrong_given_stop"``.
    seed : int
        Key of the random streams; one uniform per prompt and step, shared over answers and budgets.

    Attributes
    ----------
    stop_rule : BudgetThresholds or RiskControl or LearnThenTest or None
        The calibrated object that :meth:`more` reads.

    Notes
    -----
    *Guarantee*, at one calibration, for a prompt exchangeable with the calibration prompts, a policy that does not depend on them, and
    delta fixed or chosen with ``split=True``: P(stop on a wrong answer) is at most ``M delta`` under ``"per_budget"`` (``delta`` only
    at each fixed budget), and at most ``delta`` under ``"bonferroni"``, the joint rules and ``"risk_control"``.  It is a bound on the joint
    event and says nothing given that a prompt stopped.  Under ``"learn_then_test"``, for i.i.d. prompts, the named risk, which may be
    P(wrong | stop), is at most ``delta`` with probability ``1 - gamma`` over the calibration set.  ``ReleasedAPS`` carries no guarantee
    under any of them, because it stops on unanimity when its threshold is 1.

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
        epsilon: Level = "0.05",
        statistic: Statistic | None = None,
        gamma: Level | None = None,
        risk: StopRisk | None = None,
        seed: int = 0,
    ) -> None:
        self.grid = check_grid(grid)
        self.k_max = self.grid[-1]
        self.options = StopOptions(multiplicity, statistic, gamma, risk)
        self.score: Score = APS() if score is None else score
        if not isinstance(self.score, Score):
            raise ValueError(f"score: got {score!r}; need a Score such as APS(); because it both calibrates and stops")
        self.multiplicity: RuleName = multiplicity
        self.n_calibration = _positive("n_calibration", n_calibration)
        self.recalibrate_every = _positive("recalibrate_every", recalibrate_every)
        self.split = bool(split)
        self.epsilon = _rational("epsilon", epsilon)
        self.seed = int(seed)
        self.auto = isinstance(delta, str) and delta == "auto"
        self.delta: Fraction | None = None if self.auto else as_level(delta)
        self.needs_answers = multiplicity in KNOB_RULES or self.score.needs_answers
        self.stop_rule: StopRule | None = None
        self._calibrated_at: int | None = None
        if self.delta is not None:
            need = self.options.need(self.delta, len(self.grid))
            if self.n_calibration < need:
                raise ValueError(
                    f"n_calibration: got {self.n_calibration}; need {need}; because with fewer prompts no threshold "
                    f"at delta = {self.delta} under {multiplicity!r} is finite, and nothing can stop"
                )
        elif self.split and self.n_calibration < 2:
            raise ValueError("n_calibration: got 1; need 2; because split=True chooses delta and the thresholds on different prompts")

    def __repr__(self) -> str:
        delta = "auto" if self.auto else str(self.delta)
        what = "" if self.multiplicity in KNOB_RULES else f"score={self.score!r}, "
        return f"ConformalBudget({self.grid}, {what}delta={delta!r}, multiplicity={self.multiplicity!r})"

    # -- calibration -------------------------------------------------------------------------------------------------------

    def calibration(self, step: int) -> CalibrationRequest | None:
        """Full groups for ``n_calibration`` prompts, before step 0 and each time ``recalibrate_every`` more steps have passed."""
        if not _is_due(step, self._calibrated_at, self.recalibrate_every):
            return None
        return CalibrationRequest(self.n_calibration, FixedBudget(self.k_max), f"stopping rule of step {step}")

    def calibrate(self, outcomes: Outcomes) -> None:
        """Compute delta (if automatic) and :attr:`stop_rule` from groups of ``K_max`` responses with known gold.

        ``outcomes.step`` is the step of the request: it keys the random streams and sets the clock of the next calibration.

        Raises
        ------
        ValueError
            If there are no prompts (two, if they are to be split) or a group holds fewer than ``K_max`` responses.
        """
        _need_width(outcomes, self.k_max)
        rows = np.argsort(outcomes.prompt_ids, kind="stable").astype(np.int64)  # so that a split ignores the order of the rows
        reference, key = rows[:0], (self.seed % 2**64, outcomes.step)
        if self.auto:
            first = rows
            if self.split:
                idx_delta, idx_q = disjoint_split(outcomes.n, seed=key)
                reference, rows = rows[idx_delta], rows[idx_q]
                first = reference
            solved = outcomes.passes[first, : self.k_max].any(axis=1)
            self.delta = auto_delta(int(solved.sum()), len(first), epsilon=self.epsilon)
        assert self.delta is not None
        rule = self.options.calibrate(
            outcomes, self.grid, self.delta, self.score, self._u(outcomes), reference=reference, rows=rows, seed=key
        )
        if self.auto and not self.split:
            rule = without_guarantee(rule, f"delta = {self.delta} was chosen by looking at the same prompts")
        self.stop_rule = rule
        self._calibrated_at = outcomes.step

    # -- decisions ---------------------------------------------------------------------------------------------------------

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.grid[0], np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        at, _ = self._stopped(outcomes)
        following = np.append(self.grid, self.k_max)[np.searchsorted(self.grid, outcomes.drawn, side="right")]
        return np.where(at > 0, 0, np.maximum(following - outcomes.drawn, 0)).astype(np.int64)

    def committed(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """``(n,)`` code of the answer on which each prompt stopped; -1 where it did not stop (or the score has no answers)."""
        return self._stopped(outcomes)[1]

    def _u(self, outcomes: Outcomes) -> NDArray[np.float64]:
        return uniforms(outcomes.prompt_ids, seed=self.seed, step=outcomes.step, stream="aps")

    def _stopped(self, outcomes: Outcomes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Budget at which each prompt stopped by the rule (0: it did not) and the answer it stopped on."""
        at = np.zeros(outcomes.n, np.int64)
        committed = np.full(outcomes.n, UNPARSABLE, np.int64)
        rule = self.stop_rule
        if rule is None or not outcomes.n:
            return at, committed
        u = self._u(outcomes)
        for j, k in enumerate(self.grid):
            rows = np.flatnonzero((at == 0) & (outcomes.drawn >= k))
            if not rows.size:
                continue
            asked = outcomes.take(rows)
            stop, answer = rule_stop(rule, j, k, asked, self.score, u[rows])
            at[rows] = np.where(stop, k, 0)
            committed[rows] = np.where(stop, answer, UNPARSABLE)
        return at, committed

    # -- reports -----------------------------------------------------------------------------------------------------------

    def audit(self, outcomes: Outcomes) -> Mapping[str, tuple[int, int]]:
        """``{"false_stop": (prompts stopped by the rule on a wrong answer, prompts)}``.

        Wrong is ``committed != gold``; where gold is unknown, an answer no response of which was accepted; for a score without
        answers, a stop without an accepted response.
        """
        at, committed = self._stopped(outcomes)
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
        """``delta`` and ``q_<k>`` per budget, or ``delta`` and ``lambda``; nothing before the first calibration."""
        rule = self.stop_rule
        if rule is None:
            return {}
        if not isinstance(rule, BudgetThresholds):
            return {"delta": float(rule.delta), "lambda": float(rule.lam)}
        return {"delta": float(rule.delta)} | {f"q_{k}": q for k, q in zip(rule.grid, rule.q, strict=True)}

    def _config(self) -> dict[str, Any]:
        return {
            "grid": list(self.grid),
            "score": None if self.multiplicity in KNOB_RULES else repr(self.score),
            "options": [self.options.statistic, str(self.options.gamma), self.options.risk],
            "delta": "auto" if self.auto else str(self.delta),
            "multiplicity": self.multiplicity,
            "split": self.split,
            "epsilon": str(self.epsilon),
            "seed": self.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Clock, delta and rule.  A calibration that was asked for but not received is asked for again after a restart."""
        rule = self.stop_rule
        return {
            "config": self._config(),
            "calibrated_at": self._calibrated_at,
            "delta": None if self.delta is None else str(self.delta),
            "rule": None if rule is None else [type(rule).__name__, rule.to_json()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; raises ``ValueError`` if it was saved by a policy with other arguments."""
        if state.get("config") != self._config():
            raise ValueError(
                f"state: got the state of {state.get('config')}; need that of {self._config()}; "
                "because a rule calibrated for one is not valid for the other"
            )
        self._calibrated_at = state["calibrated_at"]
        self.delta = None if state["delta"] is None else Fraction(state["delta"])
        self.stop_rule = None
        if state["rule"] is not None:
            self.stop_rule = rule_from_json(*state["rule"])
