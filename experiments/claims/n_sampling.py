"""N: pass@k and its estimators (C-GRPO, evaluation protocol; CARM, Appendix G)."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np

from carm_core import all_at_k, best_of_k, majority_vote, pass_at_k, worst_of_k

from .ledger import CLOSED, FALSE, HOLDS, Evidence, Figure, claim, search

F = Fraction
KS = (1, 2, 4, 8, 16, 32)


def majority(k: int, p: Fraction) -> Fraction:
    """P(the vote of k responses is gold), one wrong answer, ties split: the library's vote on every count."""
    total = F(0)
    for c in range(k + 1):
        codes = np.array([[0] * c + [1] * (k - c)])
        total += comb(k, c) * p**c * (1 - p) ** (k - c) * F(float(majority_vote(codes, np.array([0]))[0])).limit_denominator(4)
    return total


@claim(
    "N1", "Evaluation protocol", "Majority vote at k reads as pass@k: more responses do not hurt.", FALSE,
    repaired="It is maj@k, at most pass@k, and can fall in k; pass@K_max cannot be read off Tables 1 to 3 for mathematics.",
    guard="tests/carm_core/test_sampling.py::test_majority_vote_is_one_over_the_tied_answers",
)  # fmt: skip
def n1(effort: int) -> Evidence:
    p = F(2, 5)
    vote = [majority(k, p) for k in KS]
    steps = zip(KS, KS[1:], vote, vote[1:], strict=False)
    stated = search((f"p = 2/5, one wrong answer: maj@{a} = {float(x):.3f}, maj@{b} = {float(y):.3f}", y >= x) for a, b, x, y in steps)
    repaired = search(((k, q), majority(k, q) <= 1 - (1 - q) ** k) for k, q in product((1, 2, 4, 8), (F(1, 10), p, F(3, 4))))
    recorded = ("0.40", "0.40", "0.352", "0.290", "0.213", "0.128")
    return Evidence(stated, None, repaired, tuple(Figure(f"maj@{k}", v, r) for k, v, r in zip(KS, vote, recorded, strict=True)))


@claim(
    "N2", "Evaluation protocol", "Success of exactly k responses is an unbiased estimate of pass@k.", HOLDS,
    repaired="Unbiased but noisy: variance .151 against .035 for the estimator from 16 responses (p = .05, k = 4).",
    guard="tests/carm_core/test_sampling.py::test_pass_and_all_at_k_are_unbiased_for_every_success_rate",
)  # fmt: skip
def n2(effort: int) -> Evidence:
    def cases():
        for k, p in product((1, 2, 4, 8), (F(1, 20), F(1, 2), F(9, 10))):
            mean = sum(comb(k, c) * p**c * (1 - p) ** (k - c) * F(float(pass_at_k(c, k, k))) for c in range(k + 1))
            yield f"k = {k}, p = {p}", mean == 1 - (1 - p) ** k

    p, n, k = F(1, 20), 16, 4
    value = [F(float(pass_at_k(c, n, k))) for c in range(n + 1)]
    law = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(w * v for w, v in zip(law, value, strict=True))
    truth = 1 - (1 - p) ** k
    return Evidence(
        search(cases()),
        figures=(
            Figure("variance, exactly k", truth * (1 - truth), "0.151"),
            Figure("variance, n = 16", sum(w * (v - mean) ** 2 for w, v in zip(law, value, strict=True)), "0.035"),
        ),
    )


@claim(
    "N3", "Appendix G", "1 - C(n-c, k)/C(n, k) is unbiased; with replacement best of k is biased low and worst of k high.", HOLDS,
    guard="tests/carm_core/test_sampling.py::test_the_four_statistics_equal_enumeration",
)  # fmt: skip
def n3(effort: int) -> Evidence:
    def cases():
        for n in range(1, 9):
            for k, p in product(range(1, n + 1), (F(1, 10), F(1, 2), F(4, 5))):
                law = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
                mean = {
                    f: float(sum(w * F(float(f(c, n, k))) for c, w in enumerate(law))) for f in (pass_at_k, all_at_k, best_of_k, worst_of_k)
                }
                some, every = float(1 - (1 - p) ** k), float(p**k)
                ok = abs(mean[pass_at_k] - some) < 1e-12 and abs(mean[all_at_k] - every) < 1e-12
                yield f"n = {n}, k = {k}, p = {p}", ok and mean[best_of_k] <= some + 1e-12 and mean[worst_of_k] >= every - 1e-12

    def bias(k, n=16):
        p = np.linspace(0, 1, 4001)[:, None]
        c = np.arange(n + 1)
        law = np.array([comb(n, int(j)) for j in c]) * p**c * (1 - p) ** (n - c)
        return float((1 - (1 - p[:, 0]) ** k - law @ best_of_k(c, n, k)).max())

    figures = [
        Figure(f"largest bias of best of {k}, n = 16", bias(k), r) for k, r in ((2, "0.016"), (4, "0.039"), (8, "0.082"), (16, "0.163"))
    ]
    return Evidence(search(cases(), CLOSED), figures=(*figures, Figure("c = 1 of 16, k = 16", float(best_of_k(1, 16, 16)), "0.644")))
