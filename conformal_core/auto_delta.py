"""Choosing the miscoverage level from the solve rate, and splitting a calibration set so that the choice costs no validity."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import generator
from .level import Level, _count, as_level, exact

__all__ = ["auto_delta", "auto_delta_upper", "disjoint_split"]


def _rational(name: str, value: Level) -> Fraction:
    """``value`` as the exact fraction that was written (a float through ``limit_denominator(10**6)``), within [0, 1]."""
    number = exact(value)
    if number is None or not 0 <= number <= 1:
        raise ValueError(f"{name}: got {value!r}; need a number in [0, 1]; because it is a probability or a share of prompts")
    return number


def auto_delta(solved: int, n: int, *, epsilon: Level = "0.05", delta_min: Level = "0.05", delta_max: Level = "0.95") -> Fraction:
    """Miscoverage level from the solve rate: ``clip(1 - solved/n + epsilon, delta_min, delta_max)``, exactly.

    A prompt whose gold answer is never sampled scores 1 (or +inf), so a level below the unsolved share gives a threshold at which
    nothing may stop.  The rule asks for no more coverage than the policy can give.

    Parameters
    ----------
    solved, n : int
        Prompts solved by at least one of ``K_max`` responses, among ``n`` prompts.
    epsilon : number
        Slack above the unsolved share (the authors' value is 0.05, about one standard error at ``n = 100``).
    delta_min, delta_max : number
        Bounds, ``0 < delta_min <= delta_max <= 1``.  With ``delta_max = 1`` the result may be 1, which is no level: every rank refuses it.

    Returns
    -------
    Fraction
        The level.  *Guarantee*: thresholds from *other* prompts (:func:`disjoint_split`) cover at least ``1 - delta`` given the delta that
        was announced.  From the same prompts there is none: on average over calibrations almost nothing is lost, but given that a low
        delta was announced, which is when the claim is boldest, coverage falls points short of it.

    Raises
    ------
    ValueError
        If ``n < 1``, ``solved`` leaves ``[0, n]``, or the bounds are not ordered.

    Notes
    -----
    Source: C-GRPO, Eq. 13-14; the bounds are those of the authors' code.

    Examples
    --------
    >>> auto_delta(140, 200)
    Fraction(7, 20)
    >>> auto_delta(200, 200), auto_delta(0, 200)
    (Fraction(1, 20), Fraction(19, 20))
    """
    low, high = _clip_bounds(solved, n, delta_min, delta_max)
    return min(max(1 - Fraction(int(solved), int(n)) + _rational("epsilon", epsilon), low), high)


def auto_delta_upper(solved: int, n: int, *, gamma: Level = "0.1", delta_min: Level = "0.05", delta_max: Level = "0.95") -> Fraction:
    """Miscoverage level from an upper confidence bound on the unsolved share, in place of ``+ epsilon``.

    ``clip(U, delta_min, delta_max)`` with U the one-sided Clopper-Pearson bound, ``P(Bin(n, U) <= n - solved) = gamma``, rounded up to a
    multiple of 1e-6.  Its slack shrinks with n and with the unsolved share, where a fixed epsilon is one standard error at n = 100 only.

    Parameters
    ----------
    solved, n : int
        As in :func:`auto_delta`.
    gamma : level
        Probability that the bound is too low.
    delta_min, delta_max : number
        Bounds, ``0 < delta_min <= delta_max <= 1``.

    Returns
    -------
    Fraction
        *Guarantee*: for n i.i.d. prompts, ``P(delta >= the policy's unsolved share) >= 1 - gamma`` while ``delta < delta_max``: the level
        asks for no coverage that the policy cannot give.  As in :func:`auto_delta`, coverage given delta needs thresholds from other
        prompts.

    Raises
    ------
    ValueError
        As in :func:`auto_delta`, or if ``gamma`` is outside (0, 1).

    References
    ----------
    Clopper, Pearson (1934); not in the paper.

    Examples
    --------
    >>> float(auto_delta_upper(140, 200)), float(auto_delta_upper(1400, 2000))
    (0.345408, 0.313524)
    """
    low, high = _clip_bounds(solved, n, delta_min, delta_max)
    from scipy.stats import beta  # type: ignore[import-untyped, unused-ignore]

    missed = int(n) - int(solved)
    bound = 1.0 if missed == n else float(beta.isf(float(as_level(gamma, "gamma")), missed + 1, n - missed))
    return min(max(Fraction(ceil(bound * 10**6), 10**6), low), high)


def _clip_bounds(solved: int, n: int, delta_min: Level, delta_max: Level) -> tuple[Fraction, Fraction]:
    whole = all(isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in (solved, n))
    if not whole or n < 1 or not 0 <= solved <= n:
        raise ValueError(f"solved: got {solved!r} of {n!r}; need integers 0 <= solved <= n and n >= 1; because solved/n is a share of n")
    low, high = _rational("delta_min", delta_min), _rational("delta_max", delta_max)
    if not 0 < low <= high:
        raise ValueError(f"delta_min: got {delta_min!r} and delta_max {delta_max!r}; need 0 < delta_min <= delta_max; because they clip")
    return low, high


def disjoint_split(
    n: int, *, seed: int | Sequence[int], share: Level = Fraction(1, 2), strata: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split ``n`` calibration prompts at random into those that choose delta and those that give the thresholds.

    Parameters
    ----------
    n : int
        Prompts.
    seed : int or sequence of int
        Key of the shuffle.  Rows are shuffled because data sets come sorted, and the first half of a sorted set is not
        exchangeable with the second.
    share : number
        Share of prompts that choose delta; ``floor(share * n)`` of them.
    strata : array_like, shape (n,), optional
        Label of each prompt (a source, a difficulty) known before any response.  Each stratum is then split in the same share, within
        one prompt.

    Returns
    -------
    idx_delta, idx_q : arrays of int64
        Disjoint, sorted, together ``range(n)``.  *Guarantee*, without ``strata``: given the first part, delta is a fixed number for the
        second, whose prompts remain exchangeable with a new one, so ``P(S <= q) >= 1 - delta`` *given the delta announced*.  Not that
        anything stops: the second part's solve rate falls short of what delta asks for in a fifth of the splits or so, and the threshold
        at K_max is then 1.  With ``strata`` the two parts have nearly the same composition, which steadies delta, but exchangeability
        holds only within a stratum: coverage is guaranteed for a new prompt of a stratum with thresholds from that stratum alone.

    Raises
    ------
    ValueError
        If either part would be empty, or ``strata`` has another length.

    Examples
    --------
    >>> a, b = disjoint_split(7, seed=0)
    >>> len(a), len(b), sorted([*a.tolist(), *b.tolist()])
    (3, 4, [0, 1, 2, 3, 4, 5, 6])
    >>> a, _ = disjoint_split(6, seed=0, strata=["easy"] * 4 + ["hard"] * 2)
    >>> (a < 4).sum().item(), (a >= 4).sum().item()
    (2, 1)
    """
    part, n = _rational("share", share), _count(n, "n", 0)
    first = int(part * n)
    if not 0 < first < n:
        raise ValueError(f"n: got {n} prompts and share {share}; need a prompt in either part; because each part is estimated from")
    order = generator(seed).permutation(n).astype(np.int64)
    if strata is not None:
        labels = np.asarray(strata)
        if labels.shape != (n,):
            raise ValueError(f"strata: got shape {labels.shape}; need ({n},); because every prompt has one label")
        try:
            _, label = np.unique(labels, return_inverse=True)
        except TypeError as error:
            raise ValueError(
                f"strata: got labels without an order ({error}); need all text or all numbers; because they are sorted"
            ) from None
        groups = [order[label[order] == s] for s in range(int(label.max()) + 1)]
        whole = [int(part * len(g)) for g in groups]
        # what the floors leave over goes to the strata that lost most by them, ties in the random order of their first prompts
        by_loss = sorted(range(len(groups)), key=lambda s: (whole[s] - part * len(groups[s]), int(np.argmax(label[order] == s))))
        for s in by_loss[: first - sum(whole)]:
            whole[s] += 1
        order = np.concatenate([*(g[:w] for g, w in zip(groups, whole, strict=True)), *(g[w:] for g, w in zip(groups, whole, strict=True))])
    return np.sort(order[:first]), np.sort(order[first:])
