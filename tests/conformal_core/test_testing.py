"""The public checks pass on the objects of this package and fail on broken ones."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from conformal_core import (
    APS,
    ConformalBudget,
    FirstSuccess,
    FixedBudget,
    MassAbove,
    Outcomes,
    PassRate,
    ReleasedAPS,
    RolloutPolicy,
    SignalBudget,
    UntilMixed,
    conformal_quantile,
    inclusive_set,
    mass_above_set,
    max_rank,
    max_score,
    randomized_set,
)
from conformal_core.laws import betabinomial_hits
from conformal_core.testing import (
    _coins,
    _flip_unseen,
    _renamed,
    _searching,
    _show,
    check_calibrator,
    check_coverage_law,
    check_exchangeability,
    check_inclusion,
    check_joint_calibrator,
    check_rollout_policy,
    check_score,
    check_sub_additivity,
)

quiet = pytest.mark.filterwarnings("ignore::UserWarning")


def ours(scores, delta):
    return conformal_quantile(scores, delta).value


def naive_rank(scores, delta, change):
    n = len(scores)
    rank = change(n, n + 1 - (delta.numerator * (n + 1)) // delta.denominator)
    return math.inf if rank > n else np.sort(scores)[max(rank, 1) - 1]


def float_rank(scores, delta):
    rank = math.ceil((len(scores) + 1) * (1.0 - float(delta)))
    return math.inf if rank > len(scores) else np.sort(scores)[rank - 1]


CALIBRATORS = {
    "rank off by one": lambda n, rank: rank - 1,
    "min instead of +inf": min,
    "n instead of n + 1": lambda n, rank: math.ceil(rank * n / (n + 1)),
}


def test_calibrators():
    check_calibrator(ours, tight=True)
    check_sub_additivity(ours)
    for rank in CALIBRATORS.values():
        with pytest.raises(AssertionError, match="coverage of the scores"):
            check_calibrator(lambda s, d, rank=rank: naive_rank(s, d, rank))
    with pytest.raises(AssertionError, match="need at least"):  # < for <=
        check_calibrator(lambda s, d: np.nextafter(ours(s, d), -math.inf))
    with pytest.raises(AssertionError, match="need at least"):  # a threshold in single precision
        check_calibrator(lambda s, d: float(np.float32(ours(s, d))))
    with pytest.raises(AssertionError, match="need at least"):  # too low with many prompts only
        check_calibrator(lambda s, d: naive_rank(s, d, lambda n, rank: rank - (n > 8)))
    with pytest.raises(AssertionError, match="need at least"):  # scores below 0 forgotten
        check_calibrator(lambda s, d: ours(s, d) if (s >= 0).all() else -math.inf)
    check_calibrator(float_rank)  # never too low: valid, though one rank too high at n = 9, delta = .7
    with pytest.raises(AssertionError, match="distinct scores"):
        check_calibrator(float_rank, tight=True)
    check_calibrator(lambda s, d: math.inf)
    with pytest.raises(AssertionError, match="distinct scores"):
        check_calibrator(lambda s, d: math.inf, tight=True)


def test_joint_calibrators():
    check_joint_calibrator(lambda s, d: max_rank(s, d).q)
    check_joint_calibrator(lambda s, d: max_score(s, d).q, budgets=3)
    with pytest.raises(AssertionError, match="joint coverage"):
        check_joint_calibrator(lambda s, d: max_rank(s, d, corrected=False).q)
    with pytest.raises(AssertionError, match="joint coverage"):  # infinite scores left out
        check_joint_calibrator(lambda s, d: [ours(f, d) if len(f := s.max(axis=1)[np.isfinite(s).all(axis=1)]) else math.inf] * 2)
    with pytest.raises(AssertionError, match="one per budget"):
        check_joint_calibrator(lambda s, d: math.inf)
    with pytest.raises(AssertionError, match="joint coverage"):  # one level per budget
        check_joint_calibrator(lambda s, d: [ours(s[:, j], d) for j in range(2)])
    with pytest.raises(AssertionError, match="joint coverage"):
        check_sub_additivity(lambda s, d: ours(s, min(2 * d, 1 - d / 2)))


@pytest.mark.parametrize("score", [APS(), APS("inclusive"), MassAbove(), FirstSuccess(), FirstSuccess("paper"), PassRate()], ids=repr)
def test_scores_pass(score):
    check_score(score, max_examples=30)


class StopsAtOne(APS):
    def stop(self, outcomes, k, q, u):
        return super().stop(outcomes, k, min(q, 0.999), u)


class LooksAhead(MassAbove):
    def gold_scores(self, outcomes, grid, u):
        s = super().gold_scores(outcomes, grid, u)
        return np.minimum(s, s[:, -1:])


class RanksInTheBatch(MassAbove):
    def gold_scores(self, outcomes, grid, u):
        s = super().gold_scores(outcomes, grid, u)
        return s.argsort(axis=0).argsort(axis=0) / len(s)


class CallOrder(APS):
    def gold_scores(self, outcomes, grid, u):
        return super().gold_scores(outcomes, grid, np.linspace(0, 1, outcomes.n))


class AnotherScoreStops(APS):
    """Calibrates u * phat, stops as Eq. 8 does."""

    def gold_scores(self, outcomes, grid, u):
        return super().gold_scores(outcomes, grid, u) / 2


class StopsOnTheTop(MassAbove):
    """Commits to the most frequent answer whatever the set holds."""

    def stop(self, outcomes, k, q, u):
        n = outcomes.n
        return (np.full(n, q < 1), outcomes.codes[:, 0])


class StopsByPlace(MassAbove):
    def stop(self, outcomes, k, q, u):
        stop, answer = super().stop(outcomes, k, q, u)
        return stop & (np.arange(outcomes.n) < 1), answer


class StopLooksAhead(MassAbove):
    def stop(self, outcomes, k, q, u):
        stop, answer = super().stop(outcomes, k, q, u)
        return stop & (outcomes.codes[:, -1] == answer), answer


class TheGoldIsZero(MassAbove):
    """Scores answer 0, whichever is gold."""

    def gold_scores(self, outcomes, grid, u):
        return super().gold_scores(replace(outcomes, gold=np.zeros(outcomes.n, np.int64)), grid, u)


class TiesByItsOwnStream(MassAbove):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def gold_scores(self, outcomes, grid, u):
        s = super().gold_scores(outcomes, grid, u)
        return s + 1e-9 * self.rng.random(s.shape)


class StopDraws(TiesByItsOwnStream):
    gold_scores = MassAbove.gold_scores

    def stop(self, outcomes, k, q, u):
        stop, answer = super().stop(outcomes, k, q, u)
        return stop & (self.rng.random(outcomes.n) < 0.5), answer


class TiesById(MassAbove):
    """Unusual and sound: ties are broken by the prompt's id."""

    def gold_scores(self, outcomes, grid, u):
        s = super().gold_scores(outcomes, grid, u)
        return np.where(s < 1, s + 1e-12 * (outcomes.prompt_ids % np.uint64(97)).astype(float)[:, None], s)


