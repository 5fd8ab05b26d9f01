"""Public bug reports of conformal libraries, each as a property over its whole class of inputs; the smallest report is named."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conformal_core import (
    APS,
    ConformalBudget,
    FirstSuccess,
    MassAbove,
    Outcomes,
    PassRate,
    SignalBudget,
    as_level,
    auto_delta_upper,
    betabinomial_hits,
    calibrate_thresholds,
    clopper_pearson,
    conformal_quantile,
    conformal_rank,
    conformal_selection,
    coverage_law,
    empty_probability,
    inclusive_set,
    learn_then_test,
    mass_above_set,
    min_calibration_size,
    pac_rank,
    plain_p_values,
    randomized_set,
    risk_control,
    singleton_probability,
    smoothed_p_values,
    tied_coverage,
    tv_shift_bound,
    weighted_quantile,
)
from tests.strategies import levels, outcomes, tied_scores

samples = st.lists(tied_scores, min_size=1, max_size=30)
distinct = st.lists(st.integers(-1000, 1000), min_size=1, max_size=30, unique=True)
lattice = st.tuples(st.integers(2, 40), st.integers(1, 39)).filter(lambda x: x[1] < x[0]).map(lambda x: (x[0] - 1, Fraction(x[1], x[0])))
UNANIMOUS = Outcomes(np.arange(9), np.ones((9, 2), bool), codes=np.zeros((9, 2), int), gold=np.zeros(9, int))
quiet = pytest.mark.filterwarnings("ignore:(n|reference). got:UserWarning")


# --- the quantile


@given(lattice)
def test_no_second_rounding_on_the_lattice(pair: tuple[int, Fraction]) -> None:
    """MAPIE#973: a level then an interpolating method; scores 1, 2, 3, delta .5 give 3.  (n + 1) delta an integer is where it shows."""
    n, d = pair
    s = np.arange(1.0, n + 1)
    assert conformal_quantile(s, d).value == conformal_quantile(s, float(d)).value == (n + 1) - (n + 1) * d


@quiet
@given(st.integers(1, 40), st.fractions(Fraction(1, 2000), Fraction(1, 2), max_denominator=2000))
def test_a_level_out_of_reach_is_infinite_and_flagged_everywhere(n: int, d: Fraction) -> None:
    """MAPIE#974, #980, crepes#6, #47, MONAI#8938: a clipped level, a skipped guard, an index past the end, a rank clamped to n."""
    assume(d < Fraction(1, n + 1))
    s = np.arange(float(n))
    q, w = conformal_quantile(s, d), weighted_quantile(s, [1] * n, 1, d)
    assert (q.value, q.attainable, q.rank) == (w.value, w.attainable, w.rank) == (math.inf, False, n + 1)
    for rule in ("per_budget", "bonferroni", "max_rank", "max_score"):
        t = calibrate_thresholds(s[:, None] * [1, 1], (2, 4), d, rule)
        assert t.q == (math.inf, math.inf) and not any(t.attainable)
    assert (plain_p_values(s, [math.inf]) > float(d)).all()  # the set of p-values is everything as well
    codes = np.zeros((n, 2), int)
    o = Outcomes(np.arange(n), codes == 0, codes=codes, gold=np.zeros(n, int))
    assert not risk_control(o, (2,), d).attainable
    with pytest.raises(ValueError, match="covers everything"):
        coverage_law(n, d)


@given(distinct, levels)
def test_the_threshold_is_a_score_with_n_plus_one_in_its_rank(scores: list[int], d: Fraction) -> None:
    """MAPIE#452, puncc#5 (no n + 1); sktime#10758, ConformalPrediction.jl#67 (interpolated between scores)."""
    q, n = conformal_quantile(scores, d), len(scores)
    if q.attainable:
        assert q.value in scores
        below = sum(s <= q.value for s in scores)
        assert Fraction(below, n + 1) >= 1 - d > Fraction(below - 1, n + 1)


@pytest.mark.slow
def test_more_scores_than_a_float32_can_count() -> None:
    """TorchCP#45: 2**24 + 1 scores."""
    n = 2**24 + 1
    assert conformal_quantile(np.arange(n, dtype=np.float64), "1/2").value == conformal_rank(n, "1/2") - 1


