"""One clear line each, before a model is loaded."""

from __future__ import annotations

import dataclasses

import pytest
from trl import GRPOConfig

import conformal_trl
from conformal_core import ConformalBudget, FixedBudget
from conformal_trl import CGRPOConfig, CGRPOTrainer


def reward(completions, **_):
    return [0.0] * len(completions)


def refused(match, *args, **kwargs):
    with pytest.raises(ValueError, match=match) as error:
        CGRPOTrainer(*args, **kwargs)
    assert "\n" not in str(error.value)


def test_unknown_model_path(dataset, make_config):
    refused("model: got 'no/such/model'; need", "no/such/model", reward, make_config(4, 2), dataset)


def test_empty_data_set(make_config, dataset):
    refused("train_dataset: got no rows", "no/such/model", reward, make_config(4, 2), dataset.select([]))
    refused("train_dataset: got no rows", "no/such/model", reward, make_config(4, 2))


def test_budget_that_disagrees(make_config, dataset):
    refused("num_generations: got 4; need 8", "no/such/model", reward, make_config(4, 2), dataset, rollout_policy=FixedBudget(8))
    refused("k_max 1; need at least 2", "no/such/model", reward, make_config(4, 2), dataset, rollout_policy=FixedBudget(1))


def test_calibration_set(make_config, dataset, calibration):
    policy = ConformalBudget((2, 4), delta="0.1", multiplicity="risk_control", n_calibration=100)
    common = dict(rollout_policy=policy, answer_fn=str.strip, gold_column="answer")
    refused("calibration_dataset: got 0 prompts; need 100", "x/y", reward, make_config(4, 2), dataset, **common)
    refused(
        "calibration_dataset: got 60 prompts; need 100",
        "x/y",
        reward,
        make_config(4, 2),
        dataset,
        calibration_dataset=calibration,
        **common,
    )
    refused("40 prompts that are in train_dataset", "x/y", reward, make_config(4, 2), dataset, calibration_dataset=dataset, **common)


def test_answers_are_needed(make_config, dataset, calibration):
    policy = ConformalBudget((2, 4), delta="0.2", multiplicity="risk_control", n_calibration=50)
    common = dict(rollout_policy=policy, calibration_dataset=calibration)
    refused("answer_fn: got None", "x/y", reward, make_config(4, 2), dataset, **common)
    refused("gold_column: got None", "x/y", reward, make_config(4, 2), dataset, answer_fn=str, **common)
    refused(
        "gold_column: got 'gold'; need a column", "x/y", reward, make_config(4, 2), dataset, answer_fn=str, gold_column="gold", **common
    )


def test_unsupported_settings_are_named(make_config, dataset):
    refused("environment_factory: got one; need None", "x/y", reward, make_config(4, 2), dataset, environment_factory=lambda: None)
    pictures = dataset.add_column("image", ["x"] * len(dataset))
    refused("train_dataset: got a column of images; need text", "x/y", reward, make_config(4, 2), pictures)


@pytest.mark.parametrize(
    ("match", "overrides"),
    [
        ("response_mask: got 'crm'", dict(response_mask="crm")),
        ("did you mean 1.02", dict(response_mask="carm", response_mask_threshold=0.02)),
        ("prune: got 'all'", dict(prune="all")),
        ("max_seconds: got 0", dict(max_seconds=0)),
        ("off_policy_mask_threshold", dict(response_mask="carm", off_policy_mask_threshold=0.5)),
    ],
)
def test_config(match, overrides, make_config):
    with pytest.raises(ValueError, match=match):
        make_config(4, 2, **overrides)


def test_reward_of_wrong_length(model, tokenizer, dataset, make_config):
    trainer = CGRPOTrainer(model, lambda completions, **_: [0.0], make_config(4, 2), dataset, processing_class=tokenizer)
    with pytest.raises(ValueError, match="returned 1 rewards, but 8 were expected"):
        trainer.train()


def test_no_field_shadows_a_trl_field():
    trl_fields = {f.name for f in dataclasses.fields(GRPOConfig)}
    own = set(CGRPOConfig.__annotations__)
    assert own and not own & trl_fields


def test_masks_that_cannot_act_are_announced(model, tokenizer, dataset, make_config):
    with pytest.warns(UserWarning, match="rejects nothing"):
        CGRPOTrainer(model, reward, make_config(4, 2, response_mask="carm"), dataset, processing_class=tokenizer)
    with pytest.warns(UserWarning, match="top_p"):
        CGRPOTrainer(
            model, reward, make_config(4, 2, response_mask="carm", top_p=0.9, num_iterations=2), dataset, processing_class=tokenizer
        )


def test_trl_outside_the_range_is_refused():
    with pytest.raises(ImportError, match=r"trl: got 1\.17\.0; need >=1\.16,<1\.17"):
        conformal_trl._check_trl("1.17.0")
