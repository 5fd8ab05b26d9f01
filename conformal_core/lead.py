"""How far ahead the leading answer is, as one rational number per budget; and the stop with one knob on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import inf
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from .counts import top_answer
from .outcomes import UNPARSABLE, Outcomes
from .score import answer_codes

__all__ = ["Statistic", "StopInterval", "knobs", "lead", "margin_stop", "stop_intervals"]

#: ``top_share``: c1 / k, in [0, 1].  ``margin``: (c1 - c2)**2 / k, in [0, K_max]: the square of the lead in standard deviations of a tie.
#: c1 >= c2 are the two largest counts among the first k answers.
Statistic = Literal["top_share", "margin"]


class StopInterval(NamedTuple):
    """At budget ``k``, prompt i stops with ``answer[i]`` exactly for the knobs in ``[low[i], high[i])``; none where low = high."""

    k: int
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    answer: NDArray[np.int64]


def lead(codes: NDArray[np.int64], k: int, statistic: Statistic = "top_share") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numerator over k of the statistic (0 without a unique leader), and the code of the leading answer.

    ``top_share`` is 1 for every unanimous group, whatever its size.  ``margin`` is k there: two equal answers out of two are weaker
    evidence than 32 out of 32, so its knob can stop the one and not the other.

    Parameters
    ----------
    codes : int64 array, shape (n, width)
        Answer codes; negative ones carry no mass.
    k : int
        Budget.
    statistic : {"top_share", "margin"}

    Returns
    -------
    numerator : int64 array, shape (n,)
        ``c1`` or ``(c1 - c2)**2``.
    answer : int64 array, shape (n,)

    Raises
    ------
    ValueError
        For another ``statistic``, or a budget wider than the table.

    Examples
    --------
    >>> import numpy as np
    >>> lead(np.array([[0, 0, 0, 1]]), 4)[0].tolist(), lead(np.array([[0, 0, 0, 1]]), 4, "margin")[0].tolist()
    ([3], [4])
    """
    if statistic not in get_args(Statistic):
        raise ValueError(f"statistic: got {statistic!r}; need one of {get_args(Statistic)}; because the knob is on that scale")
    top = top_answer(codes, k)
    size = top.first if statistic == "top_share" else (top.first - top.second) ** 2
    return np.where(top.unique, size, 0), top.answer


def knobs(grid: Sequence[int], statistic: Statistic) -> list[Fraction]:
    """Every value the knob need take, descending: the first never stops, the last, 0, stops on any unique leader."""
    if statistic == "top_share":
        return sorted({Fraction(c, k) for k in grid for c in range(k + 1)}, reverse=True)
    return sorted({Fraction(c * c, k) for k in grid for c in range(k + 1)}, reverse=True)


def margin_stop(
    outcomes: Outcomes, k: int, lam: Fraction, statistic: Statistic = "top_share"
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether the first ``k`` responses have a unique leading answer with a statistic above ``lam``, and that answer.

    Parameters
    ----------
    outcomes : Outcomes
        With answer codes.  Rows with fewer than ``k`` responses do not stop.
    k : int
        Budget.  Unparsable responses carry no mass but count in the denominator ``k``.
    lam : Fraction
        Knob >= 0, compared in integers.  At its largest value (1, or K_max for ``margin``) it never stops.
    statistic : {"top_share", "margin"}
        See :func:`lead`.

    Returns
    -------
    stop : bool array, shape (n,)
    committed : int64 array, shape (n,)
        Code of the leading answer where ``stop``, else -1.

    Raises
    ------
    ValueError
        If there are no answer codes, ``lam`` is below 0, or for another ``statistic``.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes(np.arange(2, dtype=np.uint64), np.zeros((2, 4), bool), codes=np.array([[0, 0, 0, 1], [0, 0, 1, -1]]))
    >>> [x.tolist() for x in margin_stop(o, 4, Fraction(1, 2))]
    [[True, False], [0, -1]]
    >>> margin_stop(o, 4, Fraction(1, 2), "margin")[0].tolist()  # 4/4 and 1/4
    [True, False]
    """
    codes = answer_codes(outcomes)
    if not 0 <= lam < inf:
        raise ValueError(f"lam: got {lam}; need a finite number >= 0; because at 0 every unique leader stops, and at K_max nothing does")
    lam = Fraction(lam)
    if k > outcomes.width:
        return np.zeros(outcomes.n, np.bool_), np.full(outcomes.n, UNPARSABLE, np.int64)
    size, answer = lead(codes, k, statistic)
    stop = (size * lam.denominator > lam.numerator * k) & (outcomes.drawn >= k)
    return stop, np.where(stop, answer, UNPARSABLE)


def stop_intervals(outcomes: Outcomes, grid: Sequence[int], statistic: Statistic = "top_share") -> Iterator[StopInterval]:
    """The whole path of the stop in its knob: at each budget, the knobs for which each prompt stops there.

    The rule stops at k for the knobs between the highest statistic seen before k and the one at k, so only new records matter.  Ends are
    correctly rounded quotients: equal statistics are equal floats.

    Parameters
    ----------
    outcomes : Outcomes
        With codes; at least ``K_max`` responses each.
    grid : sequence of int
        Budgets, ascending.
    statistic : {"top_share", "margin"}

    Yields
    ------
    StopInterval

    Raises
    ------
    ValueError
        If codes are missing, or a prompt has fewer than ``K_max`` responses.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes(np.array([1], np.uint64), np.zeros((1, 4), bool), codes=np.array([[1, 1, 1, 0]]))
    >>> [(s.k, s.low.item(), s.high.item()) for s in stop_intervals(o, (2, 4), "margin")]
    [(2, 0.0, 2.0), (4, 2.0, 2.0)]
    """
    codes = answer_codes(outcomes)
    if outcomes.n and outcomes.drawn.min() < grid[-1]:
        raise ValueError(
            f"outcomes.drawn: got a minimum of {outcomes.drawn.min()}; need {grid[-1]} responses for each prompt; "
            "because the loss is needed at every knob, so at every budget"
        )
    values = (lead(codes, k, statistic) for k in grid)
    yield from record_intervals(((k, size / k, answer) for k, (size, answer) in zip(grid, values, strict=True)), np.zeros(outcomes.n))


def record_intervals(
    path: Iterable[tuple[int, NDArray[np.float64], NDArray[np.int64]]], record: NDArray[np.float64]
) -> Iterator[StopInterval]:
    """Knobs at which a prompt stops at each budget of a path of (budget, statistic, answer), ``record`` being the least knob there is."""
    for k, value, answer in path:
        high = np.maximum(record, value)
        yield StopInterval(k, record, high, answer)
        record = high
