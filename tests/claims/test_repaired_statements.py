"""Claims of the C-GRPO paper that hold only as repaired here; exact where a law is known, each test named after its claim."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations, product
from math import comb, exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binomtest

from conformal_core import (
    APS,
    ConformalBudget,
    FirstSuccess,
    MassAbove,
    Outcomes,
    ReleasedAPS,
    auto_delta,
    calibrate_thresholds,
    conformal_quantile,
    conformal_rank,
    count_votes,
    disjoint_split,
    first_success_cdf,
    replay,
    tv_shift_bound,
)

GRID = (2, 4, 8, 16, 32)


def perfect(u: list[float], k: int) -> list[float]:
    """APS scores, at budget k, of prompts that every response solves."""
    codes = np.zeros((len(u), 4), np.int64)
    o = Outcomes(np.arange(len(u)), codes == 0, codes=codes, gold=codes[:, 0])
    return APS().gold_scores(o, (k,), u)[:, 0].tolist()


# --- A: split conformal


def test_A9_exchangeability_is_lost_on_prompts_the_policy_was_trained_on() -> None:
    """A policy trained on the calibration prompts solves them and no other: it covers them all, and no fresh prompt."""
    codes = np.array([[0, 0, 0, 0]] * 20 + [[1, 1, 1, 0]] * 20)
    o = Outcomes(np.arange(40), codes == 0, codes=codes, gold=np.zeros(40, int))
    s = MassAbove().gold_scores(o, (4,), np.zeros(40))[:, 0]
    q = conformal_quantile(s[:20], "0.1").value
    assert (s[:20] <= q).all() and not (s[20:] <= q).any()
    fresh = [conformal_quantile(np.delete(s, i), "0.1").value >= s[i] for i in range(40)]
    assert sum(fresh) >= 36  # exchangeable: whichever prompt is the new one


def test_A11_never_solved_scores_above_solved_at_the_last_response() -> None:
    o = Outcomes([1, 2], np.array([[False] * 31 + [True], [False] * 32]))
    ours, paper = (score.gold_scores(o, (32,), np.zeros(2))[:, 0] for score in (FirstSuccess(), FirstSuccess("paper")))
    assert ours[0] == 1 < ours[1] and paper[0] == paper[1] == 1
    policy = ConformalBudget(GRID, score=FirstSuccess(), split=False, n_calibration=2)
    policy.calibrate(o)
    assert policy.delta == auto_delta(1, 2)  # the prompt solved at its last response is solved


def test_A15_ranks_are_integers_where_binary_floats_err() -> None:
    pairs = [(n, j) for n in range(1, 401) for j in range(1, 100)]
    right = {(n, j): -(-(n + 1) * (100 - j) // 100) for n, j in pairs}
    assert all(conformal_rank(n, j / 100) == rank for (n, j), rank in right.items())
    assert sum(int(np.ceil((n + 1) * (1.0 - j / 100))) != rank for (n, j), rank in right.items()) == 231


# --- G: several budgets


def test_G3_one_u_per_prompt_makes_misses_coincide_and_fresh_u_makes_them_independent() -> None:
    """Perfect policy, n = 4, delta = 2/5 (L = 3), every order of the five u: the misses of three budgets are one event, or independent."""
    u = [0.1, 0.3, 0.5, 0.7, 0.9]
    missed = {}
    for order in permutations(u):
        q = [conformal_quantile(perfect(list(order[:4]), k), "2/5").value for k in (1, 2, 4)]
        missed[order] = [perfect([order[4]], k)[0] > x for k, x in zip((1, 2, 4), q, strict=True)]
    one = Fraction(sum(any(m) for m in missed.values()), 120)
    assert one == 1 - Fraction(3, 5) and all(len(set(m)) == 1 for m in missed.values())
    alone = Fraction(sum(m[0] for m in missed.values()), 120)
    fresh = Fraction(sum(any(c) for c in product(*([m[0] for m in missed.values()],) * 2)), 120**2)
    assert fresh == 1 - (1 - alone) ** 2 > one


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_G3_the_never_sampled_part_is_missed_at_all_budgets_together(u: list[float]) -> None:
    codes = np.ones((1, 4), np.int64)
    o = Outcomes([7], codes == 0, codes=codes, gold=np.array([0]))
    assert [APS().gold_scores(o, (k,), [x])[0, 0] for k, x in zip((1, 2, 4), u, strict=True)] == [1, 1, 1]


def test_G4_simultaneous_calibration_spends_what_bonferroni_does_not() -> None:
    """n = 100, delta = .12, five budgets with one score, every place of the new prompt: misses 2/101, against 12/101 = floor(101 delta)."""
    scores = np.tile(np.arange(101.0)[:, None], 5)
    missed = dict.fromkeys(("bonferroni", "max_score"), 0)
    for i in range(101):
        for rule in missed:
            q = calibrate_thresholds(np.delete(scores, i, axis=0), GRID, "0.12", rule).q
            missed[rule] += bool((scores[i] > q).any())
    assert missed == {"bonferroni": 2, "max_score": 12} and int(Fraction("0.12") * 101) == 12


def chain(n: int, rank: int, budgets: int, steps: int) -> list[Fraction]:
    """Coverage of a fresh prompt at each checkpoint, when every published threshold names one calibration prompt not named before.

    With a of n named and covered for sure, the threshold is the (rank - a)-th of n - a scores that are exchangeable with the new one.
    """
    law, covered = {0: Fraction(1)}, []
    for _ in range(steps):
        covered.append(sum((w * Fraction(max(rank - a, 0), n + 1 - a) for a, w in law.items()), Fraction(0)))
        after: dict[int, Fraction] = {}
        for a, w in law.items():
            named = {a: w}
            for _ in range(budgets if a < rank else 0):
                more: dict[int, Fraction] = {}
                for b, x in named.items():
                    seen = Fraction(b - a, n - a)
                    more[b] = more.get(b, Fraction(0)) + x * seen
                    more[b + 1] = more.get(b + 1, Fraction(0)) + x * (1 - seen)
                named = more
            for b, x in named.items():
                after[b] = after.get(b, Fraction(0)) + x
        law = after
    return covered


def test_G5_thresholds_that_steer_training_lose_coverage_within_a_few_checkpoints() -> None:
    """n = 20, L = 11, M = 5: each published threshold is the score of one prompt; the next policy solves those prompts and few others.

    Coverage falls .524 -> .392 -> .168 -> .001 -> 0 by the exact law, and the scores and thresholds of the library follow it.
    """
    law = chain(20, conformal_rank(20, "1/2"), 5, 5)
    assert [round(float(x), 3) for x in law] == [0.524, 0.392, 0.168, 0.001, 0.0]
    rng, grid, runs = np.random.default_rng(5), (4, 8, 16, 32, 64), 200
    hits = np.zeros(5, int)
    for _ in range(runs):
        named = np.zeros(21, bool)  # the last prompt is fresh
        for t in range(5):
            codes = np.where(named[:, None], np.arange(64), np.minimum(np.arange(64), 1))  # gold, then all different or all alike
            o = Outcomes(np.arange(21), codes == 0, codes=codes, gold=np.zeros(21, int), step=t)
            found = np.zeros(21, bool)
            for k in grid:
                s = APS().gold_scores(o, (k,), rng.random(21))[:, 0]
                q = conformal_quantile(s[:20], "1/2").value
                hits[t] += k == grid[0] and s[20] <= q
                found[:20] |= s[:20] == q
            named |= found
    for t in range(5):
        assert binomtest(int(hits[t]), runs, float(law[t])).pvalue > 1e-3 / 5


def test_G5_fresh_calibration_prompts_at_every_checkpoint_restore_it() -> None:
    """n = 1, delta = 1/2, a world of m prompts: the policy solves what the first threshold named, but other prompts calibrate it."""
    m = 12
    for chosen in range(m):
        solved = np.arange(m) == chosen
        s = np.where(solved, 0.0, 1.0 + np.arange(m))
        others = [x for x in range(m) if x != chosen]
        covered = [s[new] <= conformal_quantile([s[c]], "1/2").value for c in others for new in others if new != c]
        assert Fraction(int(np.sum(covered)), len(covered)) == Fraction(1, 2)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(2, 8),
    st.integers(0, 10**6),
    st.sampled_from(["1/5", "2/5", "1/2", "7/10"]),
    st.sampled_from([APS(), MassAbove(), FirstSuccess()]),
)
@pytest.mark.filterwarnings("ignore:(n|reference). got")
def test_statement_4_split_ecdf_through_the_whole_policy(m: int, extra: int, seed: int, delta: str, score: object) -> None:
    """Given the prompts that fix the scale, whichever of the others is new: missed at some budget, hence stopped wrongly, at most delta."""
    n = 2 * m + (extra % 2)  # calibration prompts: half of them, rounded down, fix the scale
    first, second = disjoint_split(n, seed=(3, 0))
    rng = np.random.default_rng(seed)
    codes = np.where(rng.random((n + 1, 8)) < rng.random((n + 1, 1)), 0, rng.integers(1, 3, (n + 1, 8)))
    full = Outcomes(np.arange(n + 1), codes == 0, codes=codes, gold=np.zeros(n + 1, int))
    scale, rest = np.arange(len(first)), np.arange(len(first), n + 1)
    ids = np.empty(n, np.uint64)  # a name is a place in the split, and keys the coin, so each prompt brings its coin along
    missed = wrong = 0
    coin = rng.random(n + 1)
    for new in rest:
        order = np.concatenate([scale, rest[rest != new]])
        ids[:] = np.concatenate([first, second])
        policy = ConformalBudget((2, 4, 8), score=score, delta=delta, multiplicity="split_ecdf", n_calibration=200, seed=3)
        keyed = dict(zip(ids.tolist(), coin[order].tolist(), strict=True)) | {10**6: coin[new]}
        policy._u = lambda o, keyed=keyed: np.array([keyed[int(i)] for i in o.prompt_ids])
        policy.calibrate(Outcomes(ids, full.passes[order], codes=codes[order], gold=np.zeros(n, int)))
        alone = Outcomes([10**6], full.passes[[new]], codes=codes[[new]], gold=np.array([0]))
        missed += bool((score.gold_scores(alone, (2, 4, 8), coin[[new]])[0] > policy.stop_rule.q).any())
        wrong += policy.audit(alone)["false_stop"][0]
    assert (policy.stop_rule.n_reference, policy.stop_rule.n) == (len(first), len(second))
    assert Fraction(missed, len(rest)) <= Fraction(delta) and wrong <= missed


# --- I: the learning signal


def test_I3_a_hard_prompt_keeps_a_positive_only_if_it_is_not_unanimously_wrong_early() -> None:
    """Released rule at q_2 = 1, one wrong answer, pass rates Beta(1.14, .86): 75% of the prompts solvable in 32 keep a positive."""
    codes = np.array([[1, 1], [1, 0], [0, 1], [0, 0]])
    o = Outcomes(np.arange(4), codes == 0, codes=codes, gold=np.zeros(4, int))
    assert ReleasedAPS().stop(o, 2, 1.0, np.full(4, 0.5))[0].tolist() == [True, False, False, True]  # wrong twice: lost
    assert not FirstSuccess().stop(o, 2, 0.5, np.zeros(4))[0][0]  # a verified stop never is
    wrong_twice, never = (1 - first_success_cdf(j, "1.14", "0.86") for j in (2, 32))
    kept = 1 - (wrong_twice - never) / (1 - never)
    assert round(float(kept), 2) == 0.75
    q = beta(1.14, 0.86).ppf((np.arange(20000) + 0.5) / 20000)
    assert float(wrong_twice) == pytest.approx(((1 - q) ** 2).mean(), abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.fractions(-2, 2, max_denominator=9), min_size=2, max_size=8), min_size=2, max_size=6), st.data())
def test_I4_the_mean_of_group_centred_rewards_is_zero_and_their_spread_depends_on_pruning(groups: list, data: st.DataObject) -> None:
    centred = [[r - sum(g) / len(g) for r in g] for g in groups]
    chosen = data.draw(st.sets(st.sampled_from(range(len(groups))), min_size=1))
    assert all(sum(g) == 0 for g in centred) and sum(sum(centred[i]) for i in chosen) == 0
    flat = [[Fraction(0)] * len(g) for g in groups]
    square = [sum(r * r for r in g) for g in centred]
    if sum(square):  # zero-variance groups add responses and no square
        count = sum(map(len, groups))
        assert Fraction(sum(square), count) > Fraction(sum(square), count + sum(map(len, flat)))


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.data())
def test_I5_the_kl_estimator_is_never_negative_and_unbiased(weights: list[int], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.integers(1, 9), min_size=len(weights), max_size=len(weights)))
    policy, reference = ([Fraction(w, sum(ws)) for w in ws] for ws in (weights, other))
    d = [log(r / p) for p, r in zip(policy, reference, strict=True)]
    assert all(exp(x) - x - 1 >= -1e-15 for x in d)
    assert sum(p * (r / p) for p, r in zip(policy, reference, strict=True)) == 1  # E[e^D], exactly
    kl = sum(float(p) * -x for p, x in zip(policy, d, strict=True))
    assert sum(float(p) * (exp(x) - x - 1) for p, x in zip(policy, d, strict=True)) == pytest.approx(kl, abs=1e-12)


# --- J: the split


def test_J6_the_split_changes_few_budgets_under_the_released_rule_alone() -> None:
    """Pass rates Beta(1.14, .86), one wrong answer, n = 200: share of 200 other prompts whose budget the split changes."""
    rng = np.random.default_rng(11)

    def table(n: int) -> Outcomes:
        codes = (rng.random((n, 32)) >= rng.beta(1.14, 0.86, (n, 1))).astype(np.int64)
        return Outcomes(rng.integers(0, 2**63, n).astype(np.uint64), codes == 0, codes=codes, gold=np.zeros(n, np.int64))

    changed = {"released": [], "randomized": []}
    for seed in range(30):
        calibration, test = table(200), table(200)
        for name, score in (("released", ReleasedAPS()), ("randomized", APS())):
            drawn = []
            for split in (True, False):
                policy = ConformalBudget(GRID, score=score, split=split, seed=seed)
                policy.calibrate(calibration)
                drawn.append(replay(policy, test).drawn)
            changed[name].append(float((drawn[0] != drawn[1]).mean()))
    mean = {name: np.mean(x) for name, x in changed.items()}
    error = {name: np.std(x, ddof=1) / 30**0.5 for name, x in changed.items()}
    assert mean["released"] + 4 * error["released"] < 0.04 < mean["randomized"] - 4 * error["randomized"]


# --- L, N: numbers


def test_L2_lower_bounds_and_margins_of_table_6() -> None:
    """Printed, in percent to one decimal: 1 - delta - d_TV - 1/201, whose last term the bound that holds does not need."""
    rows = [
        ("0", "87.5", "87.9", "0.4"),
        ("0.06", "81.5", "83.6", "2.1"),
        ("0.15", "72.5", "76.8", "4.3"),
        ("0.29", "58.5", "70.4", "11.9"),
    ]
    for tv, bound, empirical, margin in rows:
        exact = 100 * (tv_shift_bound("0.12", tv) - Fraction(1, 201))
        assert abs(exact - Fraction(bound)) <= Fraction(1, 20) and Fraction(empirical) - Fraction(bound) == Fraction(margin)


def test_N1_the_majority_of_more_responses_can_be_wrong_more_often() -> None:
    """p = .4, one wrong answer: maj@k falls .40, .40, .352, .290, .213, .128 while pass@k rises to 1."""
    p = Fraction(2, 5)

    def majority(k: int) -> Fraction:
        law = [comb(k, c) * p**c * (1 - p) ** (k - c) for c in range(k + 1)]
        return sum(law[k // 2 + 1 :], Fraction(0)) + (law[k // 2] / 2 if k % 2 == 0 else 0)

    assert [round(float(majority(k)), 3) for k in (1, 2, 4, 8, 16, 32)] == [0.4, 0.4, 0.352, 0.29, 0.213, 0.128]
    for k in (2, 4, 6):  # the vote of the library, over every sequence: a tie goes to the answer that appeared first
        codes = np.array(list(product((0, 1), repeat=k)))
        right = codes[count_votes(codes, k).answer == 0]
        assert sum((p ** int((c == 0).sum()) * (1 - p) ** int((c == 1).sum()) for c in right), Fraction(0)) == majority(k)
