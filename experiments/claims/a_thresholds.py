"""A, continued: first-success and APS thresholds (C-GRPO, Sections 4.2.2, 4.3)."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np

from conformal_core import (
    APS,
    FirstSuccess,
    Outcomes,
    conformal_quantile,
    conformal_rank,
)

from .laws import GRID, aps_quantile, group, rate
from .ledger import ENUMERATED, FALSE, HOLDS, Evidence, Figure, claim, search

F = Fraction


@claim(
    "A10", "Section 4.2.2", "The code quantile is below 1 iff at least L - 1 problems have a pass within k.", FALSE,
    repaired="It is below 1 iff at least L problems have a pass before response k.",
    guard="test_split_conformal.py::test_A10_first_success_threshold_is_below_one_iff_enough_solved_before_k",
)  # fmt: skip
def a10(effort: int) -> Evidence:
    cases = []
    for n, k in product(range(1, 4), range(1, 4)):
        for firsts in product(range(1, k + 2), repeat=n):
            passes = np.array(firsts)[:, None] == np.arange(1, k + 1)
            s = FirstSuccess("paper").gold_scores(Outcomes(np.arange(n), passes), (k,), np.zeros(n))[:, 0]
            for d in (F(1, 5), F(1, 4), F(1, 3), F(1, 2), F(3, 4)):
                cases.append((n, k, firsts, d, conformal_quantile(s, d).value < 1, conformal_rank(n, d)))
    stated = search(
        (f"n = {n}, k = {k}, first passes {f}, delta = {d}", below == (sum(j <= k for j in f) >= r - 1)) for n, k, f, d, below, r in cases
    )
    repaired = search(((n, k, f, d), below == (sum(j <= k - 1 for j in f) >= r)) for n, k, f, d, below, r in cases)
    return Evidence(stated, None, repaired)


@claim(
    "A11", "Eq. 5", "The first-success score tells a pass at the last response from no pass at all.", FALSE,
    repaired="A failure scores above every success (+inf).", guard="test_split_conformal.py::test_A12_thresholds_are_one_number",
)  # fmt: skip
def a11(effort: int) -> Evidence:
    def apart(convention):
        for k in range(1, 6):
            o = Outcomes([0, 1], np.array([[False] * (k - 1) + [True], [False] * k]))
            late, never = FirstSuccess(convention).gold_scores(o, (k,), [0.0, 0.0])[:, 0]
            yield f"k = {k}: both {late:g}", never > late

    return Evidence(search(apart("paper"), ENUMERATED), None, search(apart("failure_above_success"), ENUMERATED))


@claim(
    "A12", "Section 4.3", "First-success thresholds never increase with the budget.", HOLDS,
    assumption="budgets are nested prefixes of one sample",
    guard="test_split_conformal.py::test_A12_first_success_thresholds_never_increase_with_the_budget",
)  # fmt: skip
def a12(effort: int) -> Evidence:
    def cases():
        for n in (1, 2, 3):
            for firsts in product(range(1, 6), repeat=n):
                o = Outcomes(np.arange(n), np.array(firsts)[:, None] == np.arange(1, 5))
                for convention, d in product(("paper", "failure_above_success"), ("1/4", "1/2", "3/4")):
                    s = FirstSuccess(convention).gold_scores(o, (1, 2, 3, 4), np.zeros(n))
                    q = [conformal_quantile(s[:, m], d).value for m in range(4)]
                    yield f"first passes {firsts}, delta = {d}: {q}", q == sorted(q, reverse=True)

    return Evidence(search(cases(), ENUMERATED))


@claim(
    "A13", "Section 4.3", "APS thresholds never increase with the budget.", FALSE,
    repaired="None; as k grows they tend to the quantile of the limit score, 1 - delta for a perfect policy.",
    guard="test_efficiency_and_auto_delta.py::test_A13_aps_thresholds_can_increase_with_the_budget",
)  # fmt: skip
def a13(effort: int) -> Evidence:
    path = APS().gold_scores(group(0, 1, 1), (2, 3), [0.5])[0]
    q = [aps_quantile(F(7, 10), k, rate("2/5")) for k in GRID]
    pairs = [
        ("p = 2/5, 1 - delta = .3", k1, k2, a, b)
        for (k1, a), (k2, b) in zip(zip(GRID, q, strict=True), list(zip(GRID, q, strict=True))[1:], strict=False)
    ]

    def cases():
        yield f"answers g, w, w with U = 1/2: s_2 = {path[0]:.4g} < s_3 = {path[1]:.4g}", path[1] <= path[0]
        for name, k1, k2, a, b in pairs:
            yield f"{name}: q_{k1} = {a} < q_{k2} = {b}", b <= a

    recorded = ("0.268", "0.326", "0.412", "0.608", "0.686")
    figures = [Figure(f"q_{k}", x, r) for k, x, r in zip(GRID, q, recorded, strict=True)]
    return Evidence(search(cases()), figures=(Figure("q_2", q[0], "15/56"), Figure("q_4", q[1], "125/384"), *figures))


@claim(
    "A14", "Section 4.3", "The threshold at small budgets falls as the policy improves.", FALSE,
    repaired="It falls only while the atom of unsampled golds matters, then rises to 1 - delta.",
    guard="test_efficiency_and_auto_delta.py::test_A14_thresholds_are_not_monotone_in_the_pass_rate",
)  # fmt: skip
def a14(effort: int) -> Evidence:
    rates, recorded = ("0.7", "0.8", "0.9", "0.95", "1"), ("0.939", "0.875", "0.8642", "0.8698", "0.88")
    q = [aps_quantile(F("0.12"), 2, rate(p)) for p in rates]
    last = [aps_quantile(F("0.12"), 32, rate(p)) for p in ("0.6", "0.8", "0.9", "1")]
    steps = list(zip(rates, rates[1:], q, q[1:], strict=False))
    stated = search((f"k = 2, p {a} -> {b}: q {float(x):.4f} -> {float(y):.4f}", y <= x) for a, b, x, y in steps)
    repaired = search((f"q at p = {p}", x >= F("0.88") - F(2, 100)) for p, x in zip(rates, q, strict=True))
    return Evidence(
        stated,
        None,
        repaired,
        (
            *(Figure(f"q_2 at p = {p}", x, r) for p, x, r in zip(rates, q, recorded, strict=True)),
            *(
                Figure(f"q_32 at p = {p}", x, r)
                for p, x, r in zip(("0.6", "0.8", "0.9", "1"), last, ("0.614", "0.703", "0.79", "0.88"), strict=True)
            ),
        ),
    )


@claim(
    "A15", "implementation of Eq. 6", "ceil((n + 1)(1 - delta)) in binary64 is the rank.", FALSE,
    repaired="Resolve delta to a Fraction once; the rank is integer arithmetic.",
    guard="tests/conformal_core/test_level.py::test_the_naive_float_rank_is_wrong_where_this_one_is_not",
)  # fmt: skip
def a15(effort: int) -> Evidence:
    pairs = [(n, j) for n in range(1, 401) for j in range(1, 100)]
    exact = {(n, j): -(-(n + 1) * (100 - j) // 100) for n, j in pairs}
    naive = {(n, j): math.ceil((n + 1) * (1.0 - j / 100)) for n, j in pairs}
    stated = search((f"n = {n}, delta = {j / 100:g}: {naive[n, j]}, not {exact[n, j]}", naive[n, j] == exact[n, j]) for n, j in pairs)
    repaired = search((f"n = {n}, delta = {j / 100:g}", conformal_rank(n, j / 100) == exact[n, j]) for n, j in pairs)
    return Evidence(stated, None, repaired, (Figure("wrong ranks of 39600", stated.failed, "231"),))
