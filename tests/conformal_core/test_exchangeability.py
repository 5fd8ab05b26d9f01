import json
from itertools import combinations, permutations
from math import comb, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binomtest, ks_2samp, mannwhitneyu

from conformal_core.exchangeability import ExchangeabilityTest, coverage_test, permutation_test
from conformal_core.level import conformal_rank

SCORES = st.lists(st.sampled_from([0.0, 1.0, 2.0, inf]), min_size=1, max_size=4)


def rank_sum(pooled, chosen):
    """Sum of mid-ranks, by hand."""
    return sum(sum(b < pooled[i] for b in pooled) + sum(b == pooled[i] for b in pooled) / 2 for i in chosen)


@given(SCORES, SCORES, st.sampled_from(["greater", "less", "two_sided"]))
def test_enumerated_p_value_by_hand(calibration, served, alternative):
    pooled, n, m = calibration + served, len(calibration), len(served)
    middle = m * len(pooled) / 2
    sign = {"greater": lambda t: t, "less": lambda t: -t, "two_sided": lambda t: abs(t - middle)}[alternative]
    values = [sign(rank_sum(pooled, chosen)) for chosen in combinations(range(n + m), m)]
    observed = sign(rank_sum(pooled, range(n, n + m)))
    assert permutation_test(calibration, served, statistic=alternative).p_value == sum(v >= observed for v in values) / comb(n + m, m)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=5, max_size=5), st.sampled_from(["greater", "distribution"]))
def test_p_value_is_valid_for_every_exchangeable_law(pooled, statistic):
    """Over all orders of the pooled scores, the exact law of p: P(p <= a) <= a at every attained a."""
    found = [permutation_test(order[:3], order[3:], statistic=statistic).p_value for order in permutations(pooled)]
    assert all(np.mean(np.array(found) <= a) <= a + 1e-12 for a in set(found))


def test_monte_carlo_p_values_are_valid_too():
    """Few resamples on purpose: with 9 the p-value is a multiple of 1/10, and P(p <= 1/10) is at most 1/10, exactly so without ties."""
    rng = np.random.default_rng(3)
    small = sum(permutation_test(s[:12], s[12:], resamples=9, seed=i).p_value <= 0.1 for i, s in enumerate(rng.random((400, 20))))
    assert binomtest(small, 400, 0.1).pvalue > 1e-3


def test_agrees_with_scipy():
    rng = np.random.default_rng(0)
    calibration, served = rng.permutation(13)[:8].astype(float), np.array([20.0, 1.5, 7.5, 30.0, 11.5])
    exact = mannwhitneyu(served, calibration, alternative="greater", method="exact").pvalue
    assert permutation_test(calibration, served).p_value == pytest.approx(exact, rel=1e-12)
    ks = permutation_test(calibration, served, statistic="distribution")
    assert ks.p_value == pytest.approx(ks_2samp(calibration, served, method="exact").pvalue, rel=1e-9)
    assert ks.statistic / 40 == pytest.approx(ks_2samp(calibration, served).statistic)


def test_an_own_statistic_and_reproducible_resamples():
    def spread(pooled, served):
        return np.array([pooled[row].std() for row in served])

    rng = np.random.default_rng(1)
    calibration, served = rng.normal(size=30), 5 * rng.normal(size=30)
    first, second = (permutation_test(calibration, served, statistic=spread, resamples=499) for _ in range(2))
    assert first == second and first.p_value <= 0.01 and "spread" in first.method
    calm = [permutation_test(calibration, served / 5, statistic=spread, resamples=499, seed=seed).p_value for seed in (0, 1)]
    assert calm[0] != calm[1] and min(calm) > 0.01


@given(st.integers(4, 30), st.integers(1, 12), st.integers(0, 10**6))
def test_coverage_test_is_the_beta_binomial_tail(n, m, seed):
    rng = np.random.default_rng(seed)
    calibration, served = rng.random(n), rng.random(m) + 0.3
    rank = conformal_rank(n, "1/5")
    above = int((served > np.sort(calibration)[rank - 1]).sum())
    result = coverage_test(calibration, served, "1/5")
    assert result.statistic == above
    assert result.p_value == pytest.approx(betabinom(m, rank, n + 1 - rank).cdf(m - above))


def test_coverage_test_allows_for_the_luck_of_the_calibration_set_where_a_binomial_test_does_not():
    """300 fair pairs of n = 30 and m = 300: the binomial test rejects far more often than 5%, the coverage test does not."""
    rng, mine, naive = np.random.default_rng(6), 0, 0
    for pair in rng.random((300, 330)):
        result = coverage_test(pair[:30], pair[30:], "1/5")
        mine += result.p_value <= 0.05
        naive += binomtest(int(result.statistic), 300, 0.2, "greater").pvalue <= 0.05
    assert binomtest(mine, 300, 0.05, "greater").pvalue > 1e-3
    assert binomtest(naive, 300, 0.05, "greater").pvalue < 1e-6


def test_json_and_refusals():
    result = permutation_test([1, 2], [3])
    assert ExchangeabilityTest.from_json(json.loads(json.dumps(result.to_json()))) == result
    for call, message in [
        (lambda: permutation_test([], [1]), "calibration: got shape"),
        (lambda: permutation_test([1], [np.nan]), "served: got shape"),
        (lambda: permutation_test([1], [2], statistic="bigger"), "statistic: got 'bigger'"),
        (lambda: permutation_test([1], [2], resamples=0), "resamples: got 0"),
        (lambda: coverage_test([1, 2], [3], "1/5"), "n: got 2"),
    ]:
        with pytest.raises(ValueError, match=f"^{message}.*; need .*; because "):
            call()


@pytest.mark.parametrize(("size", "resamples"), [(20, 50), (2000, 2500)])
def test_every_relabeling_asked_for_is_drawn_and_counted_once(size: int, resamples: int) -> None:
    """Under a statistic that never varies each of them is at least the observed one; 2,500 of 2,000 scores take two blocks."""
    drawn = []

    def constant(pooled: np.ndarray, labels: np.ndarray) -> np.ndarray:
        assert labels.shape[1] == pooled.size == size
        assert (labels.sum(axis=1) == size // 2).all()
        drawn.append(len(labels))
        return np.zeros(len(labels))

    test = permutation_test(np.arange(size // 2), np.arange(size // 2), statistic=constant, resamples=resamples)
    assert test.p_value == 1
    assert drawn[0] == 1 and sum(drawn[1:]) == resamples
    assert test.method == f"permutation test, constant: {resamples} random relabelings and the observed one"


@pytest.mark.parametrize(
    ("resamples", "how"), [(1, "1 random relabelings and the observed one"), (2, "all 3 relabelings"), (3, "all 3 relabelings")]
)
def test_all_relabelings_are_taken_if_there_are_no_more_than_asked_for(resamples: int, how: str) -> None:
    assert permutation_test([1, 2], [3], resamples=resamples).method == f"permutation test, greater: {how}"
