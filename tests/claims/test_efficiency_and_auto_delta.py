"""Claims of the C-GRPO paper about better policies, savings, automatic delta and shift; exact in populations, named after the claim."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from conformal_core import (
    FirstSuccess,
    Outcomes,
    auto_delta,
    conformal_quantile,
    conformal_rank,
    disjoint_split,
    expected_savings,
    first_success_mean_k,
    tied_coverage,
    total_variation,
    tv_shift_bound,
)
from tests.claims.population import aps_cdf, aps_quantile, first_success, first_success_index

GRID = (2, 4, 8, 16, 32)
ONE = Fraction(1)


def rate(text: str) -> dict[Fraction, Fraction]:
    return {Fraction(text): ONE}


HALF, MIXED = rate("1/2"), {ONE: Fraction(3, 5), Fraction(0): Fraction(2, 5)}


def thresholds(delta: str, rates: dict[Fraction, Fraction]) -> list[float]:
    return [round(float(aps_quantile(Fraction(delta), k, rates)), 3) for k in GRID]


def mean_k(delta: str, rates: dict[Fraction, Fraction]) -> Fraction:
    j = first_success_index(Fraction(delta), rates)
    return first_success_mean_k(GRID, j, first_success(j, rates) if j else 0)


def test_A13_aps_thresholds_can_increase_with_the_budget() -> None:
    q = [aps_quantile(Fraction(7, 10), k, rate("2/5")) for k in GRID]
    assert q[:2] == [Fraction(15, 56), Fraction(125, 384)]
    assert thresholds("0.7", rate("2/5")) == [0.268, 0.326, 0.412, 0.608, 0.686]
    assert q == sorted(q) and all(aps_cdf(x, k, rate("2/5")) == Fraction(3, 10) for x, k in zip(q, GRID, strict=True))


def test_A14_thresholds_are_not_monotone_in_the_pass_rate() -> None:
    """k = 2, delta = .12: U-shaped; k = 32: rising to 1 - delta, the threshold of a perfect policy."""
    assert [thresholds("0.12", rate(p))[0] for p in ("0.7", "0.8", "0.9", "0.95", "1")] == [0.939, 0.875, 0.864, 0.87, 0.88]
    assert [thresholds("0.12", rate(p))[-1] for p in ("0.6", "0.8", "0.9", "1")] == [0.614, 0.703, 0.79, 0.88]


def test_H1_more_gold_mass_on_average_is_not_a_smaller_score() -> None:
    assert thresholds("0.3", HALF)[::4] == [0.8, 0.712] and thresholds("0.3", MIXED)[::4] == [1.0, 1.0]


def test_H2_a_uniformly_better_policy_can_have_larger_thresholds() -> None:
    """Every prompt from p = .6 to 1, and from .9 to 1, delta = .12."""
    assert thresholds("0.12", rate("0.6"))[3:] == [0.708, 0.614]
    assert thresholds("0.12", rate("0.9")) == [0.864, 0.821, 0.799, 0.791, 0.79]
    assert thresholds("0.12", rate("1")) == [0.88] * 5


def test_H3_code_needs_every_prompt_to_be_better_not_their_mean() -> None:
    d = Fraction(3, 10)
    assert first_success_index(d, HALF, 4) == 2 and first_success_index(d, MIXED, 4) is None
    better = {Fraction(1, 2): Fraction(1, 3), Fraction(9, 10): Fraction(2, 3)}  # of 1/4 and 3/5: coupled prompt by prompt
    worse = {Fraction(1, 4): Fraction(1, 3), Fraction(3, 5): Fraction(2, 3)}
    assert all(first_success(j, better) >= first_success(j, worse) for j in range(1, 33))
    assert (first_success_index(d, better) or 99) <= (first_success_index(d, worse) or 99)


def test_H4_stochastic_order_of_scores_orders_the_thresholds_in_law() -> None:
    """P(S_(L) <= j) = P(Bin(n, F(j)) >= L) increases with F: for every n and L, though not for every pair of samples."""
    better, worse = [first_success(j, rate("0.6")) for j in range(1, 9)], [first_success(j, rate("0.4")) for j in range(1, 9)]
    for n in (3, 20):
        rank = conformal_rank(n, "0.3")
        laws = [[binom.sf(rank - 1, n, float(f)) for f in cdf] for cdf in (better, worse)]
        assert all(a >= b for a, b in zip(*laws, strict=True))


@pytest.mark.parametrize(
    ("delta", "before", "after", "k"),
    [("0.3", "0.69", "0.70", (6.69, 11.0)), ("0.12", "0.65", "0.70", (5.20, 6.52)), ("0.12", "0.87", "0.88", (4.47, 5.60))],
)
def test_H6_a_better_policy_can_draw_more(delta: str, before: str, after: str, k: tuple[float, float]) -> None:
    """E[k] = k_0 F(J) + 32 (1 - F(J)): the thresholds fall, and so does the share that stops."""
    assert tuple(round(float(mean_k(delta, rate(p))), 2) for p in (before, after)) == k


def test_H8_self_annealing_fails_for_a_policy_better_on_every_prompt() -> None:
    """60% of prompts solved at once; then 30% more with p = .12: delta .45 -> .155, J 1 -> 14, E[k] 14.0 -> 18.4."""
    before = {ONE: Fraction(3, 5), Fraction(0): Fraction(2, 5)}
    after = {ONE: Fraction(3, 5), Fraction("0.12"): Fraction(3, 10), Fraction(0): Fraction(1, 10)}
    deltas = [1 - first_success(32, r) + Fraction(1, 20) for r in (before, after)]
    assert [round(float(d), 2) for d in deltas] == [0.45, 0.16]
    assert [first_success_index(d, r) for d, r in zip(deltas, (before, after), strict=True)] == [1, 14]
    assert [round(float(mean_k(str(d), r)), 1) for d, r in zip(deltas, (before, after), strict=True)] == [14.0, 18.4]


def test_H9_the_telescoping_saving_is_an_identity() -> None:
    law = {2: Fraction(1, 2), 8: Fraction(1, 4), 32: Fraction(1, 4)}
    stopped = [sum((w for k, w in law.items() if k <= b), Fraction(0)) for b in GRID]
    assert expected_savings(GRID, stopped) == sum(w * (32 - k) for k, w in law.items())


# --- automatic delta


def test_J1_and_J5_the_rule_and_its_ends() -> None:
    assert [auto_delta(s, 10) for s in (4, 7, 9)] == [Fraction(65, 100), Fraction(35, 100), Fraction(15, 100)]
    assert auto_delta(200, 200) == Fraction(1, 20) and auto_delta(0, 200) == Fraction(19, 20)
    assert auto_delta(10, 200, delta_max=1) == 1  # no level: every rank refuses it
    with pytest.raises(ValueError, match="open interval"):
        conformal_rank(200, auto_delta(10, 200, delta_max=1))


@pytest.mark.parametrize("solved", ["0.3", "0.5", "0.8", "0.93"])
def test_J2_the_same_set_costs_nothing_on_average_and_points_when_the_claim_is_boldest(solved: str) -> None:
    """Score continuous below its atom of unsolved prompts: coverage given N solved is p (N - 9)/(N + 1), claimed (N - 10)/200."""
    p, n = float(solved), 200
    counts = np.arange(20, n + 1)
    law = binom.pmf(counts, n, p)
    claimed = np.array([float(1 - auto_delta(int(s), n)) for s in counts])
    ranks = np.array([conformal_rank(n, auto_delta(int(s), n)) for s in counts])
    cover = np.where(ranks > counts, 1.0, p * ranks / (counts + 1))
    gap = cover - claimed
    assert abs(law @ gap) < 0.0004
    bold = counts > binom.ppf(0.8, n, p)  # delta in its lowest fifth
    assert (law[bold] @ gap[bold]) / law[bold].sum() < -0.01
    assert (law[~bold] @ gap[~bold]) / law[~bold].sum() > 0


def test_J3_the_split_covers_given_the_delta_that_was_announced() -> None:
    """n_q = 20 of 40: for every delta that 20 other prompts can announce, coverage is at least 1 - delta, exactly."""
    first, second = disjoint_split(40, seed=0)
    assert len(first) == len(second) == 20
    pmf = [Fraction(7, 10 * 30)] * 30 + [Fraction(3, 10)]
    for s in range(21):
        assert tied_coverage(pmf, 20, auto_delta(s, 20)) >= 1 - auto_delta(s, 20)


def test_J4_only_the_last_budget_is_sure_to_be_active() -> None:
    """Code, n = 200, the same prompts: q_k < 1 iff the prompts with a pass before response k number at least N_32 - 9."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        passes = rng.random((200, 32)) < rng.beta(1.14, 0.86, (200, 1))
        o, solved = Outcomes(np.arange(200), passes), int(passes.any(axis=1).sum())
        table = FirstSuccess().gold_scores(o, GRID, np.zeros(200))
        q = [conformal_quantile(table[:, m], auto_delta(solved, 200)).value for m in range(5)]
        early = [int(passes[:, : k - 1].any(axis=1).sum()) for k in GRID]
        assert [x < 1 for x in q] == [e >= solved - 9 for e in early]
        assert q[0] >= 1 and q[1] >= 1


