"""Every applicable reference case of ``tests/data/vectors.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformal_core.answers import encode_answers
from conformal_core.laws import tied_coverage
from conformal_core.level import conformal_rank, min_calibration_size
from conformal_core.outcomes import Outcomes
from conformal_core.pvalues import smoothed_p_values
from conformal_core.quantile import conformal_quantile
from conformal_core.scores import APS, FirstSuccess, MassAbove, ReleasedAPS, empty_probability, singleton_probability
from conformal_core.sets import AnswerSets, inclusive_set, randomized_set, released_set

CASES = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())["cases"]


def cases(kind: str) -> pytest.MarkDecorator:
    chosen = [c for c in CASES if c["kind"] == kind]
    assert chosen
    return pytest.mark.parametrize(("given", "expected"), [(c["input"], c["expected"]) for c in chosen], ids=[c["id"] for c in chosen])


def number(text: str) -> float:
    return math.inf if text == "inf" else float(Fraction(text))


def group(samples: Sequence[str], gold: str | None = None) -> tuple[Outcomes, list[str]]:
    """One prompt, and its answers in the order of their codes."""
    codes, gold_codes = encode_answers([samples], None if gold is None else [gold])
    names = list(dict.fromkeys(samples))
    return Outcomes([0], np.zeros(codes.shape, bool), codes=codes, gold=gold_codes), names


class Ordered(ReleasedAPS):
    """The released rule with a given tie order instead of a random one."""

    def __init__(self, names: list[str], order: list[str]) -> None:
        self.place = np.array([order.index(a) for a in names] + [99], dtype=np.uint64)

    def tie_keys(self, outcomes: Outcomes, codes: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.uint64]:
        return self.place[codes]


@cases("quantile_rank")
def test_quantile_rank(given: dict[str, Any], expected: dict[str, Any]) -> None:
    n, delta = given["n"], given["delta"]
    rank = conformal_rank(n, delta)
    assert rank == conformal_rank(n, float(Fraction(delta))) == expected["L"]
    assert (min_calibration_size(delta) > n) == (expected["valid_threshold"] == "inf")
    coverage = Fraction(min(rank, n + 1), n + 1) if rank <= n else Fraction(1)
    assert coverage == Fraction(expected["coverage_valid_rule_continuous"])
    scores = np.arange(1.0, n + 1)
    assert conformal_quantile(scores, delta).value == (math.inf if rank > n else float(expected["valid_threshold"].split("_")[-1]))


@cases("quantile_value")
def test_quantile_value(given: dict[str, Any], expected: dict[str, Any]) -> None:
    q = conformal_quantile([number(s) for s in given["scores"]], given["delta"])
    assert q.rank == expected["L"]
    assert q.value == number(expected["q_valid_rule"])


@cases("aps_score")
def test_aps_score(given: dict[str, Any], expected: dict[str, Any]) -> None:
    o, _ = group(given["samples"], given["answer"])
    u = [number(given["U"])]
    assert APS().gold_scores(o, (given["k"],), u)[0, 0] == pytest.approx(number(expected["score"]), abs=1e-12)
    mass = number(expected["mass_strictly_above"]) if expected["phat"] != "0" else 1.0
    assert MassAbove().gold_scores(o, (given["k"],), u)[0, 0] == pytest.approx(mass, abs=1e-12)


@cases("aps_score_ordered")
def test_aps_score_ordered(given: dict[str, Any], expected: dict[str, Any]) -> None:
    o, names = group(given["samples"], given["answer"])
    score = Ordered(names, given["order"])
    assert score.gold_scores(o, (o.width,), [number(given["U"])])[0, 0] == pytest.approx(number(expected["score"]), abs=1e-12)


@cases("prediction_set")
def test_prediction_set(given: dict[str, Any], expected: dict[str, Any]) -> None:
    o, names = group(given["samples"])
    q, u, k = number(given["q"]), [number(given["U_shared"])], o.width
    for score, members, single in (
        (APS(), expected["shared"], expected["singleton_shared"]),
        (APS("inclusive"), expected["inclusive_level"], expected["stop_inclusive_level"]),
        (Ordered(names, given["order"]), expected["inclusive_ordered"], expected["stop_released"]),
    ):
        stop, committed = score.stop(o, k, q, u)
        assert bool(stop[0]) == single
        assert int(committed[0]) == (names.index(members[0]) if single else -1)
    # membership, one answer at a time, through the score itself
    for name in names:
        as_gold, _ = group(given["samples"], name)
        assert (APS().gold_scores(as_gold, (k,), u)[0, 0] <= q) == (name in expected["shared"])
    never, _ = group(given["samples"], "an answer that was not sampled")
    assert (APS().gold_scores(never, (k,), u)[0, 0] <= q) == expected["unsampled_in"]


@cases("prediction_set")
def test_prediction_set_as_a_function(given: dict[str, Any], expected: dict[str, Any]) -> None:
    o, names = group(given["samples"])
    assert o.codes is not None
    q, k = number(given["q"]), o.width
    each = [[number(given["U_by_answer"][a]) for a in given["samples"]]]
    order = [[given["order"].index(a) for a in given["samples"]]]

    def members(sets: AnswerSets) -> list[str]:
        return [a for j, a in enumerate(names) if sets.contains([j])[0]]

    shared = randomized_set(o.codes, k, q, [number(given["U_shared"])])
    independent = randomized_set(o.codes, k, q, each)
    inclusive, released = inclusive_set(o.codes, k, q), released_set(o.codes, k, q, order)
    for sets, name in ((shared, "shared"), (independent, "independent"), (inclusive, "inclusive_level"), (released, "inclusive_ordered")):
        assert members(sets) == sorted(expected[name], key=names.index)
    assert bool(shared.unsampled[0]) == expected["unsampled_in"]
    assert bool(shared.singleton[0]) == expected["singleton_shared"]
    assert bool(independent.singleton[0]) == expected["singleton_independent"]
    assert bool(inclusive.singleton[0]) == expected["stop_inclusive_level"]
    assert bool(released.singleton[0]) == expected["stop_released"]


@cases("set_law")
def test_set_law(given: dict[str, Any], expected: dict[str, Any]) -> None:
    samples, q = given["samples"], given["q"]
    counts = [samples.count(a) for a in dict.fromkeys(samples)]
    assert singleton_probability(counts, q) == Fraction(expected["P_singleton_shared"])
    assert singleton_probability(counts, q, "independent") == Fraction(expected["P_singleton_independent"])
    assert empty_probability(counts, q) == Fraction(expected["P_empty_shared"])
    assert empty_probability(counts, q, "independent") == Fraction(expected["P_empty_independent"])


@cases("first_success")
def test_first_success(given: dict[str, Any], expected: dict[str, Any]) -> None:
    o = Outcomes([0], np.array([given["passes"]], dtype=bool))
    k = given["k"]
    assert FirstSuccess("paper").gold_scores(o, (k,), [0.0])[0, 0] == number(expected["score"])
    solved = any(given["passes"][:k])
    assert FirstSuccess().gold_scores(o, (k,), [0.0])[0, 0] == (number(expected["score"]) if solved else math.inf)


@cases("first_success_thresholds")
def test_first_success_thresholds(given: dict[str, Any], expected: dict[str, Any]) -> None:
    grid, firsts = tuple(given["budgets"]), given["first_pass"]
    passes = np.array([[j == first for j in range(1, max(grid) + 1)] for first in firsts])
    o, u = Outcomes(np.arange(len(firsts)), passes), np.zeros(len(firsts))
    active = []
    for convention in ("paper", "failure_above_success"):
        score = FirstSuccess(convention)
        table = score.gold_scores(o, grid, u)
        for m, k in enumerate(grid):
            q = conformal_quantile(table[:, m], given["delta"])
            assert q.rank == expected["L"]
            assert min(q.value, 1.0) == number(expected["q"][str(k)])
            assert (q.value < 1) == expected["q_below_1"][str(k)]
            stop, _ = score.stop(o, k, q.value, u)
            assert stop.tolist() == [q.value < 1 and j is not None and j <= expected["J_L"] for j in firsts]
            active += [k] if q.value < 1 else []
            assert sum(j is not None and j < k for j in firsts) == expected["n_first_pass_below_k"][str(k)]
    assert min(active) == expected["first_active_budget"]


@cases("tied_coverage")
def test_tied_coverage(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert tied_coverage(given["pmf_sorted_support"], given["n"], given["delta"]) == Fraction(expected["coverage"])


@cases("smoothed_pvalue")
def test_smoothed_pvalue(given: dict[str, Any], expected: dict[str, Any]) -> None:
    p = smoothed_p_values([number(s) for s in given["cal"]], number(given["test"]), number(given["tau"]))
    assert float(p) == pytest.approx(number(expected["p"]), abs=1e-15)


@cases("tied_coverage")
def test_tied_coverage_of_smoothed_p_values_is_exact(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """P(p > delta) over every calibration set and test point on the given support; p is linear in its coin."""
    pmf, n, delta = [Fraction(p) for p in given["pmf_sorted_support"]], given["n"], Fraction(given["delta"])
    support, total = np.arange(float(len(pmf))), Fraction(0)
    for cal in product(range(len(pmf)), repeat=n):
        low, high = (smoothed_p_values(np.array(cal, float), support, c) for c in (0.0, 1.0))
        for s, mass in enumerate(pmf):
            a, b = (Fraction(round(float(x[s]) * (n + 1)), n + 1) for x in (low, high))
            weight = math.prod((pmf[i] for i in cal), start=Fraction(1)) * mass
            total += weight * min(max((b - delta) / (b - a), Fraction(0)), Fraction(1))
    assert total == Fraction(expected["smoothed_pvalue_coverage"])
    assert (Fraction(expected["coverage"]) > Fraction(expected["upper_claim"])) == expected["claim_violated"]


#: Kinds tested beside the module they concern, and those of the masks and of sampling.
ELSEWHERE = {
    "auto_delta": "conformal_core/test_auto_delta.py",
    "bonferroni": "conformal_core/test_thresholds.py",
    "simultaneous": "conformal_core/test_simultaneous.py",
    "stopping": "conformal_core/test_conformal_budget.py",
}
OTHER_CORE = {"carm", "carm_sharp", "carm_guard", "dual_clip", "masked_loss", "best_worst", "group_advantage"}


def test_every_kind_of_case_has_a_test() -> None:
    here = Path(__file__).read_text()
    for kind in {c["kind"] for c in CASES} - OTHER_CORE:
        source = here if kind not in ELSEWHERE else (Path(__file__).parents[1] / ELSEWHERE[kind]).read_text()
        assert f'"{kind}"' in source and "CASES" in source, kind
