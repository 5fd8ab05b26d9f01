"""Every TRL loss on ragged batches equals the loss computed row by row, with every gradient."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import trl.trainer.grpo_trainer as grpo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PrinterCallback

from conformal_trl import CGRPOConfig, CGRPOTrainer
from conformal_trl.masks import make_rule
from tests.conformal_trl.reference import Weighed, logps_and_entropy, window_loss
from tests.conformal_trl.test_true_cost import Scripted

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")
K = 4


def test_the_losses_are_all_that_trl_has():
    source = Path(grpo.__file__).read_text()
    body = source[source.index("def _compute_loss") : source.index("def prediction_step")]
    named = set(re.findall(r'self\.loss_type == "(\w+)"', body))
    named |= {name for listed in re.findall(r"self\.loss_type in \[([^\]]*)\]", body) for name in json.loads(f"[{listed}]")}
    assert named == set(LOSSES)


class Rollout:
    """A ``rollout_func``: random responses with log-probabilities that are the model's own, moved by a random drift per response."""

    def __init__(self, tokenizer, seed, drift):
        self.tokenizer, self.rng, self.drift = tokenizer, np.random.default_rng(seed), drift

    def __call__(self, prompts, trainer):
        prompt_ids = self.tokenizer(text=list(prompts))["input_ids"]
        out = {"prompt_ids": prompt_ids, "completion_ids": [], "logprobs": []}
        for prompt in prompt_ids:
            completion = self.rng.integers(4, 14, int(self.rng.integers(1, 6))).tolist() + [2] * int(self.rng.random() < 0.7)
            with torch.no_grad():
                own = logps_and_entropy(trainer.model, prompt, completion)[0].numpy()
            scale = self.drift * self.rng.choice([0.0, 0.05, 1.0])
            out["completion_ids"].append(completion)
            out["logprobs"].append((own + scale * self.rng.standard_normal(len(completion))).astype(np.float32).tolist())
        return out


def reward(completion_ids, **_):
    return [float(sum(ids) % 3) for ids in completion_ids]


