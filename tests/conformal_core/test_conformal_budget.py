import json
import warnings
from fractions import Fraction
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal_core.answers import encode_answers
from conformal_core.conformal_budget import ConformalBudget
from conformal_core.early import UntilFirstSuccess
from conformal_core.keys import uniforms
from conformal_core.level import conformal_rank
from conformal_core.outcomes import Outcomes
from conformal_core.policy import FixedBudget
from conformal_core.released import released_cgrpo
from conformal_core.replay import replay
from conformal_core.risk_control import RiskControl
from conformal_core.scores import APS, FirstSuccess, MassAbove, ReleasedAPS, Score
from conformal_core.thresholds import BudgetThresholds

CASES = [c for c in json.loads((Path(__file__).parents[1] / "data/vectors.json").read_text())["cases"] if c["kind"] == "stopping"]
GRID = (2, 4, 8)
SCORES = {"aps": APS, "inclusive": lambda: APS("inclusive"), "mass": MassAbove, "first": FirstSuccess, "released": ReleasedAPS}
POLICIES = [
    *({"score": name} for name in SCORES),
    {"score": "aps", "multiplicity": "bonferroni", "delta": "0.4"},
    {"score": "mass", "delta": "0.3"},
    {"score": "aps", "delta": "0.5"},
    {"score": "released", "split": False},
    {"score": "aps", "multiplicity": "risk_control", "delta": "0.2"},
    {"score": "aps", "multiplicity": "risk_control"},
    {"multiplicity": "risk_control", "statistic": "margin", "delta": "0.2"},
    {"score": "mass", "multiplicity": "max_rank", "delta": "0.3"},
    {"score": "mass", "multiplicity": "max_score", "delta": "0.3"},
    {"score": "mass", "multiplicity": "split_ecdf", "delta": "0.3"},
    {"score": "mass", "multiplicity": "split_ecdf"},
    {"multiplicity": "learn_then_test", "delta": "0.3", "gamma": "0.2"},
    {"multiplicity": "learn_then_test", "delta": "0.3", "gamma": "0.2", "risk": "wrong_given_stop", "statistic": "margin"},
]


def make(score="aps", **kwargs):
    return ConformalBudget(GRID, **({"score": SCORES[score](), "n_calibration": 40, "recalibrate_every": 3, "seed": 5} | kwargs))


def population(n, seed, step=0, width=8, law=(2.0, 1.0)):
    """Answer 0 is right with the prompt's own probability, else 1, 2 or nothing; ids are scattered."""
    rng = np.random.default_rng(seed)
    p = rng.beta(*law, size=(n, 1))
    codes = np.where(rng.random((n, width)) < p, 0, rng.choice([1, 1, 2, -1], size=(n, width)))
    return Outcomes(rng.integers(0, 2**63, n).astype(np.uint64), codes == 0, codes=codes, gold=np.zeros(n, np.int64), step=step)


