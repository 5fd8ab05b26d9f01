"""One audit of one set of logs: verdicts, tables, figures, JSON, HTML.  The library under the command."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .budget_tables import budget_tables
from .budgets import BudgetAudit, audit_budgets, check_settings
from .groups import Groups
from .ledger import LedgerTotals, read_ledger
from .loading import read_groups
from .mask_audit import MaskAudit
from .mask_tables import mask_tables
from .masks import audit_masks
from .plans import plan_files
from .sources import Intake
from .tables import Table
from .verdict import budget_settings, budget_unknown, budget_verdict, ledger_verdict, mask_settings, mask_verdict

__all__ = ["NothingToAudit", "Report", "audit"]


class NothingToAudit(ValueError):
    """No row of the files could be used; ``intake`` says why."""

    def __init__(self, intake: Intake, what: Sequence[str] = ("budgets", "masks")) -> None:
        self.intake = intake
        told = [str(p) for p in intake.problems] + intake.set_aside
        needs = {
            "budgets": "rows with a prompt and a reward",
            "masks": "token-level log-probabilities of both the trainer and the rollout engine (current_logprobs, rollout_logprobs)",
        }
        why = "; ".join(told[:5]) or "the files read hold none"
        super().__init__(f"paths: got nothing to audit; need {', or '.join(needs[name] for name in what)}; because {why}")


@dataclass(frozen=True)
class Report:
    """What the logs say.

    Attributes
    ----------
    paths : tuple of str
    budgets, masks : BudgetAudit, MaskAudit or None
        ``None`` where the files do not hold what the audit needs.
    intakes : mapping
        What was read and what was not, for ``"budgets"`` and ``"masks"``.
    ledger : LedgerTotals or None
        Of a ``conformal_trl`` run.
    gpu_hours : float or None

    Examples
    --------
    ::

        from rollout_logs import audit
        report = audit("runs/my-run")
        report.frames()["rules"], report.figures()["rules"]
    """

    paths: tuple[str, ...]
    budgets: BudgetAudit | None
    masks: MaskAudit | None
    intakes: Mapping[str, Intake]
    ledger: LedgerTotals | None = None
    gpu_hours: float | None = None
    groups: Groups | None = field(default=None, repr=False)

    def verdict(self) -> dict[str, list[str]]:
        """``{"budgets": sentences, "masks": sentences}``, the most important first."""
        out: dict[str, list[str]] = {}
        if self.budgets is not None:
            out["budgets"] = budget_verdict(self.budgets, self.gpu_hours)
            if self.ledger is not None:
                out["budgets"].append(ledger_verdict(self.ledger))
        if self.masks is not None:
            out["masks"] = mask_verdict(self.masks, self.gpu_hours)
        return out

    def unknown(self) -> list[str]:
        """What these files cannot tell, and what would."""
        out: list[str] = []
        if "budgets" in self.intakes:
            out += self.intakes["budgets"].doubts + budget_unknown(self.budgets, self.gpu_hours)
        elif self.gpu_hours is None:
            out.append("The price in hours: give --gpu-hours.")
        if self.masks is not None:
            out += self.masks.unknown
            out.append(
                "How training under another mask would have developed: the decisions are replayed on these responses, nothing is trained."
            )
        elif "masks" in self.intakes:
            out.append(
                "Masks: no file holds token-level log-probabilities of both the trainer and the rollout engine (a parquet "
                "with list columns "
                "current_logprobs, rollout_logprobs and response_mask would do)."
            )
        return out

    def settings(self) -> dict[str, str]:
        """Recommended settings as snippets for the trainer's configuration."""
        out: dict[str, str] = {}
        if self.budgets is not None and self.budgets.rules:
            out["budgets"] = budget_settings(self.budgets)
        if self.masks is not None:
            out["masks"] = mask_settings(self.masks)
        return out

    def tables(self) -> dict[str, Table]:
        """Every table of the report by name."""
        out: dict[str, Table] = {}
        if self.budgets is not None:
            out |= budget_tables(self.budgets)
        if self.masks is not None:
            out |= mask_tables(self.masks)
        return out

    def frames(self) -> dict[str, Any]:
        """Every table as a ``pandas.DataFrame`` (needs pandas)."""
        return {name: table.frame() for name, table in self.tables().items()}

    def figures(self) -> dict[str, Any]:
        """Every figure as a ``matplotlib`` figure (needs matplotlib)."""
        from .figures import all_figures

        return all_figures(self)

    @property
    def unread(self) -> int:
        """Rows and files that could not be read."""
        return max((intake.unread for intake in self.intakes.values()), default=0)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values (infinities as ``"inf"``)."""
        out = {
            "paths": list(self.paths),
            "verdict": self.verdict(),
            "cannot_tell": self.unknown(),
            "settings": self.settings(),
            "gpu_hours": self.gpu_hours,
            "ledger": None if self.ledger is None else asdict(self.ledger),
            "read": {
                purpose: {
                    "files": i.files,
                    "rows": i.rows,
                    "used": i.used,
                    "unread": dict(i.counts),
                    "problems": [str(p) for p in i.problems],
                    "set_aside": i.set_aside,
                    "notes": i.notes,
                }
                for purpose, i in self.intakes.items()
            },
            "budgets": None if self.budgets is None else self.budgets.to_json(),
            "masks": None if self.masks is None else self.masks.to_json(),
        }
        plain: dict[str, Any] = _plain(out)
        return plain

    def html(self) -> str:
        """A self-contained page: no network, no scripts."""
        from .page import render

        return render(self)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write report.html, report.json, one CSV a table and one SVG a figure; returns the files."""
        from .figures import svg_text

        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        written = [root / "report.html", root / "report.json"]
        written[0].write_text(self.html(), encoding="utf-8")
        written[1].write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")
        for name, table in self.tables().items():
            written.append(root / f"{name}.csv")
            written[-1].write_text(table.csv(), encoding="utf-8")
        for name, figure in self.figures().items():
            written.append(root / f"{name}.svg")
            written[-1].write_text(svg_text(figure), encoding="utf-8")
        return written


