"""Rollout logs that people already have: what calibrated budgets would have saved on them, and what a response mask rejects.

The library under the ``rollout-audit`` command; three lines in a notebook::

    from rollout_logs import audit
    report = audit("runs/my-run")
    report.frames()["rules"], report.figures()["rules"]
"""

from .budgets import BudgetAudit, RuleResult, Waste, Window, audit_budgets, budget_grid, waste_of
from .cells import ANSWER_RULES, extract_answer
from .compare import compare_reports
from .demo import demo_logs
from .groups import Groups, group_responses, load_groups, plan_files
from .ledger import LedgerTotals, read_ledger
from .masks import MaskAudit, MaskedBy, audit_masks, default_rules
from .report import NothingToAudit, Report, audit
from .responses import Plan, Responses, read_responses
from .schema import ROLES, Schema, guess_schema, parse_map
from .sources import Intake, LogFile, Problem, find_logs
from .tables import Table
from .tokens import Example, TokenScores, read_tokens

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
