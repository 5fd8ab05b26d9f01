"""Conformal selection: by its definition, and its false discovery rate over every draw of a small population."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations_with_replacement
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.outcomes import Outcomes
from conformal_core.selection import Selection, conformal_selection, select_stops

confidences = st.integers(0, 4).map(float)
DELTAS = st.sampled_from(["1/10", "1/5", "1/3", "1/2", "4/5"])


@given(
    st.lists(st.tuples(confidences, st.booleans()), max_size=12),
    st.lists(st.tuples(confidences, st.integers(0, 8).map(lambda j: j / 8)), max_size=6),
    DELTAS,
)
def test_is_benjamini_hochberg_on_the_p_values(cal: list[tuple[float, bool]], batch: list[tuple[float, float]], delta: str) -> None:
    n, m, g = len(cal), len(batch), [x for x, ok in cal if not ok]
    p = [(sum(x > t for x in g) + Fraction(u) * (1 + sum(x == t for x in g))) / (n + 1) for t, u in batch]
    limit = max((x for r, x in enumerate(sorted(p), 1) if x <= Fraction(delta) * r / m), default=Fraction(-1))
    right = np.array([ok for _, ok in cal], bool)
    got = conformal_selection([x for x, _ in cal], right, [t for t, _ in batch], delta, [u for _, u in batch])
    assert got.selected.tolist() == [x <= limit for x in p]
    np.testing.assert_allclose(got.p_values, [float(x) for x in p], rtol=1e-15)
    again = Selection.from_json(json.loads(json.dumps(got.to_json())))
    assert again.selected.tolist() == got.selected.tolist() and again.delta == got.delta == Fraction(delta)


#: (confidence, right) and its probability.
POPULATIONS = [
    {(2.0, True): Fraction(2, 5), (2.0, False): Fraction(1, 5), (1.0, True): Fraction(1, 5), (1.0, False): Fraction(1, 5)},
    {(1.0, True): Fraction(1, 2), (1.0, False): Fraction(1, 2)},
    {(2.0, False): Fraction(1, 3), (1.0, True): Fraction(2, 3)},
]


@pytest.mark.parametrize("law", POPULATIONS)
@pytest.mark.parametrize(("n", "m"), [(3, 2), (5, 3), (2, 4)])
def test_false_discovery_rate_by_enumeration(law: dict[tuple[float, bool], Fraction], n: int, m: int) -> None:
    """E[wrong selected / max(1, selected)] over all calibration sets and batches, exactly; ties included, no randomisation."""
    kinds = list(law)

    def samples(size: int) -> list[tuple[tuple[int, ...], Fraction]]:
        out = []
        for sample in combinations_with_replacement(range(len(kinds)), size):
            counts = [sample.count(j) for j in range(len(kinds))]
            weight = Fraction(factorial(size), prod(map(factorial, counts)))
            out.append((sample, weight * prod(law[k] ** c for k, c in zip(kinds, counts, strict=True))))
        return out

    for delta in ("1/4", "1/3", "1/2", "2/3"):
        rate = power = Fraction(0)
        for cal, w in samples(n):
            g, right = np.array([kinds[i][0] for i in cal]), np.array([kinds[i][1] for i in cal])
            for batch, v in samples(m):
                chosen = conformal_selection(g, right, [kinds[i][0] for i in batch], delta).selected
                wrong = sum(not kinds[i][1] for i, s in zip(batch, chosen, strict=True) if s)
                rate += w * v * Fraction(int(wrong), max(1, int(chosen.sum())))
                power += w * v * int(chosen.sum())
        assert rate <= Fraction(delta)
        assert power > 0 or Fraction(delta) < Fraction(1, n + 1)


def test_stops_are_selected_by_their_lead() -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(2, 1, (400, 1))
    codes = np.where(rng.random((400, 8)) < p, 0, rng.integers(1, 4, (400, 8)))
    o = Outcomes(np.arange(400), codes == 0, codes=codes, gold=np.zeros(400, int))
    cal, batch = o.take(np.arange(200)), o.take(np.arange(200, 400))
    blind = Outcomes(batch.prompt_ids, batch.passes, codes=batch.codes)
    rule = select_stops(cal, blind, 8, "0.1")
    counts = np.stack([(codes[200:] == a).sum(axis=1) for a in range(4)])
    margin = np.sort(counts, axis=0)[-1] - np.sort(counts, axis=0)[-2]
    assert 0 < rule.selected.sum() < 200
    assert margin[rule.selected].min() > margin[~rule.selected].max() and (margin[rule.selected] > 0).all()


def test_an_answer_without_a_leader_never_stops() -> None:
    codes = np.array([[0, 1]] * 9)
    o = Outcomes(np.arange(9), codes == 0, codes=codes, gold=np.zeros(9, int))
    sure = Outcomes(np.arange(9), codes == 0, codes=np.zeros((9, 2), int), gold=np.zeros(9, int))
    assert not select_stops(sure, o, 2, "0.9").selected.any()
    assert select_stops(sure, sure, 2, "0.9").selected.all()
    assert select_stops(o, o, 2, "0.9").p_values.tolist() == [1.0] * 9  # and counts as wrong, whichever answer came first


def test_refusals_and_what_is_out_of_reach() -> None:
    good = ([0.5, 0.2], [True, False], [0.1])
    for args, kwargs, name in (
        (([0.5], [True, False], [0.1]), {}, "right"),
        (([0.5], [1], [0.1]), {}, "right"),
        (([np.nan], [True], [0.1]), {}, "confidence"),
        (([0.5], [True], [[0.1]]), {}, "candidates"),
        (good, {"u": [0.5, 0.5]}, "u"),
        (good, {"u": [1.5]}, "u"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
            conformal_selection(*args, "0.5", **kwargs)
    assert not conformal_selection(*good, "0.3").attainable and conformal_selection(*good, "1/3").attainable
    assert conformal_selection([], np.array([], bool), [], "0.5").selected.size == 0
    codes = np.zeros((3, 2), int)
    o = Outcomes(np.arange(3), codes == 0, codes=codes, gold=np.zeros(3, int))
    blind = Outcomes(np.arange(3), codes == 0, codes=codes)
    for a, b, k, name in ((o, o, 3, "calibration"), (o, o.prefix(1), 2, "batch"), (blind, o, 2, "outcomes.gold")):
        with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
            select_stops(a, b, k, "0.5")
