"""How far apart are two engines that hold the same weights? The floor below which no mask threshold makes sense."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ._checks import check_number
from ._namespace import host
from .logratio import log_ratio
from .scores import response_scores
from .sweep import cancellation_share
from .thresholds import _ratio_at_least

PAPER_TAUS = (1.02, 1.025, 1.03, 1.04)


@dataclass(frozen=True)
class NoiseFloor:
    """Log-ratios of one set of weights in two engines, per response and per token. All in nats unless said.

    Attributes:
        n, tokens: responses with a live token and finite log-ratios, and their tokens.
        nonfinite: responses left out for a log-ratio that is not finite.
        mean_d, median_d, p95_d, max_d: of the CARM scores.
        bias: mean log-ratio of a token; not 0 means one engine is systematically above the other.
        sigma: standard deviation of a token's log-ratio around the bias.
        gaussian_d: the CARM score that unbiased normal noise of this sigma has at every length, sigma sqrt(2 / pi).
        cancelled: mean share of the absolute mass that a signed mean cancels.
        reject_rates: (tau, share of these on-policy responses that CARM rejects at tau).
        tau_floor: the smallest ratio-domain tau that rejects none of them.
        guarantee: in words.
    """

    n: int
    tokens: int
    nonfinite: int
    mean_d: float
    median_d: float
    p95_d: float
    max_d: float
    bias: float
    sigma: float
    gaussian_d: float
    cancelled: float
    reject_rates: tuple[tuple[float, float], ...]
    tau_floor: float
    guarantee: str

    def to_json(self) -> str:
        """All fields as a JSON object; `from_json` reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "NoiseFloor":
        """The report that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "reject_rates": tuple(tuple(pair) for pair in fields["reject_rates"])})


def noise_floor(trainer: Any, engine: Any, token_mask: Any, *, taus: Sequence[float] = PAPER_TAUS) -> NoiseFloor:
    """Measure an engine pair: log-probabilities of the same tokens under the same weights, once by the trainer, once by the engine.

    Independent normal noise of standard deviation sigma alone gives d = sigma sqrt(2/pi) at every length, so sigma = 0.0248 exhausts
    tau = 1.02, while a signed mean shrinks as T^(-1/2) and shows nothing. Describes the given responses; a threshold that holds for new
    ones comes from `calibrated_tau` on the same scores.

    Args: trainer, engine, token_mask: (B, T). taus: ratio-domain thresholds for `reject_rates`.
    Raises: ValueError for shapes that differ, tau < 1, or no response to measure; TypeError for mixed array types.
    Source: this project; CARM, Section 3.3.

    >>> floor = noise_floor(np.array([[-1.0, -2.0]]), np.array([[-1.01, -1.97]]), np.ones((1, 2)))
    >>> floor.n, round(floor.mean_d, 6), round(floor.bias, 6), floor.reject_rates[0]
    (1, 0.02, -0.01, (1.02, 1.0))
    """
    for tau in taus:
        check_number("taus", tau, lambda x: x >= 1.0, ">= 1", "they are ratio-domain thresholds")
    ratio = log_ratio(trainer, engine, token_mask)
    stats = response_scores(ratio.z, ratio.live)
    bad = host(ratio.nonfinite)
    counted = ~host(ratio.empty) & ~bad
    if not bool(counted.any()):
        raise ValueError("trainer, engine: got no finite response; need at least 1; because a floor of nothing is undefined")
    d, g, k2 = (np.asarray(host(x), dtype=np.float64)[counted] for x in (stats.d, stats.g, stats.mean_k2))
    length = host(stats.length)[counted]
    bias = float(np.average(g, weights=length))
    sigma = math.sqrt(max(0.0, float(np.average(2 * k2, weights=length)) - bias**2))
    return NoiseFloor(
        n=int(d.size),
        tokens=int(length.sum()),
        nonfinite=int(bad.sum()),
        mean_d=float(d.mean()),
        median_d=float(np.median(d)),
        p95_d=float(np.quantile(d, 0.95)),
        max_d=float(d.max()),
        bias=bias,
        sigma=sigma,
        gaussian_d=sigma * math.sqrt(2 / math.pi),
        cancelled=float(cancellation_share(d, g).mean()),
        reject_rates=tuple((float(tau), float((d > math.log(tau)).mean())) for tau in taus),
        tau_floor=_ratio_at_least(float(d.max())),
        guarantee="describes these responses; use calibrated_tau for a threshold that holds for new ones",
    )
