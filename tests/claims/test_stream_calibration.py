"""Thresholds from designated training prompts: exact for a fixed policy, of known law under drift, and what the remedies do."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest

from conformal_core.keys import uniforms
from conformal_core.level import conformal_rank
from conformal_core.outcomes import Outcomes
from conformal_core.replay import replay
from conformal_core.signal import SignalBudget

K, BATCH, STEPS, WINDOW, DELTA, SHARE = 8, 20, 6, 24, "1/5", "3/10"
FIXED = [0.3] * (STEPS + 1)
HARDER = [0.5, 0.5, 0.5, 0.5, 0.35, 0.25, 0.2]


def law_of_s(p):
    """P(S = s) for s = 0..K-1 and a prompt of pass rate p."""
    mass = [0.0] + [p**s * (1 - p) + (1 - p) ** s * p for s in range(1, K)]
    return np.array([1 - sum(mass), *mass[1:]])


def tail(probabilities):
    """Law of a sum of independent indicators."""
    law = np.ones(1)
    for p in probabilities:
        law = np.append(law * (1 - p), 0) + np.append(0, law * p)
    return law


def exact_loss(steps, rates):
    """P(S > S_(L)) for a fresh prompt of the last step, given the steps from which the window's independent scores come."""
    rank, fresh, lost = conformal_rank(len(steps), DELTA), law_of_s(rates[-1]), 0.0
    for s in range(1, K):
        below = [law_of_s(rates[t])[:s].sum() for t in steps]
        lost += fresh[s] * tail(below)[rank:].sum()  # at least L scores below s: q < s
    return lost


def stream(rates, seed, **kwargs):
    """One training stream; (was the fresh prompt of the last step lost, steps of the window, policy)."""
    rng = np.random.default_rng([seed, 11])
    policy = SignalBudget(range(1, K + 1), delta=DELTA, share=SHARE, window=WINDOW, seed=seed, **kwargs)
    window = []
    for step in range(STEPS):
        ids = rng.integers(0, 2**63, BATCH).astype(np.uint64)
        table = Outcomes(ids, rng.random((BATCH, K)) < rates[step], step=step)
        window += [step] * (BATCH if step == 0 else int((uniforms(ids, seed=seed, step=step, stream="designate") < 0.3).sum()))
        policy.update(table.prefix(replay(policy, table, step).drawn))
    row = rng.random(K) < rates[STEPS]
    ids = rng.integers(0, 2**63, 200).astype(np.uint64)
    ids = ids[uniforms(ids, seed=seed, step=STEPS, stream="designate") >= 0.3][:1]
    fresh = Outcomes(ids, row[None], step=STEPS)
    mixed = next((k for k in range(2, K + 1) if 0 < row[:k].sum() < k), 0)
    return replay(policy, fresh, STEPS).drawn[0] < mixed, window[-WINDOW:], policy


def two_sided(hits, law):
    return min(1.0, 2 * min(law[: hits + 1].sum(), law[hits:].sum()))


def run(rates, replicates, seed, **kwargs):
    results = [stream(rates, seed + r, **kwargs) for r in range(replicates)]
    return np.array([lost for lost, _, _ in results]), [window for _, window, _ in results], [policy for _, _, policy in results]


def test_exact_for_a_fixed_policy():
    """The law of the loss is that of split conformal prediction with n iid scores: stopping and designation leave no trace."""
    lost, windows, policies = run(FIXED, 150, 1000)
    assert all(policy.state_dict()["windows"][0]["steps"] == window for policy, window in zip(policies, windows, strict=True))
    expected = exact_loss([0] * WINDOW, FIXED)
    assert 0.1 < expected <= 0.2
    assert binomtest(int(lost.sum()), 150, expected).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:recency. got")
def test_the_law_under_drift_is_that_of_independent_old_scores_and_recency_helps():
    """Prompts get harder at every step: the loss exceeds delta by what the exact law says, and less so with recency weights."""
    plain, windows, _ = run(HARDER, 400, 2000)
    known = Counter(map(tuple, windows))
    laws = {steps: exact_loss(steps, HARDER) for steps in known}
    expected = [laws[tuple(window)] for window in windows]
    assert np.mean(expected) > 0.23
    assert two_sided(int(plain.sum()), tail(expected)) > 1e-3
    weighed, _, _ = run(HARDER, 400, 2000, drift="recency", recency="1/2")
    saved, spoilt = int((plain & ~weighed).sum()), int((weighed & ~plain).sum())
    assert binomtest(saved, saved + spoilt, 0.5, "greater").pvalue < 1e-3


def test_adaptive_level_keeps_the_average_error_of_the_stream_under_drift():
    """160 steps of prompts that get harder for ever: the average share of designated prompts with S above the clock is within the bound."""
    rng, rates = np.random.default_rng(4), 0.5 * 0.985 ** np.arange(160)
    policies = [SignalBudget((2, 4, 8, 16, 32), delta="1/5", share="1/2", window=200, drift=d, gamma="1/5") for d in ("aci", "none")]
    errors, steps = Fraction(0), 0
    misses = [0, 0]
    for step in range(160):
        table = Outcomes(rng.integers(0, 2**63, 12).astype(np.uint64), rng.random((12, 32)) < rates[step], step=step)
        for i, policy in enumerate(policies):
            final = table.prefix(replay(policy, table, step).drawn)
            designated = policy.designated(final)
            lost, _ = policy.audit(final)["lost_group"]
            f = policy._clock_of(step)[0][0]
            if i == 0 and designated.any() and not policy._clock_of(step)[1][0]:
                scores = [next((k for k in range(2, 33) if 0 < row[:k].sum() < k), 1) - 1 for row in table.passes[designated]]
                errors += Fraction(sum(s + 1 > f for s in scores), len(scores))
                steps += 1
            misses[i] += lost
            policy.update(final)
    level = policies[0]._windows[0].level
    assert (level.updates, level.errors) == (steps, errors)
    assert abs(errors / steps - Fraction(1, 5)) <= level.bound < Fraction(1, 20)
    assert misses[0] < misses[1]


def test_an_alarm_after_a_jump_empties_the_window_and_without_a_jump_hardly_ever_comes():
    rng = np.random.default_rng(8)

    def alarms(rates, seed):
        policy = SignalBudget((4, 8), delta="1/5", window=50, seed=seed, alarm="1/100")
        for step, p in enumerate(rates):
            table = Outcomes(rng.integers(0, 2**63, 16).astype(np.uint64), rng.random((16, 8)) < p, step=step)
            before = policy.metrics()["alarms"]
            policy.update(table.prefix(replay(policy, table, step).drawn))
            assert (policy.metrics()["window"] == 0) == (policy.metrics()["alarms"] > before)
        return policy.metrics()["alarms"]

    calm = sum(alarms([0.5] * 15, seed) > 0 for seed in range(50))
    assert binomtest(calm, 50, 0.01, "greater").pvalue > 1e-3
    assert alarms([0.5] * 10 + [0.1] * 10, 0) == 1
