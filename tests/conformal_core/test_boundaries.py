"""Where an inequality is an equality, where a list is as short as it may be, and the words of a refusal."""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from itertools import combinations, permutations, product
from types import SimpleNamespace

import numpy as np
import pytest

import conformal_core.exchangeability
import conformal_core.nested
import conformal_core.signal
import conformal_core.stream
from conformal_core import (
    APS,
    ConformalBudget,
    FirstSuccess,
    FixedBudget,
    MassAbove,
    Outcomes,
    PassRate,
    RolloutPolicy,
    auto_delta,
    conformal_quantile,
    coverage_test,
    disjoint_split,
    expected_savings,
    inclusive_set,
    permutation_test,
    randomized_set,
    weighted_quantile,
)
from conformal_core.budget_laws import first_success_cdf
from conformal_core.early import UntilFirstSuccess, expected_draws
from conformal_core.laws import betabinomial_hits, pac_rank, tied_coverage
from conformal_core.lead import stop_intervals
from conformal_core.learn_then_test import certifiable_size, learn_then_test
from conformal_core.martingale import DriftMonitor, PowerMixture, SimpleJumper
from conformal_core.nested import NestedRollout, nested_budgets, nested_cost
from conformal_core.policy import CalibrationRequest
from conformal_core.replay import replay
from conformal_core.signal import SignalBudget
from conformal_core.singleton_laws import empty_probability
from conformal_core.stream import StreamCalibrated

quiet = pytest.mark.filterwarnings("ignore::UserWarning")


def outcomes(codes: np.ndarray, **fields: object) -> Outcomes:
    """Full groups in which answer 0 is gold and the verifier knows it."""
    held = {"passes": codes == 0, "codes": codes, "gold": np.zeros(len(codes), np.int64)} | fields
    return Outcomes(np.arange(len(codes), dtype=np.uint64), **held)


# ---- sets of answers


def above(row: list[int], a: int) -> Fraction:
    """Share of the responses whose answer occurs more often than ``a``."""
    return Fraction(sum(b >= 0 and row.count(b) > row.count(a) for b in row), len(row))


