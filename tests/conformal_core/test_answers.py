"""Answer codes keep exactly the equalities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.answers import encode_answers
from tests.strategies import answer_rows


@given(st.lists(st.tuples(answer_rows(widths=(0, 7)), st.sampled_from(["A", "B", "Z", None])), max_size=6))
def test_codes_keep_equality_and_first_appearance(rows: list[tuple[list[str | None], str | None]]) -> None:
    answers, gold = [r for r, _ in rows], [g for _, g in rows]
    codes, gold_codes = encode_answers(answers, gold)
    assert gold_codes is not None
    assert codes.shape == (len(rows), max(map(len, answers), default=0))
    for i, row in enumerate(answers):
        live = codes[i, : len(row)]
        assert (codes[i, len(row) :] == -2).all()
        assert [c == -1 for c in live] == [a is None for a in row]
        for a, x in zip(row, live, strict=True):
            assert [x == y for y in live] == [a == b for b in row]
            assert (x == gold_codes[i]) == (a == gold[i])
        seen = [c for c in dict.fromkeys(live.tolist()) if c >= 0]
        assert seen == list(range(len(seen)))
        assert (gold_codes[i] == -1) == (gold[i] is None)


def test_without_gold() -> None:
    codes, gold = encode_answers([[("a", 1), ("a", 1)], []])
    assert codes.tolist() == [[0, 0], [-2, -2]]
    assert gold is None
    assert codes.dtype == np.int64


@pytest.mark.parametrize(("answers", "gold"), [(["ab"], None), ([[["x"]]], None), ([["x"]], [["x"]]), ([["x"]], ["x", "y"])])
def test_bad_answers_are_refused(answers: list[list[object]], gold: list[object] | None) -> None:
    with pytest.raises(ValueError, match=r"; need .*; because "):
        encode_answers(answers, gold)  # type: ignore[arg-type]
