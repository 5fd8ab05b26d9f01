"""Command line: ``python -m experiments demo`` trains and compares, ``python -m experiments report DIR`` renders again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import demo, simulate, train
from .arena import cli as compare
from .claims import cli as claims
from .reproduce import cli as reproduce

#: Calibration prompts under ``--short``: with fewer, the realised risk of one calibration scatters too far from delta.
SHORT_CALIBRATION = 60


def parser() -> argparse.ArgumentParser:
    """The options; values are checked by :meth:`demo.Settings.check`, not here, so that every refusal reads alike."""
    d = demo.Settings()
    p = argparse.ArgumentParser(prog="python -m experiments", description="Train, compare and report calibrated rollout budgets.")
    sub = p.add_subparsers(dest="command", required=True, metavar="{demo,report,simulate,compare,train,claims}")
    c = sub.add_parser("demo", help="train one start model under six rollout rules and compare them", formatter_class=_Formatter)
    c.add_argument(
        "--model",
        default=d.model,
        metavar="embedded|smollm2|PATH",
        help="start model, the same for every rule; with a larger one raise --seconds",
    )
    c.add_argument("--seconds", type=float, default=d.seconds, help="wall-clock training seconds per rule, calibration included")
    c.add_argument("--short", action="store_true", help="8 seconds per rule and a smaller evaluation, for CI")
    c.add_argument("--out", default=d.out, metavar="DIR", help="folder of the results")
    c.add_argument("--jobs", type=int, default=d.jobs, help="rules trained at the same time, one thread each")
    c.add_argument("--seed", type=int, default=d.seed, help="seed of data, training and evaluation")
    c.add_argument("--grid", default=",".join(map(str, d.grid)), metavar="K,K,...", help="budget grid of the adaptive rules")
    c.add_argument("--n-calibration", type=int, default=d.n_calibration, metavar="N", help="prompts per calibration")
    c.add_argument(
        "--recalibrate-every", type=int, default=d.recalibrate_every, metavar="STEPS", help="optimizer steps between calibrations"
    )
    c.add_argument("--delta", default=d.delta, help="miscoverage level of the risk-controlled rules")
    c.add_argument("--tau", type=float, default=d.tau, help="CARM threshold, a probability ratio >= 1")
    c.add_argument("--num-iterations", type=int, default=d.num_iterations, metavar="N", help="optimizer steps per generation")
    c.add_argument("--lr", type=float, default=d.learning_rate, help="learning rate, constant")
    r = sub.add_parser("report", help="write tables, figures and HTML again from the JSON files of a demo", formatter_class=_Formatter)
    r.add_argument("dir", help="folder of the results")
    simulate.add_parser(sub, _Formatter)
    compare.add_parser(sub, _Formatter)
    train.add_parser(sub, _Formatter)
    reproduce.add_parser(sub, _Formatter)
    claims.add_parser(sub, _Formatter)
    a = sub.add_parser("demo-arm")
    a.add_argument("arm")
    a.add_argument("settings", type=Path)
    return p


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    pass


def _compare(args: argparse.Namespace, argv: list[str]) -> None:
    from .arena.schedule import compare as run_all

    run_all(compare.settings(args, demo.quoted(argv), demo.versions()))


def _compare_run(args: argparse.Namespace, argv: list[str]) -> None:
    from .arena.run import main as run_one

    run_one(args.spec)


def _claims(args: argparse.Namespace, argv: list[str]) -> None:
    if claims.main(args, demo.quoted(argv)):
        raise RuntimeError("a claim does not come out as expected")


#: Commands beside ``demo`` and ``report``; a ``ValueError`` of theirs is an option that cannot work.
OTHERS = {
    "simulate": lambda args, argv: simulate.main(args),
    "compare": _compare,
    "compare-run": _compare_run,
    "train": lambda args, argv: train.main(args),
    "reproduce": lambda args, argv: reproduce.main(args),
    "reproduce-worker": lambda args, argv: reproduce.worker(args),
    "claims": _claims,
}


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 an arm failed, 2 an option that cannot work (one line on stderr, nothing loaded)."""
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    try:
        if args.command == "demo-arm":
            demo.run_arm(args.arm, demo.Settings.load(args.settings))
        elif args.command == "report":
            from . import report

            data = report.load(Path(args.dir))
            report.write(data, Path(args.dir))
            print(report.text_table(data), report.verdict(data), sep="\n\n")
        elif args.command in OTHERS:
            try:
                OTHERS[args.command](args, argv)
            except ValueError as error:
                if args.command in ("compare-run", "reproduce-worker"):
                    raise
                raise demo.BadInput(" ".join(str(error).split())) from None
        else:
            demo.run(settings(args, argv))
    except demo.BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if args.command in ("demo-arm", "compare-run", "reproduce-worker"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; its processes were ended", file=sys.stderr)
        return 130
    return 0


def settings(args: argparse.Namespace, argv: list[str]) -> demo.Settings:
    """Checked settings of the ``demo`` command; raises :class:`demo.BadInput`."""
    try:
        grid = tuple(int(k) for k in args.grid.split(","))
    except ValueError:
        raise demo.BadInput(f"grid: got {args.grid}; need integers such as 2,4,8; because budgets count responses") from None
    short = (
        {"seconds": min(args.seconds, 8.0), "eval_prompts": 200, "eval_samples": 8, "train_prompts": 500}
        if args.short
        else {"seconds": args.seconds}
    )
    if args.model != "embedded":  # a larger model samples more slowly: smaller evaluation and updates
        short |= {"eval_prompts": 60, "eval_samples": 4, "responses": 64}
    s = demo.Settings(
        model=args.model,
        out=args.out,
        jobs=args.jobs,
        seed=args.seed,
        grid=grid,
        n_calibration=min(args.n_calibration, SHORT_CALIBRATION) if args.short and args.delta == "0.1" else args.n_calibration,
        recalibrate_every=args.recalibrate_every,
        delta=args.delta,
        tau=args.tau,
        num_iterations=args.num_iterations,
        learning_rate=args.lr,
        command=demo.quoted(argv),
        versions=demo.versions(),
        **short,
    )
    s.check()
    from . import models

    try:
        models.check(args.model)
    except (ValueError, OSError) as error:
        raise demo.BadInput(" ".join(str(error).split())) from None
    try:
        demo.problems(s)
    except ValueError as error:
        raise demo.BadInput(" ".join(str(error).split())) from None
    try:
        Path(s.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise demo.BadInput(f"out: got {s.out}; need a folder that can be written; because {error.strerror}") from None
    return s


if __name__ == "__main__":
    sys.exit(main())
