"""The budget policy calibrates at the cost its score allows: until the first success, nested, after an alarm, from the stream."""

import json
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal_core.auto_delta import auto_delta, auto_delta_upper, disjoint_split
from conformal_core.budget_calibration import AutoDelta
from conformal_core.conformal_budget import ConformalBudget
from conformal_core.early import UntilFirstSuccess
from conformal_core.level import conformal_rank
from conformal_core.martingale import DriftMonitor
from conformal_core.nested import NestedRollout, NestedThresholds
from conformal_core.outcomes import Outcomes
from conformal_core.policy import FixedBudget
from conformal_core.replay import replay
from conformal_core.schedule import first_stage_passes
from conformal_core.scores import APS, FirstSuccess, MassAbove
from conformal_core.stream import StreamCalibrated

GRID = (2, 4, 8)
JOINT = ["per_budget", "bonferroni", "max_rank", "split_ecdf", "max_score"]
SHARES = (1, "1/2", "1/4")


def budget(**kwargs):
    return ConformalBudget(GRID, **({"n_calibration": 40, "seed": 3} | kwargs))


def table(n, seed, step=0, law=(1.14, 0.86), width=8):
    rng = np.random.default_rng([seed, step])
    codes = np.where(rng.random((n, width)) < rng.beta(*law, size=(n, 1)), 0, rng.integers(1, 4, (n, width)))
    return Outcomes(rng.integers(0, 2**63, n).astype(np.uint64), codes == 0, codes=codes, gold=np.zeros(n, np.int64), step=step)


def drawn_by(rollout, full):
    """What a rollout leaves of full groups, the opposite verdict standing in every cell it did not draw."""
    drawn = replay(rollout, full, full.step).drawn
    live = np.arange(full.width) < drawn[:, None]
    return Outcomes(full.prompt_ids, np.where(live, full.passes, ~full.passes), drawn=drawn, step=full.step)


@pytest.mark.filterwarnings("ignore:(n|reference). got")
@pytest.mark.parametrize("multiplicity", JOINT)
@settings(deadline=None)
@given(
    passes=arrays(np.bool_, st.tuples(st.integers(2, 40), st.integers(8, 10))),
    delta=st.sampled_from(["auto", "2/5", "3/4"]),
    auto=st.sampled_from([None, "clopper_pearson"]),
    split=st.booleans(),
    convention=st.sampled_from(["failure_above_success", "paper"]),
    cut=st.booleans(),
)
def test_early_stopped_calibration_gives_the_rule_of_full_groups(multiplicity, passes, delta, auto, split, convention, cut):
    policies = [
        budget(
            score=FirstSuccess(convention), delta=delta, multiplicity=multiplicity, split=split, auto_rule=auto if delta == "auto" else None
        )
        for _ in range(2)
    ]
    full = Outcomes(np.arange(len(passes), dtype=np.uint64) * 77, passes, step=5)
    cheap = drawn_by(policies[0].calibration(5).rollout, full)
    policies[0].calibrate(cheap.prefix(cheap.drawn).take(np.arange(cheap.n)) if cut else cheap)
    policies[1].calibrate(full)
    assert policies[0].stop_rule == policies[1].stop_rule and policies[0].delta == policies[1].delta
    assert policies[0].state_dict() == policies[1].state_dict()


def test_groups_that_all_stopped_at_once_are_narrow():
    policy = budget(score=FirstSuccess(), delta="1/2")
    policy.calibrate(Outcomes(np.arange(4, dtype=np.uint64), np.array([[True, False]] * 4)))
    assert policy.stop_rule.q == (0.5, 0.25, 0.125)


def test_what_is_drawn_to_calibrate():
    assert isinstance(budget(score=FirstSuccess()).calibration(0).rollout, UntilFirstSuccess)
    for policy in (
        budget(),
        budget(score=FirstSuccess(), multiplicity="risk_control"),
        budget(score=FirstSuccess(), multiplicity="learn_then_test", delta="0.3"),
    ):
        rollout = policy.calibration(0).rollout
        assert isinstance(rollout, FixedBudget) and rollout.k_max == 8
    request = budget(recalibrate_every=7).calibration(0)
    assert (request.n, request.reason) == (40, "stopping rule of step 0: first calibration")


