"""Whole classes of arguments: numbers that are no numbers, counts, shapes that would broadcast, denominators, extreme scales."""

import dataclasses
import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from carm_strategies import BANDS, fractions_outside, some
from hypothesis import given
from hypothesis import strategies as st

import carm_core
from carm_core import (
    CARM,
    OPSM,
    TRM,
    GeoMean,
    IcePop,
    MeanExpAbs,
    NoMask,
    SeqMIS,
    SeqTIS,
    TokenMIS,
    TokenTIS,
    TRMMean,
    all_at_k,
    best_of_k,
    bootstrap_best_worst,
    calibrated_tau,
    carm_bound,
    clipped_surrogate,
    equality_response,
    finite_T_bound,
    geomean_witness,
    group_advantages,
    log_ratio,
    majority_at_k,
    majority_vote,
    mask_report,
    masked_loss,
    max_violations,
    noise_floor,
    one_sided_bounds,
    paired_decisions,
    pass_at_k,
    rejection_curve,
    sampling_estimate,
    severity_bound,
    tau_for_certificate,
    threshold_sweep,
    worst_of_k,
)

ONE, TWO = np.ones((1, 1)), np.zeros((2, 3))
REFUSED = r"^\w[\w, ]*: got .*; need .*; because "


@pytest.mark.parametrize(
    "call",
    [
        CARM, GeoMean, TRM, TRMMean, MeanExpAbs, OPSM, SeqMIS, SeqTIS, TokenMIS, TokenTIS, IcePop,
        lambda x: SeqMIS(3.0, x),
        lambda x: TokenMIS(3.0, x),
        lambda x: IcePop(0.5, x),
        carm_bound,
        lambda x: carm_bound(1.02, severity=x),
        lambda x: carm_bound(math.inf, geomean_tau=x) if x is not None else check_none(),
        lambda x: carm_bound(1.02, (x, 1.28)),
        lambda x: carm_bound(1.02, x),
        lambda x: severity_bound(x, 1.02),
        lambda x: geomean_witness(severity=x),
        tau_for_certificate,
        lambda x: finite_T_bound(x, 1.02),
        lambda x: max_violations(x, 1.02),
        lambda x: CARM(1.02).certificate().sharp(x),
        lambda x: MeanExpAbs(1.02).certificate().sharp(x),
        geomean_witness,
        lambda x: equality_response(x, 1.02),
        lambda x: log_ratio(ONE, ONE, ONE, clip=x),
        lambda x: noise_floor(ONE, ONE, ONE, taus=[x]),
        lambda x: check_none() if x in (None, np.True_) else masked_loss(ONE, np.ones(1), ONE, ONE[0] == 1, denominator=x),
        lambda x: best_of_k(1, 2, x),
        lambda x: worst_of_k(1, 2, x),
        lambda x: pass_at_k(1, 2, x),
        lambda x: all_at_k(1, 2, x),
        lambda x: majority_at_k(np.zeros((1, 2), dtype=int), np.zeros(1, dtype=int), x),
        lambda x: majority_at_k(np.zeros((1, 2), dtype=int), np.zeros(1, dtype=int), 1, replicates=x),
        lambda x: bootstrap_best_worst(np.array([1]), 2, x),
        lambda x: bootstrap_best_worst(np.array([1]), 2, 1, replicates=x),
    ],
)  # fmt: skip
def test_text_truth_values_nothing_and_nan_are_no_numbers(call):
    for bad in ("1.5", b"1.5", None, True, np.True_, [1.5], math.nan, -1.0):
        with pytest.raises(ValueError, match=REFUSED):
            call(bad)


def check_none():
    raise ValueError("x: got None; need nothing; because it is the default")


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.inf], ids=repr)
def test_counts_are_whole_and_at_least_one(bad):
    for call in (
        lambda x: finite_T_bound(x, 1.02),
        geomean_witness,
        lambda x: best_of_k(1, 2, x),
        lambda x: bootstrap_best_worst(np.array([1]), 2, 1, replicates=x),
    ):
        with pytest.raises(ValueError, match=rf"got {bad}; need an integer >= 1; because "):
            call(bad)
    with pytest.raises(ValueError, match=r"^k: got '2'; need an integer >= 1; because that many responses are drawn$"):
        best_of_k(1, 2, "2")
    with pytest.raises(ValueError, match=r"^k: got 0; need an integer >= 1; because that many responses are drawn$"):
        best_of_k(1, 2, np.int64(0))
    assert finite_T_bound(np.int64(100), 1.02) == finite_T_bound(100.0, 1.02) == 0.08


