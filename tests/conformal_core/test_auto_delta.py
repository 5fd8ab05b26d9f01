import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from conformal_core.auto_delta import auto_delta, auto_delta_upper, disjoint_split
from conformal_core.level import conformal_rank

CASES = [c for c in json.loads((Path(__file__).parents[1] / "data/vectors.json").read_text())["cases"] if c["kind"] == "auto_delta"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_reference_cases(case):
    i, want = case["input"], case["expected"]
    delta = auto_delta(i["n_solved"], i["n"], epsilon=i["eps"], delta_min=i["delta_min"], delta_max=i["delta_max"])
    assert delta == Fraction(want["delta"])
    if delta < 1:
        assert conformal_rank(i["n"], delta) == want["L_same_set"]


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from(["0", "0.05", 0.1, Fraction(1, 7)]))
def test_is_the_clipped_miss_rate(solved_n, epsilon):
    solved, n = solved_n
    exact = 1 - Fraction(solved, n) + (Fraction(1, 10) if epsilon == 0.1 else Fraction(epsilon))
    assert auto_delta(solved, n, epsilon=epsilon) == sorted([Fraction(1, 20), exact, Fraction(19, 20)])[1]


def test_on_its_own_calibration_set_nine_solved_prompts_exceed_the_threshold():
    for solved in range(20, 201):
        assert conformal_rank(200, auto_delta(solved, 200)) == solved - 9


@pytest.mark.parametrize(
    ("solved", "n", "kwargs", "name"),
    [
        (5, 4, {}, "solved"),
        (-1, 4, {}, "solved"),
        (0, 0, {}, "solved"),
        (1.5, 2, {}, "solved"),
        (True, 2, {}, "solved"),
        (1, 2, {"epsilon": "-0.1"}, "epsilon"),
        (1, 2, {"epsilon": float("nan")}, "epsilon"),
        (1, 2, {"delta_min": "0"}, "delta_min"),
        (1, 2, {"delta_min": "0.6", "delta_max": "0.5"}, "delta_min"),
    ],
)
def test_refusals_name_the_argument(solved, n, kwargs, name):
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
        auto_delta(solved, n, **kwargs)


@given(st.integers(2, 60), st.integers(0, 99))
def test_split_is_a_partition_keyed_by_its_seed(n, seed):
    a, b = disjoint_split(n, seed=seed)
    assert sorted([*a, *b]) == list(range(n)) and len(a) == n // 2
    again, _ = disjoint_split(n, seed=seed)
    np.testing.assert_array_equal(a, again)


def test_split_of_a_sorted_set_is_exchangeable():
    parts = [disjoint_split(10, seed=(seed, 3), share="0.3")[0] for seed in range(2000)]
    for row in (0, 9):
        assert binomtest(sum(row in p for p in parts), 2000, 0.3).pvalue > 1e-4


@pytest.mark.parametrize(("n", "share"), [(1, "1/2"), (3, "0.1"), (3, 1), (0, "1/2")])
def test_split_refuses_an_empty_part(n, share):
    with pytest.raises(ValueError, match=r"^n: got .*; need .*; because "):
        disjoint_split(n, seed=0, share=share)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from(["0.05", "0.1", "1/3"]))
@settings(deadline=None)
def test_upper_delta_is_the_clopper_pearson_bound(solved_n, gamma):
    solved, n = solved_n
    bound = auto_delta_upper(solved, n, gamma=gamma, delta_min="1e-6", delta_max=1)
    assert bound >= 1 - Fraction(solved, n)
    if solved:
        tail = [binom.cdf(n - solved, n, float(bound - shift)) for shift in (Fraction(0), Fraction(1, 10**6))]
        assert tail[0] <= float(Fraction(gamma)) * (1 + 1e-9) and tail[1] >= float(Fraction(gamma)) * (1 - 1e-9)
    assert auto_delta_upper(solved, n, gamma=gamma) == min(max(bound, Fraction(1, 20)), Fraction(19, 20))


@pytest.mark.parametrize("missed", [Fraction(1, 10), Fraction(1, 3), Fraction(1, 2)])
def test_upper_delta_holds_with_the_probability_it_names(missed):
    """P(delta >= unsolved share) over the exact binomial law of the solved prompts, n = 40."""
    law = [float(binom.pmf(s, 40, float(1 - missed))) for s in range(41)]
    held = sum(w for s, w in enumerate(law) if auto_delta_upper(s, 40, gamma="0.1") >= missed)
    assert held >= 0.9


@given(st.lists(st.integers(0, 2), min_size=4, max_size=40), st.integers(0, 99), st.sampled_from(["1/2", "1/3", "3/5"]))
def test_stratified_split_keeps_the_mix(labels, seed, share):
    first, second = disjoint_split(len(labels), seed=seed, share=share, strata=labels)
    assert sorted([*first, *second]) == list(range(len(labels))) and len(first) == int(Fraction(share) * len(labels))
    for s in set(labels):
        assert abs(sum(labels[i] == s for i in first) - Fraction(share) * labels.count(s)) < 1
    again, _ = disjoint_split(len(labels), seed=seed, share=share, strata=labels)
    np.testing.assert_array_equal(first, again)


def test_stratified_split_is_uniform_within_a_stratum():
    parts = [disjoint_split(7, seed=(seed, 1), strata=[0, 0, 0, 1, 1, 1, 1])[0] for seed in range(2000)]
    for rows in ((0, 1, 2), (3, 4, 5, 6)):
        hits = [sum(row in p for p in parts) for row in rows]
        for hit in hits:
            assert binomtest(hit, 2000, sum(hits) / len(hits) / 2000).pvalue > 1e-4
    assert len({tuple(p) for p in parts}) > 12


def test_strata_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"^strata: got .*; need .*; because "):
        disjoint_split(4, seed=0, strata=[0, 1])


def test_equal_bounds_leave_one_level():
    assert auto_delta(1, 2, delta_min="0.3", delta_max="0.3") == Fraction(3, 10)


def test_a_float_is_the_nearest_rational_of_denominator_up_to_a_million():
    for epsilon, exact in ((1 / 999_983, Fraction(1, 999_983)), (1 / 1_000_003, Fraction(1, 10**6))):
        assert auto_delta(1, 2, epsilon=epsilon) == Fraction(1, 2) + exact


def test_a_negative_number_of_prompts_is_refused_as_a_count():
    with pytest.raises(ValueError, match="n: got -1; need an integer >= 0"):
        disjoint_split(-1, seed=0)
