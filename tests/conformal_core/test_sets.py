"""Prediction sets against their definitions in Fractions, and every stop against the set it is the singleton of."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal_core import (
    APS,
    MassAbove,
    Outcomes,
    ReleasedAPS,
    conformal_selection,
    inclusive_set,
    mass_above_set,
    randomized_set,
    released_set,
)
from tests.strategies import dyadic_uniforms, outcomes

thresholds = st.one_of(st.integers(-8, 72).map(lambda j: j / 64), st.fractions(0, 1, max_denominator=9).map(float))


def by_definition(row: list[int], q: float, rule: str, coin: dict[int, Fraction], order: dict[int, float]) -> tuple[set[int], bool]:
    """The sampled answers in the set, and whether the answers that were not sampled are."""
    k, counts = len(row), Counter(c for c in row if c >= 0)
    above = {a: sum(d for d in counts.values() if d > c) for a, c in counts.items()}
    if rule == "released":
        chosen, mass = set(), 0
        for a in sorted(counts, key=lambda a: (-counts[a], order[a])):
            if chosen and mass / k >= q:
                break
            chosen.add(a)
            mass += counts[a]
        return chosen, sum(counts.values()) / k < q
    if q >= 1:
        return set(counts), True
    if rule == "inclusive":
        return {a for a in counts if above[a] / k < q}, False
    u = coin if rule == "randomized" else dict.fromkeys(counts, Fraction(0))
    return {a for a, c in counts.items() if float(above[a] + u[a] * c) / k <= q}, False


@pytest.mark.parametrize("rule", ["randomized", "independent", "inclusive", "mass_above", "released"])
@settings(max_examples=60)
@given(data=st.data())
def test_sets_are_as_defined(rule: str, data: st.DataObject) -> None:
    o, q, k = data.draw(outcomes()), data.draw(thresholds), data.draw(st.integers(1, 9))
    codes = o.codes
    assert codes is not None
    k = min(k, o.width)
    u = np.array(data.draw(st.lists(dyadic_uniforms, min_size=o.n * k, max_size=o.n * k))).reshape(o.n, k)
    if rule == "randomized":
        sets = randomized_set(codes, k, q, u[:, 0])
    elif rule == "independent":
        sets = randomized_set(codes, k, q, u)
    elif rule == "released":
        u = u + np.arange(k) / 1024  # no two positions alike
        sets = released_set(codes, k, q, u)
    else:
        sets = {"inclusive": inclusive_set, "mass_above": mass_above_set}[rule](codes, k, q)
    for i in range(o.n):
        row = codes[i, :k].tolist()
        number = {a: Fraction(float(u[i, 0 if rule == "randomized" else row.index(a)])) for a in set(row) if a >= 0}
        plain = "randomized" if rule == "independent" else rule
        chosen, everything = by_definition(row, q, plain, number, {a: float(x) for a, x in number.items()})
        assert {c for c, m in zip(row, sets.member[i], strict=True) if m} == chosen
        assert sets.unsampled[i] == everything
        assert sets.size[i] == (np.inf if everything else len(chosen))
        assert sets.singleton[i] == (len(chosen) == 1 and not everything)
        assert {int(sets.committed[i])} == (chosen if sets.singleton[i] else {-1})
        for answer in (0, 1, 2, 77, -1):
            in_it = answer in chosen if answer in row and answer >= 0 else everything
            assert sets.contains([answer] * o.n)[i] == in_it


@given(data=st.data())
def test_a_stop_is_a_set_of_one(data: st.DataObject) -> None:
    o, q, u = data.draw(outcomes(full=True)), data.draw(thresholds), data.draw(dyadic_uniforms)
    assert o.codes is not None
    k, coin = o.width, np.full(o.n, u)
    ties = ReleasedAPS().tie_keys(o, o.codes, coin)
    for score, sets in (
        (APS(), randomized_set(o.codes, k, q, coin)),
        (APS("inclusive"), inclusive_set(o.codes, k, q)),
        (MassAbove(), mass_above_set(o.codes, k, q)),
        (ReleasedAPS(), released_set(o.codes, k, q, ties)),
    ):
        stop, committed = score.stop(o, k, q, coin)
        if isinstance(score, ReleasedAPS) and q > 1:
            assert not stop.any()
            continue
        np.testing.assert_array_equal(stop, sets.singleton)
        np.testing.assert_array_equal(committed, sets.committed)


@given(o=outcomes(full=True), q=thresholds, u=dyadic_uniforms)
def test_membership_of_gold_is_score_at_most_threshold(o: Outcomes, q: float, u: float) -> None:
    """The set and the calibration score are one object: coverage of the one is coverage of the other."""
    assert o.codes is not None and o.gold is not None
    coin = np.full(o.n, u)
    for score, sets in ((APS(), randomized_set(o.codes, o.width, q, coin)), (MassAbove(), mass_above_set(o.codes, o.width, q))):
        gold = np.where((o.codes == o.gold[:, None]).any(axis=1), o.gold, -1)
        np.testing.assert_array_equal(sets.contains(gold), score.gold_scores(o, (o.width,), coin)[:, 0] <= q)


@given(o=outcomes(full=True), q=st.floats(0.001, 0.999), u=st.floats(0.001, 1))
def test_inclusive_contains_randomized_and_is_never_empty(o: Outcomes, q: float, u: float) -> None:
    assert o.codes is not None
    wide, narrow = inclusive_set(o.codes, o.width, q), randomized_set(o.codes, o.width, q, np.full(o.n, u))
    assert (wide.member | ~narrow.member).all()
    assert ((wide.size > 0) == (o.codes >= 0).any(axis=1)).all()


def test_bad_input_is_refused() -> None:
    table = np.zeros((2, 3), int)
    for call, name in (
        (lambda: randomized_set(table, 4, 0.5, [0.5, 0.5]), "grid"),
        (lambda: randomized_set(table, 2, np.nan, [0.5, 0.5]), "q"),
        (lambda: randomized_set(table, 2, 0.5, [0.5]), "u"),
        (lambda: randomized_set(table, 2, 0.5, [0.5, 1.5]), "u"),
        (lambda: inclusive_set(table[0], 2, 0.5), "codes"),
        (lambda: mass_above_set(table + 0.5, 2, 0.5), "codes"),
        (lambda: released_set(table, 2, 0.5, table), "ties"),
        (lambda: inclusive_set(table, 2, 0.5).contains([1]), "answers"),
        (lambda: inclusive_set(table, 2, 0.5).contains([0.5, 1.0]), "answers"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: got .*; need .*; because "):
            call()


def test_results_that_hold_arrays_compare_by_identity() -> None:
    """Comparing their fields would raise: an array has no truth value."""
    twins = (
        [inclusive_set([[0, 0], [0, 1]], 2, 0.5) for _ in range(2)],
        [conformal_selection([1, 2], [True, False], [1, 3], "1/2") for _ in range(2)],
    )
    for a, b in twins:
        assert a != b
        assert len({a, b}) == 2
