"""What an accepted response is certified to look like: the largest fraction of its tokens outside a ratio band [l, u].

A token is outside where r < l or r > u (strict). With b_minus = -log l, b_plus = log u and b_min the smaller, everything here is a
deterministic statement about the sampled tokens of one accepted response; no distributional assumption, and no claim about the full
conditional distributions.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from ._checks import DEFAULT_BAND, boundary_costs, check_count, check_number, check_severity, check_tau


@dataclass(frozen=True)
class Certificate:
    """Worst case over responses that a rule accepts.

    Attributes:
        rule: the rule, as written.
        tau: its ratio-domain threshold, where it has one.
        band: (l, u).
        p_out, p_minus, p_plus: suprema of the fraction of tokens outside the band, below l, above u. 1.0 means "certifies nothing".
        budget: B in ``p_minus * cost_minus + p_plus * cost_plus <= B`` for rules with an additive budget, else None.
        cost_minus, cost_plus: what one token at the boundary costs that budget.
        witness: log-ratios of an accepted response with all tokens outside; None where there is none (a p_out of 1 is then a supremum,
            approached but not attained).
        severity_minus, severity_plus: how far past l, u (in nats) a single token can be at any length; infinity where unbounded, 0 where
            the side is certified empty.
        guarantee: the statement and its assumption, in words.
    """

    rule: str
    tau: float | None
    band: tuple[float, float]
    p_out: float
    p_minus: float
    p_plus: float
    guarantee: str
    budget: float | None = None
    cost_minus: float | None = None
    cost_plus: float | None = None
    witness: tuple[float, ...] | None = None
    severity_minus: float = math.inf
    severity_plus: float = math.inf

    def sharp(self, T: int) -> float:
        """The largest attainable fraction of out-of-band tokens at length T; where the rule has no additive budget, `p_out` at every T.

        >>> from carm_core import CARM
        >>> CARM(1.02).certificate().sharp(11), CARM(1.02).certificate().sharp(100)
        (0.0, 0.08)
        """
        if self.budget is None or self.cost_minus is None or self.cost_plus is None:
            return self.p_out
        T, budget = _check_length(T), self.budget
        if self.tau is not None and budget == math.log(self.tau):
            return finite_T_bound(T, self.tau, self.band)
        threshold = self.tau if self.tau is not None and budget == self.tau - 1.0 else None
        exact = None if threshold is None else lambda m: _affords(m, T, threshold, self.band)
        return _largest_count(T, budget, min(self.cost_minus, self.cost_plus), exact) / T

    def to_json(self) -> str:
        """All fields as a JSON object; `from_json` reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """The certificate that `to_json` wrote."""
        fields = json.loads(text)
        fields["band"] = tuple(fields["band"])
        fields["witness"] = None if fields["witness"] is None else tuple(fields["witness"])
        return cls(**fields)


def _check_length(T: Any) -> int:
    return check_count("T", T, "a fraction of no tokens is undefined")


def _check_means(d: Any, g: Any) -> None:
    if isinstance(d, int | float) and isinstance(g, int | float) and not abs(g) <= d * (1 + 1e-9) < math.inf:
        raise ValueError(f"g: got {g}; need |g| <= d = {d}, both finite; because |mean z| never exceeds mean |z|")


def _unit(x: Any) -> Any:
    return min(1.0, max(0.0, x)) if isinstance(x, int | float) else x.clip(0.0, 1.0)


def _fraction(budget: float, cost: float) -> float:
    return min(1.0, budget / cost)


def _rational(x: float) -> Fraction:
    return Fraction(x).limit_denominator(10**6)


def _cheapest(band: tuple[float, float]) -> Fraction:
    """Ratio (or its reciprocal, above 1) at the cheaper boundary."""
    return min(1 / _rational(band[0]), _rational(band[1]))


def _affords(m: int, T: int, threshold: float, band: tuple[float, float]) -> bool:
    """m (r - 1) < T (threshold - 1) at the cheaper boundary r, in rational arithmetic: what `MeanExpAbs` keeps."""
    return m * (_cheapest(band) - 1) < T * (_rational(threshold) - 1)


def _largest_count(T: int, budget: float, cost: float, exact: Callable[[int], bool] | None) -> int:
    """Largest m with m * cost < T * budget (strict), m <= T; `exact(m)` decides a near-tie, else the tie counts as attainable."""
    if budget == math.inf:
        return T
    x = T * budget / cost
    m = round(x)
    if abs(x - m) > 1e-10 * max(1.0, x):
        return min(T, max(0, math.ceil(x) - 1))
    return min(T, max(0, m if exact is None or exact(m) else m - 1))


