"""``python -m experiments claims``: check every statement of both papers and say what was found."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def add_parser(commands: Any, formatter: type[argparse.HelpFormatter]) -> None:
    p = commands.add_parser(
        "claims", help="check every statement of both papers; verdicts, counterexamples, repairs", formatter_class=formatter
    )
    p.add_argument("--claim", default=None, metavar="ID", help="one entry in full (G5), or all of a section (G)")
    effort = p.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="the searches at their usual size; the default")
    effort.add_argument("--full", action="store_true", help="ten times as many cases in random searches and simulations")
    p.add_argument("--json", action="store_true", help="print JSON instead of text")
    p.add_argument("--out", default=None, metavar="DIR", help="also write claims.json, claims.html and the figures there")


def chosen(text: str | None) -> list[str]:
    """Ids that ``--claim`` names; raises ``ValueError`` if none."""
    from . import LEDGER

    if text is None:
        return list(LEDGER)
    found = [text.upper()] if text.upper() in LEDGER else [i for i in LEDGER if i[0] == text.upper()]
    if not found:
        raise ValueError(f"claim: got {text!r}; need an id such as G5 or a section such as G; because the ledger has {', '.join(LEDGER)}")
    return found


def main(args: argparse.Namespace, command: str) -> int:
    """Exit code 1 if a verdict or a figure is not the expected one."""
    from . import LEDGER, report, run

    if find_spec("hypothesis") is None:
        raise ValueError('hypothesis: got no such package; need pip install "conformal-carm[testing]"; because some searches are its')
    ids = chosen(args.claim)
    if args.out is not None:
        try:
            Path(args.out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"out: got {args.out}; need a folder that can be written; because {error.strerror}") from None
        if not os.access(args.out, os.W_OK | os.X_OK):
            raise ValueError(f"out: got {args.out}; need a folder that can be written; because several files are")
    results = [run(LEDGER[i], 10 if args.full else 1) for i in ids]
    if args.json:
        print(report.to_json(results, command), end="")
    else:
        report.print_text(results, full=args.claim is not None)
    if args.out is not None:
        for path in report.write(results, Path(args.out), command):
            print(f"wrote {path}", file=sys.stderr)
    return 0 if all(r.agrees for r in results) else 1
