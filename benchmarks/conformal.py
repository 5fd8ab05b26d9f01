"""Statistics library against its peers, in one run: ratios of medians over interleaved rounds, peak memory, import time.

    python -m benchmarks.conformal [--peers DIR] [--prompts 1000000] [--rounds 7] [--out FILE.csv]

``make peers`` installs trl-cgrpo, MAPIE, crepes and torchcp into ``build/peers``, beside the pinned environment and never into it.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from conformal_core import APS, FirstSuccess, Outcomes, calibrate_thresholds, conformal_quantile, encode_answers
from conformal_core.keys import mix64, uniforms

GRID = (2, 4, 8, 16, 32)
ROOT = Path(__file__).resolve().parent.parent
Row = tuple[str, str, float, float, str]


def seconds(work: Callable[[], object], at_least: float = 0.05) -> float:
    """CPU seconds of one call, from as many calls as fill ``at_least``."""
    began, calls = time.process_time(), 0
    while (spent := time.process_time() - began) < at_least or not calls:
        work()
        calls += 1
    return spent / calls


def interleaved(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each variant; they take turns, so that a slow machine slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for work in variants.values():
        work()
    for _ in range(rounds):
        for name, work in variants.items():
            times[name].append(seconds(work))
    return {name: statistics.median(values) for name, values in times.items()}


def table(n: int, seed: int = 0) -> Outcomes:
    """``n`` prompts of 32 responses, pass rates Beta(1.14, .86), twenty wrong answers."""
    rng = np.random.default_rng(seed)
    codes = np.empty((n, 32), np.int64)
    for rows in np.array_split(np.arange(n), max(1, n // 100_000)):
        right = rng.random((len(rows), 32)) < rng.beta(1.14, 0.86, len(rows))[:, None]
        codes[rows] = np.where(right, 0, rng.integers(1, 21, (len(rows), 32)))
    return Outcomes(mix64(np.arange(n, dtype=np.uint64)), codes == 0, codes=codes, gold=np.zeros(n, np.int64))


def against_trl_cgrpo(rounds: int) -> Iterator[Row]:
    """Scores and thresholds of n = 200 prompts, K = 32, M = 5."""
    from trl_cgrpo import conformal as peer

    o = table(200)
    texts = [[f"\\frac{{{c}}}{{7}}" for c in row] for row in o.codes.tolist()]
    golds = ["\\frac{0}{7}"] * o.n
    verdicts = o.passes.tolist()

    def ours_aps(outcomes: Outcomes = o) -> object:
        return calibrate_thresholds(APS().gold_scores(outcomes, GRID, uniforms(outcomes.prompt_ids, seed=0)), GRID, "0.12")

    def ours_first() -> object:
        return calibrate_thresholds(FirstSuccess().gold_scores(o, GRID, np.zeros(o.n)), GRID, "0.12")  # its score reads no u

    def from_texts() -> object:
        codes, gold = encode_answers(texts, golds)
        return ours_aps(Outcomes(o.prompt_ids, o.passes, codes=codes, gold=gold))

    def peer_aps() -> object:
        rng = random.Random(0)
        return [peer.conformal_quantile([peer.aps_score(g, a, k, rng) for g, a in zip(golds, texts, strict=True)], 0.12) for k in GRID]

    def peer_first() -> object:
        return [peer.conformal_quantile([peer.first_success_score(p, k) for p in verdicts], 0.12) for k in GRID]

    times = interleaved(
        {
            "APS": ours_aps,
            "APS, answers as text": from_texts,
            "trl-cgrpo APS": peer_aps,
            "first success": ours_first,
            "trl-cgrpo first success": peer_first,
            "APS and first success": lambda: (ours_aps(), ours_first()),
            "trl-cgrpo APS and first success": lambda: (peer_aps(), peer_first()),
        },
        rounds,
    )
    for name in ("APS", "APS, answers as text", "first success", "APS and first success"):
        slower = times[f"trl-cgrpo {name.removesuffix(', answers as text')}"]
        yield "scores and thresholds, n=200", f"{name} against trl-cgrpo", times[name], slower / times[name], "times faster"


def quantiles(rounds: int, peers: Path, n: int) -> Iterator[Row]:
    """One threshold of ``n`` scores; conversion to the peer's container is not counted."""
    import torch
    from crepes.base import ConformalRegressor
    from mapie.utils import _compute_classification_quantile as mapie

    spec = importlib.util.spec_from_file_location("torchcp_common", peers / "torchcp" / "utils" / "common.py")
    assert spec is not None and spec.loader is not None
    torchcp = importlib.util.module_from_spec(spec)  # the package itself imports a compiled extension that has no wheel
    spec.loader.exec_module(torchcp)
    scores = np.random.default_rng(0).random(n)
    tensor, alpha = torch.from_numpy(scores), np.array([0.1])

    def crepes() -> object:
        return ConformalRegressor().fit(residuals=scores).predict_int(np.zeros(1), confidence=0.9)

    times = interleaved(
        {
            "ours": lambda: conformal_quantile(scores, "0.1"),
            "MAPIE": lambda: mapie(scores, alpha),
            "crepes": crepes,
            "torchcp": lambda: torchcp.calculate_conformal_value(tensor, 0.1),
            "sort": lambda: np.sort(scores),
            "partition": lambda: np.partition(scores, int(0.9 * n)),
        },
        rounds,
    )
    for peer in ("MAPIE", "crepes", "torchcp", "sort", "partition"):
        yield f"quantile, n={n}", f"against {peer}", times["ours"], times[peer] / times["ours"], "times faster"


