"""Log-ratios of real responses: sampled by rounded weights, scored by weights some updates later, with no mask in between.

Short responses of the embedded model are sampled by bfloat16 weights, long ones of SmolLM2 by eight-bit weights, as engines with quantised
rollouts do: with bfloat16 weights no mean absolute log-ratio of its 16 responses exceeds
log 1.0125, so CARM at 1.02 rejects none, and there is no response that GeoMean alone accepts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import arithmetic
from ..arena.actor import rounded
from .source import Source, Variant

__all__ = ["SOURCE", "TAUS"]

#: Shared thresholds of the rejection curves, ratios.
TAUS = (1.0025, 1.005, 1.01, 1.02, 1.03, 1.04, 1.06, 1.1, 1.2)
SIZES = {
    "small": {
        "prompts": 128,
        "group": 8,
        "updates": 8,
        "lr": 1e-4,
        "long_prompts": 16,
        "long_tokens": 256,
        "long_updates": 3,
        "long_lr": 3e-7,
    },
    "tiny": {"prompts": 8, "group": 4, "updates": 2, "lr": 1e-4, "long_prompts": 2, "long_tokens": 16, "long_updates": 1, "long_lr": 1e-4},
}
LONG = (
    "Explain step by step how to add 478 and 256.",
    "A shop sells pens at 3 coins each. How many pens can you buy with 20 coins, and what is left? Think aloud.",
    "Describe how rain forms, from the sea to the cloud and back.",
    "List the first twenty even numbers and say why each is even.",
    "Tell a short story about a fox that counts its steps.",
    "How would you check that 91 is not a prime number? Write out every step.",
    "Write a recipe for bread, with amounts and times.",
    "What happens when water boils? Explain to a child, slowly.",
)


def _eight_bits(state: dict[str, Any]) -> dict[str, Any]:
    """The same weights with the matrices of the layers rounded to 255 levels a row, and all else to bfloat16."""
    import torch

    out = rounded(state, "bfloat16")
    for name, value in state.items():
        if value.is_floating_point() and value.ndim == 2 and "embed" not in name and "lm_head" not in name:
            step = value.detach().abs().amax(-1, keepdim=True).clamp(min=torch.finfo(value.dtype).tiny) / 127
            out[name] = (value.detach() / step).round() * step
    return out


def _logps(model: Any, ids: Any, mask: Any, width: int) -> Any:
    """``(B, width)`` log-probabilities of the last ``width`` tokens."""
    import torch

    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions, logits_to_keep=width + 1, use_cache=False).logits[:, :-1].float()
    return torch.log_softmax(logits, -1).gather(2, ids[:, -width:, None])[..., 0]


def _scored(model: Any, ids: Any, mask: Any, width: int) -> Any:
    """`_logps` without a graph, about a thousand tokens at once: logits over a large vocabulary are big."""
    import torch

    rows = max(1, 1024 // width)
    with torch.no_grad():
        return torch.cat([_logps(model, i, m, width) for i, m in zip(ids.split(rows), mask.split(rows), strict=True)])


def _replay(
    model: Any,
    tokenizer: Any,
    prompts: list[str],
    reward: Any,
    rounding: Any,
    *,
    tokens: int,
    updates: int,
    lr: float,
    seed: int,
    group: int,
) -> dict[str, Any]:
    """Sample with weights made by ``rounding``, take one policy-gradient step on each of ``updates`` parts, score all responses again."""
    import torch

    from carm_core import group_advantages, log_ratio

    torch.manual_seed(seed)
    now = {k: v.detach().clone() for k, v in model.state_dict().items()}
    encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    model.load_state_dict(rounding(now))
    with torch.no_grad():
        ids = model.generate(**encoded, max_new_tokens=tokens, do_sample=True, top_k=0, top_p=1.0, temperature=1.0)
    width = ids.shape[1] - encoded["input_ids"].shape[1]
    new = ids[:, -width:]
    ended = (new == tokenizer.eos_token_id).cumsum(1)
    live = (ended - (new == tokenizer.eos_token_id).long()) == 0
    mask = torch.cat([encoded["attention_mask"], live.long()], 1)
    texts = tokenizer.batch_decode(new, skip_special_tokens=True)
    old = _scored(model, ids, mask, width)
    model.load_state_dict(now)
    rewards = reward(texts)
    advantages = torch.from_numpy(group_advantages(np.asarray(rewards).reshape(-1, group)).reshape(-1).astype(np.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for part in torch.from_numpy(np.random.default_rng(seed).permutation(len(ids))).chunk(updates):
        ratio = torch.exp(_logps(model, ids[part], mask[part], width) - old[part])
        loss = -(ratio * advantages[part, None] * live[part]).sum() / live[part].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    current = _scored(model, ids, mask, width)
    z = log_ratio(current.double().numpy(), old.double().numpy(), live.numpy()).z
    return {
        "z": z,
        "live": live.numpy(),
        "tokens": [[tokenizer.decode([t]) for t in row] for row in new.tolist()],
        "rewards": list(rewards),
    }


def run(variant: str, seed: int, scale: str, folder: Path) -> dict[str, Any]:
    """The batch of short responses, or long ones of which the most cancelling is kept token by token."""
    from carm_core import CARM, GeoMean, paired_decisions, rejection_curve, response_scores

    from .. import models

    s = SIZES[scale]
    if variant == "batch":
        model, tokenizer = models.load("embedded")
        rows = [r for r in arithmetic.make_problems(s["prompts"], seed, (1, 2, 3), pool="fresh") for _ in range(s["group"])]

        def graded(texts: list[str]) -> list[float]:
            return arithmetic.reward(texts, [r["answer"] for r in rows])

        how = {"tokens": 8, "updates": s["updates"], "lr": s["lr"], "seed": seed, "group": s["group"]}
        found = _replay(model, tokenizer, [r["prompt"] for r in rows], graded, partial(rounded, dtype="bfloat16"), **how)
    else:
        model, tokenizer = models.load("smollm2" if scale == "small" else "embedded")
        asked = [LONG[i % len(LONG)] for i in range(s["long_prompts"])]
        if scale == "small":
            asked = [
                tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True) for p in asked
            ]
        else:
            asked = [f"{i}+{i}=" for i in range(s["long_prompts"])]

        def longest(texts: list[str]) -> list[float]:
            words = np.array([len(t.split()) for t in texts])
            return (words > np.median(words)).astype(float).tolist()

        how = {"tokens": s["long_tokens"], "updates": s["long_updates"], "lr": s["long_lr"], "seed": seed, "group": len(asked)}
        found = _replay(model, tokenizer, asked, longest, _eight_bits, **how)
    scores = response_scores(found["z"], found["live"])
    d, g = np.asarray(scores.d), np.asarray(scores.geomean)
    length = np.asarray(scores.length)
    pair = paired_decisions(GeoMean(1.005).keep(found["z"], found["live"]), CARM(1.02).keep(found["z"], found["live"]), scores.empty)
    out: dict[str, Any] = {
        "d": d.round(7).tolist(),
        "geomean": g.round(7).tolist(),
        "length": length.tolist(),
        "pair": [pair.both, pair.neither, pair.only_first, pair.only_second],
        "rejected": {"CARM": rejection_curve(d, TAUS).tolist(), "GeoMean": rejection_curve(g, TAUS).tolist()},
    }
    if variant == "long":
        only = (g <= np.log(1.005)) & (d > np.log(1.02))
        i = int(np.argmax(np.where(only if only.any() else d > 0, (d - g) / np.maximum(d, 1e-12), -1.0)))
        n = int(length[i])
        out["chosen"] = {"z": found["z"][i][:n].tolist(), "tokens": found["tokens"][i][:n], "geomean_only": bool(only.any())}
    return out


def settings(scale: str) -> dict[str, Any]:
    """Held equal over all variants."""
    return SIZES.get(scale, {"configurations": "as shipped"}) | {"taus": list(TAUS), "long_weights": "8 bits a row"}


_WHY = "train with mask.rule = none, dump a rollout batch, and replay it: rollout-audit --masks reads what verl and TRL dump"
SOURCE = Source("responses", {"batch": Variant(0.3, why=_WHY), "long": Variant(2.0, why=_WHY)}, settings, run)
