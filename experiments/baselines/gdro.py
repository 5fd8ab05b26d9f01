"""GDRO: bins of difficulty; weights (prompts) or budgets (rollouts) move towards the bins that do worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes, RolloutPolicy

from .common import Memory, at_least, check_config, counts, grpo_advantages, round_to_sum, within

__all__ = ["Bins", "PromptGDRO", "RolloutGDRO", "SquareRootBudget"]


class Bins:
    """Difficulty bins of prompts by the mean of their last ``window`` solved-at-all indicators, with hysteresis.

    A prompt never seen has mean 0.  Bin ``b`` holds means from ``edges[b - 1]`` up to ``edges[b]``; a prompt leaves its bin only when its
    mean lies more than ``hysteresis`` beyond the edge.
    """

    def __init__(self, edges: Sequence[float], window: int, hysteresis: float) -> None:
        self.edges = tuple(float(e) for e in edges)
        if any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)) or not all(0 < e < 1 for e in self.edges):
            raise ValueError(f"edges: got {list(edges)}; need ascending numbers in (0, 1); because they cut a success rate into bins")
        self.window = at_least("window", window, 0, "it counts visits (0: all)")
        self.hysteresis = within("hysteresis", hysteresis, 0, 1, "it is a distance between rates")
        self.memory = Memory(lambda: [0, 0, []])  # bin, visits, the last indicators (or their sum, if window = 0)

    def __len__(self) -> int:
        return len(self.edges) + 1

    def of(self, prompt_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """``(n,)`` bins."""
        return np.array([self.memory[i][0] for i in prompt_ids], np.int64)

    def see(self, outcomes: Outcomes) -> None:
        """Add one indicator (any success) per sampled prompt and move prompts whose mean left their bin."""
        c, n = counts(outcomes)
        for i, solved, drawn in zip(outcomes.prompt_ids, (c > 0).tolist(), n.tolist(), strict=True):
            if not drawn:
                continue
            here, visits, seen = self.memory[i]
            visits += 1
            seen = [*seen, int(solved)][-self.window :] if self.window else [sum(seen) + int(solved)]
            mean = sum(seen) / (len(seen) if self.window else visits)
            there = int(np.searchsorted(self.edges, mean, side="right"))
            if there != here:
                edge = self.edges[here] if there > here else self.edges[here - 1]
                far = mean > edge + self.hysteresis if there > here else mean < edge - self.hysteresis
                there = there if far or visits == 1 else here
            self.memory[i] = [there, visits, seen]


class PromptGDRO(RolloutPolicy):
    r"""Groups of ``n``; advantages of bin ``b`` are multiplied by ``w_b = (1 - gamma) B softmax_b(eta S_b) + gamma``.

    ``S_b`` is an exponential average (rate ``beta``, started at its first value) of the failure rate of bin ``b``; ``w`` is capped at
    ``w_max``, and ``B`` counts the bins in the batch, so that the weights of equal bins are 1.

    Notes
    -----
    Source: GDRO (arXiv 2601.19280), ``kishanpb/verl-gdro``, with the values of its scripts (eta .65, gamma .01, beta .12, w_max 15, clip
    5).  The bins' loss there is the policy-gradient loss, which is zero in expectation for a centred advantage on fresh rollouts; the
    failure rate, the risk whose minimax the paper states, is used instead.  The code's weights sum to one, so the cap never binds and the
    gradient shrinks with the number of bins; here they average to one.
    """

    def __init__(
        self,
        n: int = 8,
        *,
        edges: Sequence[float] = (0.4, 0.75),
        window: int = 50,
        hysteresis: float = 0.03,
        eta: float = 0.65,
        gamma: float = 0.01,
        beta: float = 0.12,
        w_max: float = 15.0,
        clip: float = 5.0,
    ) -> None:
        self.k_max = at_least("n", n, 2, "a group of one response has no advantage")
        self.bins = Bins(edges, window, hysteresis)
        self.eta = within("eta", eta, 0, float("inf"), "it is a step size")
        self.gamma = within("gamma", gamma, 0, 1, "it is a share")
        self.beta = within("beta", beta, 0, 1, "it is a rate of averaging")
        self.w_max = within("w_max", w_max, 1, float("inf"), "equal bins weigh 1")
        self.clip = within("clip", clip, 0, float("inf"), "it bounds a size")
        self._scores: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"PromptGDRO({self.k_max}, edges={self.bins.edges}, eta={self.eta}, gamma={self.gamma}, beta={self.beta})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.k_max, np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return np.zeros(outcomes.n, np.int64)

    def weights(self, prompt_ids: NDArray[np.uint64]) -> NDArray[np.float64]:
        """``(n,)`` factors of the advantages."""
        bins = self.bins.of(prompt_ids)
        present = np.unique(bins)
        scores = np.array([self._scores.get(int(b), 0.0) for b in present])
        soft = np.exp(self.eta * (scores - scores.max(initial=0.0)))
        w = (1 - self.gamma) * len(present) * soft / max(soft.sum(), 1e-300) + self.gamma
        return np.minimum(w, self.w_max)[np.searchsorted(present, bins)]

    def advantages(self, outcomes: Outcomes) -> NDArray[np.float64]:
        weighted = self.weights(outcomes.prompt_ids)[:, None] * grpo_advantages(outcomes, outcomes.live)
        return np.clip(weighted, -self.clip, self.clip)

    def update(self, outcomes: Outcomes) -> None:
        bins, (c, n) = self.bins.of(outcomes.prompt_ids), counts(outcomes)
        for b in np.unique(bins[n > 0]).tolist():
            here = (bins == b) & (n > 0)
            loss = float(1 - c[here].sum() / n[here].sum())
            old = self._scores.get(b)
            self._scores[b] = loss if old is None else (1 - self.beta) * old + self.beta * loss
        self.bins.see(outcomes)

    def metrics(self) -> Mapping[str, float]:
        """``score/b`` of every bin seen."""
        return {f"score/{b}": s for b, s in sorted(self._scores.items())}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": repr(self), "bins": self.bins.memory.dump(), "scores": {str(b): s for b, s in self._scores.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_config(state, self)
        self.bins.memory.load(state["bins"])
        self._scores = {int(b): float(s) for b, s in state["scores"].items()}


class RolloutGDRO(RolloutPolicy):
    r"""One arm ``n_b`` of ``{n_min, ..., n_max}`` per bin, jointly the most probable ones whose total is ``mean_k`` times the prompts.

    Bin ``b`` holds probabilities ``p_b = (1 - gamma) softmax_b(eta score_b) + gamma / arms``; a dynamic programme minimises
    ``- sum_b log p_b(n_b)`` among arms with ``sum_b count_b n_b = budget`` (the nearest total, if none hits it).  After the step the chosen
    arm's score grows by ``loss_b - mu (n_b - mean_k)``, and ``mu`` by ``rate (realised mean - mean_k)``.

    Notes
    -----
    Source: as :class:`PromptGDRO` (``verl/utils/budget_allocation.py``); the loss is the bin's failure rate for the reason given there.
    The mean budget is the caller's choice; the version in the C-GRPO comparison fixes it at 4 and does not meet it.
    """

    def __init__(
        self,
        mean_k: int = 4,
        *,
        n_min: int = 2,
        n_max: int | None = None,
        edges: Sequence[float] = (0.4, 0.75),
        window: int = 50,
        hysteresis: float = 0.03,
        eta: float = 0.65,
        gamma: float = 0.01,
        rate: float = 0.05,
    ) -> None:
        self.n_min = at_least("n_min", n_min, 1, "every prompt is sampled")
        self.mean_k = at_least("mean_k", mean_k, self.n_min, "the mean lies among the arms")
        self.k_max = at_least("n_max", 3 * self.mean_k if n_max is None else n_max, self.mean_k, "the mean lies among the arms")
        self.bins = Bins(edges, window, hysteresis)
        self.eta = within("eta", eta, 0, float("inf"), "it is a step size")
        self.gamma = within("gamma", gamma, 0, 1, "it is a share")
        self.rate = within("rate", rate, 0, float("inf"), "it is a step size")
        self._scores: dict[int, list[float]] = {}
        self.mu = 0.0

    def __repr__(self) -> str:
        return f"RolloutGDRO({self.mean_k}, arms=[{self.n_min}, {self.k_max}], edges={self.bins.edges}, eta={self.eta}, gamma={self.gamma})"

    def log_probabilities(self, b: int) -> NDArray[np.float64]:
        """``(arms,)`` log-probabilities of the arms of bin ``b``."""
        arms = self.k_max - self.n_min + 1
        scores = np.array(self._scores.get(b, [0.0] * arms))
        soft = np.exp(self.eta * (scores - scores.max()))
        return np.asarray(np.log((1 - self.gamma) * soft / soft.sum() + self.gamma / arms))

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        bins = self.bins.of(prompt_ids)
        arms = self.choose(Counter(bins.tolist()))
        return np.array([arms[b] for b in bins.tolist()], np.int64)

    def choose(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """``{bin: arm}`` for ``{bin: prompts}``; among equally good choices the smaller arms in ascending bins."""
        best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        order = sorted(sizes)
        for b in order:
            cost = (-self.log_probabilities(b)).tolist()
            grown: dict[int, tuple[float, tuple[int, ...]]] = {}
            for total, (value, chosen) in best.items():
                for arm, c in enumerate(cost, self.n_min):
                    candidate = (value + c, (*chosen, arm))
                    key = total + sizes[b] * arm
                    if key not in grown or candidate < grown[key]:
                        grown[key] = candidate
            best = grown
        budget = self.mean_k * sum(sizes.values())
        nearest = min(abs(t - budget) for t in best)
        value, chosen = min(best[t] for t in best if abs(t - budget) == nearest)
        return dict(zip(order, chosen, strict=True))

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return np.zeros(outcomes.n, np.int64)

    def update(self, outcomes: Outcomes) -> None:
        bins, (c, n) = self.bins.of(outcomes.prompt_ids), counts(outcomes)
        for b in np.unique(bins[n > 0]).tolist():
            here = (bins == b) & (n > 0)
            arm = int(n[here][0])
            loss = float(1 - c[here].sum() / n[here].sum())
            scores = self._scores.setdefault(b, [0.0] * (self.k_max - self.n_min + 1))
            scores[arm - self.n_min] += loss - self.mu * (arm - self.mean_k)
        if (n > 0).any():
            self.mu += self.rate * (float(n[n > 0].mean()) - self.mean_k)
        self.bins.see(outcomes)

    def metrics(self) -> Mapping[str, float]:
        """``mu``, the price of a rollout."""
        return {"mu": self.mu}

    def state_dict(self) -> dict[str, Any]:
        scores = {str(b): s for b, s in self._scores.items()}
        return {"policy": repr(self), "bins": self.bins.memory.dump(), "scores": scores, "mu": self.mu}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_config(state, self)
        self.bins.memory.load(state["bins"])
        self._scores = {int(b): list(s) for b, s in state["scores"].items()}
        self.mu = float(state["mu"])


class SquareRootBudget(RolloutPolicy):
    r"""Budgets ``mean_k sqrt(v_x) / mean_j sqrt(v_j)``, ``v_x = p^ (1 - p^)`` remembered per prompt, rounded to the exact sum.

    Notes
    -----
    Source: the square-root (Neyman) law of GDRO's theory, ``n_b = n sqrt(v_b) / sum_j q_j sqrt(v_j)``, per prompt instead of per bin, with
    the posterior mean ``p^ = (c + 1) / (n + 2)`` over all visits.  The C-GRPO comparison divides by the wrong sum (of the bins' shares,
    which is one), so its mean is not the one asked for.

    Examples
    --------
    >>> import numpy as np
    >>> SquareRootBudget(6).first(np.arange(4, dtype=np.uint64), 0)
    array([6, 6, 6, 6])
    """

    def __init__(self, mean_k: int = 8, *, n_min: int = 2, n_max: int | None = None) -> None:
        self.n_min = at_least("n_min", n_min, 1, "every prompt is sampled")
        self.mean_k = at_least("mean_k", mean_k, self.n_min, "the mean lies above the smallest budget")
        self.k_max = at_least("n_max", 3 * self.mean_k if n_max is None else n_max, self.mean_k, "the mean lies below the largest budget")
        self._memory = Memory(lambda: [0, 0])  # successes, responses

    def __repr__(self) -> str:
        return f"SquareRootBudget({self.mean_k}, n_min={self.n_min}, n_max={self.k_max})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        rows = np.array([self._memory[i] for i in prompt_ids], np.float64).reshape(-1, 2)
        p = (rows[:, 0] + 1) / (rows[:, 1] + 2)
        return round_to_sum(np.sqrt(p * (1 - p)), self.mean_k * len(prompt_ids), self.n_min, self.k_max)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return np.zeros(outcomes.n, np.int64)

    def update(self, outcomes: Outcomes) -> None:
        for i, c, n in zip(outcomes.prompt_ids, *(x.tolist() for x in counts(outcomes)), strict=True):
            if n:
                good, total = self._memory[i]
                self._memory[i] = [good + c, total + n]

    def state_dict(self) -> dict[str, Any]:
        return {"policy": repr(self), "memory": self._memory.dump()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_config(state, self)
        self._memory.load(state["memory"])