MEMORY = """
import sys, time, tracemalloc, numpy as np
from benchmarks.conformal import GRID, table
from conformal_core import APS, FirstSuccess, MassAbove, ReleasedAPS
o = table({n}); u = np.zeros(o.n)
score = {score}
size = sum(a.nbytes for a in (o.prompt_ids, o.passes, o.drawn, o.codes, o.gold, u))
score.gold_scores(o.take(np.arange(100)), GRID, u[:100])
spent = []
for _ in range(3):
    began = time.process_time(); out = score.gold_scores(o, GRID, u); spent.append(time.process_time() - began); del out
tracemalloc.start(); out = score.gold_scores(o, GRID, u); peak = tracemalloc.get_traced_memory()[1]
print(min(spent), (peak - out.nbytes) / size)
"""


def memory(n: int) -> Iterator[Row]:
    """Scores of a large table at five budgets: peak beyond the output over the table, CPU time (best of three) over a quarter's."""
    for score in ("APS()", "MassAbove()", "ReleasedAPS()", "FirstSuccess()"):
        spent = {}
        for size in (n // 4, n):
            done = subprocess.run(
                [sys.executable, "-c", MEMORY.format(n=size, score=score)], cwd=ROOT, check=True, capture_output=True, text=True
            )
            spent[size], peak = (float(x) for x in done.stdout.split())
        yield f"n={n} x 32 x 5 budgets", f"{score} peak beyond output / table", spent[n], peak, "of the table"
        yield f"n={n} x 32 x 5 budgets", f"{score} CPU time / that of a quarter", spent[n], spent[n] / spent[n // 4], "linear is 4"


def import_time(rounds: int) -> Iterator[Row]:
    """``import conformal_core`` in a fresh interpreter that has imported NumPy."""
    code = "import numpy, time; t = time.perf_counter(); import conformal_core; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        for _ in range(rounds)
    ]
    yield "import", "conformal_core after numpy", statistics.median(times), 1000 * statistics.median(times), "ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, default=ROOT / "build" / "peers", metavar="DIR", help="where make peers put the peers")
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    if not (args.peers / "trl_cgrpo").is_dir():
        sys.exit(f"peers: got {args.peers}; need the packages of 'make peers' there; because ratios are taken in one run")
    sys.path.append(str(args.peers))
    rows = []
    for part in (
        import_time(args.rounds),
        against_trl_cgrpo(args.rounds),
        quantiles(args.rounds, args.peers, args.prompts),
        memory(args.prompts),
    ):
        for what, case, spent, figure, unit in part:
            rows.append([what, case, f"{spent:.6f}", f"{figure:.3f}", unit])
            print(f"{what:>30}  {case:<45} {1000 * spent:10.2f} ms  {figure:8.2f} {unit}", flush=True)
    if args.out:
        with open(args.out, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["benchmark", "case", "seconds", "figure", "unit"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
