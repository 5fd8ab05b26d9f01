import json
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.aci import adaptive_level
from conformal_core.early import UntilFirstSuccess, UntilMixed, expected_draws
from conformal_core.keys import uniforms
from conformal_core.nested import NestedRollout, NestedThresholds, nested_budgets, nested_cost, nested_thresholds
from conformal_core.outcomes import Outcomes
from conformal_core.replay import replay

IDS = np.random.default_rng(0).integers(0, 2**63, 500).astype(np.uint64)


@pytest.mark.parametrize("rollout", [UntilFirstSuccess((2, 3, 6)), UntilMixed((2, 3, 6)), UntilMixed((2, 3, 6), 2)], ids=repr)
def test_stops_at_the_first_budget_at_which_the_score_is_known(rollout):
    passes = np.random.default_rng(1).random((300, 9)) < np.random.default_rng(2).random((300, 1))
    table = Outcomes(IDS[:300], passes)
    drawn = replay(rollout, table).drawn

    def known(row, k):
        won, lost = row[:k].sum(), k - row[:k].sum()
        return k == 6 or (won > 0 if isinstance(rollout, UntilFirstSuccess) else min(won, lost) >= rollout.m)

    assert drawn.tolist() == [next(k for k in (2, 3, 6) if known(row, k)) for row in passes]
    assert rollout.known(table.prefix(drawn)).all()
    before = table.prefix(np.where(drawn == 6, 3, 2))
    assert not rollout.known(before.take(drawn > 2)).any()
    assert (rollout.more(table) == 0).all()  # wider than K_max


def test_an_event_not_seen_happened_at_no_response():
    table = Outcomes([1, 2, 3], np.array([[False, True, True], [False] * 3, [True] * 3]))
    assert UntilFirstSuccess((2, 3)).happened_at(table).tolist() == [2, 0, 1]
    assert UntilMixed((2, 3)).happened_at(table).tolist() == [2, 0, 0]


def test_nothing_drawn_is_nothing_known():
    empty = Outcomes([1], np.zeros((1, 0), bool))
    for rollout in (UntilFirstSuccess((2, 4)), UntilMixed((2, 4))):
        assert not rollout.known(empty).any() and rollout.more(empty).tolist() == [2]


def test_expected_draws_of_a_population():
    """Prompts Beta(1.14, .86): 8.92 responses until mixed on the grid up to 32, as simulations have it."""
    from scipy.stats import beta

    p = beta(1.14, 0.86).ppf((np.arange(4000) + 0.5) / 4000)
    assert expected_draws(UntilMixed((2, 4, 8, 16, 32)), p).mean() == pytest.approx(8.92, abs=0.02)


@given(st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(0, 5))
def test_nested_budgets_have_the_sizes_asked_for_in_any_order(sizes, seed):
    sizes = sorted(sizes, reverse=True)
    drawn = nested_budgets(IDS[:50], (2, 4, 8), sizes, seed=seed, step=3)
    assert [(drawn >= k).sum() for k in (2, 4, 8)] == sizes
    order = np.random.default_rng(seed).permutation(50)
    np.testing.assert_array_equal(nested_budgets(IDS[:50][order], (2, 4, 8), sizes, seed=seed, step=3), drawn[order])
    assert nested_cost((2, 4, 8), sizes) == drawn.sum()


def test_nested_rollout_draws_in_one_go_and_in_the_shares_asked_for():
    from scipy.stats import binomtest

    rollout = NestedRollout((2, 4, 8), (1, "1/2", 0.125), seed=2)
    drawn = rollout.first(IDS, 7)
    table = Outcomes(IDS, np.zeros((500, 8), bool), step=7)
    np.testing.assert_array_equal(replay(rollout, table, 7).drawn, drawn)
    assert set(drawn) == {2, 4, 8}
    for k, share in ((4, 0.5), (8, 0.125)):
        assert binomtest(int((drawn >= k).sum()), 500, share).pvalue > 1e-3
    np.testing.assert_array_equal(rollout.first(IDS, 8), drawn)  # so that a later step can tell a prompt's budget
    assert not np.array_equal(NestedRollout((2, 4, 8), (1, "1/2", 0.125), seed=3).first(IDS, 7), drawn)


