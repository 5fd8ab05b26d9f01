"""The public checks on examples given by hand instead of searched: what they ask of a mask, and where they begin to refuse."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings

import carm_core.testing
from carm_core import CARM, OPSM, Certificate, GeoMean, carm_score, signed_mean
from carm_core.testing import _batch, check_certificate, check_mask, check_mask_inclusion, check_sub_additivity

BAND = (math.exp(-0.5), 1 / math.exp(-0.5))  # the boundaries are 0.5 nats away, to the last bit
TOLERANCE = 1e-9


@pytest.fixture
def ask(monkeypatch):
    """Runs a check on the given examples alone; returns the words of its refusal, or None."""

    def ask(check, *arguments, examples, **options):
        monkeypatch.setattr(carm_core.testing, "_searching", lambda max_examples: lambda test: test)
        monkeypatch.setattr(carm_core.testing, "given", lambda *searched: lambda test: lambda: [test(*example) for example in examples])
        try:
            check(*arguments, **options)
        except AssertionError as refused:
            return str(refused)
        return None

    return ask


@pytest.fixture
def searched(monkeypatch):
    """The strategies that a check draws its examples from."""

    def searched(check, *arguments):
        found = []
        monkeypatch.setattr(carm_core.testing, "_searching", lambda max_examples: lambda test: test)
        monkeypatch.setattr(carm_core.testing, "given", lambda *strategies: lambda test: lambda: found.extend(strategies))
        check(*arguments)
        return found

    return searched


class Recorder:
    """Keeps every response whose log-ratios are finite and notes what it is asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, z, m):
        self.asked.append((z.copy(), m.copy()))
        return np.isfinite(np.where(m > 0, z, 0.0)).all(axis=1)


def same(one, other):
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


# ---- masks


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rows", [[[0.1, 0.2, 0.3, 0.4]], [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7], [0.8, 0.9, 1.0, 1.1], [1.2]]], ids=len)
def test_one_live_token_of_one_response_is_spoilt_and_the_rest_stays(ask, rows, bad):
    mask, places = Recorder(), set()
    assert ask(check_mask, mask, examples=[(rows, random.Random(seed), bad) for seed in range(20)]) is None
    whole, live = _batch(rows)
    spoilt = [(z, m) for z, m in mask.asked if not np.isfinite(z[m > 0]).all()]
    assert len(spoilt) == 20 * len(rows)
    for i, (z, m) in enumerate(spoilt):
        assert np.array_equal(m, live)
        (where,) = map(tuple, np.argwhere(~np.isfinite(z)).tolist())
        assert where[0] == i % len(rows) and live[where] and np.array_equal(z[where], bad, equal_nan=True)
        z[where] = whole[where]
        assert np.array_equal(z, whole)
        places.add(where)
    assert places == set(map(tuple, np.argwhere(live).tolist()))  # every one of them has its turn


def test_a_batch_is_asked_without_padding_and_with_one_and_three_behind_and_as_many_between_as_live_ones(ask):
    mask = Recorder()
    assert ask(check_mask, mask, examples=[([[0.1] * 5, [0.2]], random.Random(0), math.nan)]) is None
    assert {z.shape[1] for z, _ in mask.asked if len(z) == 2} == {5, 6, 8, 10}


@pytest.mark.parametrize(("examples", "again"), [(1, 1), (49, 49), (60, 50)])
def test_the_first_fifty_batches_are_asked_again_in_order_at_the_end(ask, examples, again):
    mask = Recorder()
    assert ask(check_mask, mask, examples=[([[float(i)], [0.0, 0.5]], random.Random(0), math.nan) for i in range(examples)]) is None
    per = (len(mask.asked) - again) // examples
    assert per * examples + again == len(mask.asked)
    for i, late in enumerate(mask.asked[-again:]):
        assert same(late, mask.asked[i * per])


def test_the_same_batches_are_asked_at_every_run():
    first, second = Recorder(), Recorder()
    for mask in (first, second):
        check_mask(mask, max_examples=8)
    assert len(first.asked) == len(second.asked) and all(same(*pair) for pair in zip(first.asked, second.asked, strict=True))


# ---- certificates


def only(row):
    """Keeps this response and no other."""
    return lambda z, m: np.array([z.tolist() == [row]] * len(z))


NOTHING = Certificate("a mask", None, BAND, 1.0, 1.0, 1.0, "none")
ADDITIVE = {"cost_minus": 0.5, "cost_plus": 0.5}