@given(samples, levels, st.integers(0, 30))
def test_nan_is_refused_wherever_it_stands_and_infinity_is_not(scores: list[float], d: Fraction, at: int) -> None:
    """Six of nine libraries return a number for a sample with a NaN in it; one refuses +inf, which is a legitimate score."""
    broken = [*scores[:at], math.nan, *scores[at:]]
    for call in (
        lambda: conformal_quantile(broken, d),
        lambda: weighted_quantile(broken, [1] * len(broken), 1, d),
        lambda: plain_p_values(broken, [0.0]),
        lambda: plain_p_values(scores, [math.nan]),
        lambda: smoothed_p_values(broken, [0.0], [0.5]),
        lambda: calibrate_thresholds(np.array(broken)[:, None], (2,), d),
    ):
        with pytest.raises(ValueError, match="NaN"):
            call()
    finite = sum(s < math.inf for s in scores)
    assert conformal_quantile(scores, d).value < math.inf or conformal_rank(len(scores), d) > finite


@quiet
@pytest.mark.parametrize("bad", [0, 1, -0.1, 1.1, 0.0, 1.0, "0", "1", math.nan, None, True, [0.05, 0.2], np.array([0.05, 0.2])], ids=repr)
def test_a_level_is_accepted_iff_it_is_one_number_between_zero_and_one(bad: object) -> None:
    """chemprop#989 (inverted guard), puncc#39 (a vector of levels reaches a truth value); others accept or crash on 0 and 1."""
    s, o = np.arange(50.0), UNANIMOUS
    calls = [
        lambda d: as_level(d),
        lambda d: conformal_rank(9, d),
        lambda d: min_calibration_size(d),
        lambda d: conformal_quantile(s, d),
        lambda d: weighted_quantile(s, [1] * 50, 1, d),
        lambda d: calibrate_thresholds(s[:, None], (2,), d),
        lambda d: calibrate_thresholds(s[:, None], (2,), d, "max_rank"),
        lambda d: calibrate_thresholds(s[:, None], (2,), d, "max_score"),
        lambda d: calibrate_thresholds(s[:, None], (2,), d, "split_ecdf", reference=s[:, None]),
        lambda d: coverage_law(50, d),
        lambda d: betabinomial_hits(5, 50, d),
        lambda d: pac_rank(50, d, "0.1"),
        lambda d: pac_rank(50, "0.1", d),
        lambda d: tied_coverage([1], 50, d),
        lambda d: clopper_pearson(1, 2, d),
        lambda d: auto_delta_upper(1, 2, gamma=d),
        lambda d: tv_shift_bound(d, 0),
        lambda d: risk_control(o, (2,), d),
        lambda d: learn_then_test(o, (2,), d),
        lambda d: learn_then_test(o, (2,), "0.1", d),
        lambda d: conformal_selection([1.0], [True], [1.0], d),
        lambda d: ConformalBudget((2, 4), delta=d),
        lambda d: SignalBudget((2, 4), delta=d),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r": got .*; need .*; because "):
            call(bad)
        call("0.3")


# --- p-values


@given(samples, st.lists(tied_scores, min_size=1, max_size=5), levels)
def test_the_set_condition_is_p_above_delta(cal: list[float], test: list[float], d: Fraction) -> None:
    """crepes#46 (documented backwards: n = 19, p = .05, 95% is excluded iff p <= delta); crepes' >= is one rank wider on the lattice."""
    inside = plain_p_values(cal, test) > float(d)
    exact = [Fraction(1 + sum(c >= s for c in cal), len(cal) + 1) > d for s in test]
    assert inside.tolist() == exact == [s <= conformal_quantile(cal, d).value for s in test]


@given(samples, tied_scores, st.floats(0, 1), st.floats(0, 1))
def test_smoothing_reaches_every_score(cal: list[float], s: float, u: float, v: float) -> None:
    """MAPIE#984: with the + 1 outside, u drops out without ties.  Every unit of u moves p by (1 + ties)/(n + 1)."""
    p, r = (float(smoothed_p_values(cal, s, x)) for x in (u, v))
    assert p - r == pytest.approx((u - v) * (1 + sum(c == s for c in cal)) / (len(cal) + 1), abs=1e-12)


@given(st.lists(tied_scores, max_size=20), tied_scores, st.floats(1e-9, 1))
def test_p_values_lie_above_zero_and_up_to_one(cal: list[float], s: float, u: float) -> None:
    """nonconformist#10: a fresh u is subtracted and p = u1 - u2 is negative."""
    assert 0 < float(smoothed_p_values(cal, s, u)) <= float(plain_p_values(cal, s)) <= 1


