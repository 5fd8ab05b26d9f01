"""Exact levels and ranks against an independent Fraction oracle."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.level import as_level, conformal_rank, min_calibration_size
from tests.strategies import levels, spellings


def oracle_rank(n: int, level: Fraction) -> int:
    return math.ceil((n + 1) * (1 - level))


@given(st.integers(0, 5000), levels)
def test_rank_is_the_exact_ceiling_for_every_spelling(n: int, level: Fraction) -> None:
    for written in spellings(level):
        assert as_level(written) == level
        assert conformal_rank(n, written) == oracle_rank(n, level)


NS = sorted({*range(1, 60), *range(99, 2000, 100), *range(49, 2000, 50), 1999, 2000, *range(61, 2000, 37)})


@pytest.mark.parametrize("family", ["literal", "one_minus", "auto", "string", "decimal", "fraction"])
def test_zero_wrong_ranks(family: str) -> None:
    """The families of the float audit; libraries in use get up to 8,422 of these ranks wrong."""
    wrong = 0
    for j in range(1, 100):
        exact = Fraction(j, 100)
        delta = {
            "literal": j / 100,
            "one_minus": 1 - (1 - j / 100),
            "auto": min(max(1 - (1 - (j / 100 - 0.05)) + 0.0, 0.01), 0.99) + 0.05 if j >= 6 else j / 100,
            "string": f"0.{j:02d}",
            "decimal": Decimal(j) / 100,
            "fraction": exact,
        }[family]
        level = as_level(delta)
        assert level == exact
        wrong += sum(conformal_rank(n, level) != oracle_rank(n, exact) for n in NS)
    assert wrong == 0


def test_zero_wrong_ranks_for_floats_divided_by_a_number_of_budgets() -> None:
    for text in ("0.05", "0.1", "0.12", "0.2", "0.25", "0.3", "0.65"):
        for budgets in (2, 3, 4, 5, 6, 7, 10, 30):
            exact = Fraction(text) / budgets
            assert as_level(float(text) / budgets) == exact
            assert all(conformal_rank(n, float(text) / budgets) == oracle_rank(n, exact) for n in NS[::4])


def test_the_naive_float_rank_is_wrong_where_this_one_is_not() -> None:
    assert math.ceil(10 * (1 - 0.7)) == 4
    assert conformal_rank(9, 0.7) == 3
    assert conformal_rank(9, 0.3 / 3) == 9


@given(levels, st.integers(1, 6), st.integers(1, 6))
def test_min_calibration_size_is_the_smallest_that_is_attainable(level: Fraction, budgets: int, checkpoints: int) -> None:
    n = min_calibration_size(level, budgets=budgets, checkpoints=checkpoints)
    part = level / (budgets * checkpoints)
    assert conformal_rank(n, part) <= n
    assert n == 0 or conformal_rank(n - 1, part) == n


@given(st.integers(0, 500), levels, levels)
def test_rank_is_monotone(n: int, a: Fraction, b: Fraction) -> None:
    lo, hi = sorted((a, b))
    assert 1 <= conformal_rank(n, hi) <= conformal_rank(n, lo) <= n + 1
    assert conformal_rank(n, a) <= conformal_rank(n + 1, a) <= conformal_rank(n, a) + 1


BAD_LEVELS = [0, 1, -0.1, 1.1, 0.0, 1.0, "0", "1", "nan", "x", "", "1/0", math.nan, math.inf, Decimal("NaN"), Decimal("Infinity")]
BAD_LEVELS += [True, False, np.bool_(True), np.float64("nan"), Fraction(0), Fraction(5, 4), 1e-9, None, [0.1], 0.1j]


@pytest.mark.parametrize("bad", BAD_LEVELS)
def test_bad_levels_are_refused_by_name(bad: object) -> None:
    with pytest.raises(ValueError, match=r"^rate: got .*; need .*; because "):
        as_level(bad, "rate")  # type: ignore[arg-type]


def test_narrow_numpy_floats_mean_their_decimal() -> None:
    assert as_level(np.float32(0.1)) == Fraction(1, 10)
    assert as_level(np.float16(0.3)) == Fraction(3, 10)


@pytest.mark.parametrize("bad", [-1, 2.0, True, "3", None])
def test_bad_counts_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"^n: got "):
        conformal_rank(bad, 0.1)  # type: ignore[arg-type]
    if bad != 2.0:
        with pytest.raises(ValueError, match=r"^budgets: got "):
            min_calibration_size(0.1, budgets=bad)  # type: ignore[arg-type]


def test_a_float_is_the_nearest_rational_of_denominator_up_to_a_million() -> None:
    assert as_level(1 / 999_983) == Fraction(1, 999_983)
    assert as_level(1 / 1_000_003) == Fraction(1, 10**6)


@pytest.mark.parametrize("name", ["budgets", "checkpoints"])
def test_counts_of_thresholds_start_at_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: got 0; need an integer >= 1"):
        min_calibration_size("0.1", **{name: 0})
