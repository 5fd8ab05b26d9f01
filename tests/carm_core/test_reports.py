"""Drift, sweep, noise floor, advantages: each against sums written out."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from carm_strategies import batches, log_ratios, responses, some, vectors
from hypothesis import given
from hypothesis import strategies as st

from carm_core import (
    CARM,
    OPSM,
    GeoMean,
    NoiseFloor,
    TauChoice,
    calibrated_tau,
    cancellation_share,
    carm_score,
    group_advantages,
    mask_report,
    noise_floor,
    prefix_drift,
    response_scores,
    signed_mean,
    threshold_sweep,
)

# ---- drift


@some
@given(batches())
def test_prefix_drift_is_the_running_sum_over_live_tokens(batch):
    rows, z, mask = batch
    for drift in (prefix_drift(z, mask), prefix_drift(torch.tensor(z), torch.tensor(mask))):
        for i in range(len(rows)):
            for t in range(z.shape[1]):
                seen = [x for x, m in zip(z[i][: t + 1], mask[i][: t + 1], strict=True) if m]
                assert float(drift.signed[i, t]) == pytest.approx(math.fsum(seen), abs=1e-12)
                assert float(drift.absolute[i, t]) == pytest.approx(math.fsum(map(abs, seen)), abs=1e-12)
                assert float(drift.positive[i, t]) == pytest.approx(math.fsum(x for x in seen if x > 0), abs=1e-12)
                assert float(drift.negative[i, t]) == pytest.approx(-math.fsum(x for x in seen if x < 0), abs=1e-12)
                assert int(drift.length[i, t]) == len(seen)


def test_prefix_drift_marks_the_first_nonfinite_token_and_is_detached():
    z = torch.tensor([[1.0, math.inf, 1.0]], requires_grad=True)
    drift = prefix_drift(z, torch.ones(1, 3))
    assert not drift.signed.requires_grad and drift.signed.dtype == torch.float32
    assert torch.isnan(drift.absolute).tolist() == [[False, True, True]]


@some
@given(responses)
def test_the_last_prefix_gives_the_scores(row):
    z, ones = np.array([row]), np.ones((1, len(row)))
    drift = prefix_drift(z, ones)
    assert drift.absolute[0, -1] / len(row) == pytest.approx(carm_score(z, ones)[0], abs=1e-12)
    assert drift.signed[0, -1] / len(row) == pytest.approx(signed_mean(z, ones)[0], abs=1e-12)


# ---- cancellation and sweep


@some
@given(responses)
def test_cancellation_share_is_the_mass_that_a_signed_mean_loses(row):
    z, ones = np.array([row]), np.ones((1, len(row)))
    d, g = carm_score(z, ones), signed_mean(z, ones)
    share = cancellation_share(d, g)[0]
    mass = math.fsum(map(abs, row))
    want = 1 - abs(math.fsum(row)) / mass if mass else 0.0
    assert share == pytest.approx(want, abs=1e-9)
    assert float(cancellation_share(torch.tensor(d), torch.tensor(g))[0]) == pytest.approx(share, abs=1e-15)
    assert (share < 1e-12) == (all(x >= 0 for x in row) or all(x <= 0 for x in row)) or share < 1e-9


@some
@given(batches(), st.data())
def test_sweep_counts_every_rejection_against_all_live_responses(batch, data):
    rows, z, mask = batch
    n = len(rows)
    rewards = np.array(data.draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=n, max_size=n)))
    taus = [1.0, 1.02, 1.5, 4.0]
    points = threshold_sweep(CARM, taus, z, mask, rewards=rewards)
    assert [p.threshold for p in points] == taus
    assert [p.rule for p in points] == [repr(CARM(t)) for t in taus]
    live = [i for i in range(n) if rows[i]]
    for point, tau in zip(points, taus, strict=True):
        rejected = [i for i in live if not CARM(tau).keep(z, mask)[i]]
        good = [i for i in live if rewards[i] > 0]
        both = [i for i in rejected if i in good]
        assert point.rejected_fraction == pytest.approx(len(rejected) / max(len(live), 1))
        assert point.rejected_token_fraction == pytest.approx(sum(len(rows[i]) for i in rejected) / max(sum(map(len, rows)), 1))
        assert point.masked_correct == pytest.approx(len(both) / max(len(rejected), 1))
        assert point.correct_masked == pytest.approx(len(both) / max(len(good), 1))
        assert point.p_out == CARM(tau).certificate((0.8, 1.28)).p_out
    assert all(a.rejected_fraction >= b.rejected_fraction for a, b in itertools.pairwise(points))
    tensors = threshold_sweep(CARM, taus, torch.tensor(z), torch.tensor(mask), rewards=torch.tensor(rewards))
    assert [(p.masked_correct, p.p_out) for p in tensors] == [(p.masked_correct, p.p_out) for p in points]


def test_sweep_passes_advantages_and_band_on_and_counts_no_reward_as_wrong():
    z, ones, a = np.full((2, 1), -1.0), np.ones((2, 1)), np.array([-1.0, 1.0])
    (point,) = threshold_sweep(OPSM, [0.5], z, ones, a)
    assert (point.rejected_fraction, point.masked_correct, point.correct_masked) == (0.5, 0.0, 0.0)
    (point,) = threshold_sweep(GeoMean, [1.02], z, ones, band=(0.3, 4.0))
    assert point.rejected_fraction == 1.0 and point.p_out == 1.0
    with pytest.raises(ValueError, match=r"^rewards: got shape \(3,\); need \(2,\); because a response has one reward$"):
        threshold_sweep(CARM, [1.02], z, ones, rewards=np.ones(3))


@some
@given(batches())
def test_report_states_the_mean_cancellation(batch):
    rows, z, mask = batch
    report = mask_report(z, mask, CARM(1.02).keep(z, mask))
    shares = [1 - abs(math.fsum(r)) / math.fsum(map(abs, r)) if any(r) else 0.0 for r in rows if r]
    assert report.mean_cancellation == pytest.approx(sum(shares) / max(len(shares), 1), abs=1e-9)


# ---- noise floor


@some
@given(st.lists(st.lists(log_ratios, min_size=1, max_size=8), min_size=1, max_size=6))
def test_noise_floor_describes_tokens_and_responses(rows):
    width = max(map(len, rows))
    z, mask = np.zeros((len(rows), width)), np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        z[i, : len(row)], mask[i, : len(row)] = row, 1
    floor = noise_floor(z, np.zeros(z.shape), mask)
    tokens = np.concatenate([np.array(r) for r in rows])
    d = [math.fsum(map(abs, r)) / len(r) for r in rows]
    assert (floor.n, floor.tokens, floor.nonfinite) == (len(rows), tokens.size, 0)
    assert floor.bias == pytest.approx(tokens.mean(), abs=1e-12)
    assert floor.sigma == pytest.approx(tokens.std(), abs=1e-6)
    assert floor.gaussian_d == pytest.approx(floor.sigma * 0.7978845608, rel=1e-9)
    assert (floor.mean_d, floor.max_d, floor.median_d) == pytest.approx((np.mean(d), max(d), np.median(d)))
    assert floor.p95_d == pytest.approx(np.quantile(d, 0.95))
    assert math.log(floor.tau_floor) >= floor.max_d and CARM(floor.tau_floor).keep(z, mask).all()
    for tau, rate in floor.reject_rates:
        assert rate == pytest.approx((~CARM(tau).keep(z, mask)).mean())
    assert [tau for tau, _ in floor.reject_rates] == [1.02, 1.025, 1.03, 1.04]
    assert NoiseFloor.from_json(floor.to_json()) == floor
    s = response_scores(z, mask)
    assert floor.cancelled == pytest.approx(cancellation_share(s.d, s.g).mean())


def test_noise_floor_leaves_empty_and_nonfinite_responses_out():
    z = np.array([[0.1, 0.1], [math.nan, 0.0], [0.0, 0.0]])
    mask = np.array([[1, 1], [1, 1], [0, 0]])
    floor = noise_floor(z, np.zeros(z.shape), mask, taus=[1.2])
    assert (floor.n, floor.tokens, floor.nonfinite, floor.mean_d, floor.reject_rates) == (1, 2, 1, pytest.approx(0.1), ((1.2, 0.0),))
    with pytest.raises(ValueError, match=r"^trainer, engine: got no finite response; need at least 1; because a floor of nothing"):
        noise_floor(z[1:], np.zeros((2, 2)), mask[1:])
    with pytest.raises(ValueError, match=r"^taus: got 0\.5; need >= 1; because they are ratio-domain thresholds$"):
        noise_floor(z, z, mask, taus=[0.5])


def test_normal_noise_of_0_0248_exhausts_tau_1_02_at_every_length_and_hides_from_the_signed_mean():
    rng = np.random.default_rng(0)
    for T in (1_000, 100_000):
        z = 0.0248 * rng.standard_normal((20, T))
        floor = noise_floor(z, np.zeros(z.shape), np.ones(z.shape))
        error = 5 * 0.0248 * math.sqrt((1 - 2 / math.pi) / z.size)  # five standard errors of a mean of |N(0, s)|
        assert abs(floor.mean_d - 0.0248 * math.sqrt(2 / math.pi)) < error
        assert floor.gaussian_d == pytest.approx(math.log(1.02), rel=0.02)
        assert abs(signed_mean(z, np.ones(z.shape))).max() < 5 * 0.0248 / math.sqrt(T)


# ---- advantages and thresholds


@pytest.mark.parametrize("case", vectors("group_advantage"), ids=lambda c: c["id"])
def test_vector_group_advantage(case):
    rewards = np.array([[float(Fraction(r)) for r in case["input"]["rewards"]]])
    eps, want = float(Fraction(case["input"]["eps"])), case["expected"]
    for xp in (np.array, torch.tensor):
        got = group_advantages(xp(rewards), eps=eps)
        np.testing.assert_allclose(np.asarray(got)[0], want["adv"], rtol=1e-12, atol=1e-15)
        centred = group_advantages(xp(rewards), scale="none")
        np.testing.assert_allclose(np.asarray(centred)[0], [float(Fraction(x)) for x in want["centred"]], rtol=1e-12, atol=1e-15)
    assert bool(rewards.var() == 0) is want["zero_variance"]


@some
@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, -1.0]), min_size=3, max_size=3), min_size=1, max_size=4), st.floats(0, 1))
def test_group_advantages_centre_scale_and_vanish_on_equal_rewards(groups, eps):
    got = group_advantages(np.array(groups), eps=eps)
    for group, a in zip(groups, got, strict=True):
        if len(set(group)) == 1:
            assert a.tolist() == [0.0, 0.0, 0.0]
            continue
        mean = sum(map(Fraction, group)) / 3
        std = math.sqrt(sum((Fraction(x) - mean) ** 2 for x in group) / 3)
        np.testing.assert_allclose(a, [float(Fraction(x) - mean) / (std + eps) for x in group], rtol=1e-9, atol=1e-12)


def test_group_advantages_argument_errors():
    with pytest.raises(ValueError, match=r"^scale: got 'batch'; need 'group' or 'none'; because a group is scaled by its own"):
        group_advantages(np.ones((1, 2)), scale="batch")
    for eps in (-1e-9, math.nan):
        with pytest.raises(ValueError, match=r"^eps: got .*; need >= 0; because it keeps a standard deviation away from 0$"):
            group_advantages(np.ones((1, 2)), eps=eps)
    for rewards in (np.ones((2, 0)), np.float64(1.0)):
        with pytest.raises(
            ValueError, match=r"^rewards: got shape \(.*\); need \(\.\.\., G\) with G >= 1; because a group is the last axis$"
        ):
            group_advantages(rewards)
    assert group_advantages(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.float32


@some
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.sampled_from(["1/10", 0.25, "1/3"]))
def test_tau_choice_json_round_trip(scores, delta):
    choice = calibrated_tau(scores, delta)
    assert TauChoice.from_json(choice.to_json()) == choice


@some
@given(batches(), st.data())
def test_every_number_of_a_report_written_out(batch, data):
    rows, z, mask = batch
    n = len(rows)
    rows, z, spoiled = [list(r) for r in rows], z.copy(), data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    for i in range(n):
        if rows[i] and spoiled[i]:
            rows[i][0] = math.nan
            z[i, np.flatnonzero(mask[i])[0]] = math.nan
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    rewards = np.array(data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5]), min_size=n, max_size=n)))
    got = mask_report(z, mask, keep, rewards)
    live = [i for i in range(n) if rows[i]]
    rejected, finite = [i for i in live if not keep[i]], [i for i in live if not spoiled[i]]
    d = [math.fsum(map(abs, rows[i])) / len(rows[i]) for i in finite]
    g = [math.fsum(rows[i]) / len(rows[i]) for i in finite]

    def mean(values):
        return sum(values) / len(values) if len(values) else 0.0

    assert (got.responses, got.tokens, got.nonfinite) == (len(live), sum(map(len, rows)), len(live) - len(finite))
    assert got.rejected_fraction == pytest.approx(len(rejected) / max(len(live), 1))
    assert got.rejected_token_fraction == pytest.approx(sum(len(rows[i]) for i in rejected) / max(got.tokens, 1))
    assert got.rejected_success_fraction == pytest.approx(mean([rewards[i] > 0 for i in rejected]))
    assert (got.mean_d, got.max_d, got.mean_g) == pytest.approx((mean(d), max(d, default=0.0), mean(g)), abs=1e-12)
    assert got.mean_cancellation == pytest.approx(mean([1 - abs(b) / a if a else 0.0 for a, b in zip(d, g, strict=True)]), abs=1e-9)
    assert mask_report(z, mask, keep).rejected_success_fraction == 0.0


def test_a_report_of_nothing_is_zeros():
    for z, mask in ((np.zeros((0, 3)), np.zeros((0, 3))), (np.ones((2, 3)), np.zeros((2, 3)))):
        report = mask_report(z, mask, np.zeros(len(z), dtype=bool), np.ones(len(z)))
        assert (report.responses, report.tokens, report.nonfinite, report.warnings) == (0, 0, 0, ())
        assert {report.rejected_fraction, report.rejected_token_fraction, report.rejected_success_fraction} == {0.0}
        assert (report.mean_d, report.max_d, report.mean_g, report.mean_cancellation) == (0.0, 0.0, 0.0, 0.0)
    nan = mask_report(np.full((2, 1), np.nan), np.ones((2, 1)), np.zeros(2, dtype=bool))
    assert (nan.mean_d, nan.max_d, nan.mean_g, nan.mean_cancellation, nan.nonfinite) == (0.0, 0.0, 0.0, 0.0, 2)


def test_noise_floor_of_two_tokens():
    z, ones = np.array([[0.1, 0.3]]), np.ones((1, 2))
    floor = noise_floor(z, np.zeros((1, 2)), ones, taus=[math.exp(0.25)])
    assert (floor.bias, floor.sigma) == pytest.approx((0.2, 0.1))
    edge = np.array([[math.log(1.02)]])
    assert noise_floor(edge, np.zeros((1, 1)), np.ones((1, 1)), taus=[1.02, 1.0]).reject_rates == ((1.02, 0.0), (1.0, 1.0))
