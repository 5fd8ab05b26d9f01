"""The claims of the CARM paper about responses, bounds and the guard, one test each, named after them.

Responses are tuples of rational ratios; a claim about logarithms is decided on exact products of rationals where it can be, and by
comparing with a margin where not. The library is called on float log-ratios.
"""

import itertools
import math
import os
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from carm_core import (
    CARM,
    TRM,
    GeoMean,
    MeanExpAbs,
    best_of_k,
    carm_bound,
    carm_score,
    clipped_surrogate,
    finite_T_bound,
    geomean_score,
    geomean_witness,
    log_ratio,
    masked_loss,
    max_violations,
    mean_exp_abs,
    mean_k1,
    mean_k2,
    mean_k3,
    severity_bound,
    signed_mean,
    signed_mean_bound,
    worst_of_k,
)

EXAMPLES = int(os.environ.get("CARM_CLAIM_EXAMPLES", "60"))
some = settings(max_examples=EXAMPLES, deadline=None)
BAND = (0.8, 1.28)
bands = st.sampled_from([BAND, (0.5, 1.1), (0.9, 3.0), (0.8, 1.25)])


def fractions(low, high, most):
    """Rationals of denominator at most `most`: Hypothesis's own, or for thousands of examples made from one seed that it draws."""
    low, high = Fraction(low), Fraction(high)
    if EXAMPLES < 1000:
        return st.fractions(min_value=low, max_value=high, max_denominator=most)
    return st.integers(0, 2**64 - 1).map(lambda seed: fraction(random.Random(seed), low, high, most))


def fraction(source, low, high, most):
    d = source.randint(1, most)
    least, largest = math.ceil(low * d), math.floor(high * d)
    return Fraction(source.randint(least, largest), d) if least <= largest else fraction(source, low, high, most)


def response(source):
    kinds = [(1, 1, 1), (Fraction(9, 10), Fraction(11, 10), 200), (Fraction(1, 20), Fraction(20), 50)]
    return [fraction(source, *source.choice(kinds)) for _ in range(source.randint(1, 10))]


ratios, near_one = fractions(Fraction(1, 20), 20, 50), fractions(Fraction(9, 10), Fraction(11, 10), 200)
responses = (
    st.lists(st.one_of(st.just(Fraction(1)), near_one, ratios), min_size=1, max_size=10)
    if EXAMPLES < 1000
    else st.integers(0, 2**64 - 1).map(lambda seed: response(random.Random(seed)))
)
taus = st.one_of(st.sampled_from([Fraction(51, 50), Fraction(26, 25)]), fractions(1, 3, 100))


def logs(row):
    return np.array([[math.log(r) for r in row]])


def ones(row):
    return np.ones((1, len(row)))


def s_carm_at_most(row, tau):
    """exp(mean |log r|) <= tau, exactly: prod max(r, 1/r) <= tau^T."""
    return math.prod(max(r, 1 / r) for r in row) <= Fraction(tau) ** len(row)


def s_geomean_at_most(row, tau):
    product = math.prod(row, start=Fraction(1))
    return max(product, 1 / product) <= Fraction(tau) ** len(row)


def violations(row, band):
    low, high = (Fraction(b).limit_denominator(10**6) for b in band)
    minus, plus = [r for r in row if r < low], [r for r in row if r > high]
    excess = [math.log(low / r) for r in minus] + [math.log(r / high) for r in plus]
    severity = math.fsum(excess) / len(excess) if excess else 0.0
    return len(minus) / len(row), len(plus) / len(row), severity


def costs(band):
    return -math.log(band[0]), math.log(band[1])


# ---- Proposition 1


@some
@given(fractions(Fraction(11, 10), 50, 10**6), fractions(0, 1, 10**6), st.integers(1, 8))
def test_proposition_1_every_ratio_outside_while_geomean_is_one(B, share, half):
    assume(0 < share < 1)
    c = 1 + share * (B - 1)
    row = [B, 1 / B] * half
    assert all(r > c or r < 1 / c for r in row)
    z = np.array([[math.log(B), -math.log(B)] * half])
    assert geomean_score(z, ones(row))[0] == 0.0
    assert GeoMean(1.0).keep(z, ones(row))[0]
    assert carm_score(z, ones(row))[0] == pytest.approx(math.log(B), rel=1e-12)
    assert not CARM(float(c)).keep(z, ones(row))[0]