@given(st.lists(tied_scores, min_size=1, max_size=12), st.lists(tied_scores, min_size=1, max_size=6))
def test_it_is_the_test_point_that_is_ranked(cal: list[float], stream: list[float]) -> None:
    """crepes#52: five scores .9, then .01: online p-values .8333, .714, .625 instead of 1, 1, 1."""
    for i, s in enumerate(stream):
        known = [*cal, *stream[:i]]
        assert float(plain_p_values(known, s)) == (1 + sum(c >= s for c in known)) / (len(known) + 1)
    assert plain_p_values([0.9] * 5, [0.01] * 3).tolist() == [1, 1, 1]


def test_plain_sets_over_cover_where_smoothed_ones_do_not() -> None:
    """gam#4514: n = 5, delta = .1: the plain set is everything; the smoothed one keeps the largest score with probability .4."""
    cal, u = np.arange(5.0), (np.arange(1000) + 0.5) / 1000
    assert (plain_p_values(cal, [9.0]) > 0.1).all()
    assert (smoothed_p_values(cal, np.full(1000, 9.0), u) > 0.1).mean() == 0.4


# --- weights


@given(st.lists(st.tuples(tied_scores, st.integers(0, 5)), min_size=1, max_size=12), st.integers(1, 5), levels)
def test_weights_stay_with_their_scores_and_ties_add_up(pairs: list[tuple[float, int]], w: int, d: Fraction) -> None:
    """torchcp sorts weights by weight; nonconform#41 drops tied mass; tinyconformal returns the minimum where a sum rounds below q."""
    total = sum(x for _, x in pairs) + w
    reached = [s for s, _ in sorted(pairs) if Fraction(sum(x for t, x in pairs if t <= s), total) >= 1 - d]
    got = weighted_quantile([s for s, _ in pairs], [x for _, x in pairs], w, d)
    assert got.value == min(reached, default=math.inf)


@given(st.integers(1, 200), levels, st.floats(1e-9, 1e9))
def test_equal_weights_of_any_size_give_the_unweighted_rank(n: int, d: Fraction, w: float) -> None:
    """puncc: equal weights 1/(n + 1) are one rank high in 922 of 49,500 cases, and a sum off 1 by 1e-14 is an error."""
    assert weighted_quantile(np.arange(n), np.full(n, w), w, d).rank == conformal_rank(n, d)


# --- sets


@given(st.integers(1, 12), st.integers(0, 11), st.fractions(0, Fraction(39, 40), max_denominator=40))
def test_the_top_answer_is_in_with_the_probability_of_its_score(first: int, second: int, q: Fraction) -> None:
    """MAPIE#236: p = (.6, .4), q = .3: the top label is in with probability 1/2, not always."""
    assume(second < first)
    counts = [first, second][: 1 + (second > 0)]
    k = first + second
    assert 1 - empty_probability(counts, q) == min(Fraction(1), q * k / first)


@settings(max_examples=50)
@given(st.integers(2, 30), st.integers(1, 99))
def test_uniform_answers_do_not_fill_the_randomized_set(m: int, percent: int) -> None:
    """conformal-prediction#8: unrandomised, the set holds ceil(q m) of m equally likely labels; here all are tied: all or none."""
    q, codes = percent / 100, np.arange(m)[None]
    sizes = randomized_set(np.repeat(codes, 400, axis=0), m, q, (np.arange(400) + 0.5) / 400).size
    assert set(sizes) <= {0.0, float(m)}
    assert sizes.mean() / m == pytest.approx(min(1.0, q * m), abs=1 / 400)
    assert inclusive_set(codes, m, q).size[0] == mass_above_set(codes, m, q).size[0] == m


@given(o=outcomes(full=True), q=st.floats(0, 1.2), u=st.floats(0, 1))
def test_calibration_and_set_use_one_score(o: Outcomes, q: float, u: float) -> None:
    """conformal-prediction#15: the randomisation of the sets did not match that of the scores: 93% at 90%."""
    assert o.codes is not None and o.gold is not None
    coin = np.full(o.n, u)
    for answer in range(-1, 4):
        gold = np.full(o.n, answer)
        asked = Outcomes(o.prompt_ids, o.passes, codes=o.codes, gold=gold)
        inside = APS().gold_scores(asked, (o.width,), coin)[:, 0] <= q
        np.testing.assert_array_equal(randomized_set(o.codes, o.width, q, coin).contains(gold), inside)