@pytest.mark.parametrize(
    ("row", "claimed"),
    [
        ([-0.5, 0.0], {"p_out": 0.0, "p_minus": 0.0, "severity_minus": 0.0}),  # at the boundary is inside
        ([0.5, 0.0], {"p_out": 0.0, "p_plus": 0.0, "severity_plus": 0.0}),
        ([-0.5, 0.5], {"p_out": 0.0, "budget": 0.0, **ADDITIVE}),
        ([-1.0, 0.0], {"p_out": 0.5, "p_minus": 0.5, "p_plus": 0.0, "severity_minus": 0.5, "severity_plus": 0.0}),
        ([1.0, 0.0], {"p_out": 0.5, "p_minus": 0.0, "p_plus": 0.5, "severity_minus": 0.0, "severity_plus": 0.5}),
        ([-1.0, 1.0], {"p_minus": 0.5, "p_plus": 0.5, "severity_minus": 0.5, "severity_plus": 0.5}),
        ([-1.0, 1.0], {"budget": 1.0, **ADDITIVE}),
        ([-1.0, 0.0], {"budget": 0.5, **ADDITIVE}),
        ([1.0, 0.0], {"budget": 0.5, **ADDITIVE}),
        # costs of another score: how far past the boundary costs nothing more, even where one of them is the band's
        ([1.0], {"budget": 0.25, "cost_minus": 0.5, "cost_plus": 0.25}),
        ([-1.0], {"budget": 0.25, "cost_minus": 0.25, "cost_plus": 0.5}),
        ([1.0], {"budget": 0.5, "cost_minus": 0.25, "cost_plus": 0.5}),
        ([-1.0], {"budget": 0.5, "cost_minus": 0.5, "cost_plus": 0.25}),
        # no budget, or no cost of a side: nothing is spent
        ([-1.0, 1.0], {**ADDITIVE}),
        ([-1.0, 1.0], {"budget": 0.0}),
        ([-1.0, 1.0], {"budget": 0.0, "cost_minus": 0.5}),
        ([-1.0, 1.0], {"budget": 0.0, "cost_plus": 0.5}),
        ([-1.0, 1.0], {"cost_minus": 0.5}),
        ([-1.0, 1.0], {"cost_plus": 0.5}),
        # a rounding error is allowed, to its end
        *[([0.0], {name: -TOLERANCE}) for name in ("p_out", "p_minus", "p_plus", "severity_minus", "severity_plus")],
        ([0.0], {"budget": -TOLERANCE, **ADDITIVE}),
    ],
    ids=str,
)
def test_a_claim_that_just_holds_is_accepted(ask, row, claimed):
    assert ask(check_certificate, only(row), replace(NOTHING, **claimed), band=BAND, examples=[(row,)]) is None


@pytest.mark.parametrize(
    ("row", "claimed", "said"),
    [
        ([-1.0, 1.0], {"p_out": 0.5}, "with p_out = 1; the certificate says 0.5"),  # outside on both sides
        ([-1.0], {"p_out": 0.5}, "with p_out = 1; the certificate says 0.5"),
        ([1.0], {"p_out": 0.5}, "with p_out = 1; the certificate says 0.5"),
        ([1.0, 1.0, -1.0, 0.0], {"p_out": 0.7}, "with p_out = 0.75; the certificate says 0.7"),
        ([-1.0, 0.0], {"p_minus": 0.49}, "with p_minus = 0.5; the certificate says 0.49"),
        ([1.0, 0.0], {"p_plus": 0.49}, "with p_plus = 0.5; the certificate says 0.49"),
        ([-1.0, 0.0], {"severity_minus": 0.49}, "with severity_minus = 0.5; the certificate says 0.49"),
        ([1.0, 0.0], {"severity_plus": 0.49}, "with severity_plus = 0.5; the certificate says 0.49"),
        ([-1.0, 1.0], {"budget": 0.75, **ADDITIVE}, "and spend 1 of 0.75"),
        ([-1.0], {"budget": 0.75, **ADDITIVE}, "and spend 1 of 0.75"),
        ([1.0], {"budget": 0.75, **ADDITIVE}, "and spend 1 of 0.75"),
        ([1.0], {"budget": 0.2, "cost_minus": 0.5, "cost_plus": 0.25}, "and spend 0.25 of 0.2"),
        *[
            ([0.0], {name: -0.5}, f"with {name} = 0; the certificate says -0.5")  # less than nothing
            for name in ("p_out", "p_minus", "p_plus", "severity_minus", "severity_plus")
        ],
        ([0.0], {"budget": -0.5, **ADDITIVE}, "and spend 0 of -0.5"),
    ],
    ids=str,
)
def test_a_claim_that_does_not_hold_is_refused_with_what_was_found(ask, row, claimed, said):
    got = ask(check_certificate, only(row), replace(NOTHING, **claimed), band=BAND, examples=[(row,)])
    assert got == f"log-ratios {row} are accepted {said}"


