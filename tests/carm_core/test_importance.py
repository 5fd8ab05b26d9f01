"""Importance rules against products and bands of exact rationals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from carm_strategies import BANDS, batches, few, fractions_outside, some
from hypothesis import given
from hypothesis import strategies as st

from carm_core import CARM, IcePop, SeqMIS, SeqTIS, TokenMIS, TokenTIS
from carm_core.rules import Rule

ratios = st.lists(st.sampled_from([Fraction(x, 8) for x in (1, 2, 4, 7, 8, 9, 16, 24, 25, 80)]), min_size=1, max_size=6)
TOKEN_RULES = [TokenTIS(), TokenTIS(0.5), TokenMIS(), TokenMIS(3.0, 0.25), IcePop(), IcePop(weighted=False)]


def logs(row):
    return np.array([[math.log(r) for r in row]]), np.ones((1, len(row)))


def near(r, *edges):
    return any(abs(float(r) / e - 1) < 1e-9 for e in edges if e)


@some
@given(ratios)
@pytest.mark.parametrize("rule", TOKEN_RULES, ids=repr)
def test_token_weights_are_the_ratio_cut_or_dropped(rule, row):
    got = rule.weights(*logs(row))[0]
    assert rule.keep(*logs(row)).tolist() == [True]
    for weight, r in zip(got, row, strict=True):
        if isinstance(rule, TokenTIS):
            assert weight == pytest.approx(min(float(r), rule.cap), rel=1e-12)
            continue
        low, high = (rule.alpha, rule.beta) if isinstance(rule, IcePop) else (rule.floor, rule.cap)
        if near(r, low, high):
            continue
        inside = low <= r <= high
        assert weight == pytest.approx(((float(r) if getattr(rule, "weighted", True) else 1.0) if inside else 0.0), rel=1e-12)


@some
@given(ratios, st.sampled_from([(3.0, 0.0), (2.0, 0.5), (0.5, 0.25), (100.0, 4.0)]))
def test_sequence_mis_keeps_products_within_its_band_and_weighs_by_them(row, band):
    cap, floor = band
    product = float(math.prod(row))
    if near(product, cap, floor):
        return
    rule = SeqMIS(cap, floor)
    keep = bool(rule.keep(*logs(row))[0])
    assert keep == (floor <= product <= cap)
    np.testing.assert_allclose(rule.weights(*logs(row))[0], product if keep else 0.0, rtol=1e-9)


@some
@given(ratios, st.sampled_from([0.5, 2.0, 5.0]))
def test_sequence_tis_truncates_the_product(row, cap):
    np.testing.assert_allclose(SeqTIS(cap).weights(*logs(row))[0], min(float(math.prod(row)), cap), rtol=1e-9)


def test_published_defaults():
    assert (TokenTIS().cap, TokenMIS().cap, TokenMIS().floor, SeqTIS().cap, SeqMIS().cap, SeqMIS().floor) == (2.0, 3.0, 0.0, 2.0, 3.0, 0.0)
    assert (IcePop().alpha, IcePop().beta, IcePop().weighted) == (0.5, 5.0, True)


def test_extreme_ratios_stay_finite():
    z, ones = np.array([[1e4, -1e4]]), np.ones((1, 2))
    for rule in (TokenTIS(), SeqTIS(), SeqMIS(1e300), TokenMIS(math.inf), IcePop(0.5, math.inf)):
        assert np.isfinite(rule.weights(z, ones)).all()
    assert TokenMIS(math.inf).weights(z, ones).tolist() == [[math.exp(60), 0.0]]


@few
@given(batches(), st.sampled_from([math.nan, math.inf, -math.inf]))
@pytest.mark.parametrize("rule", [*TOKEN_RULES, SeqMIS(2.0, 0.5), SeqTIS()], ids=repr)
def test_one_nonfinite_live_token_takes_its_whole_response_out(rule, batch, poison):
    _, z, mask = batch
    bad = np.where(np.cumsum(mask, axis=1) == 1, poison, z)
    dead = ((np.cumsum(mask, axis=1) == 1) & (mask == 1)).any(axis=1)
    assert not rule.keep(bad, mask)[dead].any()
    assert np.all(rule.weights(bad, mask)[dead] == 0)


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(
    "rule", [*TOKEN_RULES, SeqTIS(), SeqTIS(0.01), SeqMIS(), SeqMIS(0.01), SeqMIS(3.0, 2.0), SeqMIS(0.2, 0.1)], ids=repr
)
def test_what_is_not_certified_has_a_surviving_response_entirely_outside(rule, band):
    c = rule.certificate(band)
    if c.p_out == 0.0:
        assert c.witness is None and rule.certificate(band).severity_minus == rule.certificate(band).severity_plus == 0.0
        return
    z = np.array([c.witness])
    assert rule.keep(z, np.ones(z.shape)).all()
    assert (rule.weights(z, np.ones(z.shape)) > 0).all()
    assert sum(fractions_outside(c.witness, band)) == 1.0


def test_severity_of_icepop_in_the_paper_band():
    c = IcePop().certificate((0.8, 1.28))
    assert (round(c.severity_minus, 3), round(c.severity_plus, 3)) == (0.470, 1.363)
    assert c.guarantee == "surviving tokens have alpha <= r <= beta; original tokens of the response: none"
    assert TokenMIS(3.0).certificate((0.8, 1.28)).severity_minus == math.inf
    assert IcePop(0.9, 1.2).certificate((0.8, 1.28)).p_out == 0.0


def test_argument_errors():
    for make in (IcePop, TokenMIS, TokenTIS, SeqTIS):
        with pytest.raises(
            ValueError, match=f"^conditioning: got 'negative'; need 'both'; because {make.__name__} weighs tokens, whatever"
        ):
            make(conditioning="negative")
    for make in (TokenTIS, SeqTIS):
        for bad in (0.0, -1.0, math.nan, None, "2", True):
            with pytest.raises(ValueError, match=r"^cap: got .*; need > 0; because it caps a (product of ratios|ratio)$"):
                make(bad)
    for make in (TokenMIS, SeqMIS):
        for floor in (3.0, 4.0, -0.1, math.nan, None, "0.5"):
            with pytest.raises(ValueError, match=r"^floor, cap: got .*; need 0 <= floor < cap; because they bound a ratio$"):
                make(3.0, floor)
        for cap in (0.0, -1.0, math.nan, None):
            with pytest.raises(ValueError, match=r"^floor, cap: got .*; need 0 <= floor < cap; because they bound a ratio$"):
                make(cap)
    for alpha, beta, got in ((0, 1, "0"), (2, 1, "2"), (1, 1, "1"), (-1, 1, "-1"), (0.5, math.nan, "nan"), ("x", 1, "'x'")):
        with pytest.raises(ValueError, match=f"^alpha, beta: got {got}; need 0 < alpha < beta; because they bound a ratio$"):
            IcePop(alpha, beta)


def test_a_subclass_with_its_own_decision_is_evaluated_whole_unless_it_says_otherwise():
    class Tail(CARM):
        def accept(self, rows):
            return rows.sum(rows.z) <= self.log_tau

    class Named(CARM):
        pass

    class Blockwise(CARM):
        blockwise = True

        def accept(self, rows):
            return rows.mean_of(abs) <= self.log_tau

    assert (Tail.blockwise, Named.blockwise, Blockwise.blockwise, Rule.blockwise, CARM.blockwise) == (False, True, True, False, True)


def test_a_band_of_products_that_holds_one_is_witnessed_by_a_product_of_one():
    for rule in (SeqMIS(3.0, 1.0), SeqMIS(1.0, 0.5), SeqMIS(1.0), SeqMIS(math.inf, 1.0)):
        assert rule.certificate().witness == (1.0, -1.0)
    assert sum(SeqMIS(math.inf, math.e).certificate().witness) == pytest.approx(2.0)
    assert sum(SeqMIS(1 / math.e).certificate().witness) == pytest.approx(-2.0)
    assert sum(SeqMIS(math.e**3, math.e).certificate().witness) == pytest.approx(2.0)