SETS = {
    "randomized": (APS(), lambda row, a, q, u: above(row, a) + u * Fraction(row.count(a), len(row)) <= q),
    "inclusive": (APS("inclusive"), lambda row, a, q, u: above(row, a) < q),
    "mass above": (MassAbove(), lambda row, a, q, u: above(row, a) <= q),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("u", [Fraction(0), Fraction(1, 2), Fraction(1)])
def test_a_stop_is_a_set_of_one_answer_for_every_group_of_four_and_every_threshold(name: str, u: Fraction) -> None:
    """Unparsable responses too: an answer without a rival stops however small its share."""
    score, within = SETS[name]
    rows = [list(row) for row in product((-1, 0, 1, 2), repeat=4)]
    table = outcomes(np.array(rows))
    for q in (Fraction(j, 16) for j in range(-1, 16)):
        sets = [[a for a in sorted(set(row) - {-1}) if within(row, a, q, u)] for row in rows]
        stop, answer = score.stop(table, 4, float(q), np.full(len(rows), float(u)))
        assert stop.tolist() == [len(found) == 1 for found in sets]
        assert answer.tolist() == [found[0] if len(found) == 1 else -1 for found in sets]


@pytest.mark.parametrize("coin", [-0.5, -1.0, -5e-324, 1.5, 2.0, np.nan])
def test_coins_of_a_set_are_within_zero_and_one(coin: float) -> None:
    message = r"^u: got shape \(2,\); need \(2,\) or \(2, 3\) with values in \[0, 1\]; because u is uniform"
    with pytest.raises(ValueError, match=message):
        randomized_set(np.zeros((2, 3), np.int64), 3, 0.5, [0.5, coin])


def test_sets_of_answers_are_themselves_alone() -> None:
    """They hold arrays, whose equality is no truth value."""
    sets = [inclusive_set(np.zeros((2, 3), np.int64), 3, 0.5) for _ in range(2)]
    assert sets[0] == sets[0] and sets[0] != sets[1] and len(set(sets)) == 2


# ---- delta


def test_what_the_floors_leave_over_goes_to_the_stratum_whose_prompt_comes_first_in_the_shuffle() -> None:
    """Three strata of three prompts and a half of nine, rounded down: each gives one, and one of them a second."""
    strata = np.repeat([0, 1, 2], 3)
    more = []
    for seed in range(12):
        chosen, rest = disjoint_split(9, seed=seed, strata=strata)
        counts = np.bincount(strata[chosen], minlength=3)
        assert sorted(counts.tolist()) == [1, 1, 2] and sorted([*chosen.tolist(), *rest.tolist()]) == list(range(9))
        first = int(strata[np.random.default_rng(seed).permutation(9)[0]])
        assert counts[first] == 2
        more.append(first)
    assert set(more) == {0, 1, 2}


@quiet
@pytest.mark.parametrize("seed", [-1, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1, 2**64 + 5])
def test_every_seed_modulo_two_to_the_64_splits_the_calibration_set_in_its_own_way(seed: int) -> None:
    codes = np.random.default_rng(0).integers(0, 4, (60, 4))
    table = outcomes(codes, step=3)
    policy = ConformalBudget((2, 4), seed=seed, n_calibration=60)
    policy.calibrate(table)
    chosen, rest = disjoint_split(60, seed=(seed % 2**64, 3))
    assert policy.delta == auto_delta(int(table.passes[chosen].any(axis=1).sum()), 30)
    assert policy.stop_rule is not None
    scores = policy.score.gold_scores(table, (2, 4), policy._u(table))
    rank = 31 - int(31 * policy.delta)
    assert policy.stop_rule.q == tuple(np.sort(scores[rest], axis=0)[rank - 1])


@pytest.mark.parametrize(("a", "b"), [(1, 0), (0, 1), (1, "-1/2"), ("-1/2", 1), (1, -1), (2, -1), (-1, 2)])
def test_a_beta_law_has_parameters_above_zero(a: object, b: object) -> None:
    with pytest.raises(ValueError, match=r"^j, a, b: got 1, .*; need j >= 0, a > 0, b > 0; because p has a Beta law"):
        first_success_cdf(1, a, b)


def test_savings_on_a_grid_of_one_budget_are_none() -> None:
    assert expected_savings((4,), []) == expected_savings((4,), [1]) == 0


# ---- the policy


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({}, "ConformalBudget((2, 4), score=APS('randomized'), delta='auto', multiplicity='per_budget')"),
        ({"delta": "1/5"}, "ConformalBudget((2, 4), score=APS('randomized'), delta='1/5', multiplicity='per_budget')"),
        (
            {"delta": "1/5", "score": FirstSuccess(), "multiplicity": "max_rank"},
            "ConformalBudget((2, 4), score=FirstSuccess('failure_above_success'), delta='1/5', multiplicity='max_rank')",
        ),
        ({"multiplicity": "risk_control"}, "ConformalBudget((2, 4), delta='auto', multiplicity='risk_control')"),
        ({"delta": "1/5", "multiplicity": "learn_then_test"}, "ConformalBudget((2, 4), delta='1/5', multiplicity='learn_then_test')"),
    ],
)
def test_a_policy_shows_its_score_where_it_has_one_and_its_delta(arguments: dict[str, object], shown: str) -> None:
    assert repr(ConformalBudget((2, 4), **arguments)) == shown


def calibrated(score: object, codes: np.ndarray) -> ConformalBudget:
    """Stops every prompt at two responses that its score lets stop at a threshold of 1/2."""
    policy = ConformalBudget((2, 4), score=score, delta="1/2", n_calibration=len(codes))
    policy.calibrate(outcomes(codes))
    return policy


