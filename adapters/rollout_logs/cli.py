"""The ``rollout-audit`` command."""

from __future__ import annotations

import json
import sys
import webbrowser
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from .compare import compare_reports
from .console import print_table
from .demo import demo_logs
from .options import (
    All,
    Answer,
    Band,
    Calibration,
    Delta,
    Every,
    FailAbove,
    GeoTau,
    Grid,
    Hours,
    Html,
    Jobs,
    Json,
    KMax,
    Lenient,
    Map,
    MaxGroups,
    NoiseDelta,
    Out,
    PassThreshold,
    Paths,
    Quiet,
    Sweep,
    Tau,
)
from .running import INCOMPLETE, NOTHING, budget_options, mask_options, run, show, stop, writable

__all__ = ["app", "main"]

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
    max_groups: MaxGroups = 50_000,
    tau: Tau = "1.02",
    geomean_tau: GeoTau = 1.005,
    band: Band = "0.8,1.28",
    noise_delta: NoiseDelta = "0.05",
    sweep: Sweep = None,
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
    writable(html, out, fail_above)
    report = run(
        paths,
        ("budgets", "masks"),
        map_,
        quiet,
        answer=answer,
        pass_threshold=pass_threshold,
        gpu_hours=gpu_hours,
        jobs=jobs,
        budgets=budget_options(delta, k_max, grid, calibration_prompts, recalibrate_every, max_groups),
        masks=mask_options(tau, geomean_tau, band, noise_delta, sweep),
    )
    show(report, as_json, html, out, everything, lenient, fail_above)


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
    max_groups: MaxGroups = 50_000,
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
    writable(html, out, fail_above)
    report = run(
        paths,
        ("budgets",),
        map_,
        quiet,
        answer=answer,
        pass_threshold=pass_threshold,
        gpu_hours=gpu_hours,
        jobs=jobs,
        budgets=budget_options(delta, k_max, grid, calibration_prompts, recalibrate_every, max_groups),
    )
    show(report, as_json, html, out, everything, lenient, fail_above)


@app.command("masks", epilog=EXIT_CODES)
def masks_command(
    paths: Paths,
    map_: Map = None,
    gpu_hours: Hours = None,
    tau: Tau = "1.02",
    geomean_tau: GeoTau = 1.005,
    band: Band = "0.8,1.28",
    noise_delta: NoiseDelta = "0.05",
    sweep: Sweep = None,
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
    writable(html, out, None)
    report = run(
        paths, ("masks",), map_, quiet, gpu_hours=gpu_hours, jobs=jobs, masks=mask_options(tau, geomean_tau, band, noise_delta, sweep)
    )
    show(report, as_json, html, out, everything, lenient, None)


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
    options["masks"] = mask_options(tau, 1.005, "0.8,1.28", "0.05", None)
    reports = [run([path], ("budgets", "masks"), map_, quiet, **options) for path in (a, b)]
    table = compare_reports(*reports)
    if not table.rows:
        raise stop(f"compare: {a} and {b} have nothing in common: {table.caption.strip()}", NOTHING)
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

    Recorded on a CPU with conformal_trl and a tiny model of integer addition. Real: the 20,480 completions, rewards and advantages
    (TRL's own table; learning rate 2e-4, fixed groups of 32). Arranged, so that there is a drift to see: the token-level responses are
    120 tokens long because the engine was kept from ending them; the engine holds the weights in half precision; the current weights
    are 1, 5 and 15 % of one optimizer step away. The 96 GPU-hours are an example. `python -m benchmarks.rollout_logs demo-log` in the
    repository records it again.

    Example: rollout-audit demo --html demo.html
    """
    writable(html, out, None)
    report = run([str(p) for p in demo_logs()], ("budgets", "masks"), None, False, gpu_hours=96.0)
    show(report, as_json, html, out, everything, False, None)
    if browser and html is not None:
        webbrowser.open(html.resolve().as_uri())


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
