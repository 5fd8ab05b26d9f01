import json
import warnings
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal_core.conformal_budget import ConformalBudget
from conformal_core.keys import uniforms
from conformal_core.outcomes import Outcomes
from conformal_core.policy import CalibrationRequest, FixedBudget
from conformal_core.quantile import conformal_quantile
from conformal_core.replay import replay
from conformal_core.scores import APS, FirstSuccess
from conformal_core.signal import SignalBudget
from conformal_core.stream import StreamCalibrated, StreamWindow
from conformal_core.vote import ConformalVote

GRID = (2, 4, 8)


def batch(n, seed, step=0, answers=True, start=0):
    rng = np.random.default_rng([seed, step])
    right = rng.random((n, 8)) < rng.beta(1.14, 0.86, size=(n, 1))
    codes, gold = (np.where(right, 0, rng.integers(1, 4, (n, 8))), np.zeros(n, np.int64)) if answers else (None, None)
    return Outcomes(rng.integers(0, 2**63, n).astype(np.uint64), right, codes=codes, gold=gold, step=step)


def budget(**kwargs):
    return ConformalBudget(GRID, **({"delta": "0.2", "n_calibration": 20, "seed": 3} | kwargs))


INNER = {
    "first success": lambda: budget(score=FirstSuccess()),
    "aps": lambda: budget(score=APS()),
    "risk control": lambda: budget(multiplicity="risk_control"),
    "automatic delta": lambda: budget(delta="auto"),
    "vote": lambda: ConformalVote(GRID, delta="0.2", n_calibration=20),
    "signal": lambda: SignalBudget(GRID, delta="0.2", calibration="offline", n_calibration=20),
}


def rule(policy):
    return policy.state_dict() if not isinstance(policy, SignalBudget) else policy.metrics()["f"]


@pytest.mark.filterwarnings("ignore:(calibration|n). got")
@pytest.mark.parametrize("name", INNER)
def test_the_rule_is_that_of_the_last_designated_prompts_and_a_run_resumes_exactly(name):
    """One run, and one that is saved and restored before every step; the rule equals an offline calibration on the same prompts."""

    def make():
        return StreamCalibrated(INNER[name](), share="1/4", window=30, seed=9)

    policy, seen = make(), []
    assert policy.calibration(0) is None
    for step in range(5):
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        table = batch(24, 7, step)
        chosen = policy.designated(table.prompt_ids, step)
        full = step < 2  # 24 + 24 >= 30: the window is full from step 2 on
        expected = np.ones(24, bool) if full else uniforms(table.prompt_ids, seed=9, step=step, stream="designate") < 0.25
        np.testing.assert_array_equal(chosen, expected)
        asked = policy.first(table.prompt_ids, step)  # in one go where every response is needed anyway
        np.testing.assert_array_equal(asked, np.where(chosen, policy.rollout.first(table.prompt_ids, step), 2))
        drawn = replay(policy, table, step).drawn
        np.testing.assert_array_equal(replay(resumed, table, step).drawn, drawn)
        alone = replay(policy.policy, table, step).drawn
        np.testing.assert_array_equal(drawn[~chosen], alone[~chosen])
        assert (drawn >= alone).all()
        final = table.prefix(drawn)
        assert (drawn[chosen] == replay(policy.rollout, table, step).drawn[chosen]).all() or name == "first success"
        order = np.argsort(table.prompt_ids)
        seen += [table.take(order[i : i + 1]) for i in range(24) if chosen[order[i]]]
        shuffle = np.random.default_rng(step).permutation(24)
        policy.update(final)
        resumed.update(final.take(shuffle))
        assert resumed.state_dict() == policy.state_dict() and resumed.metrics() == policy.metrics()
        extra = int((drawn - alone)[chosen].sum()) / drawn.sum()
        assert policy.metrics()["calibration_extra_share"] == pytest.approx(extra)
        assert policy.metrics()["designated_share"] == chosen.mean()
    last, reference = seen[-30:], INNER[name]()
    reference.calibrate(
        Outcomes(
            np.concatenate([o.prompt_ids for o in last]),
            np.concatenate([o.passes for o in last]),
            codes=np.concatenate([o.codes for o in last]),
            gold=np.concatenate([o.gold for o in last]),
            step=4,
        )
    )
    assert rule(reference) == rule(policy.policy)


def test_prompts_without_answers_are_windowed_too():
    policy = StreamCalibrated(budget(score=FirstSuccess()), share="1/2", window=20)
    for step in range(3):
        table = batch(24, 1, step, answers=False)
        policy.update(table.prefix(replay(policy, table, step).drawn))
    assert policy.metrics()["window"] == 20 and policy.policy.stop_rule is not None
    again = StreamCalibrated(budget(score=FirstSuccess()), share="1/2", window=20)
    again.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
    assert again.state_dict() == policy.state_dict()


