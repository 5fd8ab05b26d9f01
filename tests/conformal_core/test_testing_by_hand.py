"""The public checks on examples given by hand instead of searched: what just passes, what just fails, and what they ask."""

from __future__ import annotations

import inspect
import random
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

import conformal_core.testing as checks
from conformal_core import APS, FirstSuccess, FixedBudget, MassAbove, Outcomes, RolloutPolicy, conformal_quantile
from conformal_core.score import Score
from conformal_core.sets import AnswerSets
from conformal_core.testing import (
    check_calibrator,
    check_coverage_law,
    check_exchangeability,
    check_inclusion,
    check_joint_calibrator,
    check_rollout_policy,
    check_score,
    check_sub_additivity,
    outcome_tables,
)

HALF = Fraction(1, 2)


@pytest.fixture
def ask(monkeypatch):
    """Runs a check on the given examples alone; returns the words of its refusal, or None."""

    def ask(check, *arguments, examples, **options):
        monkeypatch.setattr(checks, "_searching", lambda max_examples: lambda test: test)
        monkeypatch.setattr(checks, "given", lambda *searched: lambda test: lambda: [test(*example) for example in examples])
        monkeypatch.setattr(checks, "_SIZES", ())
        try:
            check(*arguments, **options)
        except AssertionError as refused:
            return str(refused)
        return None

    return ask


def ours(scores, delta):
    return conformal_quantile(scores, delta).value


def table(codes, **fields):
    """Full groups in which answer 0 is gold and the verifier knows it."""
    codes = np.array(codes)
    held = {"passes": codes == 0, "codes": codes, "gold": np.zeros(len(codes), np.int64)} | fields
    return Outcomes(np.arange(len(codes), dtype=np.uint64), **held)


def test_what_the_checks_search_if_nothing_is_said():
    assert {
        name: {p.name: p.default for p in inspect.signature(getattr(checks, name)).parameters.values() if p.default is not p.empty}
        for name in checks.__all__
        if name.startswith("check_")
    } == {
        "check_calibrator": {"tight": False, "max_examples": 200},
        "check_coverage_law": {"alpha": "1/1000"},
        "check_exchangeability": {"width": 4, "max_examples": 100},
        "check_inclusion": {"thresholds": (0.0, 0.999), "max_examples": 200},
        "check_joint_calibrator": {"budgets": 2, "max_examples": 200},
        "check_rollout_policy": {"max_examples": 100},
        "check_score": {"grid": (1, 2, 4), "max_examples": 150},
        "check_sub_additivity": {"budgets": 2, "max_examples": 200},
    }


@settings(max_examples=25, derandomize=True, database=None, deadline=None)
@given(outcome_tables(max_n=3, width=5, answers=4))
def test_tables_are_full_and_answer_zero_alone_is_gold_and_passes(o):
    assert 2 <= o.n <= 3 and o.width == 5 and o.live.all() and -1 <= o.codes.min() <= o.codes.max() <= 3
    np.testing.assert_array_equal(o.passes, o.codes == 0)
    assert not o.gold.any() and len(set(o.prompt_ids.tolist())) == o.n


# ---- calibrators


@pytest.mark.parametrize(
    ("threshold", "delta", "said"),
    [
        (0.0, HALF, None),  # just covers
        (1.0, HALF, None),
        (0.0, Fraction(49, 100), "coverage of the scores [0.0, 1.0] at delta = 49/100 is 1/2; need at least 51/100"),
        (-1.0, HALF, "coverage of the scores [0.0, 1.0] at delta = 1/2 is 0; need at least 1/2"),
    ],
)
def test_a_threshold_that_just_covers_and_one_that_does_not(ask, threshold, delta, said):
    assert ask(check_calibrator, lambda s, d: threshold, examples=[([0.0, 1.0], delta)]) == said


def test_the_scores_found_are_asked_and_as_many_distinct_ones(ask):
    seen = []

    def everything(scores, delta):
        seen.append((scores.tolist(), delta))
        return np.inf

    assert ask(check_calibrator, everything, examples=[([5.0, 7.0, 5.0], HALF)]) is None
    assert seen == [(s, HALF) for s in ([7.0, 5.0], [5.0, 5.0], [5.0, 7.0], [1.0, 2.0], [0.0, 2.0], [0.0, 1.0])]


