"""Argument checks shared by the modules; every message reads "name: got X; need Y; because Z"."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

DEFAULT_BAND = (0.8, 1.28)
_NOT_NUMBERS = (bool, np.bool_, str, bytes)


def check_number(name: str, value: Any, inside: Callable[[float], bool], need: str, because: str) -> float:
    """`value` as a float if it is a number (no bool, no text) for which `inside` holds."""
    try:
        number = None if isinstance(value, _NOT_NUMBERS) else float(value)
    except (TypeError, ValueError):
        number = None
    if number is None or not inside(number):
        shown = repr(value) if number is None else f"{number:g}"
        raise ValueError(f"{name}: got {shown}; need {need}; because {because}")
    return number


def check_tau(name: str, tau: Any) -> float:
    """A ratio-domain threshold: a number >= 1 (infinity means "reject nothing")."""
    value = check_number(name, tau, lambda x: True, "a number >= 1", "it is a ratio-domain threshold")
    if not value >= 1.0:
        hint = f" (did you mean {1 + value if value < 0.5 else 1 / value:.6g}?)" if 0 < value < 1 else ""
        raise ValueError(f"{name}: got {value:g}; need >= 1; because it is a ratio-domain threshold and the score is never below 1{hint}")
    return value


def check_positive(name: str, value: Any, because: str) -> float:
    """A number above 0."""
    return check_number(name, value, lambda x: x > 0.0, "> 0", because)


def check_severity(severity: Any) -> float:
    """A distance past a boundary in nats: finite and not negative."""
    return check_number("severity", severity, lambda x: 0.0 <= x < math.inf, "0 <= severity < inf", "it is a distance past the boundary")


def check_count(name: str, value: Any, because: str) -> int:
    """A whole number above 0."""
    try:
        whole = None if isinstance(value, _NOT_NUMBERS) else int(value)
    except (TypeError, ValueError, OverflowError):
        whole = None
    if whole is None or whole != value or whole < 1:
        shown = repr(value) if whole is None else value
        raise ValueError(f"{name}: got {shown}; need an integer >= 1; because {because}")
    return whole


def check_shape(name: str, value: Any, shape: tuple[int, ...], because: str) -> Any:
    """`value` if it has this very shape, so that nothing broadcasts along the wrong axis."""
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"{name}: got shape {tuple(value.shape)}; need {tuple(shape)}; because {because}")
    return value


def boundary_costs(band: tuple[float, float]) -> tuple[float, float]:
    """(b_minus, b_plus) = (-log l, log u) of the ratio band [l, u], 0 < l < 1 < u."""
    try:
        low, high = (float(edge) for edge in band)
    except (TypeError, ValueError):
        raise ValueError(f"band: got {band!r}; need two numbers 0 < l < 1 < u; because an on-policy ratio is 1") from None
    if not (0.0 < low < 1.0 < high < math.inf):
        raise ValueError(f"band: got ({low:g}, {high:g}); need 0 < l < 1 < u; because an on-policy ratio is 1")
    return -math.log(low), math.log(high)
