import json
from fractions import Fraction
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.conformal_budget import ConformalBudget
from conformal_core.intervals import share_interval
from conformal_core.laws import clopper_pearson
from conformal_core.outcomes import NOT_DRAWN, Outcomes
from conformal_core.policy import CalibrationRequest, FixedBudget, RolloutPolicy
from conformal_core.replay import ReplayReport, replay
from conformal_core.scores import FirstSuccess
from conformal_core.signal import SignalBudget
from tests.strategies import outcomes

COUNTS = [
    "early_stops", "early_with_variance", "stops", "wrong_stops", "lost_groups", "groups_with_variance",
    "solvable", "solvable_kept", "positives", "positives_kept",
]  # fmt: skip


def table(n, width=8, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, 3, (n, width))
    return Outcomes(rng.integers(0, 2**63, n).astype(np.uint64), codes == 0, codes=codes, gold=np.zeros(n, np.int64))


class OneByOne(RolloutPolicy):
    """Draws until the first success; skips prompts with an odd id; notes what it was shown."""

    def __init__(self, k_max, greed=1):
        self.k_max, self.greed, self.seen = k_max, greed, []

    def first(self, prompt_ids, step):
        return (prompt_ids % np.uint64(2) == 0).astype(np.int64)

    def more(self, outcomes):
        self.seen.append(outcomes)
        return np.where(outcomes.passes.any(axis=1) | (outcomes.drawn >= self.k_max), 0, self.greed)

    def audit(self, outcomes):
        return {"unsolved": (int((~outcomes.passes.any(axis=1)).sum()), outcomes.n), "never_tried": (0, 0)}

    def keep(self, outcomes):
        return np.ones(outcomes.passes.shape, bool)  # replay counts no response that was not drawn


class Scripted(RolloutPolicy):
    """Draws ``counts[i]`` responses, one first, and keeps every other one if told so."""

    def __init__(self, k_max, counts, thin=False):
        self.k_max, self.counts, self.thin = k_max, np.asarray(counts), thin

    def first(self, prompt_ids, step):
        return np.minimum(self.counts, 1)

    def more(self, outcomes):
        return self.counts[self.counts > 0] - outcomes.drawn if (outcomes.drawn == 1).all() else np.zeros(outcomes.n, np.int64)

    def keep(self, outcomes):
        return outcomes.live & (np.arange(outcomes.width) % 2 == 0) if self.thin else outcomes.live


@given(st.integers(1, 30), st.integers(0, 99))
def test_draws_what_the_policy_would_have_drawn_alone(n, seed):
    full = table(n, seed=seed)
    policy = OneByOne(8)
    report = replay(policy, full, step=5)
    for i, row in enumerate(full.passes):
        alone = 0 if full.prompt_ids[i] % 2 else (int(row.argmax()) + 1 if row.any() else 8)
        assert report.drawn[i] == alone
    assert len(policy.seen) <= 8  # rounds, not prompts
    for shown in policy.seen:
        assert shown.step == 5
        assert (shown.codes[~shown.live] == NOT_DRAWN).all() and not shown.passes[~shown.live].any()
        assert (shown.drawn == shown.drawn[0]).all()  # a prompt that stopped is not asked about again
    assert report.mean_k == report.drawn.mean() and report.savings == 1 - report.mean_k / 8
    unsolved = sum(not row[:k].any() for row, k in zip(full.passes, report.drawn, strict=True))
    assert report.audit == {"unsolved": (unsolved, n), "never_tried": (0, 0)}
    assert report.intervals["unsolved"] == clopper_pearson(unsolved, n) and report.intervals["never_tried"] == (0, 1)


