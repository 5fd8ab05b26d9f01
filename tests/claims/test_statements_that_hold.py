"""The statements about calibrated stopping that do hold, in the order of their list; each over every exchangeable law or exactly."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import beta

from conformal_core import (
    APS,
    ConformalBudget,
    FirstSuccess,
    MassAbove,
    Outcomes,
    PassRate,
    Score,
    auto_delta,
    conformal_quantile,
    conformal_rank,
    first_success_mean_k,
    replay,
    split_ecdf,
    tied_coverage,
)
from tests.strategies import levels

SCORES: list[Score] = [APS(), APS("inclusive"), MassAbove(), FirstSuccess(), PassRate()]
by_score = pytest.mark.parametrize("score", SCORES, ids=repr)
GRID = (1, 2, 4)
TABLES = arrays(np.int64, st.tuples(st.integers(2, 9), st.just(4)), elements=st.integers(-1, 2))
DELTAS = st.sampled_from(["1/10", "1/5", "1/3", "1/2"])
quiet = pytest.mark.filterwarnings("ignore:(n|reference). got:UserWarning")


def prompts(codes: np.ndarray) -> Outcomes:
    ids = (np.arange(len(codes), dtype=np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15)
    return Outcomes(ids, codes == 0, codes=codes, gold=np.zeros(len(codes), np.int64))


@by_score
@given(codes=TABLES, d=levels)
def test_statement_1_threshold_and_never_stop(score: Score, codes: np.ndarray, d: Fraction) -> None:
    """q = S_(L) if L <= n, else +inf; a budget with q >= 1 never stops."""
    o, n, rank = prompts(codes), len(codes), conformal_rank(len(codes), d)
    u = np.linspace(0.1, 0.9, n)
    table = score.gold_scores(o, GRID, u)
    for m, k in enumerate(GRID):
        q = conformal_quantile(table[:, m], d).value
        assert q == (sorted(table[:, m])[rank - 1] if rank <= n else math.inf)
        assert q < 1 or not score.stop(o, k, q, u)[0].any()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 60), levels)
@settings(deadline=None)
def test_statement_2_coverage_is_the_rank_plus_what_ties_add(parts: list[int], n: int, d: Fraction) -> None:
    """P(S <= q) = L/(n + 1) + E[F(F^-1(B)) - B], B ~ Beta(L, n + 1 - L), by the incomplete beta function."""
    pmf = [Fraction(p, sum(parts)) for p in parts]
    rank, exact = conformal_rank(n, d), tied_coverage(pmf, n, d)
    if rank > n:
        assert exact == 1
        return
    cdf = np.cumsum([0.0, *(float(p) for p in pmf)])
    cdf[-1] = 1.0
    below = beta(rank, n + 1 - rank).cdf(cdf)
    assert float(exact) == pytest.approx(float((cdf[1:] * np.diff(below)).sum()), abs=1e-12)
    assert exact >= Fraction(rank, n + 1)


@by_score
@quiet
@settings(max_examples=40, deadline=None)
@given(codes=TABLES, delta=DELTAS)
def test_statement_3_wrong_commits_at_a_fixed_budget(score: Score, codes: np.ndarray, delta: str) -> None:
    """P(gold not in C_k) <= delta, so P(stop at k and wrong) <= delta.  Given the multiset of prompts each is equally often the new one."""
    o = prompts(codes)
    u = np.linspace(0.05, 0.95, o.n)
    table = score.gold_scores(o, GRID, u)
    for m, k in enumerate(GRID):
        missed = wrong = 0
        for i in range(o.n):
            q = conformal_quantile(np.delete(table[:, m], i), delta).value
            stop, answer = score.stop(o.take(np.array([i])), k, q, u[i : i + 1])
            right = o.passes[i, :k].any() if not score.needs_answers else answer[0] == 0
            missed += bool(table[i, m] > q)
            wrong += bool(stop[0] and not right)
        assert Fraction(missed, o.n) <= Fraction(delta) and Fraction(wrong, o.n) <= Fraction(delta)


def false_stops(o: Outcomes, **kwargs: object) -> Fraction:
    """Share of choices of the new prompt for which the whole policy, calibrated on the others, stops it on a wrong answer."""
    wrong = 0
    for i in range(o.n):
        policy = ConformalBudget(GRID, n_calibration=200, **kwargs)
        policy.calibrate(o.take(np.delete(np.arange(o.n), i)))
        wrong += policy.audit(o.take(np.array([i])))["false_stop"][0]
    return Fraction(wrong, o.n)


@pytest.mark.parametrize("rule", ["per_budget", "bonferroni", "max_rank", "max_score", "risk_control"])
@pytest.mark.parametrize("score", [APS(), APS("inclusive"), MassAbove()], ids=repr)
@quiet
@settings(max_examples=20, deadline=None)
@given(codes=TABLES, delta=DELTAS)
def test_statement_3_wrong_commits_at_an_adaptive_budget(rule: str, score: Score, codes: np.ndarray, delta: str) -> None:
    """At most min(1, M delta) with one level per budget; at most delta after delta/M, simultaneous calibration or risk control."""
    bound = Fraction(delta) * (len(GRID) if rule == "per_budget" else 1)
    assert false_stops(prompts(codes), score=score, delta=delta, multiplicity=rule) <= min(bound, Fraction(1))


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 7), st.randoms(use_true_random=False), levels)
def test_statement_4_simultaneous_thresholds_are_exact_given_the_reference(m: int, n: int, random: object, d: Fraction) -> None:
    """T_i = max_k #{D1_k < s_ik}/m, t = T_(L) on D2, q_k = D1_k,(t m + 1): P(all k: S_k <= q_k) >= 1 - delta; L/(n + 1) for distinct T."""
    rng = np.random.default_rng(random.randrange(10**6))
    reference, points = np.sort(rng.random((m, 2)), axis=0), rng.random((n + 1, 2))
    largest = (points[:, None, :] > reference).sum(axis=1).max(axis=1)
    hits = [bool((points[i] <= split_ecdf(reference, np.delete(points, i, axis=0), d).q).all()) for i in range(n + 1)]
    rank = conformal_rank(n, d)
    assert Fraction(sum(hits), n + 1) >= 1 - d
    assert sum(hits) >= rank and (sum(hits) == rank or len(set(largest)) < n + 1)
    assert hits == [rank > n or largest[i] <= sorted(np.delete(largest, i))[rank - 1] for i in range(n + 1)]


