"""Code: SmolLM2 on one-line functions, every response run against its tests in the sandbox."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import configs
from ..train import override, small, train, verifier
from .mask_runs import CONFIGS, MASKS
from .source import Source, Variant
from .training import condense

__all__ = ["SOURCE"]

SIZES = {
    "small": {"model": "smollm2", "problems": 30, "samples": 16, "tokens": 48, "steps": 8, "n_test": 30},
    "tiny": {"model": "embedded", "problems": 4, "samples": 4, "tokens": 4, "steps": 2, "n_test": 4},
}
TRAINED = ("Null", "GeoMean 1.005", "CARM 1.025")


def run(variant: str, seed: int, scale: str, folder: Path) -> dict[str, Any]:
    """Responses of the start model, or a short training with a mask."""
    s = SIZES[scale]
    return _sampled(s, seed) if variant == "start" else _trained(variant, s, seed, folder)


def _sampled(s: dict[str, Any], seed: int) -> dict[str, Any]:
    from .. import models
    from ..evaluate import sample_texts
    from ..tasks import load, task
    from ..tasks.prompts import columns

    check = verifier("function")  # refuses before the model is loaded where code cannot be isolated
    rows = load("small_functions", size=s["problems"], seed=seed)
    model, tokenizer = models.load(s["model"])
    chat = s["model"] == "smollm2"
    prompts = columns(task("small_functions"), rows, chat=chat)["prompt"]
    if chat:
        prompts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    texts = sample_texts(model, tokenizer, prompts, s["samples"], 64, seed, max_new_tokens=s["tokens"])
    scores = check.reward(
        completions=[t for row in texts for t in row], answer=[r.answer for r in rows for _ in range(s["samples"])]
    )  # fmt: skip
    passes = (np.asarray(scores) > 0).reshape(len(rows), s["samples"])
    return {"passes": passes.astype(int).tolist()}


def _trained(variant: str, s: dict[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    mask = MASKS[variant]
    e = small(override(configs.read(CONFIGS["code"]), mask.sets), s["model"])
    data = replace(e.data, n_test=s["n_test"])
    update = replace(e.update, learning_rate=1e-4, max_tokens=s["tokens"])
    model = replace(e.model, lora=configs.Lora()) if s["model"] == "smollm2" else e.model
    e = replace(e, model=model, data=data, update=update, evaluation=configs.Evaluation(4, (1, 4), 1.0))
    out = folder / f"code.{variant.replace(' ', '-')}.seed{seed}"
    return condense(train(e, out, max_steps=s["steps"], seed=seed, report=f"reproduce {time.time():.0f}"))


def settings(scale: str) -> dict[str, Any]:
    """Held equal over all variants."""
    return SIZES.get(scale, {"configurations": "as shipped"})


_WHY = "at paper scale these are the runs masks/code/*, and cgrpo/*/HumanEval and cgrpo/*/MBPP"
SOURCE = Source("code", {"start": Variant(2.0, why=_WHY), **{name: Variant(3.0, why=_WHY) for name in TRAINED}}, settings, run)
