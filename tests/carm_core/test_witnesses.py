"""Responses that attain the bounds, and the one-sided bounds."""

import math

import numpy as np
import pytest
import torch
from carm_strategies import BANDS, fractions_outside, responses, some
from hypothesis import assume, given
from hypothesis import strategies as st

from carm_core import (
    CARM,
    TRM,
    carm_bound,
    carm_score,
    equality_response,
    geomean_witness,
    max_violations,
    one_sided_bounds,
    severity_bound,
    signed_mean,
    signed_mean_bound,
)

bands = st.sampled_from(BANDS)


@some
@given(st.integers(1, 300), st.sampled_from([1.02, 1.04, 1.3]), bands, st.data())
def test_equality_in_budget_and_severity_bound_for_every_possible_count(T, tau, band, data):
    most = max_violations(T, tau, band)
    if most == 0:
        with pytest.raises(ValueError, match=r"^violations: got 0; need 1 to 0; because that is what \d+ tokens at tau = "):
            equality_response(T, tau, band)
        return
    m = data.draw(st.integers(1, most))
    row = equality_response(T, tau, band, m)
    p_minus, p_plus = fractions_outside(row, band)
    b_minus, b_plus = -math.log(band[0]), math.log(band[1])
    assert len(row) == T and round((p_minus + p_plus) * T) == m
    assert p_minus == 0 or b_minus <= b_plus
    assert p_plus == 0 or b_plus < b_minus
    severity = abs(row[0]) - min(b_minus, b_plus)
    assert p_minus * b_minus + p_plus * b_plus + (m / T) * severity == pytest.approx(math.log(tau), rel=1e-9)
    assert carm_bound(tau, band, severity=severity) == pytest.approx(m / T, rel=1e-9)
    assert severity == pytest.approx(severity_bound(m / T, tau, band), rel=1e-6, abs=1e-12)
    assert carm_score(np.array([row]), np.ones((1, T)))[0] == pytest.approx(math.log(tau), rel=1e-12)
    assert CARM(tau * (1 + 1e-12)).keep(np.array([row]), np.ones((1, T)))[0]


def test_equality_response_defaults_to_the_largest_count_and_checks_its_arguments():
    assert equality_response(100, 1.02) == equality_response(100, 1.02, (0.8, 1.28), 8)
    for bad in (0, 9, -1):
        with pytest.raises(
            ValueError, match=rf"^violations: got {bad}; need 1 to 8; because that is what 100 tokens at tau = 1.02 can pay"
        ):
            equality_response(100, 1.02, violations=bad)
    with pytest.raises(ValueError, match="violations: got 5"):
        equality_response(5, math.inf)
    with pytest.raises(ValueError, match=r"tau: got 0\.5"):
        equality_response(5, 0.5)


@some
@given(responses, bands)
def test_one_sided_bounds_hold_and_add_up_to_the_joint_bound(row, band):
    z, ones = np.array([row]), np.ones((1, len(row)))
    d, g = carm_score(z, ones), signed_mean(z, ones)
    low, high = one_sided_bounds(d, g, band)
    p_minus, p_plus = fractions_outside(row, band)
    assert p_minus <= low[0] + 1e-12 and p_plus <= high[0] + 1e-12
    joint = signed_mean_bound(d, g, band)[0]
    assert joint <= low[0] + high[0] + 1e-12
    if low[0] < 1 and high[0] < 1:
        assert joint == pytest.approx(min(1.0, low[0] + high[0]), abs=1e-12)
    floats = one_sided_bounds(float(d[0]), float(g[0]), band)
    tensors = one_sided_bounds(torch.tensor(d), torch.tensor(g), band)
    assert floats == pytest.approx((low[0], high[0])) and [float(t) for t in tensors] == pytest.approx([low[0], high[0]])


@some
@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 30), bands)
def test_one_sided_bounds_are_attained_at_the_boundaries(low, high, inside, band):
    T = low + high + inside
    assume(T > 0)
    z = np.array([[math.log(band[0])] * low + [math.log(band[1])] * high + [0.0] * inside])
    got = one_sided_bounds(carm_score(z, np.ones((1, T))), signed_mean(z, np.ones((1, T))), band)
    assert (got[0][0], got[1][0]) == pytest.approx((low / T, high / T), abs=1e-12)


def test_one_sided_bounds_refuse_impossible_means():
    for d, g in ((1.0, -2.0), (math.inf, math.inf), (math.inf, -math.inf), (math.nan, 0.0), (1.0, math.nan)):
        for bound in (one_sided_bounds, signed_mean_bound):
            with pytest.raises(
                ValueError, match=rf"^g: got {g}; need \|g\| <= d = {d}, both finite; because \|mean z\| never exceeds mean"
            ):
                bound(d, g)


def test_geomean_witness_refuses_a_negative_severity():
    for bad in (-0.5, math.nan, math.inf, "1", None):
        for call in (lambda s: geomean_witness(4, severity=s), lambda s: carm_bound(1.02, severity=s)):
            with pytest.raises(
                ValueError, match=r"^severity: got .*; need 0 <= severity < inf; because it is a distance past the boundary$"
            ):
                call(bad)


def test_severity_of_trust_region_masking_in_the_paper_band():
    c = TRM(0.05).certificate((0.8, 1.28))
    assert (round(c.severity_minus, 4), round(c.severity_plus, 4)) == (0.0931, 0.0694)
    assert TRM(0.05).certificate((0.7, 1.4)).severity_minus == 0.0
    assert CARM(1.02).certificate().severity_minus == math.inf


@given(
    st.floats(1.0, 3.0),
    st.floats(0.05, 0.999),
    st.floats(1.001, 8.0),
)
def test_certificates_of_every_tau_and_band_are_found(tau, low, high):
    """The search for a response wholly outside the band ends, also where the nearest one lies within a rounding of the edge."""
    certificate = CARM(tau).certificate((low, high))
    edge = min(-math.log(low), math.log(high))
    if certificate.witness is None:
        assert math.log(tau) <= edge * (1 + 1e-12)
    else:
        (z,) = certificate.witness
        assert CARM(tau).keep(np.array([[z]]), np.ones((1, 1))).all() and not low <= math.exp(z) <= high


@pytest.mark.parametrize("band", [(0.8, 1.2), (0.8, 1.28), (0.5, 2.0), (0.9, 1.1)])
@pytest.mark.parametrize("tau", [1.001, 1.005, 1.01, 1.02, 1.05, 1.1])
def test_certificates_of_the_usual_thresholds_are_found(tau, band):
    assert CARM(tau).certificate(band).p_out == pytest.approx(min(1.0, math.log(tau) / min(-math.log(band[0]), math.log(band[1]))))