@some
@given(st.integers(2, 30), bands, st.floats(0, 15))
def test_proposition_1_extends_to_every_length_from_two_and_any_severity(T, band, severity):
    z = np.array([geomean_witness(T, band, severity=severity)])
    assert geomean_score(z, np.ones((1, T)))[0] == 0.0
    b_minus, b_plus = costs(band)
    assert all(x < -b_minus - severity or x > b_plus + severity for x in z[0])


@some
@given(ratios)
def test_proposition_1_single_token_scores_coincide(r):
    z = logs([r])
    assert carm_score(z, ones([r]))[0] == geomean_score(z, ones([r]))[0]


# ---- Proposition 2


@some
@given(responses, taus)
def test_proposition_2_score_order_and_acceptance_set_inclusion(row, tau):
    z = logs(row)
    assert carm_score(z, ones(row))[0] >= geomean_score(z, ones(row))[0]
    assert s_geomean_at_most(row, tau) or not s_carm_at_most(row, tau)
    assert GeoMean(float(tau)).keep(z, ones(row))[0] or not CARM(float(tau)).keep(z, ones(row))[0]


def test_proposition_2_on_every_small_integer_response():
    for T in range(1, 5):
        z = np.array(list(itertools.product(range(-3, 4), repeat=T)), dtype=float)
        assert (carm_score(z, np.ones(z.shape)) >= geomean_score(z, np.ones(z.shape))).all()


def test_proposition_2_equality_iff_all_nonzero_log_ratios_have_one_sign():
    for T in range(1, 5):
        z = np.array(list(itertools.product(range(-3, 4), repeat=T)), dtype=float)
        equal = carm_score(z, np.ones(z.shape)) == geomean_score(z, np.ones(z.shape))
        one_sign = (z >= 0).all(axis=1) | (z <= 0).all(axis=1)
        assert (equal == one_sign).all()


# ---- Proposition 3


def tightest_tau(row):
    """A rational just above s_CARM(row)."""
    s = math.exp(math.fsum(abs(math.log(r)) for r in row) / len(row))
    return Fraction(s) * (1 + Fraction(1, 10**12))


@some
@given(responses, bands)
def test_proposition_3_budget_of_frequency_and_severity(row, band):
    tau = tightest_tau(row)
    assert s_carm_at_most(row, tau)
    p_minus, p_plus, severity = violations(row, band)
    b_minus, b_plus = costs(band)
    log_tau = math.log(tau)
    p = p_minus + p_plus
    assert p_minus * b_minus + p_plus * b_plus + p * severity <= log_tau + 1e-11
    assert p <= carm_bound(float(tau), band, severity=severity) + 1e-11
    assert carm_bound(float(tau), band, severity=severity) <= carm_bound(float(tau), band)
    assert p == 0 or severity <= severity_bound(p, float(tau), band) + 1e-9


@some
@given(responses, taus, bands)
def test_proposition_3_every_response_the_library_keeps_is_inside_its_bound(row, tau, band):
    if CARM(float(tau)).keep(logs(row), ones(row))[0]:
        assert sum(violations(row, band)[:2]) <= carm_bound(float(tau), band) + 1e-12


@some
@given(st.integers(1, 200), st.sampled_from([1.02, 1.04, 1.3]), bands)
def test_proposition_3_equality_is_attained_by_in_band_ones_and_equal_excess(T, tau, band):
    m = max_violations(T, tau, band)
    assume(m > 0)
    b = min(costs(band))
    sign = -1 if costs(band)[0] <= costs(band)[1] else 1
    excess = T * math.log(tau) / m - b
    assert excess == pytest.approx(severity_bound(m / T, tau, band), abs=1e-9) and excess > 0
    z = np.array([[sign * (b + excess)] * m + [0.0] * (T - m)])
    assert carm_score(z, np.ones((1, T)))[0] == pytest.approx(math.log(tau), rel=1e-12)
    assert m / T == pytest.approx(carm_bound(tau, band, severity=excess), rel=1e-9)


