"""Fixed-sequence testing of the stop: against its definition, and its error over the exact law of small calibration sets."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations_with_replacement
from math import comb, factorial, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal_core.lead import knobs
from conformal_core.learn_then_test import LearnThenTest, binomial_below, certifiable_size, learn_then_test
from conformal_core.outcomes import Outcomes
from tests.conformal_core.test_lead import path_by_hand

GRID = (1, 2, 4, 6)
quiet = pytest.mark.filterwarnings("ignore:n. got:UserWarning")
RISKS = pytest.mark.parametrize("risk", ["wrong_stop", "wrong_given_stop"])


def outcomes(codes):
    return Outcomes(np.arange(len(codes), dtype=np.uint64), codes == 0, codes=codes, gold=np.zeros(len(codes), np.int64))


def tail(x, m, p):
    return sum(comb(m, i) * p**i * (1 - p) ** (m - i) for i in range(x + 1))


@RISKS
@pytest.mark.parametrize("statistic", ["top_share", "margin"])
@quiet
@settings(max_examples=40, deadline=None)
@given(
    codes=arrays(np.int64, st.tuples(st.integers(1, 15), st.just(6)), elements=st.integers(-1, 1)),
    delta=st.sampled_from(["1/10", "1/4", "1/2"]),
    gamma=st.sampled_from(["1/10", "1/4", "1/2"]),
    starts=st.integers(1, 20),
)
def test_is_the_smallest_knob_reached_by_a_sequence(risk, statistic, codes, delta, gamma, starts):
    sequence, passed = knobs(GRID, statistic), []
    for lam in sequence:
        stops = [s for row in codes.tolist() if (s := path_by_hand(row, lam, statistic)) is not None]
        wrong = sum(a != 0 for _, a in stops)
        m = len(codes) if risk == "wrong_stop" else len(stops)
        passed.append(tail(wrong, m, Fraction(delta)) <= Fraction(gamma) / starts)
    reached = set()
    for j in range(number := min(starts, len(sequence) - 1)):
        at = 1 + j * (len(sequence) - 1) // number
        while at < len(sequence) and passed[at]:
            reached.add(at)
            at += 1
    rule = learn_then_test(outcomes(codes), GRID, delta, gamma, risk=risk, statistic=statistic, starts=starts)
    assert rule.lam == sequence[max(reached, default=0)] and rule.attainable == bool(reached)
    assert LearnThenTest.from_json(json.loads(json.dumps(rule.to_json(), allow_nan=False))) == rule
    assert rule.p_value <= float(Fraction(gamma) / starts) * (1 + 1e-9) or not reached


#: Three kinds of prompts on the grid (1, 2): always right; unanimous and wrong; wrong first, then undecided.
KINDS = np.array([[0, 0], [1, 1], [1, 0]])
LAWS = [tuple(Fraction(x, 20) for x in law) for law in ((10, 5, 5), (12, 6, 2), (15, 5, 0))]


@RISKS
@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("law", LAWS)
@quiet
def test_error_probability_by_enumeration(risk, starts, law):
    """P(the risk of the chosen knob exceeds delta) over all calibration sets of 8 prompts; delta just below the risk of each knob."""
    grid, n, gamma = (1, 2), 8, Fraction(1, 4)
    true = {}
    for lam in knobs(grid, "top_share"):
        paths = [next((r[k - 1] if k == 1 else r[0] for k in grid if by_share(r[:k]) > lam), None) for r in KINDS.tolist()]
        stop = sum(p for p, a in zip(law, paths, strict=True) if a is not None)
        wrong = sum(p for p, a in zip(law, paths, strict=True) if a not in (None, 0))
        true[lam] = wrong if risk == "wrong_stop" else (wrong / stop if stop else Fraction(0))
    for delta in ("1/10", "1/5", "6/25", "2/5"):
        error = Fraction(0)
        for sample in combinations_with_replacement(range(3), n):
            counts = [sample.count(j) for j in range(3)]
            weight = Fraction(factorial(n), prod(map(factorial, counts))) * prod(p**c for p, c in zip(law, counts, strict=True))
            if weight:
                lam = learn_then_test(outcomes(KINDS[list(sample)]), grid, delta, gamma, risk=risk, starts=starts).lam
                error += weight * (true[lam] > Fraction(delta))
        assert error <= gamma


def by_share(row):
    top = max(row.count(a) for a in set(row))
    return Fraction(0) if sum(row.count(a) == top for a in set(row)) > 1 else Fraction(top, len(row))


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.fractions(Fraction(1, 50), Fraction(1, 2), max_denominator=50))
def test_binomial_comparison_is_exact_at_equality(x, m, p):
    exact = tail(min(x, m), m, p)
    if 0 < exact < 1:
        assert binomial_below(min(x, m), m, p, exact)
        assert not binomial_below(min(x, m), m, p, exact - Fraction(1, 10**30))


@settings(deadline=None)
@given(*(st.fractions(Fraction(1, 100), Fraction(9, 10), max_denominator=100) for _ in range(2)))
def test_certifiable_size_is_the_smallest(delta, gamma):
    n = certifiable_size(delta, gamma)
    assert (1 - delta) ** n <= gamma and (n == 1 or (1 - delta) ** (n - 1) > gamma)


def test_too_few_prompts_warn_with_the_size_that_would_do():
    with pytest.warns(UserWarning, match=r"^n: got 21 calibration prompts; need 22; because "):
        rule = learn_then_test(outcomes(np.zeros((21, 6), int)), GRID, "0.1", "0.1")
    assert rule.lam == 1 and not rule.attainable and "nothing stops" in rule.guarantee
    with pytest.warns(UserWarning, match=r"^n: got 60 calibration prompts; need fewer wrong stops, or more; because no knob "):
        assert learn_then_test(outcomes(np.ones((60, 6), int)), GRID, "0.1", "0.1").lam == 1
    with pytest.warns(UserWarning, match=r"^n: got 22 calibration prompts; need fewer wrong stops, or more; because no knob "):
        learn_then_test(outcomes(np.ones((22, 6), int)), GRID, "0.1", "0.1")
    assert learn_then_test(outcomes(np.zeros((22, 6), int)), GRID, "0.1", "0.1").lam == 0


@quiet
def test_several_starts_pass_over_knobs_that_stop_too_few():
    codes = np.zeros((60, 6), int)
    codes[:55, 5] = 1  # five of six: the strictest margins stop five prompts only
    kwargs = {"risk": "wrong_given_stop", "statistic": "margin"}
    strict, several = (learn_then_test(outcomes(codes), (6,), "0.2", "0.2", starts=s, **kwargs) for s in (1, 3))
    assert not strict.attainable and several.attainable and several.stops == 60


def test_refusals():
    o = outcomes(np.zeros((30, 6), int))
    for kwargs, name in (({"risk": "x"}, "risk"), ({"starts": 0}, "starts"), ({"gamma": "1"}, "gamma"), ({"statistic": "x"}, "statistic")):
        with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
            learn_then_test(o, GRID, "0.1", **kwargs)
    with pytest.raises(ValueError, match=r"^outcomes: got 0"):
        learn_then_test(o.take(np.array([], int)), GRID, "0.1")
    with pytest.raises(ValueError, match=r"^outcomes.gold: got None"):
        learn_then_test(Outcomes(o.prompt_ids, o.passes, codes=o.codes), GRID, "0.1")


@quiet
@pytest.mark.parametrize("starts", [4, 10**6])
def test_more_starts_than_knobs_start_at_every_knob(starts):
    """Ten prompts agree on a wrong answer; of the others only the laxest of the three knobs that stop anything sees enough."""
    codes = np.array([[1, 1]] * 10 + [[-1, 0]] * 200)
    rule = learn_then_test(outcomes(codes), (1, 2), "0.4", Fraction(1, 2), risk="wrong_given_stop", statistic="margin", starts=starts)
    assert rule.lam == 0 and (rule.stops, rule.wrong) == (210, 10)