class NeverStops(MassAbove):
    def stop(self, outcomes, k, q, u):
        return np.zeros(outcomes.n, bool), np.full(outcomes.n, -1)


@pytest.mark.parametrize("score", [TiesById(), NeverStops()], ids=repr)
def test_unusual_scores_pass(score):
    check_score(score, max_examples=30)


BROKEN = [
    StopsByPlace(), StopLooksAhead(), TheGoldIsZero(), TiesByItsOwnStream(), StopDraws(), ReleasedAPS(),
    StopsAtOne(), LooksAhead(), RanksInTheBatch(), CallOrder(), AnotherScoreStops(), StopsOnTheTop(),
]  # fmt: skip


@pytest.mark.parametrize("score", BROKEN, ids=lambda score: type(score).__name__)
def test_broken_scores_fail(score):
    with pytest.raises(AssertionError):
        check_score(score, grid=(1, 3), max_examples=60)


def test_exchangeability():
    check_exchangeability(lambda o: 1 - o.passes.mean(axis=1), max_examples=40)
    call_order = np.random.default_rng(0).random(9)
    for broken in (lambda o: np.arange(float(o.n)), lambda o: o.passes.mean(axis=1) - o.passes.mean(), lambda o: call_order[: o.n]):
        with pytest.raises(AssertionError):
            check_exchangeability(broken)


def test_inclusion_of_set_rules():
    def inclusive(codes, k, q, u):
        return inclusive_set(codes, k, q)

    def mass_above(codes, k, q, u):
        return mass_above_set(codes, k, q)

    check_inclusion(randomized_set, inclusive, max_examples=60)
    check_inclusion(inclusive, mass_above, max_examples=60)
    with pytest.raises(AssertionError, match="not in the outer one"):
        check_inclusion(inclusive, randomized_set)
    with pytest.raises(AssertionError, match="not in the outer one"):
        check_inclusion(lambda c, k, q, u: randomized_set(c, k, q + 0.2, u), inclusive)


