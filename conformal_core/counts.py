"""How often each answer occurs among the first k responses, for whole tables at once.

An answer is counted in a *slot* of its own: a small number, equal within a row iff the answers are, 0 for a response without an answer.
The histogram of a row over its slots grows by the responses between one budget and the next, so all budgets take one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .checks import int64_codes
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
        If ``codes`` are not integers of two dimensions, or ``k`` is not in ``[1, width]``.

    Examples
    --------
    >>> answer_counts([[0, 1, 0, -1]], 4).tolist()
    [[2, 1, 2, 0]]
    """
    table = int64_codes("codes", codes)
    if table.ndim != 2:
        raise ValueError(f"codes: got shape {table.shape}; need (n, width); because a row holds the answers of a prompt")
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
    return TopAnswer(*(np.concatenate(part) for part in zip(*blocks, strict=True)))


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
    cells, slots = slot_cells(codes[:, : max(grid, default=0)])
    for m, k, histogram in histograms(cells, slots, grid):
        yield m, k, histogram.ravel()[cells[:k]].T


def gold_counts_on_grid(codes: Ints, gold: Ints, grid: Sequence[int]) -> tuple[Ints, Ints]:
    """How often the gold answer occurs among the first k, and how many of those k hold a more frequent answer; (n, M) each."""
    cells, slots = slot_cells(np.column_stack([codes, gold]))
    own, above = np.empty((2, len(grid), len(codes)), np.int64)
    for m, _, histogram in histograms(cells[:-1], slots, grid):
        own[m] = histogram.ravel()[cells[-1]]
        above[m] = np.einsum("sn,sn->n", histogram > own[m], histogram)
    return own.T, above.T


def slot_cells(codes: Ints) -> tuple[Ints, int]:
    """Where each response is counted in the histograms of all rows, ``slot * n + row``, shape (width, n); and the number of slots."""
    n, width = codes.shape
    number = int(codes.max(initial=-1)) + 2
    if number * n <= 2 * codes.size + 2**14:
        slots = np.maximum(codes, -1) + 1
    else:
        order = codes.argsort(axis=1)
        ordered = np.take_along_axis(codes, order, axis=1)
        new = (ordered >= 0) & (np.diff(ordered, axis=1, prepend=-1) != 0)
        slots, number = np.empty_like(codes), width + 1
        np.put_along_axis(slots, order, new.cumsum(axis=1), axis=1)
    return np.ascontiguousarray(slots.T) * n + np.arange(n), number


def histograms(cells: Ints, slots: int, grid: Sequence[int]) -> Iterator[tuple[int, int, Ints]]:
    """(index, k, how often each answer occurs among the first k, shape (slots, n)); slot 0, for no answer, holds 0."""
    wanted: dict[int, list[int]] = {}
    for m, k in enumerate(grid):
        wanted.setdefault(int(k), []).append(m)
    n, seen = cells.shape[1], 0
    total = np.zeros((slots, n), np.int64)
    for k in sorted(wanted):
        total += np.bincount(cells[seen:k].ravel(), minlength=total.size).reshape(total.shape)
        total[0] = 0
        seen = k
        for m in wanted[k]:
            yield m, k, total


def gold_counts(codes: Ints, gold: Ints, k: int) -> Ints:
    """How often the gold answer occurs among the first ``k``; 0 for a gold without an answer."""
    return np.asarray(((codes[:, :k] == gold[:, None]) & (gold[:, None] >= 0)).sum(axis=1), dtype=np.int64)