def test_a_budget_with_too_few_prompts_never_stops_and_says_so():
    with pytest.warns(UserWarning, match=r"^drawn: got \[9, 3\] .*; need 4 at each; because .* nothing stops at budgets \[4\]"):
        found = nested_thresholds(np.zeros((9, 2)), np.array([4] * 3 + [2] * 6), (2, 4), "1/5")
    assert found.attainable == (True, False) and found.q == (0.0, inf) and "budgets [4] have fewer than 4" in found.guarantee
    assert NestedThresholds.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
    with pytest.warns(UserWarning, match=r"^drawn: got \[9, 0\]"):  # a lot that gave a budget to nobody ends no run
        none = nested_thresholds(np.zeros((9, 2)), np.array([2] * 9), (2, 4), "1/5")
    assert (none.n, none.ranks, none.q, none.attainable) == ((9, 0), (8, 1), (0.0, inf), (True, False))


def test_adaptive_level_at_its_ends():
    level = adaptive_level("1/10", "1/2")
    assert level.bound is None and level.threshold([]) == inf
    debt = level.after(1)
    assert debt.level < 0 and debt.threshold([1.0] * 50) == inf
    even = adaptive_level("1/2", "1").after(1)
    assert even.level == 0 and even.threshold([1.0] * 50) == inf
    for _ in range(30):
        debt = debt.after(0)
    assert debt.level > 1 and debt.threshold([1.0]) == -inf
    assert level.threshold(np.arange(9.0)) == 8 and level.after(Fraction(1, 10)).level == level.level


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UntilMixed((2, 4), 3), "m: got 3; need at most 2"),
        (lambda: UntilMixed((2, 4), 0), "m: got 0; need"),
        (lambda: UntilFirstSuccess((4, 2)), "grid: got"),
        (lambda: expected_draws(UntilMixed((2, 4)), [1.5]), "pass_rates: got"),
        (lambda: nested_budgets(IDS[:5], (2, 4), (3, 4)), r"sizes: got \(3, 4\); need"),
        (lambda: nested_budgets(IDS[:5], (2, 4), (6, 4)), "prompt_ids: got 5 prompts; need 6"),
        (lambda: nested_cost((2, 4), (3,)), r"sizes: got \(3,\); need"),
        (lambda: nested_cost((2, 4), (3, 0)), r"sizes: got \(3, 0\); need 2 integers >= 1"),
        (lambda: nested_cost((2, 4), (3.0, 2)), r"sizes: got \(3.0, 2\); need"),
        (lambda: nested_cost((2, 4), (True, True)), r"sizes: got \(True, True\); need"),
        (lambda: NestedRollout((2, 4), ("1/2", 1)), "shares: got"),
        (lambda: NestedRollout((2, 4), (1, 0)), "shares: got 0; need"),
        (lambda: nested_thresholds(np.zeros((3, 2)), np.array([1, 1, 1]), (2, 4), "1/2"), "drawn: got"),
        (lambda: nested_thresholds(np.zeros((3, 1)), np.array([2, 2, 2]), (2, 4), "1/2"), "scores: got shape"),
        (lambda: nested_thresholds(np.full((3, 2), np.nan), np.array([4] * 3), (2, 4), "1/2"), "scores: got NaN"),
        (lambda: nested_thresholds(np.zeros((3, 2)), np.array([4] * 3), (2, 4), "1/2", "holm"), "multiplicity: got 'holm'; need"),
        (lambda: adaptive_level("2"), "delta: got '2'; need"),
        (lambda: adaptive_level("1/2", -1), "gamma: got -1; need"),
        (lambda: adaptive_level("1/2").after(2), "share: got 2; need"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}.*; because "):
        call()


def test_nested_rollout_reads_the_numbers_of_step_0_at_any_step():
    u = uniforms(IDS, seed=5, step=0, stream="nested")
    want = np.where(u < 0.25, 4, np.where(u < 0.5, 2, 0))
    rollout = NestedRollout((2, 4), ("1/2", "1/4"), seed=5)
    for step in (0, 9):
        np.testing.assert_array_equal(rollout.first(IDS, step), want)
    assert set(want) == {0, 2, 4}


@pytest.mark.parametrize(("multiplicity", "words"), [("per_budget", "at each fixed budget, for"), ("bonferroni", "at all 2 budgets, for")])
def test_nested_guarantee_names_the_budgets_it_holds_at(multiplicity, words):
    assert words in nested_thresholds(np.zeros((9, 2)), np.full(9, 4), (2, 4), "1/2", multiplicity).guarantee