def test_only_distinct_scores_are_held_to_the_exact_coverage_and_only_if_asked(ask):
    def generous(s, d):
        return np.inf if s[0] == 5 else ours(s, d)

    def two(s, d):
        return 2.0

    refusal = "coverage of the distinct scores [0.0, 1.0, 2.0] at delta = 1/2 is 1; need 2/3"
    for tight in (True, False):
        assert ask(check_calibrator, generous, tight=tight, examples=[([5.0] * 3, HALF)]) is None
        assert ask(check_calibrator, two, tight=tight, examples=[([2.0] * 3, HALF)]) == (refusal if tight else None)
    for n in range(1, 7):
        every = [([float(i) for i in range(n + 1)], Fraction(j, 20)) for j in range(1, 20)]
        assert ask(check_calibrator, ours, tight=True, examples=every) is None


# ---- joint calibrators


@pytest.mark.parametrize(
    ("q", "delta", "said"),
    [
        ([0.0, 3.0], HALF, None),
        ([1.0, 2.0], HALF, None),
        ([0.0, 3.0], Fraction(49, 100), "joint coverage of [[0.0, 3.0], [1.0, 2.0]] at delta = 49/100 is 1/2; need 51/100"),
        ([0.0, 2.0], HALF, "joint coverage of [[0.0, 3.0], [1.0, 2.0]] at delta = 1/2 is 0/2; need 1/2"),
        ([1.0, 3.0], HALF, None),
        ([1.0], HALF, "thresholds of shape (1,) for [[0.0, 3.0], [1.0, 2.0]]; need one per budget, (2,)"),
    ],
)
def test_thresholds_that_just_cover_together_and_some_that_do_not(ask, q, delta, said):
    assert ask(check_joint_calibrator, lambda s, d: q, examples=[([[0.0, 3.0], [1.0, 2.0]], delta)]) == said


def test_each_prompt_is_left_out_of_its_calibration(ask):
    seen = []

    def everything(scores, delta):
        seen.append((scores.tolist(), delta))
        return np.full(3, np.inf)

    rows = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
    assert ask(check_joint_calibrator, everything, budgets=3, examples=[(rows, HALF)]) is None
    assert seen == [([r for r in rows if r is not left], HALF) for left in rows]


@pytest.mark.parametrize("budgets", [1, 2, 3])
def test_every_budget_gets_its_part_of_the_level(ask, budgets):
    seen = []

    def everything(scores, delta):
        seen.append((scores.tolist(), delta))
        return np.inf

    rows = [[float(10 * i + j) for j in range(budgets)] for i in range(2)]
    assert ask(check_sub_additivity, everything, budgets=budgets, examples=[(rows, HALF)]) is None
    assert seen == [([rows[i][j]], HALF / budgets) for i in (1, 0) for j in range(budgets)]


# ---- exchangeability


class Order:
    """Deals the prompts in the order given."""

    def __init__(self, *order):
        self.order = order

    def sample(self, population, k):
        assert list(population) == list(range(k)) and k == len(self.order)
        return list(self.order)


THREE = table([[0, 1], [1, 1], [2, 0]])


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (lambda o: o.codes[:, 0].astype(float), None),
        (lambda o: np.where(o.codes[:, 0] == 1, np.nan, 1.0), None),  # not known, and so wherever the prompt stands
        (lambda o: o.codes, None),
        (lambda o: np.arange(float(o.n)), "scores of answers [[0, 1], [1, 1], [2, 0]] (0 is gold) change in the order [2 0 1]"),
        (lambda o: np.full(o.n, o.n), "scores of answers [[0, 1], [1, 1], [2, 0]] (0 is gold) differ from those of each prompt alone"),
    ],
)
def test_scores_of_prompts_dealt_anew_and_one_by_one(ask, scores, said):
    assert ask(check_exchangeability, scores, examples=[(THREE, Order(2, 0, 1))]) == said


# ---- scores


class Told(Score):
    """Scores and stops as told, for each prompt by the first answer it drew."""

    name, needs_answers = "told", True

    def __init__(self, scores, stops=lambda o, k, q: (np.zeros(o.n, bool), np.full(o.n, -1))):
        self.scores, self.stops, self.asked = scores, stops, []

    def gold_scores(self, outcomes, grid, u):
        return np.tile(np.array([self.scores[int(a)] for a in outcomes.codes[:, 0]], float)[:, None], (1, len(grid)))

    def stop(self, outcomes, k, q, u):
        self.asked.append((outcomes.n, k, q, np.asarray(u).tolist()))
        return self.stops(outcomes, k, q)


