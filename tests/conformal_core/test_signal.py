import json
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest

from conformal_core.keys import uniforms
from conformal_core.level import conformal_rank
from conformal_core.outcomes import Outcomes
from conformal_core.replay import replay
from conformal_core.signal import SignalBudget
from conformal_core.signal_score import k_mix

GRID = (2, 4, 6)
TABLES = arrays(np.bool_, st.tuples(st.integers(2, 11), st.just(6)))


def outcomes(passes, seed=0, step=0):
    passes = np.asarray(passes, bool)
    return Outcomes(np.random.default_rng(seed).integers(0, 2**63, len(passes)).astype(np.uint64), passes, step=step)


def population(n, seed, step=0, width=6, law=(1.14, 0.86)):
    rng = np.random.default_rng(seed)
    return outcomes(rng.random((n, width)) < rng.beta(*law, size=(n, 1)), seed, step)


def mixed_at(row, m):
    return next((k for k in range(1, len(row) + 1) if m <= sum(row[:k]) <= k - m), 0)


def offline(n, **kwargs):
    return SignalBudget(kwargs.pop("grid", GRID), calibration="offline", n_calibration=max(n, 40), **kwargs)


@given(TABLES, st.integers(1, 2), st.sampled_from(["1/10", "1/4", "1/2"]))
def test_stops_as_written(passes, m, delta):
    policy = offline(len(passes), m=m, delta=delta)
    table = outcomes(passes)
    policy.calibrate(table)
    scores = sorted(max(mixed_at(row, m) - 1, 0) for row in passes)
    rank = conformal_rank(len(passes), delta)
    f = inf if rank > len(passes) else 1 + scores[rank - 1]
    assert policy.metrics()["f"] == f
    drawn = replay(policy, table).drawn
    for i, row in enumerate(passes):
        k = mixed_at(row, m)
        assert drawn[i] == next((g for g in GRID if (0 < k <= g) or g >= f), 6)


@settings(max_examples=80, deadline=None)
@given(TABLES, st.sampled_from(["1/10", "1/5", "1/4", "1/2"]), st.booleans())
def test_loss_is_bounded_for_every_exchangeable_law(passes, delta, by_first):
    """Given the multiset of n + 1 groups each is equally often the test prompt, so the average over who is left out is the conditional
    probability of losing a prompt, exactly (within each class of the first outcome if calibrated by class)."""
    table, lost = outcomes(passes), []
    for i in range(len(passes)):
        policy = offline(len(passes), delta=delta, by_first_outcome=by_first, grid=(1, 2, 3, 4, 5, 6))
        policy.calibrate(table.take(np.delete(np.arange(len(passes)), i)))
        drawn = replay(policy, table.take(np.array([i]))).drawn[0]
        lost.append(drawn < mixed_at(passes[i], 1))
    classes = [passes[:, 0], ~passes[:, 0]] if by_first else [np.ones(len(passes), bool)]
    for rows in classes:
        assert Fraction(int(np.array(lost)[rows].sum())) <= Fraction(delta) * int(rows.sum())


def test_loss_is_close_to_delta_in_a_training_stream():
    """800 independent streams (window 39, delta = 1/10, everyone designated while it fills), one fresh prompt each: exactly binomial."""
    rng, replicates = np.random.default_rng(7), 800
    lost = 0
    for r in range(replicates):
        passes = rng.random((40, 16)) < rng.beta(1.14, 0.86, size=(40, 1))
        table = Outcomes(np.arange(40, dtype=np.uint64) + 40 * r, passes)
        policy = SignalBudget(range(1, 17), delta="0.1", window=39, share="0.001", seed=r)
        train, fresh = table.take(np.arange(39)), table.take(np.array([39]))
        policy.update(train.prefix(replay(policy, train).drawn))
        k, drawn = mixed_at(passes[39], 1), replay(policy, fresh, step=1).drawn[0]
        lost += drawn < k
    assert binomtest(lost, replicates, 0.1, "greater").pvalue > 1e-3
    assert binomtest(lost, replicates, 0.06, "greater").pvalue < 1e-3  # the bound is used, not just kept


