"""What the trainer costs beside stock TRL and trl-cgrpo 0.2.0, in one run of turns: step time, memory, calibration.

    python -m benchmarks.trainer_cost steps [--steps 4] [--rounds 3]     # G = 32, 16, 8; ours; the peer (if it is installed)
    python -m benchmarks.trainer_cost slope [--steps 4] [--rounds 3]     # seconds against trained rows: slope and intercept
    python -m benchmarks.trainer_cost off [--steps 6] [--rounds 5]       # every feature off, against stock TRL
    python -m benchmarks.trainer_cost memory                             # peak memory at mean k 12 against G = 32
    python -m benchmarks.trainer_cost calibration [--steps 300]          # share of calibration in all generated rollouts

Figures are ratios within one run, medians over all steps after the first of each turn.  The peer is not a dependency:
``pip install --no-deps trl-cgrpo==0.2.0``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from benchmarks.step_time import BUDGETS, K_MAX, StepTimes, five_million, reward
from conformal_core import ConformalBudget, FixedBudget, RolloutPolicy, SignalBudget, StreamCalibrated
from conformal_trl import CGRPOConfig, CGRPOTrainer
from experiments.arithmetic import extract_answer, make_problems, splits, to_dataset
from experiments.arithmetic import reward as correct
from experiments.models import load

GRID = (2, 4, 8, 16, 32)
PROMPTS, TOKENS = 8, 48


class Scripted(RolloutPolicy):
    """The i-th prompt of a batch gets ``budgets[i]`` responses, along the grid."""

    k_max = K_MAX

    def __init__(self, budgets: tuple[int, ...]) -> None:
        self.budgets = budgets

    def first(self, prompt_ids, step):
        self.target = dict(zip(prompt_ids.tolist(), self.budgets, strict=True))
        return np.minimum(GRID[0], [self.target[i] for i in prompt_ids.tolist()])

    def more(self, outcomes):
        targets = np.array([self.target[i] for i in outcomes.prompt_ids.tolist()])
        following = np.array((*GRID, K_MAX))[np.searchsorted(GRID, outcomes.drawn, side="right")]
        return np.where(outcomes.drawn < targets, np.minimum(following, targets) - outcomes.drawn, 0)


def common(folder: str, group: int, steps: int) -> dict[str, Any]:
    return dict(
        output_dir=folder, use_cpu=not torch.cuda.is_available(), bf16=False, gradient_checkpointing=False, save_strategy="no",
        report_to="none", disable_tqdm=True, logging_steps=1000, per_device_train_batch_size=PROMPTS * group, num_generations=group,
        max_completion_length=TOKENS, max_steps=steps, learning_rate=1e-5, lr_scheduler_type="constant", seed=1,
        generation_kwargs={"min_new_tokens": TOKENS},
    )  # fmt: skip


def stock(folder: str, steps: int, group: int = K_MAX) -> Any:
    _, tokenizer = load("embedded")
    data = Dataset.from_list(make_problems(PROMPTS * (steps + 1), seed=5))
    return GRPOTrainer(
        five_million(), reward, args=GRPOConfig(**common(folder, group, steps)), train_dataset=data, processing_class=tokenizer
    )


def ours(folder: str, steps: int, policy: RolloutPolicy, prune: str = "none") -> Any:
    _, tokenizer = load("embedded")
    data = Dataset.from_list(make_problems(PROMPTS * (steps + 1), seed=5))
    config = CGRPOConfig(**common(folder, policy.k_max, steps), prune=prune, rollout_batch_size=4096)
    return CGRPOTrainer(five_million(), reward, config, data, processing_class=tokenizer, rollout_policy=policy)


def peer(folder: str, steps: int) -> Any:
    """trl-cgrpo's trainer with the scripted stops and no calibration: its rows, padding and grid of increments."""
    from trl_cgrpo import CGRPOConfig as PeerConfig
    from trl_cgrpo import CGRPOTrainer as PeerTrainer

    class ScriptedPeer(PeerTrainer):
        level, asked = 0, 0

        def _calibration_due(self):
            return False

        def _resolved(self, outcomes, k):
            self.asked = self.asked + 1 if k == self.level else 0
            self.level = k
            return [b for b in BUDGETS if b >= k][self.asked] == k

    _, tokenizer = load("embedded")
    data = Dataset.from_list(make_problems(PROMPTS * (steps + 1), seed=5))
    config = PeerConfig(**common(folder, K_MAX, steps), budget_grid=list(GRID))
    return ScriptedPeer(
        five_million(), reward, args=config, train_dataset=data, processing_class=tokenizer, calibration_dataset=data,
        answer_extractor=extract_answer,
    )  # fmt: skip


