"""The public surface: what is named, what it says of itself, what its results become in JSON, what it takes for a level."""

from __future__ import annotations

import ast
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conformal_core as core
from conformal_core import Outcomes

pytestmark = pytest.mark.filterwarnings("ignore:.*; need .*; because ")
GRID = (2, 4)


def table(n: int = 30, seed: int = 0) -> Outcomes:
    rng = np.random.default_rng(seed)
    codes = np.where(rng.random((n, 4)) < rng.random((n, 1)), 0, rng.integers(1, 3, (n, 4)))
    return Outcomes(rng.integers(0, 2**60, n).astype(np.uint64), codes == 0, codes=codes, gold=np.zeros(n, np.int64))


def calibrated(policy: Any) -> Any:
    policy.calibrate(table())
    return policy


# --- names and documentation


PUBLIC = {name: getattr(core, name) for name in core.__all__}
CALLABLES = {name: thing for name, thing in PUBLIC.items() if inspect.isclass(thing) or inspect.isfunction(thing)}


def test_all_names_what_is_public() -> None:
    bound = {name for name, value in vars(core).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert bound == set(core.__all__)
    assert len(set(core.__all__)) == len(core.__all__)


@pytest.mark.parametrize("name", CALLABLES)
def test_says_what_it_does(name: str) -> None:
    """A summary line that ends as a sentence, and an example that a doctest runs: of every function, and of every class that one calls.

    Results, abstract classes and the request that policies make are shown by the functions and policies that give them.
    """
    text = inspect.getdoc(CALLABLES[name]) or ""
    assert re.match(r"[A-Z`(].*[.:?](\s|$)", text.split("\n\n")[0].replace("\n", " ")), text[:80]
    given_back = is_dataclass(CALLABLES[name]) or inspect.isabstract(CALLABLES[name]) or name == "JointThresholds"
    assert given_back or ">>> " in text


@pytest.mark.parametrize("name", [name for name, thing in CALLABLES.items() if inspect.isfunction(thing)])
def test_says_what_it_refuses(name: str) -> None:
    assert "ValueError" in (inspect.getdoc(CALLABLES[name]) or "")


@pytest.mark.parametrize("name", [n for n, c in CALLABLES.items() if "guarantee" in getattr(c, "__dataclass_fields__", {})])
def test_results_say_under_which_assumption(name: str) -> None:
    assert re.search(r"[Gg]uarantee", inspect.getdoc(CALLABLES[name]) or "")


def messages(path: Path) -> Iterator[str]:
    """The written-out text of every ``raise ValueError("...")`` of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "ValueError":
            yield "".join(str(part.value) for part in ast.walk(call) if isinstance(part, ast.Constant))


def test_every_error_says_what_was_got_what_is_needed_and_why() -> None:
    found = [(path.name, text) for path in sorted(Path(core.__file__).parent.glob("*.py")) for text in messages(path)]
    assert len(found) > 100
    assert not [text for text in found if not all(word in text[1] for word in ("got ", "need", "because "))]


# --- results


RESULTS: dict[str, Callable[[], list[Any]]] = {
    "AdaptiveLevel": lambda: [core.adaptive_level("1/10"), core.adaptive_level("0.3", "1/7").after("1/3").after(0)],
    "BudgetThresholds": lambda: (
        [
            core.calibrate_thresholds(np.arange(30.0).reshape(15, 2), GRID, d, rule, score_name="s")
            for d in ("1/3", "1/100")
            for rule in ("per_budget", "bonferroni", "max_rank", "max_score")
        ]
        + [core.calibrate_thresholds(np.arange(30.0).reshape(15, 2), GRID, "1/3", "split_ecdf", reference=np.arange(8.0).reshape(4, 2))]
    ),
    "ConformalQuantile": lambda: [core.conformal_quantile([1, 2, np.inf], d) for d in ("1/2", "1/4", "1/9")],
    "ExchangeabilityTest": lambda: [core.coverage_test(range(20), range(5), "1/3"), core.permutation_test(range(6), [2.5, 9.0])],
    "LearnThenTest": lambda: [
        core.learn_then_test(table(), GRID, d, risk=r) for d in ("1/2", "1/99") for r in ("wrong_stop", "wrong_given_stop")
    ],
    "NestedThresholds": lambda: [
        core.nested_thresholds(np.arange(20.0).reshape(10, 2), np.array([4] * 4 + [2] * 6), GRID, d) for d in ("1/5", "1/8", "1/90")
    ],
    "ReplayReport": lambda: [
        core.replay(calibrated(core.ConformalBudget(GRID, delta="0.4")), table(20, 1)),
        core.replay(core.FixedBudget(2), [table(3), table(4)], k_max=4),
        core.replay(core.FixedBudget(2), Outcomes([1], np.zeros((1, 2), bool))),
    ],
    "RiskControl": lambda: [core.risk_control(table(), GRID, d, s) for d in ("1/3", "1/99") for s in ("top_share", "margin")],
    "Selection": lambda: [core.conformal_selection([0.2, 0.9, 0.4], [False, True, True], [0.5, 0.1], d) for d in ("1/2", "1/99")],
    "VoteReport": lambda: [
        core.vote_report(core.FixedVote((2, 4), "share", 0.7), table()),
        core.vote_report(core.FixedVote((2, 4), "share", 0.7), Outcomes(table().prompt_ids, table().passes, codes=table().codes)),
    ],
    "VoteRule": lambda: [core.calibrate_vote(table(), GRID, d, loss) for d in ("1/3", "1/99") for loss in ("differs", "wrong", "worse")],
}
#: Dataclasses that are no results: what a policy is shown, what it asks for, and sets that are read at once.
NOT_RESULTS = {"AnswerSets", "CalibrationRequest", "Outcomes"}


def test_every_result_is_covered() -> None:
    assert {n for n, c in CALLABLES.items() if is_dataclass(c)} - NOT_RESULTS == set(RESULTS)
    assert all(c.__dataclass_params__.frozen for c in CALLABLES.values() if is_dataclass(c))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@pytest.mark.parametrize("name", RESULTS)
def test_results_survive_json_bit_for_bit(name: str) -> None:
    for result in RESULTS[name]():
        assert type(result) is PUBLIC[name]
        text = json.dumps(result.to_json(), allow_nan=False)
        again = type(result).from_json(json.loads(text))
        for field in fields(result):
            assert same(getattr(result, field.name), getattr(again, field.name)), field.name
        assert json.dumps(again.to_json(), allow_nan=False) == text
        with pytest.raises(AttributeError):
            result.n = 3


# --- levels


LEVEL_NAMES = ("delta", "gamma", "alpha", "alarm", "level")
#: Parameters annotated as levels that are shares, weights, steps or parameters of a law, with bounds of their own.
OTHER = {
    ("ConformalBudget", "epsilon"),
    ("ConformalBudget", "nested"),
    ("NestedRollout", "shares"),
    ("SignalBudget", "share"),
    ("SignalBudget", "recency"),
    ("SignalBudget", "gamma"),
    ("StreamCalibrated", "share"),
    ("StreamWindow", "recency"),
    ("StreamWindow", "gamma"),
    ("adaptive_level", "gamma"),
    ("auto_delta", "epsilon"),
    ("auto_delta", "delta_min"),
    ("auto_delta", "delta_max"),
    ("auto_delta_upper", "delta_min"),
    ("auto_delta_upper", "delta_max"),
    ("disjoint_split", "share"),
    ("expected_savings", "stopped"),
    ("first_success_cdf", "a"),
    ("first_success_cdf", "b"),
    ("first_success_mean_k", "solved"),
    ("nonexchangeable_bound", "weights"),
    ("nonexchangeable_bound", "tv"),
    ("tv_shift_bound", "tv"),
}
SCORES = np.arange(240.0).reshape(120, 2)
#: Every entry point that takes a level, with arguments that suit any level of at least 1/20.
ENTRY: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("ConformalBudget", "delta"): lambda x: calibrated(core.ConformalBudget(GRID, delta=x, n_calibration=99)),
    ("ConformalBudget", "gamma"): lambda x: core.ConformalBudget(GRID, delta="0.5", gamma=x, multiplicity="learn_then_test"),
    ("ConformalBudget", "alarm"): lambda x: core.ConformalBudget(GRID, alarm=x),
    ("ConformalVote", "delta"): lambda x: calibrated(core.ConformalVote(GRID, delta=x)),
    ("DriftMonitor", "alpha"): lambda x: core.DriftMonitor(x),
    ("RecalibrationSchedule", "alarm"): lambda x: core.RecalibrationSchedule(9, alarm=x),
    ("SignalBudget", "delta"): lambda x: core.SignalBudget(GRID, delta=x),
    ("SignalBudget", "alarm"): lambda x: core.SignalBudget(GRID, alarm=x),
    ("StreamCalibrated", "alarm"): lambda x: core.StreamCalibrated(core.ConformalBudget(GRID), alarm=x),
    ("StreamWindow", "delta"): lambda x: core.StreamWindow(x, 99),
    ("adaptive_level", "delta"): lambda x: core.adaptive_level(x),
    ("as_level", "delta"): lambda x: core.as_level(x),
    ("auto_delta_upper", "gamma"): lambda x: core.auto_delta_upper(140, 200, gamma=x),
    ("betabinomial_hits", "delta"): lambda x: core.betabinomial_hits(9, 120, x),
    ("calibrate_thresholds", "delta"): lambda x: core.calibrate_thresholds(SCORES, GRID, x, "bonferroni"),
    ("calibrate_vote", "delta"): lambda x: core.calibrate_vote(table(), GRID, x),
    ("clopper_pearson", "level"): lambda x: core.clopper_pearson(3, 9, x),
    ("conformal_quantile", "delta"): lambda x: core.conformal_quantile(SCORES[:, 0], x),
    ("conformal_rank", "delta"): lambda x: core.conformal_rank(99, x),
    ("conformal_selection", "delta"): lambda x: core.conformal_selection(range(40), [False] * 40, range(20, 60), x),
    ("coverage_law", "delta"): lambda x: core.coverage_law(120, x),
    ("coverage_test", "delta"): lambda x: core.coverage_test(range(120), range(9), x),
    ("learn_then_test", "delta"): lambda x: core.learn_then_test(table(), GRID, x),
    ("learn_then_test", "gamma"): lambda x: core.learn_then_test(table(), GRID, "0.5", x),
    ("max_rank", "delta"): lambda x: core.max_rank(SCORES, x),
    ("max_score", "delta"): lambda x: core.max_score(SCORES, x),
    ("mean_interval", "level"): lambda x: core.mean_interval([0.1, 0.5, 0.7], x),
    ("min_calibration_size", "delta"): lambda x: core.min_calibration_size(x),
    ("nested_thresholds", "delta"): lambda x: core.nested_thresholds(SCORES, np.full(120, 4), GRID, x),
    ("nonexchangeable_bound", "delta"): lambda x: core.nonexchangeable_bound(x, ["1/2"], ["1/9"]),
    ("pac_rank", "delta"): lambda x: core.pac_rank(500, x, "0.1"),
    ("pac_rank", "gamma"): lambda x: core.pac_rank(500, "0.2", x),
    ("replay", "level"): lambda x: core.replay(core.FixedBudget(2), table(), level=x),
    ("risk_control", "delta"): lambda x: core.risk_control(table(), GRID, x),
    ("select_stops", "delta"): lambda x: core.select_stops(table(), table(9, 1), 4, x),
    ("share_interval", "level"): lambda x: core.share_interval(3, 9, x),
    ("split_ecdf", "delta"): lambda x: core.split_ecdf(SCORES[:40], SCORES, x),
    ("tied_coverage", "delta"): lambda x: core.tied_coverage(["1/2", "1/2"], 30, x),
    ("tv_shift_bound", "delta"): lambda x: core.tv_shift_bound(x, "1/9"),
    ("vote_report", "level"): lambda x: core.vote_report(core.FixedVote(GRID, "share", 0.7), table(), x),
    ("weighted_quantile", "delta"): lambda x: core.weighted_quantile([1, 2, 3], [1, 2, 3], 1, x),
}


def level_parameters() -> Iterator[tuple[str, str]]:
    for name, thing in CALLABLES.items():
        if is_dataclass(thing) or issubclass(thing if inspect.isclass(thing) else object, tuple):
            continue
        for parameter in inspect.signature(thing).parameters.values():
            if re.search(r"\bLevel\b", str(parameter.annotation)) or parameter.name in ("delta", "alpha", "alarm"):
                yield name, parameter.name


def test_every_entry_point_that_takes_a_level_is_covered() -> None:
    assert set(level_parameters()) - OTHER == set(ENTRY)


def plain(result: Any) -> Any:
    """A result as values that compare by what it computed."""
    if hasattr(result, "to_json"):
        return json.dumps(result.to_json())
    if hasattr(result, "state_dict"):
        return json.dumps(result.state_dict()), repr(result).split(" object at ")[0], str(getattr(result, "alpha", ""))
    if hasattr(result, "dist"):
        return repr(result.args), repr(result.kwds)
    return repr(result)


@pytest.mark.parametrize("entry", ENTRY, ids="-".join)
@settings(max_examples=6, deadline=None)
@given(j=st.integers(5, 95))
def test_a_level_is_the_same_however_it_is_written(entry: tuple[str, str], j: int) -> None:
    forms = [
        Fraction(j, 100),
        f"{j}/100",
        f"0.{j:02d}",
        Decimal(j) / 100,
        j / 100,
        np.float64(j / 100),
        np.float32(j / 100),
        1 - (100 - j) / 100,
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = {plain(ENTRY[entry](x)) for x in forms}
    assert len(results) == 1


@pytest.mark.parametrize("entry", ENTRY, ids="-".join)
@pytest.mark.parametrize(
    "bad",
    [
        *(0, 1, 0.0, 1.0, "0", "1", Fraction(0), Fraction(1), Decimal(0), Decimal(1), -0.1, "-1/10", 1.1, 7, 1e-9, 1 - 1e-9),
        *(float("nan"), "nan", Decimal("nan"), np.float64("nan"), float("inf"), "", "a tenth", True, False, np.True_, [0.1], 0.1j),
    ],
    ids=repr,
)
def test_what_is_no_level_is_refused_by_name(entry: tuple[str, str], bad: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{entry[1]}: got .*; need a number in the open interval \(0, 1\); because "):
        ENTRY[entry](bad)