@given(outcomes(max_n=6, widths=(2, 9), full=True), st.booleans(), st.data())
def test_every_count_is_that_of_a_loop_over_prompts(full, thin, data):
    k_max = data.draw(st.integers(1, full.width))
    counts = np.array(data.draw(st.lists(st.integers(0, k_max), min_size=full.n, max_size=full.n)))
    policy = Scripted(k_max, counts, thin)
    report = replay(policy, full)
    want = dict.fromkeys(COUNTS, 0)
    mass, full_mass = Fraction(0), Fraction(0)
    for i, row in enumerate(full.passes.tolist()):
        k, row = int(counts[i]), row[:k_max]
        kept = row[:k:2] if thin else row[:k]
        varied, mixed, early = len(set(kept)) == 2, len(set(row)) == 2, 0 < k < k_max
        want["early_stops"] += early
        want["early_with_variance"] += early and varied
        want["stops"] += early
        want["wrong_stops"] += early and not any(row[:k])
        want["lost_groups"] += mixed and not varied
        want["groups_with_variance"] += varied
        want["solvable"] += any(row)
        want["solvable_kept"] += any(kept)
        want["positives"] += sum(row)
        want["positives_kept"] += sum(kept)
        mass += Fraction(sum(kept) * (len(kept) - sum(kept)), max(len(kept), 1))
        full_mass += Fraction(sum(row) * (k_max - sum(row)), k_max)
    assert {name: getattr(report, name) for name in want} == want
    assert (report.n, report.k_max, report.steps, report.calibration_rollouts) == (full.n, k_max, 1, 0)
    if full_mass:
        assert report.gradient_mass == pytest.approx(float(mass / full_mass), rel=1e-12, abs=0)
    else:
        assert np.isnan(report.gradient_mass) and np.isnan(report.fixed_gradient_mass)
    for name in ("wrong_stops", "lost_groups", "groups_with_variance"):
        assert report.intervals[name] == clopper_pearson(want[name], full.n)