@pytest.mark.parametrize(
    ("witness", "sound"),
    [
        ((-0.5,), False),  # at the boundary is inside
        ((0.5,), False),
        ((math.nextafter(-0.5, -1.0),), True),
        ((math.nextafter(0.5, 1.0),), True),
        ((1.0, -1.0), True),
        ((1.0, 0.5), False),
        ((-0.5, -1.0), False),
    ],
)
def test_a_witness_lies_outside_of_the_boundary_at_every_token(ask, witness, sound):
    got = ask(check_certificate, only(list(witness)), replace(NOTHING, witness=witness), band=BAND, examples=[])
    assert got == (None if sound else f"the witness {witness} is not an accepted response with every ratio outside")


def test_a_witness_that_is_not_kept_is_refused(ask):
    got = ask(check_certificate, only([2.0]), replace(NOTHING, witness=(1.0,)), band=BAND, examples=[])
    assert got == "the witness (1.0,) is not an accepted response with every ratio outside"


# ---- inclusion


@pytest.mark.parametrize(("inner", "outer", "holds"), [(True, True, True), (True, False, False), (False, True, True), (False, False, True)])
def test_inclusion_of_one_response(ask, inner, outer, holds):
    masks = [lambda z, m, kept=kept: np.full(len(z), kept) for kept in (inner, outer)]
    got = ask(check_mask_inclusion, *masks, examples=[([0.25],)])
    assert got == (None if holds else "log-ratios [0.25]: kept by the inner mask, not by the outer one")


# ---- scores


def table(values):
    """A score of single tokens written out, 0 elsewhere; with padding it is what stands under (token, "padded")."""

    def score(z, m):
        return np.array([values.get(z[0, 0] if z.shape[1] == 1 else (z[0, 0], "padded"), 0.0)])

    return score


@pytest.mark.parametrize(
    ("values", "said"),
    [
        # y = 1, z = 2, c = 0.25: d(y + z) is d(3), d(c z) is d(0.5)
        ({}, None),
        ({(2.0, "padded"): TOLERANCE}, None),  # a rounding error is allowed, to its end
        ({(2.0, "padded"): -TOLERANCE}, None),
        ({3.0: TOLERANCE}, None),
        ({0.5: TOLERANCE}, None),
        ({0.5: -TOLERANCE}, None),
        ({3.0: -9.0}, None),  # below the sum by any margin
        ({(2.0, "padded"): 1e-6}, "d(z) = 0, but 1e-06 with padding, for z = [2.0]"),
        ({(2.0, "padded"): -1e-6}, "d(z) = 0, but -1e-06 with padding, for z = [2.0]"),
        ({(2.0, "padded"): 0.5}, "d(z) = 0, but 0.5 with padding, for z = [2.0]"),
        ({1.0: -0.5}, "scores -0.5 and 0; need at least 0"),
        ({1.0: -1e-300}, "scores -1e-300 and 0; need at least 0"),
        ({2.0: -0.5, (2.0, "padded"): -0.5}, "scores 0 and -0.5; need at least 0"),
        ({3.0: 0.5}, "d(y + z) = 0.5 above 0 + 0 for y = [1.0], z = [2.0]"),
        ({3.0: 1e-6}, "d(y + z) = 1e-06 above 0 + 0 for y = [1.0], z = [2.0]"),
        ({1.0: 0.25, 3.0: 0.5}, "d(y + z) = 0.5 above 0.25 + 0 for y = [1.0], z = [2.0]"),
        ({0.5: 0.5}, "d(0.25 z) = 0.5, |c| d(z) = 0 for z = [2.0]"),
        ({0.5: -1e-6}, "d(0.25 z) = -1e-06, |c| d(z) = 0 for z = [2.0]"),
    ],
    ids=str,
)
def test_a_score_at_the_tolerance_and_past_it(ask, values, said):
    assert ask(check_sub_additivity, table(values), cancels=True, examples=[([(1.0, 2.0)], 0.25)]) == said


