"""Sampling statistics against enumeration in exact rationals, and intervals against the exact law."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from carm_strategies import some, vectors
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from carm_core import (
    SamplingEstimate,
    all_at_k,
    best_of_k,
    bootstrap_best_worst,
    majority_at_k,
    majority_vote,
    mean_interval,
    pass_at_k,
    sampling_estimate,
    worst_of_k,
)

STATISTICS = {"best": best_of_k, "worst": worst_of_k, "pass": pass_at_k, "all": all_at_k}


@pytest.mark.parametrize("case", vectors("best_worst"), ids=lambda c: c["id"])
def test_vector_best_worst(case):
    c, n, k = (case["input"][key] for key in ("c", "n", "k"))
    want = {key: float(Fraction(v)) for key, v in case["expected"].items()}
    assert float(best_of_k(c, n, k)) == pytest.approx(want["best_with_replacement"], rel=1e-14, abs=1e-16)
    assert float(worst_of_k(c, n, k)) == pytest.approx(want["worst_with_replacement"], rel=1e-14, abs=1e-300)
    assert float(pass_at_k(c, n, k)) == pytest.approx(want["pass_at_k_unbiased"], abs=1e-16)
    assert float(all_at_k(c, n, k)) == pytest.approx(want["all_k_unbiased"], abs=1e-16)


@some
@given(st.integers(1, 5), st.data())
def test_the_four_statistics_equal_enumeration(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    x = [1] * c + [0] * (n - c)
    with_replacement = list(itertools.product(x, repeat=k))
    without = list(itertools.combinations(x, k))
    for statistic, draws, take in (
        ("best", with_replacement, max),
        ("worst", with_replacement, min),
        ("pass", without, max),
        ("all", without, min),
    ):
        exact = Fraction(sum(map(take, draws)), len(draws))
        assert float(STATISTICS[statistic](c, n, k)) == pytest.approx(float(exact), abs=1e-14)


@some
@given(st.integers(1, 30), st.data())
def test_equations_73_and_74_meet_at_k_one_and_part_from_there(n, data):
    c = data.draw(st.integers(0, n))
    best, worst = ([float(f(c, n, k)) for k in range(1, 8)] for f in (best_of_k, worst_of_k))
    assert best[0] == pytest.approx(c / n) and worst[0] == pytest.approx(c / n)
    for k in range(6):
        assert best[k + 1] >= best[k] and worst[k + 1] <= worst[k]
        if 0 < c < n:
            assert worst[k + 1] < worst[k]
    assert float(pass_at_k(c, n, 1)) == pytest.approx(c / n) and float(all_at_k(c, n, 1)) == pytest.approx(c / n)


@pytest.mark.parametrize(("unbiased", "target"), [(pass_at_k, lambda p, k: 1 - (1 - p) ** k), (all_at_k, lambda p, k: p**k)])
@pytest.mark.parametrize(("n", "k"), [(4, 1), (5, 3), (8, 8)])
def test_pass_and_all_at_k_are_unbiased_for_every_success_rate(unbiased, target, n, k):
    for p in (Fraction(1, 7), Fraction(1, 2), Fraction(9, 10)):
        law = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
        values = unbiased(np.arange(n + 1), n, k)
        assert sum(float(w) * v for w, v in zip(law, values, strict=True)) == pytest.approx(float(target(p, k)), abs=1e-13)


def test_statistics_broadcast_over_prompts_and_stay_exact_for_large_counts():
    np.testing.assert_allclose(pass_at_k(np.array([0, 5]), np.array([10, 20]), 3), [0.0, 1 - math.comb(15, 3) / math.comb(20, 3)])
    assert pass_at_k(np.zeros((2, 3), dtype=int), 4, 2).shape == (2, 3)
    exact = 1 - Fraction(math.comb(9_990, 500), math.comb(10_000, 500))
    assert float(pass_at_k(10, 10_000, 500)) == pytest.approx(float(exact), rel=1e-14)


@some
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=7), st.integers(0, 3))
def test_majority_vote_is_one_over_the_tied_answers(row, gold):
    votes = [x for x in row if x >= 0]
    modes = [a for a in set(votes) if votes.count(a) == max(map(votes.count, votes))] if votes else []
    want = 1 / len(modes) if gold in modes else 0.0
    assert majority_vote(np.array([row]), np.array([gold])).tolist() == [want]


@pytest.mark.parametrize("row", [[0, 0, 1], [0, 1, 1, -1], [-1, -1, 0], [2, 1, 0]])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_majority_at_k_is_the_bootstrap_of_the_vote(row, k):
    draws = [majority_vote(np.array([d]), np.array([0]))[0] for d in itertools.product(row, repeat=k)]
    exact, spread = np.mean(draws), np.std(draws)
    got = majority_at_k(np.array([row]), np.array([0]), k, replicates=20_000, seed=3)[0]
    assert abs(got - exact) <= 5 * spread / math.sqrt(20_000)
    assert majority_at_k(np.array([row]), np.array([0]), k, seed=3)[0] == majority_at_k(np.array([row]), np.array([0]), k, seed=3)[0]


def test_bootstrap_agrees_with_its_expectation_and_brackets_it():
    c = np.array([0, 3, 8, 12, 16])
    got = bootstrap_best_worst(c, 16, 4, replicates=4000, seed=1)
    for mean, interval, exact in (
        (got.best, got.best_interval, best_of_k(c, 16, 4)),
        (got.worst, got.worst_interval, worst_of_k(c, 16, 4)),
    ):
        error = 5 * math.sqrt(float((exact * (1 - exact)).sum())) / c.size / math.sqrt(4000)
        assert abs(mean - exact.mean()) <= error
        assert interval[0] <= exact.mean() <= interval[1] and interval[0] < interval[1]
    assert (got.k, got.replicates, got.delta) == (4, 4000, Fraction(1, 20))
    wider = bootstrap_best_worst(c, 16, 4, replicates=4000, delta="1/1000", seed=1)
    assert wider.best_interval[0] <= got.best_interval[0] and wider.best_interval[1] >= got.best_interval[1]
    assert bootstrap_best_worst(c, 16, 4) == bootstrap_best_worst(c, 16, 4, replicates=1000, seed=0)


# ---- intervals


@pytest.mark.parametrize("n", [1, 5, 20, 60])
@pytest.mark.parametrize("delta", ["1/20", "1/3"])
def test_mean_interval_covers_in_the_exact_binomial_law(n, delta):
    intervals = [mean_interval([1.0] * c + [0.0] * (n - c), delta) for c in range(n + 1)]
    for p in np.linspace(0.0, 1.0, 101):
        covered = sum(binom.pmf(c, n, p) for c, (low, high) in enumerate(intervals) if low <= p <= high)
        assert covered >= 1 - float(Fraction(delta)) - 1e-12


@some
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from(["1/20", "1/4"]))
def test_mean_interval_ends_where_the_divergence_spends_the_budget(values, delta):
    low, high = mean_interval(values, delta)
    mean, budget = float(np.mean(values)), math.log(2 / float(Fraction(delta))) / len(values)
    assert 0 <= low <= mean <= high <= 1 and low < high

    def kl(p):
        parts = ((mean, p), (1 - mean, 1 - p))
        return sum(a * math.log(a / b) if b > 0 else math.inf for a, b in parts if a > 0)

    for end, outwards in ((low, -1e-12), (high, 1e-12)):
        if 1e-9 < end < 1 - 1e-9:
            assert kl(end - outwards) <= budget <= kl(end + outwards)


def test_mean_interval_has_the_closed_form_at_the_ends():
    assert mean_interval([0.0] * 10)[1] == pytest.approx(1 - 0.025**0.1, rel=1e-12)
    assert mean_interval([1.0] * 10)[0] == pytest.approx(0.025**0.1, rel=1e-12)
    assert mean_interval([0.0] * 10)[0] == 0.0 and mean_interval([1.0] * 10)[1] == 1.0


@some
@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), st.integers(1, 8), st.sampled_from(list(STATISTICS)))
def test_sampling_estimate_is_the_mean_over_prompts_with_that_interval(c, k, statistic):
    e = sampling_estimate(np.array(c), 8, k, statistic, delta="1/10")
    values = STATISTICS[statistic](np.array(c), 8, k)
    assert e.value == pytest.approx(values.mean()) and (e.low, e.high) == mean_interval(values, "1/10")
    assert (e.statistic, e.k, e.n, e.responses, e.delta) == (statistic, k, len(c), 8, Fraction(1, 10))
    assert SamplingEstimate.from_json(e.to_json()) == e


def test_defaults_of_the_estimate():
    e = sampling_estimate(np.array([1, 2]), np.array([4, 3]), 2)
    assert (e.statistic, e.delta, e.responses) == ("pass", Fraction(1, 20), 3)


# ---- arguments


def test_count_errors():
    for f in STATISTICS.values():
        with pytest.raises(ValueError, match=r"^c: got a count below 0 or above n; need 0 <= c <= n; because"):
            f(5, 4, 1)
        with pytest.raises(ValueError, match=r"^c: got a count below 0"):
            f(-1, 4, 1)
        with pytest.raises(ValueError, match=r"^n: got 0; need >= 1; because a share of no responses is undefined$"):
            f(0, 0, 1)
        with pytest.raises(ValueError, match=r"^c: got dtype float64; need integers; because it counts responses$"):
            f(0.5, 4, 1)
        with pytest.raises(ValueError, match=r"^n: got dtype float64; need integers"):
            f(1, 4.0, 1)
        for k in (0, -1, 1.5, True):
            with pytest.raises(ValueError, match=rf"^k: got {k}; need an integer >= 1; because that many responses are drawn$"):
                f(1, 4, k)
        assert f(4, 4, 1) == 1.0 and f(0, 4, 4) == 0.0
    for f in (pass_at_k, all_at_k):
        with pytest.raises(ValueError, match=r"^k: got 4; need <= 3; because drawing without replacement cannot exceed n$"):
            f(np.array([1, 1]), np.array([8, 3]), 4)
    assert best_of_k(1, 2, 9) == 1 - 0.5**9


def test_vote_and_interval_errors():
    codes, gold = np.array([[0, 1]]), np.array([0])
    for f in (majority_vote, lambda c, g: majority_at_k(c, g, 1)):
        for bad in ((codes[0], gold), (codes, np.array([0, 0])), (np.zeros((1, 0), dtype=int), gold)):
            with pytest.raises(
                ValueError, match=r"^gold: got shapes .* need \(P, n\) codes, n >= 1, and \(P,\) gold; because they pair up$"
            ):
                f(*bad)
        for bad in ((codes.astype(float), gold), (codes, gold.astype(float))):
            with pytest.raises(ValueError, match=r"^codes: got dtypes .*; need integers; because equal codes are equal answers$"):
                f(*bad)
    for name, k, replicates in (("k", 0, 1), ("k", True, 1), ("replicates", 1, 0), ("replicates", 1, 1.5)):
        with pytest.raises(ValueError, match=rf"^{name}: got .*; need an integer >= 1; because that many draws are made$"):
            majority_at_k(codes, gold, k, replicates=replicates)
    for values in ([], [1.1], [-0.1], [math.nan]):
        with pytest.raises(
            ValueError, match=r"^values: got \d values; need at least 1, all in \[0, 1\]; because the bound is for such laws$"
        ):
            mean_interval(values)
    for f in (
        lambda d: mean_interval([0.5], d),
        lambda d: sampling_estimate(gold, 1, 1, delta=d),
        lambda d: bootstrap_best_worst(gold, 1, 1, delta=d),
    ):
        with pytest.raises(ValueError, match=r"^delta: got 1; need 0 < delta < 1"):
            f(1)
    with pytest.raises(
        ValueError, match=r"^statistic: got 'mean'; need one of pass, all, best, worst; because each answers another question$"
    ):
        sampling_estimate(gold, 1, 1, "mean")
    for f in (sampling_estimate, bootstrap_best_worst):
        for c in (np.zeros(0, dtype=int), np.zeros((1, 1), dtype=int)):
            with pytest.raises(ValueError, match=r"^c: got shape \(.*\); need \(P,\) with P >= 1; because the mean is over prompts$"):
                f(c, 1, 1)
    for replicates in (0, True, 1.5):
        with pytest.raises(ValueError, match=r"^replicates: got .*; need an integer >= 1; because their mean is reported$"):
            bootstrap_best_worst(gold, 1, 1, replicates=replicates)
