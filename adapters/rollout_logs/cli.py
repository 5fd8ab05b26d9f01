"""The ``rollout-audit`` command."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from .compare import compare_reports
from .console import print_intake, print_report, print_table, progress_bar
from .demo import demo_logs
from .report import NothingToAudit, Report, audit
from .schema import parse_map

__all__ = ["app", "main"]

NOTHING, USAGE, INCOMPLETE, WASTEFUL = 1, 2, 3, 4
EXIT_CODES = (
    "Exit codes: 0 answered; 1 nothing in the files can be audited; 2 usage; 3 answered, but some rows or files could not be read "
    "(they are named; --lenient makes it 0); 4 answered, and more rollouts than --fail-above bought no gradient."
)
EXAMPLES = """
\b
Examples:
  rollout-audit demo                  a small log that ships with the package
  rollout-audit runs/my-run           whatever the folder holds
  rollout-audit budgets out/completions --gpu-hours 96
  rollout-audit budgets 'dump/*.jsonl' --map gold=extra_info.answer
  rollout-audit masks tokens.parquet --tau 1.01,1.02,1.05 --html masks.html
  rollout-audit compare runs/a runs/b --json
"""


class _DefaultToAudit(TyperGroup):
    """``rollout-audit FOLDER`` is ``rollout-audit audit FOLDER``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help", "--install-completion", "--show-completion"}:
            args = ["audit", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DefaultToAudit,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What would calibrated rollout budgets have saved on these logs, and what does a response mask reject? No GPU, no trainer.\n\n"
    "Reads TRL completions tables, verl rollout dumps, prime-rl, SkyRL and OpenRLHF style JSON lines, and token-level files "
    "(parquet, JSON lines, "
    "npz, safetensors), .gz and .zst included. `rollout-audit FOLDER` looks at what is there and answers.\n\n"
    + EXAMPLES
    + "\n"
    + EXIT_CODES,
)

