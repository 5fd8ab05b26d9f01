"""Cheap calibration inside training: early-stopped, nested, event-triggered, from the stream; its share of all rollouts is reported."""

from __future__ import annotations

import numpy as np
import pytest

from conformal_core import ConformalBudget, FixedBudget, NestedRollout, SignalBudget, StreamCalibrated
from conformal_core.policy import CalibrationRequest
from conformal_trl import CGRPOTrainer


def parity(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


def trained(model, tokenizer, dataset, calibration, make_config, policy, **overrides):
    config = make_config(policy.k_max, 6, **({"max_steps": 4} | overrides))
    trainer = CGRPOTrainer(
        model, parity, config, dataset, processing_class=tokenizer, rollout_policy=policy, calibration_dataset=calibration,
        answer_fn=lambda text: text[:1] or None, gold_column="answer",
    )  # fmt: skip
    trainer.train()
    return trainer


def test_early_stopped(model, tokenizer, dataset, calibration, make_config):
    """The signal score is known once a group is mixed: its calibration draws no further."""
    policy = SignalBudget((2, 4, 8), delta="0.2", calibration="offline", n_calibration=40, recalibrate_every=100)
    trainer = trained(model, tokenizer, dataset, calibration, make_config, policy)
    totals = trainer.ledger.totals()
    assert 0 < totals["calibration"] < 40 * 8 * 0.6
    logged = [h["rollouts/calibration_share"] for h in trainer.state.log_history if "rollouts/calibration_share" in h]
    assert logged[-1] == totals["calibration"] / (totals["calibration"] + totals["generated"])


class Nested(FixedBudget):
    """Asks for calibration prompts whose budgets are settled before sampling, some of them 0."""

    def calibration(self, step):
        return CalibrationRequest(30, NestedRollout((2, 4), ("0.5", "0.25"), seed=1)) if not hasattr(self, "got") else None

    def calibrate(self, outcomes):
        self.got = outcomes


def test_nested(model, tokenizer, dataset, calibration, make_config):
    policy = Nested(4)
    totals = trained(model, tokenizer, dataset, calibration, make_config, policy, max_steps=1).ledger.totals()
    assert totals["calibration"] == policy.got.drawn.sum() < 30 * 4
    assert set(np.unique(policy.got.drawn)) == {0, 2, 4}


@pytest.mark.parametrize("alarm", [None, "0.05"])
def test_signal_from_the_stream(model, tokenizer, dataset, make_config, alarm):
    policy = SignalBudget((2, 4), delta="0.2", share=0.5, seed=2, alarm=alarm)
    trainer = trained(model, tokenizer, dataset, None, make_config, policy)
    totals = trainer.ledger.totals()
    assert totals["calibration"] == 0 < totals["generated"]
    assert trainer.ledger.calibration_share == totals["calibration_extra"] / totals["generated"]


def test_any_calibrated_policy_from_the_stream(model, tokenizer, dataset, make_config):
    inner = ConformalBudget((2, 4), delta="0.3", multiplicity="risk_control", n_calibration=10, recalibrate_every=1)
    policy = StreamCalibrated(inner, share="0.5")
    trainer = trained(model, tokenizer, dataset, None, make_config, policy)
    totals = trainer.ledger.totals()
    assert totals["calibration"] == 0 and inner.stop_rule is not None
    shares = [r["policy"]["calibration_extra_share"] for r in trainer.ledger.history]
    assert totals["calibration_extra"] == sum(round(s * r["generated"]) for s, r in zip(shares, trainer.ledger.history, strict=True))