@quiet
def test_a_stop_is_right_by_gold_if_the_score_reads_answers_and_by_the_verifier_if_not() -> None:
    """The verifier rejects the gold answer of the first prompt, and accepts what is not gold of the second."""
    codes = np.array([[0, 0, 0, 0], [1, 1, 1, 1]])
    passes = np.array([[False] * 4, [True] * 4])
    by_answer = calibrated(MassAbove(), np.zeros((9, 4), np.int64))
    table = outcomes(codes, passes=passes)
    assert by_answer.stops(table)[0].tolist() == [2, 2]
    assert by_answer.audit(table) == {"false_stop": (1, 2)}
    turned = outcomes(codes[::-1].copy(), passes=passes)
    assert by_answer.audit(outcomes(codes, passes=~passes)) == {"false_stop": (1, 2)}
    assert by_answer.audit(outcomes(np.zeros((2, 4), np.int64), passes=passes)) == {"false_stop": (0, 2)}
    assert by_answer.audit(outcomes(np.ones((2, 4), np.int64), passes=~passes)) == {"false_stop": (2, 2)}
    assert by_answer.audit(outcomes(np.ones((2, 4), np.int64), passes=passes, gold=None)) == {"false_stop": (1, 2)}
    by_verifier = calibrated(FirstSuccess(), np.tile([0, 1, 1, 1], (9, 1)))
    assert by_verifier.stops(turned)[0].tolist() == [0, 2]
    assert by_verifier.audit(turned) == {"false_stop": (0, 2)}
    assert by_verifier.audit(outcomes(np.ones((2, 4), np.int64), passes=passes[::-1].copy())) == {"false_stop": (0, 2)}


@quiet
def test_without_answers_one_accepted_response_makes_a_stop_right_whatever_its_code() -> None:
    """Codes that were not parsed, or that differ from the answer committed to, are not read."""
    policy = calibrated(CommitsToNothing(), np.tile([0, 0, 1, 1], (9, 1)))
    table = outcomes(np.array([[5, 7, 5, 7], [5, 5, 5, 5]]), passes=np.array([[True] * 4, [False] * 4]))
    assert policy.stops(table)[0].tolist() == [2, 0]
    assert policy.audit(table) == {"false_stop": (0, 2)}


class CommitsToNothing(PassRate):
    """Stops as the pass rate does; the answers have no identity."""

    def stop(self, outcomes: Outcomes, k: int, q: float, u: object) -> tuple[np.ndarray, np.ndarray]:
        stop, answer = super().stop(outcomes, k, q, u)
        return stop, np.full_like(answer, -1)


# ---- early stopping


@pytest.mark.parametrize("bad", [-0.5, -1.0, -5e-324, 1.5, np.nextafter(1, 2), np.nan])
def test_a_pass_rate_is_a_probability(bad: float) -> None:
    with pytest.raises(ValueError, match=r"^pass_rates: got values outside \[0, 1\] or NaN; need"):
        expected_draws(UntilFirstSuccess((1, 2)), [0.5, bad])


# ---- permutations


class Deals:
    """Stands for the random numbers of a block of relabelings: notes the shape of the block, and deals nothing at random."""

    blocks: tuple[tuple[int, int], ...] = ()

    def __init__(self, seed: object) -> None:
        type(self).blocks = ()

    def random(self, shape: tuple[int, int]) -> Deals:
        assert min(shape) > 0
        type(self).blocks += (shape,)
        self.shape = shape
        return self

    def argsort(self, axis: int) -> np.ndarray:
        return np.broadcast_to(np.arange(self.shape[1], dtype=np.int32), self.shape)