def uncalibrated(policy, table):
    """What an uncalibrated policy, or one whose rule was set by hand, does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="calibration: got None")
        return replay(policy, table)


def rule(q, grid=GRID):
    return BudgetThresholds(grid, tuple(q), (1,) * len(grid), 9, Fraction(1, 2), Fraction(1, 2), (True,) * len(grid), "s", "per_budget", "")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_reference_cases(case, monkeypatch):
    i, want = case["input"], case["expected"]
    score = {"shared": APS(), "inclusive_level": APS("inclusive"), "released_q1_unanimity": ReleasedAPS()}[i["rule"]]
    codes, gold = encode_answers([i["samples"]], [i["gold"]])
    table = Outcomes(np.array([1], np.uint64), codes == gold[:, None], codes=codes, gold=gold)
    policy = ConformalBudget(i["budgets"], score=score)
    policy.stop_rule = rule([float(Fraction(i["q"][str(k)])) for k in i["budgets"]], tuple(i["budgets"]))
    monkeypatch.setattr(policy, "_u", lambda o: np.full(o.n, float(Fraction(i["U"]))))
    report = uncalibrated(policy, table)
    k = int(report.drawn[0])
    assert k == want["k_used"]
    final = table.prefix(k)
    assert policy.committed(final).tolist() == [int(codes[0, i["samples"].index(a)]) for a in want["committed"]]
    assert policy.audit(final)["false_stop"] == (int(want["wrong_commit"]), 1)
    share = Fraction(int(final.passes.sum()), k)
    assert share * (1 - share) == Fraction(want["reward_variance"])


class Recording(Score):
    """Delegates to a score and notes who was called with what."""

    def __init__(self, inner):
        self.inner, self.calls = inner, []
        self.name, self.needs_answers = inner.name, inner.needs_answers

    def gold_scores(self, outcomes, grid, u):
        self.calls.append(("gold_scores", u))
        return self.inner.gold_scores(outcomes, grid, u)

    def stop(self, outcomes, k, q, u):
        self.calls.append((k, q, u))
        return self.inner.stop(outcomes, k, q, u)


def test_the_rule_that_trains_is_the_rule_that_was_calibrated():
    score = Recording(APS())
    policy = ConformalBudget(GRID, score=score, delta="0.3", n_calibration=40)
    policy.calibrate(population(40, 0))
    calibrated = policy.stop_rule
    assert calibrated.score == score.name and [name for name, *_ in score.calls] == ["gold_scores"]
    score.calls.clear()
    batch = population(30, 1, step=4)
    replay(policy, batch, step=4)
    assert policy.stop_rule is calibrated
    assert {(k, q) for k, q, _ in score.calls} <= set(zip(GRID, calibrated.q, strict=True))
    np.testing.assert_array_equal(score.calls[0][2], uniforms(batch.prompt_ids, seed=0, step=4, stream="aps"))


@pytest.mark.parametrize("name", ["aps", "inclusive", "mass", "first"])
@pytest.mark.parametrize("q", [1.0, 1.5, inf])
def test_a_threshold_of_one_never_stops(name, q):
    policy = make(name)
    policy.stop_rule = rule([q] * 3)
    table = population(200, 3, law=(0.3, 0.3))
    assert (uncalibrated(policy, table).drawn == 8).all()
    assert (policy.committed(table) == -1).all()


@pytest.mark.parametrize("kwargs", POLICIES)
def test_nothing_stops_before_the_first_calibration(kwargs):
    report = uncalibrated(make(**kwargs), population(50, 3))
    assert (report.drawn == 8).all() and report.audit == {"false_stop": (0, 50)} and make(**kwargs).metrics() == {}


@pytest.mark.filterwarnings("ignore:(n|reference). got")
@pytest.mark.parametrize("kwargs", POLICIES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_resumed_policy_takes_the_same_decisions(kwargs, seed):
    policy = make(**kwargs)
    request = policy.calibration(0)
    early = kwargs.get("score") == "first" and kwargs.get("multiplicity") not in ("risk_control", "learn_then_test")
    assert request.n == 40 and isinstance(request.rollout, UntilFirstSuccess if early else FixedBudget) and request.rollout.k_max == 8
    policy.calibrate(population(40, seed))
    resumed = make(**kwargs)
    resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
    assert resumed.stop_rule == policy.stop_rule and resumed.metrics() == policy.metrics()
    for step in (1, 2, 3, 4):
        due = [p.calibration(step) is not None for p in (policy, resumed)]
        assert due == [step == 3] * 2
        if due[0]:
            policy.calibrate(population(40, seed + 1, step))
            resumed.calibrate(population(40, seed + 1, step))
        batch = population(20, seed + 2 + step)
        np.testing.assert_array_equal(replay(policy, batch, step).drawn, replay(resumed, batch, step).drawn)
    assert resumed.state_dict() == policy.state_dict()


@pytest.mark.filterwarnings("ignore:(n|reference). got")
@pytest.mark.parametrize("kwargs", POLICIES)
def test_decisions_ignore_order_batch_and_what_was_not_drawn(kwargs):
    policy, shuffled = make(**kwargs), make(**kwargs)
    calibration, batch = population(40, 0), population(60, 1, step=2)
    order = np.random.default_rng(2).permutation(40)
    policy.calibrate(calibration)
    shuffled.calibrate(calibration.take(order))
    assert policy.stop_rule == shuffled.stop_rule
    drawn = np.random.default_rng(3).choice(GRID, 60)
    seen = batch.prefix(drawn)
    asked = policy.more(seen)
    assert 0 < (asked == 0).sum() < 60 or kwargs.get("multiplicity") == "bonferroni"
    for rows in (np.random.default_rng(4).permutation(60), np.arange(7), np.array([], np.int64)):
        np.testing.assert_array_equal(policy.more(seen.take(rows)), asked[rows])
    unblanked = Outcomes(batch.prompt_ids, batch.passes, drawn=drawn, codes=batch.codes, gold=None, step=2)
    np.testing.assert_array_equal(policy.more(unblanked), asked)


def test_the_first_stop_counts_whatever_was_drawn_after_it():
    policy = make(delta="0.5")
    policy.calibrate(population(40, 0))
    batch = population(200, 1, law=(0.7, 0.7))
    final = batch.prefix(replay(policy, batch).drawn)
    assert (final.drawn < 8).any()
    np.testing.assert_array_equal(policy.committed(batch), policy.committed(final))
    assert policy.audit(batch) == policy.audit(final)


def test_climbs_the_grid():
    policy = make()
    assert policy.first(np.arange(3, dtype=np.uint64), 0).tolist() == [2, 2, 2]
    assert policy.more(population(4, 0).prefix(np.array([0, 2, 4, 8]))).tolist() == [2, 2, 4, 0]


def test_a_prompt_beyond_the_grid_asks_for_nothing():
    assert make().more(population(3, 0, width=11)).tolist() == [0, 0, 0]


def test_one_response_can_be_enough():
    policy = ConformalBudget((1, 2), score=MassAbove(), delta="0.5", n_calibration=9)
    policy.calibrate(Outcomes(np.arange(9), np.ones((9, 2), bool), codes=np.zeros((9, 2), int), gold=np.zeros(9, int)))
    assert policy.more(Outcomes([77], np.array([[True]]), codes=np.array([[0]]))).tolist() == [0]


def test_calibration_is_due_once_per_period():
    policy, due = make(recalibrate_every=50), []
    for step in range(120):
        if policy.calibration(step):
            assert policy.calibration(step) is not None  # asking moves no clock
            policy.calibrate(population(40, step, step=step))
            due.append(step)
    assert due == [0, 50, 100]


def test_auto_delta_uses_other_prompts_than_the_thresholds_only_if_split():
    table = population(41, 0, law=(1.0, 1.0))
    same, split = make(split=False), make()
    same.calibrate(table)
    split.calibrate(table)
    missed = 1 - Fraction(int(table.passes.any(axis=1).sum()), 41)
    assert same.delta == max(missed + Fraction(1, 20), Fraction(1, 20)) and same.stop_rule.n == 41
    assert same.stop_rule.guarantee.startswith("none: ") and split.stop_rule.guarantee.startswith("P(")
    assert split.stop_rule.n == 21 and (split.delta - Fraction(1, 20)) * 20 % 1 == 0
    assert same.stop_rule.ranks == (conformal_rank(41, same.delta),) * 3


def test_metrics_name_the_knobs():
    policy = make("mass", delta="0.3")
    policy.calibrate(population(40, 0))
    assert list(policy.metrics()) == ["delta", "q_2", "q_4", "q_8"] and policy.metrics()["delta"] == 0.3
    control = make(multiplicity="risk_control", delta="0.2")
    control.calibrate(population(40, 0))
    assert isinstance(control.stop_rule, RiskControl)
    assert control.metrics() == {"delta": 0.2, "lambda": float(control.stop_rule.lam)}


@pytest.mark.parametrize(
    "kwargs", [{"multiplicity": "risk_control", "delta": "0.4"}, {"score": "released"}, {"score": "first", "delta": "0.4"}]
)
def test_audit_counts_what_was_stopped_and_wrong(kwargs):
    policy = make(**kwargs)
    policy.calibrate(population(40, 0))
    batch = population(80, 1, law=(0.4, 0.4))
    final = batch.prefix(replay(policy, batch).drawn)
    wrong = int((policy.committed(final) > 0).sum())  # gold is 0, and -1 is no commitment
    stopped_early = (final.drawn < 8) & (policy.committed(final) < 0)
    assert not stopped_early.any()
    assert policy.audit(final)["false_stop"] == (wrong, 80)
    blind = Outcomes(final.prompt_ids, final.passes, drawn=final.drawn, codes=final.codes)
    assert policy.audit(blind)["false_stop"] == (wrong, 80)  # without gold, the verifier says which answer is right
    assert wrong > 0 or kwargs.get("score") == "first"


def test_a_score_without_answers_needs_none():
    policy = make("first", delta="0.4")
    assert not policy.needs_answers
    full = population(40, 0)
    policy.calibrate(Outcomes(full.prompt_ids, full.passes))
    report = replay(policy, Outcomes(full.prompt_ids, full.passes))
    assert report.audit["false_stop"] == (0, 40) and report.mean_k < 8
    assert make("first", multiplicity="risk_control").needs_answers


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"delta": "0.1", "n_calibration": 8}, r"n_calibration: got 8; need 9;"),
        ({"delta": "0.1", "n_calibration": 28, "multiplicity": "bonferroni"}, r"n_calibration: got 28; need 29;"),
        ({"delta": "0.1", "n_calibration": 8, "multiplicity": "risk_control"}, r"n_calibration: got 8; need 9;"),
        ({"delta": "0.1", "n_calibration": 8, "multiplicity": "max_score"}, r"n_calibration: got 8; need 9;"),
        ({"delta": "0.1", "n_calibration": 18, "multiplicity": "max_rank"}, r"n_calibration: got 18; need 19;"),
        ({"delta": "0.1", "n_calibration": 16, "multiplicity": "split_ecdf"}, r"n_calibration: got 16; need 17;"),
        ({"delta": "0.1", "n_calibration": 21, "multiplicity": "learn_then_test"}, r"n_calibration: got 21; need 22;"),
        ({"delta": "0.1", "n_calibration": 28, "multiplicity": "learn_then_test", "gamma": "0.05"}, r"n_calibration: got 28; need 29;"),
        (
            {"delta": "0.1", "n_calibration": 35, "multiplicity": "learn_then_test", "risk": "wrong_given_stop"},
            r"n_calibration: got 35; need 36;",
        ),
        ({"statistic": "margin"}, r"statistic: got 'margin'; need none;"),
        ({"multiplicity": "risk_control", "gamma": "0.1"}, r"gamma: got '0.1'; need none;"),
        ({"multiplicity": "risk_control", "risk": "wrong_stop"}, r"risk: got 'wrong_stop'; need none;"),
        ({"multiplicity": "risk_control", "statistic": "lead"}, r"statistic: got 'lead'; need one of"),
        ({"multiplicity": "learn_then_test", "risk": "wrong"}, r"risk: got 'wrong'; need one of"),
        ({"multiplicity": "learn_then_test", "gamma": "1"}, r"gamma: got '1'; need"),
        ({"n_calibration": 1}, r"n_calibration: got 1; need 2;"),
        ({"n_calibration": 0}, r"n_calibration: got 0; need"),
        ({"recalibrate_every": 0}, r"recalibrate_every: got 0; need"),
        ({"delta": "0"}, r"delta: got '0'; need"),
        ({"epsilon": "-1"}, r"epsilon: got '-1'; need"),
        ({"multiplicity": "none"}, r"multiplicity: got 'none'; need"),
    ],
)
def test_refusals(kwargs, message):
    with pytest.raises(ValueError, match=f"^{message}.* because "):
        ConformalBudget(GRID, **kwargs)
    with pytest.raises(ValueError, match=r"^grid: got .*; need .*; because "):
        ConformalBudget((4, 2))


def test_calibrate_and_load_refuse_what_does_not_fit():
    policy = make()
    with pytest.raises(ValueError, match=r"^outcomes: got .*; need 8 .*; because "):
        policy.calibrate(population(40, 0).prefix(4))
    with pytest.raises(ValueError, match=r"^state: got .*; need .*; because "):
        policy.load_state_dict(make("mass").state_dict())


def test_released_rule_is_the_reported_protocol():
    policy = released_cgrpo((2, 4), 20, 7, 3)
    assert isinstance(policy.score, ReleasedAPS) and policy.auto and not policy.split
    assert (policy.grid, policy.n_calibration, policy.recalibrate_every, policy.seed) == ((2, 4), 20, 7, 3)
    policy.stop_rule = rule([1.0, 1.0], (2, 4))
    unanimous = Outcomes(np.arange(2, dtype=np.uint64), np.zeros((2, 2), bool), codes=np.array([[1, 1], [0, 1]]))
    assert policy.more(unanimous).tolist() == [0, 2]  # at a threshold of 1 it stops on unanimity


def test_split_ecdf_takes_its_scale_from_the_prompts_that_chose_delta_or_from_half():
    auto, fixed = make("mass", multiplicity="split_ecdf"), make("mass", multiplicity="split_ecdf", delta="0.3")
    for policy in (auto, fixed):
        policy.calibrate(population(41, 0))
        assert (policy.stop_rule.n_reference, policy.stop_rule.n) == (20, 21)
    same = make("mass", multiplicity="split_ecdf", split=False)
    same.calibrate(population(41, 0))
    assert (same.stop_rule.n_reference, same.stop_rule.n) == (20, 21) and same.stop_rule.guarantee.startswith("none: ")


@pytest.mark.parametrize("statistic", ["top_share", "margin"])
@pytest.mark.parametrize("kwargs", [{"multiplicity": "risk_control"}, {"multiplicity": "learn_then_test", "risk": "wrong_given_stop"}])
def test_knob_rules_stop_where_their_calibration_counted_stops(kwargs, statistic):
    """The rule that was calibrated is the rule that stops: its own count of wrong stops is that of the policy on the same prompts."""
    policy, table = make(delta="0.3", statistic=statistic, n_calibration=40, **kwargs), population(40, 0)
    policy.calibrate(table)
    wrong, _ = policy.audit(table)["false_stop"]
    rule = policy.stop_rule
    assert rule.statistic == statistic
    if kwargs["multiplicity"] == "learn_then_test":
        assert (wrong, int((policy.committed(table) >= 0).sum())) == (rule.wrong, rule.stops) and rule.stops > 0
    else:
        assert Fraction(wrong + 1, 41) <= rule.risk <= rule.delta


def test_joint_rules_save_more_than_bonferroni_where_budgets_agree():
    table, saved = population(120, 0, law=(4.0, 1.0)), {}
    for rule in ("bonferroni", "max_rank", "max_score", "split_ecdf"):
        policy = make("mass", multiplicity=rule, delta="0.2", n_calibration=120)
        policy.calibrate(population(120, 1, law=(4.0, 1.0)))
        saved[rule] = replay(policy, table).savings
    assert saved["max_rank"] > saved["bonferroni"] and saved["max_score"] > saved["bonferroni"]


def test_audit_reads_only_the_responses_the_stop_saw():
    """Without gold, an answer accepted only after the stop was not known to be right at the stop; a stop at one response counts."""
    for grid in ((1, 2, 4), (2, 4)):
        policy = ConformalBudget(grid, score=MassAbove(), delta="0.5", n_calibration=9)
        policy.stop_rule = rule((0.5,) * len(grid), grid)
        accepted = np.arange(4) >= grid[0]
        table = Outcomes([1, 2], np.array([accepted, ~accepted]), codes=np.zeros((2, 4), np.int64))
        assert policy.audit(table) == {"false_stop": (1, 2)}