@pytest.fixture
def ask_score(ask, monkeypatch):
    """Runs :func:`check_score` at the budget 2 on one example, its test of exchangeability aside."""

    def ask_score(score, o, delta=HALF, other=0.25, gold=0, **options):
        monkeypatch.setattr(checks, "check_exchangeability", lambda scores, **kwargs: None)
        return ask(check_score, score, examples=[(o, delta, other, gold)], **({"grid": (2,)} | options))

    return ask_score


#: Two prompts of four responses; the first answers differ, the gold is among those of the first prompt only.
TWO = table([[0, 0, 1, 1], [1, 2, 0, 1]])


def test_the_scores_are_asked_at_every_threshold_seen_at_one_and_at_infinity(ask_score):
    score = Told({0: 0.5, 1: 0.75})
    assert ask_score(score, TWO) is None
    coins = checks._coins(TWO).tolist()
    for q in (0.25, 0.5, 0.75, 1.0, np.inf):
        together = [entry for entry in score.asked if entry[2] == q]
        assert sorted(together) == sorted([(2, 2, q, coins)] * 2 + [(1, 2, q, [u]) for u in coins])
    assert {q for *_, q, _ in score.asked} == {0.25, 0.5, 0.75, 1.0, np.inf}


def test_exchangeability_is_asked_at_the_largest_budget(monkeypatch, ask):
    asked = []
    monkeypatch.setattr(checks, "check_exchangeability", lambda scores, **kwargs: asked.append((scores(TWO).tolist(), kwargs)))
    assert ask(check_score, Told({0: 0.5, 1: 0.75}), grid=(1, 2, 4), max_examples=7, examples=[]) is None
    assert asked == [([[0.5] * 3, [0.75] * 3], {"width": 4, "max_examples": 7})]


@pytest.mark.parametrize("delta", [HALF, Fraction(2, 3), Fraction(1, 3)])
def test_coverage_that_just_suffices_and_ties(ask_score, delta):
    """One of two distinct scores is above the other, which is what delta = 1/2 allows; equal ones are not above each other."""
    assert ask_score(Told({0: 0.5, 1: 0.75}), TWO, delta) is None
    assert ask_score(Told({0: 0.5, 1: 0.5}), TWO, delta) is None


def test_coverage_that_falls_short_is_refused(ask_score, monkeypatch):
    monkeypatch.setattr(checks, "conformal_quantile", lambda scores, delta: SimpleNamespace(value=float(np.min(scores)) - 1))
    got = ask_score(Told({0: 0.5, 1: 0.5}), TWO)
    assert got == f"coverage at budget 2 of {checks._show(TWO)}, delta = 1/2: 2/2 missed"


def stops(when, answer=lambda o, k, q: np.zeros(o.n, np.int64)):
    """Where ``when`` says so, with ``answer``; -1 elsewhere."""

    def decide(o, k, q):
        stop = np.broadcast_to(when(o, k, q), o.n)
        return stop, np.where(stop, answer(o, k, q), -1)

    return decide


LOW = {0: 0.1, 1: 0.1}  # below every other threshold
HIGH = {0: 0.9, 1: 0.9}
SHOWN = "answers [[0, 0, 1, 1], [1, 2, 0, 1]] (0 is gold)"


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (stops(lambda o, k, q: q < 1), None),
        (stops(lambda o, k, q: q < 0.2), None),
        (lambda o, k, q: (np.zeros(o.n, bool), np.arange(o.n) + 10 * o.n), None),  # what it names without a stop is not read
        (lambda o, k, q: (np.zeros(o.n, bool), o.codes[:, -1]), None),
        (stops(lambda o, k, q: (q < 1) & (o.n == 1)), "depends on place or company, or is drawn anew"),
        (stops(lambda o, k, q: (q < 1) & (o.n == 2)), "depends on place or company, or is drawn anew"),
        (stops(lambda o, k, q: (q < 1) & (np.arange(o.n) == 0)), "depends on place or company, or is drawn anew"),
        (stops(lambda o, k, q: q < 1, lambda o, k, q: np.full(o.n, o.n - 2)), "depends on place or company, or is drawn anew"),
        (stops(lambda o, k, q: (q < 1) & (o.codes[:, 2] == 1)), "depends on responses after the first 2"),
        (stops(lambda o, k, q: q < 1, lambda o, k, q: (o.codes[:, 3] != 1).astype(int)), "depends on responses after the first 2"),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_a_stop_is_that_of_the_prompt_alone_from_what_it_drew(ask_score, decide, said):
    """The stops are right, so that nothing else is found in them."""
    got = ask_score(Told(LOW, decide), TWO, other=0.25)
    assert got is said if said is None else got.startswith("a stop at budget 2, q = ") and got.endswith(f" of {SHOWN} {said}")