@some
@given(st.integers(1, 40), st.sampled_from([1.02, 1.04, 1.3]), bands)
def test_proposition_3_sharp_finite_length_value_by_brute_force(T, tau, band):
    low, high = (Fraction(b).limit_denominator(10**6) for b in band)
    cheapest = min(1 / low, high) * (1 + Fraction(1, 10**9))
    feasible = [m for m in range(T + 1) if cheapest**m <= Fraction(tau).limit_denominator(10**6) ** T]
    assert max(feasible) == max_violations(T, tau, band)
    assert finite_T_bound(T, tau, band) < carm_bound(tau, band) or max(feasible) == T


def test_proposition_3_the_severity_free_bound_is_a_supremum_approached_from_below():
    gaps = [carm_bound(1.02) - finite_T_bound(T, 1.02) for T in (100, 10_000, 1_000_000)]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] < 1e-6


def test_proposition_3_numbers_in_the_text():
    assert 100 * carm_bound(1.02) == pytest.approx(8.8744, abs=5e-5)
    assert 100 * carm_bound(1.04) == pytest.approx(17.5764, abs=5e-5)
    assert max_violations(11, 1.02) == 0
    assert max_violations(100, 1.02) == 8
    assert max_violations(8619, 1.02) == 764


# ---- Corollary 1


@some
@given(responses, fractions(Fraction(101, 100), 5, 100))
def test_corollary_1_reciprocal_band(row, c):
    tau = tightest_tau(row)
    outside = [r for r in row if r < 1 / c or r > c]
    excess = [abs(math.log(r)) - math.log(c) for r in outside]
    severity = math.fsum(excess) / len(excess) if excess else 0.0
    p = len(outside) / len(row)
    assert p * (math.log(c) + severity) <= math.log(tau) + 1e-11
    assert p <= carm_bound(float(tau), (1 / float(c), float(c))) + 1e-11
    assert carm_bound(float(tau), (1 / float(c), float(c))) == pytest.approx(min(1, math.log(tau) / math.log(c)), rel=1e-9)


# ---- the sharper bound with the signed mean (this project)


@some
@given(responses, bands)
def test_signed_mean_bound_holds_and_improves_on_proposition_3(row, band):
    z = logs(row)
    d, g = float(carm_score(z, ones(row))[0]), float(signed_mean(z, ones(row))[0])
    p_minus, p_plus, _ = violations(row, band)
    b_minus, b_plus = costs(band)
    assert p_minus <= (d - g) / (2 * b_minus) + 1e-12
    assert p_plus <= (d + g) / (2 * b_plus) + 1e-12
    bound = signed_mean_bound(d, g, band)
    assert p_minus + p_plus <= bound + 1e-12
    assert bound <= min(1.0, d / min(b_minus, b_plus)) + 1e-12


@some
@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 60), bands)
def test_signed_mean_bound_is_tight(low, high, inside, band):
    T = low + high + inside
    assume(T > 0)
    b_minus, b_plus = costs(band)
    z = np.array([[-b_minus] * low + [b_plus] * high + [0.0] * inside])
    d, g = float(carm_score(z, np.ones((1, T)))[0]), float(signed_mean(z, np.ones((1, T)))[0])
    assert signed_mean_bound(d, g, band) == pytest.approx((low + high) / T, abs=1e-9)


def test_signed_mean_bound_numbers():
    assert round(100 * signed_mean_bound(math.log(1.02), 0.0), 2) == 8.45
    assert round(100 * carm_bound(1.02, geomean_tau=1.005), 2) == 8.56


# ---- the guard (Appendix B, numerical convention)

wild = st.lists(st.one_of(st.floats(-1000, 1000), st.floats(-25, 25), st.floats(-0.5, 0.5)), min_size=1, max_size=12)


@some
@given(wild, bands)
def test_guard_leaves_violation_counts_unchanged_so_the_frequency_bound_holds_for_true_ratios(row, band):
    z = np.array([row])
    guarded = log_ratio(z, np.zeros(z.shape), ones(row), clip=20.0).z
    low, high = math.log(band[0]), math.log(band[1])
    assert ((guarded < low) == (z < low)).all() and ((guarded > high) == (z > high)).all()
    tau = math.exp(carm_score(guarded, ones(row))[0]) * (1 + 1e-12)
    assert CARM(tau).keep(guarded, ones(row))[0]
    assert ((z < low) | (z > high)).mean() <= carm_bound(tau, band) + 1e-9


