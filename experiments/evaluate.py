"""Batched sampling without a trainer, which responses pass the verifier, and the sampling statistics of both papers."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments import checks
from experiments.arithmetic import Problem, reward

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from carm_core import SamplingEstimate


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
    ValueError : samples, batch or max_new_tokens that are no integers of at least 1, a temperature that is no finite number above 0, a seed
        out of range, or a verifier that does not give one score to each response.
    """
    texts = sample_texts(
        model, tokenizer, [p["prompt"] for p in problems], samples, batch, seed, temperature=temperature, max_new_tokens=max_new_tokens
    )
    passes = np.zeros((len(problems), samples), dtype=bool)
    for i, (problem, responses) in enumerate(zip(problems, texts, strict=True)):
        scores = np.asarray(score(completions=responses, answer=[problem["answer"]] * samples), dtype=float)
        if scores.shape != (samples,):
            raise ValueError(f"score: got shape {scores.shape}; need ({samples},); because every response has one score")
        passes[i] = scores > 0
    return passes


def sample_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    samples: int,
    batch: int = 512,
    seed: int = 0,
    *,
    temperature: float = 1.0,
    max_new_tokens: int = 8,
    top_p: float = 1.0,
    top_k: int = 0,
) -> list[list[str]]:
    """``samples`` responses to each prompt, in the order of ``prompts``; arguments and errors as in `evaluate`.

    ``top_k`` (0: off) and ``top_p`` cut the tail of every next-token law before it is sampled, in this order.
    """
    import torch

    for name, value in (("samples", samples), ("batch", batch), ("max_new_tokens", max_new_tokens)):
        checks.whole(name, value, 1, "something must be sampled")
    checks.seed("seed", seed)
    checks.whole("top_k", top_k, 0, "it counts the tokens that are kept (0: all)")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature: got {temperature}; need a finite number > 0; because logits are divided by it")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: got {top_p}; need a number in (0, 1]; because the likeliest tokens of that mass are kept")
    texts: list[list[str]] = [[] for _ in prompts]
    order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
    step = max(1, batch // samples)
    generator = torch.Generator(model.device).manual_seed(seed)
    law = _Law(temperature, top_p, top_k)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(order), step):
                rows = order[start : start + step]
                tokens = _sample(model, tokenizer, [prompts[i] for i in rows], samples, law, max_new_tokens, generator)
                decoded = tokenizer.batch_decode(tokens, skip_special_tokens=True)
                for j, i in enumerate(rows):
                    texts[i] = decoded[j * samples : (j + 1) * samples]
    finally:
        model.train(training)
    return texts


@dataclass(frozen=True)
class Measured:
    """What a model does on a list of examples.

    Parameters
    ----------
    n, samples : examples, responses to each.
    statistics : pass@1 (Ave@samples), unbiased pass@k and all@k, best-of-k and worst-of-k with replacement, each with its interval.
    majority : for every k, the vote's accuracy with its interval over prompts; empty where responses have no answers to compare.
    """

    n: int
    samples: int
    statistics: tuple[SamplingEstimate, ...]
    majority: dict[int, tuple[float, float, float]]

    def to_json(self) -> str:
        """All fields as a JSON object."""
        rows = [json.loads(s.to_json()) for s in self.statistics]
        return json.dumps({"n": self.n, "samples": self.samples, "statistics": rows, "majority": self.majority})


def statistics(
    passes: np.ndarray,
    ks: Sequence[int],
    codes: np.ndarray | None = None,
    gold: np.ndarray | None = None,
    *,
    delta: str = "0.05",
    seed: int = 0,
) -> Measured:
    """The sampling statistics of ``passes`` (n, samples), and majority votes of the answer codes where there are some.

    Every interval is for the draw of prompts (`carm_core.mean_interval`), at level ``delta`` each.  Sources: CARM, Appendix G;
    C-GRPO, Section 5.1 (p@1 is Ave@32 at T = 1, p@k a majority vote for mathematics and best-of-k for code).

    Raises ``ValueError`` unless ``passes`` is (n, samples) of 0 and 1, neither of them 0 long, ``ks`` are one or more integers in
    1..samples, none twice, and codes and gold answers, both or neither, are of shapes (n, samples) and (n,).

    >>> import numpy as np
    >>> m = statistics(np.array([[True, False], [True, True]]), (1, 2))
    >>> [(s.statistic, s.k, round(s.value, 3)) for s in m.statistics][:3]
    [('pass', 1, 0.75), ('all', 1, 0.75), ('best', 1, 0.75)]
    """
    import carm_core

    passes, ks = _passes(passes), tuple(ks)
    n, samples = passes.shape
    whole = all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) and 1 <= k <= samples for k in ks)
    if not ks or not whole or len(set(ks)) < len(ks):
        raise ValueError(f"ks: got {list(ks)}; need integers in 1..{samples}, at least one and none twice; because k responses are drawn")
    if (codes is None) != (gold is None):
        given, missing = ("gold", "codes") if codes is None else ("codes", "gold")
        raise ValueError(f"{missing}: got None beside {given}; need both or neither; because a vote is compared with the gold answers")
    if codes is not None and gold is not None and (np.shape(codes), np.shape(gold)) != ((n, samples), (n,)):
        raise ValueError(
            f"codes: got shape {np.shape(codes)} and gold {np.shape(gold)}; need {(n, samples)} and {(n,)}; because passes has it"
        )
    correct = passes.sum(1)
    names = ("pass", "all", "best", "worst")
    rows = tuple(carm_core.sampling_estimate(correct, samples, k, name, delta=delta) for k in ks for name in names)
    majority = {}
    if codes is not None and gold is not None:
        for k in ks:
            votes = carm_core.majority_vote(codes, gold) if k == samples else carm_core.majority_at_k(codes, gold, k, seed=seed)
            majority[k] = (float(votes.mean()), *carm_core.mean_interval(votes, delta))
    return Measured(n, samples, rows, majority)


def _passes(passes: np.ndarray) -> np.ndarray:
    array = np.asarray(passes)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"passes: got shape {array.shape}; need (n, samples), both at least 1; because prompts are rows and responses columns"
        )
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise ValueError(f"passes: got {array.dtype} values other than 0 and 1; need booleans; because a response passes or does not")
    return array.astype(bool)


@dataclass(frozen=True)
class _Law:
    """Next-token law: temperature, then the ``top_k`` likeliest, then the smallest set of mass ``top_p``."""

    temperature: float
    top_p: float
    top_k: int

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.float() / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[..., -1:], float("-inf"))
        probabilities = logits.softmax(-1)
        if self.top_p < 1:
            ordered, index = probabilities.sort(descending=True)
            dropped = ordered.cumsum(-1) - ordered >= self.top_p
            probabilities = probabilities.masked_fill(dropped.scatter(-1, index, dropped), 0.0)
        return probabilities


def _sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    samples: int,
    law: _Law,
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
        token = torch.multinomial(law(logits), 1, generator=generator)[:, 0]
        live = live & ~torch.isin(token, ends)
        columns.append(torch.where(live, token, pad))
        if len(columns) == max_new_tokens or not live.any():
            return torch.stack(columns, 1)
        position = position + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        output = model(columns[-1][:, None], attention_mask=mask, position_ids=position, use_cache=True, **{cache_argument: cache})
        logits = output.logits[:, -1]