@given(o=outcomes(full=True), q=st.floats(0, 1), u=st.floats(0, 1))
def test_empty_sets_are_counted_and_never_a_stop(o: Outcomes, q: float, u: float) -> None:
    """conformal_classification#5 (p = (.95, .05), q = .5, U = .9 is empty), TorchCP#40 (empties lower the mean size unseen)."""
    assert o.codes is not None
    sets = randomized_set(o.codes, o.width, q, np.full(o.n, u))
    empty = sets.size == 0
    assert (sets.committed[empty] == -1).all() and not sets.singleton[empty].any()
    assert not APS().stop(o, o.width, q, np.full(o.n, u))[0][empty].any()


@given(o=outcomes(full=True, max_n=4), q=st.floats(0, 1.1), u=st.floats(0, 1), copies=st.integers(2, 5))
def test_a_row_does_not_depend_on_the_batch(o: Outcomes, q: float, u: float, copies: int) -> None:
    """puncc: the set of a row grows with the number of rows of the batch."""
    assert o.codes is not None
    many = np.concatenate([o.codes] * copies)
    for make in (inclusive_set, mass_above_set, lambda c, k, q: randomized_set(c, k, q, np.full(len(c), u))):
        one = make(o.codes, o.width, q)
        np.testing.assert_array_equal(make(many, o.width, q).member, np.concatenate([one.member] * copies))


@pytest.mark.parametrize("score", [APS(), APS("inclusive"), MassAbove(), FirstSuccess(), FirstSuccess("paper"), PassRate()], ids=repr)
@pytest.mark.parametrize("rule", ["per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score"])
@quiet
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 30))
def test_nothing_stops_at_a_threshold_of_one_however_it_came_about(score: object, rule: str, seed: int, n: int) -> None:
    """trl-cgrpo stops on unanimity at q = 1: with 40% unsolvable prompts, P(stop and wrong) = .385 at n = 50, k = 8, delta = .2."""
    rng = np.random.default_rng(seed)
    codes = np.where(rng.random((n, 1)) < 0.6, np.where(rng.random((n, 8)) < 0.7, 0, 1), 1)
    o = Outcomes(np.arange(n), codes == 0, codes=codes, gold=np.zeros(n, int))
    policy = ConformalBudget((2, 4, 8), score=score, delta="0.2", multiplicity=rule, n_calibration=99)
    policy.calibrate(o)
    q = policy.stop_rule.q
    for k, limit in zip((2, 4, 8), q, strict=True):
        if limit >= 1:
            assert not score.stop(o, k, limit, np.zeros(n))[0].any()
    if min(q) >= 1:
        assert (policy.more(o.prefix(2)) > 0).all()


def test_saturated_by_unsolvable_prompts_nothing_wrong_is_committed() -> None:
    """The trigger of the class: 40% of prompts answer the same wrong thing 8 times; n = 50, delta = .2."""
    codes = np.where(np.arange(50)[:, None] < 20, 1, 0) * np.ones((50, 8), int)
    o = Outcomes(np.arange(50), codes == 0, codes=codes, gold=np.zeros(50, int))
    policy = ConformalBudget((8,), score=MassAbove(), delta="0.2", n_calibration=50)
    policy.calibrate(o)
    assert policy.stop_rule.q == (1.0,) and policy.audit(o) == {"false_stop": (0, 50)}
    assert singleton_probability([8], 1) == 0 and singleton_probability([8], 1, "released") == 1


# --- arrays


@given(samples, levels)
def test_inputs_may_be_read_only_and_are_left_alone(scores: list[float], d: Fraction) -> None:
    s = np.array(scores)
    s.flags.writeable = False
    table = s[:, None] * np.ones(2)
    table.flags.writeable = False
    before = s.tobytes(), table.tobytes()
    conformal_quantile(s, d)
    weighted_quantile(s, np.ones(len(s)), 1, d)
    plain_p_values(s, s)
    smoothed_p_values(s, s, 0.5)
    conformal_selection(s, np.ones(len(s), bool), s, d)
    for rule in ("max_rank", "max_score", "split_ecdf"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)
            calibrate_thresholds(table, (2, 4), d, rule, reference=table if rule == "split_ecdf" else None)
    assert before == (s.tobytes(), table.tobytes())
