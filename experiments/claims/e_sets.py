"""E and F: the answer set of Eq. 8 and false stops (C-GRPO, Section 4.4, Corollary 4)."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, pairwise, product
from math import prod

import numpy as np

from conformal_core import (
    APS,
    FirstSuccess,
    MassAbove,
    Outcomes,
    ReleasedAPS,
    Score,
    conformal_quantile,
    empty_probability,
    first_success_cdf,
    inclusive_set,
    randomized_set,
    released_set,
    singleton_probability,
)

from .laws import group, groups
from .ledger import ENUMERATED, EXTRA, FALSE, HOLDS, Evidence, Figure, claim, search

F = Fraction
COUNTS = [c for k in range(1, 7) for m in range(1, k + 1) for c in combinations_with_replacement(range(1, k + 1), m) if sum(c) == k]
THRESHOLDS = [F(j, 12) for j in range(1, 12)]


def ends(counts: tuple[int, ...], q: Fraction) -> list[Fraction]:
    """For each answer, the largest U at which Eq. 8 still holds it."""
    k = sum(counts)
    return [min(max((q - F(sum(d for d in counts if d > c), k)) / F(c, k), F(0)), F(1)) for c in counts]


def one_in(counts: tuple[int, ...], q: Fraction, size: int = 1) -> Fraction:
    """P(exactly ``size`` of the answers are in) by integration over one shared U."""
    top = ends(counts, q)
    cuts = sorted({F(0), F(1), *top})
    return sum((b - a for a, b in pairwise(cuts) if sum(e >= b for e in top) == size), F(0))


@claim(
    "E1", "Eq. 8", "The set stops with the same probability whether U is shared over answers or drawn per answer.", EXTRA,
    assumption="no two answers are equally frequent",
    repaired="Top share p1, next p2: P(singleton) = q/p1 below p1, 1 - (q - p1)/p2 up to p1 + p2, then 0.",
    guard="test_sets_and_multiplicity.py::test_E1_law_of_the_singleton_by_integration_over_u",
)  # fmt: skip
def e1(effort: int) -> Evidence:
    cases = [(c, q, singleton_probability(c, q), singleton_probability(c, q, "independent")) for c in COUNTS for q in THRESHOLDS]
    stated = search((f"counts {c}, q = {q}: {a} shared, {b} independent", a == b) for c, q, a, b in cases)
    assuming = search(((c, q), a == b) for c, q, a, b in cases if len(set(c)) == len(c))

    def laws():
        for c, q, shared, independent in cases:
            e = ends(c, q)
            yield (c, q), shared == one_in(c, q)
            yield (c, q), independent == sum((x * prod(1 - f for j, f in enumerate(e) if j != i) for i, x in enumerate(e)), F(0))

    return Evidence(stated, assuming, search(laws()))


@claim(
    "E2", "Eq. 8", "C_k can be empty: with probability 1 - q/p1 below the top share p1, so a unanimous prompt may be sent on.", HOLDS,
    repaired="The inclusive set is never empty.",
    guard="test_sets_and_multiplicity.py::test_E2_a_unanimous_prompt_is_sent_on_and_the_inclusive_set_is_never_empty",
)  # fmt: skip
def e2(effort: int) -> Evidence:
    def cases():
        for c, q in product(COUNTS, THRESHOLDS):
            top = F(max(c), sum(c))
            yield (c, q), empty_probability(c, q) == one_in(c, q, 0) == max(1 - q / top, F(0))

    def inclusive():
        for codes in product((0, 1, 2), repeat=3):
            for q in THRESHOLDS:
                yield (codes, q), inclusive_set(np.array([codes]), 3, float(q)).size[0] >= 1

    figures = (Figure("P(empty), unanimous group, q = .88", empty_probability([4], "22/25"), "3/25"),)
    return Evidence(search(cases()), None, search(inclusive(), ENUMERATED), figures)


SETS: list[Score] = [APS(), APS("inclusive"), MassAbove()]


@claim(
    "E3", "Section 4.4, released code", "At q = 1 a set of sampled answers only may stop a prompt and still covers the gold.", FALSE,
    repaired="At q >= 1 every unsampled answer is in the set, so nothing stops.",
    guard="test_split_conformal.py::test_E3_a_threshold_of_one_or_infinity_never_stops",
)  # fmt: skip
def e3(effort: int) -> Evidence:
    def cases(score, q):
        for k in (1, 2, 3):
            for codes in product((0, 1), repeat=k):
                stop, answer = score.stop(group(*codes), k, q, [0.5])
                yield codes, bool(stop[0]), int(answer[0])

    stated = search(
        (f"the released rule stops on answers {c} (0 is gold) at q = 1", not stop or answer == 0)
        for c, stop, answer in cases(ReleasedAPS(), 1.0)
    )
    repaired = search(((score, q, c), not stop) for score, q in product(SETS, (1.0, np.inf)) for c, stop, _ in cases(score, q))
    p, covered = F(1, 10), F(0)
    for c in product((0, 1), repeat=2):
        holds_gold = released_set(np.array([c]), 2, 1.0, np.array([[1, 2]])).contains([0])[0]
        covered += p ** (2 - sum(c)) * (1 - p) ** sum(c) * int(holds_gold)
    return Evidence(stated, None, repaired, (Figure("gold in the sampled-only set, p = .1, k = 2", covered, "19/100"),))


@claim(
    "E4", "Section 4.4", "The inclusive set of sampled answers contains the set of Eq. 8.", EXTRA, assumption="q < 1",
    guard="test_sets_and_multiplicity.py::test_E4_the_inclusive_set_contains_the_randomized_one_below_one_only",
)  # fmt: skip
def e4(effort: int) -> Evidence:
    def cases(values):
        for codes in product((0, 1, 2), repeat=3):
            table = np.array([codes])
            for q, u in product(values, (0.01, 0.3, 0.7, 0.99)):
                narrow, wide = randomized_set(table, 3, q, [u]), inclusive_set(table, 3, q)
                inside = (wide.member | ~narrow.member).all() and not narrow.unsampled.any()
                yield f"answers {codes}, q = {q}, U = {u}", inside

    below = [j / 12 for j in range(1, 12)]
    return Evidence(search(cases([1.0, *below]), ENUMERATED), search(cases(below), ENUMERATED))


def wrong_stops(score: Score, codes: np.ndarray, d: Fraction, u: np.ndarray) -> tuple[Fraction, Fraction]:
    """(P(wrong stop), P(stop)) at k = width when each row is equally often the new prompt."""
    o = groups(codes)
    s = score.gold_scores(o, (o.width,), u)[:, 0]
    wrong = stops = 0
    for i in range(o.n):
        q = conformal_quantile(np.delete(s, i), d).value
        stop, answer = score.stop(o.take(np.array([i])), o.width, q, u[i : i + 1])
        stops += int(stop[0])
        wrong += int(stop[0] and answer[0] != 0)
    return F(wrong, o.n), F(stops, o.n)


def tables(sizes: tuple[tuple[int, int], ...]) -> list[np.ndarray]:
    return [np.array(rows) for n, k in sizes for rows in combinations_with_replacement(list(product((0, 1), repeat=k)), n)]


@claim(
    "F1", "Corollary 4", "P(the set at budget k is a single wrong answer) is at most delta.", EXTRA,
    assumption="the threshold is +inf when L > n, the set ranges over all answers, and a budget with q >= 1 never stops",
    repaired="Pathwise: a wrong stop implies a gold score above the threshold.",
    guard="test_split_conformal.py::test_F1_fails_for_the_released_set_at_q_one",
)  # fmt: skip
def f1(effort: int) -> Evidence:
    def cases(scores):
        for codes in tables(((2, 2), (3, 2), (4, 2), (3, 3))):
            for score, d in product(scores, (F(1, 4), F(1, 3), F(1, 2))):
                share = wrong_stops(score, codes, d, np.linspace(0.15, 0.85, len(codes)))[0]
                yield f"{score!r}, groups {codes.tolist()}, delta = {d}: {share}", share <= d

    def pathwise():
        for score in SETS:
            for codes in product((0, 1, 2), repeat=3):
                o = group(*codes)
                for u in (0.1, 0.5, 0.9):
                    gold = float(score.gold_scores(o, (3,), [u])[0, 0])
                    for q in (0.2, 1 / 3, 0.6, 0.9, gold):
                        stop, answer = score.stop(o, 3, q, [u])
                        yield (score, codes, u, q), not stop[0] or answer[0] == 0 or gold > q

    def half(codes):
        return ReleasedAPS().stop(group(*codes), 2, 1.0, [0.5])[1][0] == 1

    released = sum((F(1, 2) * F(9, 10) ** sum(c) * F(1, 10) ** (2 - sum(c)) for c in product((0, 1), repeat=2) if half(c)), F(0))
    figures = (
        Figure("released rule, q = 1, half the prompts with one wrong answer of probability .9", released, "0.405"),
        Figure("P(unanimous and wrong), Beta(1.14, .86), one wrong answer", 1 - first_success_cdf(2, "1.14", "0.86"), "0.267"),
    )
    return Evidence(
        search(cases([ReleasedAPS(), *SETS]), ENUMERATED), search(cases(SETS), ENUMERATED), search(pathwise(), ENUMERATED), figures
    )


#: 3 of 4 prompts tie gold with one wrong answer, 1 of 4 is unanimous and wrong: only the wrong ones stop.
TIED = np.array([[0, 1, 0, 1]] * 75 + [[1, 1, 1, 1]] * 25)


@claim(
    "F2", "Corollary 4, discussion", "A singleton is the gold answer except with probability delta.", EXTRA,
    assumption="read as a joint probability, P(stop and wrong) <= delta; nothing is said given a stop",
    guard="test_sets_and_multiplicity.py::test_F2_the_bound_is_joint_and_says_nothing_given_a_stop",
)  # fmt: skip
def f2(effort: int) -> Evidence:
    cases = [
        (len(t), t, d, *wrong_stops(MassAbove(), t, d, np.full(len(t), 0.5)))
        for t, d in [(TIED, F(3, 10)), (TIED[:80], F(3, 10)), (TIED[70:], F(3, 5))]
    ]
    stated = search(
        (f"{n} prompts, {int((t == 1).all(1).sum())} of them unanimous and wrong, delta = {d}: {w} of {s} stops", w <= d * s)
        for n, t, d, w, s in cases
    )
    return Evidence(stated, search(((n, d), w <= d) for n, _, d, w, _ in cases), figures=(Figure("P(wrong stop)", cases[0][3], "1/4"),))


@claim(
    "F3", "Section 4.4", "With the first-success score and q < 1, stopping needs a verified success among the first k.", HOLDS,
    assumption="q < 1", guard="test_sets_and_multiplicity.py::test_F3_a_first_success_stop_holds_a_verified_success",
)  # fmt: skip
def f3(effort: int) -> Evidence:
    def cases():
        for convention, k in product(("paper", "failure_above_success"), range(1, 6)):
            for passes in product((False, True), repeat=k):
                o = Outcomes([0], np.array([passes]))
                for q in (*(j / 10 for j in range(10)), 1.0, np.inf):
                    yield f"{passes}, q = {q}", not FirstSuccess(convention).stop(o, k, q, [0.0])[0][0] or any(passes[: k - 1])

    return Evidence(search(cases(), ENUMERATED))


@claim(
    "F4", "Section 4.4", "The guarantee is marginal; it is not P(correct given stop).", HOLDS,
    guard="test_sets_and_multiplicity.py::test_F2_the_bound_is_joint_and_says_nothing_given_a_stop",
)  # fmt: skip
def f4(effort: int) -> Evidence:
    w, s = wrong_stops(MassAbove(), TIED, F(3, 10), np.full(100, 0.5))
    return Evidence(search([("a law that keeps the bound while every stop is wrong", w <= F(3, 10) and w == s > 0)]))
