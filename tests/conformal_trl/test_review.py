"""Faults found in review: each a class of input, not only its trigger."""

from __future__ import annotations

import copy
import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, IterableDataset

from conformal_core import FixedBudget, SignalBudget
from conformal_trl import CGRPOTrainer
from tests.conformal_trl.test_true_cost import Scripted


def parity(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


def test_steps_without_rows_move_nothing_after_steps_with_rows(model, tokenizer, dataset, make_config):
    """AdamW would move a parameter with a zero gradient by its momentum; with the first parameter frozen there is no gradient at all."""
    next(model.parameters()).requires_grad_(False)
    calls = []

    def reward(completion_ids, **_):
        calls.append(1)
        return parity(completion_ids) if len(calls) == 1 else [0.0] * len(completion_ids)

    trainer = CGRPOTrainer(model, reward, make_config(4, 6, max_steps=3), dataset, processing_class=tokenizer)
    after_first = {}
    trainer.create_optimizer()

    def snapshot(optimizer, *args, **kwargs):
        if not after_first:
            after_first.update({n: p.detach().clone() for n, p in model.named_parameters()})

    trainer.optimizer.register_step_post_hook(snapshot)
    trainer.train()
    assert trainer.ledger.history[0]["trained"] > 0 and trainer.ledger.history[1]["trained"] == 0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, after_first[name]), name


@pytest.mark.parametrize("cycle", [{"num_iterations": 2}, {"steps_per_generation": 2, "per_device_train_batch_size": 12}])
def test_resume_inside_a_generation_cycle_is_exact(model, tokenizer, dataset, make_config, tmp_path, cycle):
    start = copy.deepcopy(model)
    config = dict(max_steps=6, save_strategy="steps", save_steps=3, response_mask="carm", **cycle)
    whole = CGRPOTrainer(model, parity, make_config(4, 6, **config), dataset, processing_class=tokenizer)
    whole.train()
    resumed = CGRPOTrainer(start, parity, make_config(4, 6, **config), dataset, processing_class=tokenizer)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [r["step"] for r in resumed.ledger.history] == [r["step"] for r in whole.ledger.history] == [0, 2, 4]
    for (name, a), (_, b) in zip(whole.model.named_parameters(), resumed.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_reference_that_follows_the_policy_is_resumed(saved_model, tokenizer, dataset, make_config, tmp_path):
    """TRL's checkpoint lacks it: a resumed run would pull the policy back to where it began."""
    start = type(saved_model).from_pretrained(tmp_path / "start")
    config = dict(beta=0.5, sync_ref_model=True, ref_model_sync_steps=2, max_steps=5, save_strategy="steps", save_steps=3)
    whole = CGRPOTrainer(saved_model, parity, make_config(4, 6, **config), dataset, processing_class=tokenizer)
    whole.train()
    resumed = CGRPOTrainer(start, parity, make_config(4, 6, **config), dataset, processing_class=tokenizer)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for ours, theirs in ((resumed.model, whole.model), (resumed.ref_model, whole.ref_model)):
        for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("edit", [{"repetition_penalty": 1.5}, {"generation_kwargs": {"min_new_tokens": 3}}])
def test_sampling_that_edits_logits_needs_recomputed_log_probabilities(model, tokenizer, dataset, make_config, edit):
    config = make_config(4, 4, num_iterations=2, response_mask="carm", **edit)
    with pytest.raises(ValueError, match=f'old_logps: got "rollout" beside {next(iter(edit.get("generation_kwargs", edit)))}'):
        CGRPOTrainer(model, parity, config, dataset, processing_class=tokenizer)
    config = make_config(4, 4, num_iterations=2, response_mask="carm", old_logps="recompute", learning_rate=0.0, **edit)
    trainer = CGRPOTrainer(model, parity, config, dataset, processing_class=tokenizer)
    trainer.train()
    totals = trainer.ledger.totals()
    assert totals["masked_of"] > 0 and totals["masked"] == 0  # nothing moved, so nothing is off-policy


def test_suppressed_tokens_of_the_model_count_as_edits(model, tokenizer, dataset, make_config):
    model.generation_config.suppress_tokens = [5]
    with pytest.raises(ValueError, match="beside suppress_tokens"):
        CGRPOTrainer(model, parity, make_config(4, 4, num_iterations=2), dataset, processing_class=tokenizer)


def test_logged_extras_stay_with_their_completions(model, tokenizer, dataset, make_config, tmp_path):
    def reward(completions, completion_ids, log_extra, log_metric, **_):
        log_extra("echo", list(completions))
        log_metric("seen", float(len(completions)))
        return parity(completion_ids)

    config = make_config(4, 4, max_steps=1, log_completions=True, num_completions_to_print=0)
    trainer = CGRPOTrainer(model, reward, config, dataset, processing_class=tokenizer, rollout_policy=Scripted([4, 3, 4, 2], 4))
    trainer.train()
    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert table["echo"].tolist() == table["completion"].tolist() and len(table) == 13


class Careless(FixedBudget):
    """Breaks the contract in one way."""

    def __init__(self, fault):
        super().__init__(4)
        self.fault = fault

    def more(self, outcomes):
        return {
            "too many": np.full(outcomes.n, 9),
            "negative": np.full(outcomes.n, -1),
            "fractions": np.full(outcomes.n, 0.5),
            "shape": np.zeros(1, int),
        }.get(self.fault, super().more(outcomes))

    def keep(self, outcomes):
        return np.ones(outcomes.n, bool) if self.fault == "keep" else super().keep(outcomes)

    def advantages(self, outcomes):
        return np.full(outcomes.passes.shape, np.nan) if self.fault == "advantages" else None


@pytest.mark.parametrize("fault", ["too many", "negative", "fractions", "shape", "keep", "advantages"])
def test_a_policy_that_breaks_its_contract_is_named(model, tokenizer, dataset, make_config, fault):
    trainer = CGRPOTrainer(model, parity, make_config(4, 4), dataset, processing_class=tokenizer, rollout_policy=Careless(fault))
    with pytest.raises(ValueError, match=r"FixedBudget\(4\)"):
        trainer.train()


def test_infinite_rewards_are_refused(model, tokenizer, dataset, make_config):
    def reward(completions, **_):
        return [float("inf")] * len(completions)

    with pytest.raises(ValueError, match="infinite value from reward"):
        CGRPOTrainer(model, reward, make_config(4, 4), dataset, processing_class=tokenizer).train()


def test_data_sets_of_the_wrong_kind(make_config, dataset):
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "1+1="}]))
    for bad, match in [
        (dict(calibration_dataset=stream), "calibration_dataset: got IterableDataset; need a datasets.Dataset"),
        (dict(calibration_dataset=[{"prompt": "1"}]), "calibration_dataset: got list"),
        (dict(calibration_dataset=Dataset.from_list([{"text": "1"}])), "calibration_dataset: got columns text; need a column prompt"),
    ]:
        with pytest.raises(ValueError, match=match):
            CGRPOTrainer("x/y", parity, make_config(4, 4), dataset, **bad)
    with pytest.raises(ValueError, match="train_dataset: got 2 prompts; need 4"):
        CGRPOTrainer("x/y", parity, make_config(4, 4), dataset.select(range(2)))


