"""The majority vote with a fixed tie rule, and statistics that say how settled it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from .outcomes import UNPARSABLE
from .scores import answer_counts

__all__ = ["VoteStatistic", "Votes", "count_votes", "settledness"]

#: How settled a vote is; larger is more.  See :func:`settledness`.
VoteStatistic = Literal["margin", "lead", "beta", "share"]

_ROWS = 1 << 16


class Votes(NamedTuple):
    """The vote among the first k responses of each prompt.

    ``answer``: code of the leader, -1 if no answer could be parsed.  **Tie rule**: of the answers with most votes, the one that appeared
    first.  ``first``, ``second``: votes of the leader and of the next answer.  ``counts``: (n, k), votes of the answer at each position.
    """

    answer: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    counts: NDArray[np.int64]


def count_votes(codes: NDArray[np.int64], k: int) -> Votes:
    """Count the first ``k`` columns; unparsable answers have no vote.

    Parameters
    ----------
    codes : int64 array, shape (n, width)
        Answer codes, negative = no answer.
    k : int
        In ``[1, width]``; ``ValueError`` otherwise.

    Examples
    --------
    >>> votes = count_votes(np.array([[1, 0, 0, 1], [-1, -1, -1, -1]]), 4)
    >>> votes.answer.tolist(), votes.first.tolist(), votes.second.tolist()
    ([1, -1], [2, 0], [2, 0])
    """
    counts = answer_counts(codes, k)
    at = counts.argmax(axis=1)[:, None]
    first = np.take_along_axis(counts, at, axis=1)[:, 0]
    answer = np.where(first > 0, np.take_along_axis(codes, at, axis=1)[:, 0], UNPARSABLE)
    second = np.where(codes[:, :k] == answer[:, None], 0, counts).max(axis=1)
    return Votes(answer, first, second, counts)


def settledness(codes: NDArray[np.int64], k: int, k_max: int, statistic: VoteStatistic) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    r"""How settled the vote is after ``k`` of ``k_max`` responses, and its leader.

    With c1 >= c2 the votes of the two leading answers:

    ``"margin"``: ``(c1 - c2) / sqrt(k)``, the lead in standard deviations of a tie.
    ``"lead"``: minus the logarithm of the expected number of answers that overtake the leader by ``k_max``, the remaining responses
    drawn from the posterior predictive (Polya urn, one extra ball each for leader, rival and rest); the rivals are the answers seen and
    one that was not.  It knows how many responses are left, which ``margin`` does not.
    ``"beta"``: ``P(Beta(c1 + 1, c2 + 1) > 1/2)``, the criterion of adaptive-consistency.
    ``"share"``: ``c1 / k``.

    Where the leader can no longer be overtaken (``c1 - c2 > k_max - k``) each is +inf; without a single leader each is -inf.

    Parameters
    ----------
    codes : int64 array, shape (n, width)
    k, k_max : int
        ``1 <= k <= k_max``.
    statistic : {"margin", "lead", "beta", "share"}

    Returns
    -------
    value : float64 array, shape (n,)
    answer : int64 array, shape (n,)

    Raises
    ------
    ValueError
        For another statistic, or a budget out of range.

    References
    ----------
    Aggarwal, Madaan, Yang, Mausam (2023), *Let's sample step by step: adaptive-consistency* (``"beta"``).  ``"lead"``: this project.

    Examples
    --------
    >>> codes = np.array([[0, 0, 0, 1], [0, 0, 1, 1]])
    >>> settledness(codes, 4, 32, "margin")[0].tolist(), settledness(codes, 4, 5, "margin")[0].tolist()
    ([1.0, -inf], [inf, -inf])
    """
    if statistic not in get_args(VoteStatistic):
        raise ValueError(f"statistic: got {statistic!r}; need one of {get_args(VoteStatistic)}; because the knob is on its scale")
    if not 1 <= k <= k_max:
        raise ValueError(f"k: got {k}; need 1 to {k_max}; because a vote is settled or not within k_max responses")
    if len(codes) > _ROWS:  # memory stays at a fixed multiple of a slice
        parts = [settledness(codes[i : i + _ROWS], k, k_max, statistic) for i in range(0, len(codes), _ROWS)]
        return np.concatenate([value for value, _ in parts]), np.concatenate([answer for _, answer in parts])
    votes = count_votes(codes, k)
    value = _MEASURES[statistic](votes, k, k_max)
    value = np.where(votes.first - votes.second > k_max - k, inf, value)
    return np.where(votes.first > votes.second, value, -inf), votes.answer


def _margin(votes: Votes, k: int, k_max: int) -> NDArray[np.float64]:
    return np.asarray((votes.first - votes.second) / np.sqrt(k))


def _share(votes: Votes, k: int, k_max: int) -> NDArray[np.float64]:
    return votes.first / k


def _beta(votes: Votes, k: int, k_max: int) -> NDArray[np.float64]:
    """``P(Beta(c1 + 1, c2 + 1) > 1/2) = P(Bin(c1 + c2 + 1, 1/2) <= c1)``."""
    return np.asarray(_fair_tails(k)[votes.first, votes.second])


@lru_cache(maxsize=64)
def _fair_tails(k: int) -> NDArray[np.float64]:
    table = np.zeros((k + 1, k + 1))
    log_factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, 2 * k + 2))))
    for c1 in range(k + 1):
        for c2 in range(min(c1, k - c1) + 1):
            n, x = c1 + c2 + 1, np.arange(c1 + 1)
            table[c1, c2] = np.exp(log_factorial[n] - log_factorial[x] - log_factorial[n - x] - n * np.log(2)).sum()
    return table


def _lead(votes: Votes, k: int, k_max: int) -> NDArray[np.float64]:
    table = _overtaken(k, k_max)
    c1 = votes.first[:, None]
    rival = (votes.counts > 0) & (votes.counts < c1)  # an answer of c votes fills c positions, so each counts 1/c
    # added column by column: numpy sums a row in another order when it stands alone, and a last digit decides a stop
    expected = sum(np.where(rival, table[c1, votes.counts] / np.maximum(votes.counts, 1), 0.0).T, start=table[votes.first, 0])
    return np.asarray(-np.log(np.maximum(expected, np.finfo(np.float64).tiny)))


@lru_cache(maxsize=64)
def _overtaken(k: int, k_max: int) -> NDArray[np.float64]:
    """``[c1, c2]``: P(an answer with c2 < c1 of k votes has more votes than the leader at ``k_max``, or as many: counted half)."""
    left = k_max - k
    log_factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, 2 * k_max + 4))))

    def polya(n: NDArray[np.int64], x: NDArray[np.int64], a: int, b: int) -> NDArray[np.float64]:
        """Logarithm of P(x of n draws from an urn with a and b balls are of the first colour)."""
        ways = log_factorial[n] - log_factorial[x] - log_factorial[n - x]
        urn = log_factorial[x + a - 1] + log_factorial[n - x + b - 1] - log_factorial[n + a + b - 1]
        return np.asarray(ways + urn + log_factorial[a + b - 1] - log_factorial[a - 1] - log_factorial[b - 1])

    both, mine = (part.ravel() for part in np.meshgrid(np.arange(left + 1), np.arange(left + 1), indexing="ij"))
    both, mine = both[mine <= both], mine[mine <= both]
    table = np.zeros((k + 1, k + 1))
    for c1 in range(1, k + 1):
        for c2 in range(min(c1 - 1, k - c1) + 1):
            gap = (c2 + both - mine) - (c1 + mine)
            law = np.exp(polya(np.full_like(both, left), both, c1 + c2 + 2, k - c1 - c2 + 1) + polya(both, mine, c1 + 1, c2 + 1))
            table[c1, c2] = law[gap > 0].sum() + law[gap == 0].sum() / 2
    return table


_MEASURES: dict[str, Callable[[Votes, int, int], NDArray[np.float64]]] = {
    "margin": _margin,
    "lead": _lead,
    "beta": _beta,
    "share": _share,
}
