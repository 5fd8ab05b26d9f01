"""Mutation testing of a core.

    python -m benchmarks.mutation conformal_core [--modules level,replay] [--jobs 2]

The tests are collected once, on a copy of the tree, and forked for every mutant; a fork runs only tests that execute the changed
statement, cheap ones first, until one fails.  A mutant that survives, or that changes more than bodies of functions, is tried again with
everything imported anew.  Verdicts are kept in ``build/mutation``: a rerun tries only what changed, and survivors again when a test did.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .operators import Mutant, mutants
from .session import OPTIONS, Coverage, Session, Verdict
from .store import Results, report

ROOT = Path(__file__).resolve().parent.parent.parent
STORE = ROOT / "build" / "mutation"
LEFT_OUT = shutil.ignore_patterns(".*", "runs", "build", "dist", "__pycache__", "*.egg-info")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("core", choices=["conformal_core", "carm_core"])
    parser.add_argument("--modules", help="comma-separated; default all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--share", type=int, default=1, metavar="N", help="try every N-th mutant of a module only; a later run adds the rest"
    )
    parser.add_argument("--budget", type=float, default=20, help="CPU seconds of tests a mutant may take")
    parser.add_argument("--tools", type=Path, default=STORE, metavar="DIR", help="where cosmic-ray and coverage are installed")
    parser.add_argument("--quiet", action="store_true", help="do not list survivors as they are found")
    parser.add_argument("--report", action="store_true", help="only write the report of the verdicts kept")
    args = parser.parse_args()
    sys.path.append(str(args.tools))
    import pytest

    STORE.mkdir(parents=True, exist_ok=True)
    explained = Path(__file__).parent / f"{args.core}.toml"
    every = [p.stem for p in sorted((ROOT / args.core).glob("*.py")) if p.stem != "__init__"]
    chosen = args.modules.split(",") if args.modules else every
    if args.report:
        report(ROOT, args.core, [Results(ROOT, args.core, module, STORE) for module in every], explained)
        return
    with tempfile.TemporaryDirectory(dir=STORE, prefix="tree-") as place:
        tree = Path(place) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        results = {module: Results(tree, args.core, module, STORE) for module in chosen}
        names: dict[str, dict[int, str]] = {}
        began = time.monotonic()

        def plan(_: Coverage) -> Iterator[tuple[str, list[Mutant]]]:
            for module in chosen:
                found = list(mutants(module, (tree / args.core / f"{module}.py").read_text(encoding="utf-8")))
                keys = Results.key(found)
                names[module] = {id(m): key for m, key in zip(found, keys, strict=True)}
                results[module].known = {k: v for k, v in results[module].known.items() if k in set(keys)}
                results[module].number = len(found)
                yield (
                    module,
                    [
                        m
                        for i, (m, key) in enumerate(zip(found, keys, strict=True))
                        if i % args.share == 0 and not results[module].holds(key)
                    ],
                )

        def record(module: str, verdict: Verdict) -> None:
            results[module].record(names[module][id(verdict.mutant)], verdict.mutant, verdict.killer)
            results[module].save(names[module].values())

        def done(module: str, tried: int) -> None:
            result = results[module]
            alive = [m for m in result.known.values() if m["killer"] is None]
            for m in () if args.quiet else alive:
                print(f"  survived  {args.core}/{module}.py:{m['line']}  {m['before']}  ->  {m['after']}", flush=True)
            total = len(result.known)
            print(f"{module}: {total - len(alive)} of {total} killed; {tried} tried now; {time.monotonic() - began:.0f} s", flush=True)

        session = Session(tree, args.core, STORE, plan, record, done, args.jobs, args.budget)
        files = [str(p) for folder in (args.core, "claims") for p in sorted((tree / "tests" / folder).glob("test_*.py"))]
        pytest.main([*OPTIONS, "--continue-on-collection-errors", *files, str(tree / args.core)], plugins=[session])
    report(ROOT, args.core, [results.get(module) or Results(ROOT, args.core, module, STORE) for module in every], explained)


if __name__ == "__main__":
    main()