def test_an_alarm_empties_the_window_and_everybody_is_designated_again():
    policy = StreamCalibrated(budget(score=FirstSuccess()), share="1/4", alarm="1/20")
    for step in range(14):
        table = batch(24, 2, step, answers=False)
        if step >= 7:
            table = Outcomes(table.prompt_ids, np.zeros((24, 8), bool), step=step)
        before = policy.metrics()["window"]
        policy.update(table.prefix(replay(policy, table, step).drawn))
        if policy.metrics()["window"] < before:
            assert step >= 7 and policy.metrics()["window"] == 0
            assert policy.designated(table.prompt_ids, step + 1).all()
            assert policy._schedule.monitor._history == []
            break
    else:
        raise AssertionError("no alarm within 7 steps of 24 prompts none of which passes any more")


def test_window_forgets_and_weighs():
    window = StreamWindow("1/4", 4)
    window.extend([5, 1, 7], step=0)
    assert (window.threshold, window.short) == (7, False)
    window.extend([2, 3, inf], step=1)
    assert window.scores == [7, 2, 3, inf] and window.steps == [0, 1, 1, 1] and window.threshold == inf and not window.short
    window.replace([1, 2, 3, 4, 5], step=2)
    assert window.threshold == 5 == conformal_quantile([1, 2, 3, 4, 5], "1/4").value
    recent = StreamWindow("1/2", 4, drift="recency", recency="1/2")
    recent.extend([9, 9, 9], step=0)
    with pytest.warns(UserWarning, match="^recency: got 1/2; need"):
        recent.extend([1], step=3)
    # weights 1/16 each for the nines, 1/2 for the one, 1 for the test point: half of 27/16 is beyond 1/2 and beyond 11/16
    assert recent.threshold == inf and recent.short
    recent.extend([2, 2, 2], step=3)
    assert recent.threshold == 2  # weights 1/2: 2 of 3 reach 3/2


def test_adaptive_window_moves_only_on_evidence():
    window = StreamWindow("1/4", 8, drift="aci", gamma="1/2")
    window.extend([1, 2], step=0)
    assert window.short and window.level.updates == 0
    window.extend([3], step=1)
    assert not window.short and window.threshold == 3
    window.extend([], step=2)
    assert window.level.updates == 0
    window.extend([9, 1], step=3)
    assert window.level.updates == 1 and window.level.errors == 0.5
    window.extend([9], step=4, in_force=20.0)
    assert window.level.updates == 2 and window.level.errors == 0.5
    again = StreamWindow("1/4", 8, drift="aci", gamma="1/2")
    again.load_state_dict(json.loads(json.dumps(window.state_dict(), allow_nan=False)))
    assert (again.threshold, again.level, again.scores) == (window.threshold, window.level, window.scores)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["recency", "aci"]), st.integers(0, 10**6), st.booleans(), st.sampled_from([None, "1/10"]))
def test_signal_budget_with_drift_options_resumes_exactly(drift, seed, by_first, alarm):
    def make():
        return SignalBudget(
            GRID, delta="1/5", share="1/2", window=24, drift=drift, recency="9/10", gamma="1/2", by_first_outcome=by_first, alarm=alarm
        )

    policy = make()
    for step in range(6):
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        table = batch(16, seed, step, answers=False)
        drawn = replay(policy, table, step).drawn
        np.testing.assert_array_equal(replay(resumed, table, step).drawn, drawn)
        for p in (policy, resumed):
            p.update(table.prefix(drawn))
        assert resumed.state_dict() == policy.state_dict() and resumed.metrics() == policy.metrics()


def test_extra_cost_counts_only_what_designation_drew():
    policy = SignalBudget((2, 4, 8), delta="1/2", share="1/2", window=10)
    policy.update(Outcomes(np.arange(10, dtype=np.uint64), np.array([[1, 0] + [0] * 6] * 10, bool)))
    assert policy.metrics()["f"] == 2 and policy.metrics()["calibration_extra_share"] == 0
    table = Outcomes(np.arange(100, 140, dtype=np.uint64), np.zeros((40, 8), bool), step=1)
    final = table.prefix(replay(policy, table, 1).drawn)
    chosen = policy.designated(final)
    policy.update(final)
    assert policy.metrics()["calibration_extra_share"] == 6 * chosen.sum() / (8 * chosen.sum() + 2 * (~chosen).sum())


def test_an_offline_clock_is_due_again_after_an_alarm():
    policy = SignalBudget((4, 8), delta="1/5", calibration="offline", n_calibration=40, recalibrate_every=1000, alarm="1/100")
    policy.calibrate(batch(40, 5))
    rng = np.random.default_rng(0)
    for step in range(1, 20):
        assert policy.calibration(step) is None
        policy.update(Outcomes(rng.integers(0, 2**63, 16).astype(np.uint64), np.ones((16, 8), bool), step=step))
        if policy.calibration(step + 1) is not None:
            break
    assert "drift alarm at level 1/100" in policy.calibration(step + 1).reason
    policy.calibrate(batch(40, 6, step=step + 1))
    assert policy.calibration(step + 2) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StreamCalibrated(FixedBudget(8)), r"policy: got FixedBudget\(8\); need"),
        (lambda: StreamCalibrated(budget(), share="0"), "share: got 0; need"),
        (lambda: StreamCalibrated(budget(), window=19), "window: got 19; need 20"),
        (lambda: StreamCalibrated(budget()).load_state_dict(StreamCalibrated(budget(), seed=1).state_dict()), "state: got"),
        (lambda: StreamWindow("1/5", 3), "window: got 3; need 4"),
        (lambda: StreamWindow("1/5", 4, drift="fast"), "drift: got 'fast'; need"),
        (lambda: StreamWindow("1/5", 4, recency="0"), "recency: got 0; need"),
        (lambda: StreamWindow("1/5", 4, gamma="0"), "gamma: got '0'; need"),
        (lambda: StreamWindow("1/5", 4).extend([float("nan")], 0), "scores: got NaN; need"),
        (lambda: SignalBudget(GRID, calibration="offline", drift="aci"), "drift: got 'aci'; need 'none'"),
        (lambda: SignalBudget(GRID, alarm="2"), "alarm: got '2'; need"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}.*; because "):
        call()