def test_rules_hold_plain_floats_so_equal_rules_are_equal():
    for tau in (Fraction(51, 50), Decimal("1.02"), np.float64(1.02), np.array(1.02)):
        assert CARM(tau) == CARM(1.02) and type(CARM(tau).tau) is float
        assert MeanExpAbs(tau) == MeanExpAbs(1.02) and GeoMean(tau) == GeoMean(1.02)
    small = Decimal("0.25")
    for make in (TRM, TRMMean, OPSM, TokenTIS, SeqTIS):
        assert make(small) == make(0.25) and make(small).keep(ONE, ONE, np.ones(1)).shape == (1,)
    assert IcePop(small, 4) == IcePop(0.25, 4.0) and repr(IcePop(small, 4)) == repr(IcePop(0.25, 4.0))
    assert TokenMIS(4, small) == TokenMIS(4.0, 0.25) and SeqMIS(4, small) == SeqMIS(4.0, 0.25)


# ---- shapes


def test_one_value_per_response_means_exactly_one():
    keep, column = np.ones(2, dtype=bool), np.ones((2, 1), dtype=bool)
    for empty in (column, column.T, np.ones(1, dtype=bool), np.ones(3, dtype=bool)):
        for call in (
            lambda e: paired_decisions(keep, keep, e),
            lambda e: rejection_curve([0.1, 0.2], [1.02], e),
        ):
            with pytest.raises(ValueError, match=r"^empty: got shape \(.*\); need \(2,\); because it marks responses$"):
                call(empty)
    with pytest.raises(ValueError, match=r"^scores: got shape \(1, 2\); need \(B,\); because a response has one score$"):
        rejection_curve([[0.1, 0.2]], [1.02])
    for bad in (np.ones(3), np.ones((1, 2)), np.ones((2, 3)), np.ones(())):
        with pytest.raises(ValueError, match=r"^keep: got shape \(.*\); need \(2,\); because a response has one$"):
            mask_report(TWO, TWO == 0, bad)
        with pytest.raises(ValueError, match=r"^rewards: got shape \(.*\); need \(2,\); because a response has one$"):
            mask_report(TWO, TWO == 0, keep, bad)
        with pytest.raises(ValueError, match=r"^rewards: got shape \(.*\); need \(2,\); because a response has one reward$"):
            threshold_sweep(CARM, [1.02], TWO, TWO == 0, rewards=bad)
    assert mask_report(TWO, TWO == 0, column, -column.astype(float)) == mask_report(TWO, TWO == 0, keep)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (1,), (3,)])
def test_prompts_never_broadcast_against_their_numbers_of_responses(shape):
    for call in (lambda n: sampling_estimate(np.array([1, 2]), n, 2), lambda n: bootstrap_best_worst(np.array([1, 2]), n, 2)):
        with pytest.raises(ValueError, match=r"^n: got shape \(.*\); need \(2,\); because each prompt has one number of responses$"):
            call(np.full(shape, 4))
    found = sampling_estimate(np.array([1, 2]), np.array([4, 6]), 2)
    assert (found.n, found.responses) == (2, 4) and sampling_estimate([1, 2], 4, 2).responses == 4


@pytest.mark.parametrize("rule", [CARM(1.02), NoMask(), SeqTIS(), OPSM(0.1, conditioning="both"), OPSM(0.1)], ids=repr)
def test_advantages_are_checked_whether_or_not_the_rule_reads_them(rule):
    for bad in (np.ones(3), np.ones((1, 2)), np.ones((2, 2)), np.ones(())):
        with pytest.raises(
            ValueError, match=r"^advantages: got shape \(.*\); need \(2,\), \(2, 1\) or \(2, 3\); because a response has one"
        ):
            rule.keep(TWO, TWO == 0, bad)
    with pytest.raises(TypeError, match=r"^arrays: got ndarray, Tensor; need"):
        rule.keep(TWO, TWO == 0, torch.ones(2))