def test_replay_counts_what_early_stopped_calibration_drew():
    policy, pool = budget(score=FirstSuccess(), delta="0.3"), table(40, 0)
    report = replay(policy, table(30, 1), calibration=pool)
    assert report.calibration_rollouts == replay(UntilFirstSuccess(GRID), pool).drawn.sum() < 40 * 8
    full = budget(score=FirstSuccess(), delta="0.3")
    full.calibrate(pool)
    assert policy.stop_rule == full.stop_rule


@pytest.mark.filterwarnings("ignore:n. got")
@pytest.mark.parametrize("kwargs", [{"delta": "0.3"}, {}, {"delta": "0.4", "multiplicity": "max_rank"}], ids=str)
def test_first_success_from_the_stream_through_replay(kwargs):
    """The rule after every step is that of full groups of the window's prompts, though none of them was drawn beyond its needs."""
    policy = StreamCalibrated(budget(score=FirstSuccess(), **kwargs), share="1/4", seed=9)
    designated = []

    tables = [table(25, 4, step, law=(3.0, 1.0)) for step in range(8)]
    for step, full in enumerate(tables):
        chosen = policy.designated(full.prompt_ids, step)
        order = np.argsort(full.prompt_ids)
        designated += [full.take(order[i : i + 1]) for i in range(full.n) if chosen[order[i]]]
        report = replay(policy, full, step, learn=True)
        assert report.calibration_rollouts == 0
        assert (UntilFirstSuccess(GRID).known(full.prefix(report.drawn)) | ~chosen).all()
        if len(designated) < 40:
            assert policy.policy.stop_rule is None
            continue
        window = designated[-40:]
        offline = budget(score=FirstSuccess(), **kwargs)
        offline.calibrate(Outcomes(np.concatenate([w.prompt_ids for w in window]), np.concatenate([w.passes for w in window]), step=step))
        assert policy.policy.stop_rule == offline.stop_rule
    assert chosen.sum() < 25 and (report.drawn[~chosen] < 8).any()


def test_delta_from_the_solve_rate_at_the_last_budget_by_either_rule():
    full, ids = table(41, 0, law=(1.0, 1.0)), None
    solved = int(full.passes.any(axis=1).sum())
    for rule, expected in (
        (None, auto_delta(solved, 41)),
        ("epsilon", auto_delta(solved, 41)),
        ("clopper_pearson", auto_delta_upper(solved, 41)),
    ):
        policy = budget(split=False, auto_rule=rule)
        policy.calibrate(full)
        assert policy.delta == policy.stop_rule.delta == expected
    split = budget(auto_rule="clopper_pearson")
    split.calibrate(full)
    ids = np.argsort(full.prompt_ids)
    first = ids[disjoint_split(41, seed=(3, 0))[0]]
    assert split.delta == auto_delta_upper(int(full.passes[first].any(axis=1).sum()), 20)
    assert auto_delta(solved, 41) != auto_delta_upper(solved, 41)


def nested(**kwargs):
    return budget(**({"delta": "0.3", "nested": SHARES, "score": MassAbove()} | kwargs))


@pytest.mark.parametrize("multiplicity", ["per_budget", "bonferroni"])
@pytest.mark.parametrize("score", [APS(), MassAbove()], ids=repr)
def test_nested_calibration_ranks_each_budget_among_the_prompts_assigned_to_it(multiplicity, score):
    policy = nested(score=score, multiplicity=multiplicity, n_calibration=60, delta="0.6")
    request, full = policy.calibration(4), table(60, 2, 4)
    assert isinstance(request.rollout, NestedRollout)
    assigned = request.rollout.first(full.prompt_ids, 4)
    policy.calibrate(full.prefix(assigned))
    rule = policy.stop_rule
    assert isinstance(rule, NestedThresholds) and rule.n == tuple(int((assigned >= k).sum()) for k in GRID) and rule.n[0] == 60
    level = Fraction(3, 5) / (3 if multiplicity == "bonferroni" else 1)
    assert rule.level == level and rule.ranks == tuple(conformal_rank(n, level) for n in rule.n)
    u = policy._u(full)
    for j, k in enumerate(GRID):
        scores = np.sort(score.gold_scores(full.take(assigned >= k), (k,), u[assigned >= k])[:, 0])
        assert rule.q[j] == scores[rule.ranks[j] - 1]
    resumed = nested(score=score, multiplicity=multiplicity, n_calibration=60, delta="0.6")
    resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
    assert resumed.stop_rule == rule and resumed.metrics() == policy.metrics() == {"delta": 0.6} | dict(
        zip(("q_2", "q_4", "q_8"), rule.q, strict=True)
    )
    batch = table(50, 6, 5)
    np.testing.assert_array_equal(replay(resumed, batch, 5).drawn, replay(policy, batch, 5).drawn)
    more = full.prefix(np.maximum(assigned, 4))  # drawn for another reason: not read
    policy.calibrate(more)
    assert policy.stop_rule == rule


