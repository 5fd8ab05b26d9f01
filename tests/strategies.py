"""Hypothesis strategies shared by the tests."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from conformal_core.outcomes import NOT_DRAWN, UNPARSABLE, Outcomes

#: Levels as exact rationals, dense where ranks are decided: j/100, 1/(n+1), and anything with a small denominator.
levels = st.one_of(
    st.integers(1, 99).map(lambda j: Fraction(j, 100)),
    st.integers(2, 300).map(lambda d: Fraction(1, d)),
    st.fractions(min_value=Fraction(1, 1000), max_value=Fraction(999, 1000), max_denominator=1000),
)

#: Numbers on a coarse lattice, so that ties are common; +inf now and then.
tied_scores = st.one_of(st.integers(0, 8).map(lambda j: j / 8), st.just(float("inf")), st.floats(0, 1))

#: Exact uniform numbers: multiples of 1/64 in [0, 1).
dyadic_uniforms = st.integers(0, 63).map(lambda j: j / 64)


def spellings(level: Fraction) -> list[object]:
    """The same level as everything a user may write."""
    written: list[object] = [level, str(level), float(level), np.float64(float(level)), 1 - (1 - float(level))]
    if 10**6 % level.denominator == 0:
        written.append(Decimal(level.numerator) / Decimal(level.denominator))
    return written


@st.composite
def answer_rows(draw: st.DrawFn, widths: tuple[int, int] = (1, 9), answers: int = 4) -> list[str | None]:
    """Answers of one prompt in the order drawn; ``None`` is unparsable."""
    pool = st.sampled_from([*"ABCDEFGH"[:answers], None])
    return draw(st.lists(pool, min_size=widths[0], max_size=widths[1]))


@st.composite
def outcomes(draw: st.DrawFn, max_n: int = 5, widths: tuple[int, int] = (1, 9), answers: int = 3, full: bool = False) -> Outcomes:
    """Batches with codes, gold and ragged budgets; ``passes`` is agreement with gold."""
    n = draw(st.integers(1, max_n))
    width = draw(st.integers(*widths))
    codes = np.array(draw(st.lists(st.lists(st.integers(-1, answers - 1), min_size=width, max_size=width), min_size=n, max_size=n)))
    gold = np.array(draw(st.lists(st.integers(-1, answers), min_size=n, max_size=n)), dtype=np.int64)
    drawn = np.full(n, width) if full else np.array(draw(st.lists(st.integers(0, width), min_size=n, max_size=n)))
    live = np.arange(width) < drawn[:, None]
    codes = np.where(live, codes, NOT_DRAWN)
    ids = np.array(draw(st.lists(st.integers(0, 2**64 - 1), min_size=n, max_size=n)), dtype=np.uint64)
    return Outcomes(ids, (codes == gold[:, None]) & (codes != UNPARSABLE) & live, drawn=drawn, codes=codes, gold=gold)