@pytest.mark.parametrize("xp", [np.asarray, torch.tensor])
def test_denominators_are_single_finite_counts(xp):
    arrays = [xp(x) for x in ([[0.5, 0.5]], [1.0], [[1.0, 1.0]], [True])]
    want = float(masked_loss(*arrays, denominator=4.0))
    assert float(masked_loss(*arrays)) == pytest.approx(2 * want)
    assert float(masked_loss(*arrays, denominator=xp(4))) == pytest.approx(want)
    assert float(masked_loss(*arrays, denominator=xp(0))) == float(masked_loss(*arrays, denominator=0)) == pytest.approx(4 * want)
    assert math.isnan(float(masked_loss(*arrays, denominator=xp(math.nan))))
    for bad in (xp([4.0]), xp([[4.0]])):
        with pytest.raises(ValueError, match=r"^denominator: got shape \(.*\); need \(\); because it counts tokens or responses$"):
            masked_loss(*arrays, denominator=bad)
    for number in (-1, math.inf, math.nan, "4"):
        with pytest.raises(ValueError, match=r"^denominator: got .*; need a finite number >= 0; because it counts tokens or responses$"):
            masked_loss(*arrays, denominator=number)
    with pytest.raises(ValueError, match=r"^advantages: got None; need an array; because the surrogate multiplies ratios by them$"):
        masked_loss(arrays[0], None, *arrays[2:])


def test_denominators_of_another_array_type_are_refused():
    with pytest.raises(TypeError, match=r"^arrays: got ndarray, Tensor; need"):
        masked_loss(TWO, np.ones(2), TWO == 0, np.ones(2, dtype=bool), denominator=torch.tensor(3.0))


@pytest.mark.parametrize("guard", [0.0, -1.0, math.nan])
def test_a_guard_bounds_something(guard):
    with pytest.raises(ValueError, match=r"^guard: got .*; need > 0; because it bounds \|z\|$"):
        clipped_surrogate(TWO, np.ones(2), guard=guard)


def test_an_unparsable_answer_is_no_gold_answer():
    for vote in (majority_vote, lambda c, g: majority_at_k(c, g, 2)):
        with pytest.raises(ValueError, match=r"^gold: got -1; need >= 0; because an unparsable answer is no gold answer$"):
            vote(np.array([[-1, -1], [0, 1]]), np.array([-1, 0]))


# ---- scale


