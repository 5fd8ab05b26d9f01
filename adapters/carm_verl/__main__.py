"""``python -m carm_verl dry-run|recipes|losses``."""

import argparse
import sys
from collections.abc import Sequence
from importlib import resources


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 with the fault on stderr."""
    parser = argparse.ArgumentParser(prog="python -m carm_verl", description="Response masks for verl.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("dry-run", help="resolve a launch's whole configuration and evaluate its loss, without a GPU")
    check.add_argument("--config-name", default="ppo_trainer", help="verl's configuration (default: ppo_trainer)")
    check.add_argument("overrides", nargs="*", help="the overrides of python -m verl.trainer.main_ppo, e.g. +carm=math_4b")
    commands.add_parser("recipes", help="print the folder of recipes and launch scripts")
    commands.add_parser("losses", help="list the registered loss modes")
    args = parser.parse_args(argv)
    if args.command == "recipes":
        print(resources.files("carm_verl") / "recipes")
        return 0
    if args.command == "losses":
        from .rules import LOSSES

        for name, mode in LOSSES.items():
            threshold = f"{mode.threshold}={mode.default:g}" if mode.threshold else "-"
            print(f"{name:14} {threshold:10} {mode.says}")
        return 0
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from .dry_run import dry_run

    try:
        print(dry_run(args.overrides, args.config_name))
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
        print(f"dry-run failed: {error.__cause__ or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