def test_designated_prompts_are_rolled_out_and_fill_the_window():
    policy = SignalBudget(GRID, delta="0.25", share="0.3", window=50)
    batch = population(40, 0)
    assert policy.designated(batch).all()  # the window is empty: everybody calibrates
    final = batch.prefix(replay(policy, batch).drawn)
    assert policy.audit(final) == {"lost_group": (0, 0)}  # nobody gives up yet, so nothing is on trial
    policy.update(final)
    assert policy.metrics()["window"] == 40 and policy.metrics()["f"] < inf and policy.metrics()["designated_share"] == 1
    batch = population(400, 1, step=1)
    chosen = policy.designated(batch)
    np.testing.assert_array_equal(chosen, uniforms(batch.prompt_ids, seed=0, step=1, stream="designate") < 0.3)
    final = batch.prefix(replay(policy, batch, step=1).drawn)
    resolved = np.array([mixed_at(row, 1) for row in batch.passes])
    assert (final.drawn[chosen & (resolved == 0)] == 6).all()
    assert (final.drawn[~chosen & (resolved == 0)] < 6).any()
    f = policy.metrics()["f"]
    cut_at = next((g for g in GRID if g >= f), inf)
    assert policy.audit(final)["lost_group"] == (int((chosen & (resolved > cut_at)).sum()), int(chosen.sum()))
    policy.update(final)
    assert policy.metrics()["window"] == 50
    by_id = np.argsort(batch.prompt_ids[chosen])
    assert policy.state_dict()["windows"][0]["scores"] == np.maximum(resolved[chosen][by_id] - 1, 0)[-50:].tolist()


def test_a_group_mixed_at_the_cut_is_not_lost():
    policy = SignalBudget(GRID, delta="0.5", window=10)
    policy.update(outcomes([[1, 1, 1, 0, 0, 0]] * 9))
    assert policy.metrics()["f"] == 4
    late = outcomes([[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1], [0] * 6], step=1)
    policy.share = Fraction(1)
    assert policy.audit(late) == {"lost_group": (2, 5)}


@pytest.mark.parametrize("resumed_between", [False, True])
def test_two_updates_of_one_step_use_the_designation_it_was_sampled_under(resumed_between):
    """The first half fills the window; the second half was sampled while everyone was designated and must still count."""
    policy = SignalBudget(GRID, delta="0.25", share="0.001", window=50)
    batch = population(20, 0, step=3)
    final = batch.prefix(replay(policy, batch, step=3).drawn)
    policy.update(final.take(np.arange(10)))
    if resumed_between:
        state = json.loads(json.dumps(policy.state_dict(), allow_nan=False))
        policy = SignalBudget(GRID, delta="0.25", share="0.001", window=50)
        policy.load_state_dict(state)
    with pytest.warns(UserWarning, match="step: got 3 again"):
        policy.update(final.take(np.arange(10, 20)))
    assert policy.metrics()["window"] == 20
    assert not policy.designated(population(20, 1, step=4)).any()


def test_a_short_class_designates_only_its_own_prompts():
    policy = SignalBudget(GRID, delta="0.25", share="0.001", window=50, by_first_outcome=True)
    passes = np.array([[1, 0, 0, 0, 0, 0]] * 5 + [[0, 0, 0, 1, 0, 0]] * 2, bool)
    policy.update(outcomes(passes).prefix(6))
    assert policy.metrics()["f_pass"] == 2 and policy.metrics()["f_fail"] == inf
    batch = outcomes(np.array([[1] * 6, [0] * 6]), step=1)
    assert policy.designated(batch).tolist() == [False, True]
    assert replay(policy, batch, step=1).drawn.tolist() == [2, 6]


def test_a_designated_prompt_cut_off_is_refused():
    policy = SignalBudget(GRID, window=50)
    with pytest.raises(ValueError, match=r"^outcomes: got 1 calibration prompts cut off .*; need .*; because "):
        policy.update(outcomes(np.zeros((2, 6))).prefix(np.array([6, 4])))
    policy.update(outcomes(np.zeros((2, 6))).prefix(np.array([6, 0])))  # skipped before sampling: not a calibration prompt
    assert policy.metrics()["window"] == 1