def test_J7_a_fixed_level_of_one_in_twenty_needs_191_solved_of_200() -> None:
    assert conformal_rank(200, "0.05") == 191


# --- shift


def test_L1_the_bound_without_the_extra_term_is_attained() -> None:
    """Scores uniform on ten values, threshold at the 8th (delta = .2 in the limit); move .3 from below it to above it."""
    before = [Fraction(1, 10)] * 10
    after = [Fraction(1, 10)] * 5 + [Fraction(0)] * 3 + [Fraction(1, 10)] + [Fraction(4, 10)]
    assert total_variation(before, after) == Fraction(3, 10)
    assert sum(after[:8], Fraction(0)) == tv_shift_bound("0.2", "0.3") == Fraction(1, 2)


def test_L3_a_distance_between_features_bounds_nothing() -> None:
    """Two laws of prompts that no feature tells apart, one always covered, one never: feature distance 0, coverage 0."""
    prompts = [Fraction(1, 2), Fraction(1, 2), Fraction(0), Fraction(0)], [Fraction(0), Fraction(0), Fraction(1, 2), Fraction(1, 2)]
    features = [[law[0] + law[2], law[1] + law[3]] for law in prompts]
    assert total_variation(*features) == 0 and total_variation(*prompts) == 1
    assert tv_shift_bound("0.1", 0) == Fraction(9, 10) and tv_shift_bound("0.1", 1) == 0
