"""Simulated prompts and a simulated model: how hard the prompts are, what wrong answers look like, how the policy moves.

Every number is keyed by (seed, step, prompt id, response index): a prompt gets the same difficulty and the same responses whatever
batch it is drawn in, and a table of 8 responses is the left part of a table of 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from conformal_core.keys import mix64, uniforms
from conformal_core.outcomes import Outcomes

#: Code of the gold answer in every table; wrong answers are 1, 2, ...
GOLD = 0
#: Largest number of wrong answers, and of responses per prompt.
MOST = 65536


@dataclass(frozen=True)
class WrongAnswers:
    """Law of a wrong answer: probability of the r-th most frequent, the same for every prompt (codes are local to a row).

    ``kind`` is ``"uniform"`` over ``answers``, ``"zipf"`` (proportional to ``r ** -exponent``), or ``"dominant"`` (``share`` for the
    first, the rest uniform).
    """

    kind: str = "zipf"
    answers: int = 20
    exponent: float = 1.0
    share: float = 0.8

    def __post_init__(self) -> None:
        if self.kind not in ("uniform", "zipf", "dominant"):
            raise ValueError(f"wrong: got {self.kind!r}; need 'uniform', 'zipf' or 'dominant'; because those laws are simulated")
        if not 1 <= self.answers <= MOST or not 0 <= self.exponent < np.inf or not 0 <= self.share <= 1:
            raise ValueError(
                f"wrong: got {self.answers} answers, exponent {self.exponent}, share {self.share}; need 1 to {MOST}, 0 or more and finite, "
                "and a share in [0, 1]; because they describe a law that is held as a table"
            )

    @property
    def probabilities(self) -> np.ndarray:
        """``(answers,)``, descending up to the dominant share."""
        if self.kind == "dominant" and self.answers > 1:
            return np.append(self.share, np.full(self.answers - 1, (1 - self.share) / (self.answers - 1)))
        weights = np.arange(1, self.answers + 1) ** -(self.exponent if self.kind == "zipf" else 0.0)
        return weights / weights.sum()


@dataclass(frozen=True)
class Population:
    """Prompts with pass rate ``p ~ Beta(a, b)`` at step 0, and a model that moves.

    Parameters
    ----------
    a, b : float
        Law of the pass rate.
    wrong : WrongAnswers
        Law of wrong answers.
    unsolvable : float
        Share of prompts with pass rate 0 at every step, whose answer is one and the same wrong one with probability ``consensus``: the
        case in which agreement says nothing about being right.
    consensus : float
        That probability; the rest of the mass follows ``wrong``.
    drift : float
        Change of ``logit p`` per optimizer step, whatever is trained on.
    learning : float
        Change of ``logit p`` per unit of signal; see :class:`Model`.
    k_max : int
        Responses per prompt.
    seed : int
        Key of difficulties and responses.
    """

    a: float = 1.14
    b: float = 0.86
    wrong: WrongAnswers = field(default_factory=WrongAnswers)
    unsolvable: float = 0.0
    consensus: float = 1.0
    drift: float = 0.0
    learning: float = 0.0
    k_max: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.a < np.inf and 0 < self.b < np.inf):
            raise ValueError(f"a, b: got {self.a}, {self.b}; need both above 0 and finite; because pass rates follow Beta(a, b)")
        for name in ("unsolvable", "consensus"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: got {getattr(self, name)}; need a number in [0, 1]; because it is a probability")
        if not (np.isfinite(self.drift) and np.isfinite(self.learning)):
            raise ValueError(f"drift, learning: got {self.drift}, {self.learning}; need finite numbers; because they shift logits")
        if not 1 <= self.k_max <= MOST:
            raise ValueError(f"k_max: got {self.k_max}; need 1 to {MOST}; because a group holds a response and a table all of them")

    def pass_rates(self, ids: np.ndarray, skill: float = 0.0) -> np.ndarray:
        """``(n,)`` probability that a response of each prompt is right, ``sigmoid(logit p_0 + skill)``; 0 for the unsolvable."""
        from scipy.special import betaincinv, expit, logit

        rates = betaincinv(self.a, self.b, uniforms(ids, seed=self.seed, stream="difficulty"))
        moved = rates if skill == 0 else expit(logit(rates) + skill)
        return np.where(self.hopeless(ids), 0.0, moved)

    def hopeless(self, ids: np.ndarray) -> np.ndarray:
        """``(n,)`` bool: the unsolvable prompts."""
        return uniforms(ids, seed=self.seed, stream="unsolvable") < self.unsolvable

    def table(self, ids: np.ndarray, step: int = 0, skill: float = 0.0) -> Outcomes:
        """``k_max`` responses of each prompt, as sampled at ``step`` by a model of this ``skill``."""
        rates, hopeless = self.pass_rates(ids, skill), self.hopeless(ids)
        law = np.cumsum(self.wrong.probabilities)
        codes = np.empty((len(ids), self.k_max), np.int64)
        for j in range(self.k_max):
            u = uniforms(ids, seed=self.seed, step=step, stream=f"response/{j}")
            right = u < rates
            rest = np.where(right, 0.0, (u - rates) / np.maximum(1 - rates, 1e-300))
            agree = hopeless & (rest < self.consensus)
            rest = np.where(hopeless & ~agree, (rest - self.consensus) / max(1 - self.consensus, 1e-300), rest)
            wrong = np.minimum(np.searchsorted(law, rest, side="right"), self.wrong.answers - 1) + 1
            codes[:, j] = np.where(right, GOLD, np.where(agree, 1, wrong))
        return Outcomes(ids, codes == GOLD, codes=codes, gold=np.full(len(ids), GOLD, np.int64), step=step)


class Model:
    """A population as it is trained on: one number, ``skill``, moves the logits of all its prompts.

    After each step ``skill += drift + learning * signal``, with ``signal = sum k phat (1 - phat) / (n k_max / 4)`` over the groups the
    policy drew: 1 if every prompt had ``k_max`` responses, half of them right, and 0 if no group has both verdicts.
    """

    def __init__(self, population: Population) -> None:
        self.population, self.skill = population, 0.0

    def tables(self, prompts: int, steps: int, pool: int | None = None) -> Iterator[Outcomes]:
        """One table of ``prompts`` prompts per step; the next one is sampled after :meth:`observe` has been told of the last.

        Prompts are fresh at every step, or walk through a ``pool`` of that many again and again (epochs).
        """
        if pool is not None and pool < prompts:
            raise ValueError(f"pool: got {pool}; need at least {prompts}; because a step holds that many different prompts")
        for step in range(steps):
            index = np.arange(step * prompts, (step + 1) * prompts, dtype=np.uint64)
            yield self.population.table(mix64(index if pool is None else index % np.uint64(pool)), step, self.skill)

    def calibration(self, n: int, step: int) -> Outcomes:
        """``n`` fresh prompts, never used for training, rolled out by the model as it is."""
        first = (step + 1) << 40  # training prompts are numbered from 0, fewer than 2**40
        return self.population.table(mix64(np.arange(first, first + n, dtype=np.uint64)), step, self.skill)

    def observe(self, outcomes: Outcomes) -> None:
        """Learn from the final outcomes of one step."""
        accepted, drawn = outcomes.passes.sum(axis=1), outcomes.drawn
        mass = (accepted * (drawn - accepted) / np.maximum(drawn, 1)).sum()
        signal = float(mass) / (outcomes.n * self.population.k_max / 4)
        self.skill += self.population.drift + self.population.learning * signal
