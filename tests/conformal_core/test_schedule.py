import json
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.keys import uniforms
from conformal_core.martingale import DriftMonitor, PowerMixture, SimpleJumper, online_p_values
from conformal_core.outcomes import Outcomes
from conformal_core.schedule import RecalibrationSchedule, first_stage_passes


def batch(n, p, seed, step):
    rng = np.random.default_rng([seed, step])
    return Outcomes(rng.integers(0, 2**63, n).astype(np.uint64), rng.random((n, 4)) < p, step=step)


@given(st.integers(1, 7), st.lists(st.integers(0, 30), max_size=8))
def test_due_whenever_a_multiple_of_the_period_was_passed(every, arrivals):
    schedule = RecalibrationSchedule(every)
    assert schedule.due(0) == "first calibration" and not schedule.observe(batch(3, 0.5, 0, 0))
    for at in sorted(arrivals):
        schedule.calibrated(batch(2, 0.5, 0, at))
        for step in range(at, at + 2 * every + 1):
            passed = any(multiple % every == 0 for multiple in range(at + 1, step + 1))
            assert schedule.due(step) == (f"{every} steps" if passed else None)


def test_the_monitor_bets_on_first_stage_passes_after_the_calibration():
    schedule = RecalibrationSchedule(100, alarm="1/20", stage=3, seed=4)
    calibration, train = batch(20, 0.5, 1, 0), batch(10, 0.5, 2, 1)
    schedule.calibrated(calibration)
    drawn = np.array([4, 3, 2, 4, 1, 3, 3, 4, 4, 0])
    schedule.observe(train.prefix(drawn))
    order = [i for i in np.argsort(train.prompt_ids) if drawn[i] >= 3]
    coins = uniforms(train.prompt_ids[order], seed=4, step=1, stream="monitor")
    bets = SimpleJumper()
    for p in online_p_values(train.passes[order, :3].sum(axis=1), coins, calibration.passes[:, :3].sum(axis=1)):
        bets.bet(p)
    assert schedule.metrics() == {"drift_evidence": bets.log_capital}
    np.testing.assert_array_equal(first_stage_passes(train.prefix(drawn), 3), train.passes[drawn >= 3, :3].sum(axis=1))


def test_an_alarm_is_due_until_calibrated_and_survives_a_restart():
    schedule = RecalibrationSchedule(1000, alarm="1/100", stage=4)
    schedule.calibrated(batch(50, 0.2, 0, 0))
    step = 1
    while not schedule.observe(batch(20, 0.9, 0, step)):
        step += 1
        assert step < 20
    again = RecalibrationSchedule(1000, alarm="1/100", stage=4)
    again.load_state_dict(json.loads(json.dumps(schedule.state_dict(), allow_nan=False)))
    assert again.due(step) == schedule.due(step) == "drift alarm at level 1/100"
    assert again.state_dict() == schedule.state_dict()
    again.calibrated(batch(50, 0.9, 1, step))
    assert again.due(step + 1) is None and again.metrics() == {"drift_evidence": 0.0}
    with pytest.raises(ValueError, match=r"^state: got .*; need .*; because "):
        RecalibrationSchedule(1000).load_state_dict(schedule.state_dict())


@pytest.mark.parametrize("betting", ["jumper", "power"])
def test_a_resumed_monitor_goes_on_as_before(betting):
    rng = np.random.default_rng(0)
    monitor = DriftMonitor("1/10", betting)
    monitor.restart([1.0, np.inf, 2.0, 2.0])
    for _ in range(5):
        again = DriftMonitor("1/10", betting)
        again.load_state_dict(json.loads(json.dumps(monitor.state_dict(), allow_nan=False)))
        scores, coins = rng.integers(0, 4, 10), rng.random(10)
        assert again.observe(scores, coins) == monitor.observe(scores, coins)
        assert again.log_capital == monitor.log_capital and again.state_dict() == monitor.state_dict()
    assert monitor.p_bound() == min(1, np.exp(-monitor.log_capital))


def test_an_alarm_stays_after_the_capital_has_fallen():
    monitor = DriftMonitor("1/20", "power")
    monitor.restart(np.zeros(200))
    assert monitor.observe(np.arange(1.0, 12), np.full(11, 0.5)) and monitor.log_capital > log(20)
    assert monitor.observe(np.full(300, -1.0), np.full(300, 0.5)) and monitor.log_capital < 0


def test_each_way_of_betting_finds_the_drift_it_is_for():
    up, down, coins = np.linspace(2, 3, 60), np.linspace(-3, -2, 60), np.full(60, 0.5)
    found = {}
    for betting in ("jumper", "power"):
        for name, scores in (("up", up), ("down", down)):
            monitor = DriftMonitor("1/100", betting)
            monitor.restart(np.linspace(0, 1, 100))
            found[betting, name] = monitor.observe(scores, coins)
    assert found == {("jumper", "up"): True, ("jumper", "down"): True, ("power", "up"): True, ("power", "down"): False}


def test_a_p_value_of_zero_is_survived():
    for bets in (PowerMixture(), SimpleJumper()):
        for _ in range(3):
            bets.bet(0.0)
        assert np.isfinite(bets.log_capital) and bets.log_capital > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RecalibrationSchedule(0), "every: got 0"),
        (lambda: RecalibrationSchedule(5, stage=0), "stage: got 0"),
        (lambda: RecalibrationSchedule(5, alarm="1"), "alarm: got '1'"),
        (lambda: DriftMonitor("1/10", "both"), "betting: got 'both'"),
        (lambda: SimpleJumper(0.0), "jump: got 0.0"),
        (lambda: online_p_values([1.0], [2.0]), "u: got shape"),
        (lambda: online_p_values([1.0], [0.5, 0.5]), "u: got shape"),
        (lambda: online_p_values([np.nan], [0.5]), "scores: got shape"),
        (lambda: DriftMonitor().restart([[1.0]]), "history: got shape"),
        (lambda: DriftMonitor().load_state_dict(DriftMonitor(betting="power").state_dict()), "state: got betting 'power'"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}.*; need .*; because "):
        call()


def test_what_is_watched_unless_said_otherwise():
    schedule = RecalibrationSchedule(9)
    assert (schedule.every, schedule.stage, schedule.seed, schedule.monitor) == (9, 1, 0, None)


@pytest.mark.parametrize("value", [0, -3, 1.0, 2.5, True, np.True_, "3", None])
def test_counts_are_whole_and_positive(value):
    with pytest.raises(ValueError, match=r"^every: got .*; need an integer >= 1; because "):
        RecalibrationSchedule(value)
    assert RecalibrationSchedule(np.int64(3)).every == 3