@some
@given(st.lists(st.sampled_from([0.0, 1.0, 0.5, -3.0]), min_size=2, max_size=6), st.integers(-1000, 1000))
def test_group_advantages_do_not_depend_on_the_scale_of_rewards(rewards, power):
    plain = group_advantages(np.array([rewards]))
    assert np.array_equal(group_advantages(np.ldexp(np.array([rewards]), power)), plain)
    single = torch.tensor([rewards])
    assert torch.equal(group_advantages(torch.ldexp(single, torch.tensor(power // 9))), group_advantages(single))


# ---- certificates


RULES_AND_PARAMETERS = [
    *(CARM(t) for t in (1.0, 1.02, 1.1, 1.25, 1.28, 1.3, 5.0)),
    *(GeoMean(t) for t in (1.0, 1.02, 5.0)),
    *(MeanExpAbs(t) for t in (1.0, 1.02, 1.1, 1.25, 1.3, 5.0)),
    *(TRM(d) for d in (0.001, 0.02, 0.05, 0.5, 5.0)),
    *(TRMMean(d) for d in (0.0001, 0.001, 0.02, 0.5, 5.0)),
    *(OPSM(d, conditioning=c) for d in (0.01, 0.5) for c in ("both", "negative")),
    *(IcePop(a, b) for a, b in ((0.5, 5.0), (0.9, 1.05), (0.85, 4.0), (0.3, 0.7), (2.0, 3.0))),
    *(TokenMIS(c, f) for c, f in ((3.0, 0.0), (1.05, 0.95), (1.05, 0.1))),
    *(SeqMIS(c, f) for c, f in ((3.0, 0.0), (3.0, 0.5), (0.5, 0.1), (1e-31, 0.0), (2e31, 1e31), (math.inf, 1e31), (math.inf, 0.0))),
    NoMask(), SeqTIS(), TokenTIS(),
]  # fmt: skip


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_a_witness_is_kept_and_wholly_outside_and_exists_unless_the_bound_is_not_attained(band):
    for rule in RULES_AND_PARAMETERS:
        check_witness(rule, band)


def check_witness(rule, band):
    found = rule.certificate(band)
    assert found.band == band and found.p_out == max(found.p_minus, found.p_plus)
    for p, severity in ((found.p_minus, found.severity_minus), (found.p_plus, found.severity_plus)):
        assert severity >= 0.0 and (p == 0.0) == (severity == 0.0)
    if found.witness is None:
        tied = found.budget is not None and found.p_out == 1.0
        assert found.p_out < 1.0 or tied
        assert not tied or all(found.sharp(T) == (T - 1) / T for T in (1, 2, 7))
        return
    z, ones = np.array([found.witness]), np.ones((1, len(found.witness)))
    assert found.p_out == 1.0 and sum(fractions_outside(found.witness, band)) == 1.0
    assert (
        rule.keep(z, ones, np.ones(1))[0]
        and (rule.weights(z, ones, np.ones(1)) > 0).all() == (rule.weights(z, ones, np.ones(1)) != 0).all()
    )


@pytest.mark.parametrize(
    "rule", [CARM(1.1), CARM(1.25), MeanExpAbs(1.1), MeanExpAbs(1.25), MeanExpAbs(1.28), TRMMean(0.02), TRM(0.05)], ids=repr
)
def test_the_sharp_value_is_the_largest_on_a_grid_just_past_the_boundaries(rule):
    for band, T in itertools.product(BANDS, (1, 2, 3, 4)):
        low, high = math.log(band[0]), math.log(band[1])
        z = np.array(list(itertools.product([0.0, low - 1e-9, high + 1e-9], repeat=T)))
        keep = rule.keep(z, np.ones(z.shape))
        assert ((z < low) | (z > high)).mean(axis=1)[keep].max() == rule.certificate(band).sharp(T)


@some
@given(
    st.integers(1, 500), st.integers(101, 160), st.sampled_from([(Fraction(4, 5), Fraction(32, 25)), (Fraction(1, 2), Fraction(11, 10))])
)
def test_mean_exp_abs_is_sharp_in_rational_arithmetic(T, percent, band):
    cost = min(1 / band[0], band[1]) - 1
    want = max(m for m in range(T + 1) if m == 0 or m * cost < T * Fraction(percent - 100, 100))
    assert MeanExpAbs(percent / 100).certificate(tuple(map(float, band))).sharp(T) == want / T


def test_ties_are_decided_at_any_length_in_lowest_terms():
    for T in (4097, 10_000, 1_000_000):
        assert max_violations(T, 1.25, (0.8, 1.28)) == T - 1
        assert max_violations(2 * T, 1.25, (0.64, 2.0)) == T - 1
    assert max_violations(5000, 1.0, (0.8, 1.28)) == 0
    assert max_violations(2, 1.001, (0.5, 1.002001)) == 0 and max_violations(2, 1.01, (1 / 1.0201, 2.0)) == 0


def test_near_ties_are_decided_exactly_on_either_side():
    for T, m in ((111_202, 65_049), (190_537, 111_457)):  # 1.5^T against 2^m, equal to ten digits in logarithms
        assert max_violations(T, 1.5, (0.5, 2.0)) == (m if 2 ** (T + m) < 3**T else m - 1)
    for T, m in ((730_001, 58_403), (769_999, 61_603)):  # T 0.020001 against m / 4
        want = m if m * 250_000 < T * 20_001 else m - 1
        assert MeanExpAbs(1.020001).certificate((0.8, 1.28)).sharp(T) == want / T


def test_impossible_means_within_rounding_are_clamped():
    assert one_sided_bounds(1.0, 1.0000000005)[0] == 0.0 and one_sided_bounds(1.0, -1.0000000005)[1] == 0.0
    assert one_sided_bounds(9.0, 0.0) == (1.0, 1.0) and carm_bound(math.inf) == 1.0


# ---- results


RESULTS = [
    CARM(1.02).certificate(),
    GeoMean(1.02).certificate(),
    calibrated_tau([0.1, 0.2], "1/2"),
    calibrated_tau([0.1], "1/3"),
    noise_floor(ONE, ONE + 0.01, ONE),
    sampling_estimate([1, 2], 4, 2, delta="1/7"),
]


def test_every_result_that_writes_json_reads_it_back():
    writers = {v for v in vars(carm_core).values() if dataclasses.is_dataclass(v) and hasattr(v, "to_json")}
    assert {type(r) for r in RESULTS} == writers
    for result in RESULTS:
        assert type(result).from_json(result.to_json()) == result
