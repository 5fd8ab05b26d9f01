"""Train and save the embedded model: ``python -m experiments.build_model``.

A character-level Llama (361,920 parameters) learns additions by supervised steps and is stopped while it still fails on many, so that
reinforcement learning has something to do: its solve rates spread from 0 to 1. It never sees a problem of the ``fresh`` pool.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from experiments.arithmetic import draw_pairs, make_problems, pool_of
from experiments.evaluate import evaluate
from experiments.models import ASSETS, character_tokenizer, load

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STEPS = 450
BATCH = 256
LEARNING_RATE = 2e-3
SEED = 0
SHARES = (0.46, 0.48, 0.06)  # of one-, two- and three-digit operands in the supervised training
EDGES = (0.0, 1e-9, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0 - 1e-9, 1.0)


def new_model(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The untrained network, from torch's global random state."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        **special,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **special)
    return model


def supervised_pairs(rng: np.random.Generator, n: int) -> list[tuple[int, int]]:
    """``n`` operand pairs of the supervised pool, repeats allowed, numbers of digits by ``SHARES``."""
    pairs: list[tuple[int, int]] = []
    while len(pairs) < n:
        drawn = draw_pairs(rng, 2 * (n - len(pairs)) + 16, shares=SHARES).tolist()
        pairs += [(a, b) for a, b in drawn if pool_of(f"{a}+{b}=") == "supervised"]
    return pairs[:n]


def encode(tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input ids, attention mask and labels (batch, length), padded on the right; labels are -100 except on the answer and its end token."""
    import torch

    prompts = [f"{a}+{b}=" for a, b in pairs]
    texts = [f"{prompt}{a + b}{tokenizer.eos_token}" for prompt, (a, b) in zip(prompts, pairs, strict=True)]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")
    column = torch.arange(batch["input_ids"].shape[1])
    answers = (column >= torch.tensor([[len(prompt)] for prompt in prompts])) & batch["attention_mask"].bool()
    return batch["input_ids"], batch["attention_mask"], batch["input_ids"].where(answers, torch.tensor(-100))


def train(steps: int = STEPS, seed: int = SEED, every: int = 100) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Supervised training; a line of progress every ``every`` steps. Learning rate: 50 steps of warm-up, then linear decay to 0."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = character_tokenizer()
    model = new_model(tokenizer).train()
    pairs = supervised_pairs(np.random.default_rng(seed), steps * BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / 50, (steps - i) / max(1, steps - 50), 1.0))
    held_out = make_problems(200, seed=seed + 1, pool="fresh")
    started = time.perf_counter()
    for step in range(steps):
        ids, mask, labels = encode(tokenizer, pairs[step * BATCH : (step + 1) * BATCH])
        loss = model(ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % every == 0:
            rates = evaluate(model, tokenizer, held_out, samples=32).mean(1)
            print(f"step {step + 1}  {time.perf_counter() - started:.0f} s  loss {loss.item():.3f}  {describe(rates)}", flush=True)
    return model.eval(), tokenizer


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights (bfloat16 safetensors), configuration and tokenizer."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def describe(rates: np.ndarray) -> str:
    """Mean, tails and histogram of solve rates, in one line."""
    counts, _ = np.histogram(rates, EDGES)
    bins = ["0", "(0,.1)", "[.1,.2)", "[.2,.4)", "[.4,.6)", "[.6,.8)", "[.8,.9)", "[.9,1)", "1"]
    tails = f"mean {rates.mean():.3f}  below .2: {(rates < 0.2).mean():.2f}  above .8: {(rates > 0.8).mean():.2f}"
    return tails + "  " + "  ".join(f"{label}: {count}" for label, count in zip(bins, counts, strict=True))


def main(argv: list[str] | None = None) -> None:
    """Train, save, reload, and print the solve rates of the saved file."""
    parser = argparse.ArgumentParser(prog="python -m experiments.build_model", description="Train and save the embedded model.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=ASSETS)
    options = parser.parse_args(argv)
    save(*train(options.steps, options.seed), options.out)
    model, tokenizer = load(str(options.out))
    rates = evaluate(model, tokenizer, make_problems(1000, seed=options.seed + 2), samples=32).mean(1)
    print(describe(rates))


if __name__ == "__main__":
    main()
