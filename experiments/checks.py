"""Counts and seeds, refused where they are not whole numbers in range."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["MAX_SEED", "seed", "whole"]

#: Seeds lie below it: NumPy's and torch's global generators take 32 bits, and every process adds its number.
MAX_SEED = 2**31


def whole(name: str, value: Any, least: int, because: str) -> int:
    """``value`` as an int if it is an integer (Python's or NumPy's, no bool) of at least ``least``.

    >>> whole("n", 3, 1, "it counts"), whole("n", np.int64(0), 0, "it counts")
    (3, 0)
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}: got {value!r}; need an integer >= {least}; because {because}")
    return int(value)


def seed(name: str, value: Any) -> int:
    """``value`` as an int if it can seed every generator that a run has.

    >>> seed("seed", -1)
    Traceback (most recent call last):
    ...
    ValueError: seed: got -1; need an integer in [0, 2**31); because the generators of NumPy and torch take no other
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < MAX_SEED:
        raise ValueError(f"{name}: got {value!r}; need an integer in [0, 2**31); because the generators of NumPy and torch take no other")
    return int(value)
