"""What happens exactly at an edge: ties, empty axes, columns of one, and the responses that certificates name."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest

import carm_core.logratio
from carm_core import (
    CARM,
    OPSM,
    TRM,
    Certificate,
    GeoMean,
    IcePop,
    MeanExpAbs,
    NoMask,
    Rows,
    SeqMIS,
    TokenMIS,
    TRMMean,
    bootstrap_best_worst,
    calibrated_tau,
    clipped_surrogate,
    equality_response,
    log_ratio,
    mask_report,
    masked_loss,
    max_k2,
    mean_k3,
    noise_floor,
    one_sided_bounds,
    signed_mean_bound,
    tau_for_certificate,
    tau_for_reject_rate,
)
from carm_core.certificates import _rational
from carm_core.thresholds import _level

ONE = np.ones((1, 1))
HALF = math.exp(-0.5)  # -log is 0.5 to the last bit, and so is the log of its reciprocal
BAND = (0.8, 1.28)
LOW, HIGH = -math.log(0.8), math.log(1.28)

# ---- decisions


@pytest.mark.parametrize(
    ("rule", "at", "outwards"),
    [
        (CARM(1.0), 0.0, 1),
        (CARM(1.0), 0.0, -1),
        (GeoMean(1.0), 0.0, 1),
        (MeanExpAbs(1.0), 0.0, -1),
        (TRM(0.125), 0.5, 1),
        (TRM(0.125), -0.5, -1),
        (TRMMean(float(mean_k3(ONE / 2, ONE)[0])), 0.5, 1),
        (TRMMean(float(mean_k3(-ONE / 2, ONE)[0])), -0.5, -1),
        (OPSM(0.5), -0.5, -1),
        (SeqMIS(1.0), 0.0, 1),
        (SeqMIS(3.0, 1.0), 0.0, -1),
    ],
    ids=repr,
)
def test_a_score_at_the_threshold_is_kept_and_one_past_it_is_not(rule, at, outwards):
    for z, kept in ((at, True), (at + outwards * 1e-9, False)):
        assert rule.keep(z * ONE, ONE, -np.ones(1)).tolist() == [kept]
        assert (rule.weights(z * ONE, ONE, -np.ones(1))[0, 0] > 0) is np.bool_(kept)


@pytest.mark.parametrize(
    ("rule", "outwards"), [(TokenMIS(1.0, 0.5), 1), (TokenMIS(3.0, 1.0), -1), (IcePop(0.5, 1.0), 1), (IcePop(1.0, 2.0), -1)], ids=repr
)
def test_a_token_at_the_end_of_the_band_counts_and_one_past_it_does_not(rule, outwards):
    assert rule.weights(0.0 * ONE, ONE).tolist() == [[1.0]]
    assert rule.weights(outwards * 1e-9 * ONE, ONE).tolist() == [[0.0]]


def test_a_column_of_advantages_is_the_advantage_and_a_table_is_averaged_over_live_tokens():
    rows = Rows(np.zeros((3, 2)), np.array([[1, 1], [1, 0], [0, 0]]))
    assert rows.advantage(np.array([[-1.0], [0.1], [-3.0]])).tolist() == [-1.0, 0.1, -3.0]
    assert rows.advantage(np.array([[-1.0, 3.0], [-0.5, 9.0], [7.0, 7.0]])).tolist() == [1.0, -0.5, 0.0]


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 0), (2, 3, 0), (2, 0, 3), (2, 3, 4)], ids=str)
def test_the_largest_over_the_last_axis_whatever_stands_before_it(shape):
    got = max_k2(np.full(shape, 2.0), np.ones(shape))
    assert got.shape == shape[:-1] and (got == (2.0 if shape[-1] else 0.0)).all()


# ---- certificates


@pytest.mark.parametrize(
    ("rule", "band", "witness"),
    [
        (NoMask(), BAND, (-(HIGH + 1.0),)),  # a nat past the farther boundary
        (OPSM(0.1), BAND, (1.0, -1.0)),
        (CARM(1.02, conditioning="negative"), BAND, (-(HIGH + 1.0),)),
        (CARM(4.0), BAND, (-(LOW + 1.0),)),  # a nat past the nearer boundary, where the budget pays for it
        (CARM(20.0), BAND, (-(LOW + 1.0),)),  # and no more where it pays for two
        (CARM(4.0), (0.5, 2.0), (-(math.log(2.0) + 0.5),)),  # the lower one of two that are as near
        (CARM(4.0), (0.5, 1.28), (HIGH + 1.0,)),
        (CARM(1.26), BAND, (-(LOW + 2.0**-7),)),  # else half of it, and half again
        (TRMMean(math.expm1(-(LOW + 1.0)) + (LOW + 1.0)), BAND, (-(LOW + 1.0),)),  # a budget spent to the last bit
        (TRM(0.125), BAND, (-math.nextafter(0.5, 0.0),)),
        (TRM(0.125), (0.5, 1.28), (math.nextafter(0.5, 0.0),)),
        (IcePop(0.01, 100.0), BAND, (-LOW - (1.0 - 1e-9),)),
        (IcePop(0.9, 100.0), BAND, (HIGH + (1.0 - 1e-9),)),
        (SeqMIS(0.2, 0.1), BAND, (HIGH + 1.0 - math.log(0.02) / 2, math.log(0.02) - HIGH - 1.0)),
    ],
    ids=str,
)
def test_the_witness_written_out(rule, band, witness):
    assert rule.certificate(band).witness == pytest.approx(witness, abs=1e-12)


def test_a_rule_of_negative_advantages_certifies_nothing_over_all_and_names_what_it_does():
    rule = CARM(1.02, conditioning="negative")
    got, inner = rule.certificate(BAND), CARM(1.02).certificate(BAND).guarantee
    text = f"none over all responses: those with advantage >= 0 are never rejected; for advantage < 0: {inner}"
    assert got == Certificate(repr(rule), 1.02, BAND, 1.0, 1.0, 1.0, text, witness=got.witness)


def test_trust_region_masking_certifies_a_side_empty_that_its_reach_just_meets():
    assert -math.log(HALF) == math.log(1 / HALF) == math.sqrt(2 * 0.125) == 0.5
    meets, passes = TRM(0.125), TRM(math.nextafter(math.nextafter(math.nextafter(0.125, 1), 1), 1))
    assert math.sqrt(2 * passes.delta) == math.nextafter(0.5, 1)
    for band in ((HALF, 4.0), (0.1, 1 / HALF)):
        assert (meets.certificate(band).p_out, meets.certificate(band).witness) == (0.0, None)
        assert (passes.certificate(band).p_out, passes.certificate(band).witness) == (1.0, None)
    words = TRM(0.05).certificate(BAND).guarantee
    assert words.startswith("every |z| <= 0.316228: ") and words.endswith(", by at most 0.0930842")


@pytest.mark.parametrize("missing", ["budget", "cost_minus", "cost_plus"])
def test_a_certificate_without_an_additive_budget_is_as_sharp_at_every_length(missing):
    parts = {"budget": 0.02, "cost_minus": LOW, "cost_plus": HIGH}
    certificate = Certificate("rule", None, BAND, 0.75, 0.75, 0.5, "none", **(parts | {missing: None}))
    assert [certificate.sharp(T) for T in (1, 10, 1000)] == [0.75] * 3


@pytest.mark.parametrize(("nats", "count"), [(1e-11, 1), (5e-11, 1), (1.5e-10, 0), (1e-9, 0)])
def test_a_budget_short_of_a_token_by_a_part_in_ten_billion_pays_for_it(nats, count):
    for T in (1, 3):
        certificate = Certificate("rule", None, BAND, 1.0, 1.0, 1.0, "none", (1.0 - nats) / T, cost_minus=1.0, cost_plus=2.0)
        assert certificate.sharp(T) == count / T


def test_fractions_are_read_to_denominators_of_a_million():
    assert [_rational(3 / 999_983), _rational(1 / 1_000_003), _rational(1.000001)] == [
        Fraction(3, 999_983),
        Fraction(1, 10**6),
        Fraction(1_000_001, 10**6),
    ]


def test_bounds_of_arrays_stay_within_zero_and_one():
    d, g = np.array([1.0, 1.0, 9.0]), np.array([1.0000000005, -1.0000000005, 0.0])
    low, high = one_sided_bounds(d, g)
    assert (low[0], high[1], low[2], high[2]) == (0.0, 0.0, 1.0, 1.0)
    assert signed_mean_bound(np.array([0.0, 9.0]), np.array([0.0, 0.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("rule", "hint"), [(CARM, "2"), (GeoMean, "2"), (MeanExpAbs, "2")])
def test_a_threshold_of_a_half_is_taken_for_the_reciprocal_of_two(rule, hint):
    with pytest.raises(ValueError, match=rf"^(tau|threshold): got 0\.5; need >= 1; .* \(did you mean {hint}\?\)$"):
        rule(0.5)


@pytest.mark.parametrize("make", [TokenMIS, SeqMIS])
@pytest.mark.parametrize(("cap", "floor", "shown"), [(0.0, -1.0, "0"), (-0.5, 0.0, "-0.5"), (1.0, 1.0, "1"), (1.0, -1.0, "-1")])
def test_of_two_ends_the_cap_is_checked_first(make, cap, floor, shown):
    with pytest.raises(ValueError, match=rf"^floor, cap: got {shown}; need 0 <= floor < cap; because they bound a ratio$"):
        make(cap, floor)


# ---- reports


def test_equal_tokens_have_no_spread_even_where_rounding_leaves_less_than_none():
    for c in (0.05, 0.1, 0.2, 0.38, 0.59):
        z = np.full((1, 3), c)
        assert noise_floor(z, np.zeros((1, 3)), np.ones((1, 3))).sigma == pytest.approx(0.0, abs=1e-8)


def test_a_column_of_decisions_and_rewards_is_read_like_one_of_each():
    z, ones = np.array([[0.5, 0.1], [0.0, 0.2], [-0.3, 0.0]]), np.ones((3, 2))
    keep, rewards = np.array([False, True, False]), np.array([1.0, 1.0, 0.0])
    assert mask_report(z, ones, keep[:, None], rewards[:, None]) == mask_report(z, ones, keep, rewards)


def test_the_bootstrap_draws_binomial_counts_and_reports_the_two_percentiles():
    c, n, k, replicates = np.arange(2000) % 37 + 1, np.full(2000, 40), 3, 40
    hits = np.random.default_rng(5).binomial(k, c / n, size=(replicates, 2000))
    got = bootstrap_best_worst(c, n, k, replicates=replicates, delta="1/5", seed=5)
    for of, mean, interval in (
        ((hits > 0).sum(axis=1) / 2000, got.best, got.best_interval),
        ((hits == k).sum(axis=1) / 2000, got.worst, got.worst_interval),
    ):
        assert len(set(np.quantile(of, [1 / 15, 0.1, 0.2, 0.8, 0.9, 14 / 15]))) == 6  # neighbours differ
        assert mean == pytest.approx(of.mean(), abs=1e-15)
        assert interval == pytest.approx((np.quantile(of, 0.1), np.quantile(of, 0.9)), abs=1e-15)
    assert (got.k, got.replicates, got.delta) == (3, replicates, Fraction(1, 5))
    assert got.best_interval[0] < got.best_interval[1] and got.worst_interval[0] < got.worst_interval[1]


# ---- log-ratios and losses


def test_nothing_is_said_of_single_and_double_precision():
    carm_core.logratio._warned.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (np.float32, np.float64):
            log_ratio(ONE.astype(dtype), ONE.astype(dtype), ONE)
    with pytest.warns(UserWarning, match="log-probabilities arrive as float16: "):
        log_ratio(ONE.astype(np.float16), ONE, ONE)
    carm_core.logratio._warned.clear()


@pytest.mark.parametrize(
    ("at", "name", "because"),
    [
        (0, "current", "nothing stands in for it"),
        (1, "rollout", "without the sampler's log-probabilities every log-ratio is 0"),
        (2, "token_mask", "nothing stands in for it"),
    ],
)
def test_a_missing_array_is_named_with_what_its_absence_means(at, name, because):
    with pytest.raises(ValueError, match=f"^{name}: got None; need an array; because {because}$"):
        log_ratio(*(None if i == at else ONE for i in range(3)))


def test_refusals_of_losses_count_axes_from_the_last():
    z = np.zeros((2, 3, 4))
    with pytest.raises(ValueError, match=r"^advantages: got shape \(9,\); need \(2, 3\), \(2, 3, 1\) or \(2, 3, 4\); because every token"):
        clipped_surrogate(z, np.ones(9))
    with pytest.raises(ValueError, match=r"^keep: got shape \(9,\); need \(2, 3\); because a response is kept or rejected whole$"):
        masked_loss(z, np.ones((2, 3)), np.ones(z.shape), np.ones(9))


def test_a_guard_below_one_holds():
    got = clipped_surrogate(np.array([[3.0, -3.0]]), np.array([-1.0]), guard=0.5, dual_clip=None)
    np.testing.assert_allclose(got, [[-math.exp(0.5), -0.8]], rtol=1e-15)


# ---- thresholds


def test_levels_of_thresholds():
    assert tau_for_reject_rate([0.1] * 3, 1 / 1_000_003).level == Fraction(1, 10**6)
    for bad in (-0.5, "-1/2", "x", None, 1):
        with pytest.raises(ValueError, match=r"^rate: got "):
            tau_for_reject_rate([0.1], bad)
    assert tau_for_reject_rate([0.1, 0.2], "1/2").attainable
    assert calibrated_tau([0.1], "2/7").guarantee == "none: 1 scores; need n >= 3"


def test_a_certificate_may_be_asked_for_any_fraction_of_tokens_up_to_all():
    assert tau_for_certificate(1.0, BAND) == pytest.approx(1.25, rel=1e-15)
    for bad in (-0.5, math.nextafter(1, 2)):
        with pytest.raises(ValueError, match=r"^p_out: got .*; need 0 <= p_out <= 1; because it is a fraction of tokens$"):
            tau_for_certificate(bad)


def test_of_two_boundaries_as_near_the_lower_one_is_crossed():
    assert equality_response(2, 2.0, (0.5, 2.0), 1) == (pytest.approx(-2 * math.log(2.0)), 0.0)


@pytest.mark.parametrize("value", [-1e-3, -0.5, "-1/3", -1])
def test_a_share_below_zero_is_refused_although_zero_is_one(value):
    with pytest.raises(ValueError, match=r"^rate: got .*; need 0 <= rate < 1; because it is a share of responses$"):
        _level("rate", value, open_interval=False)
    assert _level("rate", 0, open_interval=False) == 0
