"""Where does tau come from? From a target certificate, a target reject rate, or responses known to be on-policy."""

import json
import math
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from ._checks import DEFAULT_BAND, boundary_costs, check_number
from .certificates import carm_bound

Level = int | float | str | Decimal | Fraction


@dataclass(frozen=True)
class TauChoice:
    """A threshold and how it was found.

    Attributes:
        tau, log_tau: the threshold, as a ratio and in nats (infinity where not attainable).
        n: number of scores used.
        level: the target share, exact.
        rank: which ascending order statistic of the scores log tau is (n + 1: none).
        attainable: False when n scores are too few for the level.
        method, guarantee: in words.
    """

    tau: float
    log_tau: float
    n: int
    level: Fraction
    rank: int
    attainable: bool
    method: str
    guarantee: str

    def to_json(self) -> str:
        """All fields as a JSON object, the level as a fraction; `from_json` reads it back."""
        return json.dumps({**asdict(self), "level": str(self.level)})

    @classmethod
    def from_json(cls, text: str) -> "TauChoice":
        """The choice that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "level": Fraction(fields["level"])})


def _level(name: str, value: Level, *, open_interval: bool) -> Fraction:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise ValueError
        # numpy's narrow floats go through their shortest decimal, since float(float32(0.1)) is 0.10000000149
        number = float(str(value)) if isinstance(value, np.floating) else value
        exact = Fraction(number).limit_denominator(10**6) if isinstance(number, float) else Fraction(number)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        exact = Fraction(-1)
    if not (0 < exact < 1 if open_interval else 0 <= exact < 1):
        raise ValueError(f"{name}: got {value}; need {'0 <' if open_interval else '0 <='} {name} < 1; because it is a share of responses")
    return exact


def _host(scores: Any, *, allow_nan: bool) -> Any:
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu().double().numpy()
    d = np.asarray(scores, dtype=np.float64).ravel()
    if d.size == 0:
        raise ValueError("scores: got none; need at least 1; because a quantile of nothing is undefined")
    if bool((d < 0).any()) or (not allow_nan and bool(np.isnan(d).any())):
        raise ValueError("scores: got negative or NaN values; need CARM scores in nats; because a quantile of them would be meaningless")
    return d


def _ratio_at_least(d: float) -> float:
    """The smallest convenient tau with log(tau) >= d, so that a response scoring exactly d is kept."""
    if d == math.inf:
        return math.inf
    tau = math.exp(max(d, 0.0))
    while math.log(tau) < d:
        tau = math.nextafter(tau, math.inf)
    return tau


def tau_for_certificate(p_out: float, band: tuple[float, float] = DEFAULT_BAND) -> float:
    """The largest tau whose bound on the out-of-band fraction is `p_out`: tau = exp(p_out * b_min).

    Guarantee: ``carm_bound(tau, band) <= p_out`` in floating point too. Raises ValueError for p_out outside [0, 1] or a band that does
    not contain 1. Source: CARM, Proposition 3 (Eq. 13) inverted.

    >>> round(tau_for_certificate(0.10), 6)
    1.022565
    """
    share = check_number("p_out", p_out, lambda p: 0.0 <= p <= 1.0, "0 <= p_out <= 1", "it is a fraction of tokens")
    tau = math.exp(share * min(boundary_costs(band)))
    while carm_bound(tau, band) > share:
        tau -= math.ulp(tau)
    return tau


def tau_for_reject_rate(scores: Any, rate: Level) -> TauChoice:
    """The smallest tau among the scores that rejects at most a share `rate` of these responses; NaN scores count as rejected.

    A statement about the given responses only; a fresh batch may differ. Leave responses without live tokens out.

    Args:
        scores: (n,) CARM scores in nats.
        rate: share in [0, 1), read exactly (a float by `limit_denominator(10**6)`).

    Raises: ValueError for no scores, negative scores, a rate outside [0, 1), or more NaN scores than the rate allows to reject.

    >>> choice = tau_for_reject_rate([0.01, 0.02, 0.03, 0.04], "1/4")
    >>> round(choice.log_tau, 6), choice.rank
    (0.03, 3)
    """
    share = _level("rate", rate, open_interval=False)
    d = _host(scores, allow_nan=True)
    n, finite = d.size, np.sort(d[~np.isnan(d)])
    rank = n - (share.numerator * n) // share.denominator
    if rank > finite.size:
        raise ValueError(f"rate: got {rate}; need >= {n - finite.size}/{n}; because that many scores are NaN and NaN is always rejected")
    log_tau = float(finite[rank - 1])
    guarantee = "rejects at most this share of the given responses; none for new ones"
    return TauChoice(_ratio_at_least(log_tau), log_tau, n, share, rank, True, "empirical quantile of CARM scores", guarantee)


def calibrated_tau(scores: Any, delta: Level) -> TauChoice:
    """tau as the conformal quantile of CARM scores of on-policy responses: engine noise alone is rejected with probability <= delta.

    rank = n + 1 - floor(delta (n + 1)), exact; log tau is that order statistic. With rank > n tau is infinite and `attainable` False;
    `guarantee` then names the n that would do.

    Args:
        scores: (n,) CARM scores in nats of responses with a live token whose trainer weights equal the rollout weights.
        delta: miscoverage in (0, 1), read exactly (a float by `limit_denominator(10**6)`).

    Guarantee: P(a new on-policy response is rejected) <= delta if its score is exchangeable with the calibration scores.
    Raises: ValueError for no scores, NaN or negative scores, delta outside (0, 1). Source: split conformal prediction.

    >>> calibrated_tau([0.001 * i for i in range(1, 20)], 0.1).rank, calibrated_tau([0.01], 0.1).attainable
    (18, False)
    """
    share = _level("delta", delta, open_interval=True)
    d = np.sort(_host(scores, allow_nan=False))
    n = int(d.size)
    rank = n + 1 - (share.numerator * (n + 1)) // share.denominator
    if rank > n:
        needed = -(-share.denominator // share.numerator) - 1
        return TauChoice(math.inf, math.inf, n, share, rank, False, "conformal quantile", f"none: {n} scores; need n >= {needed}")
    log_tau = float(d[rank - 1])
    guarantee = "P(reject a new on-policy response) <= delta if its score is exchangeable with the calibration scores"
    return TauChoice(_ratio_at_least(log_tau), log_tau, n, share, rank, True, "conformal quantile of on-policy CARM scores", guarantee)