@quiet
def test_statement_5_first_success_is_one_number() -> None:
    """q_k = min(1, J_(L)/k); stop iff j* <= J_(L) < k; E[k] = k_0 F(J) + K_max (1 - F(J)).  Every calibration set of three prompts."""
    grid, never = (1, 2, 4), 5
    for firsts, d in product(product(range(1, never + 1), repeat=3), ("1/4", "1/2", "3/4")):
        o = Outcomes(np.arange(3), np.array(firsts)[:, None] == np.arange(1, 5))
        policy = ConformalBudget(grid, score=FirstSuccess("paper"), delta=d, n_calibration=9)
        policy.calibrate(o)
        j = sorted(firsts)[conformal_rank(3, d) - 1]
        assert policy.stop_rule.q == tuple(min(1.0, j / k) for k in grid)
        drawn = replay(policy, o).drawn
        active = min((k for k in grid if j < k), default=4)
        assert drawn.tolist() == [active if first <= j < active else 4 for first in firsts]
        solved = Fraction(sum(first <= j for first in firsts), 3) if j < never else Fraction(0)
        assert Fraction(int(drawn.sum()), 3) == first_success_mean_k(grid, j if j < never else None, solved)


def test_statement_6_auto_delta_leaves_nine_solved_prompts_above_the_threshold() -> None:
    """n = 200, epsilon = .05, the same prompts: L = N - 9 for 11 <= N <= 200; with the cap at .95 from N = 20 on."""
    assert all(conformal_rank(200, auto_delta(n, 200, delta_max=1)) == n - 9 for n in range(11, 201))
    assert [n for n in range(11, 201) if conformal_rank(200, auto_delta(n, 200)) != n - 9] == list(range(11, 20))


@pytest.mark.parametrize("prompts_in_the_world", [5, 50])
def test_statement_7_only_for_a_policy_independent_of_the_calibration_prompts(prompts_in_the_world: int) -> None:
    """n = 1, delta = 1/2: the first threshold names the calibration prompt; a policy that then solves that one only covers 1 in m."""
    m, covered, independent = prompts_in_the_world, 0, 0
    u = np.full(m, 0.5)
    for chosen in range(m):
        solved = np.eye(m, dtype=bool)[chosen]
        for policy in ("depends", "does not"):
            codes = np.where(solved if policy == "depends" else np.arange(m) < m - m // 5, 0, 1)[:, None] * np.ones((m, 2), int)
            o = Outcomes(np.arange(m), codes == 0, codes=codes, gold=np.zeros(m, int))
            s = APS().gold_scores(o, (2,), u)[:, 0]
            q = conformal_quantile(s[[chosen]], "1/2").value
            hits = int((s <= q).sum())
            covered += hits if policy == "depends" else 0
            independent += hits if policy == "does not" else 0
    assert Fraction(covered, m * m) == Fraction(1, m) < Fraction(1, 2)
    assert Fraction(independent, m * m) >= Fraction(1, 2)