@pytest.mark.parametrize(
    "kwargs", [{}, {"by_first_outcome": True}, {"m": 2}, {"calibration": "offline", "n_calibration": 30, "recalibrate_every": 2}]
)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_resumed_policy_takes_the_same_decisions(kwargs, seed):
    def make():
        return SignalBudget(GRID, **({"delta": "0.2", "share": "0.5", "window": 30, "seed": 4} | kwargs))

    policy = make()
    for step in range(6):
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        requests = [p.calibration(step) for p in (policy, resumed)]
        assert [r is not None for r in requests] == [kwargs.get("calibration") == "offline" and step % 2 == 0] * 2
        for p, request in zip((policy, resumed), requests, strict=True):
            if request is not None:
                pool = population(request.n, seed + 100 + step, step)
                p.calibrate(pool.prefix(replay(request.rollout, pool, step).drawn))
        batch = population(12, seed + step, step)
        drawn = replay(policy, batch, step).drawn
        np.testing.assert_array_equal(replay(resumed, batch, step).drawn, drawn)
        for p in (policy, resumed):
            p.update(batch.prefix(drawn))
        assert resumed.state_dict() == policy.state_dict() and resumed.metrics() == policy.metrics()


@pytest.mark.parametrize("by_first", [False, True])
def test_decisions_ignore_order_batch_and_what_was_not_drawn(by_first):
    policies = [SignalBudget(GRID, delta="0.25", window=60, by_first_outcome=by_first) for _ in range(2)]
    first, batch = population(60, 0), population(60, 1, step=1)
    order = np.random.default_rng(2).permutation(60)
    final = first.prefix(replay(policies[0], first).drawn)
    policies[0].update(final)
    policies[1].update(final.take(order))
    assert policies[0].state_dict() == policies[1].state_dict()
    drawn = np.random.default_rng(3).choice(GRID, 60)
    asked = policies[0].more(batch.prefix(drawn))
    assert 0 < (asked == 0).sum() < 60
    for rows in (order, np.arange(7), np.array([], np.int64)):
        np.testing.assert_array_equal(policies[0].more(batch.prefix(drawn).take(rows)), asked[rows])
    np.testing.assert_array_equal(policies[0].more(Outcomes(batch.prompt_ids, batch.passes, drawn=drawn, step=1)), asked)


def test_offline_rollouts_stop_once_resolved_at_no_cost():
    policy = offline(40)
    pool = population(40, 0)
    cheap = pool.prefix(replay(policy.calibration(0).rollout, pool).drawn)
    assert cheap.drawn.mean() < 6
    policy.calibrate(cheap)
    full = offline(40)
    full.calibrate(pool)
    assert policy.metrics() == full.metrics()
    assert policy.audit(pool) == {"lost_group": (0, 0)} and not policy.designated(pool).any()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"m": 4}, r"m: got 4; need at most 3;"),
        ({"m": 0}, r"m: got 0; need"),
        ({"share": "0"}, r"share: got 0; need"),
        ({"share": "2"}, r"share: got '2'; need"),
        ({"window": 8}, r"window: got 8; need 9;"),
        ({"calibration": "offline", "n_calibration": 8}, r"n_calibration: got 8; need 9;"),
        ({"calibration": "never"}, r"calibration: got 'never'; need"),
        ({"delta": "1"}, r"delta: got '1'; need"),
    ],
)
def test_refusals(kwargs, message):
    with pytest.raises(ValueError, match=f"^{message}.* because "):
        SignalBudget(GRID, **kwargs)


def test_state_of_another_policy_is_refused():
    with pytest.raises(ValueError, match=r"^state: got .*; need .*; because "):
        SignalBudget(GRID).load_state_dict(SignalBudget((2, 4)).state_dict())


def test_before_any_update_nobody_was_designated_and_no_alarm_was_raised():
    fresh = SignalBudget(GRID)
    assert dict(fresh.metrics()) == {"f": inf, "designated_share": 0.0, "calibration_extra_share": 0.0, "window": 0.0}
    watched = SignalBudget(GRID, alarm="0.01")
    assert watched.metrics()["alarms"] == 0 and watched._schedule.stage == 2