Paths = Annotated[list[str], typer.Argument(help="Files, folders or globs.", show_default=False)]
Map = Annotated[
    list[str] | None, typer.Option("--map", help="ROLE=COLUMN, dotted into structs, e.g. answer=extra_info.answer. Repeatable.")
]
Answer = Annotated[
    str, typer.Option(help="Where answers are: auto, boxed, hashes (####), tag (<answer>), phrase, last-number, completion, none.")
]
PassThreshold = Annotated[
    float | None, typer.Option(help="A response passed iff its reward is above this. Default: the middle of the range found.")
]
Hours = Annotated[float | None, typer.Option("--gpu-hours", help="GPU-hours the run cost: shares are then priced.")]
Delta = Annotated[str, typer.Option(help="Miscoverage of the budget rules, exact as written (0.1, 1/10).")]
KMax = Annotated[int | None, typer.Option(help="Largest budget replayed. Default: the group size that 95 % of the groups have.")]
Grid = Annotated[str | None, typer.Option(help="Budgets, e.g. 4,8,16,32. Default: powers of two.")]
Calibration = Annotated[int, typer.Option(help="Calibration prompts, at most half of all.")]
Every = Annotated[int, typer.Option("--recalibrate-every", help="Steps over which the cost of a calibration is spread.")]
MaxGroups = Annotated[int, typer.Option(help="Replay at most this many evaluation groups, drawn at random. Waste is counted over all.")]
Tau = Annotated[str, typer.Option(help="CARM threshold(s); the first is judged in full, more are swept.")]
GeoTau = Annotated[float, typer.Option("--geomean-tau", help="GeoMean threshold it is compared with.")]
Band = Annotated[str, typer.Option(help="Ratio band of the certificates, LOW,HIGH.")]
NoiseDelta = Annotated[str, typer.Option(help="Share of on-policy responses a calibrated tau may reject.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a self-contained HTML report.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write HTML, JSON, CSV tables and SVG figures to a folder.")]
All = Annotated[bool, typer.Option("--all", help="Every row of every table.")]
Jobs = Annotated[int | None, typer.Option(help="Processes. Default: one per core when there is enough to read.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Lenient = Annotated[bool, typer.Option(help="Exit 0 even if some rows or files could not be read.")]
FailAbove = Annotated[float | None, typer.Option(help="Exit 4 if a larger share of the rollouts bought no gradient, e.g. 0.5.")]


def _stop(message: str, code: int) -> typer.Exit:
    Console(stderr=True).print(f"error: {message}", style="red", highlight=False, markup=False, soft_wrap=True)
    return typer.Exit(code)


def _numbers(text: str, name: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise _stop(f"{name}: got {text!r}; need numbers separated by commas; because it is a list", USAGE) from error


def _run(paths: list[str], what: tuple[str, ...], map_: list[str] | None, quiet: bool, **options: Any) -> Report:
    try:
        with progress_bar(Console(stderr=True), quiet=quiet) as progress:
            return audit(paths, what=what, overrides=parse_map(map_ or []), progress=progress, **options)
    except NothingToAudit as error:
        console = Console(stderr=True)
        console.print(f"error: {str(error).split('; because ')[0]}", style="red", highlight=False, markup=False)
        print_intake(console, " and ".join(what), error.intake)
        for line in error.intake.set_aside[:10]:
            console.print(f"    set aside: {line}", highlight=False, markup=False)
        raise typer.Exit(NOTHING) from error
    except ValueError as error:
        raise _stop(str(error), USAGE) from error


def _show(
    report: Report, as_json: bool, html: Path | None, out: Path | None, everything: bool, lenient: bool, fail_above: float | None
) -> None:
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
        raise _stop(f"{error.filename}: {error.strerror}", USAGE) from error
    if fail_above is not None and report.budgets is not None and report.budgets.waste.rollout_share > fail_above:
        raise typer.Exit(WASTEFUL)
    if report.unread and not lenient:
        raise typer.Exit(INCOMPLETE)


def _budget_options(delta: str, k_max: int | None, grid: str | None, n: int, every: int, max_groups: int) -> dict[str, Any]:
    budgets = None if grid is None else _numbers(grid, "grid", int)
    return {"delta": delta, "k_max": k_max, "grid": budgets, "n_calibration": n, "recalibrate_every": every, "max_groups": max_groups}


def _mask_options(tau: str, geomean_tau: float, band: str, noise_delta: str) -> dict[str, Any]:
    taus, edges = _numbers(tau, "tau", float), _numbers(band, "band", float)
    if len(edges) != 2:
        raise _stop(f"band: got {band!r}; need LOW,HIGH; because a band has two edges", USAGE)
    options: dict[str, Any] = {"tau": taus[0], "geomean_tau": geomean_tau, "band": (edges[0], edges[1]), "delta": noise_delta}
    return options | ({"taus": sorted(taus)} if len(taus) > 1 else {})


@app.command("audit", epilog=EXIT_CODES)
def audit_command(
    paths: Paths,
    map_: Map = None,
    answer: Answer = "auto",
    pass_threshold: PassThreshold = None,
    gpu_hours: Hours = None,
    delta: Delta = "0.1",
    k_max: KMax = None,
    grid: Grid = None,
    calibration_prompts: Calibration = 200,
    recalibrate_every: Every = 50,
    max_groups: MaxGroups = 200_000,
    tau: Tau = "1.02",
    geomean_tau: GeoTau = 1.005,
    band: Band = "0.8,1.28",
    noise_delta: NoiseDelta = "0.05",
    as_json: Json = False,
    html: Html = None,
    out: Out = None,
    everything: All = False,
    jobs: Jobs = None,
    quiet: Quiet = False,
    lenient: Lenient = False,
    fail_above: FailAbove = None,
) -> None:
    """Budgets and masks, as far as the files go. `rollout-audit FOLDER` is short for it.

    Example: rollout-audit runs/my-run --gpu-hours 96 --out audit/
    """
    report = _run(
        paths,
        ("budgets", "masks"),
        map_,
        quiet,
        answer=answer,
        pass_threshold=pass_threshold,
        gpu_hours=gpu_hours,
        jobs=jobs,
        budgets=_budget_options(delta, k_max, grid, calibration_prompts, recalibrate_every, max_groups),
        masks=_mask_options(tau, geomean_tau, band, noise_delta),
    )
    _show(report, as_json, html, out, everything, lenient, fail_above)


@app.command("budgets", epilog=EXIT_CODES)
def budgets_command(
    paths: Paths,
    map_: Map = None,
    answer: Answer = "auto",
    pass_threshold: PassThreshold = None,
    gpu_hours: Hours = None,
    delta: Delta = "0.1",
    k_max: KMax = None,
    grid: Grid = None,
    calibration_prompts: Calibration = 200,
    recalibrate_every: Every = 50,
    max_groups: MaxGroups = 200_000,
    as_json: Json = False,
    html: Html = None,
    out: Out = None,
    everything: All = False,
    jobs: Jobs = None,
    quiet: Quiet = False,
    lenient: Lenient = False,
    fail_above: FailAbove = None,
) -> None:
    """What calibrated budgets would have drawn, saved, lost and got wrong, against every fixed group size.

    Example: rollout-audit budgets out/completions --gpu-hours 96
    """
    report = _run(
        paths,
        ("budgets",),
        map_,
        quiet,
        answer=answer,
        pass_threshold=pass_threshold,
        gpu_hours=gpu_hours,
        jobs=jobs,
        budgets=_budget_options(delta, k_max, grid, calibration_prompts, recalibrate_every, max_groups),
    )
    _show(report, as_json, html, out, everything, lenient, fail_above)


@app.command("masks", epilog=EXIT_CODES)
def masks_command(
    paths: Paths,
    map_: Map = None,
    tau: Tau = "1.02",
    geomean_tau: GeoTau = 1.005,
    band: Band = "0.8,1.28",
    noise_delta: NoiseDelta = "0.05",
    as_json: Json = False,
    html: Html = None,
    out: Out = None,
    everything: All = False,
    jobs: Jobs = None,
    quiet: Quiet = False,
    lenient: Lenient = False,
) -> None:
    """What every response mask rejects, what it certifies, where opposite drifts cancel, and which responses to look at.

    Example: rollout-audit masks tokens.parquet --tau 1.01,1.02,1.05 --html masks.html
    """
    report = _run(paths, ("masks",), map_, quiet, jobs=jobs, masks=_mask_options(tau, geomean_tau, band, noise_delta))
    _show(report, as_json, html, out, everything, lenient, None)


@app.command("compare", epilog=EXIT_CODES)
def compare_command(
    a: Annotated[str, typer.Argument(help="File, folder or glob.", show_default=False)],
    b: Annotated[str, typer.Argument(help="File, folder or glob.", show_default=False)],
    map_: Map = None,
    answer: Answer = "auto",
    pass_threshold: PassThreshold = None,
    delta: Delta = "0.1",
    tau: Tau = "1.02",
    as_json: Json = False,
    quiet: Quiet = False,
    jobs: Jobs = None,
    lenient: Lenient = False,
) -> None:
    """Two runs side by side, with the same settings.

    Example: rollout-audit compare runs/before runs/after
    """
    options: dict[str, Any] = {"answer": answer, "pass_threshold": pass_threshold, "jobs": jobs, "budgets": {"delta": delta}}
    options["masks"] = _mask_options(tau, 1.005, "0.8,1.28", "0.05")
    reports = [_run([path], ("budgets", "masks"), map_, quiet, **options) for path in (a, b)]
    table = compare_reports(*reports)
    if as_json:
        json.dump([dict(zip(table.columns, row, strict=True)) for row in table.rows], sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        print_table(Console(), table)
    if any(r.unread for r in reports) and not lenient:
        raise typer.Exit(INCOMPLETE)


@app.command("demo")
def demo_command(
    as_json: Json = False,
    html: Html = None,
    out: Out = None,
    everything: All = False,
    browser: Annotated[bool, typer.Option("--open", help="Open the HTML report in the browser.")] = False,
) -> None:
    """The audit of a small log that ships with the package: 40 steps of a real run, and 200 responses token by token.

    Example: rollout-audit demo --html demo.html
    """
    report = _run([str(p) for p in demo_logs()], ("budgets", "masks"), None, False, gpu_hours=96.0)
    _show(report, as_json, html, out, everything, False, None)
    if browser and html is not None:
        webbrowser.open(html.resolve().as_uri())


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
