"""Calibrated rollout budgets: how many responses does this prompt need?"""

from .outcomes import NOT_DRAWN, UNPARSABLE, Outcomes
from .policy import CalibrationRequest, FixedBudget, RolloutPolicy

__all__ = ["NOT_DRAWN", "UNPARSABLE", "CalibrationRequest", "FixedBudget", "Outcomes", "RolloutPolicy"]
