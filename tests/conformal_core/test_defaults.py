"""Default values are public: a changed one changes what users get without a word."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from fractions import Fraction

import pytest

import conformal_core
import conformal_core.testing

DEFAULTS: dict[str, dict[str, object]] = {
    "APS": {"set_rule": "randomized"},
    "AdaptiveLevel": {"updates": 0, "errors": Fraction(0)},
    "BudgetThresholds": {"n_reference": 0},
    "CalibrationRequest": {"reason": ""},
    "ConformalBudget": {
        "grid": (2, 4, 8, 16, 32),
        "delta": "auto",
        "multiplicity": "per_budget",
        "n_calibration": 200,
        "recalibrate_every": 50,
        "split": True,
        "seed": 0,
    },
    "ConformalVote": {
        "grid": (2, 3, 4, 6, 8, 12, 16, 24, 32),
        "delta": "0.05",
        "loss": "differs",
        "statistic": "margin",
        "n_calibration": 200,
    },
    "DriftMonitor": {"alpha": "0.01", "betting": "jumper"},
    "DriftMonitor.restart": {"history": ()},
    "FirstSuccess": {"convention": "failure_above_success"},
    "NestedRollout": {"seed": 0},
    "Outcomes": {"step": 0},
    "RecalibrationSchedule": {"stage": 1, "seed": 0},
    "RiskControl": {"statistic": "top_share"},
    "SignalBudget": {
        "grid": (8, 16, 32),
        "m": 1,
        "delta": "0.1",
        "share": "0.1",
        "window": 200,
        "seed": 0,
        "by_first_outcome": False,
        "calibration": "stream",
        "n_calibration": 200,
        "recalibrate_every": 50,
        "drift": "none",
        "recency": "0.98",
        "gamma": "0.02",
    },
    "SimpleJumper": {"jump": 0.01},
    "StreamCalibrated": {"share": "0.1", "seed": 0},
    "StreamWindow": {"drift": "none", "recency": "0.98", "gamma": "0.02"},
    "UntilMixed": {"m": 1},
    "VoteRule": {"method": "conformal risk control on the stop"},
    "adaptive_consistency": {"grid": tuple(range(1, 41)), "confidence": 0.95},
    "adaptive_level": {"gamma": "0.02"},
    "as_level": {"name": "delta"},
    "auto_delta": {"epsilon": "0.05", "delta_min": "0.05", "delta_max": "0.95"},
    "auto_delta_upper": {"gamma": "0.1", "delta_min": "0.05", "delta_max": "0.95"},
    "calibrate_thresholds": {"multiplicity": "per_budget", "checkpoints": 1, "score_name": ""},
    "calibrate_vote": {"loss": "differs", "statistic": "margin"},
    "clopper_pearson": {"level": 0.95},
    "disjoint_split": {"share": Fraction(1, 2)},
    "empty_probability": {"rule": "randomized"},
    "k_mix": {"m": 1},
    "lead": {"statistic": "top_share"},
    "learn_then_test": {"gamma": "0.1", "risk": "wrong_stop", "statistic": "top_share"},
    "margin_stop": {"statistic": "top_share"},
    "max_rank": {"corrected": True},
    "mean_interval": {"level": "0.95", "adaptive": False},
    "min_calibration_size": {"budgets": 1, "checkpoints": 1},
    "nested_budgets": {"seed": 0, "step": 0},
    "nested_thresholds": {"multiplicity": "per_budget"},
    "online_p_values": {"history": ()},
    "permutation_test": {"statistic": "greater", "resamples": 1999, "seed": 0},
    "released_cgrpo": {"grid": (2, 4, 8, 16, 32), "n_calibration": 200, "recalibrate_every": 50, "seed": 0},
    "replay": {"step": 0, "learn": False, "level": "0.95"},
    "risk_control": {"statistic": "top_share"},
    "select_stops": {"statistic": "margin"},
    "share_interval": {"level": "0.95", "adaptive": False},
    "signal_score": {"m": 1},
    "singleton_probability": {"rule": "randomized"},
    "testing.check_calibrator": {"tight": False, "max_examples": 200},
    "testing.check_coverage_law": {"alpha": "1/1000"},
    "testing.check_exchangeability": {"width": 4, "max_examples": 100},
    "testing.check_inclusion": {"thresholds": (0.0, 0.999), "max_examples": 200},
    "testing.check_joint_calibrator": {"budgets": 2, "max_examples": 200},
    "testing.check_rollout_policy": {"max_examples": 100},
    "testing.check_score": {"grid": (1, 2, 4), "max_examples": 150},
    "testing.check_sub_additivity": {"budgets": 2, "max_examples": 200},
    "testing.outcome_tables": {"max_n": 6, "width": 4, "answers": 3},
    "uniforms": {"step": 0, "stream": ""},
    "vote_report": {"level": "0.95"},
    "wrong_stop_level": {"statistic": "top_share"},
}


def defaults(name: str) -> dict[str, object]:
    """Default values other than None of a public callable, or of a method of a public class."""
    found: object = conformal_core
    for part in name.split("."):
        found = getattr(found, part)
    parameters = inspect.signature(found).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.default is not None}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    assert defaults(name) == DEFAULTS[name]
    assert [type(value) for value in defaults(name).values()] == [type(value) for value in DEFAULTS[name].values()]


def test_no_other_public_callable_has_defaults() -> None:
    callables = [name for name in conformal_core.__all__ if callable(getattr(conformal_core, name))]
    others = {name: defaults(name) for name in callables if name not in DEFAULTS and not is_alias(getattr(conformal_core, name))}
    assert {name: found for name, found in others.items() if found} == {}


def is_alias(thing: object) -> bool:
    """Whether it is a type alias, which has no signature."""
    return not inspect.isclass(thing) and not inspect.isfunction(thing)


@pytest.mark.parametrize("name", [name for name in conformal_core.__all__ if is_dataclass(getattr(conformal_core, name))])
def test_results_cannot_be_changed_and_compare_by_value_unless_they_hold_arrays(name: str) -> None:
    kind = getattr(conformal_core, name)
    parameters = kind.__dataclass_params__
    assert parameters.frozen
    assert parameters.eq is not any(word in str(field.type) for field in fields(kind) for word in ("NDArray", "Ints", "Bools"))