@pytest.mark.parametrize("where", [1.0, np.inf])
def test_a_right_stop_where_unsampled_answers_are_in_the_set(ask_score, where):
    got = ask_score(Told(LOW, stops(lambda o, k, q: q == where)), TWO)
    assert got == f"{SHOWN} stops at budget 2 with q = {where}, where every unsampled answer is in the set"


@pytest.mark.parametrize(
    ("scores", "decide", "sound"),
    [
        (HIGH, stops(lambda o, k, q: q == 0.25, lambda o, k, q: np.ones(o.n, int)), True),  # wrong, and above the threshold
        (HIGH, stops(lambda o, k, q: q == 0.9, lambda o, k, q: np.ones(o.n, int)), False),  # wrong at the score itself
        (LOW, stops(lambda o, k, q: q == 0.25, lambda o, k, q: np.ones(o.n, int)), False),
        (LOW, stops(lambda o, k, q: (q == 0.25) & (o.codes[:, 0] == 1), lambda o, k, q: np.ones(o.n, int)), False),
        (LOW, stops(lambda o, k, q: q == 0.25, lambda o, k, q: o.codes[:, 0]), False),  # one of two is wrong
        (LOW, stops(lambda o, k, q: q == 0.25), True),  # right
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_a_wrong_stop_needs_a_score_above_the_threshold(ask_score, scores, decide, sound):
    got = ask_score(Told(scores, decide), TWO)
    assert (
        got is None
        if sound
        else got.startswith("a wrong stop at budget 2, q = ") and got.endswith("the gold score is within the threshold")
    )


def test_the_gold_is_whichever_answer_is_named_so(ask_score):
    """Answers are renamed; a stop on what then is gold is right, one on 0 is not."""
    for gold in (0, 1, 2):
        every = dict.fromkeys(range(3), 0.1)
        right = Told(every, stops(lambda o, k, q: q == 0.25, lambda o, k, q: o.gold))
        assert ask_score(right, TWO, gold=gold) is None
        got = ask_score(Told(every, stops(lambda o, k, q: q == 0.25)), TWO, gold=gold)
        assert (got is None) == (gold == 0)


def test_without_answers_the_verifier_says_which_stop_is_right(ask_score):
    """Accepted responses whose code is not gold, within the budget and after it."""
    o = table([[1, 1, 1, 1], [1, 1, 1, 1]], passes=np.array([[True, False, False, False], [False, True, False, False]]))
    assert ask_score(FirstSuccess(), o, other=0.999) is None
    late = table([[1, 1, 1, 1], [1, 1, 1, 1]], passes=np.array([[True, False, False, False], [False, False, True, False]]))
    assert ask_score(FirstSuccess(), late, other=0.999) is None
    third = table([[1, 1, 1], [1, 1, 1], [1, 1, 1]], passes=np.array([[True, False, False], [False, True, False], [False, False, True]]))
    assert ask_score(FirstSuccess(), third, other=0.999) is None  # budgets and prompts in other numbers
    by_verifier = Told(LOW, stops(lambda o, k, q: q == 0.25))
    by_verifier.needs_answers = False
    assert ask_score(by_verifier, o) is None
    assert ask_score(by_verifier, late).startswith("a wrong stop at budget 2, q = 0.25")


def test_a_score_that_reads_later_responses_is_found_at_the_budget_where_it_does(ask_score):
    class Later(Told):
        def gold_scores(self, outcomes, grid, u):
            return super().gold_scores(outcomes, grid, u) + (outcomes.codes[:, -1:] == 1) * np.array([k == 2 for k in grid])

    got = ask_score(Later({0: 0.1, 1: 0.2}), TWO, grid=(1, 2, 4))
    assert got == f"the score at budget 2 of {SHOWN} depends on responses after the first 2"
    assert ask_score(Later({0: 0.1, 1: 0.2}), TWO, grid=(1, 4)) is None


@pytest.mark.parametrize("score", [APS(), APS("inclusive"), MassAbove()], ids=repr)
def test_examples_by_hand_hold_for_the_scores_of_this_package(ask_score, score):
    for gold, other in product(range(3), (0.25, 0.5, 0.999)):
        assert ask_score(score, TWO, other=other, gold=gold, grid=(1, 2, 4)) is None


# ---- inclusion


@pytest.mark.parametrize("inner", list(product([False, True], repeat=2)))
@pytest.mark.parametrize("outer", list(product([False, True], repeat=2)))
def test_sampled_and_unsampled_answers_of_the_inner_set_are_in_the_outer_one(ask, inner, outer):
    def rule(held):
        return lambda codes, k, q, u: AnswerSets(codes[:, :k], np.full((len(codes), k), held[0]), np.full(len(codes), held[1]))

    got = ask(check_inclusion, rule(inner), rule(outer), examples=[(TWO, 2, 0.5, 0.25)])
    if all(b or not a for a, b in zip(inner, outer, strict=True)):
        assert got is None
    else:
        assert got == "answers [[0, 0], [1, 2]] at q = 0.5, u = 0.25: an answer of the inner set is not in the outer one"


# ---- policies


class Notes(RolloutPolicy):
    """One response at a time from ``start``, and notes of what was asked of any copy of it."""

    k_max = 3

    def __init__(self, start=1, goal=3):
        self.start, self.goal, self.steps, self.drawn, self.updates = start, goal, [], [], []

    def first(self, prompt_ids, step):
        self.steps.append(step)
        return np.full(len(prompt_ids), self.start)

    def more(self, outcomes):
        self.drawn.append(outcomes.drawn.tolist())
        return np.where(outcomes.drawn < self.goal, 1, 0)

    def update(self, outcomes):
        assert isinstance(outcomes, Outcomes)
        self.updates.append(outcomes.drawn.tolist())
        self.steps.append("update")


@pytest.mark.parametrize(("start", "goal"), [(0, 3), (1, 3), (0, 1), (2, 3), (3, 3), (2, 2)])
def test_a_policy_is_asked_until_it_wants_no_more_and_is_shown_the_end(ask, start, goal):
    made = []

    def make():
        made.append(Notes(start, goal))
        return made[-1]

    assert ask(check_rollout_policy, make, examples=[(THREE_BY_THREE, Order(1, 2, 0))]) is None
    policy = made[1]  # the first gave k_max
    steps = [step for step, before in zip(policy.steps, [None, *policy.steps], strict=False) if step != before]
    assert steps == [0, "update", 1]
    assert policy.updates == [[goal] * 3]
    together = [d[0] for d in policy.drawn if len(d) == 3]
    runs = [d for d, before in zip(together, [None, *together], strict=False) if d != before]
    way = list(range(start, goal + 1))
    assert runs == [*way, *(way if len(way) > 1 else []), *([start] if len(way) > 1 else [])]


THREE_BY_THREE = table([[0, 1, 2], [1, 1, 0], [2, 0, -1]])


class Asks(Notes):
    """``more`` as told, by the number drawn."""

    def __init__(self, *more, start=0):
        super().__init__(start)
        self.told = np.array(more)

    def more(self, outcomes):
        return self.told[outcomes.drawn]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((1, 1, 1, 0), None),
        ((3, 0, 0, 0), None),
        ((2, 9, 1, 0), None),  # what it would say of a prompt that never stands there is not asked
        ((0, 9, 9, 9), None),
        ((-1, 0, 0, 0), "more: asks for [-1, -1, -1] at [0, 0, 0] of 3"),
        ((1, -1, 0, 0), "more: asks for [-1, -1, -1] at [1, 1, 1] of 3"),
        ((4, 0, 0, 0), "more: asks for [4, 4, 4] at [0, 0, 0] of 3"),
        ((1, 1, 1, 1), "more: asks for [1, 1, 1] at [3, 3, 3] of 3"),
        ((1, 1, 2, 0), "more: asks for [2, 2, 2] at [2, 2, 2] of 3"),
        ((0.5, 0, 0, 0), "more: asks for [0.5, 0.5, 0.5]; need whole responses"),
    ],
)
def test_a_policy_asks_for_whole_responses_up_to_the_largest_budget(ask, more, said):
    assert ask(check_rollout_policy, lambda: Asks(*more), examples=[(THREE_BY_THREE, Order(1, 2, 0))]) == said


