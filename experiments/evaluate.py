"""Batched sampling without a trainer: which of ``samples`` responses to each problem pass the verifier."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.arithmetic import Problem, reward

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    samples: int = 8,
    batch: int = 512,
    seed: int = 0,
    *,
    temperature: float = 1.0,
    max_new_tokens: int = 8,
    score: Callable[..., list[float]] = reward,
) -> np.ndarray:
    """Sample ``samples`` responses per problem and verify them; ``passes.mean()`` is pass@1, ``passes.mean(1)`` the solve rates.

    Parameters
    ----------
    model, tokenizer : as `experiments.models.load` gives them; the model's training mode and torch's global random state are left alone.
    problems : dicts with ``prompt`` and ``answer``.
    samples : responses per problem.
    batch : responses sampled at once (a multiple of ``samples`` at least ``samples`` is used).
    seed : seed of the sampling; the result is a pure function of weights, arguments and thread count.
    temperature : softmax temperature; neither top-k nor top-p is applied.
    max_new_tokens : longest response, in tokens.
    score : verifier with the signature of `experiments.arithmetic.reward`; a response passes when its score is positive.

    Returns
    -------
    bool array (n, samples), rows in the order of ``problems``.

    Raises
    ------
    ValueError : samples, batch or max_new_tokens below 1, or a temperature that is not positive.
    """
    import torch

    for name, value in (("samples", samples), ("batch", batch), ("max_new_tokens", max_new_tokens)):
        if value < 1:
            raise ValueError(f"{name}: got {value}; need an integer >= 1; because something must be sampled")
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature}; need a number > 0; because logits are divided by it")
    passes = np.zeros((len(problems), samples), dtype=bool)
    order = np.argsort([len(problem["prompt"]) for problem in problems], kind="stable")
    step = max(1, batch // samples)
    generator = torch.Generator(model.device).manual_seed(seed)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(order), step):
                rows = order[start : start + step]
                prompts = [problems[i]["prompt"] for i in rows]
                tokens = _sample(model, tokenizer, prompts, samples, temperature, max_new_tokens, generator)
                texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
                answers = [problems[i]["answer"] for i in rows for _ in range(samples)]
                scores = score(completions=texts, answer=answers)
                passes[rows] = (np.asarray(scores, dtype=float) > 0).reshape(len(rows), samples)
    finally:
        model.train(training)
    return passes


def _sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    samples: int,
    temperature: float,
    max_new_tokens: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Token ids (len(prompts) * samples, <= max_new_tokens), the samples of a prompt adjacent; everything from the end token on is pad."""
    import torch

    # newer transformers call it cache and warn about the old name
    cache_argument = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    pad = tokenizer.pad_token_id
    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    ends = torch.as_tensor(ends, device=model.device).reshape(-1)
    encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
    mask = encoded["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = model(encoded["input_ids"], attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    cache = output["cache" if "cache" in output else "past_key_values"]
    cache.batch_repeat_interleave(samples)
    logits = output.logits[:, -1].repeat_interleave(samples, 0)
    mask = mask.repeat_interleave(samples, 0)
    position = positions[:, -1:].repeat_interleave(samples, 0)
    live = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    columns = []
    while True:
        token = torch.multinomial((logits.float() / temperature).softmax(-1), 1, generator=generator)[:, 0]
        live = live & ~torch.isin(token, ends)
        columns.append(torch.where(live, token, pad))
        if len(columns) == max_new_tokens or not live.any():
            return torch.stack(columns, 1)
        position = position + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        output = model(columns[-1][:, None], attention_mask=mask, position_ids=position, use_cache=True, **{cache_argument: cache})
        logits = output.logits[:, -1]