def test_replay_counts_what_nested_calibration_drew():
    policy, pool = nested(), table(40, 0)
    report = replay(policy, table(30, 1), calibration=pool)
    assert report.calibration_rollouts == NestedRollout(GRID, SHARES, 3).first(pool.prompt_ids, 0).sum() < 40 * 8
    assert "NestedThresholds" in str(policy.state_dict()["rule"]) and policy.stop_rule.n[0] == 40


def test_nested_calibration_from_the_stream():
    policy = StreamCalibrated(nested(), share="1/2")
    for step in range(4):
        replay(policy, table(25, 4, step), step, learn=True)
    rule = policy.policy.stop_rule
    assert rule.n[0] == 40 > rule.n[1] > rule.n[2] >= 3


def test_an_alarm_makes_a_calibration_due_before_the_clock_does():
    policy, resumed = (budget(score=FirstSuccess(), delta="0.3", alarm="0.05", recalibrate_every=1000) for _ in range(2))
    monitor = DriftMonitor("0.05")
    policy.calibrate(table(40, 0, law=(1.0, 8.0)))
    monitor.restart(first_stage_passes(table(40, 0, law=(1.0, 8.0)), 2))
    step = 0
    while policy.calibration(step := step + 1) is None:
        policy.update(table(25, 1, step, law=(8.0, 1.0)).prefix(4))
        resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        assert resumed.metrics() == policy.metrics() and "drift_evidence" in policy.metrics()
    assert 1 < step < 8
    assert policy.calibration(step).reason == resumed.calibration(step).reason == f"stopping rule of step {step}: drift alarm at level 1/20"
    policy.calibrate(table(40, 0, step, law=(8.0, 1.0)))
    assert policy.calibration(step + 1) is None and policy.metrics()["drift_evidence"] == 0
    assert "drift_evidence" not in budget().metrics()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"nested": SHARES}, r"nested: got .*automatic delta"),
        ({"nested": SHARES, "delta": "0.3", "score": FirstSuccess()}, r"nested: got .*first-success"),
        ({"nested": ("1/2", "1/2", "1/4"), "delta": "0.3"}, r"nested: got .*first share is 1"),
        ({"nested": SHARES, "delta": "0.2", "n_calibration": 15}, r"nested: got .* of 15 prompts, 3 at the last budget; need 4 there"),
        ({"nested": SHARES, "delta": "0.2", "multiplicity": "bonferroni"}, r"nested: got .* of 40 prompts, 10 at the last budget; need 14"),
        ({"nested": (1, "1/2"), "delta": "0.3"}, r"shares: got"),
        *(
            ({"nested": SHARES, "delta": "0.3", "multiplicity": rule}, rf"nested: got .*'{rule}' reads every prompt")
            for rule in (*JOINT[2:], "risk_control", "learn_then_test")
        ),
        ({"auto_rule": "wilson"}, r"auto_rule: got 'wilson'; need"),
        ({"auto_rule": "clopper_pearson", "epsilon": "0.1"}, r"epsilon: got '0.1'; need none"),
        ({"auto_rule": "epsilon", "delta": "0.3"}, r"auto_rule: got 'epsilon'; need none"),
        ({"alarm": "1"}, r"\w+: got '1'; need"),
    ],
)
def test_refusals(kwargs, message):
    with pytest.raises(ValueError, match=rf"^{message}") as error:
        budget(**kwargs)
    assert "; need " in str(error.value) and "; because " in str(error.value)


