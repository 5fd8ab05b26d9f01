"""H: better policies and rollouts (C-GRPO, Proposition 6, Corollary 7, Appendix D.2)."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import numpy as np

from conformal_core import (
    MassAbove,
    ReleasedAPS,
    conformal_rank,
    expected_savings,
    first_success_mean_k,
    inclusive_set,
    singleton_probability,
)

from .laws import GRID, HALF, SPLIT, Rates, aps_cdf, aps_quantile, first_success, first_success_index, gold_counts, group, mean_k, rate
from .ledger import CLOSED, ENUMERATED, EXTRA, FALSE, HOLDS, Evidence, Figure, claim, search

F = Fraction


def quantiles(d: str, rates: Rates) -> list[Fraction]:
    return [aps_quantile(F(d), k, rates) for k in GRID]


def figures(name: str, values: list[Fraction], recorded: list[str]) -> tuple[Figure, ...]:
    return tuple(Figure(f"{name}, k = {k}", v, r) for k, v, r in zip(GRID, values, recorded, strict=True) if r)


@claim(
    "H1", "Appendix D.2", "Higher mean gold mass makes the APS score stochastically smaller.", FALSE,
    guard="test_efficiency_and_auto_delta.py::test_H1_more_gold_mass_on_average_is_not_a_smaller_score",
)  # fmt: skip
def h1(effort: int) -> Evidence:
    before, after = quantiles("0.3", HALF), quantiles("0.3", SPLIT)
    stated = search(
        (f"p = 1/2 -> 60% always, 40% never; k = {k}, delta = .3: q {float(a):.3f} -> {float(b):.3f}", b <= a)
        for k, a, b in zip(GRID, before, after, strict=True)
    )
    return Evidence(
        stated, figures=figures("p = 1/2", before, ["0.80", "", "", "", "0.712"]) + figures("mixed", after, ["1", "", "", "", "1"])
    )


@claim(
    "H2", "Proposition 6, APS", "If every prompt's pass rate rises, the APS thresholds do not increase.", FALSE,
    repaired="True if the conclusion is assumed: score laws ordered, F1 >= F0.",
    guard="test_efficiency_and_auto_delta.py::test_H2_a_uniformly_better_policy_can_have_larger_thresholds",
)  # fmt: skip
def h2(effort: int) -> Evidence:
    q = {p: quantiles("0.12", rate(p)) for p in ("0.6", "0.9", "1")}
    stated = search(
        (f"every p {a} -> {b}, k = {k}: q {float(x):.3f} -> {float(y):.3f}", y <= x)
        for a, b in (("0.9", "1"), ("0.6", "1"), ("0.6", "0.9"))
        for k, x, y in zip(GRID, q[a], q[b], strict=True)
    )

    def ordered():
        grid = [F(j, 24) for j in range(25)]
        for a, b, k in product(("0.3", "0.6", "0.9", "1"), ("0.4", "0.7", "1"), (2, 4)):
            if all(aps_cdf(t, k, rate(b)) >= aps_cdf(t, k, rate(a)) for t in grid):
                yield (a, b, k), aps_quantile(F("0.12"), k, rate(b)) <= aps_quantile(F("0.12"), k, rate(a))

    return Evidence(
        stated,
        None,
        search(ordered()),
        (
            *figures("p = .6", q["0.6"], ["", "", "", "0.708", "0.614"]),
            *figures("p = .9", q["0.9"], ["0.864", "0.821", "0.799", "0.791", "0.790"]),
            *figures("p = 1", q["1"], ["0.88"] * 5),
        ),
    )


def later(a: int | None, b: int | None) -> bool:
    """Whether index ``a`` (None: never) is at most ``b``."""
    return (a or 99) <= (b or 99)


@claim(
    "H3", "Proposition 6, code", "Better mean accuracy gives smaller first-success scores.", FALSE,
    repaired="It does when p rises on every prompt.",
    guard="test_efficiency_and_auto_delta.py::test_H3_code_needs_every_prompt_to_be_better_not_their_mean",
)  # fmt: skip
def h3(effort: int) -> Evidence:
    d = F(3, 10)
    j = [first_success_index(d, r, 4) for r in (HALF, SPLIT)]
    q = [code_threshold(x, 4) for x in j]
    stated = search([(f"p = 1/2 -> 60% always, 40% never; k = 4, delta = .3: q {q[0]} -> {q[1]}", later(j[1], j[0]))])

    def coupled():
        rates = [F(i, 5) for i in range(6)]
        for a, b, c, e in product(rates, repeat=4):
            if a <= c and b <= e and a < b and c < e:
                worse, better = {a: F(1, 3), b: F(2, 3)}, {c: F(1, 3), e: F(2, 3)}
                yield (a, b, c, e), later(first_success_index(d, better), first_success_index(d, worse))

    return Evidence(stated, None, search(coupled()), (Figure("q_4 before", q[0], "1/2"), Figure("q_4 after", q[1], "1")))


def code_threshold(j: int | None, k: int) -> Fraction:
    """Limit of the first-success threshold at budget k: min(1, J/k)."""
    return F(1) if j is None else min(F(1), F(j, k))


@claim(
    "H4", "Appendix D.2", "Ordered score laws give ordered thresholds.", EXTRA, assumption="in law, not for every pair of samples",
    guard="test_efficiency_and_auto_delta.py::test_H4_stochastic_order_of_scores_orders_the_thresholds_in_law",
)  # fmt: skip
def h4(effort: int) -> Evidence:
    def samples():
        n, rank = 2, conformal_rank(2, "2/5")
        for worse, better in product(product(range(1, 4), repeat=n), repeat=2):
            a, b = (sorted(s)[rank - 1] for s in (worse, better))
            yield f"first passes {worse} under the worse and {better} under the better policy: J {a} -> {b}", b <= a

    def laws():
        from scipy.stats import binom

        for n in (3, 20, 100):
            rank = conformal_rank(n, "0.3")
            for j in range(1, 9):
                low, high = (binom.sf(rank - 1, n, float(first_success(j, rate(p)))) for p in ("0.4", "0.6"))
                yield (n, j), 0 <= low <= high + 1e-12

    return Evidence(search(samples(), ENUMERATED), search(laws(), CLOSED))


@claim(
    "H5", "Appendix D.2", "A smaller threshold makes a singleton easier.", FALSE,
    repaired="True of the deterministic sets only; for Eq. 8 it is easiest at q = p1, and reversed for first success.",
    guard="test_sets_and_multiplicity.py::test_H5_a_singleton_is_easiest_at_the_top_share",
)  # fmt: skip
def h5(effort: int) -> Evidence:
    counts = [(4,), (3, 1), (2, 1, 1)]
    values = [F(j, 20) for j in range(1, 20)]

    def eq8():
        for c in counts:
            for a, b in pairwise(values):
                x, y = singleton_probability(c, a), singleton_probability(c, b)
                yield f"counts {c}: P(singleton) {y} at q = {b}, {x} at the smaller q = {a}", x >= y

    def deterministic():
        for c, q in product(counts, values):
            codes = [i for i, m in enumerate(c) for _ in range(m)]
            stops = [
                inclusive_set(np.array([codes]), 4, float(q)).singleton[0],
                bool(ReleasedAPS().stop(group(*codes), 4, float(q), [0.3])[0][0]),
            ]
            yield (c, q), stops == [F(max(c), 4) >= q] * 2
            yield (c, q, "G"), bool(MassAbove().stop(group(*codes), 4, float(q), [0.3])[0][0]) == (F(max(c), 4) > q or max(c) == 4)

    return Evidence(
        search(eq8()),
        None,
        search(deterministic(), ENUMERATED),
        (
            Figure("unanimous, q = .88", singleton_probability([4], "22/25"), "22/25"),
            Figure("(3/4, 1/4), q = 1/4", singleton_probability([3, 1], "1/4"), "1/3"),
            Figure("(3/4, 1/4), q = 3/4", singleton_probability([3, 1], "3/4"), "1"),
            Figure("(3/4, 1/4), q = .88", singleton_probability([3, 1], "22/25"), "12/25"),
        ),
    )


def aps_mean_k(d: str, rates: Rates, rule: str) -> Fraction:
    """Responses per prompt of the APS rule in the limit of many calibration prompts, a fresh U per budget, one wrong answer."""
    total = F(0)
    for p, share in rates.items():
        alive, k = {0: F(1)}, 0
        for b in GRID:
            grown: dict[int, Fraction] = {}
            for c, w in alive.items():
                for j, v in enumerate(gold_counts(b - k, {p: F(1)})):
                    grown[c + j] = grown.get(c + j, F(0)) + w * v
            total += share * sum(alive.values()) * (b - k)
            q, k = aps_quantile(F(d), b, rates), b
            alive = {c: w * (1 - singleton_probability([n for n in (c, b - c) if n], q, rule)) for c, w in grown.items() if w}
    return total


def sampled_mean_k(n: int, d: str, p: str) -> float:
    """The same for first success, averaged over calibrations with n prompts: J is an order statistic of geometric variables."""
    from scipy.stats import binom

    reach = [binom.sf(conformal_rank(n, d) - 1, n, float(first_success(j, rate(p)))) for j in range(33)]
    at = (float(first_success_mean_k(GRID, j, first_success(j, rate(p)))) * (reach[j] - reach[j - 1]) for j in range(1, 33))
    return float(sum(at) + 32 * (1 - reach[32]))


APS_CHANGES = {"randomized": ("2.20", "5.48"), "inclusive": ("2.00", "4.39")}
CHANGES = (("0.3", "0.69", "0.70", "6.69", "11.0"), ("0.12", "0.65", "0.70", "5.20", "6.52"), ("0.12", "0.87", "0.88", "4.47", "5.60"))


@claim(
    "H6", "Proposition 6", "A better policy draws no more responses on average.", FALSE,
    repaired="No general statement; for code E[k] = k_0 F(J) + K_max (1 - F(J)).",
    guard="test_efficiency_and_auto_delta.py::test_H6_a_better_policy_can_draw_more",
)  # fmt: skip
def h6(effort: int) -> Evidence:
    values = [(d, a, b, mean_k(F(d), rate(a)), mean_k(F(d), rate(b))) for d, a, b, *_ in CHANGES]
    partly = {F(1): F(3, 5), F("0.4"): F(2, 5)}
    aps = {rule: [aps_mean_k("0.45", r, rule) for r in (SPLIT, partly)] for rule in ("randomized", "inclusive")}

    def changes():
        for d, a, b, x, y in values:
            yield f"every p {a} -> {b}, delta = {d}: E[k] {float(x):.2f} -> {float(y):.2f}", y <= x
        for rule, (x, y) in aps.items():
            yield f"never solved -> p = .4 on 40%, delta = .45, {rule} set: E[k] {float(x):.2f} -> {float(y):.2f}", y <= x

    stated = search(changes())
    shown = [
        *(
            Figure(f"E[k], {rule} set, {when}", x, r)
            for rule, w in APS_CHANGES.items()
            for when, x, r in zip(("before", "after"), aps[rule], w, strict=True)
        ),
        *(Figure(f"n = 200, delta = .3, p = {p}", sampled_mean_k(200, "0.3", p), r) for p, r in (("0.65", "7.73"), ("0.75", "9.27"))),
    ]
    shown += [
        Figure(f"delta = {d}, p = {p}", x, r)
        for (d, a, b, x, y), (*_, r, s) in zip(values, CHANGES, strict=True)
        for p, x, r in ((a, x, r), (b, y, s))
    ]

    def formula():
        for d, p in product(("0.3", "0.12"), ("0.65", "0.69", "0.87")):
            j = first_success_index(F(d), rate(p))
            k0 = next(k for k in GRID if k > j)
            yield (d, p), mean_k(F(d), rate(p)) == k0 * first_success(j, rate(p)) + 32 * (1 - first_success(j, rate(p)))

    return Evidence(stated, None, search(formula()), tuple(shown))


@claim("H7", "Appendix D.2", "Whoever stops by budget k under a policy also does under a better one.", FALSE)
def h7(effort: int) -> Evidence:
    def stopped(d, p, k):
        j = first_success_index(F(d), rate(p))
        first = next((b for b in GRID if j is not None and j < b), 32)
        return first_success(j, rate(p)) if k >= first and k < 32 else F(k == 32)

    def cases():
        for d, a, b, *_ in CHANGES:
            for k in GRID:
                x, y = stopped(d, a, k), stopped(d, b, k)
                yield f"every p {a} -> {b}, delta = {d}: P(stopped by {k}) {float(x):.3f} -> {float(y):.3f}", y >= x

    return Evidence(search(cases()), figures=(Figure("P(stopped by 4), p = .69, delta = .3", stopped("0.3", "0.69", 4), "0.904"),))


@claim(
    "H8", "Corollary 7", "The budget anneals itself: as the policy improves, fewer responses are drawn.", FALSE,
    repaired="An empirical tendency only.",
    guard="test_efficiency_and_auto_delta.py::test_H8_self_annealing_fails_for_a_policy_better_on_every_prompt",
)  # fmt: skip
def h8(effort: int) -> Evidence:
    after = {F(1): F(3, 5), F("0.12"): F(3, 10), F(0): F(1, 10)}
    deltas = [1 - first_success(32, r) + F(1, 20) for r in (SPLIT, after)]
    k = [mean_k(d, r) for d, r in zip(deltas, (SPLIT, after), strict=True)]
    stated = search([(f"60% always solved; then 30% more with p = .12: E[k] {float(k[0]):.1f} -> {float(k[1]):.1f}", k[1] <= k[0])])
    j = [first_success_index(d, r) or 0 for d, r in zip(deltas, (SPLIT, after), strict=True)]
    return Evidence(
        stated,
        figures=(
            Figure("delta before", deltas[0], "0.45"),
            Figure("delta after", deltas[1], "0.16"),
            Figure("J before", j[0], "1"),
            Figure("J after", j[1], "14"),
            Figure("E[k] before", k[0], "14.0"),
            Figure("E[k] after", k[1], "18.4"),
        ),
    )


@claim(
    "H9", "Proposition 16", "The expected saving telescopes over the grid: the sum of (k_{m+1} - k_m) P(k_used <= k_m).", HOLDS,
    repaired="It is an identity, not a lower bound.",
    guard="test_efficiency_and_auto_delta.py::test_H9_the_telescoping_saving_is_an_identity",
)  # fmt: skip
def h9(effort: int) -> Evidence:
    def cases():
        for weights in product(range(3), repeat=5):
            if total := sum(weights):
                law = {k: F(w, total) for k, w in zip(GRID, weights, strict=True)}
                stopped = [sum((w for k, w in law.items() if k <= b), F(0)) for b in GRID]
                yield law, expected_savings(GRID, stopped) == sum(w * (32 - k) for k, w in law.items())

    return Evidence(search(cases()), figures=(Figure("E[k], k_0 = 2, F(J) = .88", first_success_mean_k(GRID, 1, "0.88"), "5.6"),))
