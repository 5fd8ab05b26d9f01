"""Rows never generated and rows pruned cost nothing, and the loss is that of the ragged batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformal_core import RolloutPolicy
from conformal_trl import CGRPOTrainer


class Scripted(RolloutPolicy):
    """Draws a scripted number of responses per prompt, in two increments."""

    def __init__(self, counts, k_max):
        self.counts, self.k_max = np.asarray(counts, np.int64), k_max

    def first(self, prompt_ids, step):
        self.target = dict(zip(prompt_ids.tolist(), self.counts.tolist(), strict=True))
        return np.minimum(2, self.counts)

    def more(self, outcomes):
        return np.array([self.target[i] for i in outcomes.prompt_ids.tolist()]) - outcomes.drawn


class Reward:
    """Even token counts pass; odd prompts always fail, so that their groups have no variance."""

    __name__ = "reward"

    def __init__(self):
        self.calls, self.seen = 0, []

    def __call__(self, prompts, completions, completion_ids, **_):
        self.calls += 1
        self.seen += list(zip(prompts, map(tuple, completion_ids), strict=True))
        return [float(int(p[0]) % 2 == 0 and sum(i) % 2 == 0) for p, i in zip(prompts, completion_ids, strict=True)]


class Recording:
    """Counts the rows of every forward outside ``generate``, with a graph (training) or without, and of every backward."""

    def __init__(self):
        self.training_rows, self.other_rows, self.backward_rows = [], [], []
        self.generating = False

    def install(self, trainer):
        model = trainer.model
        self.model, self.original = model, model.forward
        forward, generate = model.forward, model.generate

        def generating(*args, **kwargs):
            self.generating = True
            try:
                return generate(*args, **kwargs)
            finally:
                self.generating = False

        def recorded(*args, **kwargs):
            output = forward(*args, **kwargs)
            if self.generating:
                return output
            rows = kwargs["input_ids"].size(0)
            (self.training_rows if torch.is_grad_enabled() else self.other_rows).append(rows)
            if torch.is_grad_enabled():
                output.log_probs.register_hook(lambda g: self.backward_rows.append(g.size(0)))
            return output

        model.generate, model.forward = generating, recorded
        return self


def ragged_reference(model, batch_rows, loss_type, epsilon, max_completion_length, temperature=1.0):
    """Loss of the ragged batch, one row at a time without any padding, from the definition."""
    totals, tokens, terms = [], 0, []
    for prompt, completion, old, advantage in batch_rows:
        ids = torch.tensor([prompt + completion])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
        logps = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        ratio = torch.exp(logps - torch.tensor(old)) if old is not None else torch.exp(logps - logps.detach())
        term = -torch.min(ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage)
        totals.append(term.sum())
        terms.append(term.mean())
        tokens += len(completion)
    if loss_type in ("dapo", "bnpo"):
        return torch.stack(totals).sum() / tokens
    if loss_type == "grpo":
        return torch.stack(terms).mean()
    return torch.stack(totals).sum() / (len(totals) * max_completion_length)  # dr_grpo


# TRL's bnpo divides by the tokens of each micro-batch, so over several micro-batches it is not a mean over the batch.
@pytest.mark.parametrize(
    ("loss_type", "steps_per_generation"),
    [("dapo", 1), ("dapo", 3), ("grpo", 1), ("grpo", 3), ("dr_grpo", 1), ("dr_grpo", 3), ("bnpo", 1)],
)
def test_rows_and_loss_of_the_ragged_batch(model, tokenizer, dataset, make_config, loss_type, steps_per_generation):
    counts, k_max = [8, 2, 4, 8, 2, 6], 8
    recording, reward = Recording(), Reward()
    accumulation = steps_per_generation
    config = make_config(
        k_max,
        len(counts),
        per_device_train_batch_size=k_max * len(counts) // steps_per_generation,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=steps_per_generation,
        loss_type=loss_type,
        max_steps=1,
        learning_rate=0.0,
        max_grad_norm=1e9,
    )
    trainer = CGRPOTrainer(model, reward, config, dataset, processing_class=tokenizer, rollout_policy=Scripted(counts, k_max))
    recording.install(trainer)
    captured, losses = [], []
    split = trainer.generation.step
    trainer.generation.step = lambda inputs: captured.append(split(inputs)) or captured[-1]
    compute = trainer._compute_loss
    trainer._compute_loss = lambda m, i: losses.append(compute(m, i)) or losses[-1]
    gradients = {}

    def keep_gradients(optimizer, *args, **kwargs):
        gradients.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(keep_gradients)
    trainer.train()

    totals = trainer.ledger.totals()
    assert totals["generated"] == sum(counts)
    assert sorted(trainer.ledger.history[0]["drawn"]) == sorted(counts)
    assert 0 < totals["trained"] < totals["generated"]  # some groups were pruned, not all
    assert sum(recording.training_rows) == totals["trained"] == totals["forward_rows"] == sum(recording.backward_rows)
    assert recording.other_rows == []  # no reference, no recomputation, nothing for pruned rows
    assert len(reward.seen) == totals["generated"] == totals["reward_calls"]

    rows = []
    for part in captured[0]:
        for i in range(part["advantages"].numel()):
            prompt = part["prompt_ids"][i][part["prompt_mask"][i].bool()].tolist()
            live = part["completion_mask"][i].bool()
            rows.append((prompt, part["completion_ids"][i][live].tolist(), None, float(part["advantages"][i])))
    model.forward = recording.original
    model.zero_grad()
    expected = ragged_reference(model, rows, loss_type, config.epsilon, config.max_completion_length)
    expected.backward()
    assert float(sum(losses)) == pytest.approx(float(expected), abs=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-5)


def test_rewards_are_called_once_per_generated_response_and_for_nothing_else(model, tokenizer, dataset, make_config):
    reward = Reward()
    config = make_config(4, 5, max_steps=4, num_iterations=2, response_mask="carm")
    trainer = CGRPOTrainer(model, reward, config, dataset, processing_class=tokenizer, rollout_policy=Scripted([4, 2, 3, 2, 1], 4))
    sampled = []
    draw = trainer.rollouts.draw
    trainer.rollouts.draw = lambda rows, size, bar=None: sampled.append(len(rows)) or draw(rows, size, bar)
    trainer.train()
    totals = trainer.ledger.totals()
    assert totals["optimizer_steps"] == 4
    assert len(trainer.ledger.history) == 2  # one generation serves two passes
    assert len(reward.seen) == sum(sampled) == totals["generated"] == totals["reward_calls"] == 24


def test_recorded_log_probabilities_are_the_trainers_own(model, tokenizer, dataset, make_config):
    config = make_config(4, 6, temperature=0.7, max_steps=1, prune="none")
    trainer = CGRPOTrainer(model, Reward(), config, dataset, processing_class=tokenizer)
    batches = []
    split = trainer.generation.step

    def capture(inputs):
        parts = split(inputs)
        batches.append((parts[0], trainer.score(trainer.model, parts[0])))
        return parts

    trainer.generation.step = capture
    trainer.train()
    batch, scored = batches[0]
    live = batch["completion_mask"].bool()
    assert live.sum() > 24
    torch.testing.assert_close(batch["sampling_per_token_logps"][live], scored[live], atol=2e-5, rtol=1e-5)


def test_all_groups_pruned_costs_no_forward_and_moves_nothing(model, tokenizer, dataset, make_config):
    recording = Recording()
    before = {n: p.clone() for n, p in model.named_parameters()}
    config = make_config(4, 4, num_iterations=2, response_mask="carm")
    trainer = CGRPOTrainer(model, lambda completions, **_: [0.0] * len(completions), config, dataset, processing_class=tokenizer)
    recording.install(trainer)
    trainer.train()
    assert recording.training_rows == [] and trainer.ledger.totals()["trained"] == 0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_mask_is_counted_and_rejects_after_a_large_step(model, tokenizer, dataset, make_config):
    config = make_config(4, 8, num_iterations=3, max_steps=6, learning_rate=0.05, response_mask="carm", response_mask_threshold=1.02)
    trainer = CGRPOTrainer(model, Reward(), config, dataset, processing_class=tokenizer)
    trainer.train()
    totals = trainer.ledger.totals()
    assert totals["masked_of"] == totals["forward_rows"] > 0
    assert 0 < totals["masked"] < totals["masked_of"]  # first passes are on-policy, later ones are not
    first = trainer.ledger.history[0]
    assert len(first["d_scores"]) > 0 and max(first["d_scores"][:3]) < 1e-4
