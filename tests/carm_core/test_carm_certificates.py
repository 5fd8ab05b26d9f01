import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from carm_strategies import BANDS, fractions_outside, responses, some, taus, vectors
from hypothesis import given
from hypothesis import strategies as st

from carm_core import (
    CARM,
    GeoMean,
    calibrated_tau,
    carm_bound,
    carm_score,
    finite_T_bound,
    geomean_witness,
    max_violations,
    severity_bound,
    signed_mean,
    signed_mean_bound,
    tau_for_certificate,
    tau_for_reject_rate,
)

bands = st.sampled_from(BANDS)


def test_finite_T_values():
    assert [max_violations(T, 1.02) for T in (1, 11, 12, 100, 8619)] == [0, 0, 1, 8, 764]


@some
@given(
    st.integers(1, 400),
    st.integers(1, 60),
    st.sampled_from([(Fraction(4, 5), Fraction(32, 25)), (Fraction(4, 5), Fraction(5, 4)), (Fraction(1, 2), Fraction(11, 10))]),
)
def test_max_violations_equals_exact_integer_search(T, percent, band):
    tau = 1 + Fraction(percent, 100)
    base = min(1 / band[0], band[1])
    want = max(m for m in range(T + 1) if m == 0 or base**m < tau**T)
    assert max_violations(T, float(tau), tuple(map(float, band))) == want


@pytest.mark.parametrize("c", [1.02, 1.25, 1.1])
def test_exact_ties_are_not_attained(c):
    assert max_violations(50, c, (1 / c, c)) == 49
    assert max_violations(7, c**2, (1 / c, c)) == 7
    assert CARM(c).certificate((1 / c, c)).sharp(50) == finite_T_bound(50, c, (1 / c, c)) == 0.98
    assert max_violations(50, 1.0, (1 / c, c)) == 0
    assert max_violations(50, math.inf, (1 / c, c)) == 50


@some
@given(st.integers(1, 10_000), taus, bands)
def test_finite_T_is_within_one_token_of_the_bound_and_never_above(T, tau, band):
    sharp, bound = finite_T_bound(T, tau, band), carm_bound(tau, band)
    assert sharp <= bound + 1e-12
    assert bound - sharp <= 1 / T + 1e-9


@pytest.mark.parametrize("case", vectors("carm_sharp"), ids=lambda c: c["id"])
def test_vector_carm_sharp(case):
    T, tau = case["input"]["T"], float(Fraction(case["input"]["tau"]))
    band, want = tuple(float(Fraction(b)) for b in case["input"]["band"]), case["expected"]
    assert max_violations(T, tau, band) == want["max_violations"]
    assert finite_T_bound(T, tau, band) == float(Fraction(want["sup_p_out"]))
    assert carm_bound(tau, band) == pytest.approx(want["bound"], abs=1e-12)
    m = want["max_violations"]
    if m:
        assert severity_bound(m / T, tau, band) == pytest.approx(want["equality_excess_log"], abs=1e-9)


@pytest.mark.parametrize("case", vectors("carm"), ids=lambda c: c["id"])
def test_vector_bounds(case):
    tau, band = float(Fraction(case["input"]["tau"])), tuple(float(Fraction(b)) for b in case["input"]["band"])
    want = case["expected"]
    assert carm_bound(tau, band) == pytest.approx(want["bound_p_out"], abs=1e-12)
    assert carm_bound(tau, band, severity=want["severity"]) == pytest.approx(want["bound_p_out_with_severity"], abs=1e-12)
    assert signed_mean_bound(want["d_carm"], want["signed_mean"], band) == pytest.approx(want["joint_bound_from_d_and_g"], abs=1e-12)


@some
@given(responses, bands)
def test_signed_mean_bound_holds_and_is_never_above_the_paper_bound(row, band):
    z, mask = np.array([row]), np.ones((1, len(row)))
    d, g = carm_score(z, mask), signed_mean(z, mask)
    bound = signed_mean_bound(d, g, band)
    assert bound[0] <= min(1.0, d[0] / min(-math.log(band[0]), math.log(band[1]))) + 1e-12
    assert sum(fractions_outside(row, band)) <= bound[0] + 1e-12
    assert float(signed_mean_bound(torch.tensor(d), torch.tensor(g), band)) == pytest.approx(bound[0], abs=1e-14)


@some
@given(responses, taus, taus, bands)
def test_joint_bound_of_carm_and_geomean(row, tau, geomean_tau, band):
    z, mask = np.array([row]), np.ones((1, len(row)))
    bound = carm_bound(tau, band, geomean_tau=geomean_tau)
    assert bound <= carm_bound(tau, band)
    if CARM(tau).keep(z, mask)[0] and GeoMean(geomean_tau).keep(z, mask)[0]:
        assert sum(fractions_outside(row, band)) <= bound + 1e-12


def test_joint_bound_values():
    assert round(100 * carm_bound(1.02, geomean_tau=1.0), 2) == 8.45
    assert round(100 * carm_bound(1.02, geomean_tau=1.005), 2) == 8.56
    assert carm_bound(1.02, geomean_tau=2.0) == carm_bound(1.02)
    assert carm_bound(math.inf, geomean_tau=1.005) == 1.0


