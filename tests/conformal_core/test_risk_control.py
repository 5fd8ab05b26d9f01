import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal_core.lead import margin_stop
from conformal_core.outcomes import Outcomes
from conformal_core.risk_control import RiskControl, risk_control, wrong_stop_level

GRID = (1, 2, 4, 6)
TABLES = arrays(np.int64, st.tuples(st.integers(1, 9), st.just(6)), elements=st.integers(-1, 2))
DELTAS = st.sampled_from(["1/10", "1/5", "1/4", "1/3", "1/2", "4/5"])


def outcomes(codes):
    gold = np.zeros(len(codes), np.int64)
    return Outcomes(np.arange(len(codes), dtype=np.uint64), codes == 0, codes=codes, gold=gold)


def stop_by_hand(row, lam):
    """The rule as it is written: (k, answer) of the first budget with a unique top answer above lam, or None."""
    for k in GRID:
        counts = Counter(int(c) for c in row[:k] if c >= 0).most_common()
        if counts and (len(counts) == 1 or counts[0][1] > counts[1][1]) and Fraction(counts[0][1], k) > lam:
            return k, counts[0][0]
    return None


def wrong_by_hand(row, lam):
    stop = stop_by_hand(row, lam)
    return stop is not None and stop[1] != 0


KNOBS = sorted({Fraction(0), Fraction(1)} | {Fraction(c, k) for k in GRID for c in range(1, k + 1)})


@given(TABLES)
def test_level_is_the_envelope_of_the_loss(codes):
    for row, level in zip(codes, wrong_stop_level(outcomes(codes), GRID), strict=True):
        for knob in KNOBS:
            assert (knob < Fraction(level).limit_denominator(6)) == any(wrong_by_hand(row, later) for later in KNOBS if later >= knob)


@pytest.mark.filterwarnings("ignore:n. got:UserWarning")
@given(TABLES, DELTAS)
def test_is_the_smallest_knob_within_the_bound(codes, delta):
    n = len(codes)
    result = risk_control(outcomes(codes), GRID, delta)
    bound = {}
    for knob in KNOBS:
        bound[knob] = Fraction(1 + sum(any(wrong_by_hand(row, later) for later in KNOBS if later >= knob) for row in codes), n + 1)
    allowed = [knob for knob in KNOBS if bound[knob] <= Fraction(delta)]
    assert result.attainable == bool(allowed)
    assert result.lam == min(allowed, default=1)
    assert result.risk == bound[result.lam]
    assert result.n == n and result.delta == Fraction(delta)
    assert RiskControl.from_json(json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.filterwarnings("ignore:n. got:UserWarning")
@settings(max_examples=150)
@given(arrays(np.int64, st.tuples(st.integers(2, 11), st.just(6)), elements=st.integers(-1, 1)), DELTAS)
def test_risk_is_bounded_for_every_exchangeable_law(codes, delta):
    """Given the multiset of n + 1 trajectories, each is equally often the test prompt: the average over who is left out is the
    conditional risk, exactly, and it must not exceed delta for any multiset."""
    wrong = 0
    for i in range(len(codes)):
        lam = risk_control(outcomes(np.delete(codes, i, axis=0)), GRID, delta).lam
        wrong += wrong_by_hand(codes[i], lam)
    assert Fraction(wrong, len(codes)) <= Fraction(delta)


@given(TABLES, st.sampled_from(KNOBS))
def test_stop_is_the_rule_as_written(codes, lam):
    o = outcomes(codes)
    done = np.zeros(len(codes), bool)
    for k in GRID:
        stop, answer = margin_stop(o.prefix(k), k, lam)
        for i, row in enumerate(codes):
            hand = stop_by_hand(row, lam)
            if not done[i]:
                assert (hand is not None and hand[0] == k) == stop[i]
                assert answer[i] == (hand[1] if stop[i] else -1)
        done |= stop
    assert not (lam == 1 and done.any())


def test_share_equal_to_the_knob_does_not_stop():
    codes = np.array([[0, 0, 1, 0, 0, 1]])
    assert not margin_stop(outcomes(codes), 6, Fraction(2, 3))[0].any()
    assert margin_stop(outcomes(codes), 6, Fraction(2, 3) - Fraction(1, 10**9))[0].all()


def test_unparsable_answers_stay_in_the_denominator():
    codes = np.array([[0, -1, -1, -1, -1, -1]])
    assert not margin_stop(outcomes(codes), 4, Fraction(1, 4))[0].any()
    assert margin_stop(outcomes(codes), 4, Fraction(1, 5))[1].tolist() == [0]
    assert not margin_stop(outcomes(np.full((1, 6), -1)), 4, Fraction(0))[0].any()


def test_prompts_without_k_responses_do_not_stop():
    o = outcomes(np.zeros((2, 6), np.int64)).prefix(np.array([3, 4]))
    assert margin_stop(o, 4, Fraction(0))[0].tolist() == [False, True]


@given(TABLES, st.permutations([3, 5, 9]))
def test_only_equality_of_codes_matters(codes, names):
    renamed = np.where(codes >= 0, np.array([*names, 0])[codes], codes)
    other = Outcomes(np.arange(len(codes), dtype=np.uint64), codes == 0, codes=renamed, gold=np.full(len(codes), names[0]))
    np.testing.assert_array_equal(wrong_stop_level(other, GRID), wrong_stop_level(outcomes(codes), GRID))


def test_out_of_reach_never_stops_and_names_the_size():
    with pytest.warns(UserWarning, match=r"^n: got 8 calibration prompts; need 9; because "):
        result = risk_control(outcomes(np.zeros((8, 6), np.int64)), GRID, "0.1")
    assert not result.attainable and result.lam == 1
    assert risk_control(outcomes(np.zeros((9, 6), np.int64)), GRID, "0.1").lam == 0


def test_refusals():
    o = outcomes(np.zeros((9, 6), np.int64))
    for bad, match in [
        (Outcomes(o.prompt_ids, o.passes, codes=o.codes), "outcomes.gold"),
        (Outcomes(o.prompt_ids, o.passes, gold=o.gold), "outcomes.codes"),
        (o.prefix(5), "outcomes.drawn"),
        (o.take(np.array([], np.int64)), "outcomes"),
    ]:
        with pytest.raises(ValueError, match=rf"^{match}: got .*; need .*; because "):
            risk_control(bad, GRID, "0.1")
    with pytest.raises(ValueError, match=r"^delta"):
        risk_control(o, GRID, "0")
