"""Mutation testing of a core.

    python -m benchmarks.mutation conformal_core [--modules level,replay] [--jobs 2]

The tests are collected once, on a copy of the tree, and forked for every mutant.  A fork plants the change into the living functions and
runs only tests that execute the changed statement, cheap ones first, until one fails; a change outside of functions is planted by
importing everything anew.  What survives is tried again at the end: with the tests that the budget left out, and with as many examples
as each Hypothesis test declares.  A kill counts if the killing test passes on the source as it is, planted alike.  A mutant whose tests did
not all run is not decided, and not killed.  Verdicts are kept in ``build/mutation``: a rerun tries only what changed, and what is alive
when a test did.
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
from .planting import differ
from .session import OPTIONS, Session, Verdict
from .store import Reasons, Results, report

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
    parser.add_argument("--budget", type=float, default=20, help="CPU seconds of tests a mutant may take at first")
    parser.add_argument("--last", type=float, default=240, help="CPU seconds of tests it may take when tried again at the end")
    parser.add_argument("--tools", type=Path, default=STORE, metavar="DIR", help="where cosmic-ray and coverage are installed")
    parser.add_argument("--tests", default="", metavar="NAMES", help="comma-separated parts of the names of test files to use; default all")
    parser.add_argument("--store", type=Path, default=STORE, metavar="DIR", help="where coverage and verdicts are kept")
    parser.add_argument("--quiet", action="store_true", help="do not list survivors as they are found")
    parser.add_argument("--report", action="store_true", help="only write the report of the verdicts kept")
    args = parser.parse_args()
    sys.path.append(str(args.tools))
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # forks share no threads
    import pytest

    args.store.mkdir(parents=True, exist_ok=True)
    reasons = Reasons(Path(__file__).parent / f"{args.core}.toml")
    every = [p.stem for p in sorted((ROOT / args.core).glob("*.py")) if p.stem != "__init__"]
    chosen = args.modules.split(",") if args.modules else every
    if args.report:
        report(ROOT, args.core, [Results(ROOT, args.core, module, args.store) for module in every], reasons)
        return
    with tempfile.TemporaryDirectory(dir=args.store, prefix="tree-") as place:
        tree = Path(place) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        os.chdir(tree)
        sys.path[:0] = [str(tree), str(tree / "adapters")]  # what holds on to the core is imported anew with it
        results = {module: Results(tree, args.core, module, args.store) for module in chosen}
        names: dict[str, dict[int, str]] = {}
        began = time.monotonic()

        def plan() -> Iterator[tuple[str, list[Mutant]]]:
            for module in chosen:
                path = tree / args.core / f"{module}.py"
                source = path.read_text(encoding="utf-8")
                found = [m for m in mutants(module, source) if differ(str(path), source, m.source)]
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

        def record(verdict: Verdict) -> None:
            module = verdict.mutant.module
            results[module].record(names[module][id(verdict.mutant)], verdict.mutant, verdict.killer, verdict.decided)
            results[module].save(names[module].values())

        def explained(mutant: Mutant) -> bool:
            return reasons.why(mutant.module, mutant.before, mutant.after) is not None

        def done(module: str, tried: int) -> None:
            result = results[module]
            alive = [m for m in result.known.values() if m["killer"] is None]
            for m in () if args.quiet else alive:
                if reasons.why(module, m["before"], m["after"]) is None:
                    what = "survived" if m.get("decided") else "not decided"
                    print(f"  {what}  {args.core}/{module}.py:{m['line']}  {m['before']}  ->  {m['after']}", flush=True)
            total = len(result.known)
            print(f"{module}: {total - len(alive)} of {total} killed; {tried} tried now; {time.monotonic() - began:.0f} s", flush=True)

        session = Session(tree, args.core, args.store, plan, record, done, explained, args.jobs, args.budget, args.last)
        files = [str(p) for folder in (args.core, "claims") for p in sorted((tree / "tests" / folder).glob("test_*.py"))]
        files = [file for file in files if any(part in file for part in args.tests.split(","))]
        pytest.main([*OPTIONS, "--continue-on-collection-errors", *files, str(tree / args.core)], plugins=[session])
        for module in chosen:
            done(module, 0)
    if args.store == STORE:
        report(ROOT, args.core, [results.get(module) or Results(ROOT, args.core, module, args.store) for module in every], reasons)


if __name__ == "__main__":
    main()