CODES = np.random.default_rng(0).integers(0, 3, (30, 4))
TABLE = Outcomes(np.arange(30), CODES == 0, codes=CODES, gold=np.zeros(30, int))


def calibrated(make):
    def policy():
        made = make()
        made.calibrate(TABLE)
        return made

    return policy


POLICIES = {
    "fixed": lambda: FixedBudget(4),
    "one by one": lambda: Draws(),
    "until mixed": lambda: UntilMixed((2, 3, 4)),
    "C-GRPO": calibrated(lambda: ConformalBudget((2, 4), delta="1/4", n_calibration=30)),
    "risk control": calibrated(lambda: ConformalBudget((2, 4), delta="1/4", multiplicity="risk_control", n_calibration=30)),
    "signal": calibrated(lambda: SignalBudget((2, 3, 4), delta="1/4", calibration="offline", n_calibration=30)),
}


@quiet
@pytest.mark.parametrize("name", POLICIES)
def test_policies_pass(name):
    check_rollout_policy(POLICIES[name], max_examples=20)


class Draws(RolloutPolicy):
    """Two responses, then one by one while ``go`` says so."""

    k_max = 4

    def first(self, prompt_ids, step):
        return np.full(len(prompt_ids), 2)

    def go(self, o):
        return ~(o.passes & o.live).any(axis=1)

    def more(self, o):
        return np.where(self.go(o) & (o.drawn < 4), 1, 0)


class Peeks(Draws):
    def go(self, o):
        return ~o.passes[:, 3]


class BatchOrder(Draws):
    def go(self, o):
        return np.arange(o.n) % 2 == 0


class BatchMean(Draws):
    def go(self, o):
        seen = (o.passes & o.live).any(axis=1)
        return seen < seen.mean()


class Forgets(Draws):
    asked = 0

    def go(self, o):
        self.asked += 1
        return np.full(o.n, self.asked % 3 == 1)


class TooMany(Draws):
    def more(self, o):
        return np.full(o.n, 1)


class KeepsAll(Draws):
    def keep(self, o):
        return np.ones(o.passes.shape, bool)


class LosesState(Draws):
    def __init__(self):
        self.fresh = True

    def first(self, prompt_ids, step):
        self.fresh = False
        return super().first(prompt_ids, step)

    def go(self, o):
        return np.full(o.n, not self.fresh)


class FirstByOrder(Draws):
    def first(self, prompt_ids, step):
        return 1 + np.arange(len(prompt_ids)) % 2


class FirstByBatch(Draws):
    def first(self, prompt_ids, step):
        return np.where(prompt_ids == prompt_ids.max(), 2, 1)


class HalfResponses(Draws):
    def more(self, o):
        return super().more(o) * 0.5


class RemembersTheFirstBudget(Draws):
    """Once a prompt was seen with more than two responses, it gets no third."""

    def __init__(self):
        self.late = set()

    def more(self, o):
        self.late |= {int(i) for i, d in zip(o.prompt_ids, o.drawn, strict=True) if d > 2}
        return np.where([int(i) in self.late for i in o.prompt_ids], 0, super().more(o))

    def state_dict(self):
        return {"late": sorted(self.late)}

    def load_state_dict(self, state):
        self.late = set(state["late"])


class KeepsEveryOther(Draws):
    def keep(self, o):
        return o.live & (np.arange(o.n)[:, None] % 2 == 0)


class KeepPeeks(Draws):
    def keep(self, o):
        return o.live & o.passes[:, -1:]


class KeepDraws(Draws):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def keep(self, o):
        return o.live & (self.rng.random(o.passes.shape) < 0.5)


class ArrayState(Draws):
    def state_dict(self):
        return {"t": np.arange(2)}


class UpdateIsNotSaved(Draws):
    size = 2

    def first(self, prompt_ids, step):
        return np.full(len(prompt_ids), self.size)

    def update(self, o):
        self.size = 3


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        (Peeks, "undrawn"), (BatchOrder, "order|other prompts"), (BatchMean, "other prompts"), (Forgets, "asked again|restored|order"),
        (FirstByBatch, "first: depends"), (HalfResponses, "whole responses|asks for"), (RemembersTheFirstBudget, "asked later"),
        (KeepsEveryOther, "keep: depends"), (KeepPeeks, "keep: reads undrawn"), (KeepDraws, "keep: answers differently"),
        (ArrayState, "plain JSON"), (UpdateIsNotSaved, "state_dict: first"),
        (TooMany, "asks for"), (KeepsAll, "keep"), (LosesState, "restored"), (FirstByOrder, "first: depends"),
    ],
)  # fmt: skip
def test_broken_policies_fail(policy, fault):
    with pytest.raises(AssertionError, match=fault):
        check_rollout_policy(policy, max_examples=30)


