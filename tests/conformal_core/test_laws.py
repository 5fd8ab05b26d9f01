"""Laws of coverage: closed forms against enumeration."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal_core.laws import betabinomial_hits, clopper_pearson, coverage_law, pac_rank, tied_coverage
from conformal_core.level import conformal_rank
from conformal_core.quantile import conformal_quantile
from tests.strategies import levels


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 4), levels)
@settings(max_examples=40)
def test_tied_coverage_is_the_enumerated_coverage(parts: list[int], n: int, level: Fraction) -> None:
    pmf = [Fraction(p, sum(parts)) for p in parts]
    exact = Fraction(0)
    for sample in product(range(len(pmf)), repeat=n):
        q = conformal_quantile(np.array(sample, float), level).value
        exact += prod((pmf[i] for i in sample), start=Fraction(1)) * sum(p for i, p in enumerate(pmf) if i <= q)
    assert tied_coverage(pmf, n, level) == exact
    rank = conformal_rank(n, level)
    assert Fraction(rank, n + 1) <= exact <= Fraction(rank, n + 1) + max(pmf)
    assert exact >= 1 - level


def test_coverage_law_moments_and_yardstick() -> None:
    law = coverage_law(200, "0.12")
    assert law.mean() == pytest.approx(177 / 201)
    assert law.var() == pytest.approx(177 * 24 / (201**2 * 202))
    hits = betabinomial_hits(300, 200, "0.12")
    assert [round(x / 300, 3) for x in hits.interval(0.9)] == pytest.approx([0.83, 0.927], abs=0.004)


def test_coverage_law_by_simulation() -> None:
    rng = np.random.default_rng(0)
    cover = np.sort(rng.random((4000, 19)), axis=1)[:, conformal_rank(19, 0.1) - 1]
    from scipy.stats import kstest

    assert kstest(cover, coverage_law(19, 0.1).cdf).pvalue > 1e-3


def test_unattainable_levels_have_no_law() -> None:
    with pytest.raises(ValueError, match="need at least 19"):
        coverage_law(18, 0.05)


@given(st.integers(1, 30), st.integers(0, 30), st.sampled_from(["0.9", "0.95", "0.99"]))
def test_clopper_pearson_is_scipys_and_brackets(n: int, x: int, level: str) -> None:
    from scipy.stats import binomtest

    x = min(x, n)
    ref = binomtest(x, n).proportion_ci(float(level))
    assert clopper_pearson(x, n, level) == pytest.approx((ref.low, ref.high), abs=1e-10)


def test_clopper_pearson_covers_every_proportion() -> None:
    from scipy.stats import binom

    bounds = np.array([clopper_pearson(x, 12, 0.9) for x in range(13)])
    for p in np.linspace(0.01, 0.99, 25):
        inside = (bounds[:, 0] <= p) & (p <= bounds[:, 1])
        assert binom.pmf(np.arange(13), 12, p)[inside].sum() >= 0.9 - 1e-12


@given(st.integers(1, 300), levels, st.sampled_from(["0.05", "0.1", "0.5"]))
def test_pac_rank_is_the_smallest_that_does(n: int, level: Fraction, gamma: str) -> None:
    from scipy.stats import beta

    rank = pac_rank(n, level, gamma)
    target, promise = float(1 - level), 1 - float(gamma)
    if rank <= n:
        assert beta.sf(target, rank, n + 1 - rank) >= promise - 1e-9
    if rank > 1:
        assert beta.sf(target, rank - 1, n + 2 - rank) < promise + 1e-9


@pytest.mark.parametrize(("x", "n"), [(-1, 3), (4, 3), (0, 0)])
def test_bad_counts(x: int, n: int) -> None:
    with pytest.raises(ValueError, match=r"^x, n: got "):
        clopper_pearson(x, n)


@pytest.mark.parametrize("pmf", [[], ["1/2"], ["3/2", "-1/2"]])
def test_bad_pmf(pmf: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^pmf: got "):
        tied_coverage(pmf, 4, "1/2")


@pytest.mark.parametrize(("x", "n"), [(1.5, 3), (True, 3), (1, 0), (4, 3), (-1, 3), ("1", 3)])
def test_intervals_refuse_what_is_not_a_count(x: object, n: object) -> None:
    with pytest.raises(ValueError, match=r"^x, n: got .*; need integers .*; because "):
        clopper_pearson(x, n)


def test_hits_refuse_what_is_not_a_count() -> None:
    with pytest.raises(ValueError, match=r"^m: got 1\.5"):
        betabinomial_hits(1.5, 20, "0.1")
