"""The first figures of signal stopping, and that the bound is tight."""

import numpy as np
import pytest
from scipy.stats import binomtest

from conformal_core.outcomes import Outcomes
from conformal_core.replay import replay
from conformal_core.scores import k_mix
from conformal_core.signal import SignalBudget

#: delta: mean f, lost, mean k, mixed groups kept (of .930); n = 200, p ~ Beta(1.14, .86), K_max = 32, stopping checked after every draw
FIGURES = {
    "0.02": (24.9, 0.0186, 6.9, 0.911),
    "0.05": (18.2, 0.0476, 6.2, 0.883),
    "0.1": (12.5, 0.0934, 5.4, 0.838),
    "0.2": (7.4, 0.185, 4.3, 0.745),
}
REPLICATES, PROMPTS = 200, 150


def population(n, rng):
    passes = rng.random((n, 32)) < rng.beta(1.14, 0.86, size=(n, 1))
    return Outcomes(rng.integers(0, 2**63, n).astype(np.uint64), passes)


@pytest.mark.slow
@pytest.mark.parametrize("delta", FIGURES)
def test_first_figures_of_signal_stopping_are_reproduced(delta):
    """Within four Monte-Carlo standard errors (between calibrations included) and half a unit of the last digit; the first prompt of each
    replicate alone gives independent losses, whose probability is at most delta."""
    rng, rows, first = np.random.default_rng(10), [], 0
    for _ in range(REPLICATES):
        policy = SignalBudget(range(1, 33), delta=delta, calibration="offline")
        policy.calibrate(population(200, rng))
        table = population(PROMPTS, rng)
        drawn, mixed = replay(policy, table).drawn, k_mix(table.passes)
        lost = (mixed > 0) & (drawn < mixed)
        first += lost[0]
        rows.append([policy.metrics()["f"], lost.mean(), drawn.mean(), ((mixed > 0) & ~lost).mean()])
    rows = np.array(rows)
    error = rows.std(axis=0) / np.sqrt(REPLICATES) * np.sqrt(2)
    digit = np.array([0.05, 0.0005, 0.05, 0.0005])
    assert (abs(rows.mean(axis=0) - FIGURES[delta]) < 4 * error + digit).all(), rows.mean(axis=0)
    assert binomtest(int(first), REPLICATES, float(delta), "greater").pvalue > 1e-3
