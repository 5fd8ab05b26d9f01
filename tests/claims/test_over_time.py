"""What holds between and across calibrations: adaptive level, test martingale, recency weights."""

from fractions import Fraction
from itertools import permutations, product
from math import inf, log, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binomtest, kstest

from conformal_core.aci import AdaptiveLevel, adaptive_level
from conformal_core.martingale import DriftMonitor, PowerMixture, SimpleJumper, online_p_values
from conformal_core.stream import StreamWindow

# -- adaptive conformal inference ----------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["1/10", "1/3", "9/10"]),
    st.sampled_from(["1/100", "1/5", "1", "3"]),
    st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=6), st.lists(st.sampled_from([-inf, 0, 2, 5, inf]), min_size=1)), max_size=60),
)
def test_adaptive_level_bounds_the_average_error_of_any_sequence(delta, gamma, times):
    """Gibbs and Candes, Prop. 4.1: calibration sets and test scores are arbitrary, drift included; exact, at every T."""
    level, errors = adaptive_level(delta, gamma), Fraction(0)
    delta, gamma = level.delta, level.gamma
    for calibration, tests in times:
        q = level.threshold(calibration)
        share = Fraction(sum(s > q or q == -inf for s in tests), len(tests))
        share = Fraction(0) if q == inf else share
        errors += share
        level = level.after(share)
        assert -gamma <= level.level <= 1 + gamma
        assert abs(errors / level.updates - delta) <= level.bound
    assert level.errors == errors and AdaptiveLevel.from_json(level.to_json()) == level


def test_clipping_the_level_would_break_the_bound():
    """An adversary errs whenever it can: the unclipped level goes below zero and pays back; a clipped one forgets its debt."""
    unclipped, clipped, owed = adaptive_level("0.1", "0.5"), Fraction(1, 10), 0
    for _ in range(400):
        unclipped = unclipped.after(int(unclipped.level > 0))
        err = int(clipped > 0)
        owed += err
        clipped = max(clipped + Fraction(1, 2) * (Fraction(1, 10) - err), Fraction(0))
    assert abs(unclipped.errors / 400 - Fraction(1, 10)) <= unclipped.bound
    assert abs(Fraction(owed, 400) - Fraction(1, 10)) > unclipped.bound


# -- conformal test martingale -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", [(1, 2, 3, 4), (1, 1, 2, 2), (5, 5, 5, 5), (0, 0, 0, 9)])
def test_online_p_values_are_independent_and_uniform(scores):
    """Over all orders, the interval each p-value takes as u runs over [0, 1] gives P(p_2 <= a, p_3 <= b, p_4 <= c) = abc exactly."""
    orders = list(permutations(scores))
    for bounds in product((Fraction(1, 4), Fraction(1, 2), Fraction(5, 6)), repeat=3):
        total = Fraction(0)
        for order in orders:
            low = online_p_values(order, [0.0] * 4)
            high = online_p_values(order, [1.0] * 4)
            mass = Fraction(1)
            for t, bound in zip((2, 3, 4), bounds, strict=True):
                a, b = round(low[t - 1] * t), round(high[t - 1] * t)
                mass *= min(max((bound * t - a) / Fraction(b - a), Fraction(0)), Fraction(1))
            total += mass
        assert total / len(orders) == prod(bounds)


def test_history_counts_but_is_not_bet_on():
    everything = online_p_values([3.0, 1.0, 2.0, 2.0, 5.0], [0.1, 0.2, 0.3, 0.4, 0.5])
    np.testing.assert_array_equal(online_p_values([2.0, 5.0], [0.4, 0.5], history=[1.0, 2.0, 3.0]), everything[3:])


def test_simple_jumper_is_fair():
    """Its capital is a polynomial of degree one in each p-value, so the two-point Gauss rule integrates it exactly: the mean is 1."""
    nodes = 0.5 + np.array([-0.5, 0.5]) / np.sqrt(3)
    total = 0.0
    for path in product(nodes, repeat=7):
        bets = SimpleJumper(0.2)
        for p in path:
            bets.bet(p)
        total += np.exp(bets.log_capital)
    assert total / 2**7 == pytest.approx(1, rel=1e-12)


