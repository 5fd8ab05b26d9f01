"""Argument checks shared by the modules; every message reads "name: got X; need Y; because Z"."""

import math
from typing import Any

DEFAULT_BAND = (0.8, 1.28)


def check_tau(name: str, tau: Any) -> float:
    """A ratio-domain threshold: a number >= 1 (infinity means "reject nothing")."""
    try:
        value = float(tau)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: got {tau!r}; need a number >= 1; because it is a ratio-domain threshold") from None
    if not value >= 1.0:
        hint = f" (did you mean {1 + value if value < 0.5 else 1 / value:.6g}?)" if 0 < value < 1 else ""
        raise ValueError(f"{name}: got {value:g}; need >= 1; because it is a ratio-domain threshold and the score is never below 1{hint}")
    return value


def check_positive(name: str, value: Any, because: str) -> float:
    number = float(value)
    if not number > 0.0:
        raise ValueError(f"{name}: got {number:g}; need > 0; because {because}")
    return number


def boundary_costs(band: tuple[float, float]) -> tuple[float, float]:
    """(b_minus, b_plus) = (-log l, log u) of the ratio band [l, u], 0 < l < 1 < u."""
    low, high = float(band[0]), float(band[1])
    if not (0.0 < low < 1.0 < high < math.inf):
        raise ValueError(f"band: got ({low:g}, {high:g}); need 0 < l < 1 < u; because an on-policy ratio is 1")
    return -math.log(low), math.log(high)
