"""Exact laws of the budget a prompt uses: the savings identity, and the first-success rule in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

import numpy as np

from .auto_delta import _rational
from .level import Level, exact
from .thresholds import check_grid

__all__ = ["expected_savings", "first_success_cdf", "first_success_mean_k"]


def expected_savings(grid: Sequence[int], stopped: Sequence[Level]) -> Fraction:
    """``E[K_max - k_used] = sum_m (k_{m+1} - k_m) P(k_used <= k_m)``: an identity for every stopping rule on the grid, not a bound.

    Parameters
    ----------
    grid : sequence of M ints
        Budgets.
    stopped : sequence of M - 1 (or M) numbers
        ``P(k_used <= k_m)``, non-decreasing; the last of M must be 1.

    Returns
    -------
    Fraction
        Responses saved per prompt against ``K_max``.

    Raises
    ------
    ValueError
        If the grid is not ascending, or ``stopped`` has the wrong length or is no distribution function.

    References
    ----------
    The telescoping sum of Proposition 16 of the C-GRPO paper.

    Examples
    --------
    >>> expected_savings((2, 4, 8), ["1/4", "1/2"])
    Fraction(5, 2)
    """
    grid = check_grid(grid)
    p = [_rational("stopped", x) for x in stopped]
    p = p if len(p) == len(grid) else [*p, Fraction(1)]
    if len(p) != len(grid) or p != sorted(p) or p[-1] != 1:
        raise ValueError(
            f"stopped: got {[str(x) for x in p]}; need a non-decreasing P(k_used <= k) for every budget but the last; because it is a law"
        )
    return sum((Fraction(b - a) * x for a, b, x in zip(grid[:-1], grid[1:], p[:-1], strict=True)), Fraction(0))


def first_success_mean_k(grid: Sequence[int], j: int | None, solved: Level) -> Fraction:
    """``E[k_used] = k_0 F(J) + K_max (1 - F(J))`` of the first-success rule with threshold J, ``k_0 = min{k in grid : k > J}``.

    With nested prefixes all its thresholds are the one number J (``q_k = J / k``), and a prompt stops at ``k_0`` iff ``j* <= J``; grid
    points above ``k_0`` are dead.  A larger J raises ``k_0`` and F together, so E[k_used] is not monotone in it: a better policy may
    draw more.

    Parameters
    ----------
    grid : sequence of int
        Budgets.
    j : int or None
        The calibrated order statistic of the first success; ``None`` where it is a prompt never solved.
    solved : number
        ``F(J) = P(j* <= J)`` for a new prompt.

    Returns
    -------
    Fraction
        ``K_max`` where no budget exceeds J.

    Raises
    ------
    ValueError
        If the grid is not ascending, ``j`` is below 1 or ``solved`` outside [0, 1].

    References
    ----------
    C-GRPO paper, Eqs. 5 and 9, in closed form; against its Corollary 7.

    Examples
    --------
    >>> first_success_mean_k((2, 4, 8, 16, 32), 3, "0.9")
    Fraction(34, 5)
    """
    grid = check_grid(grid)
    share = _rational("solved", solved)
    if j is not None and (isinstance(j, bool) or not isinstance(j, (int, np.integer)) or j < 1):
        raise ValueError(f"j: got {j!r}; need an integer >= 1 or None; because it is the position of a success")
    active = [k for k in grid if j is not None and k > j]
    return active[0] * share + grid[-1] * (1 - share) if active else Fraction(grid[-1])


def first_success_cdf(j: int, a: Level | int, b: Level | int) -> Fraction:
    """``P(j* <= j) = 1 - E[(1 - p)**j]`` for pass rates ``p ~ Beta(a, b)``: ``1 - prod_{i<j} (b + i) / (a + b + i)``, exactly.

    Its steps ``E[p (1 - p)**(j-1)] > 0`` are the atoms of the first-success score, whatever the law of p: the score is never continuous.

    Parameters
    ----------
    j : int
        At least 0.
    a, b : rational
        Above 0; a string or Fraction is taken as written.

    Returns
    -------
    Fraction

    Raises
    ------
    ValueError
        If ``j < 0`` or a parameter is not above 0.

    Examples
    --------
    >>> [str(first_success_cdf(j, 1, 1)) for j in (1, 2, 3)]
    ['1/2', '2/3', '3/4']
    """
    shape, other = exact(a), exact(b)
    whole = isinstance(j, (int, np.integer)) and not isinstance(j, bool)
    if not whole or j < 0 or shape is None or other is None or shape <= 0 or other <= 0:
        raise ValueError(f"j, a, b: got {j}, {a}, {b}; need j >= 0, a > 0, b > 0; because p has a Beta law and j counts responses")
    return 1 - prod(((other + i) / (shape + other + i) for i in range(int(j))), start=Fraction(1))