@given(st.integers(1, 20), st.integers(0, 99), st.integers(0, 8), st.integers(0, 8))
def test_the_rival_is_a_fixed_budget_of_the_same_mean(n, seed, low, high):
    full = table(n, seed=seed)
    counts = np.where(np.arange(n) < n // 2, low, high)
    report = replay(Scripted(8, counts), full)
    below = int(report.mean_k)
    part = report.mean_k - below
    ends = [replay(Scripted(8, np.full(n, k)), full) for k in (below, min(below + 1, 8))]
    for rival, name in (("fixed_groups_with_variance", "groups_with_variance"), ("fixed_gradient_mass", "gradient_mass")):
        one, two = (getattr(end, name) for end in ends)
        np.testing.assert_allclose(getattr(report, rival), (1 - part) * one + part * two, rtol=1e-12, atol=1e-12)


def test_a_committed_answer_decides_what_a_wrong_stop_is():
    passes = np.array([[True, False, False, False]] * 4)
    codes = np.array([[0, 1, 1, 1]] * 4)
    full = Outcomes(np.arange(4, dtype=np.uint64), passes, codes=codes, gold=np.zeros(4, np.int64))

    class Commits(Scripted):
        def committed(self, outcomes):
            return np.array([0, 1, -1, 7])

    policy = Commits(4, [2, 2, 2, 2])
    report = replay(policy, full)
    assert (report.stops, report.wrong_stops) == (4, 2)  # by gold: 0 right, 1 wrong, nothing named but solved, 7 never seen
    blind = Outcomes(full.prompt_ids, full.passes, codes=full.codes)
    assert replay(policy, blind).wrong_stops == 2
    assert replay(policy, Outcomes(full.prompt_ids, full.passes)).wrong_stops == 0  # without codes: all saw a success
    at_the_end = replay(Commits(4, [4, 4, 4, 4]), full)
    assert (at_the_end.early_stops, at_the_end.stops, at_the_end.wrong_stops) == (0, 3, 2)  # an answer may be named at k_max


def test_fixed_budget():
    report = replay(FixedBudget(4), table(20))
    assert report.drawn.tolist() == [4] * 20 and report.savings == 0 and report.audit == {}
    assert report.gradient_mass == report.fixed_gradient_mass == 1
    assert report.groups_with_variance == report.fixed_groups_with_variance and report.lost_groups == report.early_stops == 0


class Asks(FixedBudget):
    """Asks for three prompts, one response each, every second step; notes the protocol."""

    def __init__(self):
        super().__init__(4)
        self.log = []

    def calibration(self, step):
        return CalibrationRequest(3, FixedBudget(1)) if step % 2 == 0 else None

    def calibrate(self, outcomes):
        self.log.append(("calibrate", outcomes.step, outcomes.n, int(outcomes.drawn.sum()), frozenset(outcomes.prompt_ids.tolist())))

    def audit(self, outcomes):
        self.log.append(("audit", outcomes.step))
        return {"event": (1, outcomes.n)}

    def update(self, outcomes):
        self.log.append(("update", outcomes.step))


def test_several_steps_follow_the_protocol_of_training():
    policy, observed, tables = Asks(), [], [table(5, seed=s) for s in range(4)]
    pool = table(50, seed=9)
    report = replay(
        policy, (t for t in tables), step=6, calibration=pool, learn=True, observe=lambda o: observed.append((o.step, o.prompt_ids[0]))
    )
    assert [entry[:2] for entry in policy.log] == [
        ("calibrate", 6), ("audit", 6), ("update", 6), ("audit", 7), ("update", 7),
        ("calibrate", 8), ("audit", 8), ("update", 8), ("audit", 9), ("update", 9),
    ]  # fmt: skip
    first, second = (entry for entry in policy.log if entry[0] == "calibrate")
    assert first[2:4] == second[2:4] == (3, 3) and first[4] != second[4]
    assert first[4] | second[4] <= set(pool.prompt_ids.tolist())
    assert observed == [(6 + i, t.prompt_ids[0]) for i, t in enumerate(tables)]
    assert (report.n, report.steps, report.calibration_rollouts) == (20, 4, 6)
    assert report.audit == {"event": (4, 20)}
    assert report.savings == 0 and report.savings_with_calibration == -6 / 80
    width = sqrt(log(2 / 0.05) / 40)
    np.testing.assert_allclose(report.intervals["event"], (0, 0.2 + width))
    np.testing.assert_allclose(report.intervals["mean_k"], (4 * (1 - width), 4))
    quiet = Asks()
    replay(quiet, tables, calibration=lambda n, step: pool.take(np.arange(n)))
    assert not [entry for entry in quiet.log if entry[0] == "update"]
    assert [entry[4] for entry in quiet.log if entry[0] == "calibrate"] == [frozenset(pool.prompt_ids[:3].tolist())] * 2


def test_without_learning_or_calibration_the_policy_is_left_as_it_was():
    policy = SignalBudget((2, 4, 8), delta="0.5", window=4, share="1")
    before = policy.state_dict()
    replay(policy, table(20))
    assert policy.state_dict() == before
    replay(policy, table(20), learn=True)
    assert policy.state_dict() != before


def test_an_uncalibrated_policy_says_so():
    policy = ConformalBudget((4, 8), score=FirstSuccess(), delta="0.4", n_calibration=20)
    with pytest.warns(UserWarning, match=r"^calibration: got None; need a source of 20 prompts; because "):
        assert replay(policy, table(30)).savings == 0
    report = replay(policy, [table(30), table(30, seed=1)], calibration=table(60, seed=2))
    assert report.savings > 0 and report.calibration_rollouts == 92  # 20 prompts, once, 17 of which passed within 4
    assert report.savings_with_calibration == pytest.approx(report.savings - 92 / (60 * 8), abs=1e-12)


def test_intervals_of_savings_mirror_mean_k():
    report = replay(OneByOne(8), table(300), level="0.9")
    low, high = report.intervals["mean_k"]
    assert 0 < low < report.mean_k < high < 8 and report.level == Fraction(9, 10)
    np.testing.assert_allclose(report.intervals["savings"], (1 - high / 8, 1 - low / 8))
    assert report.intervals["savings_with_calibration"] == report.intervals["savings"]
    assert replay(OneByOne(8), table(1)).intervals["mean_k"] == (0, 8)


@pytest.mark.parametrize("tables", [table(9), [table(3), table(4)], Outcomes(np.arange(2, dtype=np.uint64), np.zeros((2, 8), bool))])
def test_json_round_trip(tables):
    report = replay(OneByOne(8), tables)
    again = ReplayReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False)))
    for name, value in vars(report).items():
        np.testing.assert_equal(getattr(again, name), value)
        assert type(getattr(again, name)) is type(value)