@some
@given(st.integers(2, 60), bands, st.floats(0, 15))
def test_geomean_witness_is_accepted_at_tau_one_with_every_token_far_outside(T, band, severity):
    row = geomean_witness(T, band, severity=severity)
    assert len(row) == T
    for z, mask in [(np.array([row]), np.ones((1, T))), (torch.tensor([row]), torch.ones(1, T))]:
        assert GeoMean(1.0).keep(z, mask).all()
    assert all(x < math.log(band[0]) - severity or x > math.log(band[1]) + severity for x in row)


def test_certificate_argument_errors():
    for T in (0, -1, 2.5):
        with pytest.raises(ValueError, match="T: got"):
            finite_T_bound(T, 1.02)
    with pytest.raises(ValueError, match="T: got 1"):
        geomean_witness(1)
    with pytest.raises(ValueError, match="severity: got"):
        carm_bound(1.02, severity=-1)
    with pytest.raises(ValueError, match="p_out: got"):
        severity_bound(0.0, 1.02)
    with pytest.raises(ValueError, match=r"g: got 2.0; need \|g\| <= d"):
        signed_mean_bound(1.0, 2.0)
    with pytest.raises(ValueError, match="did you mean"):
        carm_bound(0.02)


# ---- thresholds


@some
@given(st.floats(0, 1), bands)
def test_tau_for_certificate_certifies_what_was_asked_and_is_nearly_the_largest(p, band):
    tau = tau_for_certificate(p, band)
    assert tau >= 1.0 and carm_bound(tau, band) <= p
    if p < 1:
        assert carm_bound(tau * (1 + 1e-12) + 1e-12, band) > p - 1e-9


scores = st.lists(st.one_of(st.floats(0, 2), st.sampled_from([0.0, 0.01, math.log(1.02)])), min_size=1, max_size=40)
levels = st.sampled_from(["1/10", "0.05", 0.25, Fraction(1, 3), 0.5, "0.9"])


@some
@given(scores, levels, st.integers(0, 3))
def test_tau_for_reject_rate_rejects_at_most_the_rate_and_no_smaller_score_would_do(d, rate, nan):
    values = np.array(d + [math.nan] * nan)
    exact = Fraction(rate) if not isinstance(rate, float) else Fraction(rate).limit_denominator(10**6)
    allowed = math.floor(exact * len(values))
    if nan > allowed:
        with pytest.raises(ValueError, match="rate: got"):
            tau_for_reject_rate(values, rate)
        return
    choice = tau_for_reject_rate(values, rate)
    keep = CARM(choice.tau).keep(values[:, None], np.ones((len(values), 1)))
    assert (~keep).sum() <= allowed
    assert (~(values < choice.log_tau)).sum() > allowed
    assert choice.n == len(values) and choice.level == exact


@some
@given(scores, levels)
def test_calibrated_tau_is_the_conformal_order_statistic(d, delta):
    choice = calibrated_tau(torch.tensor(d, dtype=torch.float64), delta)
    exact = Fraction(delta) if not isinstance(delta, float) else Fraction(delta).limit_denominator(10**6)
    rank = math.ceil((1 - exact) * (len(d) + 1))
    assert choice.rank == rank
    assert choice.attainable == (rank <= len(d))
    if choice.attainable:
        assert choice.log_tau == sorted(d)[rank - 1]
        assert math.log(choice.tau) >= choice.log_tau
        assert math.log(choice.tau) == pytest.approx(choice.log_tau, abs=1e-12)
    else:
        assert choice.tau == math.inf
        needed = int(choice.guarantee.rsplit(" ", 1)[-1])
        assert calibrated_tau([0.0] * needed, delta).attainable
        assert needed == 1 or not calibrated_tau([0.0] * (needed - 1), delta).attainable


@some
@given(st.lists(st.integers(0, 5), min_size=2, max_size=9), st.sampled_from(["1/5", "1/3", "1/2"]))
def test_calibrated_tau_rejects_a_share_of_at_most_delta_over_all_exchanges(values, delta):
    """Leave each score out in turn: the exact rejection probability under exchangeability."""
    d = [v / 100 for v in values]
    rejected = sum(d[i] > calibrated_tau(d[:i] + d[i + 1 :], delta).log_tau for i in range(len(d)))
    assert Fraction(rejected, len(d)) <= Fraction(delta)


def test_threshold_argument_errors():
    for bad in ([], [-1.0], [math.nan]):
        with pytest.raises(ValueError, match="scores: got"):
            calibrated_tau(bad, "0.1")
    for delta in (0, 1, -0.5, "1.5"):
        with pytest.raises(ValueError, match="delta: got"):
            calibrated_tau([0.1], delta)
    with pytest.raises(ValueError, match="rate: got 1"):
        tau_for_reject_rate([0.1], 1)
    with pytest.raises(ValueError, match="p_out: got"):
        tau_for_certificate(1.5)


def test_levels_given_as_floats_are_read_to_six_decimals():
    assert calibrated_tau([0.1], 0.123457).level == tau_for_reject_rate([0.1], 0.123457).level == Fraction(123_457, 10**6)
    assert calibrated_tau([0.1], 0.1234567).level.denominator <= 10**6
    assert calibrated_tau([0.1], "0.1234567").level == Fraction(1_234_567, 10**7)


def test_a_score_of_zero_needs_a_ratio_of_exactly_one():
    assert tau_for_reject_rate([0.0], 0).tau == calibrated_tau([0.0], "1/2").tau == 1.0
    assert tau_for_certificate(0.0) == 1.0