def test_designation_is_below_the_share():
    """A prompt whose number equals the share is not designated; the share is compared as written."""
    policy = StreamCalibrated(budget(score=FirstSuccess()), share="1", seed=9)
    policy.update(batch(30, 0))
    ids = batch(5, 1).prompt_ids
    u = uniforms(ids, seed=9, step=4, stream="designate")
    for edge in u:
        policy.share = Fraction(edge)
        assert policy.designated(ids, 4).tolist() == (u < edge).tolist()


def test_prompts_without_responses_feed_no_window():
    policy = StreamCalibrated(budget(score=FirstSuccess()))
    policy.update(batch(6, 0).prefix(np.array([8, 0, 8, 0, 8, 8])))
    assert policy.metrics()["window"] == 4 and policy.metrics()["designated_share"] == 4 / 6
    policy.update(Outcomes([], np.zeros((0, 8), bool), step=1))
    assert policy.metrics()["window"] == 4 and policy.metrics()["designated_share"] == 0


class DrawsNothingFirst(FixedBudget):
    """Asks for a calibration and begins with no response at all."""

    def first(self, prompt_ids, step):
        return np.zeros(len(prompt_ids), np.int64)

    def calibration(self, step):
        return CalibrationRequest(3, FixedBudget(2))


def test_a_policy_that_draws_nothing_first_can_be_calibrated_from_the_stream():
    assert StreamCalibrated(DrawsNothingFirst(2)).first(batch(2, 0).prompt_ids, 0).tolist() == [2, 2]


@pytest.mark.parametrize(("drift", "recency"), [("none", "0.98"), ("recency", "0.98"), ("aci", "0.98")])
def test_a_full_window_with_a_finite_threshold_warns_of_nothing(drift, recency):
    window = StreamWindow("1/2", 4, drift=drift, recency=recency)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        window.extend([1, 2, 3, 4], step=0)
    assert window.threshold < inf


def test_before_any_update_nothing_was_designated():
    policy = StreamCalibrated(ConformalBudget((1, 2, 4), score=FirstSuccess(), delta="0.2", n_calibration=20), alarm="0.1")
    assert [policy.metrics()[name] for name in ("designated_share", "calibration_extra_share", "window")] == [0, 0, 0]
    assert policy._schedule.stage == 1


def test_a_policy_that_reads_answers_needs_them_whatever_its_rollout_reads():
    aps, first = budget(score=APS()), budget(score=FirstSuccess())
    assert StreamCalibrated(aps).needs_answers and not StreamCalibrated(first).needs_answers
    assert not StreamCalibrated(aps).rollout.needs_answers


def test_prompts_solved_at_the_first_draw_feed_the_window():
    policy = StreamCalibrated(ConformalBudget((1, 2, 4), score=FirstSuccess(), delta="0.2", n_calibration=20), share="1")
    policy.update(Outcomes(np.arange(20, dtype=np.uint64), np.ones((20, 4), bool)).prefix(1))
    assert policy.metrics()["window"] == 20 and policy.policy.stop_rule is not None


@pytest.mark.filterwarnings("ignore:calibration")
@pytest.mark.parametrize("steps", [(1, 2, 3, 4, 5, 6, 7, 8), (1, 3, 8), (2, 3, 4, 8)])
def test_what_designation_adds_is_counted_to_the_response(steps):
    """The policy alone, replayed on the prompts of a step, draws what is not counted as extra."""
    policy = StreamCalibrated(SignalBudget(steps, delta="0.4", calibration="offline", n_calibration=20), share="1/2", window=20)
    for step in range(4):
        table = batch(30, 3, step, answers=False)
        designated = policy.designated(table.prompt_ids, step)
        drawn = replay(policy, table, step).drawn
        alone = replay(policy.policy, table, step).drawn
        policy.update(table.prefix(drawn))
        extra = int((drawn - np.minimum(alone, drawn))[designated].sum())
        assert policy.metrics()["calibration_extra_share"] == extra / drawn.sum()


def test_a_window_that_saw_no_step_stands_before_the_first():
    assert StreamWindow("0.2", 9).state_dict()["clock"] == -1
    window = StreamWindow("0.2", 9, drift="recency")
    window.extend([], step=0)
    assert window.state_dict()["clock"] == 0