def test_exactly_enough_prompts_are_enough():
    assert nested(delta="0.2", n_calibration=16).calibration(0).n == 16  # 4 at the last budget, and 4 are needed
    assert budget(delta="0.2", n_calibration=4).calibration(0).n == 4
    assert budget(n_calibration=2).calibration(0).n == 2 and budget(n_calibration=1, split=False).calibration(0).n == 1


@pytest.mark.parametrize("seed", [0, 3, -1, 2**63 + 5, 2**64 - 1, 2**64 + 3])
def test_the_split_is_keyed_by_seed_and_step(seed):
    """The prompts that give the thresholds are those of the documented split, of rows sorted by id."""
    full = table(41, 0, 7, law=(1.0, 2.0))
    policy = budget(score=MassAbove(), seed=seed)
    policy.calibrate(full)
    rows = np.argsort(full.prompt_ids)[disjoint_split(41, seed=(seed % 2**64, 7))[1]]
    scores = np.sort(MassAbove().gold_scores(full.take(rows), GRID, np.zeros(21)), axis=0)
    assert policy.stop_rule.n == 21
    assert policy.stop_rule.ranks[0] <= 21 and policy.stop_rule.q == tuple(scores[policy.stop_rule.ranks[0] - 1])


CONFIGURATIONS = [
    {},
    {"score": MassAbove()},
    {"score": FirstSuccess()},
    {"delta": "0.3"},
    {"delta": "0.4"},
    {"split": False},
    {"epsilon": "0.1"},
    {"auto_rule": "clopper_pearson"},
    {"seed": 4},
    {"delta": "0.3", "multiplicity": "max_score"},
    {"delta": "0.3", "multiplicity": "risk_control"},
    {"delta": "0.3", "multiplicity": "risk_control", "statistic": "margin"},
    {"delta": "0.3", "multiplicity": "learn_then_test"},
    {"delta": "0.3", "multiplicity": "learn_then_test", "gamma": "0.2"},
    {"delta": "0.3", "multiplicity": "learn_then_test", "risk": "wrong_given_stop"},
    {"delta": "0.3", "nested": SHARES},
    {"delta": "0.3", "nested": (1, "1/2", "1/3")},
    {"alarm": "0.05"},
]


def test_a_state_loads_under_its_own_arguments_alone():
    for i, saved in enumerate(CONFIGURATIONS):
        state = json.loads(json.dumps(budget(**saved).state_dict()))
        for j, other in enumerate(CONFIGURATIONS):
            if i == j:
                budget(**other).load_state_dict(state)
                continue
            with pytest.raises(ValueError, match=r"^state: got .*; need .*; because "):
                budget(**other).load_state_dict(state)


def test_how_delta_is_chosen_cannot_be_changed_behind_its_back():
    with pytest.raises(AttributeError):
        AutoDelta.of(None, None, True).split = False


def test_outcomes_that_do_not_determine_a_score_are_refused():
    full = table(40, 0, law=(0.5, 2.0))
    for policy, seen in (
        (budget(score=FirstSuccess()), full.prefix(4)),
        (budget(score=FirstSuccess()), full.take(np.zeros(0, np.int64))),
        (nested(), full.prefix(4)),
        (budget(), drawn_by(UntilFirstSuccess(GRID), full)),
    ):
        with pytest.raises(ValueError, match=r"^outcomes: got .*; need .*; because "):
            policy.calibrate(seen)
        assert policy.stop_rule is None and policy.calibration(0) is not None
    with pytest.raises(ValueError, match=r"^policy: got an alarm of its own .*; need .*; because "):
        StreamCalibrated(budget(alarm="0.05"))
    unsolved = Outcomes(np.arange(40, dtype=np.uint64), np.zeros((40, 8), bool))
    policy = budget(score=FirstSuccess(), delta="0.3")
    policy.calibrate(unsolved)
    assert policy.stop_rule.q == (inf,) * 3
