"""Milliseconds and extra memory of one response mask, as ratios in one run: this library, TRL's and verl's own.

    python -m benchmarks.masks [--rows 256] [--width 16384] [--rounds 15] [--packed 100000000] [--device cpu] [--out docs/masks.csv]

float32 log-probabilities, int64 mask, one CPU thread (or a GPU). Variants take turns in every round, each round in another order; a
ratio is the median over rounds, after two of warm-up, of the ratio within a round. "read" sums each of the three arrays once. verl's
mask takes a log-ratio, so its row starts with the subtraction. Extra memory is the largest sum of bytes that one call holds at a time,
as a share of its inputs.

TRL and verl are timed one after the other, TRL first: both allocate arrays as large as the batch, and verl's leave the C library's heap
so large that TRL's no longer come from the operating system, which is most of their cost. A trainer between two masks is closer to the
first state.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable

import torch

from carm_core import CARM, OPSM, TRM, GeoMean, Rule
from carm_torch import keep_mask, packed_keep_mask

Variant = Callable[[], object]


def batch(rows: int, width: int, device: str) -> tuple[torch.Tensor, ...]:
    """Log-probabilities of two policies 0.02 nats apart, right-padded to between a quarter and the whole width."""
    generator = torch.Generator().manual_seed(0)
    rollout = -3 * torch.rand(rows, width, generator=generator)
    current = rollout + 0.02 * torch.randn(rows, width, generator=generator)
    length = torch.randint(width // 4, width + 1, (rows, 1), generator=generator)
    mask = (torch.arange(width)[None] < length).long()
    return tuple(x.to(device) for x in (current, rollout, mask, torch.randn(rows, 1, generator=generator)))


def ours(rule: Rule, arrays: tuple[torch.Tensor, ...], compiled: bool) -> Variant:
    def mask(current: torch.Tensor, rollout: torch.Tensor, token_mask: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        return keep_mask(current, rollout, token_mask, rule, advantages)

    run = torch.compile(mask, fullgraph=True) if compiled else mask
    return lambda: run(*arrays)


def trl_mask(current: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor) -> dict[str, Variant]:
    try:
        from trl import GRPOTrainer
    except ImportError as error:
        print(f"trl: not timed ({error})", file=sys.stderr)
        return {}
    return {"trl get_off_policy_mask": lambda: GRPOTrainer.get_off_policy_mask(advantages, current, rollout, mask, 0.02)}


def verl_mask(current: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor) -> dict[str, Variant]:
    try:
        from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask
    except ImportError as error:
        print(f"verl: not timed ({error})", file=sys.stderr)
        return {}
    return {"verl seq_mean_k1": lambda: compute_rollout_rejection_mask(current - rollout, mask, "seq_mean_k1", "0.98_1.02")}


def clock(run: Variant, device: str) -> float:
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def extra_memory(run: Variant, device: str) -> int:
    """Bytes that one call holds at its peak, beyond what was held before: every allocation and release that torch makes, summed."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def in_turns(variants: dict[str, Variant], rounds: int, device: str) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for turn in range(rounds + 2):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            took = clock(variants[name], device)
            if turn >= 2:
                times[name].append(took)
    return times


def over(times: dict[str, list[float]], name: str, reference: str) -> object:
    if name not in times or reference not in times:
        return ""
    return round(statistics.median(ours / theirs for ours, theirs in zip(times[name], times[reference], strict=True)), 3)


def padded(args: argparse.Namespace) -> list[dict[str, object]]:
    arrays = batch(args.rows, args.width, args.device)
    current, rollout, mask, _ = arrays
    mine = {
        f"{type(rule).__name__} {'compiled' if compiled else 'eager'}": ours(rule, arrays, compiled)
        for rule in (CARM(1.02), GeoMean(1.02), TRM(0.05), OPSM(0.02))
        for compiled in (False, True)
    }
    first = {"read": lambda: (current.sum(), rollout.sum(), mask.sum()), **trl_mask(*arrays), **mine}
    times = in_turns(first, args.rounds, args.device)
    second = {**verl_mask(*arrays[:3]), **mine}
    verl_times = in_turns(second, max(3, args.rounds // 3), args.device) if len(second) > len(mine) else {}
    inputs = sum(x.numel() * x.element_size() for x in arrays[:3])
    return [
        {
            "mask": name,
            "milliseconds": round(statistics.median((times if name in times else verl_times)[name]), 3),
            "over_read": over(times, name, "read"),
            "over_trl": over(times, name, "trl get_off_policy_mask"),
            "over_verl": over(verl_times, name, "verl seq_mean_k1"),
            "extra_memory_percent": round(100 * extra_memory(run, args.device) / inputs, 2),
        }
        for name, run in {**first, **second}.items()
    ]


def packed(tokens: int, device: str) -> dict[str, object]:
    """CARM over `tokens` packed tokens in responses of 1 to 16,384."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 16_385, (2 * tokens // 16_384 + 1000,), generator=generator).cumsum(0)
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths[lengths < tokens], torch.tensor([tokens])]).to(device)
    rollout = torch.full((tokens,), -1.0, device=device)
    current = rollout + 0.02 * torch.randn(tokens, generator=generator).to(device)

    def run() -> object:
        return packed_keep_mask(current, rollout, bounds, CARM(1.02))

    packed_keep_mask(current[:100_000], rollout[:100_000], bounds[:2], CARM(1.02))
    took, extra = clock(run, device), extra_memory(run, device)
    share = round(100 * extra / (2 * current.numel() * current.element_size()), 2)
    return {"mask": f"CARM packed, {tokens} tokens, eager", "milliseconds": round(took, 1), "extra_memory_percent": share}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--packed", type=int, default=100_000_000, help="tokens of the packed case; 0 leaves it out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", help="also write the table to this CSV file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = padded(args) + ([packed(args.packed, args.device)] if args.packed else [])
    fields = ["mask", "milliseconds", "over_read", "over_trl", "over_verl", "extra_memory_percent"]
    for row in table:
        print("  ".join(f"{key}={row[key]}" for key in fields if row.get(key, "") != ""))
    if args.out:
        with open(args.out, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fields, restval="")
            writer.writeheader()
            writer.writerows(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