def test_refusals():
    for small in (table(3, width=4), table(0)):
        with pytest.raises(ValueError, match=r"^table: got .*; need 8 .*; because "):
            replay(FixedBudget(8), small)
    with pytest.raises(ValueError, match=r"^table: got no tables; need .*; because "):
        replay(FixedBudget(8), [])
    for greed in (9, -1, 0.5):
        with pytest.raises(ValueError, match=r"^policy: got .*; need .*; because "):
            replay(OneByOne(7, greed=greed), table(30, width=9))
    with pytest.raises(ValueError, match=r"^policy: got .* of shape \(3,\); need .*\(4,\); because "):
        replay(Scripted(8, [2, 2, 2]), table(4))
    for pool in (table(2), table(9, width=0)):
        with pytest.raises(ValueError, match=r"^calibration: got .*; need .*; because "):
            replay(Asks(), table(4), calibration=pool)
    with pytest.raises(ValueError, match=r"^level: "):
        replay(FixedBudget(8), table(3), level=95)


def test_one_yardstick_for_policies_of_different_reach():
    full = table(40, width=9)
    report, own = replay(FixedBudget(4), full, k_max=9), replay(FixedBudget(4), full)
    assert (report.k_max, report.savings, report.early_stops, report.stops) == (9, 1 - 4 / 9, 0, 0)  # a full group of its own
    mixed = full.passes.any(axis=1) & ~full.passes.all(axis=1)
    assert report.lost_groups == mixed.sum() - own.groups_with_variance > own.lost_groups == 0
    assert report.gradient_mass == report.fixed_gradient_mass < own.gradient_mass == 1
    np.testing.assert_allclose(report.intervals["mean_k"], 4 + 9 * 7 * log(80) / (3 * 39) * np.array([-1, 1]))
    with pytest.raises(ValueError, match=r"^k_max: got 3; need at least 4; because "):
        replay(FixedBudget(4), full, k_max=3)
    with pytest.raises(ValueError, match=r"^table: got .*; need 10 "):
        replay(FixedBudget(4), full, k_max=10)


def test_a_rule_across_prompts_sees_the_whole_batch():
    """With ``whole_batch`` a prompt may wait and be drawn later; without it, a prompt at rest is not asked about again."""

    class OneAtATime(FixedBudget):
        def __init__(self, k: int, whole: bool) -> None:
            super().__init__(k)
            self.whole_batch = whole
            self.shown: list[int] = []

        def first(self, prompt_ids, step):
            return np.where(np.arange(len(prompt_ids)) == 0, self.k_max, 0)

        def more(self, outcomes):
            self.shown.append(outcomes.n)
            waiting = np.flatnonzero(outcomes.drawn == 0)[:1]
            extra = np.zeros(outcomes.n, np.int64)
            extra[waiting] = self.k_max
            return extra

    table = Outcomes(np.arange(3, dtype=np.uint64), np.ones((3, 2), bool))
    whole, rest = OneAtATime(2, True), OneAtATime(2, False)
    assert replay(whole, table).drawn.tolist() == [2, 2, 2]
    assert whole.shown == [3, 3, 3]
    assert replay(rest, table).drawn.tolist() == [2, 0, 0]
    assert rest.shown == [1]


def test_a_request_beyond_k_max_in_total_is_refused():
    with pytest.raises(ValueError, match="policy: got requests from 8 up to a total of 9 responses; need 0 or more, at most 8 in total"):
        replay(OneByOne(8, greed=8), Outcomes([2, 4], np.zeros((2, 8), bool)).prefix(8))


def test_an_empty_table_is_refused_by_its_size():
    with pytest.raises(ValueError, match="table: got 0 prompts with at least 0 responses; need 8 responses of at least 1 prompts"):
        replay(FixedBudget(8), Outcomes([], np.zeros((0, 8), bool)))


@pytest.mark.parametrize(
    ("steps", "method", "words"),
    [
        (1, "clopper-pearson; mean k: empirical bernstein", "prompts drawn independently from one law, policy fixed before them"),
        (2, "azuma-hoeffding", "the average over prompts of the probability given the past"),
    ],
)
def test_intervals_are_those_of_one_step_or_of_an_adaptive_sequence(steps, method, words):
    report = replay(FixedBudget(8), [table(30, seed=seed) for seed in range(steps)])
    assert report.method == method and words in report.guarantee
    for name in ("wrong_stops", "lost_groups", "groups_with_variance"):
        assert report.intervals[name] == share_interval(getattr(report, name), 30 * steps, "0.95", adaptive=steps > 1)
