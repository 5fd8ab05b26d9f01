"""No wrong rank: n = 1..2000, four families of levels, every spelling, every public entry point, against integers.

A rank ``ceil((n + 1)(1 - delta))`` can only go wrong where ``(n + 1) delta`` is an integer, or through a level that was not resolved to the
rational that was meant.  So: every spelling of every level resolves to its rational; :func:`conformal_rank` is checked at every n; and
the other entry points at every n whose n + 1 lies on the lattice of the level or next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import cycle
from math import inf

import numpy as np
import pytest

from conformal_core import (
    ConformalBudget,
    MassAbove,
    Outcomes,
    as_level,
    auto_delta,
    betabinomial_hits,
    calibrate_thresholds,
    conformal_quantile,
    conformal_rank,
    conformal_selection,
    coverage_law,
    learn_then_test,
    min_calibration_size,
    pac_rank,
    plain_p_values,
    risk_control,
    tied_coverage,
    weighted_quantile,
)

N = 2000
Written = str | float | Decimal | Fraction


def families() -> dict[str, list[tuple[Fraction, float]]]:
    """Each level as the rational that is meant and as the float that a program computes."""
    literal = [(Fraction(j, 100), j / 100) for j in range(1, 100)]
    divided = [
        (Fraction(t) / m, float(t) / m) for t in ("0.05", "0.1", "0.12", "0.2", "0.25", "0.3", "0.65") for m in (2, 3, 4, 5, 6, 7, 10, 30)
    ]
    complement = [(Fraction(j, 100), 1 - (1 - j / 100)) for j in range(1, 100)]
    clipped = [
        (min(max(1 - Fraction(s, 100) + Fraction(1, 20), Fraction(1, 20)), Fraction(19, 20)), min(max(1 - s / 100 + 0.05, 0.05), 0.95))
        for s in range(101)
    ]
    return {"literal": literal, "divided": divided, "complement": complement, "auto": clipped}


FAMILIES = families()
each_family = pytest.mark.parametrize("family", FAMILIES)


def spelled(level: Fraction, number: float) -> Iterator[Written]:
    yield number
    yield level
    yield str(level)
    if 10**6 % level.denominator == 0:
        yield Decimal(level.numerator) / Decimal(level.denominator)
        yield str(Decimal(level.numerator) / Decimal(level.denominator))
    yield np.float64(number)


def right(n: int, level: Fraction) -> int:
    """ceil((n + 1)(1 - delta)) in integers, by floor division of the complement: not the formula of the library."""
    return -(-(n + 1) * (level.denominator - level.numerator) // level.denominator)


def on_and_off_the_lattice(level: Fraction, largest: int = N) -> list[int]:
    near = {top - away for top in range(level.denominator, largest + 3, level.denominator) for away in (0, 1, 2)}
    return sorted({n for n in near | {1, 2} if 1 <= n <= largest})


@each_family
def test_every_spelling_resolves_to_the_rational_that_was_meant(family: str) -> None:
    for level, number in FAMILIES[family]:
        assert {as_level(x) for x in spelled(level, number)} == {level}


def test_conformal_rank_at_every_n() -> None:
    n = np.arange(1, N + 1)
    for level in sorted({level for family in FAMILIES.values() for level, _ in family}):
        want = -(-(n + 1) * (level.denominator - level.numerator) // level.denominator)
        assert [conformal_rank(int(i), level) for i in n] == want.tolist()


@pytest.mark.slow
@each_family
def test_conformal_rank_at_every_n_from_floats(family: str) -> None:
    assert sum(conformal_rank(n, number) != right(n, level) for level, number in FAMILIES[family] for n in range(1, N + 1)) == 0


def test_the_float_formula_is_wrong_on_the_lattice_only_and_always_high() -> None:
    """What is avoided: 231 wrong ranks for n <= 400 and delta = j/100, each one too high, none at n = 100 or 200."""
    wrong = []
    for n in range(1, 401):
        for j in range(1, 100):
            naive = int(np.ceil((n + 1) * (1.0 - j / 100)))
            if naive != right(n, Fraction(j, 100)):
                assert naive == right(n, Fraction(j, 100)) + 1 and (n + 1) * j % 100 == 0
                wrong.append(n)
    assert len(wrong) == 231 and wrong[0] == 9 and not {100, 200} & set(wrong)


# --- entry points: (largest n, rank as the entry point shows it)


def by_quantile(n: int, d: Written) -> int:
    q = conformal_quantile(np.arange(1.0, n + 1), d)
    assert q.value == (q.rank if q.attainable else inf)
    return q.rank


def by_p_values(n: int, d: Written) -> int:
    inside = int((plain_p_values(np.arange(1.0, n + 1), np.arange(1.0, n + 2)) > float(as_level(d))).sum())
    return inside  # of n + 1 points above, at and below the scores, the ranks 1..L


def by_thresholds(rule: str) -> Callable[[int, Written], int]:
    def rank(n: int, d: Written) -> int:
        column = np.arange(1.0, n + 1)[:, None]
        t = calibrate_thresholds(column, (2,), d, rule, reference=column if rule == "split_ecdf" else None)
        return t.ranks[0]

    return rank


def by_max_rank(n: int, d: Written) -> int:
    """One rank above that of a single budget, and +inf already where that is the last."""
    got = by_thresholds("max_rank")(n, d)
    return got - 1 if got <= n or right(n, as_level(d)) == n else n + 1


def by_bonferroni(n: int, d: Written) -> int:
    """At delta / M for M = 3, from the spelling of delta: three times the level, where that is a level."""
    t = calibrate_thresholds(np.arange(1.0, n + 1)[:, None] * np.ones(3), (2, 4, 8), d, "bonferroni")
    assert t.ranks[0] == right(n, as_level(d) / 3)
    return right(n, as_level(d))


def wrong_twice(n: int, wrong: int) -> Outcomes:
    codes = np.zeros((n, 2), np.int64)
    codes[:wrong] = 1
    return Outcomes(np.arange(n), codes == 0, codes=codes, gold=np.zeros(n, np.int64))


def by_risk_control(n: int, d: Written) -> int:
    """The largest number of calibration prompts that may stop wrongly is n - L."""
    allowed = next(m for m in range(n + 2) if m > n or risk_control(wrong_twice(n, m), (2,), d).lam > 0) - 1
    return n - allowed


def by_selection(n: int, d: Written) -> int:
    """One candidate, all calibration answers wrong: selected iff its rank from above is at most floor(delta (n + 1)) = n + 1 - L."""
    g = np.arange(float(n))
    chosen = [bool(conformal_selection(g, np.zeros(n, bool), [n - r - 0.5], d).selected[0]) for r in range(n + 1)]
    assert chosen == sorted(chosen, reverse=True)
    return n + 1 - sum(chosen)


def by_policy(n: int, d: Written) -> int:
    need = min_calibration_size(d)
    policy = ConformalBudget((2,), score=MassAbove(), delta=d, n_calibration=max(n, need))
    policy.calibrate(wrong_twice(n, 0))
    assert policy.stop_rule is not None and policy.stop_rule.delta == as_level(d)
    return policy.stop_rule.ranks[0]


def by_coverage_law(n: int, d: Written) -> int:
    return int(coverage_law(n, d).args[0]) if min_calibration_size(d) <= n else n + 1


def by_hits(n: int, d: Written) -> int:
    return int(betabinomial_hits(7, n, d).args[1]) if min_calibration_size(d) <= n else n + 1


def by_size(n: int, d: Written) -> int:
    level, need = as_level(d), min_calibration_size(d)
    assert right(need, level) <= need and (need == 1 or right(need - 1, level) > need - 1)
    return right(n, level)


def by_weights(n: int, d: Written) -> int:
    return weighted_quantile(np.arange(1.0, n + 1), [0.1] * n, 0.1, d).rank


ENTRY_POINTS: dict[str, tuple[int, Callable[[int, Written], int]]] = {
    "conformal_quantile": (N, by_quantile),
    "weighted_quantile": (120, by_weights),
    "plain_p_values": (N, by_p_values),
    "min_calibration_size": (N, by_size),
    "per_budget": (N, by_thresholds("per_budget")),
    "max_score": (N, by_thresholds("max_score")),
    "split_ecdf": (N, by_thresholds("split_ecdf")),
    "bonferroni": (N, by_bonferroni),
    "max_rank": (N, by_max_rank),
    "risk_control": (24, by_risk_control),
    "conformal_selection": (60, by_selection),
    "ConformalBudget": (200, by_policy),
    "coverage_law": (24, by_coverage_law),
    "betabinomial_hits": (24, by_hits),
}


def wrong_ranks(entry: str, family: str, largest: int) -> int:
    rank, wrong, turn = ENTRY_POINTS[entry][1], 0, cycle(range(6))
    for level, number in FAMILIES[family]:
        ways = list(spelled(level, number))
        for n in on_and_off_the_lattice(level, largest):
            wrong += rank(n, ways[next(turn) % len(ways)]) != right(n, level)
    return wrong


@pytest.mark.filterwarnings("ignore:n. got:UserWarning")
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_no_wrong_rank_at_any_entry_point(entry: str) -> None:
    assert wrong_ranks(entry, "auto", min(ENTRY_POINTS[entry][0], 100)) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:n. got:UserWarning")
@each_family
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_no_wrong_rank_at_any_entry_point_and_family(entry: str, family: str) -> None:
    assert wrong_ranks(entry, family, ENTRY_POINTS[entry][0]) == 0


@pytest.mark.filterwarnings("ignore:n. got:UserWarning")
@each_family
def test_other_results_record_the_rational_that_was_meant(family: str) -> None:
    o = wrong_twice(3, 0)
    for level, number in FAMILIES[family][::7]:
        exact = (pac_rank(7, level, level), tied_coverage(["1/3", "2/3"], 3, level))
        for d in spelled(level, number):
            assert (pac_rank(7, d, d), tied_coverage(["1/3", "2/3"], 3, d)) == exact
            rule = learn_then_test(o, (2,), d, d)
            assert rule.delta == rule.gamma == level
            assert auto_delta(1, 2, epsilon=d, delta_max=1) == min(Fraction(1, 2) + level, Fraction(1))