def test_an_alarm_empties_the_window_and_is_counted(monkeypatch):
    policy = SignalBudget(GRID, delta="0.25", alarm="0.01")
    for step, alarm in enumerate([False, True, False, True]):
        batch = population(20, 0, step)
        monkeypatch.setattr(policy._schedule, "observe", lambda _, alarm=alarm: alarm)
        designated = int(policy.designated(batch).sum())
        policy.update(batch)
        assert policy.metrics()["window"] == (0 if alarm else designated)
        assert not alarm or policy._schedule.monitor._history == []
    assert policy.metrics()["alarms"] == 2


def test_a_step_without_prompts_updates_nothing():
    policy = SignalBudget(GRID, delta="0.25")
    policy.update(Outcomes([], np.zeros((0, 0), bool)))
    assert [policy.metrics()[name] for name in ("calibration_extra_share", "designated_share", "window")] == [0, 0, 0]


def test_a_clock_below_every_budget_still_draws_the_first():
    """An adaptive level of 1 or more gives up at once, which is at the first budget: f is reported as 1."""
    policy = SignalBudget(GRID, delta="0.25", drift="aci", share="1/1000")
    policy._clock = ((-inf,), (False,))
    assert policy.metrics()["f"] == 1
    batch = population(2, 0).prefix(np.array([0, 2]))
    assert not policy.designated(batch).any()
    assert policy.more(batch).tolist() == [2, 0]


def test_audit_tries_only_prompts_that_were_drawn():
    policy = SignalBudget(GRID, delta="0.25", share="1")
    policy.update(population(20, 0))
    assert policy.audit(population(5, 1, step=1).prefix(np.array([6, 0, 6, 0, 6])))["lost_group"][1] == 3


def test_a_prompt_drawn_once_counts_as_drawn():
    policy = SignalBudget((1, 2, 4), delta="0.25", share="1", window=20)
    policy.update(population(20, 0, width=4))
    assert policy.metrics()["f"] < inf
    once = population(3, 1, step=1, width=4).prefix(1)
    assert policy.audit(once)["lost_group"] == (0, 3)
    with pytest.raises(ValueError, match="3 calibration prompts cut off unresolved"):
        policy.update(once)


def test_the_class_of_a_prompt_is_read_from_what_was_drawn():
    policy = SignalBudget(GRID, by_first_outcome=True)
    batch = Outcomes([1, 2, 3, 4], np.array([[True] * 2, [True] * 2, [False] * 2, [True] * 2]), drawn=np.array([0, 1, 1, 2]))
    assert policy._class_of(batch).tolist() == [1, 0, 1, 0]


def test_the_clock_of_an_updated_step_is_the_one_before_it():
    policy = SignalBudget(GRID, delta="0.25", window=20)
    policy.update(population(20, 0))
    before = policy._clock
    policy.update(population(40, 1, step=1))
    assert policy._clock_of(1) == before and policy._clock_of(2) == policy._clock
    assert before[0] != before[1]


def test_the_smallest_window_a_level_allows():
    assert SignalBudget(GRID, delta="0.1", window=9).metrics()["f"] == inf
    with pytest.raises(ValueError, match="window: got 8; need 9"):
        SignalBudget(GRID, delta="0.1", window=8)


def test_a_stream_that_moves_the_clock_at_every_step_warns_of_nothing(recwarn):
    policy = SignalBudget(GRID, delta="0.25", window=20)
    for step in range(6):
        policy.update(population(30, step, step))
    assert not recwarn.list


def test_working_levels_are_told_by_class():
    names = set(SignalBudget(GRID, drift="aci", by_first_outcome=True).metrics())
    assert {"f_pass", "f_fail", "level_pass", "level_fail"} <= names
    assert {"f", "level"} <= set(SignalBudget(GRID, drift="aci").metrics())


@pytest.mark.parametrize("m", [True, False, 0, -1, 1.5, 1.0, "1", None])
def test_m_is_a_count(m):
    with pytest.raises(ValueError, match=r"^m: got .*; need an integer >= 1; because "):
        k_mix([[True, False]], m)
    assert k_mix([[True, False]], np.int8(1)).tolist() == [2]