@some
@given(wild)
def test_guard_inequalities_hold_for_effective_ratios_and_it_is_idle_inside_twenty_nats(row):
    z = np.array([row])
    guarded = log_ratio(z, np.zeros(z.shape), ones(row))
    assert carm_score(guarded.z, ones(row))[0] >= geomean_score(guarded.z, ones(row))[0]
    assert carm_score(guarded.z, ones(row))[0] <= carm_score(z, ones(row))[0]
    assert guarded.clipped[0] == sum(abs(x) > 20 for x in row)
    if not guarded.clipped[0]:
        assert (guarded.z == z).all()


def test_guard_guarded_acceptance_does_not_bound_the_true_score():
    row = [-1000.0] + [0.0] * 1010
    guarded = log_ratio(np.array([row]), np.zeros((1, 1011)), ones(row)).z
    assert CARM(1.02).keep(guarded, ones(row))[0]
    assert math.exp(carm_score(np.array([row]), ones(row))[0]) == pytest.approx(2.689, abs=1e-3)


# ---- Eq. 72 and Eq. 3


@some
@given(ratios, fractions(-3, 3, 20))
def test_equation_72_dual_clip_in_rational_arithmetic(r, A):
    plain = min(r * A, min(max(r, Fraction(4, 5)), Fraction(32, 25)) * A)
    want = max(plain, 3 * A) if A < 0 else plain
    got = clipped_surrogate(logs([r]), np.array([float(A)]))[0, 0]
    assert got == pytest.approx(float(want), rel=1e-12, abs=1e-14)
    assert -got == pytest.approx(float(min(-3 * A, -plain) if A < 0 else -plain), rel=1e-12, abs=1e-14)


@some
@given(responses, responses, responses, st.integers(0, 7))
def test_equation_3_retained_and_fixed_losses_differ_by_the_retained_token_fraction(first, second, third, kept):
    rows, keep = [first, second, third], np.array([bool(kept >> i & 1) for i in range(3)])
    width = max(map(len, rows))
    z, mask = np.zeros((len(rows), width)), np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        z[i, : len(row)], mask[i, : len(row)] = logs(row)[0], 1
    A = np.ones(len(rows))
    fraction = sum(len(r) for r, k in zip(rows, keep, strict=True) if k) / sum(map(len, rows))
    fixed = masked_loss(z, A, mask, keep)
    assert fixed == pytest.approx(fraction * masked_loss(z, A, mask, keep, normalize="retained"), rel=1e-12)
    assert keep.any() or fixed == 0.0


# ---- relations between the estimators (k1, k2, k3, NeMo-RL's mean, TRM)


def phi(a):
    return a - 1 + math.exp(-a)


@some
@given(responses)
def test_estimators_geomean_is_mean_k1_and_carm_lies_between_it_and_k2_and_mean_exp_abs(row):
    z, ones_ = logs(row), ones(row)
    d = carm_score(z, ones_)[0]
    assert geomean_score(z, ones_)[0] == abs(mean_k1(z, ones_)[0])
    assert d <= math.sqrt(2 * mean_k2(z, ones_)[0]) * (1 + 1e-12)
    assert math.exp(d) <= mean_exp_abs(z, ones_)[0] * (1 + 1e-12)
    assert mean_exp_abs(z, ones_)[0] == pytest.approx(float(sum(max(r, 1 / r) for r in row) / len(row)), rel=1e-12)


@some
@given(responses)
def test_estimators_phi_of_carm_is_at_most_mean_k3(row):
    z = logs(row)
    k3 = mean_k3(z, ones(row))[0]
    assert k3 == pytest.approx(math.fsum(float(r - 1) - math.log(r) for r in row) / len(row), rel=1e-9, abs=1e-14)
    assert phi(carm_score(z, ones(row))[0]) <= k3 + 1e-14


@some
@given(responses, taus)
def test_estimators_a_small_mean_k3_implies_acceptance(row, tau):
    tau = float(tau)
    if mean_k3(logs(row), ones(row))[0] <= phi(math.log(tau)) * (1 - 1e-9):
        assert CARM(tau).keep(logs(row), ones(row))[0]


