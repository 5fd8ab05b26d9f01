"""Means over prompts with intervals that hold at every sample size, and the paper's bootstrap."""

import json
import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from ._checks import check_count, check_shape
from .sampling import all_at_k, best_of_k, pass_at_k, worst_of_k
from .thresholds import Level, _level

Statistic = Literal["pass", "all", "best", "worst"]
_STATISTICS = {"pass": pass_at_k, "all": all_at_k, "best": best_of_k, "worst": worst_of_k}


def mean_interval(values: Any, delta: Level = "1/20") -> tuple[float, float]:
    """Two-sided interval for the mean of a law on [0, 1] from independent draws: {p : n kl(mean, p) <= log(2 / delta)}.

    kl is that of Bernoulli laws. Guarantee: covers the mean with probability >= 1 - delta at every n, for every law on [0, 1]
    (Chernoff bound and convexity); never empty, never of width 0.

    Args: values: (n,) in [0, 1]. delta: miscoverage in (0, 1), read exactly.
    Raises: ValueError for no values, values outside [0, 1] or NaN, delta outside (0, 1). Source: Hoeffding 1963, Theorem 1.

    >>> [round(x, 4) for x in mean_interval([0.0] * 10)]
    [0.0, 0.3085]
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    if x.size == 0 or not bool(((x >= 0.0) & (x <= 1.0)).all()):
        raise ValueError(f"values: got {x.size} values; need at least 1, all in [0, 1]; because the bound is for such laws")
    mean, budget = float(x.mean()), math.log(2.0 / float(_level("delta", delta, open_interval=True))) / x.size
    return mean - _reach(mean, mean, -1.0, budget), mean + _reach(mean, 1.0 - mean, 1.0, budget)


def _kl(m: float, p: float) -> float:
    def term(a: float, b: float) -> float:
        return 0.0 if a <= 0.0 else math.inf if b <= 0.0 else a * math.log(a / b)

    return term(m, p) + term(1.0 - m, 1.0 - p)


def _reach(mean: float, room: float, sign: float, budget: float) -> float:
    """Largest distance from the mean, on one side, with kl within the budget; rounded outwards."""
    inside, outside = 0.0, room
    if _kl(mean, mean + sign * room) <= budget:
        return room
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if _kl(mean, mean + sign * middle) <= budget else (inside, middle)
    return outside


@dataclass(frozen=True)
class SamplingEstimate:
    """A sampling statistic averaged over prompts.

    Attributes:
        statistic, k: which, of how many responses.
        value: the mean over prompts; low, high: its interval.
        n: number of prompts.
        responses: smallest number of responses sampled for a prompt.
        delta: miscoverage of the interval, exact.
        method, guarantee: in words.
    """

    statistic: str
    k: int
    value: float
    low: float
    high: float
    n: int
    responses: int
    delta: Fraction
    method: str
    guarantee: str

    def to_json(self) -> str:
        """All fields as a JSON object, delta as a fraction; `from_json` reads it back."""
        return json.dumps({**asdict(self), "delta": str(self.delta)})

    @classmethod
    def from_json(cls, text: str) -> "SamplingEstimate":
        """The estimate that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "delta": Fraction(fields["delta"])})


def sampling_estimate(c: Any, n: Any, k: int, statistic: Statistic = "pass", *, delta: Level = "1/20") -> SamplingEstimate:
    """Mean over prompts of pass@k, all@k, best-of-k or worst-of-k, with an interval over the draw of prompts and responses.

    Guarantee: the interval covers the expectation of the statistic with probability >= 1 - delta if prompts are independent draws; for
    "pass" and "all" that is the policy's own pass@k and all@k, for "best" and "worst" the with-replacement statistic at this n.

    Args: c: (P,) correct counts. n: responses sampled, integer or (P,). k: at least 1, for "pass" and "all" at most n.
    Raises: ValueError for an unknown statistic, no prompts, counts or k out of range, delta outside (0, 1).
    Source: CARM, Appendix G; arXiv 2107.03374; `mean_interval`.

    >>> e = sampling_estimate(np.array([2, 4, 0]), 4, 2)
    >>> round(e.value, 4), round(e.low, 4), round(e.high, 4)
    (0.6111, 0.0462, 0.9923)
    """
    if statistic not in _STATISTICS:
        raise ValueError(f"statistic: got {statistic!r}; need one of {', '.join(_STATISTICS)}; because each answers another question")
    share = _level("delta", delta, open_interval=True)
    correct, drawn = _prompts(c, n)
    values = _STATISTICS[statistic](correct, drawn, k)
    low, high = mean_interval(values, share)
    guarantee = "covers the expectation over prompts and responses with probability >= 1 - delta if prompts are independent draws"
    method = "Chernoff-Hoeffding interval of the mean over prompts"
    return SamplingEstimate(
        statistic, int(k), float(np.mean(values)), low, high, values.size, int(drawn.min()), share, method, guarantee
    )  # fmt: skip


def _prompts(c: Any, n: Any) -> tuple[Any, Any]:
    correct, drawn = np.asarray(c), np.asarray(n)
    if correct.ndim != 1 or correct.size == 0:
        raise ValueError(f"c: got shape {correct.shape}; need (P,) with P >= 1; because the mean is over prompts")
    return correct, check_shape("n", drawn, correct.shape, "each prompt has one number of responses") if drawn.ndim else drawn


@dataclass(frozen=True)
class BestWorst:
    """Bootstrap of best-of-k and worst-of-k over given responses (not over prompts).

    Attributes:
        k, replicates, delta: what was asked for.
        best, worst: means over replicates of the mean over prompts.
        best_interval, worst_interval: percentiles delta/2 and 1 - delta/2 of the replicates.
    """

    k: int
    replicates: int
    delta: Fraction
    best: float
    worst: float
    best_interval: tuple[float, float]
    worst_interval: tuple[float, float]


def bootstrap_best_worst(c: Any, n: Any, k: int, *, replicates: int = 1000, delta: Level = "1/20", seed: int = 0) -> BestWorst:
    """Resample k of each prompt's n responses with replacement, take best and worst, average over prompts; repeat.

    A resample of k has Binomial(k, c/n) correct ones, so that is what is drawn. The means estimate `best_of_k` and `worst_of_k`
    averaged over prompts (Eqs. 73, 74), which need no simulation; the percentiles show what the draw of responses alone moves.

    Args: c: (P,) correct counts. n: integer or (P,). k, replicates: at least 1. seed: of ``numpy.random.default_rng``.
    Raises: ValueError for no prompts, counts, k or replicates out of range, delta outside (0, 1). Source: CARM, Appendix G.

    >>> b = bootstrap_best_worst(np.array([0, 16]), 16, 4, replicates=10)
    >>> b.best, b.worst, b.best_interval
    (0.5, 0.5, (0.5, 0.5))
    """
    correct, drawn = _prompts(c, n)
    replicates = check_count("replicates", replicates, "their mean is reported")
    share = _level("delta", delta, open_interval=True)
    worst_of_k(correct, drawn, k)
    hits = np.random.default_rng(seed).binomial(int(k), correct / drawn, size=(replicates, correct.size))
    means = [(hits >= 1).mean(axis=1), (hits == k).mean(axis=1)]
    tails = [float(share) / 2, 1.0 - float(share) / 2]
    (b_low, b_high), (w_low, w_high) = (np.quantile(m, tails) for m in means)
    best, worst = (float(m.mean()) for m in means)
    return BestWorst(int(k), replicates, share, best, worst, (float(b_low), float(b_high)), (float(w_low), float(w_high)))