@pytest.mark.parametrize("T", [1, 2, 6])
def test_a_score_is_held_to_a_thousandth_of_the_mean_and_not_to_more(ask, T):
    pairs = [(0.0, 1.0)] + [(0.0, 0.0)] * (T - 1)
    for factor, enough in ((0.01, True), (0.001 * (1 + 1e-12), True), (0.000999, False)):
        got = ask(check_sub_additivity, lambda z, m, factor=factor: factor * carm_score(z, m), examples=[(pairs, 0.5)])
        assert got is None if enough else got.endswith(f"for z = {[z for _, z in pairs]}: log-ratios cancel")


def test_the_opposite_pair_is_asked_whatever_was_searched(ask):
    assert ask(check_sub_additivity, signed_mean, examples=[]) == "d(1, -1) = 0: opposite log-ratios cancel"
    assert ask(check_sub_additivity, signed_mean, examples=[], cancels=True) is None


# ---- what is searched


def can_be_drawn(strategy, wanted):
    found = find(strategy, wanted, settings=settings(max_examples=500, phases=[Phase.generate], derandomize=True, database=None))
    assert wanted(found)


def test_scores_are_searched_over_one_to_six_pairs_of_numbers_within_two(searched):
    pairs, number = searched(check_sub_additivity, carm_score)
    for wanted in (-2.0, 0.0, 2.0):
        can_be_drawn(number, lambda x, wanted=wanted: x == wanted)
    can_be_drawn(number, lambda x: 0.0 < abs(x) < 0.9)
    for length in (1, 6):
        can_be_drawn(pairs, lambda found, length=length: len(found) == length)

    @settings(max_examples=100, derandomize=True, database=None, deadline=None)
    @given(pairs, number)
    def within(found, c):
        assert 1 <= len(found) <= 6
        assert all(x == 0 or 1e-6 < abs(x) <= 2 for x in (*np.ravel(found), c))

    within()


def test_masks_are_searched_over_one_to_four_responses(searched):
    rows, _, bad = searched(check_mask, GeoMean(1.02))
    for length in (1, 4):
        can_be_drawn(rows, lambda found, length=length: len(found) == length)
    for wanted in ("nan", "inf", "-inf"):
        can_be_drawn(bad, lambda x, wanted=wanted: str(x) == wanted)

    @settings(max_examples=50, derandomize=True, database=None, deadline=None)
    @given(rows)
    def within(found):
        assert 1 <= len(found) <= 4 and all(found)

    within()


def test_the_examples_by_hand_hold_for_a_rule_of_this_package(ask):
    rows = [[0.0], [0.5, -0.5], [3.0] + [0.0] * 40]
    assert ask(check_certificate, CARM(1.3), band=BAND, examples=[(row,) for row in rows]) is None


def test_what_rows_are_searched_written_out():
    """Tokens at zero, near it, far out, at both edges of two bands; rows that cancel, long rows with one token, flat rows."""
    small, edge = "floats(min_value=-0.03, max_value=0.03)", [-math.log(1.28), math.log(1.28), math.log(0.8), -math.log(0.8)]
    token = (
        f"one_of(just(0.0), {small}, sampled_from([-1.0, 1.0, -0.3, 0.3, 0.5, -0.5]), "
        f"floats(min_value=-3, max_value=3), sampled_from({edge}))"
    )
    rows = [
        f"lists({token}, min_size=1, max_size=8)",
        "lists(floats(min_value=-2, max_value=2), min_size=1, max_size=4).map(",
        "tuples(floats(min_value=-3, max_value=3), integers(min_value=1, max_value=60)).map(",
        "tuples(floats(min_value=-0.05, max_value=0.05), integers(min_value=1, max_value=20)).map(",
    ]
    found = repr(carm_core.testing.log_ratio_rows)
    places = [found.find(row) for row in rows]
    assert places[0] == len("one_of(") and places == sorted(places)
    assert [str(x) for x in carm_core.testing._NOT_FINITE] == ["nan", "inf", "-inf"]


def test_a_rule_is_asked_about_failures():
    """A rule that judges negative advantages only is held to what it says of those."""
    z, mask = _batch([[-1.0], [0.0]])
    assert carm_core.testing._keep(OPSM(0.02))(z, mask).tolist() == [False, True]
    assert carm_core.testing._keep(CARM(1.02, conditioning="negative"))(z, mask).tolist() == [False, True]