def run(model, tokenizer, dataset, seed=0, counts=(4, 2, 3, 4), drift=0.3, reward_funcs=reward, trainer_kwargs=None, **overrides):
    """One optimizer step with the model at rest: trainer, first window's loss, gradients, and the parts it trained on."""
    model.double()  # what is left is the difference of definitions, and the float32 of TRL's fused head
    parts, rollout = overrides.pop("parts", 1), overrides.pop("rollout", None)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        defaults = dict(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", report_to="none",
            disable_tqdm=True, num_generations=K, steps_per_generation=parts, per_device_train_batch_size=K * len(counts) // parts,
            max_completion_length=7, max_steps=1, learning_rate=0.0, max_grad_norm=1e9, num_iterations=2, seed=seed,
        )  # fmt: skip
        config = CGRPOConfig(**(defaults | overrides))
        trainer = CGRPOTrainer(
            model, reward_funcs, config, dataset, processing_class=tokenizer, rollout_policy=Scripted(counts, K),
            rollout_func=rollout or Rollout(tokenizer, seed, drift), **(trainer_kwargs or {}),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        losses, gradients, groups = [], {}, []
        compute, roll = trainer._compute_loss, trainer.rollouts.roll_out
        trainer._compute_loss = lambda m, i: losses.append(compute(m, i)) or losses[-1]
        trainer.rollouts.roll_out = lambda *a: groups.append(roll(*a)) or groups[-1]
        trainer.create_optimizer()
        trainer.optimizer.register_step_pre_hook(
            lambda *a, **k: gradients.update({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})
        )
        trainer.train()
    return trainer, float(sum(loss.detach() for loss in losses)), gradients, groups[0][0]


def weighed(part):
    """Rows of a micro-batch, unpadded."""
    rows = []
    for i in range(part["advantages"].numel()):
        live = part["completion_mask"][i].bool()
        take = {k: part[k][i][live].tolist() for k in ("completion_ids", "sampling_per_token_logps", "old_per_token_logps",
                                                       "ref_per_token_logps", "tool_mask") if k in part}  # fmt: skip
        rows.append(
            Weighed(
                part["prompt_ids"][i][part["prompt_mask"][i].bool()].tolist(), take["completion_ids"], float(part["advantages"][i]),
                take["sampling_per_token_logps"], take.get("old_per_token_logps"), take.get("ref_per_token_logps"), take.get("tool_mask"),
            )
        )  # fmt: skip
    return rows


def check(model, trainer, loss, gradients, **kwargs):
    """The window's loss and gradients against the reference."""
    args, parts = trainer.args, trainer._buffered_inputs
    batches = [weighed(part) for part in parts]
    tokens = sum(len(r.completion) if r.live is None else sum(r.live) for b in batches for r in b)
    model.zero_grad()
    expected = window_loss(model, args, batches[: args.gradient_accumulation_steps], tokens, **kwargs)
    # cispo and vespo sum log-probabilities of some nats, in the float32 of TRL's fused head, that cancel over the group
    assert loss == pytest.approx(float(expected.detach()), abs=5e-6 if args.loss_type in ("cispo", "vespo") else 1e-6, rel=1e-6)
    if expected.requires_grad:
        expected.backward()
    both = [(gradients[n], p.grad) for n, p in model.named_parameters() if n in gradients and p.grad is not None]
    if both:
        ours, theirs = (torch.cat([pair[side].flatten() for pair in both]).double() for side in (0, 1))
        assert float((ours - theirs).abs().max()) <= 1e-6 * max(1.0, float(theirs.abs().max()))
    return len(both)


def advantages_by_hand(groups, scale, prune):
    """(completion, advantage) of every response that should train."""
    rewards = [np.array([r.total for r in g.responses]) for g in groups]
    every, out = np.concatenate(rewards), []
    for group, values in zip(groups, rewards, strict=True):
        varies = len(set(values.tolist())) > 1
        if prune and not varies:
            continue
        std = {"group": values.std(ddof=1) if varies else 0.0, "batch": every.std(ddof=1), "none": None}[scale]
        advantage = (values - values.mean()) / (1.0 if std is None else std + 1e-4)
        out += [(tuple(r.ids.tolist()), round(float(a), 4)) for r, a in zip(group.responses, advantage, strict=True)]
    return sorted(out)


CASES = dict(
    loss_type=st.sampled_from(LOSSES),
    scale=st.sampled_from(["group", "batch", "none"]),
    window=st.sampled_from([(1, 1), (2, 2), (4, 4), (4, 2), (4, 1), (2, 1)]),
    prune=st.sampled_from(["zero_variance", "none"]),
    mask=st.sampled_from(["none", "no_mask", "carm", "geomean", "trm", "trm_mean", "mean_exp_abs", "opsm"]),
    retained=st.booleans(),
    level=st.sampled_from(["token", "sequence"]),
    counts=st.lists(st.integers(1, K), min_size=4, max_size=4),
    seed=st.integers(0, 10**6),
)
HOUSE = dict(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def ragged_loss_and_gradients(model, tokenizer, dataset, loss_type, scale, window, prune, mask, retained, level, counts, seed):
    parts, accumulation = window
    retained = retained and accumulation == 1 and mask != "none"
    thresholds = {"carm": 1.05, "geomean": 1.01, "mean_exp_abs": 1.05, "opsm": 0.02}
    drift = 0.05 if loss_type == "vespo" else 0.3  # vespo's weight multiplies the rounding of log w by |k - lambda w|
    trainer, loss, gradients, groups = run(
        model, tokenizer, dataset, seed, counts, drift, parts=parts, gradient_accumulation_steps=accumulation, loss_type=loss_type,
        scale_rewards=scale, prune=prune, response_mask=mask, response_mask_threshold=thresholds.get(mask),
        response_mask_normalize="retained" if retained else "fixed", importance_sampling_level=level,
    )  # fmt: skip
    rows = [row for part in trainer._buffered_inputs for row in weighed(part)]
    got = sorted((tuple(r.completion), round(r.advantage, 4)) for r in rows)
    for (a, x), (b, y) in zip(got, advantages_by_hand(groups, scale, prune == "zero_variance"), strict=True):
        assert a == b and x == pytest.approx(y, abs=2e-4)
    check(model, trainer, loss, gradients, rule=make_rule(mask, thresholds.get(mask)), retained=retained)


@settings(max_examples=24, **HOUSE)
@given(**CASES)
def test_ragged_loss_and_gradients(model, tokenizer, dataset, **case):
    ragged_loss_and_gradients(model, tokenizer, dataset, **case)


@pytest.mark.slow
@settings(max_examples=250, **HOUSE)
@given(**CASES)
def test_ragged_loss_and_gradients_over_many_settings(model, tokenizer, dataset, **case):
    ragged_loss_and_gradients(model, tokenizer, dataset, **case)
