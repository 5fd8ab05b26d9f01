"""Losses of ragged batches from their definitions: one row at a time, no padding, no TRL."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

TOKEN_COUNT = ("dapo", "cispo", "vespo")


@dataclass
class Weighed:
    """One trained response."""

    prompt: list[int]
    completion: list[int]
    advantage: float
    sampling: list[float]
    old: list[float] | None
    ref: list[float] | None = None
    live: list[int] | None = None


def logps_and_entropy(model, prompt, completion, temperature=1.0):
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1] / temperature
    table = torch.log_softmax(logits, -1)
    return table.gather(1, torch.tensor(completion)[:, None])[:, 0], -(table.exp() * table).sum(-1)


def vespo_weight(log_ratio, advantage, args):
    k, lam = (args.vespo_k_pos, args.vespo_lambda_pos) if advantage >= 0 else (args.vespo_k_neg, args.vespo_lambda_neg)
    log_w = min(max(float(log_ratio.detach().clamp(-20, 20).sum()), math.log(1e-8)), 20.0)
    return math.exp(lam + k * log_w - lam * math.exp(log_w))


def importance(args, logps, old):
    """Ratio of each token, or of the response at each token."""
    log_ratio = logps - old
    return torch.exp(log_ratio if args.importance_sampling_level == "token" else log_ratio.mean().expand_as(log_ratio))


def policy_terms(args, logps, old, advantage):
    """Per-token loss of one response."""
    log_ratio, weight = logps - old, importance(args, logps, old)
    low, high = args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high
    if args.loss_type == "cispo":
        return -weight.clamp(max=high).detach() * advantage * logps
    if args.loss_type == "sapo":
        temperature = args.sapo_temperature_pos if advantage > 0 else args.sapo_temperature_neg
        return -torch.sigmoid(temperature * (weight - 1)) * 4 / temperature * advantage
    if args.loss_type == "vespo":
        return -vespo_weight(log_ratio, advantage, args) * advantage * logps
    return -torch.min(weight * advantage, weight.clamp(1 - low, 1 + high) * advantage)


def window_loss(model, args, micro_batches, generation_tokens, rule=None, retained=False):
    """Loss of one optimizer step on the given micro-batches of :class:`Weighed` rows."""
    total, rows = torch.zeros(()), sum(len(b) for b in micro_batches)
    kept_rows = kept_tokens = 0
    parts = []
    for batch in micro_batches:
        sums = []
        for row in batch:
            logps, entropy = logps_and_entropy(model, row.prompt, row.completion, args.temperature)
            live = torch.tensor(row.live if row.live is not None else [1] * len(row.completion)).bool()
            logps, entropy = logps[live], entropy[live]
            old = logps.detach() if row.old is None else torch.tensor(row.old)[live]
            keep = True
            if rule is not None:
                z = (logps.detach() - torch.tensor(row.sampling)[live]).numpy().astype(np.float32)[None]
                keep = bool(rule.keep(z, np.ones_like(z), np.array([row.advantage], np.float32))[0])
            term = policy_terms(args, logps, old, row.advantage) if keep else torch.zeros_like(logps)
            kept_rows, kept_tokens = kept_rows + keep, kept_tokens + keep * len(logps)
            kl = torch.zeros_like(logps)
            if row.ref is not None:
                gap = torch.tensor(row.ref)[live] - logps
                kl = args.beta * (torch.exp(gap) - gap - 1)
                kl = kl * importance(args, logps, old) if args.use_bias_correction_kl else kl
            sums.append((term, kl, entropy, keep))
        parts.append(sums)
    share = args.gradient_accumulation_steps / args.steps_per_generation
    for sums in parts:
        if not sums:
            continue
        tokens = sum(len(t) for t, *_ in sums)
        kept_here = sum(len(t) for t, _, _, keep in sums if keep)
        for term, kl, entropy, _ in sums:
            if args.loss_type in ("grpo", "sapo"):
                norm, kept = len(term) * rows, len(term) * kept_rows
            elif args.loss_type == "luspo":
                norm, kept = rows, kept_rows
            elif args.loss_type == "dr_grpo":
                norm, kept = rows * args.max_completion_length, kept_rows * args.max_completion_length
            elif args.loss_type == "bnpo":
                norm, kept = tokens * rows / len(sums), max(kept_here, 1) * rows / len(sums)
            else:
                norm, kept = generation_tokens * share, kept_tokens
            total = total + term.sum() / max(kept if retained else norm, 1e-9) + kl.sum() / norm
            total = total - args.entropy_coef * entropy.sum() / tokens * len(sums) / rows
    return total