def _plain(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    if hasattr(x, "item") and not isinstance(x, str):
        x = x.item()
    if isinstance(x, float) and not math.isfinite(x):
        return None if math.isnan(x) else str(x)
    return x if isinstance(x, (str, int, float, bool)) or x is None else str(x)


def audit(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    what: Sequence[str] = ("budgets", "masks"),
    overrides: Mapping[str, str] | None = None,
    answer: str = "auto",
    pass_threshold: float | None = None,
    gpu_hours: float | None = None,
    jobs: int | None = None,
    budgets: Mapping[str, Any] | None = None,
    masks: Mapping[str, Any] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Audit rollout logs: budgets where the files hold outcomes, masks where they hold token-level log-probabilities.

    Parameters
    ----------
    paths : path or sequence of paths
        Files, folders, globs.
    what : sequence of {"budgets", "masks"}
    overrides : mapping
        ``{role: column}`` (:data:`rollout_logs.ROLES`).
    answer : str
        How to find answers in completions: ``"auto"`` or one of :data:`rollout_logs.ANSWER_RULES`.
    pass_threshold : float, optional
        A response passed iff its reward is above.
    gpu_hours : float, optional
        Price of the run.
    jobs : int, optional
        Processes; default one per core.
    budgets, masks : mapping
        Further arguments of :func:`rollout_logs.audit_budgets` and :func:`rollout_logs.audit_masks`.
    progress : callable, optional
        Told ``(what, done, of)``.

    Raises
    ------
    NothingToAudit
        A ``ValueError``: no row can be used; the message says why.
    ValueError
        If a path matches nothing, an override names no column, or a level or threshold is out of range.
    """
    if gpu_hours is not None and not (math.isfinite(gpu_hours) and gpu_hours > 0):
        raise ValueError(f"gpu_hours: got {gpu_hours}; need a positive number; because it prices the run")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: got {jobs}; need 1 or more; because it counts processes")
    if pass_threshold is not None and not math.isfinite(pass_threshold):
        raise ValueError(f"pass_threshold: got {pass_threshold}; need a finite number; because rewards are compared with it")
    check_settings(**(budgets or {}))
    audit_masks([], Intake(), **(masks or {}))  # refuses settings before anything is read
    names = [os.fspath(p) for p in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    plans, found = plan_files(names, overrides, answer)
    intakes: dict[str, Intake] = {}
    budget_audit: BudgetAudit | None = None
    mask_audit: MaskAudit | None = None
    groups: Groups | None = None
    if "budgets" in what:
        intake = Intake()
        intake.merge(found)
        groups = read_groups(plans, intake, pass_threshold=pass_threshold, jobs=jobs, progress=progress)
        intakes["budgets"] = intake
        if groups is not None:
            budget_audit = audit_budgets(groups, progress=progress, **(budgets or {}))
    if "masks" in what:
        intake = Intake()
        intake.merge(found)
        mask_audit = audit_masks(plans, intake, jobs=jobs, progress=progress, **(masks or {}))
        intakes["masks"] = intake
    if budget_audit is None and mask_audit is None:
        raise NothingToAudit(max(intakes.values(), key=lambda i: i.unread) if intakes else found, tuple(what))
    return Report(tuple(names), budget_audit, mask_audit, intakes, read_ledger(names), gpu_hours, groups)