def test_a_stream_trains_as_the_data_set_it_streams(model, tokenizer, dataset, make_config, tmp_path):
    """The same prompts in the same order, the same responses and weights; also in a second epoch, and resumed."""
    start, again = copy.deepcopy(model), copy.deepcopy(model)
    config = dict(max_steps=5, shuffle_dataset=False, num_iterations=2, response_mask="carm", save_strategy="steps", save_steps=3)
    rows = dataset.select(range(16))
    whole = CGRPOTrainer(model, parity, make_config(4, 8, **config), rows, processing_class=tokenizer)
    whole.train()
    stream = IterableDataset.from_generator(lambda: iter(rows.to_list()))
    assert stream.column_names is None
    for trained, checkpoint in ((start, None), (again, str(tmp_path / "checkpoint-3"))):
        trainer = CGRPOTrainer(trained, parity, make_config(4, 8, **config), stream, processing_class=tokenizer)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert [r["drawn"] for r in trainer.ledger.history] == [r["drawn"] for r in whole.ledger.history]
        for (name, a), (_, b) in zip(model.named_parameters(), trained.named_parameters(), strict=True):
            assert torch.equal(a, b), name


def test_a_stream_without_a_length_needs_max_steps(make_config, dataset):
    stream = dataset.to_iterable_dataset()
    with pytest.raises(ValueError, match="max_steps: got -1 beside a train_dataset that is a stream; need a positive number"):
        CGRPOTrainer("x/y", parity, make_config(4, 4, max_steps=-1), stream)
    with pytest.raises(ValueError, match="train_dataset: got columns answer; need a column prompt"):
        CGRPOTrainer("x/y", parity, make_config(4, 4), stream.remove_columns("prompt"))


def test_a_config_can_be_copied(make_config):
    config = make_config(4, 4, response_mask="carm", num_iterations=2)
    copied = dataclasses.replace(config, learning_rate=0.5, generation_batch_size=None)  # TRL itself refuses the derived size
    assert copied.off_policy_mask_threshold is None  # a trainer without a mask may be built from a copy


@pytest.mark.parametrize(
    ("match", "config", "arguments"),
    [
        ("kl_on_pruned", dict(kl_on_pruned=True), {}),
        ("calibration_dataset: is not used", {}, dict(calibration=True)),
        ("gold_column: is not used", {}, dict(gold_column="answer")),
        ("steps_per_generation", dict(gradient_accumulation_steps=2, steps_per_generation=1), {}),
    ],
)
def test_what_has_no_effect_is_said(model, tokenizer, dataset, calibration, make_config, match, config, arguments):
    arguments = {k: v for k, v in arguments.items() if k != "calibration"} | (
        {"calibration_dataset": calibration} if "calibration" in arguments else {}
    )
    with pytest.warns(UserWarning, match=match):
        CGRPOTrainer(model, parity, make_config(4, 4, **config), dataset, processing_class=tokenizer, **arguments)


def test_dropout_under_a_mask_is_said(model, tokenizer, dataset, make_config):
    model.config.attention_dropout = 0.3
    with pytest.warns(UserWarning, match="dropout"):
        CGRPOTrainer(model, parity, make_config(4, 4, num_iterations=2, response_mask="carm"), dataset, processing_class=tokenizer)


def test_an_ordinary_set_up_warns_of_nothing(model, tokenizer, dataset, make_config):
    config = make_config(4, 4, num_iterations=2, response_mask="carm")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CGRPOTrainer(model, parity, config, dataset, processing_class=tokenizer, rollout_policy=SignalBudget((2, 4)))
    assert [str(w.message) for w in caught if "conformal" in str(w.filename) or w.category is UserWarning] == []
