"""Rollout logs that people already have: what calibrated budgets would have saved on them, and what a response mask rejects.

The library under the ``rollout-audit`` command; three lines in a notebook::

    from rollout_logs import audit
    report = audit("runs/my-run")
    report.frames()["rules"], report.figures()["rules"]
"""

from .budgets import BudgetAudit, audit_budgets, budget_grid
from .cells import ANSWER_RULES, extract_answer
from .compare import compare_reports
from .demo import demo_logs
from .drift import Window
from .examples import Example
from .grouping import group_responses
from .groups import Groups
from .knobs import SweepRow
from .ledger import LedgerTotals, read_ledger
from .loading import load_groups
from .mask_audit import MaskAudit, MaskedBy
from .masks import audit_masks, default_rules
from .plans import Plan, plan_files
from .replays import RuleResult
from .report import NothingToAudit, Report, audit
from .responses import Responses, read_responses
from .schema import ROLES, Schema, guess_schema, parse_map
from .sources import Intake, LogFile, Problem, find_logs
from .tables import Table
from .tokens import TokenScores, read_tokens
from .waste import Waste, waste_of

__all__ = [
    "ANSWER_RULES",
    "ROLES",
    "BudgetAudit",
    "Example",
    "Groups",
    "Intake",
    "LedgerTotals",
    "LogFile",
    "MaskAudit",
    "MaskedBy",
    "NothingToAudit",
    "Plan",
    "Problem",
    "Report",
    "Responses",
    "RuleResult",
    "Schema",
    "SweepRow",
    "Table",
    "TokenScores",
    "Waste",
    "Window",
    "audit",
    "audit_budgets",
    "audit_masks",
    "budget_grid",
    "compare_reports",
    "default_rules",
    "demo_logs",
    "extract_answer",
    "find_logs",
    "group_responses",
    "guess_schema",
    "load_groups",
    "parse_map",
    "plan_files",
    "read_ledger",
    "read_responses",
    "read_tokens",
    "waste_of",
]