def max_violations(T: int, tau: float, band: tuple[float, float] = DEFAULT_BAND) -> int:
    """m* = min(T, ceil(T log tau / b_min) - 1), the largest number of out-of-band tokens in a CARM-accepted response of T tokens.

    Attained: m* tokens just outside the cheaper boundary and ratio 1 elsewhere. Near-ties are decided in exact rational arithmetic on
    tau and the band, read as fractions of denominator at most 10^6.

    Raises: ValueError for T < 1, tau < 1 or a band that does not contain 1. Source: CARM, Proposition 3, sharpened to finite T.

    >>> max_violations(11, 1.02), max_violations(100, 1.02), max_violations(8619, 1.02)
    (0, 8, 764)
    """
    T, costs, threshold = _check_length(T), boundary_costs(band), check_tau("tau", tau)

    def exact(m: int) -> bool:
        common = math.gcd(m, T)
        return _cheapest(band) ** (m // common) < _rational(threshold) ** (T // common)

    return _largest_count(T, math.log(threshold), min(costs), exact)


def finite_T_bound(T: int, tau: float, band: tuple[float, float] = DEFAULT_BAND) -> float:
    """m* / T: the attained maximum of the out-of-band fraction at length T (see `max_violations`), below the paper's bound.

    Raises: ValueError as `max_violations`. Source: CARM, Proposition 3, sharpened to finite T.

    >>> finite_T_bound(100, 1.02)
    0.08
    """
    return max_violations(T, tau, band) / T


def carm_bound(tau: float, band: tuple[float, float] = DEFAULT_BAND, *, severity: float = 0.0, geomean_tau: float | None = None) -> float:
    """p_out <= min(1, log tau / (b_min + severity)) for every response that CARM accepts at `tau`.

    Args:
        tau: ratio-domain threshold, >= 1.
        band: (l, u) with l < 1 < u.
        severity: a known lower bound on the mean violation severity in nats (0: the severity-free bound).
        geomean_tau: if the response also passes GeoMean at this threshold, the sharper bound from the signed mean, maximised over
            the signed means that both rules allow.

    Raises: ValueError for tau < 1, geomean_tau < 1, a negative severity or a band that does not contain 1.
    Source: CARM, Proposition 3 (Eq. 13); Corollary 1 is the case band = (1/c, c).

    >>> round(carm_bound(1.02), 4), round(carm_bound(1.04), 4), round(carm_bound(1.02, geomean_tau=1.0), 4)
    (0.0887, 0.1758, 0.0845)
    """
    b_minus, b_plus = boundary_costs(band)
    d = math.log(check_tau("tau", tau))
    plain = _fraction(d, min(b_minus, b_plus) + check_severity(severity))
    log_g = math.inf if geomean_tau is None else math.log(check_tau("geomean_tau", geomean_tau))
    if d == math.inf:
        return plain
    g = min(d, log_g)
    return min(plain, max(float(signed_mean_bound(d, s, (band[0], band[1]))) for s in (g, -g)))


def signed_mean_bound(d: Any, g: Any, band: tuple[float, float] = DEFAULT_BAND) -> Any:
    """p_out <= (d + g) / (2 b_plus) + (d - g) / (2 b_minus), capped at 1, from the scores of one response; never above d / b_min.

    The positive and negative log-ratio masses are (d + g)/2 and (d - g)/2; a token above u spends more than b_plus of the first, one
    below l more than b_minus of the second.

    Args:
        d, g: `carm_score` and `signed_mean` (same z), floats or arrays, NumPy or torch.
        band: (l, u) with l < 1 < u.

    Raises: ValueError for |g| > d (floats only) or a band that does not contain 1. Source: this project, sharper than CARM Eq. 13.

    >>> round(signed_mean_bound(0.0198026, 0.0), 4)
    0.0845
    """
    b_minus, b_plus = boundary_costs(band)
    _check_means(d, g)
    return _unit((d + g) / (2 * b_plus) + (d - g) / (2 * b_minus))


def one_sided_bounds(d: Any, g: Any, band: tuple[float, float] = DEFAULT_BAND) -> tuple[Any, Any]:
    """(p_minus, p_plus) <= ((d - g) / (2 b_minus), (d + g) / (2 b_plus)), each within [0, 1]: one side of `signed_mean_bound` each.

    Args: d, g: `carm_score` and `signed_mean` (same z), floats or arrays, NumPy or torch. band: (l, u) with l < 1 < u.

    Raises: ValueError for |g| > d (floats only) or a band that does not contain 1. Source: this project, one-sided CARM Eq. 12.

    >>> [round(p, 4) for p in one_sided_bounds(0.0198026, 0.0)]
    [0.0444, 0.0401]
    """
    b_minus, b_plus = boundary_costs(band)
    _check_means(d, g)
    return _unit((d - g) / (2 * b_minus)), _unit((d + g) / (2 * b_plus))


def severity_bound(p_out: float, tau: float, band: tuple[float, float] = DEFAULT_BAND) -> float:
    """Largest mean violation severity (nats past the boundary) when a fraction `p_out` is outside: log tau / p_out - b_min.

    Negative: no CARM-accepted response has that many tokens outside. It measures guarded log-ratios where the clip was active.

    Raises: ValueError for p_out outside (0, 1], tau < 1 or a band that does not contain 1. Source: CARM, Eq. 12.

    >>> round(severity_bound(0.01, 1.02), 4)
    1.7571
    """
    share = check_number("p_out", p_out, lambda p: 0.0 < p <= 1.0, "0 < p_out <= 1", "severity is the mean over violating tokens")
    return math.log(check_tau("tau", tau)) / share - min(boundary_costs(band))
