"""Options that several commands of ``rollout-audit`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Paths = Annotated[list[str], typer.Argument(help="Files, folders or globs.", show_default=False)]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="ROLE=COLUMN, dotted into structs, e.g. answer=extra_info.answer; rewards may be a sum, reward=correct+format. Repeatable.",
    ),
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
Sweep = Annotated[
    list[str] | None,
    typer.Option("--sweep", help="RULE=NUMBER,NUMBER: thresholds at which a rule is swept, e.g. TRM=0.02,0.05. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a self-contained HTML report.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write HTML, JSON, CSV tables and SVG figures to a folder.")]
All = Annotated[bool, typer.Option("--all", help="Every row of every table.")]
Jobs = Annotated[int | None, typer.Option(help="Processes. Default: one per core when there is enough to read.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Lenient = Annotated[bool, typer.Option(help="Exit 0 even if some rows or files could not be read.")]
FailAbove = Annotated[float | None, typer.Option(help="Exit 4 if a larger share of the rollouts bought no gradient, e.g. 0.5.")]
