"""P(a prompt that would have become mixed is cut off) <= delta: exact, over every calibration set and every path of a small population."""

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from conformal_core.level import conformal_rank
from conformal_core.outcomes import Outcomes
from conformal_core.replay import replay
from conformal_core.signal import SignalBudget

K = 4
#: (weight, pass rate) of the prompts of a population
POPULATIONS = {
    "all alike": [(Fraction(1), Fraction(1, 3))],
    "hopeless, even, easy": [(Fraction(1, 4), Fraction(0)), (Fraction(1, 2), Fraction(1, 2)), (Fraction(1, 4), Fraction(9, 10))],
    "hard": [(Fraction(1), Fraction(1, 10))],
}


def k_mix(path, m):
    return next((k for k in range(1, K + 1) if m <= sum(path[:k]) <= k - m), 0)


def paths(population):
    """Exact law of the K responses of a prompt."""
    return {
        path: sum(w * p ** sum(path) * (1 - p) ** (K - sum(path)) for w, p in POPULATIONS[population]) for path in product((0, 1), repeat=K)
    }


def example_of(score, m):
    """A group with that score."""
    return next(path for path in product((0, 1), repeat=K) if max(k_mix(path, m) - 1, 0) == score)


def probability_lost(population, n, m, delta, grid):
    law, scores = paths(population), Counter()
    for path, mass in law.items():
        scores[max(k_mix(path, m) - 1, 0)] += mass
    table = Outcomes(np.arange(len(law), dtype=np.uint64), np.array(list(law), bool))
    lost = Fraction(0)
    for calibration in product(scores, repeat=n):
        policy = SignalBudget(grid, m=m, delta=delta, calibration="offline", n_calibration=100)
        policy.calibrate(Outcomes(np.arange(n, dtype=np.uint64), np.array([example_of(s, m) for s in calibration], bool)))
        drawn = replay(policy, table).drawn
        here = sum(mass for (path, mass), k in zip(law.items(), drawn, strict=True) if k < k_mix(path, m))
        mass = Fraction(1)
        for s in calibration:
            mass *= scores[s]
        lost += mass * here
    return lost


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize(("n", "m", "delta"), [(3, 1, "1/4"), (3, 1, "1/2"), (4, 1, "1/5"), (3, 2, "1/3"), (1, 1, "3/5")])
def test_probability_of_losing_a_group_is_at_most_delta(population, n, m, delta):
    every_draw = probability_lost(population, n, m, delta, (1, 2, 3, 4))
    assert 0 <= every_draw <= Fraction(delta)
    assert probability_lost(population, n, m, delta, (2, 4)) <= every_draw  # a grid rounds f up


def test_the_bound_is_attained_up_to_ties():
    """P(lost) = P(S > S_(L)) for scores with ties: an independent count over order statistics."""
    law = Counter()
    for path, mass in paths("hopeless, even, easy").items():
        law[max(k_mix(path, 1) - 1, 0)] += mass
    n, delta = 4, Fraction(2, 5)
    rank = conformal_rank(n, delta)
    above = sum(
        np.prod([law[s] for s in calibration]) * sum(mass for s, mass in law.items() if s > sorted(calibration)[rank - 1])
        for calibration in product(law, repeat=n)
    )
    assert probability_lost("hopeless, even, easy", n, 1, delta, (1, 2, 3, 4)) == above
    assert Fraction(1, 10) < above <= delta