@pytest.mark.parametrize(
    ("size", "resamples", "rows"),
    [
        (1000, 1, [1]),
        (1_000_000, 4, [4]),
        (1_000_000, 5, [4, 1]),
        (1_000_001, 4, [3, 1]),
        (97_561, 41, [40, 1]),  # 41 times as many is 4,000,001
        (2_000_001, 2, [1, 1]),
        (4_000_001, 2, [1, 1]),  # one relabeling at a time is the least there is
    ],
)
def test_relabelings_are_drawn_in_blocks_of_four_million_cells_and_none_is_empty(
    monkeypatch: pytest.MonkeyPatch, size: int, resamples: int, rows: list[int]
) -> None:
    monkeypatch.setattr(conformal_core.exchangeability.np.random, "default_rng", Deals)
    test = permutation_test(np.zeros(size - 2), np.zeros(2), statistic=lambda pooled, labels: np.zeros(len(labels)), resamples=resamples)
    assert test.p_value == 1  # all of them are at least the observed one, so none was left out
    assert Deals.blocks == tuple((r, size) for r in rows)


@pytest.mark.parametrize("resamples", [True, False, 0, -1, 1.5, 10.0, np.float64(3)])
def test_relabelings_are_counted_in_integers(resamples: object) -> None:
    with pytest.raises(ValueError, match=r"^resamples: got .*; need an integer >= 1; because "):
        permutation_test([1, 2, 3], [4, 5], resamples=resamples)


@pytest.mark.parametrize(("sum_of_masses", "p"), [(0.75, 0.75), (1.0, 1.0), (1 + 2**-52, 1.0), (1 + 2**-40, 1.0)])
def test_a_sum_of_masses_that_rounds_to_more_than_one_is_one(monkeypatch: pytest.MonkeyPatch, sum_of_masses: float, p: float) -> None:
    law = SimpleNamespace(cdf=lambda hits: sum_of_masses)
    monkeypatch.setattr(conformal_core.exchangeability, "betabinomial_hits", lambda m, n, delta: law)
    assert coverage_test([1, 2, 3, 4], [2, 3], "1/5").p_value == p


# ---- laws


@pytest.mark.parametrize("zeros", [1, 2])
def test_a_value_without_mass_changes_no_coverage(zeros: int) -> None:
    masses = ["1/2", "1/3", "1/6"]
    expected = tied_coverage(masses, 5, "1/4")
    for at in range(4):
        assert tied_coverage([*masses[:at], *["0"] * zeros, *masses[at:]], 5, "1/4") == expected
    with pytest.raises(ValueError, match=r"^pmf: got \['-1/2', '3/2'\]; need masses >= 0 that sum to 1; because"):
        tied_coverage(["-1/2", "3/2"], 5, "1/4")


@pytest.mark.parametrize("n", [1, 3, 5, 7])
def test_a_tolerance_rank_that_just_reaches_its_probability_will_do(n: int) -> None:
    """At most half of an odd number of fair coins with probability exactly one half."""
    assert pac_rank(n, "1/2", "1/2") == (n + 1) // 2


@pytest.mark.parametrize("m", [0, -1, True, 1.0])
def test_hits_are_of_at_least_one_test_point(m: object) -> None:
    with pytest.raises(ValueError, match=r"^m: got .*; need an integer >= 1; because it counts"):
        betabinomial_hits(m, 9, "1/5")


def test_what_a_prompt_lacks_is_counted_to_the_largest_budget() -> None:
    table = outcomes(np.zeros((2, 8), np.int64), drawn=np.array([8, 3]))
    with pytest.raises(ValueError, match=r"^outcomes\.drawn: got a minimum of 3; need 8 responses for each prompt; because"):
        list(stop_intervals(table, (2, 4, 8)))


# ---- fixed-sequence tests

#: Prompts that stop on the grid (2, 4) below the share 1, 3/4, 1/2 and 1/4; one each, so that every knob stops another number.
LADDER = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 2], [-1, -1, 0, -1]])
TESTING_IN_SEQUENCE = import_module("conformal_core.learn_then_test")  # the package has a function of that name
KNOBS = [Fraction(1), Fraction(3, 4), Fraction(1, 2), Fraction(1, 4), Fraction(0)]


