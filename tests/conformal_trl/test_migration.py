"""trl-cgrpo's arguments, read as it meant them."""

from __future__ import annotations

import warnings

import pytest

from conformal_core import ConformalBudget, FixedBudget
from conformal_trl import CGRPOConfig, CGRPOTrainer
from tests.conformal_trl.test_losses import reward


def config(tmp_path, **overrides):
    defaults = dict(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", report_to="none",
        disable_tqdm=True, max_completion_length=6, max_steps=1, calibration_progress=False,
    )  # fmt: skip
    return CGRPOConfig(**(defaults | overrides))


def test_delta_is_read_as_miscoverage(tmp_path):
    with pytest.warns(FutureWarning, match=r"delta: 0.1 is read as miscoverage=0.1"):
        migrated = config(tmp_path, delta=0.1)
    assert (migrated.miscoverage, migrated.delta, migrated.budget_grid) == (0.1, None, [2, 4, 8, 16, 32])
    assert migrated.num_generations == 32 and migrated.per_device_train_batch_size == 32  # trl-cgrpo's defaults
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clip = config(tmp_path, delta=4.0, num_generations=4)
    assert not [w for w in caught if "delta" in str(w.message)]
    assert clip.delta == 4.0 and clip.miscoverage is None and clip.budget_grid is None
    with pytest.raises(ValueError, match=r"delta: got 0.1 beside miscoverage=0.2"):
        config(tmp_path, delta=0.1, miscoverage=0.2)


def test_grids(tmp_path):
    assert config(tmp_path, budget_grid=[8, 2]).budget_grid == [2, 8]
    with pytest.raises(ValueError, match="score: got 'pass_rate'"):
        config(tmp_path, budget_grid=[2, 4], score="pass_rate")
    with pytest.raises(ValueError, match=r"miscoverage: got 0.1 without budget_grid"):
        config(tmp_path, miscoverage=0.1)
    with pytest.raises(ValueError, match="recalibrate_every: got -1"):
        config(tmp_path, recalibrate_every=-1)


def test_a_script_written_for_trl_cgrpo(model, tokenizer, dataset, calibration, tmp_path):
    """Its arguments, under the changed import."""
    args = config(tmp_path, budget_grid=[2, 4], num_calibration_samples=30, recalibrate_every=0, split_delta=True, delta_margin=0.1)
    trainer = CGRPOTrainer(
        model, reward, args=args, train_dataset=dataset.remove_columns("answer"), processing_class=tokenizer,
        calibration_dataset=calibration, answer_extractor=lambda text: f" {text[:1]} ",
    )  # fmt: skip
    policy = trainer.rollout_policy
    assert isinstance(policy, ConformalBudget) and policy.grid == (2, 4) and policy.n_calibration == 30 and policy.auto
    trainer.train()
    assert trainer.ledger.totals()["calibration"] == 30 * 4
    assert trainer.answer_fn("7x") == "7" and trainer.answer_fn(" 7") is None  # compared as stripped strings
    assert policy.stop_rule is not None


def test_a_verifier_decides_success(model, tokenizer, dataset, calibration, tmp_path):
    asked = []

    def verifier(completions, answer, **example):
        asked.append((completions, answer))
        return [len(completions[0]) % 2 == 0]

    args = config(tmp_path, budget_grid=[2, 4], score="first_success", miscoverage=0.3)
    trainer = CGRPOTrainer(
        model, reward, args=args, train_dataset=dataset, processing_class=tokenizer, calibration_dataset=calibration, verifier=verifier
    )
    trainer.train()
    totals = trainer.ledger.totals()
    assert len(asked) == totals["generated"] + totals["calibration"]  # each response verified once
    assert all(len(c) == 1 for c, _ in asked)


def test_both_ways_at_once_are_refused(model, tokenizer, dataset, calibration, tmp_path):
    common = dict(processing_class=tokenizer, calibration_dataset=calibration)
    with pytest.raises(ValueError, match="beside budget_grid"):
        CGRPOTrainer(model, reward, config(tmp_path, budget_grid=[2, 4]), dataset, rollout_policy=FixedBudget(4), **common)
    with pytest.raises(ValueError, match="answer_extractor: got one without budget_grid"):
        CGRPOTrainer(model, reward, config(tmp_path), dataset, answer_extractor=str, **common)
    with pytest.raises(ValueError, match="answer_extractor: got one beside answer_fn"):
        CGRPOTrainer(model, reward, config(tmp_path, budget_grid=[2, 4]), dataset, answer_extractor=str, answer_fn=str, **common)
