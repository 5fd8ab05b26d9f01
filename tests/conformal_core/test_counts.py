"""Counts of answers within rows, whatever the size of their codes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.counts import answer_counts, counts_on_grid, gold_counts, gold_counts_on_grid, slot_cells, top_answer

SMALL, LARGE = [-2, -1, 0, 1, 2, 3, 40], [-2, -1, 0, 1, 2**14, 2**40, 2**63 - 2, 2**63 - 1]
grids = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Codes (n, 7) and gold (n,), of small codes (a histogram as they are) or of any (renumbered within rows)."""
    code = st.sampled_from(draw(st.sampled_from([SMALL, LARGE])))
    rows = draw(st.lists(st.lists(code, min_size=8, max_size=8), max_size=5))
    both = np.array(rows, np.int64).reshape(-1, 8)
    return both[:, :7], both[:, 7]


def tally(row: np.ndarray, k: int) -> Counter[int]:
    return Counter(c for c in row[:k].tolist() if c >= 0)


@given(table=tables(), grid=grids)
def test_counts_of_positions_and_of_gold(table: tuple[np.ndarray, np.ndarray], grid: list[int]) -> None:
    codes, gold = table
    by_position = list(counts_on_grid(codes, grid))
    assert sorted(m for m, _, _ in by_position) == list(range(len(grid)))
    own, above = gold_counts_on_grid(codes, gold, grid)
    assert own.shape == above.shape == (len(codes), len(grid))
    for m, k, counts in by_position:
        assert k == grid[m] and counts.shape == (len(codes), k)
        np.testing.assert_array_equal(counts, answer_counts(codes, k))
        np.testing.assert_array_equal(own[:, m], gold_counts(codes, gold, k))
        for i, row in enumerate(codes):
            seen = tally(row, k)
            assert counts[i].tolist() == [seen[c] for c in row[:k].tolist()]
            mine = seen[int(gold[i])]
            assert (own[i, m], above[i, m]) == (mine, sum(c for c in seen.values() if c > mine))


@given(table=tables(), k=st.integers(1, 7))
def test_top_answer(table: tuple[np.ndarray, np.ndarray], k: int) -> None:
    codes, _ = table
    top = top_answer(codes, k)
    for i, row in enumerate(codes):
        counts = [*sorted(tally(row, k).values(), reverse=True), 0, 0]
        assert top.first[i] == counts[0]
        assert top.unique[i] == (counts[0] > counts[1])
        if top.unique[i]:
            assert top.second[i] == counts[1]
            assert tally(row, k)[int(top.answer[i])] == counts[0]


def test_large_codes_take_no_more_memory_than_small_ones() -> None:
    """A histogram over the codes as they are would take 8 * 10^12 bytes."""
    codes = np.arange(1000)[:, None] + np.array([0, 10**9, 0, 10**12])
    assert answer_counts(codes, 4).tolist() == [[2, 1, 2, 1]] * 1000


def test_codes_beyond_the_budget_are_not_read() -> None:
    assert answer_counts([[3, 3, 2**60]], 2).tolist() == [[2, 2]]
    with pytest.raises(ValueError, match=r"grid: got the budget 4; need integers in \[1, 3\]"):
        answer_counts([[3, 3, 2**60]], 4)


@pytest.mark.parametrize(("largest", "slots"), [(8 + 2**14 - 2, 8 + 2**14), (8 + 2**14 - 1, 5)])
def test_histograms_take_at_most_twice_the_table_and_some_cells(largest: int, slots: int) -> None:
    cells, number = slot_cells(np.array([[0, largest, 0, -1]]))
    assert number == slots
    assert cells[0] == cells[2] != cells[1] and cells[3] == 0


def test_a_long_table_has_the_leaders_of_its_rows() -> None:
    codes = np.random.default_rng(0).integers(0, 3, (90_000, 2))
    top = top_answer(codes, 2)
    same = codes[:, 0] == codes[:, 1]
    assert (top.unique == same).all() and (top.first == 1 + same).all() and (top.answer[same] == codes[same, 0]).all()


def test_a_table_without_answers_needs_one_slot() -> None:
    cells, number = slot_cells(np.full((3, 2), -1))
    assert number == 1 and cells.tolist() == [[0, 1, 2]] * 2
