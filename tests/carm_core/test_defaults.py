"""Defaults are those of the paper and of the projects that the rules come from."""

import numpy as np

from carm_core import (
    OPSM,
    TRM,
    IcePop,
    SeqMIS,
    SeqTIS,
    TokenMIS,
    TokenTIS,
    TRMMean,
    carm_bound,
    clipped_surrogate,
    equality_response,
    finite_T_bound,
    geomean_witness,
    group_advantages,
    log_ratio,
    majority_at_k,
    masked_loss,
    mean_interval,
    one_sided_bounds,
    sampling_estimate,
    severity_bound,
    signed_mean_bound,
    tau_for_certificate,
    threshold_sweep,
)

BAND = (0.8, 1.28)


def test_rules():
    assert TRM() == TRM(0.05) and TRMMean() == TRMMean(0.001)
    assert IcePop() == IcePop(0.5, 5.0, weighted=True)
    assert TokenTIS() == TokenTIS(2.0) and SeqTIS() == SeqTIS(2.0)
    assert TokenMIS() == TokenMIS(3.0, 0.0) and SeqMIS() == SeqMIS(3.0, 0.0)
    assert OPSM(0.1) == OPSM(0.1, conditioning="negative") and TRM() == TRM(conditioning="both")


def test_band():
    assert TRM().certificate() == TRM().certificate(BAND)
    assert carm_bound(1.02) == carm_bound(1.02, BAND, severity=0.0, geomean_tau=None)
    assert finite_T_bound(100, 1.02) == finite_T_bound(100, 1.02, BAND)
    assert signed_mean_bound(0.02, 0.01) == signed_mean_bound(0.02, 0.01, BAND)
    assert one_sided_bounds(0.02, 0.01) == one_sided_bounds(0.02, 0.01, BAND)
    assert severity_bound(0.01, 1.02) == severity_bound(0.01, 1.02, BAND)
    assert tau_for_certificate(0.1) == tau_for_certificate(0.1, BAND)
    assert geomean_witness() == geomean_witness(2, BAND, severity=0.0)
    assert equality_response(50, 1.02) == equality_response(50, 1.02, BAND, 4)
    z, ones = np.zeros((1, 1)), np.ones((1, 1))
    assert threshold_sweep(TRM, [0.05], z, ones) == threshold_sweep(TRM, [0.05], z, ones, None, rewards=None, band=BAND)


def test_clips():
    z, a = np.array([[-30.0, -0.3, 0.0, 0.26, 1.5, 30.0]]), np.array([-1.0])
    zero, ones, keep = np.zeros(z.shape), np.ones(z.shape), np.array([True])
    paper = dict(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    for signs in (a, -a):
        np.testing.assert_array_equal(clipped_surrogate(z, signs), clipped_surrogate(z, signs, **paper, guard=20.0))
        options = dict(normalize="fixed", denominator=None, weights=None, ratio="token", aggregate="token")
        assert masked_loss(z, signs, ones, keep) == masked_loss(z, signs, ones, keep, **options, **paper)
    np.testing.assert_array_equal(log_ratio(z, zero, ones).z, log_ratio(z, zero, ones, clip=20.0, nonfinite="reject").z)


def test_statistics():
    rewards = np.array([[0.0, 1.0, 1.0]])
    np.testing.assert_array_equal(group_advantages(rewards), group_advantages(rewards, scale="group", eps=0.0))
    codes, gold = np.array([[0, 1, 1, 2]]), np.array([1])
    assert majority_at_k(codes, gold, 2) == majority_at_k(codes, gold, 2, replicates=1000, seed=0)
    assert mean_interval([0.5, 1.0]) == mean_interval([0.5, 1.0], "1/20")
    assert sampling_estimate([1, 2], 4, 2) == sampling_estimate([1, 2], 4, 2, "pass", delta="1/20")
