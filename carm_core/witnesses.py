"""Responses that show a bound is real: all tokens outside although a rule accepts, or equality where a bound is tight."""

import math

from ._checks import DEFAULT_BAND, boundary_costs, check_count, check_severity, check_tau
from .certificates import max_violations


def geomean_witness(T: int = 2, band: tuple[float, float] = DEFAULT_BAND, *, severity: float = 0.0) -> tuple[float, ...]:
    """Log-ratios of T >= 2 tokens, all outside `band` by more than `severity`, with GeoMean score exactly 0.

    GeoMean accepts it at every threshold: it certifies nothing. Values are whole numbers, so sums are exact in every float format.

    Raises: ValueError for T < 2 (one token cannot cancel), a negative severity or a band that does not contain 1.
    Source: CARM, Proposition 1.

    >>> geomean_witness(4), geomean_witness(3)
    ((1.0, -1.0, 1.0, -1.0), (2.0, -1.0, -1.0))
    """
    T = check_count("T", T, "a response has tokens")
    if T < 2:
        raise ValueError(f"T: got {T}; need >= 2; because a single log-ratio has nothing to cancel against")
    a = float(math.floor(max(boundary_costs(band)) + check_severity(severity)) + 1)
    head = (2 * a, -a, -a) if T % 2 else ()
    return head + (a, -a) * ((T - len(head)) // 2)


def equality_response(T: int, tau: float, band: tuple[float, float] = DEFAULT_BAND, violations: int | None = None) -> tuple[float, ...]:
    """Log-ratios of T tokens with CARM score log tau that attain equality in the budget (12) and in the severity bound (13).

    Equality needs ratio 1 at every token inside the band, all violations on the cheaper side and the whole budget spent: m tokens at
    b_min + x past 1, x = T log tau / m - b_min, the rest at 0. With the default m = `max_violations` the fraction m / T is the largest
    attainable at this length.

    Args:
        T: number of tokens, >= 1.
        tau: ratio-domain threshold, finite and >= 1.
        band: (l, u) with l < 1 < u.
        violations: m, from 1 to `max_violations` (the default).

    Raises: ValueError where no violation is possible (T log tau <= b_min), for m out of range, and as `max_violations`.
    Source: CARM, Proposition 3 (Eqs. 12, 13), equality case.

    >>> [round(x, 4) for x in equality_response(12, 1.02)[:2]]
    [-0.2376, 0.0]
    """
    most = max_violations(T, tau, band)
    T, budget = int(T), T * math.log(check_tau("tau", tau))
    m = most if violations is None else violations
    if not (m in range(1, most + 1) and budget < math.inf):
        raise ValueError(f"violations: got {m}; need 1 to {most}; because that is what {T} tokens at tau = {tau:g} can pay for")
    b_minus, b_plus = boundary_costs(band)
    z = budget / m
    return ((-z if b_minus <= b_plus else z),) * int(m) + (0.0,) * (T - int(m))