@pytest.mark.parametrize(("start", "sound"), [(0, True), (3, True), (-1, False), (4, False)])
def test_a_policy_begins_with_up_to_the_largest_budget(ask, start, sound):
    got = ask(check_rollout_policy, lambda: Asks(0, 0, 0, 0, start=start), examples=[(THREE_BY_THREE, Order(1, 2, 0))])
    assert got is None if sound else got == f"first: asks for {[start] * 3}; need 0 to k_max = 3"


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (lambda o: o.live, None),
        (lambda o: np.zeros(o.passes.shape, bool), None),
        (lambda o: o.live & o.passes, None),
        (lambda o: np.ones(o.passes.shape, bool), "keep: holds responses of "),
        (lambda o: (~o.live) & (o.drawn[:, None] > 1), "keep: holds responses of "),
        (lambda o: o.live & (o.codes[:, -1:] == 0), "keep: reads undrawn responses of "),
    ],
)
def test_a_policy_keeps_responses_that_were_drawn(ask, kept, said):
    class Keeps(Notes):
        def keep(self, outcomes):
            return kept(outcomes)

    got = ask(check_rollout_policy, Keeps, examples=[(THREE_BY_THREE, Order(1, 2, 0))])
    assert got is None if said is None else got.startswith(said)


def test_a_policy_that_comes_to_answer_otherwise_is_found_later(ask):
    """It forgets what it said of one response once it has seen three."""

    class Late(Notes):
        late = False

        def more(self, outcomes):
            self.late |= bool((outcomes.drawn == 3).any())
            return np.where((outcomes.drawn == 1) & self.late, 2, np.where(outcomes.drawn < 3, 1, 0))

        def state_dict(self):
            return {"late": self.late}

        def load_state_dict(self, state):
            self.late = state["late"]

    got = ask(check_rollout_policy, Late, examples=[(THREE_BY_THREE, Order(1, 2, 0))])
    assert got == f"more: answers differently when asked later about {checks._show(THREE_BY_THREE.prefix(1))}"


