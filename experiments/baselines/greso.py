"""GRESO: skip a prompt, before any rollout, the more surely the longer it has been uninformative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes, RolloutPolicy, uniforms

from .common import Memory, at_least, check_config, counts, within

__all__ = ["GRESO"]


class GRESO(RolloutPolicy):
    r"""Groups of ``n``, except that a prompt whose last ``z`` visits were all-correct (or all-wrong) is skipped.

    The probability of a skip is ``1 - max(p^z, floor)``, with ``p = p_easy`` if the last visit was all-correct and ``p_hard`` if it was
    all-wrong; with ``z = 0`` a prompt is never skipped.  After a step in which a prompt was visited again, each ``p_c`` moves by ``rate``:
    down if the share of sampled groups that were uninformative in the way of ``c`` is at least its target, else up, within ``bounds``.

    Parameters
    ----------
    n : int
        Group size.
    target, easy_share : float
        Tolerated share of uninformative groups, and the part of it that may be easy.
    p, rate, floor, bounds : float
        Start of ``p_easy`` and ``p_hard``, step of their adaptation, least probability of sampling, range.
    easy, hard : float
        A visit is all-correct if its mean success is at least ``easy``, all-wrong if it is at most ``hard``.
    seed : int
        Key of the skipping stream.

    Notes
    -----
    Source: GRESO (arXiv 2506.02177), ``Infini-AI-Lab/GRESO``: targets .25 (a third easy), ``p`` .5, step .01, bounds [.05, .95],
    thresholds .98 and .11 (its format reward is .1).  It pays only from the second epoch on: until a prompt comes back nothing is skipped
    and nothing adapts, here by counting visits instead of epochs.  Its adaptive batch size belongs to the caller, as for
    :class:`DynamicSampling`.  The version in the C-GRPO comparison is another rule: there a skipped prompt never comes back, and its
    statistics hash the ids anew.  Here ``p_easy``, ``p_hard`` and the profile are state.
    """

    def __init__(
        self,
        n: int = 8,
        *,
        target: float = 0.25,
        easy_share: float = 1 / 3,
        p: float = 0.5,
        rate: float = 0.01,
        floor: float = 0.01,
        bounds: tuple[float, float] = (0.05, 0.95),
        easy: float = 0.98,
        hard: float = 0.11,
        seed: int = 0,
    ) -> None:
        self.k_max = at_least("n", n, 2, "a group of one response is never informative")
        target = within("target", target, 0, 1, "it is a share of groups")
        share = within("easy_share", easy_share, 0, 1, "it is a part of the target")
        self.targets = (target * share, target * (1 - share))
        self.rate = within("rate", rate, 0, 1, "it moves a probability")
        self.floor = within("floor", floor, 0, 1, "it is a probability")
        low, high = bounds
        self.bounds = (within("bounds", low, 0, high, "they are ascending probabilities"), within("bounds", high, low, 1, "of probability"))
        self.hard = within("hard", hard, 0, 1, "it is a mean success")
        self.easy = within("easy", easy, self.hard, 1, "all-correct lies above all-wrong")
        self.seed = int(seed)
        self.p = [within("p", p, *self.bounds, "it adapts within the bounds")] * 2
        self._profile = Memory(lambda: [0, 0])  # kind (+1 all-correct, -1 all-wrong, 0 informative), consecutive visits z
        self._skipped = 0.0

    def __repr__(self) -> str:
        return f"GRESO({self.k_max}, targets={self.targets}, rate={self.rate}, floor={self.floor}, bounds={self.bounds}, seed={self.seed})"

    def skip_probability(self, prompt_ids: NDArray[np.uint64]) -> NDArray[np.float64]:
        """``(n,)`` probability that each prompt is skipped at its next visit."""
        rows = [self._profile[i] for i in prompt_ids]
        kind = np.array([r[0] for r in rows], np.int64)
        z = np.array([r[1] for r in rows], np.int64)
        p = np.where(kind > 0, self.p[0], self.p[1])
        return np.where(z > 0, 1 - np.maximum(p**z, self.floor), 0.0)

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        u = uniforms(prompt_ids, seed=self.seed, step=step, stream="greso")
        return np.where(u < self.skip_probability(prompt_ids), 0, self.k_max).astype(np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return np.zeros(outcomes.n, np.int64)

    def update(self, outcomes: Outcomes) -> None:
        c, n = counts(outcomes)
        self._skipped = float((n == 0).mean()) if outcomes.n else 0.0
        sampled = np.flatnonzero(n > 0)
        if not sampled.size:
            return
        rate = c[sampled] / n[sampled]
        kinds = np.where(rate >= self.easy, 1, np.where(rate <= self.hard, -1, 0))
        again = any(i in self._profile for i in outcomes.prompt_ids[sampled])
        for row, kind in zip(outcomes.prompt_ids[sampled], kinds.tolist(), strict=True):
            last, z = self._profile[row]
            self._profile[row] = [kind, (z + 1 if kind == last else 1) if kind else 0]
        if again:
            for i, kind in enumerate((1, -1)):
                move = -self.rate if (kinds == kind).mean() >= self.targets[i] else self.rate
                self.p[i] = float(np.clip(self.p[i] + move, *self.bounds))

    def metrics(self) -> Mapping[str, float]:
        """``p_easy``, ``p_hard``, and the share ``skipped`` in the last step."""
        return {"p_easy": self.p[0], "p_hard": self.p[1], "skipped": self._skipped}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": repr(self), "p": list(self.p), "profile": self._profile.dump(), "skipped": self._skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_config(state, self)
        self.p = [float(x) for x in state["p"]]
        self._profile.load(state["profile"])
        self._skipped = float(state["skipped"])
