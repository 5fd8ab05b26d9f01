"""Exact laws of the prediction set over the uniform number u, given the counts of the sampled answers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, prod

__all__ = ["empty_probability", "singleton_probability"]


def singleton_probability(counts: Sequence[int], q: Fraction | int | str, rule: str = "randomized", *, k: int | None = None) -> Fraction:
    """Exact P(the prediction set is a single answer) over u uniform on [0, 1], given the counts of the sampled answers.

    With ``t(a) = clip((q - G(a)) / phat(a), 0, 1)`` the probability that ``a`` is in the randomized set: the largest t minus the
    second largest when u is shared (``"randomized"``), ``sum_a t(a) prod_{b != a} (1 - t(b))`` when every answer has a u of its own
    (``"independent"``, not offered as a score).  0 or 1 for the deterministic rules.

    Parameters
    ----------
    counts : sequence of int
        Occurrences of each distinct sampled answer, each at least 1.
    q : rational
        Threshold.  At q >= 1 every rule but ``"released"`` gives 0.
    rule : {"randomized", "independent", "inclusive", "mass_above", "released"}
    k : int, optional
        Responses, if some were unparsable.  Default: the sum of ``counts``.

    Returns
    -------
    Fraction

    Raises
    ------
    ValueError
        For an unknown rule, or counts that are below 1 or exceed k.

    Examples
    --------
    >>> singleton_probability([4], "22/25"), singleton_probability([3, 1], "1/2")
    (Fraction(22, 25), Fraction(2, 3))
    """
    threshold, rows = _law(counts, q, k)
    if rule == "released":
        return Fraction(int(bool(rows) and max(p for _, p in rows) >= threshold))
    if threshold >= 1:
        return Fraction(0)
    if rule == "inclusive":
        return Fraction(int(sum(above < threshold for above, _ in rows) == 1))
    if rule == "mass_above":
        return Fraction(int(sum(above <= threshold for above, _ in rows) == 1))
    inside = [min(max((threshold - above) / p, Fraction(0)), Fraction(1)) for above, p in rows]
    if rule == "randomized":
        first, second = sorted([*inside, Fraction(0), Fraction(0)], reverse=True)[:2]
        return first - second
    if rule == "independent":
        total = Fraction(0)
        for i, t in enumerate(inside):
            for j, other in enumerate(inside):
                t = t * (1 - other) if j != i else t
            total += t
        return total
    raise ValueError(
        f"rule: got {rule!r}; need 'randomized', 'independent', 'inclusive', 'mass_above' or 'released'; because those are the set rules"
    )


def empty_probability(counts: Sequence[int], q: Fraction | int | str, rule: str = "randomized", *, k: int | None = None) -> Fraction:
    """Exact P(the randomized APS set is empty): ``1 - q / phat(top)`` for q below the top share, else 0.

    With one u per answer (``"independent"``), that to the power of the number of answers tied at the top.  An empty set sends a prompt on
    to the next budget, even a unanimous one.  The sets of the other rules are never empty for q > 0 once a response has an answer.

    Parameters
    ----------
    counts, q, k
        As in :func:`singleton_probability`.
    rule : {"randomized", "independent"}

    Returns
    -------
    Fraction

    Raises
    ------
    ValueError
        For another rule, or if counts are below 1 or exceed k.

    Examples
    --------
    >>> empty_probability([4], "22/25")
    Fraction(3, 25)
    """
    threshold, rows = _law(counts, q, k)
    if rule not in ("randomized", "independent"):
        raise ValueError(f"rule: got {rule!r}; need 'randomized' or 'independent'; because only a randomized set can be empty")
    if threshold >= 1:
        return Fraction(0)
    top = [1 - min(max(threshold / p, Fraction(0)), Fraction(1)) for above, p in rows if above == 0]
    return prod(top, start=Fraction(1)) if rule == "independent" else min(top, default=Fraction(1))


def _law(counts: Sequence[int], q: Fraction | int | str, k: int | None) -> tuple[Fraction, list[tuple[Fraction, Fraction]]]:
    size = sum(counts) if k is None else k
    if any(c < 1 for c in counts) or sum(counts) > size:
        raise ValueError(f"counts: got {list(counts)} of {size} responses; need counts >= 1 summing to at most k; because they are sampled")
    if q != q:
        raise ValueError("q: got NaN; need a rational or +-inf; because it is a threshold")
    threshold = Fraction(2 if q == inf else -1 if q == -inf else q)  # shares lie within [0, 1]
    return threshold, [(Fraction(sum(c for c in counts if c > own), size), Fraction(own, size)) for own in counts]
