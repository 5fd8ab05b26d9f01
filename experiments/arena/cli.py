"""``python -m experiments compare``: the options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from .rules import BUDGETS, MASKS
from .settings import Settings

__all__ = ["add_parser", "settings"]


def add_parser(sub: Any, formatter: Any) -> None:
    """Add ``compare`` and, for its own processes, ``compare-run``."""
    d = Settings()
    c = sub.add_parser(
        "compare",
        help="compare budget rules and mask rules over seeds at an equal budget; a second call resumes",
        formatter_class=formatter,
    )
    c.add_argument("--rules", default=",".join(d.rules), help=f"budget rules, of {', '.join(BUDGETS)}; or all")
    c.add_argument("--masks", default=",".join(d.masks), help=f"mask rules, of {', '.join(MASKS)}; or all")
    c.add_argument("--seeds", default=",".join(map(str, d.seeds)), help="seeds of the comparison")
    c.add_argument("--regimes", default=",".join(d.regimes), help="many: fresh prompts at every step; few: a fixed pool, several epochs")
    c.add_argument("--by", default=d.by, help="what is held equal: seconds, cpu, tokens or prompts")
    c.add_argument("--amount", type=float, default=d.amount, help="how much of it a run may spend, calibration included")
    c.add_argument("--responses", type=int, default=d.responses, help="responses per update, the same for all rules")
    c.add_argument("--lrs", default=",".join(f"{x:g}" for x in d.lrs), help="learning rates; each rule gets its best (one: no tuning runs)")
    c.add_argument("--tune-share", type=float, default=d.tune_share, help="share of the amount that a tuning run spends")
    c.add_argument("--model", default=d.model, metavar="embedded|smollm2|PATH", help="start model")
    c.add_argument("--pool", type=int, default=d.pool, help="prompts of the few regime")
    c.add_argument("--eval-prompts", type=int, default=d.eval_prompts, help="sealed prompts")
    c.add_argument("--eval-samples", type=int, default=d.eval_samples, help="responses to each")
    c.add_argument("--scale-rewards", default=d.scale_rewards, help="what centred rewards are divided by: group, batch or none")
    c.add_argument("--staleness", type=int, default=d.staleness, help="optimizer steps per generation")
    c.add_argument("--actor-delay", type=int, default=d.actor_delay, help="the weights that sample are this many generations old")
    c.add_argument("--actor-dtype", default=d.actor_dtype, help="the weights that sample are rounded to this")
    c.add_argument("--out", default=d.out, metavar="DIR", help="folder of the results")
    c.add_argument("--jobs", type=int, default=d.jobs, help="runs at the same time, one thread each")
    r = sub.add_parser("compare-run")
    r.add_argument("spec")


def settings(args: argparse.Namespace, command: str, versions: dict[str, str]) -> Settings:
    """Checked settings; ``ValueError`` names the option that cannot work."""
    values: dict[str, Any] = {f.name: getattr(args, f.name) for f in fields(Settings) if hasattr(args, f.name) and f.name != "command"}
    for name, everything in (("rules", BUDGETS), ("masks", MASKS), ("regimes", ())):
        values[name] = tuple(everything) if values[name] == "all" and everything else tuple(values[name].split(","))
    for name, kind in (("seeds", int), ("lrs", float)):
        try:
            values[name] = tuple(kind(x) for x in values[name].split(","))
        except ValueError:
            raise ValueError(f"{name}: got {values[name]!r}; need numbers such as 1,2,3; because they are listed with commas") from None
    s = Settings(**values, command=command, versions=versions)
    s.check()
    return s
