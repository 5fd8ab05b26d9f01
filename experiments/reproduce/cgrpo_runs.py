"""The runs behind C-GRPO's tables: every model and benchmark, every rule, and the ablations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import configs
from ..train import override
from .source import Source, Variant
from .training import Size, resized, train

__all__ = ["DATASETS", "MODELS", "RULES", "SOURCE"]

#: Name in the tables -> configuration.
DATASETS = {
    "GSM8K": "gsm8k",
    "MATH-500": "math500",
    "MATH-Algebra": "math_algebra",
    "GPQA-Diamond": "gpqa_diamond",
    "HumanEval": "humaneval",
    "MBPP": "mbpp",
}
MODELS = {"Qwen": "qwen2.5-7b", "Llama": "llama3.1-8b", "Gemma": "gemma3-4b"}
#: Digits of the additions that stand in for a benchmark; the others have no stand-in here.
DIGITS = {"GSM8K": (1, 2, 3), "MATH-500": (2, 3), "MATH-Algebra": (1, 2)}
#: Relative noise on the start weights that stands in for a weaker model; there is none for a stronger one.
NOISE = {"Qwen": 0.0, "Gemma": 0.1}

SIZES = {
    "small": Size(300, 4, 1, 200, 2000, 400, 32, 1e-4),
    "tiny": Size(2, 2, 1, 20, 40, 10, 4, 1e-4, cap=4),
}


@dataclass(frozen=True)
class Rule:
    """One rule on one benchmark: settings of the configuration."""

    sets: tuple[str, ...] = ()
    minutes: float = 1.3
    seeds: int = 2
    dataset: str = "GSM8K"
    model: str = "Qwen"
    steps: int | None = None


def _fixed(k: int, minutes: float, seeds: int = 3, **rest: Any) -> Rule:
    return Rule(('budget.rule="fixed"', f"budget.grid=[{k}]"), minutes=minutes, seeds=seeds, **rest)


def _baseline(name: str, grid: tuple[int, ...] = (2, 4, 8, 16, 32)) -> Rule:
    return Rule((f'budget.rule="{name}"', f"budget.grid={list(grid)}"), minutes=0.8)


#: Every variant; the plain ones are named ``MODEL/DATASET``.
RULES: dict[str, Rule] = {f"{model}/{dataset}": Rule(dataset=dataset, model=model) for model in MODELS for dataset in DATASETS}
RULES |= {
    "Qwen/GSM8K": Rule(seeds=3),
    **{
        name: Rule(dataset=name.split("/")[1], model=name.split("/")[0], seeds=1)
        for name in ("Qwen/MATH-Algebra", "Gemma/GSM8K", "Gemma/MATH-500")
    },
    "released": Rule(('budget.rule="released"',), seeds=3),
    "fixed-2": _fixed(2, 0.3, 2),
    "fixed-8": _fixed(8, 0.5),
    "fixed-10": _fixed(10, 0.6),
    "fixed-16": _fixed(16, 0.7),
    "fixed-32": _fixed(32, 1.0),
    "fixed-128": _fixed(128, 3.0, 1),
    "fixed-16-MATH-500": _fixed(16, 0.7, 2, dataset="MATH-500"),
    "fixed-32-MATH-500": _fixed(32, 1.0, 2, dataset="MATH-500"),
    "GDRO": _baseline("gdro-prompt"),
    "AERO": _baseline("aero"),
    "GRESO": _baseline("greso", (16,)),
    "Reinforce-Ada": _baseline("ada-seq"),
    "Reinforce-Est": _baseline("ada-est", (2, 16, 32)),
    "delta-0.05": Rule(('budget.delta="0.05"',)),
    "delta-0.20": Rule(('budget.delta="0.20"',)),
    "bonferroni": Rule(('budget.multiplicity="bonferroni"',)),
    "recalibrate-25": Rule(("budget.recalibrate_every=25",), minutes=1.8),
    "recalibrate-100": Rule(("budget.recalibrate_every=100",), minutes=1.1),
    "recalibrate-never": Rule(("budget.recalibrate_every=100000",), minutes=1.0),
    "grid-coarse": Rule(("budget.grid=[2,8,32]",)),
    "grid-fine": Rule(("budget.grid=[1,2,4,8,16,32]",)),
    "long": Rule(("update.steps=1000",), minutes=4.4, seeds=1, steps=1000),
    "long-fixed-32": Rule(('budget.rule="fixed"', "budget.grid=[32]", "update.steps=1000"), minutes=3.0, seeds=1, steps=1000),
}


def _small(rule: Rule) -> bool:
    return rule.dataset in DIGITS and rule.model in NOISE


def config(rule: Rule) -> str:
    """Name of the paper's configuration."""
    return f"cgrpo/{MODELS[rule.model]}-{DATASETS[rule.dataset]}"


def command(rule: Rule) -> tuple[str, ...]:
    """The paper-scale command, ``{seed}`` and ``{out}`` open."""
    sets = "".join(f" --set '{s}'" for s in rule.sets)
    return (f"torchrun --nproc_per_node 1 -m experiments train --config {config(rule)}{sets} --seed {{seed}} --report paper --out {{out}}",)


def _variant(rule: Rule) -> Variant:
    return Variant(rule.minutes, rule.seeds if _small(rule) else 0, command(rule), 1)


def settings(scale: str) -> dict[str, Any]:
    """Held equal over all variants."""
    return vars(SIZES[scale]) if scale in SIZES else {"configurations": "as shipped"}


def run(variant: str, seed: int, scale: str, folder: Path) -> dict[str, Any]:
    """Train one variant at a small scale."""
    rule, size = RULES[variant], SIZES[scale]
    if rule.steps and scale == "small":
        size = Size(**{**vars(size), "steps": rule.steps})
    sets = tuple(s for s in rule.sets if not s.startswith("update.steps"))
    experiment = resized(override(configs.read(config(rule)), sets), size)
    return train(experiment, folder, seed=seed, digits=DIGITS[rule.dataset], noise=NOISE[rule.model])


SOURCE = Source("cgrpo", {name: _variant(rule) for name, rule in RULES.items()}, settings, run)
