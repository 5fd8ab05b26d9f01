"""One small training run with the hyper-parameters of a paper's configuration, and what is kept of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import arithmetic, configs
from ..train import arguments, policy

__all__ = ["CURVES", "Size", "condense", "train"]

#: What is kept of the training log, about `POINTS` steps of it.
CURVES = (
    "reward",
    "kl",
    "entropy",
    "grad_norm",
    "mask/seq_masked_fraction",
    "rollouts/mean_k",
    "completions/mean_length",
    "policy/delta",
)
POINTS = 120


@dataclass(frozen=True)
class Size:
    """What a scale holds equal: steps, prompts per step, optimizer steps per generation, splits, responses per test prompt.

    ``cap`` bounds every budget (tests); ``lr`` is that of full-parameter updates of the embedded model.
    """

    steps: int
    prompts: int
    updates: int
    n_calibration: int
    n_train: int
    n_test: int
    samples: int
    lr: float
    cap: int = 1024


def resized(experiment: configs.Experiment, size: Size) -> configs.Experiment:
    """The experiment on additions with the embedded model, everything else as in its file."""
    e = experiment
    grid = tuple(sorted({min(k, size.cap) for k in e.budget.grid}))
    ks = tuple(k for k in (1, 2, 4, 8, 16, 32) if k <= size.samples)
    return replace(
        e,
        model=configs.Model("embedded", chat=False),
        data=configs.Data("additions", None, size.n_calibration, size.n_train, size.n_test),
        update=replace(
            e.update,
            steps=size.steps,
            prompts=size.prompts,
            mini_batch=None if size.updates == 1 else size.prompts // size.updates,
            micro_batch=1024,
            learning_rate=size.lr,
            max_tokens=8,
            engine="transformers",
        ),
        budget=replace(e.budget, grid=grid),
        evaluation=configs.Evaluation(samples=size.samples, k=ks),
    )


def train(
    experiment: configs.Experiment,
    out: Path,
    *,
    seed: int,
    digits: Sequence[int] = (1, 2, 3),
    noise: float = 0.0,
    actor: tuple[int, str] | None = None,
) -> dict[str, Any]:
    """Train the embedded model and measure it on test prompts that are the same for all seeds and variants.

    Parameters
    ----------
    experiment : Experiment
        Of :func:`resized`.
    digits : sequence of int
        Lengths of the operands: how hard the prompts are.
    noise : float
        Standard deviation of Gaussian noise on the start weights, relative to that of each tensor: a weaker start model.
    actor : (int, str), optional
        Sampling weights that many generations old, rounded to that type.
    """
    import transformers

    from conformal_trl import CGRPOConfig, CGRPOTrainer

    from .. import models
    from ..arena.actor import stale

    transformers.utils.logging.set_verbosity_error()
    d = experiment.data
    data = arithmetic.splits(0, d.n_calibration, d.n_test, d.n_train, digits=digits)
    order = np.random.default_rng([seed, 7]).permutation(len(data.train))
    asks = experiment.budget.rule in ("conformal", "released")
    rule = policy(replace(experiment, data=replace(d, seed=seed)), True)
    experiment = replace(experiment, budget=replace(experiment.budget, grid=(*experiment.budget.grid[:-1], rule.k_max)))
    options = arguments(experiment, out, None, cpu=True, world=1, seed=seed)
    transformers.set_seed(seed)
    model, tokenizer = models.load("embedded")
    if noise:
        weaken(model, noise)
    kind = CGRPOTrainer if actor is None else stale(CGRPOTrainer, *actor)
    trainer = kind(
        model=model,
        reward_funcs=arithmetic.reward,
        args=CGRPOConfig(**options),
        train_dataset=arithmetic.to_dataset([data.train[i] for i in order]),
        calibration_dataset=arithmetic.to_dataset(data.calibration) if asks else None,
        processing_class=tokenizer,
        rollout_policy=rule,
        answer_fn=arithmetic.extract_answer,
        gold_column="answer",
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    history = [{"generated": r["generated"], "calibration": r["calibration"], "mean_k": r["mean_k"]} for r in trainer.ledger.history]
    measured = measure(trainer.model, tokenizer, data.eval, experiment.evaluation, seed + 1)
    return condense({"totals": trainer.ledger.totals(), "log": trainer.state.log_history, "policy": repr(rule), "history": history}) | {
        "test": measured
    }


def weaken(model: Any, noise: float) -> None:
    """Add Gaussian noise to every matrix of the model, relative to its own standard deviation; the same at every call."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p += noise * p.std() * torch.randn(p.shape, generator=generator)


def measure(model: Any, tokenizer: Any, problems: Sequence[Any], evaluation: configs.Evaluation, seed: int) -> dict[str, Any]:
    """Solved counts per prompt, pass@k and vote of every k, with their intervals over prompts."""
    from conformal_core import encode_answers

    from ..evaluate import sample_texts, statistics

    texts = sample_texts(model, tokenizer, [p["prompt"] for p in problems], evaluation.samples, seed=seed)
    codes, gold = encode_answers([[arithmetic.extract_answer(t) for t in row] for row in texts], [p["answer"] for p in problems])
    assert gold is not None
    passes = codes == gold[:, None]
    found = statistics(passes, evaluation.k, codes, gold, seed=seed)
    return {"counts": passes.sum(1).tolist(), "samples": evaluation.samples, **_plain(json.loads(found.to_json()))}


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """``{"pass": {k: [value, low, high]}, ..., "majority": {...}}`` of `evaluate.Measured` as JSON."""
    out: dict[str, Any] = {"majority": {str(k): v for k, v in found["majority"].items()}}
    for s in found["statistics"]:
        out.setdefault(s["statistic"], {})[str(s["k"])] = [s["value"], s["low"], s["high"]]
    return out


def condense(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the items read of a run, of this module or of ``run.json`` of the ``train`` command."""
    log = [entry for entry in run["log"] if "grad_norm" in entry]
    curves = [{"step": entry["step"], **{k: float(entry[k]) for k in CURVES if k in entry}} for entry in log]
    late = log[-max(1, len(log) // 10) :]
    totals = {k: v for k, v in run["totals"].items() if k != "audit"}
    deltas = [entry["policy/delta"] for entry in log if "policy/delta" in entry]
    mean_k = [entry["rollouts/mean_k"] for entry in late if "rollouts/mean_k" in entry]
    out = {
        "policy": run["policy"],
        "totals": totals,
        "audit": run["totals"].get("audit", {}),
        "delta0": deltas[0] if deltas else math.nan,
        "mean_k_end": float(np.mean(mean_k)) if mean_k else math.nan,
        "curves": curves[:: max(1, len(curves) // POINTS)],
    }
    spent = np.cumsum([h["generated"] for h in run.get("history", ())])
    out["spent"] = spent[:: max(1, len(spent) // POINTS)].tolist()
    if "test" in run:
        tests = {name: _plain(m) for name, m in run["test"].items()}
        out["test"] = _overall(tests)
        out["tests"] = tests
    return out


def _overall(tests: Mapping[str, Any]) -> dict[str, Any]:
    """The test that stands for a run: the mean of the three AIME years (CARM, Table 4) where they were measured, else the first."""
    years = [tests[name] for name in ("aime24", "aime25", "aime26") if name in tests]
    if len(years) < 3:
        return next(iter(tests.values()), {})
    shared = {name: set.intersection(*(set(y.get(name, {})) for y in years)) for name in years[0]}
    return {
        name: {k: [float(np.mean([y[name][k][0] for y in years])), math.nan, math.nan] for k in sorted(ks, key=int)}
        for name, ks in shared.items()
    }
