"""Calibrated rollout budgets: how many responses does this prompt need?

NumPy only; SciPy is imported inside the functions that need a law.  Levels are exact (:func:`as_level`), thresholds say whether they
are attainable, one score object calibrates and stops, and every random draw is keyed by (seed, step, prompt).
"""

from .answers import encode_answers
from .auto_delta import auto_delta, auto_delta_upper, disjoint_split
from .budget_laws import expected_savings, first_success_cdf, first_success_mean_k
from .conformal_budget import ConformalBudget
from .keys import prompt_ids, uniforms
from .laws import betabinomial_hits, clopper_pearson, coverage_law, pac_rank, tied_coverage
from .lead import lead, margin_stop
from .learn_then_test import LearnThenTest, learn_then_test
from .level import Level, as_level, conformal_rank, min_calibration_size
from .outcomes import NOT_DRAWN, UNPARSABLE, Outcomes
from .policy import CalibrationRequest, FixedBudget, RolloutPolicy
from .pvalues import plain_p_values, smoothed_p_values
from .quantile import ConformalQuantile, conformal_quantile, weighted_quantile
from .released import released_cgrpo
from .replay import ReplayReport, replay
from .risk_control import RiskControl, risk_control, wrong_stop_level
from .scores import (
    APS,
    FirstSuccess,
    MassAbove,
    PassRate,
    ReleasedAPS,
    Score,
    answer_counts,
    empty_probability,
    k_mix,
    signal_score,
    singleton_probability,
)
from .selection import Selection, conformal_selection, select_stops
from .sets import AnswerSets, inclusive_set, mass_above_set, randomized_set, released_set
from .shift import nonexchangeable_bound, total_variation, tv_shift_bound
from .signal import SignalBudget
from .simultaneous import JointThresholds, max_rank, max_score, split_ecdf
from .thresholds import BudgetThresholds, calibrate_thresholds

__all__ = [
    "APS",
    "NOT_DRAWN",
    "UNPARSABLE",
    "AnswerSets",
    "BudgetThresholds",
    "CalibrationRequest",
    "ConformalBudget",
    "ConformalQuantile",
    "FirstSuccess",
    "FixedBudget",
    "JointThresholds",
    "LearnThenTest",
    "Level",
    "MassAbove",
    "Outcomes",
    "PassRate",
    "ReleasedAPS",
    "ReplayReport",
    "RiskControl",
    "RolloutPolicy",
    "Score",
    "Selection",
    "SignalBudget",
    "answer_counts",
    "as_level",
    "auto_delta",
    "auto_delta_upper",
    "betabinomial_hits",
    "calibrate_thresholds",
    "clopper_pearson",
    "conformal_quantile",
    "conformal_rank",
    "conformal_selection",
    "coverage_law",
    "disjoint_split",
    "empty_probability",
    "encode_answers",
    "expected_savings",
    "first_success_cdf",
    "first_success_mean_k",
    "inclusive_set",
    "k_mix",
    "lead",
    "learn_then_test",
    "margin_stop",
    "mass_above_set",
    "max_rank",
    "max_score",
    "min_calibration_size",
    "nonexchangeable_bound",
    "pac_rank",
    "plain_p_values",
    "prompt_ids",
    "randomized_set",
    "released_cgrpo",
    "released_set",
    "replay",
    "risk_control",
    "select_stops",
    "signal_score",
    "singleton_probability",
    "smoothed_p_values",
    "split_ecdf",
    "tied_coverage",
    "total_variation",
    "tv_shift_bound",
    "uniforms",
    "weighted_quantile",
    "wrong_stop_level",
]