def seconds(build: Callable[[str], Any]) -> list[float]:
    """Seconds of every optimizer step but the first."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, times = build(folder), StepTimes()
        trainer.add_callback(times)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return times.seconds


def in_turns(builds: dict[str, Callable[[str], Any]], rounds: int) -> dict[str, float]:
    """Median seconds a step, the variants taking turns."""
    measured: dict[str, list[float]] = {name: [] for name in builds}
    for _ in range(rounds):
        for name, build in builds.items():
            measured[name] += seconds(build)
    return {name: statistics.median(values) for name, values in measured.items()}


def steps_command(args: argparse.Namespace) -> None:
    n = args.steps
    builds: dict[str, Callable[[str], Any]] = {f"TRL G={g}": lambda f, g=g: stock(f, n, g) for g in (32, 16, 8)}
    builds["ours, mean k 12.5"] = lambda f: ours(f, n, Scripted(BUDGETS))
    builds["ours, mean k 12.5, pruned"] = lambda f: ours(f, n, Scripted(BUDGETS), "zero_variance")
    if find_spec("trl_cgrpo") is not None:
        builds["trl-cgrpo 0.2.0, mean k 12.5"] = lambda f: peer(f, n)
    else:
        print("trl-cgrpo is not installed: left out")
    median = in_turns(builds, args.rounds)
    for name, value in median.items():
        print(f"{name:32} {value:8.4f} s/step   {value / median['TRL G=32']:6.3f} of TRL G=32")


def slope_command(args: argparse.Namespace) -> None:
    """Fits seconds = intercept + slope * rows to both trainers; proportional is TRL's seconds a row at G = 32."""
    n, groups = args.steps, (4, 8, 16, 32)
    builds: dict[str, Callable[[str], Any]] = {f"TRL {g}": lambda f, g=g: stock(f, n, g) for g in groups}
    builds |= {f"ours {g}": lambda f, g=g: ours(f, n, Scripted((g,) * PROMPTS)) for g in groups}
    median = in_turns(builds, args.rounds)
    rows = np.array([PROMPTS * g for g in groups])
    fits = {who: np.polyfit(rows, [median[f"{who} {g}"] for g in groups], 1) for who in ("TRL", "ours")}
    proportional = median["TRL 32"] / (PROMPTS * 32)
    for who, (slope, intercept) in fits.items():
        print(f"{who:6} slope {slope * 1e3:8.4f} ms/row ({slope / proportional:5.3f} of proportional)   intercept {intercept:8.4f} s")
    print(f"intercept, ours over TRL's: {fits['ours'][1] / fits['TRL'][1]:.3f}   slope: {fits['ours'][0] / fits['TRL'][0]:.3f}")


def off_command(args: argparse.Namespace) -> None:
    builds = {"TRL": lambda f: stock(f, args.steps), "ours, features off": lambda f: ours(f, args.steps, FixedBudget(K_MAX))}
    median = in_turns(builds, args.rounds)
    print(f"TRL {median['TRL']:.4f} s/step   ours {median['ours, features off']:.4f}   {median['ours, features off'] / median['TRL']:.4f}")


def _peak(which: str, queue: Any) -> None:
    quiet()
    budgets = BUDGETS if which == "ours" else (K_MAX,) * PROMPTS
    with tempfile.TemporaryDirectory() as folder:
        trainer = ours(folder, 2, Scripted(budgets)) if which == "ours" else stock(folder, 2)
        trainer.remove_callback(PrinterCallback)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            trainer.train()
            queue.put(torch.cuda.max_memory_allocated() - before)
        else:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            trainer.train()
            queue.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


def memory_command(args: argparse.Namespace) -> None:
    """Growth of peak memory while training, each variant in a process of its own: ours at mean k 12.5, TRL at G = 32."""
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for which in ("TRL G=32", "ours"):
        queue = context.Queue()
        process = context.Process(target=_peak, args=(which, queue))
        process.start()
        peaks[which] = queue.get()
        process.join()
        print(f"{which:10} {peaks[which] / 2**20:9.1f} MiB")
    print(f"ours over TRL: {peaks['ours'] / peaks['TRL G=32']:.3f}")


def calibration_command(args: argparse.Namespace) -> None:
    """Share of calibration under the cheap modes, and how often the calibrated event occurred against its level."""
    policies = {
        "signal, stream": SignalBudget((8, 16, 24, 32), delta="0.1", share="0.1", seed=0),
        "signal, stream, alarm": SignalBudget((8, 16, 24, 32), delta="0.1", share="0.1", alarm="0.05", seed=0),
        "signal, offline": SignalBudget((8, 16, 24, 32), delta="0.1", calibration="offline", n_calibration=100, recalibrate_every=100),
        "C-GRPO, stream": StreamCalibrated(ConformalBudget(GRID, delta="0.1", multiplicity="risk_control", n_calibration=100), share="0.1"),
        "C-GRPO, offline": ConformalBudget(GRID, delta="0.1", multiplicity="risk_control", n_calibration=100, recalibrate_every=50),
    }
    data = splits(0, n_calibration=400, n_eval=10, n_train=2000)
    for name, policy in policies.items():
        model, tokenizer = load("embedded")
        with tempfile.TemporaryDirectory() as folder:
            settings = common(folder, K_MAX, args.steps) | {"max_completion_length": 8, "generation_kwargs": None, "learning_rate": 5e-5}
            trainer = CGRPOTrainer(
                model, correct, CGRPOConfig(**settings, calibration_progress=False), to_dataset(data.train), processing_class=tokenizer,
                rollout_policy=policy, calibration_dataset=to_dataset(data.calibration), answer_fn=extract_answer, gold_column="answer",
            )  # fmt: skip
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        totals = trainer.ledger.totals()
        events = "  ".join(f"{event} {hit}/{trials}" for event, (hit, trials) in totals["audit"].items())
        print(f"{name:24} calibration {trainer.ledger.calibration_share:7.2%} of rollouts   {events}", flush=True)


def quiet() -> None:
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = {"steps": (4, 3), "slope": (4, 3), "off": (6, 5), "memory": (2, 1), "calibration": (300, 1)}
    sub = parser.add_subparsers(dest="command", required=True)
    for name, (steps, rounds) in commands.items():
        one = sub.add_parser(name)
        one.add_argument("--steps", type=int, default=steps)
        one.add_argument("--rounds", type=int, default=rounds)
    args = parser.parse_args()
    quiet()
    globals()[f"{args.command}_command"](args)


if __name__ == "__main__":
    sys.exit(main())
