"""A: the split-conformal machinery (C-GRPO, Sections 2.2, 4.2, 4.3; Theorem 2; Appendix D.1)."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, permutations, product

import numpy as np

from conformal_core import (
    APS,
    PassRate,
    conformal_quantile,
    conformal_rank,
    first_success_cdf,
    smoothed_p_values,
    tied_coverage,
)

from .laws import GRID, aps_quantile, groups, multisets, rate
from .ledger import CLOSED, ENUMERATED, EXTRA, FALSE, HOLDS, Evidence, Figure, claim, search

F = Fraction
LAWS = [["1"], ["1/2", "1/2"], ["8/9", "1/9"], ["1/2", "1/6", "1/3"], ["1/4"] * 4, ["1/10"] * 10]
DELTAS = [F(1, 10), F(1, 5), F(1, 4), F(2, 5), F(1, 2), F(3, 4)]


def left_out(values: tuple[float, ...], d: Fraction) -> Fraction:
    """Coverage given the multiset: each value is equally often the new one."""
    v = np.array(values, float)
    hits = sum(float(s) <= conformal_quantile(np.delete(v, i), d).value for i, s in enumerate(v))
    return F(int(hits), len(v))


@claim(
    "A1", "Eq. 6, Theorem 2", "With the rank min(L, n) a threshold covers with probability at least 1 - delta at every delta.", FALSE,
    repaired="With +inf when L > n, coverage lies in [1 - delta, 1 - delta + 1/(n + 1)] for distinct scores and every delta in (0, 1).",
    guard="test_split_conformal.py::test_A1_lower_bound_holds_with_an_infinite_threshold_and_fails_with_the_min",
)  # fmt: skip
def a1(effort: int) -> Evidence:
    pairs = [(n, F(j, 200)) for n in range(1, 61) for j in range(1, 200)]
    ranks = {pair: conformal_rank(*pair) for pair in pairs}
    stated = search((f"n = {n}, delta = {d}", F(min(ranks[n, d], n), n + 1) >= 1 - d) for n, d in pairs)

    def repaired():
        for n, d in pairs:
            yield f"n = {n}, delta = {d}", 1 - d <= F(ranks[n, d], n + 1) <= 1 - d + F(1, n + 1)
        for n, j in product((1, 2, 5, 9), range(1, 40)):
            yield f"n = {n}, delta = {j}/40", 0 <= left_out(tuple(range(n + 1)), F(j, 40)) - 1 + F(j, 40) <= F(1, n + 1)

    return Evidence(stated, None, search(repaired()), (Figure("pairs that fail, of 11940", stated.failed, "706"),))


@claim(
    "A2", "Theorem 5, proof", "If L > n the threshold covers everything, and both bounds of Theorem 2 stay true.", HOLDS,
    repaired="Eq. 6 must lose its min: with it, n = 20, delta = .1 and five budgets miss with probability .2165.",
    guard="test_sets_and_multiplicity.py::test_A2_and_G1_bonferroni_needs_the_infinite_threshold",
)  # fmt: skip
def a2(effort: int) -> Evidence:
    def cases():
        for n, j in product(range(1, 61), range(1, 200)):
            d = F(j, 200)
            if conformal_rank(n, d) > n:
                yield f"n = {n}, delta = {d}", conformal_quantile(np.zeros(n), d).value == math.inf and 1 - d + F(1, n + 1) >= 1

    found = search(cases())
    misses = 1 - F(min(conformal_rank(20, F(1, 50)), 20), 21) ** 5
    return Evidence(
        found, figures=(Figure("cases with L > n", found.tried, "706"), Figure("P(miss at some budget) with the min", misses, "0.2165"))
    )


@claim(
    "A3", "Section 2.2, Theorem 2", "Coverage is at most 1 - delta + 1/(n + 1) for any exchangeable score.", FALSE,
    repaired="Coverage lies between L/(n + 1) and L/(n + 1) + the largest atom.",
    guard="test_split_conformal.py::test_A3_ties_break_the_upper_bound",
)  # fmt: skip
def a3(effort: int) -> Evidence:
    cases = [(law, n, d, tied_coverage(law, n, d)) for law in LAWS for n in range(1, 8) for d in DELTAS]
    stated = search((f"masses {', '.join(law)}; n = {n}, delta = {d}: coverage {c}", c <= 1 - d + F(1, n + 1)) for law, n, d, c in cases)
    repaired = search(
        (f"{law}, n = {n}, delta = {d}", 0 <= c - F(conformal_rank(n, d), n + 1) <= max(map(F, law))) for law, n, d, c in cases
    )
    return Evidence(
        stated,
        None,
        repaired,
        (
            Figure("first success, k = 2, p ~ U(0, 1), n = 4, delta = 2/5", tied_coverage(["1/2", "1/2"], 4, "2/5"), "27/32"),
            Figure("p ~ Beta(8, 1), n = 4, delta = 1/2", tied_coverage(["8/9", "1/9"], 4, "1/2"), "17635/19683"),
        ),
    )


@claim(
    "A4", "Appendix D.1, proof of Theorem 2", "The rank of the new score among all n + 1 is uniform.", EXTRA,
    assumption="scores are distinct", repaired="With ties broken at random, P(p > delta) = 1 - delta exactly.",
    guard="test_split_conformal.py::test_A4_smoothed_rank_is_uniform_on_every_discrete_law",
)  # fmt: skip
def a4(effort: int) -> Evidence:
    def uniform(values, d):
        return left_out(values, d) == F(conformal_rank(len(values) - 1, d), len(values))

    stated = search((f"scores {m}, delta = {d}", uniform(m, d)) for n in (2, 3, 4) for m in multisets(n, n) for d in DELTAS)
    assuming = search((f"{p}, {d}", uniform(p, d)) for n in (2, 3, 4) for p in permutations(range(n)) for d in DELTAS)

    def smoothed():
        for n in (2, 3, 4):
            for m, d in product(multisets(n, n), DELTAS):
                total = F(0)
                for i in range(n):
                    rest = np.delete(np.array(m, float), i)
                    a, b = (F(round(float(smoothed_p_values(rest, [m[i]], u)[0]) * n), n) for u in (0.0, 1.0))
                    total += min(max((b - d) / (b - a), F(0)), F(1)) if b > a else F(a > d)
                yield f"{m}, {d}", total / n == 1 - d

    return Evidence(stated, assuming, search(smoothed()))


@claim(
    "A5", "Appendix D.1", "Pass rates are continuous, so a first-success score takes each value with probability 0.", FALSE,
    repaired="The score has atoms at 1/k, 2/k, ..., 1 for every law of p; the lower bound holds all the same.",
    guard="test_sets_and_multiplicity.py::test_A5_first_success_has_atoms_at_every_response",
)  # fmt: skip
def a5(effort: int) -> Evidence:
    laws = [(a, b, k) for a, b in ((1, 1), (2, 1), ("1.14", "0.86"), ("0.6", "1.4")) for k in (2, 3, 4)]

    def masses(a, b, k):
        cdf = [F(0), *(first_success_cdf(j, a, b) for j in range(1, k)), F(1)]
        return [y - x for x, y in pairwise(cdf)]

    stated = search(
        (f"p ~ Beta({a}, {b}), k = {k}: P(S = {j + 1}/{k}) = {w}", w == 0) for a, b, k in laws for j, w in enumerate(masses(a, b, k))
    )
    repaired = search((f"{a}, {b}, {k}, {d}", tied_coverage(masses(a, b, k), 6, d) >= 1 - d) for a, b, k in laws for d in DELTAS)
    figures = (
        Figure(f"mass at {j + 1}/3, p ~ U(0, 1)", w, r) for j, (w, r) in enumerate(zip(masses(1, 1, 3), ("1/2", "1/6", "1/3"), strict=True))
    )
    return Evidence(stated, None, repaired, tuple(figures))


def aps_coverage(n: int, d: str, atom: float) -> float:
    """L/(n + 1) + E[(1 - B) 1{B > 1 - atom}], B ~ Beta(L, n + 1 - L): scores continuous below an atom at 1."""
    from scipy.stats import beta

    rank = conformal_rank(n, d)
    return rank / (n + 1) + (n + 1 - rank) / (n + 1) * float(beta.sf(1 - atom, rank, n + 2 - rank))


@claim(
    "A6", "Section 4.2.1, Appendix D.1", "The APS score is strictly continuous, so coverage is exact and not merely conservative.", FALSE,
    repaired="Golds that were not sampled are an atom at 1 of mass m = E(1 - p)^k; coverage is exact only while m is below about delta/2.",
    guard="test_sets_and_multiplicity.py::test_A6_the_atom_of_unsampled_golds_adds_coverage",
)  # fmt: skip
def a6(effort: int) -> Evidence:
    atom = {(a, k): float(1 - first_success_cdf(k, a, str(2 - F(a)))) for a in ("1.14", "0.6") for k in GRID}
    cover = {key: aps_coverage(200, "0.12", m) for key, m in atom.items()}
    nominal = conformal_rank(200, "0.12") / 201
    excess = {key: c - nominal for key, c in cover.items()}
    stated = search(
        ((f"Beta({a}, {2 - F(a)}), k = {k}, atom {atom[a, k]:.3f}: excess {e:.4f}", abs(e) < 1e-6) for (a, k), e in excess.items()), CLOSED
    )
    repaired = search(((key, e >= -1e-12 and (e < 1e-3 or atom[key] > 0.06)) for key, e in excess.items()), CLOSED)
    return Evidence(
        stated,
        None,
        repaired,
        (
            Figure("atom at k = 2", atom["1.14", 2], "0.267"),
            Figure("coverage at k = 2", cover["1.14", 2], "1.000"),
            Figure("coverage at k = 4", cover["1.14", 4], "0.981"),
            Figure("coverage at k = 8", cover["1.14", 8], "0.8816"),
            Figure("weak policy, k = 8", cover["0.6", 8], "1.000"),
        ),
    )


@claim(
    "A7", "Section 4.2.1", "The APS quantile is informative where the quantile of 1 - pass rate saturates.", FALSE,
    repaired="Both scores are 1 exactly where the gold was not sampled: one quantile is 1 iff the other is.",
    guard="test_split_conformal.py::test_A7_aps_saturates_exactly_where_the_gold_was_not_sampled",
)  # fmt: skip
def a7(effort: int) -> Evidence:
    def both(n, k):
        for codes in product(product((0, 1, 2), repeat=k), repeat=n):
            o = groups(np.array(codes))
            u = np.linspace(0.2, 0.8, n)
            for d in (F(1, 2), F(2, 3)):
                yield (codes, d, *(conformal_quantile(s.gold_scores(o, (k,), u)[:, 0], d).value for s in (APS(), PassRate())))

    cases = [case for n, k in ((1, 1), (1, 2), (2, 2), (2, 3)) for case in both(n, k)]
    stated = search(((f"groups {c}, delta = {d}: both {a:g}", not (b >= 1 and a >= 1)) for c, d, a, b in cases), ENUMERATED)
    return Evidence(stated, None, search((((c, d), (a >= 1) == (b >= 1)) for c, d, a, b in cases), ENUMERATED))


@claim(
    "A8", "Section 4.2", "Calibrated quantiles strictly decrease as the model improves.", FALSE,
    repaired="Only the atom of unsampled golds falls; for a perfect policy every APS quantile is 1 - delta.",
    guard="test_efficiency_and_auto_delta.py::test_A14_thresholds_are_not_monotone_in_the_pass_rate",
)  # fmt: skip
def a8(effort: int) -> Evidence:
    rates = ["0.6", "0.7", "0.8", "0.9", "1"]
    q = {(k, p): aps_quantile(F("0.12"), k, rate(p)) for k in GRID for p in rates}
    steps = [(k, a, b) for k in GRID for a, b in pairwise(rates)]
    stated = search((f"k = {k}, p {a} -> {b}: q {float(q[k, a]):.3f} -> {float(q[k, b]):.3f}", q[k, b] < q[k, a]) for k, a, b in steps)
    return Evidence(stated, None, search((k, q[k, "1"] == F("0.88")) for k in GRID))


def memorising(m: int, depends: bool) -> Fraction:
    """Coverage of n = 1, delta = 1/2 over m prompts; the policy then solves a fixed four fifths, or only the prompt whose score the
    threshold of the checkpoint before was (all solved there, so that scores are the prompts' U).
    """
    covered = 0
    u = (np.arange(m) + 1) / (m + 1)
    earlier = APS().gold_scores(groups(np.zeros((m, 2), int)), (2,), u)[:, 0]
    for chosen in range(m):
        published = conformal_quantile(earlier[[chosen]], "1/2").value
        solved = earlier == published if depends else np.arange(m) < m - m // 5
        o = groups(np.where(solved, 0, 1)[:, None] * np.ones((m, 2), int))
        s = APS().gold_scores(o, (2,), np.full(m, 0.5))[:, 0]
        covered += int((s <= conformal_quantile(s[[chosen]], "1/2").value).sum())
    return F(covered, m * m)


@claim(
    "A9", "Section 4.2.2, Theorem 2", "Both scores are exchangeable, so coverage holds for any policy.", EXTRA,
    assumption="the policy is fixed independently of the calibration prompts",
    guard="test_statements_that_hold.py::test_statement_7_only_for_a_policy_independent_of_the_calibration_prompts",
)  # fmt: skip
def a9(effort: int) -> Evidence:
    def cases(which):
        for m, depends in product((2, 5, 20), which):
            c = memorising(m, depends)
            yield (
                f"{m} prompts, policy that {'saw' if depends else 'never saw'} the calibration prompt: coverage {c} against 1/2",
                c >= F(1, 2),
            )

    return Evidence(
        search(cases((False, True))), search(cases((False,))), figures=(Figure("coverage, 20 prompts", memorising(20, True), "1/20"),)
    )
