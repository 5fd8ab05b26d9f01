"""What happens exactly at an edge: ties, negative codes, tables beyond their support, bounds of an adaptive level."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from conformal_core import APS, AdaptiveLevel, MassAbove, Outcomes, coverage_test, max_rank
from conformal_core.level import conformal_rank
from conformal_core.pvalues import smoothed_p_values
from conformal_core.vote_statistics import _fair_tails, _overtaken, count_votes, settledness


@pytest.mark.parametrize(("delta", "farther"), [(Fraction(1, 10), Fraction(9, 10)), (Fraction(7, 10), Fraction(7, 10))])
@pytest.mark.parametrize("updates", [1, 3, 200])
def test_bound_of_an_adaptive_level(delta: Fraction, farther: Fraction, updates: int) -> None:
    gamma = Fraction(1, 50)
    assert AdaptiveLevel(delta, gamma, updates).bound == (farther + gamma) / (gamma * updates)


@pytest.mark.parametrize(("score", "stops"), [(APS(), True), (APS("inclusive"), False), (MassAbove(), True)], ids=repr)
def test_a_threshold_of_zero_stops_only_where_the_set_still_holds_the_leader(score: APS | MassAbove, stops: bool) -> None:
    """At u = 0 the leader scores 0, so ``<= 0`` keeps it; the inclusive set asks for mass below the threshold and is empty."""
    unanimous = Outcomes([1], np.zeros((1, 2), bool), codes=np.zeros((1, 2), np.int64))
    assert score.stop(unanimous, 2, 0.0, [0.0])[0].tolist() == [stops]
    assert score.stop(unanimous, 2, -1e-300, [0.0])[0].tolist() == [False]


def test_a_served_score_at_the_threshold_is_covered() -> None:
    assert coverage_test([1.0, 2.0, 3.0, 4.0], [4.0, 4.0, 5.0], "1/5").statistic == 1


@pytest.mark.parametrize("coin", [-0.5, -1.0, 1.5, 2.0, np.nan])
def test_coins_of_p_values_are_within_zero_and_one(coin: float) -> None:
    with pytest.raises(ValueError, match=r"^u: got values outside \[0, 1\] or NaN; need numbers in \[0, 1\]"):
        smoothed_p_values([0.5], [0.5], [coin])


@pytest.mark.parametrize("delta", ["1/100", "1/10", "1/2", "9/10"])
def test_joint_rank_of_a_long_table(delta: str) -> None:
    s = np.random.default_rng(0).random((501, 3))
    largest = np.sort((s.argsort(axis=0).argsort(axis=0) + 1).max(axis=1))
    assert max_rank(s, delta).rank == largest[conformal_rank(501, delta) - 1] + 1


# ---- votes


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_tables_of_votes_hold_the_counts_that_can_occur_and_zeros(k: int) -> None:
    first, second = np.meshgrid(np.arange(k + 1), np.arange(k + 1), indexing="ij")
    possible = (first + second <= k) & (second <= first)
    tails = _fair_tails(k)
    assert tails.shape == (k + 1, k + 1)
    np.testing.assert_array_equal(tails > 0, possible)
    for k_max in (2 * k, 2 * k + 3):
        overtaken = _overtaken(k, k_max)
        assert overtaken.shape == (k + 1, k + 1)
        assert not overtaken[~possible | (second == first)].any()
        reach = possible & (second < first) & (first - second <= k_max - k)
        np.testing.assert_array_equal(overtaken > 0, reach)


def test_one_response_left_can_only_tie() -> None:
    """The rival of 1 among 3 gets the last vote with probability 2/6, and a tie is counted half."""
    assert _overtaken(3, 4)[2, 1] == pytest.approx(1 / 6, rel=1e-12)
    assert _overtaken(4, 4)[2, 1] == 0.0


def test_unparsable_votes_are_no_rivals() -> None:
    table = _overtaken(5, 9)
    value, answer = settledness(np.array([[0, 0, -1, 1, -1]]), 5, 9, "lead")
    assert (value[0], answer[0]) == (pytest.approx(-np.log(table[2, 1] + table[2, 0]), rel=1e-12), 0)


def test_whatever_negative_code_stands_there_no_answer_is_minus_one() -> None:
    votes = count_votes(np.array([[-2, -2], [-2, 4], [-1, -2]]), 2)
    assert votes.answer.tolist() == [-1, 4, -1]
    assert votes.first.tolist() == [0, 1, 0]
