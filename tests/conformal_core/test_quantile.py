"""The conformal threshold: value, edge cases, JSON, weights."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.level import conformal_rank, min_calibration_size
from conformal_core.quantile import ConformalQuantile, conformal_quantile, weighted_quantile
from tests.strategies import levels, tied_scores


@given(st.lists(tied_scores, min_size=1, max_size=40), levels)
def test_value_is_the_order_statistic_or_infinity(scores: list[float], level: Fraction) -> None:
    q = conformal_quantile(scores, level)
    n, rank = len(scores), math.ceil((len(scores) + 1) * (1 - level))
    assert (q.n, q.rank, q.delta, q.attainable) == (n, rank, level, rank <= n)
    assert q.value == (sorted(scores)[rank - 1] if rank <= n else math.inf)
    # the defining property: the smallest value with at least `rank` scores at or below it
    if rank <= n:
        assert sum(s <= q.value for s in scores) >= rank > sum(s < q.value for s in scores)


@given(st.lists(tied_scores, min_size=1, max_size=20), levels, st.randoms(use_true_random=False))
def test_order_of_scores_does_not_matter_and_input_is_untouched(scores: list[float], level: Fraction, random: object) -> None:
    array = np.array(scores)
    array.flags.writeable = False
    shuffled = list(scores)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert conformal_quantile(array, level) == conformal_quantile(shuffled, level)


@given(st.integers(1, 60), levels)
def test_unattainable_levels_name_the_size_that_would_do(n: int, level: Fraction) -> None:
    q = conformal_quantile(np.linspace(0, 1, n), level)
    need = min_calibration_size(level)
    assert q.attainable == (n >= need)
    if not q.attainable:
        assert q.value == math.inf
        assert f"at least {need} " in q.guarantee


@given(st.lists(tied_scores, min_size=1, max_size=12), levels)
def test_json_round_trip(scores: list[float], level: Fraction) -> None:
    for q in (conformal_quantile(scores, level), weighted_quantile(scores, [1] * len(scores), 1, level)):
        text = json.dumps(q.to_json(), allow_nan=False)
        assert ConformalQuantile.from_json(json.loads(text)) == q


def test_infinite_scores_are_legitimate_and_do_not_contaminate() -> None:
    assert conformal_quantile([*np.arange(1, 9) / 10, math.inf], 0.2).value == 0.8
    q = conformal_quantile([0.5, math.inf, math.inf], "1/4")
    assert q.value == math.inf
    assert q.attainable


@pytest.mark.parametrize(
    ("scores", "delta", "value"),
    [
        ([1, 2, 3], 0.5, 2),  # MAPIE#973: rounding twice
        ([1, 2], 0.2, math.inf),  # MAPIE#974: clipped level
        ([1, 2, 3, 4, 5], 0.1, math.inf),  # MAPIE#980, MONAI#8938: rank clamped to n
        ([1, 2, 3, 4, 5, 6], 0.2, 6),  # MAPIE#452: no n+1
        (range(1, 10), 0.05, math.inf),  # crepes#6: index past the end
        (range(1, 5), 0.25, 4),  # puncc#5
        (range(1, 10), 0.1, 9),  # sktime#10758, ConformalPrediction.jl#67: interpolated quantile
        (range(1, 5), 0.2, 4),  # crepes regressor: +inf
        (range(1, 5), 0.6, 2),  # quantconformal: Fraction(float)
    ],
)
def test_public_faults_of_other_libraries(scores: list[int], delta: float, value: float) -> None:
    assert conformal_quantile(list(scores), delta).value == value


@pytest.mark.parametrize(("scores", "match"), [([], "got none"), ([0.1, math.nan], "NaN at"), ([[0.1]], "one dimension"), (0.5, "one dim")])
def test_bad_scores_are_refused(scores: object, match: str) -> None:
    with pytest.raises(ValueError, match=f"^scores: .*{match}"):
        conformal_quantile(scores, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^scores: .*{match}"):
        weighted_quantile(scores, [1], 1, 0.5)  # type: ignore[arg-type]


# --- weights


@given(st.lists(tied_scores, min_size=1, max_size=30), levels, st.sampled_from([1, 7, Fraction(1, 3), 0.1, 1 / 31, 1e-300, 1e300]))
def test_equal_weights_reproduce_the_unweighted_rank(scores: list[float], level: Fraction, w: float) -> None:
    a, b = conformal_quantile(scores, level), weighted_quantile(scores, [w] * len(scores), w, level)
    assert (a.value, a.rank, a.attainable) == (b.value, b.rank, b.attainable)


def test_equal_weights_reproduce_the_unweighted_rank_on_the_float_lattice() -> None:
    for n in (1, 2, 4, 9, 19, 49, 99, 199):
        for j in range(1, 100, 2 if n < 99 else 7):
            got = weighted_quantile(range(n), [1 / (n + 1)] * n, 1 / (n + 1), f"0.{j:02d}")
            assert got.rank == conformal_rank(n, f"0.{j:02d}")


@given(
    st.lists(st.tuples(tied_scores, st.integers(0, 5)), min_size=1, max_size=12),
    st.integers(0, 5),
    levels,
)
def test_weighted_quantile_against_its_definition(points: list[tuple[float, int]], w_test: int, level: Fraction) -> None:
    total = sum(w for _, w in points) + w_test
    if total == 0:
        return
    scores, weights = zip(*points, strict=True)
    reached = [s for s in sorted(scores) if sum(w for x, w in points if x <= s) >= (1 - level) * total]
    q = weighted_quantile(scores, weights, w_test, level)
    assert q.value == (reached[0] if reached else math.inf)
    assert q.attainable == bool(reached)
    # integer weights are multiplicities
    repeated = [s for s, w in points for _ in range(w)]
    if w_test == 1 and repeated:
        assert q.value == conformal_quantile(repeated, level).value


def test_weighted_faults_of_other_libraries() -> None:
    assert weighted_quantile([1, 2, 3], [0.90, 0.06, 0.04], 0.01, 0.5).value == 1.0  # torchcp: weights sorted by weight
    assert weighted_quantile(range(1, 10), [0.1] * 9, 0.1, 0.1).value == 9  # puncc: cumsum noise
    assert weighted_quantile(range(1, 11), [0.1] * 10, 0.0, 1e-6).value == 10  # tinyconformal: argmax of all False


@pytest.mark.parametrize(
    ("weights", "w_test"),
    [([1], 1), ([1, -1], 1), ([1, math.nan], 1), ([1, math.inf], 1), ([0, 0], 0), ([[1, 1]], 1), ([1, 1], math.nan), ([1, 1], None)],
)
def test_bad_weights_are_refused(weights: list[float], w_test: float) -> None:
    with pytest.raises(ValueError, match=r"^weights: got .*; need .*; because "):
        weighted_quantile([0.1, 0.2], weights, w_test, 0.5)
