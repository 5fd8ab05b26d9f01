"""Calibrated policies inside a training run: what was calibrated is what stops, and the ledger adds up."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from conformal_core import ConformalBudget, FixedBudget, SignalBudget, StreamCalibrated, released_cgrpo
from conformal_trl import CGRPOTrainer


def reward(completions, answer, **_):
    return [float(c.strip() == a) for c, a in zip(completions, answer, strict=True)]


def parity(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


def first_symbol(text):
    return text[:1] or None


def conformal(**overrides):
    return ConformalBudget(
        (2, 4, 8), **(dict(delta="0.1", multiplicity="risk_control", n_calibration=40, recalibrate_every=2, seed=1) | overrides)
    )


def trained(model, tokenizer, dataset, calibration, make_config, policy, prompts=6, reward_func=reward, **overrides):
    config = make_config(policy.k_max, prompts, **(dict(max_steps=4) | overrides))
    trainer = CGRPOTrainer(
        model,
        reward_func,
        config,
        dataset,
        processing_class=tokenizer,
        rollout_policy=policy,
        calibration_dataset=calibration,
        answer_fn=first_symbol,
        gold_column="answer",
    )
    trainer.train()
    return trainer


def test_the_rule_that_trained_is_the_rule_that_was_calibrated(model, tokenizer, dataset, calibration, make_config):
    policy = conformal()
    calibrated, used = [], []
    calibrate, more = policy.calibrate, policy.more
    policy.calibrate = lambda outcomes: calibrate(outcomes) or calibrated.append(policy.stop_rule)
    policy.more = lambda outcomes: used.append(policy.stop_rule) or more(outcomes)
    trained(model, tokenizer, dataset, calibration, make_config, policy)
    assert len(calibrated) == 2 and calibrated[0] is not calibrated[1]
    assert {id(rule) for rule in used} <= {id(rule) for rule in calibrated}


def test_calibration_is_counted_and_recurs(model, tokenizer, dataset, calibration, make_config):
    trainer = trained(model, tokenizer, dataset, calibration, make_config, conformal())
    totals = trainer.ledger.totals()
    assert totals["calibration"] == 2 * 40 * 8  # at steps 0 and 2
    assert totals["reward_calls"] == totals["calibration"] + totals["generated"]
    assert totals["seconds_calibrate"] > 0
    assert totals["audit"]["false_stop"][1] == totals["prompts"] == 24
    phases = sum(totals[f"seconds_{p}"] for p in ("generate", "reward", "train", "calibrate", "other"))
    assert phases == pytest.approx(totals["seconds_total"], rel=1e-6)


def test_thresholds_at_or_above_one_never_stop(model, tokenizer, dataset, calibration, make_config):
    """No calibration response is right, so every threshold is 1: each prompt is rolled out to K_max."""
    policy = ConformalBudget((2, 4, 8), delta="0.1", n_calibration=40, recalibrate_every=50, seed=1)
    trainer = trained(
        model, tokenizer, dataset, calibration, make_config, policy, reward_func=lambda completions, **_: [0.0] * len(completions)
    )
    assert all(k == 8 for record in trainer.ledger.history for k in record["drawn"])


def test_the_released_rule_stops_on_unanimity(model, tokenizer, dataset, calibration, make_config):
    policy = released_cgrpo((2, 4, 8), n_calibration=40, recalibrate_every=50, seed=1)
    trainer = trained(model, tokenizer, dataset, calibration, make_config, policy, prompts=8)
    drawn = [k for record in trainer.ledger.history for k in record["drawn"]]
    assert set(drawn) <= {2, 4, 8}
    assert trainer.ledger.totals()["generated"] == sum(drawn)


def test_signal_trains_every_response_of_a_mixed_group(model, tokenizer, dataset, make_config):
    policy = SignalBudget((2, 4, 8), delta="0.2", share=0.5, seed=2)
    trainer = trained(model, tokenizer, dataset, None, make_config, policy, reward_func=parity)
    totals = trainer.ledger.totals()
    assert totals["calibration"] == 0
    assert totals["groups_with_variance"] > 0
    assert totals["generated"] < 24 * 8
    assert totals["audit"]["lost_group"][1] > 0  # designated prompts under a finite clock


def test_decisions_do_not_depend_on_rollout_batches(model, tokenizer, dataset, calibration, make_config):
    """One U per prompt: which prompts stop is a function of the outcomes, not of how calls were batched."""
    policy = conformal(recalibrate_every=50)
    trainer = trained(model, tokenizer, dataset, calibration, make_config, policy, max_steps=1)
    _groups, outcomes = trainer.rollouts.roll_out([dataset[i] for i in range(12)], FixedBudget(8), 0, 5)
    assert outcomes.drawn.tolist() == [8] * 12
    at_four = outcomes.prefix(4)
    together = policy.more(at_four)
    alone = np.concatenate([policy.more(at_four.take(np.array([i]))) for i in range(12)])
    assert together.tolist() == alone.tolist()


def test_reference_kl_covers_trained_rows_only(saved_model, tokenizer, dataset, make_config):
    from tests.conformal_trl.test_true_cost import Recording

    recording = Recording()
    config = make_config(4, 6, beta=0.1, max_steps=2)
    trainer = CGRPOTrainer(saved_model, parity, config, dataset, processing_class=tokenizer)
    rows = []
    score = trainer.score
    trainer.score = lambda m, b: rows.append(b["advantages"].numel()) or score(m, b)
    recording.install(trainer)
    trainer.train()
    assert sum(rows) == trainer.ledger.totals()["trained"] == sum(recording.training_rows)
    assert all(math.isfinite(h["kl"]) for h in trainer.state.log_history if "kl" in h)


def test_kl_on_pruned_keeps_the_rows(saved_model, tokenizer, dataset, make_config):
    config = make_config(4, 6, beta=0.1, kl_on_pruned=True, max_steps=1)
    trainer = CGRPOTrainer(saved_model, lambda completions, **_: [1.0] * len(completions), config, dataset, processing_class=tokenizer)
    trainer.train()
    assert trainer.ledger.totals()["trained"] == 24 and trainer.ledger.totals()["groups_with_variance"] == 0


def test_max_seconds_stops_the_run(model, tokenizer, dataset, make_config):
    trainer = CGRPOTrainer(model, parity, make_config(4, 4, max_steps=10_000, max_seconds=0.5), dataset, processing_class=tokenizer)
    trainer.train()
    totals = trainer.ledger.totals()
    assert 0 < totals["optimizer_steps"] < 10_000 and totals["seconds_total"] >= 0.5


POLICIES = {
    "offline": conformal,
    "offline, alarm": lambda: conformal(alarm="0.5", recalibrate_every=100),
    "stream": lambda: StreamCalibrated(conformal(n_calibration=10), share="0.5", seed=1),
    "signal": lambda: SignalBudget((2, 4, 8), delta="0.2", share=0.5, seed=2, alarm="0.5"),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_resume_takes_the_same_decisions(model, tokenizer, dataset, calibration, make_config, tmp_path, policy):
    """Thresholds, windows, clocks, the drift monitor, the ledger and the weights of a run that was never stopped."""
    start = copy.deepcopy(model)
    common = dict(save_strategy="steps", save_steps=2, max_steps=4, reward_func=parity)
    whole = trained(model, tokenizer, dataset, calibration, make_config, policy(), **common)
    resumed = CGRPOTrainer(
        start, parity, whole.args, dataset, processing_class=tokenizer, rollout_policy=policy(), calibration_dataset=calibration,
        answer_fn=first_symbol, gold_column="answer",
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    histories = [
        [{k: v for k, v in record.items() if not k.startswith(("seconds", "clock"))} for record in trainer.ledger.history]
        for trainer in (whole, resumed)
    ]
    assert histories[0] == histories[1] and len(histories[0]) == 4
    assert whole.rollout_policy.state_dict() == resumed.rollout_policy.state_dict()
    for (name, a), (_, b) in zip(model.named_parameters(), start.named_parameters(), strict=True):
        assert torch.equal(a, b), name