def test_estimators_a_kept_response_may_have_any_mean_k3():
    T = 500
    z = np.array([[T * math.log(1.02)] + [0.0] * (T - 1)]) * (1 - 1e-12)
    assert CARM(1.02).keep(z, np.ones((1, T)))[0]
    assert mean_k3(z, np.ones((1, T)))[0] == pytest.approx((1.02**T - 1 - T * math.log(1.02)) / T, rel=1e-9)


@some
@given(responses)
def test_estimators_a_response_that_trm_keeps_has_d_at_most_the_root_of_a_tenth(row):
    if TRM(0.05).keep(logs(row), ones(row))[0]:
        assert carm_score(logs(row), ones(row))[0] <= math.sqrt(0.1) * (1 + 1e-12)


def test_estimators_trm_and_carm_are_not_nested():
    flat, spike = np.full((1, 100), 0.3), np.array([[0.4] + [0.0] * 99])
    for z, by_trm, by_carm in ((flat, True, False), (spike, False, True)):
        assert (TRM(0.05).keep(z, np.ones(z.shape))[0], CARM(1.02).keep(z, np.ones(z.shape))[0]) == (by_trm, by_carm)


def test_estimators_numbers():
    assert phi(math.log(1.02)) == pytest.approx(1.95e-4, rel=3e-3)
    assert (1.02**500 - 1 - 500 * math.log(1.02)) / 500 == pytest.approx(39.891, abs=5e-4)
    seven_and_one = np.array([[0.0] * 7 + [3.0]])
    assert mean_exp_abs(seven_and_one, np.ones((1, 8)))[0] == pytest.approx(3.386, abs=5e-4)
    assert math.exp(carm_score(seven_and_one, np.ones((1, 8)))[0]) == pytest.approx(1.455, abs=5e-4)


# ---- selection laws


@some
@given(responses, taus)
def test_mean_exp_abs_keeps_a_subset_of_carm_and_carm_of_geomean_at_one_threshold(row, tau):
    z, T = logs(row), len(row)
    nemo = sum((max(r, 1 / r) for r in row), Fraction(0)) <= Fraction(tau) * T
    assert s_carm_at_most(row, tau) or not nemo
    kept = [bool(rule(float(tau)).keep(z, ones(row))[0]) for rule in (MeanExpAbs, CARM, GeoMean)]
    assert kept[2] or not kept[1]
    if abs(carm_score(z, ones(row))[0] - math.log(tau)) > 1e-12:
        assert kept[1] or not kept[0]
        assert kept[1] == s_carm_at_most(row, tau)


@some
@given(responses, st.integers(0, 2**64 - 1))
def test_carm_is_blind_to_reciprocals_of_single_tokens_and_to_their_order(row, seed):
    source = random.Random(seed)
    flipped = [1 / r if source.random() < 0.5 else r for r in row]
    source.shuffle(flipped)
    assert carm_score(logs(flipped), ones(row))[0] == pytest.approx(carm_score(logs(row), ones(row))[0], rel=1e-12, abs=1e-15)


# ---- Equations 73 and 74


@some
@given(st.integers(1, 16), st.data())
def test_equations_73_and_74_are_the_expectations_of_best_and_worst_of_k_with_replacement(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, 16))
    p = Fraction(c, n)
    assert float(best_of_k(c, n, k)) == pytest.approx(float(1 - (1 - p) ** k), abs=1e-14)
    assert float(worst_of_k(c, n, k)) == pytest.approx(float(p**k), abs=1e-14)


# ---- Section 3.3, numbers of the disagreement case


def test_disagreement_case_numbers():
    d_geomean, d_carm = 0.002502, 0.024486
    assert d_carm / d_geomean == pytest.approx(9.79, abs=5e-3)
    assert 1 - d_geomean / d_carm == pytest.approx(0.8978, abs=5e-5)
    z = np.array([[(d_carm + d_geomean), -(d_carm - d_geomean)]])
    assert geomean_score(z, np.ones((1, 2)))[0] == pytest.approx(d_geomean)
    assert GeoMean(1.005).keep(z, np.ones((1, 2)))[0] and not CARM(1.02).keep(z, np.ones((1, 2)))[0]
