"""TRL's metrics over the rows that were generated, and what the budgets did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from .rows import Group
from .tables import add_rows

__all__ = ["log_generation"]


def log_generation(trainer: Any, groups: Sequence[Group], advantages: torch.Tensor, varies: torch.Tensor) -> None:
    """Write ``completions/*``, ``num_tokens``, ``reward*``, ``frac_reward_zero_std``, ``rollouts/*``, ``policy/*`` and ``tools/*`` of
    one step, and the rows of the completions table."""
    metrics, record = trainer._metrics["train"], trainer.ledger.current
    responses = [r for g in groups for r in g.responses]
    lengths = [r.tokens for r in responses]
    trainer.state.num_input_tokens_seen += sum(lengths) + sum(len(r.prompt) for r in responses)
    metrics["num_tokens"] = [trainer.state.num_input_tokens_seen]
    ended = [n for r, n in zip(responses, lengths, strict=True) if trainer.has_ended(r)]
    for name, values in (("", lengths), ("_terminated", ended)):
        metrics[f"completions/mean{name}_length"].append(float(np.mean(values or [0])))
        metrics[f"completions/min{name}_length"].append(float(min(values, default=0)))
        metrics[f"completions/max{name}_length"].append(float(max(values, default=0)))
    metrics["completions/clipped_ratio"].append(1 - len(ended) / max(len(lengths), 1))
    per_function = np.array([r.rewards for r in responses], np.float64).reshape(len(responses), len(trainer.reward_func_names))
    for i, name in enumerate(trainer.reward_func_names):
        column = per_function[~np.isnan(per_function[:, i]), i]
        metrics[f"rewards/{name}/mean"].append(float(column.mean()) if column.size else math.nan)
        metrics[f"rewards/{name}/std"].append(float(column.std(ddof=1)) if column.size > 1 else 0.0)
    totals = np.array([r.total for r in responses], np.float64)
    totals = totals[~np.isnan(totals)]
    metrics["reward"].append(record["reward_mean"])
    metrics["reward_std"].append(float(totals.std(ddof=1)) if totals.size > 1 else 0.0)
    metrics["frac_reward_zero_std"].append(float((~varies).float().mean()))
    for name in ("generated", "kept", "trained", "calibration", "generated_tokens", "calibration_tokens"):
        metrics[f"rollouts/{name}"].append(float(record[name]))
    metrics["rollouts/mean_k"].append(record["mean_k"])
    metrics["rollouts/savings"].append(1 - (record["generated"] + record["calibration"]) / (len(groups) * trainer.num_generations))
    metrics["rollouts/calibration_share"].append(trainer.ledger.calibration_share)
    for name, value in record["policy"].items():
        if math.isfinite(value):
            metrics[f"policy/{name}"].append(value)
    if trainer.tools:
        rows, calls, failures = trainer.rollouts.tool_use
        metrics["tools/call_frequency"].append(calls / max(rows, 1.0))
        metrics["tools/failure_frequency"].append(failures / calls if calls else 0.0)
    if trainer.log_completions and trainer.accelerator.is_main_process:
        add_rows(trainer._logs, groups, advantages, trainer.reward_func_names)
    pending = gather_object([(k, sum(v), len(v)) for k, v in trainer._pending_metrics.items()])
    for name in sorted({k for k, _, _ in pending}):
        metrics[name].append(sum(s for k, s, _ in pending if k == name) / sum(n for k, _, n in pending if k == name))
    trainer._pending_metrics.clear()
