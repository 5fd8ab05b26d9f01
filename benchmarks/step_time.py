"""Seconds per optimizer step against stock TRL with fixed G = 32, in one run: same data, threads, loss and reward.

    python -m benchmarks.step_time [--steps 4] [--rounds 2] [--out FILE.csv]

A scripted policy draws (32, 32, 16, 8, 4, 4, 2, 2) responses for 8 prompts (mean k = 12.5, K_max = 32) along a budget grid; rows
alone would give .39x.  Variants take turns in every round, and the figure is the ratio of medians over all steps after the first
of each turn.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from conformal_core import RolloutPolicy
from conformal_trl import CGRPOConfig, CGRPOTrainer
from experiments.arithmetic import make_problems
from experiments.models import load

BUDGETS = (32, 32, 16, 8, 4, 4, 2, 2)
K_MAX = 32


class ScriptedBudget(RolloutPolicy):
    """The i-th prompt of a batch gets ``BUDGETS[i]`` responses, drawn along ``grid``."""

    k_max = K_MAX

    def __init__(self, grid: tuple[int, ...]) -> None:
        self.grid = np.array(grid)

    def first(self, prompt_ids, step):
        self.target = dict(zip(prompt_ids.tolist(), BUDGETS, strict=True))
        return np.minimum(self.grid[0], [self.target[i] for i in prompt_ids.tolist()])

    def more(self, outcomes):
        targets = np.array([self.target[i] for i in outcomes.prompt_ids.tolist()])
        following = self.grid[np.minimum(np.searchsorted(self.grid, outcomes.drawn, side="right"), len(self.grid) - 1)]
        return np.where(outcomes.drawn < targets, np.minimum(following, targets) - outcomes.drawn, 0)


class StepTimes(TrainerCallback):
    """Wall-clock and processor time of every optimizer step, data loading and logging included."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.marks.append((time.perf_counter(), time.process_time()))

    def on_step_end(self, args, state, control, **kwargs):
        self.marks.append((time.perf_counter(), time.process_time()))

    def _between(self, clock: int) -> list[float]:
        return [b[clock] - a[clock] for a, b in zip(self.marks[1:], self.marks[2:], strict=False)]  # the first step warms up

    @property
    def seconds(self) -> list[float]:
        return self._between(0)

    @property
    def cpu_seconds(self) -> list[float]:
        return self._between(1)


def reward(completion_ids, **_):
    """Cheap and mixed: about half of all responses pass."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def five_million() -> LlamaForCausalLM:
    """About 5M parameters, random weights, on the embedded tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=19, hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=8, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, max_position_embeddings=128,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def run(variant: str, model_name: str, grid: tuple[int, ...], steps: int) -> list[float]:
    embedded, tokenizer = load("embedded")
    model = embedded if model_name == "embedded" else five_million()
    tokens = 8 if model_name == "embedded" else 48
    with tempfile.TemporaryDirectory() as folder:
        common = dict(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", report_to="none",
            disable_tqdm=True, logging_steps=1000, per_device_train_batch_size=8 * K_MAX, num_generations=K_MAX,
            max_completion_length=tokens, max_steps=steps, learning_rate=1e-5, lr_scheduler_type="constant", seed=1,
        )  # fmt: skip
        if model_name != "embedded":
            common["generation_kwargs"] = {"min_new_tokens": tokens}
        data = Dataset.from_list(make_problems(8 * (steps + 1), seed=5))
        if variant == "trl":
            trainer = GRPOTrainer(model, reward, args=GRPOConfig(**common), train_dataset=data, processing_class=tokenizer)
        else:
            config = CGRPOConfig(**common, prune="zero_variance" if variant == "ours, pruned" else "none")
            policy = ScriptedBudget(grid)
            trainer = CGRPOTrainer(model, reward, config, data, processing_class=tokenizer, rollout_policy=policy)
        times = StepTimes()
        trainer.add_callback(times)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return times.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows = []
    for model_name in ("5M, 48 tokens", "embedded"):
        for grid in ((2, 4, 8, 16, 32), (8, 32)):
            seconds: dict[str, list[float]] = {"trl": [], "ours": [], "ours, pruned": []}
            for _ in range(args.rounds):
                for variant, values in seconds.items():
                    values += run(variant, model_name, grid, args.steps)
            base = statistics.median(seconds["trl"])
            for variant, values in seconds.items():
                median = statistics.median(values)
                rows.append([model_name, " ".join(map(str, grid)), variant, f"{median:.4f}", f"{median / base:.3f}", len(values)])
                print("  ".join(f"{cell!s:>16}" for cell in rows[-1]), flush=True)
    if args.out:
        with open(args.out, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["model", "grid", "variant", "seconds_per_step", "ratio_to_trl_G32", "steps"])
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
