"""Miscoverage levels as exact rationals, and the conformal rank as integer arithmetic.

Floating point never touches a rank: ``ceil((n + 1) * (1 - delta))`` in binary64 is one rank high in about one pair
(n, delta) in 170, always where ``(n + 1) * delta`` is an integer, which is where round calibration sizes put it.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import log
from numbers import Rational
from sys import float_info

import numpy as np

__all__ = ["Level", "as_level", "conformal_rank", "exact", "log_of", "min_calibration_size"]

#: What a level may be written as.
Level = str | int | float | Decimal | Fraction

_MAX_DENOMINATOR = 10**6


def as_level(delta: Level, name: str = "delta") -> Fraction:
    """The rational number a level in (0, 1) was meant to be.

    A string, ``Decimal`` or ``Fraction`` is taken as written.  A float is taken to be the rational with denominator at
    most 10**6 nearest to it, so that ``0.1``, ``1 - 0.9`` and ``0.3 / 3`` are all 1/10.  Divide the *result* by a number of
    budgets, not the float.

    Parameters
    ----------
    delta : str, int, float, Decimal or Fraction
        The level.
    name : str
        What to call it in an error.

    Returns
    -------
    Fraction
        In the open interval (0, 1).

    Raises
    ------
    ValueError
        Outside (0, 1), not a number, or a ``bool``.  Below 5e-7 a float rounds to 0: write such a level as a string.

    Examples
    --------
    >>> as_level("0.12"), as_level(1 - 0.9), as_level("1/3")
    (Fraction(3, 25), Fraction(1, 10), Fraction(1, 3))
    """
    value = exact(delta)
    if value is None or not 0 < value < 1:
        why = "it is an error rate"
        if value is not None and isinstance(delta, (float, np.floating)) and 0 < delta < 1:
            why = f"a float is read as the nearest fraction of denominator <= 10**6, here {value}: write it as a string"
        raise ValueError(f"{name}: got {delta!r}; need a number in the open interval (0, 1); because {why}")
    return value


def exact(value: object) -> Fraction | None:
    """The rational that was meant: floats as the nearest of denominator at most 10**6, all else as written; ``None`` if it is no number.

    Its parts are Python integers, whatever ``value`` was made of: NumPy's overflow, and JSON does not know them.

    Examples
    --------
    >>> exact(0.1), exact("1/3"), exact(float("nan")), exact(True)
    (Fraction(1, 10), Fraction(1, 3), None, None)
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            return None
        if isinstance(value, (float, np.floating)):
            # numpy's narrow floats go through their shortest decimal, since float(float32(0.1)) is 0.10000000149
            return Fraction(value if isinstance(value, float) else float(str(value))).limit_denominator(_MAX_DENOMINATOR)
        if isinstance(value, np.integer):
            return Fraction(int(value))
        if isinstance(value, (str, Decimal, Rational)):
            found = Fraction(value)
            plain = type(found.numerator) is int is type(found.denominator)
            return found if plain else Fraction(int(found.numerator), int(found.denominator))
    except (ValueError, OverflowError, ZeroDivisionError):
        pass
    return None


def log_of(level: Fraction) -> float:
    """Natural logarithm of a positive rational, however small.

    Examples
    --------
    >>> round(log_of(Fraction(1, 10**400)), 3)
    -921.034
    """
    return log(level) if float(level) >= float_info.min else log(level.numerator) - log(level.denominator)


def conformal_rank(n: int, delta: Level) -> int:
    """Rank of the calibration score that serves as threshold: ``L = ceil((n + 1) * (1 - delta))``, exactly.

    Computed as ``n + 1 - floor(delta * (n + 1))`` in integers.  ``L == n + 1`` means that no calibration score will do (the
    level is *not attainable* with ``n`` scores) and the threshold is +inf; :func:`min_calibration_size` says what would do.

    Parameters
    ----------
    n : int
        Number of calibration scores, at least 0.
    delta : level
        Miscoverage; see :func:`as_level`.

    Returns
    -------
    int
        In ``[1, n + 1]``.

    Raises
    ------
    ValueError
        If ``n`` is not an integer >= 0 or ``delta`` is outside (0, 1).

    References
    ----------
    Vovk, Gammerman, Shafer (2005), *Algorithmic Learning in a Random World*; the rank of Eq. 6 of the C-GRPO paper without
    its ``min(., n)``, with which the coverage guarantee fails for ``delta < 1 / (n + 1)``.

    Examples
    --------
    >>> conformal_rank(9, 0.7), conformal_rank(200, "3/25"), conformal_rank(9, "0.05")
    (3, 177, 10)
    """
    n = _count(n, "n", 0)
    level = as_level(delta)
    return n + 1 - (level.numerator * (n + 1)) // level.denominator


def min_calibration_size(delta: Level, *, budgets: int = 1, checkpoints: int = 1) -> int:
    """Fewest calibration scores with a finite threshold at level ``delta / (budgets * checkpoints)``.

    ``n = ceil(M * T / delta) - 1``: the rank is at most ``n`` iff ``delta / (M * T) >= 1 / (n + 1)``.

    Parameters
    ----------
    delta : level
        Miscoverage over all budgets and checkpoints together.
    budgets, checkpoints : int
        Over how many thresholds the level is split evenly (Bonferroni).

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If ``delta`` is outside (0, 1) or a count is below 1.

    Examples
    --------
    >>> min_calibration_size(0.1), min_calibration_size("0.12", budgets=5, checkpoints=6)
    (9, 249)
    """
    level = as_level(delta)
    parts = _count(budgets, "budgets", 1) * _count(checkpoints, "checkpoints", 1)
    return -(-parts * level.denominator // level.numerator) - 1


def _count(value: int, name: str, least: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}: got {value!r}; need an integer >= {least}; because it counts")
    return int(value)