def test_coverage_law_is_the_exact_tail():
    law = betabinomial_hits(300, 200, "0.12")
    accepted = []
    for hits in range(301):
        try:
            check_coverage_law(hits, 300, 200, "0.12", alpha="1/20")
            accepted.append(hits)
        except AssertionError:
            pass
    assert accepted == list(range(accepted[0], accepted[-1] + 1))
    assert law.cdf(accepted[0] - 1) < 0.025 <= law.cdf(accepted[0]) and law.sf(accepted[-1]) < 0.025 <= law.sf(accepted[-1] - 1)
    with pytest.raises(ValueError, match=r"^n: got 5"):
        check_coverage_law(10, 10, 5, "0.12")


def test_the_packages_do_not_import_hypothesis():
    code = "import sys, conformal_core, carm_core; assert 'hypothesis' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class StartsWithNothing(FixedBudget):
    """A prompt may begin without a response."""

    def first(self, prompt_ids, step):
        return np.zeros(len(prompt_ids), np.int64)


def test_a_policy_may_ask_for_nothing_first():
    check_rollout_policy(lambda: StartsWithNothing(2), max_examples=10)


def test_joint_coverage_that_falls_short_is_reported_with_what_was_due():
    with pytest.raises(AssertionError, match="joint coverage of ") as failure:
        check_joint_calibrator(lambda s, delta: np.full(s.shape[1], -1.0), max_examples=20)
    delta, need = re.search(r"at delta = (\S+) is 0/\d+; need (\S+)", str(failure.value)).groups()
    assert Fraction(need) == 1 - Fraction(delta)


# ---- what is searched


def test_a_check_finds_the_same_counterexample_again():
    how = _searching(17)
    assert (how.max_examples, how.derandomize, how.database, how.deadline) == (17, True, None, None)


def test_distinct_scores_are_tried_at_three_sizes_and_every_twentieth():
    seen = set()

    def threshold(scores, delta):
        if len(scores) > 7:
            seen.add((len(scores), delta))
        return ours(scores, delta)

    check_calibrator(threshold, tight=True, max_examples=1)
    assert seen == {(n, Fraction(j, 20)) for n in (9, 19, 49) for j in range(1, 20)}


def test_tables_are_flipped_renamed_and_shown():
    codes, gold = np.array([[0, 1, -1, 2], [2, 2, 0, 0]]), np.array([0, 0])
    o = Outcomes([60, 61], codes == 0, codes=codes, gold=gold)
    np.testing.assert_allclose(_coins(o), [61 / 63, 1 / 63], rtol=1e-15)
    flipped = _flip_unseen(o, np.array([1, 3]))
    assert flipped.drawn.tolist() == [1, 3]
    assert flipped.codes.tolist() == [[0, 0, 0, 0], [2, 2, 0, 1]]
    assert flipped.passes.tolist() == [[True, True, True, True], [False, False, True, False]]
    unnamed = replace(o, gold=None)
    assert _flip_unseen(unnamed, np.array([0, 4])).codes.tolist() == [[1, 0, 0, 0], [2, 2, 0, 0]]
    renamed = _renamed(o, 2)
    assert renamed.codes.tolist() == [[2, 0, -1, 1], [1, 1, 2, 2]] and renamed.gold.tolist() == [2, 2]
    assert _show(renamed) == "answers [[2, 0, -1, 1], [1, 1, 2, 2]] (2 is gold)"
    assert _show(unnamed) == "answers [[0, 1, -1, 2], [2, 2, 0, 0]] (0 is gold)"
    with pytest.raises(ValueError, match=r"^outcomes.codes: got None; need answer codes; because tables of answers are searched$"):
        _show(replace(o, codes=None))


@pytest.mark.parametrize("hits", [225, 299])
def test_how_improbable_a_coverage_is_is_said(hits):
    law = betabinomial_hits(300, 200, "0.12")
    p = 2 * min(law.cdf(hits), law.sf(hits - 1))
    words = rf"^{hits} of 300 covered: probability {p:.1e} under the law of n = 200, delta = 3/25$"
    with pytest.raises(AssertionError, match=words):
        check_coverage_law(hits, 300, 200, "0.12", alpha="1/100")
