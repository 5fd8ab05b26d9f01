"""Claims of the C-GRPO paper about the answer set, false stops and several budgets; exact, each test named after its claim."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core import (
    APS,
    FirstSuccess,
    MassAbove,
    Outcomes,
    ReleasedAPS,
    calibrate_thresholds,
    conformal_quantile,
    conformal_rank,
    empty_probability,
    first_success_cdf,
    inclusive_set,
    mass_above_set,
    min_calibration_size,
    randomized_set,
    released_set,
    singleton_probability,
    tied_coverage,
)

quarter = [Fraction(j, 24) for j in range(24)]


def rows(*codes: int) -> np.ndarray:
    return np.array([codes])


# --- E: the set


@pytest.mark.parametrize("q", quarter)
def test_E1_law_of_the_singleton_by_integration_over_u(q: Fraction) -> None:
    """Every count vector of k <= 6: P(singleton) by exact integration over shared and over independent u."""
    for k in range(1, 7):
        for counts in (c for size in range(1, k + 1) for c in combinations_with_replacement(range(1, k + 1), size) if sum(c) == k):
            above = [Fraction(sum(d for d in counts if d > c), k) for c in counts]
            ends = [min(max((q - g) / Fraction(c, k), Fraction(0)), Fraction(1)) for g, c in zip(above, counts, strict=True)]
            cuts = sorted({Fraction(0), Fraction(1), *ends})
            shared = sum((b - a for a, b in pairwise(cuts) if sum(e >= b for e in ends) == 1), Fraction(0))
            independent = sum((e * prod(1 - f for j, f in enumerate(ends) if j != i) for i, e in enumerate(ends)), Fraction(0))
            assert singleton_probability(counts, q) == shared
            assert singleton_probability(counts, q, "independent") == independent
            if len(set(counts)) == len(counts):
                assert shared == independent  # untied: at most one answer straddles q


@given(st.integers(2, 9), st.integers(1, 8), st.integers(1, 3), st.fractions(0, Fraction(29, 30), max_denominator=30))
def test_E1_closed_form_with_tied_seconds(first: int, second: int, m2: int, q: Fraction) -> None:
    """q/p1 below p1; then (1 - (q - p1)/p2) for shared u, to the power m2 for independent u; then 0."""
    if second >= first:
        return
    k = first + m2 * second
    p1, p2, counts = Fraction(first, k), Fraction(second, k), [first] + [second] * m2
    after = max(1 - (q - p1) / p2, Fraction(0))
    assert singleton_probability(counts, q) == (q / p1 if q < p1 else after)
    assert singleton_probability(counts, q, "independent") == (q / p1 if q < p1 else after**m2)


@given(st.integers(1, 6), st.integers(2, 4), st.fractions(0, Fraction(29, 30), max_denominator=30))
def test_E1_and_E2_tied_top(count: int, m1: int, q: Fraction) -> None:
    """Shared u keeps tied answers together: never a singleton; independent: m1 a (1 - a)^(m1 - 1).  Empty: 1 - a, or (1 - a)^m1."""
    a = min(Fraction(1), q * m1)
    assert singleton_probability([count] * m1, q) == 0
    assert singleton_probability([count] * m1, q, "independent") == m1 * a * (1 - a) ** (m1 - 1)
    assert empty_probability([count] * m1, q) == 1 - a
    assert empty_probability([count] * m1, q, "independent") == (1 - a) ** m1


def test_E2_a_unanimous_prompt_is_sent_on_and_the_inclusive_set_is_never_empty() -> None:
    assert empty_probability([4], "22/25") == Fraction(3, 25)
    assert inclusive_set(rows(0, 0, 0, 0), 4, 0.88).size.tolist() == [1.0]


def test_E4_the_inclusive_set_contains_the_randomized_one_below_one_only() -> None:
    for codes in product((0, 1, 2), repeat=4):
        for q in np.arange(1, 64) / 64:
            narrow, wide = randomized_set(rows(*codes), 4, q, [0.5]), inclusive_set(rows(*codes), 4, q)
            assert (wide.member | ~narrow.member).all()
            if narrow.size[0] and wide.singleton[0]:  # its singletons commit to the same answer, so are wrong no more often
                assert narrow.singleton[0] and narrow.committed[0] == wide.committed[0]


# --- F: false stops


def test_F2_the_bound_is_joint_and_says_nothing_given_a_stop() -> None:
    """3 of 4 prompts tie gold with one wrong answer, 1 of 4 is unanimous and wrong; delta = .3: only the wrong ones stop."""
    codes = np.array([[0, 1, 0, 1]] * 75 + [[1, 1, 1, 1]] * 25)
    o = Outcomes(np.arange(100), codes == 0, codes=codes, gold=np.zeros(100, int))
    u = np.full(100, 0.5)
    q = conformal_quantile(MassAbove().gold_scores(o, (4,), u)[:, 0], "0.3").value
    stop, answer = MassAbove().stop(o, 4, q, u)
    assert stop.sum() == 25 <= 30 and (answer[stop] == 1).all()


def test_F3_a_first_success_stop_holds_a_verified_success() -> None:
    for passes in product((False, True), repeat=4):
        o = Outcomes([0], np.array([passes]))
        for q in np.arange(0, 8) / 8:
            if FirstSuccess().stop(o, 4, q, [0.0])[0][0]:
                assert any(passes[:3])


# --- G: several budgets


def test_A2_and_G1_bonferroni_needs_the_infinite_threshold() -> None:
    """n = 20, delta = .1, M = 5, fresh u, perfect policy: with min(L, n) the miss at some budget is 1 - (20/21)^5 = .2165 > .1."""
    assert conformal_rank(20, Fraction(1, 50)) == 21
    assert 1 - Fraction(20, 21) ** 5 > Fraction(1, 10) and round(float(1 - Fraction(20, 21) ** 5), 4) == 0.2165
    with pytest.warns(UserWarning, match=r"need 49 "):
        assert calibrate_thresholds(np.zeros((20, 5)), (2, 4, 8, 16, 32), "0.1", "bonferroni").q == (np.inf,) * 5


def test_G2_level_delta_at_each_budget_misses_M_delta_in_the_limit() -> None:
    """U_k = (U + k delta) mod 1 and the limit thresholds 1 - delta: the five misses are disjoint; one u per prompt: they coincide."""
    d, u = Fraction(12, 100), [Fraction(2 * j + 1, 200) for j in range(100)]
    missed = [[(x + k * d) % 1 > 1 - d for k in range(5)] for x in u]
    assert Fraction(sum(map(any, missed)), 100) == 5 * d
    assert Fraction(sum(x > 1 - d for x in u), 100) == d
    assert round(float(1 - (1 - d) ** 5), 3) == 0.472


def test_G6_and_A1_checkpoints_need_that_many_prompts() -> None:
    assert min_calibration_size("0.12", budgets=5, checkpoints=6) == 249
    assert conformal_rank(200, Fraction("0.12") / 30) == 201 and conformal_rank(100, Fraction("0.12") / 30) == 101


def test_G7_auto_delta_over_five_budgets_is_stricter_than_a_fixed_one() -> None:
    assert Fraction("0.12") / 5 == Fraction("0.024") < Fraction(1, 20)


def test_G8_split_and_bonferroni_are_valid_but_not_exact() -> None:
    """n = 100, delta = .12, M = 5, comonotone scores: joint coverage 99/101, over its target by ten points."""
    rank = conformal_rank(100, Fraction("0.12") / 5)
    assert Fraction(rank, 101) - (1 - Fraction("0.12")) > Fraction(1, 11)


# --- A5, A6: the scores are discrete


def test_A5_first_success_has_atoms_at_every_response() -> None:
    """p ~ U(0, 1), k = 3: masses 1/2, 1/6, 1/3 at j = 1, 2 and 3-or-never."""
    cdf = [first_success_cdf(j, 1, 1) for j in (1, 2)]
    assert (cdf[0], cdf[1] - cdf[0], 1 - cdf[1]) == (Fraction(1, 2), Fraction(1, 6), Fraction(1, 3))
    assert tied_coverage(["1/2", "1/2"], 4, "2/5") > 1 - Fraction(2, 5) + Fraction(1, 5)


@pytest.mark.parametrize(("atom", "cells"), [("1/4", 150), ("1/10", 180), ("1/2", 100)])
def test_A6_the_atom_of_unsampled_golds_adds_coverage(atom: str, cells: int) -> None:
    """Coverage = L/(n + 1) + E[(1 - B) 1{B > 1 - m}]: exact to one cell of a fine discretisation of the continuous part."""
    from scipy.integrate import quad
    from scipy.stats import beta

    m, n, d = Fraction(atom), 20, "0.12"
    rank = conformal_rank(n, d)
    law = beta(rank, n + 1 - rank)
    claimed = rank / (n + 1) + quad(lambda b: (1 - b) * law.pdf(b), float(1 - m), 1)[0]
    exact = float(tied_coverage([(1 - m) / cells] * cells + [m], n, d))
    assert 0 <= exact - claimed + 1e-9 <= float((1 - m) / cells) + 1e-9


# --- H5, I: which groups a singleton stops


def test_H5_a_singleton_is_easiest_at_the_top_share() -> None:
    """(3/4, 1/4): 1/3 at q = 1/4, 1 at 3/4, .48 at .88; unanimous: q.  The level-set rules stop iff the top share reaches q."""
    assert [singleton_probability([3, 1], q) for q in ("1/4", "3/4", "22/25")] == [Fraction(1, 3), 1, Fraction(12, 25)]
    assert singleton_probability([4], "22/25") == Fraction(22, 25)
    for q in np.arange(1, 40) / 40:
        for codes, top in (((0, 0, 0, 1), 0.75), ((0, 0, 0, 0), 1.0), ((0, 0, 1, 2), 0.5)):
            assert inclusive_set(rows(*codes), 4, q).singleton[0] == (top >= q)
            assert mass_above_set(rows(*codes), 4, q).singleton[0] == (top > q or top == 1)
            assert released_set(rows(*codes), 4, q, [[1, 2, 3, 4]]).singleton[0] == (top >= q)


def test_I1_a_wrong_singleton_can_have_reward_variance() -> None:
    """w, w, w, g at q = .88: {w} with probability 12/25, and for the inclusive set always up to q = 3/4; variance 3/16."""
    assert singleton_probability([3, 1], "22/25") == Fraction(12, 25)
    assert inclusive_set(rows(1, 1, 1, 0), 4, 0.75).committed.tolist() == [1]
    assert Fraction(1, 4) * Fraction(3, 4) == Fraction(3, 16)


def test_I2_a_singleton_at_two_is_a_unanimous_pair() -> None:
    """So every such group has zero reward variance; independent u with q < 1/2 and the released order with q <= 1/2 are the exceptions."""
    for q in (Fraction(j, 40) for j in range(1, 40)):
        assert singleton_probability([1, 1], q) == 0 == singleton_probability([1, 1], q, "inclusive")
        assert singleton_probability([1, 1], q, "mass_above") == 0
        assert (singleton_probability([1, 1], q, "independent") > 0) == (q < Fraction(1, 2))
        assert (singleton_probability([1, 1], q, "released") > 0) == (q <= Fraction(1, 2))
    o = Outcomes([0], np.array([[True, False]]), codes=rows(0, 1), gold=np.array([0]))
    assert not any(score.stop(o, 2, 0.7, [0.3])[0][0] for score in (APS(), APS("inclusive"), MassAbove(), ReleasedAPS()))


@pytest.mark.parametrize(("a", "b", "wrong"), [("1.14", "0.86", 0.396), ("1", "1", 0.5)])
def test_I2_how_many_of_those_pairs_are_wrong(a: str, b: str, wrong: float) -> None:
    """One wrong answer: E(1 - p)^2 / (E p^2 + E(1 - p)^2)."""
    both_wrong, both_right = 1 - first_success_cdf(2, a, b), 1 - first_success_cdf(2, b, a)
    assert round(float(both_wrong / (both_wrong + both_right)), 3) == wrong


def test_I2_at_four_with_a_high_threshold_only_unanimous_groups_stop() -> None:
    """Deterministic sets, q in (3/4, 1)."""
    for codes in product((0, 1, 2), repeat=4):
        table = rows(*codes)
        for sets in (inclusive_set(table, 4, 0.8), mass_above_set(table, 4, 0.8), released_set(table, 4, 0.8, table)):
            assert sets.singleton[0] == (len(set(codes)) == 1)