@given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=40))
def test_power_mixture_is_the_integral_of_its_definition(p):
    bets = PowerMixture()
    for value in p:
        bets.bet(value)
    total = -sum(map(log, p))
    top = max((t := len(p)) * log(e) + (1 - e) * total for e in (np.linspace(1e-6, 1, 2001)))
    peak = min(t / max(total, t), 1)
    integral = quad(lambda e: np.exp(t * log(e) + (1 - e) * total - top) if e > 0 else 0.0, 0, 1, limit=400, points=[peak])[0]
    assert bets.log_capital == pytest.approx(top + log(integral), abs=1e-6)


@pytest.mark.parametrize("betting", ["jumper", "power"])
@pytest.mark.parametrize("tied", [False, True])
def test_ville_bounds_the_probability_of_a_false_alarm(betting, tied):
    """600 exchangeable streams of 150 after a history of 20: alarms are independent, each of probability at most alpha = 1/10."""
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(600):
        scores = rng.integers(0, 3, 170).astype(float) if tied else rng.random(170)
        monitor = DriftMonitor("0.1", betting)
        monitor.restart(scores[:20])
        alarms += monitor.observe(scores[20:], rng.random(150))
    assert binomtest(alarms, 600, 0.1, "greater").pvalue > 1e-3
    assert alarms > 0


def test_p_values_against_one_fixed_set_are_not_independent():
    """Why the rank is online: against a fixed calibration set of 10, the same bets raise far more false alarms than alpha."""
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(300):
        calibration, scores = np.sort(rng.random(10)), rng.random(300)
        bets, alarm = SimpleJumper(), False
        for s, u in zip(scores, rng.random(300), strict=True):
            bets.bet((np.sum(calibration > s) + u) / 11)
            alarm = alarm or bets.log_capital >= log(10)
        alarms += alarm
    assert binomtest(alarms, 300, 0.1, "greater").pvalue < 1e-6


def test_online_p_values_pass_a_uniformity_test_on_tied_scores():
    rng = np.random.default_rng(1)
    assert kstest(online_p_values(rng.integers(0, 2, 4000), rng.random(4000)), "uniform").pvalue > 1e-3


# -- recency weights -----------------------------------------------------------------------------------------------------------


def swapped_distance(p, q):
    """Total variation between (X, Y) and (Y, X), X ~ p and Y ~ q independent on the same finite set."""
    return sum(abs(p[a] * q[b] - q[a] * p[b]) for a in range(len(p)) for b in range(len(p))) / 2


@pytest.mark.parametrize(("recency", "delta"), [("3/4", "2/5"), ("9/10", "2/5"), ("9/10", "1/4"), ("1", "2/5"), ("1", "1/4")])
def test_recency_weights_lose_at_most_the_weighted_distance(recency, delta):
    """Barber et al., Thm 2, by enumeration: five steps, one score each, whose law drifts from step to step, exactly."""
    laws = [[Fraction(6 - t, 8), Fraction(1, 8), Fraction(1 + t, 8)] for t in range(6)]
    missed = Fraction(0)
    for scores in product(range(3), repeat=5):
        window = StreamWindow(delta, 5, drift="recency", recency=recency)
        for step, score in enumerate(scores):
            window.extend([score], step)
        mass = prod(laws[step][score] for step, score in enumerate(scores))
        missed += mass * sum(laws[5][s] for s in range(3) if s > window.threshold)
    weights = [Fraction(recency) ** (5 - step) for step in range(5)]
    share = [w / (1 + sum(weights)) for w in weights]
    exact = sum(w * swapped_distance(laws[i], laws[5]) for i, w in enumerate(share))
    plain = sum(2 * w * sum(abs(a - b) for a, b in zip(laws[i], laws[5], strict=True)) / 2 for i, w in enumerate(share))
    assert 0 < missed <= Fraction(delta) + exact <= Fraction(delta) + plain


def test_without_drift_recency_weights_keep_the_level_exactly():
    law, delta, missed = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)], Fraction(2, 5), Fraction(0)
    for scores in product(range(3), repeat=5):
        window = StreamWindow(delta, 5, drift="recency", recency="3/4")
        for step, score in enumerate(scores):
            window.extend([score], step)
        missed += prod(law[s] for s in scores) * sum(law[s] for s in range(3) if s > window.threshold)
    assert 0 < missed <= delta


def test_a_recency_that_never_gives_a_threshold_is_not_silent():
    window = StreamWindow("1/10", 20, drift="recency", recency="1/2")
    for step in range(19):
        window.extend([1.0], step)
    with pytest.warns(UserWarning, match=r"recency: got 1/2; .* because the test point alone"):
        window.extend([1.0], 19)
    assert window.short and window.threshold == inf
