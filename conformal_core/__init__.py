"""Calibrated rollout budgets: how many responses does this prompt need?

NumPy only; SciPy is imported inside the functions that need a law.  Levels are exact (:func:`as_level`), thresholds say whether they
are attainable, one score object calibrates and stops, and every random draw is keyed by (seed, step, prompt).
"""

from .aci import AdaptiveLevel, adaptive_level
from .answers import encode_answers
from .auto_delta import auto_delta, auto_delta_upper, disjoint_split
from .budget_laws import expected_savings, first_success_cdf, first_success_mean_k
from .conformal_budget import ConformalBudget
from .early import UntilFirstSuccess, UntilMixed, calibration_rollout, expected_draws
from .exchangeability import ExchangeabilityTest, coverage_test, permutation_test
from .intervals import mean_interval, share_interval
from .keys import prompt_ids, uniforms
from .laws import betabinomial_hits, clopper_pearson, coverage_law, pac_rank, tied_coverage
from .lead import lead, margin_stop
from .learn_then_test import LearnThenTest, learn_then_test
from .level import Level, as_level, conformal_rank, min_calibration_size
from .martingale import DriftMonitor, PowerMixture, SimpleJumper, online_p_values
from .nested import NestedRollout, NestedThresholds, nested_budgets, nested_cost, nested_thresholds
from .outcomes import NOT_DRAWN, UNPARSABLE, Outcomes
from .policy import CalibrationRequest, FixedBudget, RolloutPolicy
from .pvalues import plain_p_values, smoothed_p_values
from .quantile import ConformalQuantile, conformal_quantile, weighted_quantile
from .released import released_cgrpo
from .replay import ReplayReport, replay
from .risk_control import RiskControl, risk_control, wrong_stop_level
from .schedule import RecalibrationSchedule, first_stage_passes
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
from .stream import StreamCalibrated, StreamWindow
from .thresholds import BudgetThresholds, calibrate_thresholds
from .vote import ConformalVote, FixedVote, VoteRule, adaptive_consistency, calibrate_vote, unanimous_vote
from .vote_report import VoteReport, vote_report
from .vote_statistics import count_votes, settledness

__all__ = [
    "APS",
    "NOT_DRAWN",
    "UNPARSABLE",
    "AdaptiveLevel",
    "AnswerSets",
    "BudgetThresholds",
    "CalibrationRequest",
    "ConformalBudget",
    "ConformalQuantile",
    "ConformalVote",
    "DriftMonitor",
    "ExchangeabilityTest",
    "FirstSuccess",
    "FixedBudget",
    "FixedVote",
    "JointThresholds",
    "LearnThenTest",
    "Level",
    "MassAbove",
    "NestedRollout",
    "NestedThresholds",
    "Outcomes",
    "PassRate",
    "PowerMixture",
    "RecalibrationSchedule",
    "ReleasedAPS",
    "ReplayReport",
    "RiskControl",
    "RolloutPolicy",
    "Score",
    "Selection",
    "SignalBudget",
    "SimpleJumper",
    "StreamCalibrated",
    "StreamWindow",
    "UntilFirstSuccess",
    "UntilMixed",
    "VoteReport",
    "VoteRule",
    "adaptive_consistency",
    "adaptive_level",
    "answer_counts",
    "as_level",
    "auto_delta",
    "auto_delta_upper",
    "betabinomial_hits",
    "calibrate_thresholds",
    "calibrate_vote",
    "calibration_rollout",
    "clopper_pearson",
    "conformal_quantile",
    "conformal_rank",
    "conformal_selection",
    "count_votes",
    "coverage_law",
    "coverage_test",
    "disjoint_split",
    "empty_probability",
    "encode_answers",
    "expected_draws",
    "expected_savings",
    "first_stage_passes",
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
    "mean_interval",
    "min_calibration_size",
    "nested_budgets",
    "nested_cost",
    "nested_thresholds",
    "nonexchangeable_bound",
    "online_p_values",
    "pac_rank",
    "permutation_test",
    "plain_p_values",
    "prompt_ids",
    "randomized_set",
    "released_cgrpo",
    "released_set",
    "replay",
    "risk_control",
    "select_stops",
    "settledness",
    "share_interval",
    "signal_score",
    "singleton_probability",
    "smoothed_p_values",
    "split_ecdf",
    "tied_coverage",
    "total_variation",
    "tv_shift_bound",
    "unanimous_vote",
    "uniforms",
    "vote_report",
    "weighted_quantile",
    "wrong_stop_level",
]
