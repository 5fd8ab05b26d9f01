from itertools import product
from math import log, sqrt

import numpy as np
import pytest
from scipy.stats import binom

from conformal_core.intervals import mean_interval, share_interval
from conformal_core.laws import clopper_pearson


@pytest.mark.parametrize("n", [2, 5, 40])
def test_empirical_bernstein_covers_at_every_two_point_law(n):
    """Exact coverage by summing over all outcomes; Maurer and Pontil 2009, Theorem 4."""
    found = [mean_interval(np.where(np.arange(n) < ones, 0.125, 1), level="0.8") for ones in range(n + 1)]
    for p in np.linspace(0.02, 0.98, 25):
        mean = 1 - 0.875 * p
        assert sum(binom.pmf(ones, n, p) for ones, (low, high) in enumerate(found) if low <= mean <= high) >= 0.8


def test_empirical_bernstein_is_its_formula():
    x = np.where(np.arange(400) < 100, 0.25, 0.5)
    width = sqrt(2 * x.var(ddof=1) * log(40) / 400) + 7 * log(40) / (3 * 399)
    np.testing.assert_allclose(mean_interval(x, "0.9"), (x.mean() - width, x.mean() + width), rtol=1e-12)
    assert mean_interval([0.5]) == (0, 1) and mean_interval([0.5, 0.5]) == (0, 1)


def test_azuma_hoeffding_covers_the_average_of_probabilities_that_answer_to_the_past():
    """Exact, over all outcomes of 12 trials in which a success halves the next probability and a failure raises it."""
    n, covered = 12, 0.0
    for row in product((0, 1), repeat=n):
        p, weight, total = 0.5, 1.0, 0.0
        for x in row:
            weight *= p if x else 1 - p
            total += p
            p = p / 2 if x else min(0.9, p + 0.1)
        low, high = share_interval(sum(row), n, "0.7", adaptive=True)
        covered += weight * (low <= total / n <= high)
        assert (low, high) == mean_interval(np.array(row, float), "0.7", adaptive=True)
    assert covered >= 0.7
    width = sqrt(log(2 / 0.05) / 800)
    np.testing.assert_allclose(share_interval(100, 400, adaptive=True), (0.25 - width, 0.25 + width), rtol=1e-12)


def test_share_interval_is_clopper_pearson():
    assert share_interval(3, 20, "0.9") == clopper_pearson(3, 20, "0.9")
    assert share_interval(0, 0) == share_interval(0, 0, adaptive=True) == (0, 1)
    assert share_interval(0, 1, adaptive=True) == (0, 1)


def test_refusals():
    for hits, trials in ((-1, 3), (4, 3), (1, 0)):
        with pytest.raises(ValueError, match=r"^hits: got .*; need .*; because "):
            share_interval(hits, trials, adaptive=True)
    for values in ([], [[0.5]], [1.5], [-0.1], [np.nan]):
        with pytest.raises(ValueError, match=r"^values: got .*; need .*; because "):
            mean_interval(values)
    for function in (lambda: share_interval(0, 0, 1), lambda: mean_interval([0.5], 95)):
        with pytest.raises(ValueError, match=r"^level: "):
            function()
