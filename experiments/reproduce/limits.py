"""What stands in for C-GRPO's models and benchmarks here, and what no run can meet."""

from __future__ import annotations

from .item import Unmet

__all__ = ["ONE_MODEL", "STAND_IN", "UNANIMITY"]

STAND_IN = (
    "embedded 362k-parameter model, additions (GSM8K: 1-3 digits, MATH-500: 2-3, MATH-Algebra: 1-2), 300 steps of 4 prompts, "
    "200 calibration, 2,000 training and 400 test prompts, full-parameter updates at 1e-4"
)
ONE_MODEL = Unmet(
    "all accuracies and mean budgets, in absolute terms",
    "they are of 4B to 8B models; the small scale has a 362k-parameter model on additions, where only the relations can be compared",
)
UNANIMITY = Unmet(
    "the savings, as an effect of conformal calibration",
    "at the reported protocol thresholds at small budgets are 1, where Eq. 8 never stops; the authors' code stops there on unanimity, "
    "which carries no guarantee.  Rows 'as released' follow the code, the others Eq. 8",
    ("J4", "E3", "F1"),
)
