"""What every command of ``rollout-audit`` does: check, audit, show, and say by its exit code how that went."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from .console import print_intake, print_report, progress_bar
from .knobs import parse_sweeps
from .report import NothingToAudit, Report, audit
from .schema import parse_map

__all__ = ["INCOMPLETE", "NOTHING", "USAGE", "WASTEFUL", "budget_options", "mask_options", "run", "show", "stop", "writable"]

NOTHING, USAGE, INCOMPLETE, WASTEFUL = 1, 2, 3, 4


def stop(message: str, code: int) -> typer.Exit:
    """Say what is wrong on the error stream; the exit to raise."""
    Console(stderr=True).print(f"error: {message}", style="red", highlight=False, markup=False, soft_wrap=True)
    return typer.Exit(code)


def numbers(text: str, name: str, kind: Callable[[str], Any]) -> list[Any]:
    """Numbers separated by commas."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise stop(f"{name}: got {text!r}; need numbers separated by commas; because it is a list", USAGE) from error


def writable(html: Path | None, out: Path | None, fail_above: float | None) -> None:
    """Refuse what cannot be written before anything is read."""
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise stop(f"html: got {html}; need a file in a folder that exists; because the report is written there", USAGE)
    if out is not None and out.exists() and not out.is_dir():
        raise stop(f"out: got {out}; need a folder; because several files are written there", USAGE)
    if fail_above is not None and not 0 <= fail_above <= 1:
        raise stop(f"fail-above: got {fail_above}; need a share in [0, 1]; because it is compared with a share of rollouts", USAGE)


def run(paths: list[str], what: tuple[str, ...], map_: list[str] | None, quiet: bool, **options: Any) -> Report:
    """Audit, or exit with what is in the way."""
    try:
        with progress_bar(Console(stderr=True), quiet=quiet) as progress:
            return audit(paths, what=what, overrides=parse_map(map_ or []), progress=progress, **options)
    except NothingToAudit as error:
        console = Console(stderr=True)
        console.print(f"error: {str(error).split('; because ')[0]}", style="red", highlight=False, markup=False, soft_wrap=True)
        print_intake(console, " and ".join(what), error.intake)
        for line in error.intake.set_aside[:10]:
            console.print(f"    set aside: {line}", highlight=False, markup=False)
        raise typer.Exit(NOTHING) from error
    except ValueError as error:
        raise stop(str(error), USAGE) from error


def show(
    report: Report, as_json: bool, html: Path | None, out: Path | None, everything: bool, lenient: bool, fail_above: float | None
) -> None:
    """Print and write the report."""
    console = Console()
    if as_json:
        json.dump(report.to_json(), sys.stdout, indent=1, ensure_ascii=False, allow_nan=False)
        sys.stdout.write("\n")
    else:
        print_report(console, report, everything=everything)
    told = Console(stderr=True) if as_json else console
    try:
        if html is not None:
            html.write_text(report.html(), encoding="utf-8")
            told.print(f"\nwrote {html}", highlight=False, soft_wrap=True)
        if out is not None:
            files = report.save(out)
            told.print(f"\nwrote {len(files)} files to {out}", highlight=False, soft_wrap=True)
    except OSError as error:
        raise stop(f"{error.filename}: {error.strerror}", USAGE) from error
    if fail_above is not None and report.budgets is not None and report.budgets.waste.rollout_share > fail_above:
        raise typer.Exit(WASTEFUL)
    if report.unread and not lenient:
        raise typer.Exit(INCOMPLETE)


def budget_options(delta: str, k_max: int | None, grid: str | None, n: int, every: int, max_groups: int) -> dict[str, Any]:
    """Arguments of :func:`rollout_logs.audit_budgets`."""
    budgets = None if grid is None else numbers(grid, "grid", int)
    return {"delta": delta, "k_max": k_max, "grid": budgets, "n_calibration": n, "recalibrate_every": every, "max_groups": max_groups}


def mask_options(tau: str, geomean_tau: float, band: str, noise_delta: str, sweep: list[str] | None) -> dict[str, Any]:
    """Arguments of :func:`rollout_logs.audit_masks`."""
    taus, edges = numbers(tau, "tau", float), numbers(band, "band", float)
    if len(edges) != 2:
        raise stop(f"band: got {band!r}; need LOW,HIGH; because a band has two edges", USAGE)
    options: dict[str, Any] = {"tau": taus[0], "geomean_tau": geomean_tau, "band": (edges[0], edges[1]), "delta": noise_delta}
    try:
        options["sweeps"] = parse_sweeps(sweep or [])
    except ValueError as error:
        raise stop(str(error), USAGE) from error
    return options | ({"taus": sorted(taus)} if len(taus) > 1 else {})
