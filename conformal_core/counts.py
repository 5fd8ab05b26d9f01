"""How often each answer occurs among the first k responses, for whole tables at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .score import Bools, Ints, budgets_within, row_blocks

__all__ = ["answer_counts"]


def answer_counts(codes: ArrayLike, k: int) -> Ints:
    """How often the answer at each of the first ``k`` positions occurs among the first ``k``; 0 if it has no answer.

    Parameters
    ----------
    codes : array_like of int, shape (n, width)
        Answer codes; negative ones (unparsable, not drawn) have no answer.
    k : int
        In ``[1, width]``.

    Returns
    -------
    array of int64, shape (n, k)
        The share of answers strictly more frequent than ``c`` times is ``(counts > c).sum(1) / k``.

    Raises
    ------
    ValueError
        If ``k`` is not in ``[1, width]``.

    Examples
    --------
    >>> answer_counts([[0, 1, 0, -1]], 4).tolist()
    [[2, 1, 2, 0]]
    """
    table = np.asarray(codes)
    budgets_within((k,), table.shape[1])
    return next(counts for _, _, counts in counts_on_grid(table, (k,)))


class TopAnswer(NamedTuple):
    """The two largest counts among the first k responses, shape (n,) each."""

    first: Ints  # count of the most frequent answer
    second: Ints  # count of the next, 0 if there is none
    unique: Bools  # whether one answer alone has the largest count
    answer: Ints  # its code


def top_answer(codes: Ints, k: int) -> TopAnswer:
    """The leading answer among the first ``k`` of each row of ``codes``, how often it occurs, and how often the next."""
    blocks = [_top_of_block(codes[rows], k) for rows in row_blocks(len(codes), k)] or [_top_of_block(codes, k)]
    return blocks[0] if len(blocks) == 1 else TopAnswer(*(np.concatenate(part) for part in zip(*blocks, strict=True)))


def _top_of_block(codes: Ints, k: int) -> TopAnswer:
    counts = answer_counts(codes, k)
    first = counts.max(axis=1)
    at_top = counts == first[:, None]
    # an answer of count c fills c positions: a unique top answer fills exactly `first` of them
    return TopAnswer(
        first=first,
        second=np.where(at_top, 0, counts).max(axis=1),
        unique=(first > 0) & (at_top.sum(axis=1) == first),
        answer=codes[np.arange(len(codes)), counts.argmax(axis=1)],
    )


def counts_on_grid(codes: Ints, grid: Sequence[int]) -> Iterator[tuple[int, int, Ints]]:
    """(index, k, counts of each position's answer among the first k), with one pass over the columns for all budgets."""
    wanted: dict[int, list[int]] = {}
    for m, k in enumerate(grid):
        wanted.setdefault(int(k), []).append(m)
    counts = np.zeros((codes.shape[0], max(wanted, default=0)), np.int64)
    answered = codes[:, : counts.shape[1]] >= 0
    for column in range(counts.shape[1]):
        counts += (codes[:, : counts.shape[1]] == codes[:, column, None]) & answered
        for m in wanted.get(column + 1, ()):
            yield m, column + 1, counts[:, : column + 1].copy()


def gold_counts(codes: Ints, gold: Ints, k: int) -> Ints:
    """How often the gold answer occurs among the first ``k``; 0 for a gold without an answer."""
    return np.asarray(((codes[:, :k] == gold[:, None]) & (gold[:, None] >= 0)).sum(axis=1), dtype=np.int64)
