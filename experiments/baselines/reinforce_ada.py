"""Reinforce-Ada: sample until the group is good enough (Seq), or as much as the remembered success rate asks for (Est)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes, RolloutPolicy, uniforms

from .common import Memory, at_least, check_config, counts, round_to_sum, within

__all__ = ["ReinforceAdaEst", "ReinforceAdaSeq"]


class ReinforceAdaSeq(RolloutPolicy):
    r"""Rounds of ``per_round`` responses until the exit condition or ``rounds``; then ``n`` of them train.

    Exit: ``balanced``: at least ``n / 2`` successes and ``n / 2`` failures; ``positive_focused``: at least one success.
    Kept: ``n / 2`` successes and ``n / 2`` failures at random, a shortage of one class filled from the other.
    Advantage: ``A = r - p^`` with ``p^`` the success rate over *all* responses drawn; ``log_objective`` divides by ``p^``.

    Parameters
    ----------
    n : int
        Responses kept, even.
    per_round, rounds : int
        Responses per round, most rounds.
    exit : {"balanced", "positive_focused"}
        Exit condition.
    log_objective : bool
        The factor ``1 / p^`` of the paper's third version (objective ``log p``).
    seed : int
        Key of the choice of responses.

    Notes
    -----
    Source: Reinforce-Ada (arXiv 2510.04996), ``RLHFlow/Reinforce-Ada``: rounds of 8, at most 4, ``n`` 4, global baseline, no division by a
    standard deviation.  The exit depends on outcomes, so ``p^`` is biased (upwards under ``positive_focused``); that is the method's, and
    kept.  The rule is meant to spend *more* rollouts per prompt than it trains on.

    Examples
    --------
    >>> import numpy as np
    >>> rule = ReinforceAdaSeq(n=2, per_round=2, rounds=4)
    >>> rule.more(Outcomes(np.arange(2, dtype=np.uint64), np.array([[1, 1], [0, 1]], bool)))
    array([2, 0])
    """

    def __init__(
        self,
        n: int = 4,
        *,
        per_round: int = 8,
        rounds: int = 4,
        exit: Literal["balanced", "positive_focused"] = "balanced",
        log_objective: bool = False,
        seed: int = 0,
    ) -> None:
        self.n = at_least("n", n, 2, "both classes are kept")
        if self.n % 2:
            raise ValueError(f"n: got {n}; need an even number; because half of each class is kept")
        self.per_round = at_least("per_round", per_round, 1, "a round draws something")
        self.rounds = at_least("rounds", rounds, 1, "the first round is always drawn")
        self.k_max = self.per_round * self.rounds
        if self.k_max < self.n:
            raise ValueError(f"rounds: got {rounds} of {per_round}; need {n} responses in all; because that many are kept")
        if exit not in ("balanced", "positive_focused"):
            raise ValueError(f"exit: got {exit!r}; need 'balanced' or 'positive_focused'; because these are the exits of the method")
        self.exit = exit
        self.log_objective = bool(log_objective)
        self.seed = int(seed)

    def __repr__(self) -> str:
        return f"ReinforceAdaSeq({self.n}, per_round={self.per_round}, rounds={self.rounds}, exit={self.exit!r})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.per_round, np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        c, n = counts(outcomes)
        done = (2 * c >= self.n) & (2 * (n - c) >= self.n) if self.exit == "balanced" else c > 0
        return np.where(done, 0, np.clip(self.k_max - n, 0, self.per_round)).astype(np.int64)

    def keep(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        c, n = counts(outcomes)
        half = self.n // 2
        good = np.minimum(c, np.maximum(half, self.n - (n - c)))
        bad = np.minimum(n - c, self.n - good)
        order = np.stack(
            [uniforms(outcomes.prompt_ids, seed=self.seed, step=outcomes.step, stream=f"ada/{j}") for j in range(max(outcomes.width, 1))], 1
        )[:, : outcomes.width]
        kept = np.zeros(outcomes.passes.shape, np.bool_)
        for members, quota in ((outcomes.live & outcomes.passes, good), (outcomes.live & ~outcomes.passes, bad)):
            rank = np.where(members, order, np.inf).argsort(1, kind="stable").argsort(1, kind="stable")
            kept |= members & (rank < quota[:, None])
        return kept

    def advantages(self, outcomes: Outcomes) -> NDArray[np.float64]:
        c, n = counts(outcomes)
        rate = (c / np.maximum(n, 1))[:, None]
        out = np.where(self.keep(outcomes), outcomes.passes - rate, 0.0)
        return np.where(rate > 0, out / np.where(rate > 0, rate, 1.0), 0.0) if self.log_objective else out


class ReinforceAdaEst(RolloutPolicy):
    r"""Budgets from a decayed memory of each prompt's success rate, at a fixed mean.

    After a visit ``N <- decay N + n`` and ``P <- decay P + c``; ``p^ = (P + a) / (N + a + b)``; at the next visit the budget is
    proportional to ``1 / sqrt(p^ + eps)``, within ``[n_min, n_max]``, scaled and rounded so that the batch sums to ``mean_k`` times its
    prompts.  Advantage: ``(r - mean r) / sqrt(mean r + eps)``.

    Parameters
    ----------
    mean_k, n_min, n_max : int
        Mean budget, smallest and largest.
    decay, eps : float
        Forgetting factor in (0, 1], and the guard of both roots.
    prior : (float, float)
        ``(a, b)``.

    Notes
    -----
    Source: the estimation variant of Reinforce-Ada, third version; no code.  Open there and chosen here: ``decay`` .85, Jeffreys prior .5,
    and exact sums by largest remainder.  The version in the C-GRPO comparison divides by ``p^`` instead of its root and does not scale to
    the mean.

    Examples
    --------
    >>> import numpy as np
    >>> rule = ReinforceAdaEst(8)
    >>> rule.first(np.arange(3, dtype=np.uint64), 0)
    array([8, 8, 8])
    """

    def __init__(
        self,
        mean_k: int = 8,
        *,
        n_min: int = 2,
        n_max: int = 32,
        decay: float = 0.85,
        eps: float = 0.01,
        prior: tuple[float, float] = (0.5, 0.5),
    ) -> None:
        self.n_min = at_least("n_min", n_min, 1, "every prompt is sampled")
        self.mean_k = at_least("mean_k", mean_k, self.n_min, "the mean lies above the smallest budget")
        self.k_max = at_least("n_max", n_max, self.mean_k, "the mean lies below the largest budget")
        self.decay = within("decay", decay, 0, 1, "it forgets")
        if not eps > 0:
            raise ValueError(f"eps: got {eps!r}; need a positive number; because it guards a division")
        self.eps = float(eps)
        if min(prior) <= 0:
            raise ValueError(f"prior: got {prior}; need two positive numbers; because they are pseudo-counts of a Beta prior")
        self.prior = (float(prior[0]), float(prior[1]))
        self._memory = Memory(lambda: [0.0, 0.0])  # N, P

    def __repr__(self) -> str:
        return f"ReinforceAdaEst({self.mean_k}, n_min={self.n_min}, n_max={self.k_max}, decay={self.decay}, eps={self.eps})"

    def rate(self, prompt_ids: NDArray[np.uint64]) -> NDArray[np.float64]:
        """``(n,)`` the remembered success rates ``p^``."""
        rows = np.array([self._memory[i] for i in prompt_ids]).reshape(-1, 2)
        a, b = self.prior
        return np.asarray((rows[:, 1] + a) / (rows[:, 0] + a + b))

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        wish = 1 / np.sqrt(self.rate(prompt_ids) + self.eps)
        return round_to_sum(wish, self.mean_k * len(prompt_ids), self.n_min, self.k_max)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return np.zeros(outcomes.n, np.int64)

    def advantages(self, outcomes: Outcomes) -> NDArray[np.float64]:
        c, n = counts(outcomes)
        mean = (c / np.maximum(n, 1))[:, None]
        return np.where(outcomes.live, (outcomes.passes - mean) / np.sqrt(mean + self.eps), 0.0)

    def update(self, outcomes: Outcomes) -> None:
        for i, c, n in zip(outcomes.prompt_ids, *(x.tolist() for x in counts(outcomes)), strict=True):
            if n:
                total, good = self._memory[i]
                self._memory[i] = [self.decay * total + n, self.decay * good + c]

    def state_dict(self) -> dict[str, Any]:
        return {"policy": repr(self), "memory": self._memory.dump()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_config(state, self)
        self._memory.load(state["memory"])