def test_a_policy_that_answers_otherwise_after_an_update_is_asked_then(ask):
    """A restart forgets the update, so the restored policy disagrees about the prompts as they were first seen."""

    class Forgets(Notes):
        def more(self, outcomes):
            return np.where(outcomes.drawn < (2 if self.updates else 3), 1, 0)

    assert ask(check_rollout_policy, lambda: Forgets(2), examples=[(THREE_BY_THREE, Order(1, 2, 0))]) == (
        f"state_dict: more of a restored policy differs on {checks._show(THREE_BY_THREE.prefix(2))}"
    )


def test_examples_by_hand_hold_for_a_policy_of_this_package(ask):
    assert ask(check_rollout_policy, lambda: FixedBudget(3), examples=[(THREE_BY_THREE, random.Random(0))]) is None


# ---- the law of the coverage


@pytest.mark.parametrize(("below", "above", "p"), [(0.25, 0.9, 0.5), (0.9, 0.25, 0.5), (0.7, 0.6, 1.0), (0.5, 0.5, 1.0), (0.0, 1.0, 0.0)])
def test_a_coverage_is_as_improbable_as_twice_its_smaller_tail(monkeypatch, below, above, p):
    asked = []
    law = SimpleNamespace(cdf=lambda x: asked.append(("cdf", x)) or below, sf=lambda x: asked.append(("sf", x)) or above)
    monkeypatch.setattr(checks, "betabinomial_hits", lambda m, n, delta: law)
    for alpha in (Fraction(1, 4), HALF, Fraction(3, 4), Fraction(999, 1000)):
        asked.clear()
        if p >= alpha:
            check_coverage_law(7, 10, 9, "1/5", alpha=alpha)
        else:
            with pytest.raises(
                AssertionError, match=rf"^7 of 10 covered: probability {p:.1e} under the law of n = 9, delta = 1/5$".replace("+", r"\+")
            ):
                check_coverage_law(7, 10, 9, "1/5", alpha=alpha)
        assert asked == [("cdf", 7), ("sf", 6)]


def test_the_gold_shown_is_that_of_the_first_prompt():
    assert checks._show(table([[0], [1]], gold=np.array([1, 2]))) == "answers [[0], [1]] (1 is gold)"


@pytest.mark.parametrize(("gold", "other"), [(0, 1), (1, 2), (2, 0)])
def test_what_was_not_drawn_becomes_another_answer(gold, other):
    o = table([[0, 1, 2, gold]], gold=np.array([gold]))
    flipped = checks._flip_unseen(o, np.array([0])).codes[0].tolist()
    assert flipped == [other if a == gold else gold for a in (0, 1, 2, gold)]