@pytest.mark.parametrize("starts", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("passing", [p for r in range(5) for p in combinations(range(1, 5), r)], ids=str)
@quiet
def test_every_pattern_of_tests_passed(monkeypatch: pytest.MonkeyPatch, starts: int, passing: tuple[int, ...]) -> None:
    """Sequences start at even distances from the strictest knob that can stop, each at ``gamma / starts``, until a test fails."""
    monkeypatch.setattr(TESTING_IN_SEQUENCE, "certifiable_size", lambda delta, gamma: 1)
    levels = []

    def below(wrong: int, trials: int, level: Fraction, each: Fraction) -> bool:
        levels.append(each)
        return trials in passing  # at the knob of that place so many prompts stop

    monkeypatch.setattr(TESTING_IN_SEQUENCE, "binomial_below", below)
    rule = learn_then_test(outcomes(LADDER), (2, 4), "1/2", "1/4", risk="wrong_given_stop", starts=starts)
    places = {1: (1,), 2: (1, 3), 3: (1, 2, 3)}.get(starts, (1, 2, 3, 4))
    best = 0
    for place in places:
        while place in passing:
            best, place = place, place + 1
    assert (rule.lam, rule.stops, rule.attainable) == (KNOBS[best], best, best > 0)
    assert set(levels) == {Fraction(1, 4) / starts}
    if not best:
        assert rule.p_value == 1.0


@quiet
@pytest.mark.parametrize(
    ("risk", "words"), [("wrong_given_stop", "P(wrong answer | stop) <= 1/2"), ("wrong_stop", "P(stop with a wrong answer) <= 1/2")]
)
def test_the_guarantee_names_the_risk(risk: str, words: str) -> None:
    rule = learn_then_test(outcomes(LADDER), (2, 4), "1/2", "1/4", risk=risk)
    assert rule.guarantee.startswith(f"with probability >= 1 - 1/4 over the calibration set, {words} at the adaptive budget")


@pytest.mark.parametrize("starts", [True, False, 0, -1, 1.5, 2.0])
def test_sequences_are_counted_in_integers(starts: object) -> None:
    with pytest.raises(ValueError, match=r"^starts: got .*; need an integer >= 1; because it counts sequences of tests"):
        learn_then_test(outcomes(LADDER), (2, 4), "1/2", "1/4", starts=starts)


@pytest.mark.parametrize("gamma", [Fraction(1, 10**j) for j in (1, 2, 6, 12)])
@pytest.mark.parametrize("delta", [Fraction(1, 10), Fraction(1, 2), Fraction(9, 10), Fraction(999, 1000)])
def test_the_fewest_trials_whose_success_certifies_a_level(delta: Fraction, gamma: Fraction) -> None:
    m = certifiable_size(delta, gamma)
    assert (1 - delta) ** m <= gamma < (1 - delta) ** (m - 1)


# ---- martingales


def test_capital_before_any_bet_and_after_bets_that_say_nothing() -> None:
    bets = PowerMixture()
    assert bets.log_capital == 0.0
    for t in range(1, 6):
        bets.bet(1.0)
        assert bets.log_capital == -np.log(t + 1)


def test_a_jumper_puts_what_small_p_values_win_on_the_first_side() -> None:
    small, large = SimpleJumper(1.0), SimpleJumper(1.0)
    small.bet(0.25)
    large.bet(0.75)
    np.testing.assert_allclose(small.state_dict()[:3], np.array([5, 4, 3]) / 12, rtol=1e-15)
    np.testing.assert_allclose(large.state_dict()[:3], np.array([3, 4, 5]) / 12, rtol=1e-15)


@pytest.mark.parametrize("coin", [-0.5, -1.0, -5e-324, 1.5, 2.0, np.nan])
def test_coins_of_a_monitor_are_within_zero_and_one(coin: float) -> None:
    with pytest.raises(ValueError, match=r"^u: got shape \(1,\); need \(1,\) with values in \[0, 1\]; because each score has one coin"):
        DriftMonitor().observe([0.5], [coin])


@pytest.mark.parametrize("alpha", ["1/2", "1/10", "1/100"])
def test_a_capital_of_just_one_over_alpha_raises_the_alarm(alpha: str) -> None:
    class Bets(PowerMixture):
        log_capital = -np.log(float(Fraction(alpha)))

    monitor = DriftMonitor(alpha)
    monitor._bets = Bets()
    assert monitor.observe([0.5], [0.5])
    monitor.restart()
    monitor._bets = Bets()
    Bets.log_capital = np.nextafter(Bets.log_capital, 0)
    assert not monitor.observe([0.5], [0.5])


# ---- nested sets


@pytest.mark.parametrize(
    ("grid", "sizes"), [((2,), (0,)), ((2,), (-1,)), ((2, 4), (3, 0)), ((2, 4, 8), (3, 2, 0)), ((2, 4, 8), (3, 0, 0)), ((2, 4), (3,))]
)
def test_sizes_of_nested_sets_are_at_least_one(grid: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"^sizes: got .*; need {len(grid)} integers >= 1 that do not increase; because"):
        nested_cost(grid, sizes)
    assert nested_cost((5,), (1,)) == 5


def test_too_few_prompts_are_too_few_for_the_first_budget() -> None:
    with pytest.raises(ValueError, match=r"^prompt_ids: got 3 prompts; need 4; because so many are calibrated at budget 2$"):
        nested_budgets(np.arange(3, dtype=np.uint64), (2, 4, 8), (4, 2, 1))


def test_a_share_is_reached_by_numbers_below_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.array([0.0, np.nextafter(0.25, 0), 0.25, np.nextafter(0.5, 0), 0.5, np.nextafter(1, 0)])
    monkeypatch.setattr(conformal_core.nested, "uniforms", lambda ids, **key: numbers)
    rollout = NestedRollout((2, 4, 8), (1, "1/2", "1/4"))
    assert rollout.first(np.arange(6, dtype=np.uint64), 0).tolist() == [8, 8, 4, 4, 2, 2]


# ---- outcomes


def test_tables_of_the_right_type_are_held_and_not_copied() -> None:
    codes, gold = np.zeros((3, 4), np.int64), np.zeros(3, np.int64)
    table = outcomes(codes, gold=gold)
    assert np.shares_memory(table.codes, codes) and np.shares_memory(table.gold, gold)
    for kind in (np.int8, np.uint16, np.int32):
        narrow = outcomes(codes.astype(kind), gold=gold.astype(kind))
        assert narrow.codes.dtype == narrow.gold.dtype == np.int64


# ---- policies


@pytest.mark.parametrize("k", [0, -1, True, False, 1.0, "2", None])
def test_a_fixed_budget_counts_at_least_one_response(k: object) -> None:
    with pytest.raises(ValueError, match=r"^k: got .*; need an integer >= 1; because "):
        FixedBudget(k)


def test_a_fixed_budget_asks_for_what_is_missing_and_reads_no_answers() -> None:
    policy = FixedBudget(2)
    table = outcomes(np.zeros((5, 4), np.int64), drawn=np.arange(5))
    assert policy.more(table).tolist() == [2, 1, 0, 0, 0]
    assert policy.needs_answers is False is RolloutPolicy.needs_answers
    assert FixedBudget(np.int64(1)).k_max == 1


# ---- thresholds


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_threshold_of_every_rank_in_every_order_of_the_scores(n: int) -> None:
    for order in permutations(range(n)):
        for rank in range(1, n + 1):
            q = conformal_quantile(order, 1 - Fraction(rank, n + 1))
            assert (q.value, q.rank, q.attainable) == (rank - 1, rank, True)


def test_the_threshold_of_every_rank_of_a_thousand_scores() -> None:
    """More than a partition would sort on the way."""
    order = np.random.default_rng(0).permutation(1000)
    for rank in range(1, 1001, 27):
        assert conformal_quantile(order, 1 - Fraction(rank, 1001)).value == rank - 1


def test_a_threshold_says_what_it_covers() -> None:
    assert conformal_quantile([3.0, 1.0, 2.0], "1/4").guarantee == (
        "P(score <= value) >= 3/4 for a new score exchangeable with the 3 calibration scores"
    )
    assert weighted_quantile([3.0, 1.0, 2.0], [1, 1, 1], 1, "1/4").guarantee == (
        "P(score <= value) >= 3/4 for a new score, if the weights are the likelihood ratio of its law to that of the 3 calibration scores"
    )


def test_an_infinite_threshold_says_how_much_the_test_point_weighs() -> None:
    q = weighted_quantile([1.0, 2.0], [1, 2], 5, "1/10")
    assert q.value == np.inf and q.rank == 3 and not q.attainable
    assert (
        q.guarantee
        == "threshold +inf: every score is accepted, because the test point carries a share 0.625 of the weight, more than delta = 1/10"
    )


# ---- replay


class Keeps(FixedBudget):
    """Says that it keeps every cell, drawn or not, of the even prompts, and none of the others."""

    def keep(self, outcomes: Outcomes) -> np.ndarray:
        return np.broadcast_to(outcomes.prompt_ids[:, None] % np.uint64(2) == 0, outcomes.passes.shape)


def test_only_drawn_responses_that_are_kept_train() -> None:
    table = outcomes(np.array([[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]]))
    report = replay(Keeps(2), table)
    assert (report.groups_with_variance, report.positives_kept, report.solvable_kept) == (1, 3, 2)
    assert (report.positives, report.solvable) == (5, 4)


@pytest.mark.parametrize("steps", [1, 2])
def test_calibration_lowers_both_ends_of_the_savings_by_what_it_cost(steps: int) -> None:
    class Calibrated(FixedBudget):
        def calibration(self, step: int) -> CalibrationRequest:
            return CalibrationRequest(3, FixedBudget(2), "as told")

        def calibrate(self, seen: Outcomes) -> None:
            assert seen.drawn.tolist() == [2, 2, 2]

    table = outcomes(np.zeros((8, 4), np.int64))
    report = replay(Calibrated(2), [table] * steps, calibration=table, k_max=4)
    cost = Fraction(6, 8 * 4)
    assert report.calibration_rollouts == 6 * steps and report.savings_with_calibration == report.savings - cost
    low, high = report.intervals["savings"]
    assert report.intervals["savings_with_calibration"] == pytest.approx((low - cost, high - cost), rel=1e-12)
    assert low <= report.savings <= high


# ---- designated prompts


@pytest.mark.parametrize("share", ["1/4", "1/2"])
def test_a_prompt_whose_number_is_the_share_is_not_designated(monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    at = float(Fraction(share))
    numbers = np.array([0.0, np.nextafter(at, 0), at, np.nextafter(at, 1)])
    for module in (conformal_core.signal, conformal_core.stream):
        monkeypatch.setattr(module, "uniforms", lambda ids, **key: numbers)
    table = outcomes(np.zeros((4, 2), np.int64))
    signal = SignalBudget((2, 4), delta="1/5", share=share)
    monkeypatch.setattr(signal, "_clock_of", lambda step: ((1.0,), (False,)))
    assert signal.designated(table).tolist() == [True, True, False, False]
    stream = StreamCalibrated(ConformalBudget((2, 4), score=FirstSuccess(), delta="1/5", n_calibration=9), share=share)
    assert stream.designated(table.prompt_ids, 0).tolist() == [True] * 4
    stream._rows = [table.take(np.array([0]))] * 9
    assert stream.designated(table.prompt_ids, 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize("rule", ["randomized", "independent"])
@pytest.mark.parametrize("counts", [[], [1], [4], [2, 2]])
def test_a_threshold_of_one_leaves_no_set_empty(rule: str, counts: list[int]) -> None:
    """Not even that of a group without an answer, since it holds all that were not sampled."""
    assert empty_probability(counts, 1, k=4, rule=rule) == 0
    assert empty_probability([], Fraction(999, 1000), k=4, rule=rule) == 1
