"""Claims of the C-GRPO paper about the split-conformal machinery, as repaired; each test is named after its claim."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal_core.laws import tied_coverage
from conformal_core.level import conformal_rank
from conformal_core.outcomes import Outcomes
from conformal_core.pvalues import smoothed_p_values
from conformal_core.quantile import conformal_quantile
from conformal_core.scores import APS, FirstSuccess, MassAbove, ReleasedAPS, Score, answer_counts
from tests.strategies import levels, outcomes

ANSWER_SCORES: list[Score] = [APS(), APS("inclusive"), MassAbove()]
ALL: list[Score] = [*ANSWER_SCORES, FirstSuccess(), FirstSuccess("paper")]
by_name = pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
interior = st.integers(0, 63).map(lambda j: (2 * j + 1) / 128)


def test_A1_lower_bound_holds_with_an_infinite_threshold_and_fails_with_the_min() -> None:
    repaired, with_min, below = [], [], []
    for n in range(1, 61):
        for j in range(1, 200):
            d = Fraction(j, 200)
            rank = conformal_rank(n, d)
            cover = Fraction(rank, n + 1)  # of distinct scores; rank n + 1 covers everything
            repaired.append(1 - d <= cover <= 1 - d + Fraction(1, n + 1))
            with_min.append(Fraction(min(rank, n), n + 1) >= 1 - d)
            below.append(d < Fraction(1, n + 1))
    assert all(repaired)
    assert len(with_min) == 11940 and with_min.count(False) == 706
    assert [not ok for ok in with_min] == below


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_A1_coverage_by_enumeration_of_the_rank_of_the_test_point(n: int) -> None:
    values = np.arange(1.0, n + 2)
    for j in range(1, 40):
        d = Fraction(j, 40)
        hits = sum(float(s) <= conformal_quantile(np.delete(values, i), d).value for i, s in enumerate(values))
        assert 1 - d <= Fraction(int(hits), n + 1) <= 1 - d + Fraction(1, n + 1)


def test_A3_ties_break_the_upper_bound() -> None:
    """First success at k = 2, p ~ U(0, 1), n = 4, delta = 2/5: masses 1/2, 1/2."""
    assert tied_coverage(["1/2", "1/2"], 4, "2/5") == Fraction(27, 32) > Fraction(4, 5)
    assert tied_coverage(["8/9", "1/9"], 4, "1/2") == Fraction(17635, 19683) > Fraction(7, 10)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 3), levels)
@settings(max_examples=40)
def test_A4_smoothed_rank_is_uniform_on_every_discrete_law(parts: list[int], n: int, d: Fraction) -> None:
    """P(p > delta) = 1 - delta exactly, by enumeration of calibration set and test point; p is linear in the coin."""
    pmf = [Fraction(p, sum(parts)) for p in parts]
    total = Fraction(0)
    for cal in product(range(len(pmf)), repeat=n):
        support = np.arange(float(len(pmf)))
        low, high = (smoothed_p_values(np.array(cal, float), support, c) for c in (0.0, 1.0))
        weight = math.prod((pmf[i] for i in cal), start=Fraction(1))
        for s, mass in enumerate(pmf):
            a, b = (Fraction(round(float(x[s]) * (n + 1)), n + 1) for x in (low, high))
            total += weight * mass * min(max((b - d) / (b - a), Fraction(0)), Fraction(1))
    assert total == 1 - d


@given(st.lists(st.integers(0, 2), min_size=2, max_size=5), levels)
@settings(max_examples=60)
def test_A4_random_tie_breaking_makes_coverage_exact(points: list[int], d: Fraction) -> None:
    """Lexicographic (score, coin) ranks: over the choice of test point, exactly L of n + 1 are covered."""
    n = len(points) - 1
    coins = np.random.default_rng(len(points)).permutation(n + 1) / (n + 2)
    keys = np.array(points) + coins
    hits = sum(keys[i] <= conformal_quantile(np.delete(keys, i), d).value for i in range(n + 1))
    assert int(hits) == conformal_rank(n, d)


@given(o=outcomes(full=True), u=interior)
def test_A7_aps_saturates_exactly_where_the_gold_was_not_sampled(o: Outcomes, u: float) -> None:
    assert o.codes is not None and o.gold is not None
    sampled = ((o.codes == o.gold[:, None]) & (o.codes >= 0)).any(axis=1)
    assert ((APS().gold_scores(o, (o.width,), np.full(o.n, u))[:, 0] == 1) == ~sampled).all()


def first_passes(n: int, width: int) -> list[tuple[int, ...]]:
    return list(product(range(1, width + 2), repeat=n))  # width + 1 stands for never


def batch(firsts: tuple[int, ...], width: int) -> Outcomes:
    return Outcomes(np.arange(len(firsts)), np.array(firsts)[:, None] == np.arange(1, width + 1))


def test_A10_first_success_threshold_is_below_one_iff_enough_solved_before_k() -> None:
    for n, k in product(range(1, 4), range(1, 4)):
        for firsts in first_passes(n, k):
            table = FirstSuccess().gold_scores(batch(firsts, k), (k,), np.zeros(n))[:, 0]
            for d in (Fraction(1, 5), Fraction(1, 4), Fraction(1, 3), Fraction(1, 2), Fraction(3, 4)):
                solved = sum(j <= k - 1 for j in firsts)
                assert (conformal_quantile(table, d).value < 1) == (solved >= conformal_rank(n, d))


@pytest.mark.parametrize("convention", ["paper", "failure_above_success"])
def test_A12_first_success_thresholds_never_increase_with_the_budget(convention: str) -> None:
    """Deterministic for nested prefixes: every score, hence every threshold.  Exhaustive at n = 3, k = 1..4."""
    for firsts in first_passes(3, 4):
        table = FirstSuccess(convention).gold_scores(batch(firsts, 4), (1, 2, 3, 4), np.zeros(3))
        assert (table[:, 1:] <= table[:, :-1]).all()
        for d in ("1/4", "1/3", "1/2", "3/4", "1/10"):
            q = [conformal_quantile(table[:, m], d).value for m in range(4)]
            assert q == sorted(q, reverse=True)


def test_A12_thresholds_are_one_number() -> None:
    """q_k = J_(L) / k where that is below 1, and every active budget stops the same prompts."""
    rng = np.random.default_rng(0)
    grid = (2, 4, 8, 16)
    for _ in range(50):
        o = Outcomes(np.arange(20), rng.random((20, 16)) < rng.beta(1.1, 0.9, (20, 1)))
        firsts = np.where(o.passes.any(1), o.passes.argmax(1) + 1, 99)
        j = np.sort(firsts)[conformal_rank(20, 0.2) - 1]
        table = FirstSuccess().gold_scores(o, grid, np.zeros(20))
        for m, k in enumerate(grid):
            q = conformal_quantile(table[:, m], 0.2).value
            assert q == j / k if j < k else q >= 1
            assert (FirstSuccess().stop(o, k, q, np.zeros(20))[0] == ((firsts <= j) & (j < k))).all()


def test_A13_aps_scores_can_increase_with_the_budget() -> None:
    o = Outcomes([0], np.zeros((1, 3), bool), codes=np.array([[0, 1, 1]]), gold=np.array([0]))
    assert APS().gold_scores(o, (2, 3), [0.5]).tolist() == [[0.25, 5 / 6]]


@by_name
@given(data=st.data())
def test_E3_a_threshold_of_one_or_infinity_never_stops(score: Score, data: st.DataObject) -> None:
    o = data.draw(outcomes(full=True))
    u = np.full(o.n, data.draw(interior))
    for q in (1.0, math.inf):
        assert not score.stop(o, o.width, q, u)[0].any()


def test_E3_the_sampled_only_set_at_q_one_does_not_cover() -> None:
    """p = .1, k = 2: the gold is in the sampled-only set with probability .19, in the set of all answers with 1."""
    p, sampled_only, all_answers = Fraction(1, 10), Fraction(0), Fraction(0)
    for hits in product((True, False), repeat=2):
        o = Outcomes([0], np.array([hits]), codes=np.where([hits], 0, 1), gold=np.array([0]))
        weight = math.prod((p if h else 1 - p for h in hits), start=Fraction(1))
        sampled_only += weight * any(hits)
        all_answers += weight * int(APS().gold_scores(o, (2,), [0.5])[0, 0] <= 1)
    assert (sampled_only, all_answers) == (Fraction(19, 100), 1)


@by_name
@given(data=st.data())
def test_F1_a_wrong_stop_implies_a_gold_score_above_the_threshold(score: Score, data: st.DataObject) -> None:
    """Pathwise, hence P(wrong stop at a fixed k) <= P(gold score > q) <= delta, whatever the threshold."""
    o = data.draw(outcomes(full=True))
    assert o.gold is not None
    u = np.full(o.n, data.draw(interior))
    k = data.draw(st.integers(1, o.width))
    gold = score.gold_scores(o, (k,), u)[:, 0]
    for q in (*gold.tolist(), data.draw(st.floats(0, 1.5))):
        stop, committed = score.stop(o, k, q, u)
        if score.needs_answers:
            assert (gold[stop & (committed != o.gold)] > q).all()
        else:  # F3: a verified success is in hand
            assert o.passes[stop, :k].any(axis=1).all()
        if q >= 1:
            assert not stop.any()


def released_example(score: Score, q: float) -> Fraction:
    """P(stop at k = 2 and wrong): half the prompts always right, half with one wrong answer of probability 9/10."""
    wrong = Fraction(0)
    for p in (Fraction(1), Fraction(1, 10)):
        for hits in product((True, False), repeat=2):
            o = Outcomes([0], np.array([hits]), codes=np.where([hits], 0, 1), gold=np.array([0]))
            stop, committed = score.stop(o, 2, q, [0.5])
            weight = math.prod((p if h else 1 - p for h in hits), start=Fraction(1))
            wrong += Fraction(1, 2) * weight * int(stop[0] and committed[0] != 0)
    return wrong


def test_F1_fails_for_the_released_set_at_q_one() -> None:
    assert released_example(ReleasedAPS(), 1.0) == Fraction(405, 1000)
    assert all(released_example(score, 1.0) == 0 for score in ANSWER_SCORES)
    rng = np.random.default_rng(0)  # and its threshold at delta = .12, n = 200 is 1
    p = np.where(rng.random((200, 1)) < 0.5, 1.0, 0.1)
    hits = rng.random((200, 2)) < p
    o = Outcomes(np.arange(200), hits, codes=np.where(hits, 0, 1), gold=np.zeros(200, int))
    assert conformal_quantile(ReleasedAPS().gold_scores(o, (2,), rng.random(200))[:, 0], "0.12").value == 1.0


@pytest.mark.parametrize("score", ANSWER_SCORES, ids=lambda s: s.name)
def test_F1_measured_wrong_stops_stay_below_delta(score: Score) -> None:
    """Rate on 400 fresh prompts, averaged over 300 calibrations; mid policy, one wrong answer, k = 8."""
    rng = np.random.default_rng(1)

    def draw(n: int) -> tuple[Outcomes, np.ndarray]:
        hits = rng.random((n, 8)) < rng.beta(1.14, 0.86, (n, 1))
        return Outcomes(np.arange(n), hits, codes=np.where(hits, 0, 1), gold=np.zeros(n, int)), rng.random(n)

    rates = []
    for _ in range(300):
        cal, fresh = draw(60), draw(400)
        q = conformal_quantile(score.gold_scores(cal[0], (8,), cal[1])[:, 0], "0.3").value
        stop, committed = score.stop(fresh[0], 8, q, fresh[1])
        rates.append(float((stop & (committed != 0)).mean()))
    assert np.mean(rates) <= 0.3 + 3 * np.std(rates) / np.sqrt(300)


@given(o=outcomes(full=True), u=interior, q=st.floats(0, 0.999))
def test_E4_randomized_set_is_inside_the_inclusive_one(o: Outcomes, u: float, q: float) -> None:
    assert o.codes is not None
    counts = answer_counts(o.codes, o.width)
    for i in range(o.n):
        for c in counts[i][counts[i] > 0]:
            above = float((counts[i] > c).sum() / o.width)
            assert not ((above * o.width + u * c) / o.width <= q) or above < q


def test_section_1_point_3_groups_stopped_at_two_have_no_reward_variance() -> None:
    """A level-set singleton at k = 2 is a unanimous pair."""
    for pair in product((0, 1), repeat=2):
        o = Outcomes([0], np.array([pair]) == 0, codes=np.array([pair]), gold=np.array([0]))
        for score in ANSWER_SCORES:
            for q in np.linspace(0.5, 0.99, 30):
                if score.stop(o, 2, float(q), [0.4])[0][0]:
                    assert pair[0] == pair[1]
