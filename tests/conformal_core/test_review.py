"""Faults found in review: steps that are NumPy integers, seeds below zero, counts that are not whole."""

from __future__ import annotations

import json

import numpy as np
import pytest

from conformal_core import ConformalBudget, Outcomes, SignalBudget, calibrate_thresholds


def table(n=20, width=4, step=0):
    codes = np.arange(n * width).reshape(n, width) % 3
    return Outcomes(np.arange(n, dtype=np.uint64), codes == 0, codes=codes, gold=np.zeros(n, np.int64), step=step)


def test_a_step_from_an_array_stays_serialisable():
    policy = ConformalBudget((2, 4), delta="0.2", n_calibration=20)
    policy.calibrate(table(step=np.int64(50)))
    assert json.loads(json.dumps(policy.state_dict()))["schedule"]["calibrated_at"] == 50


def test_a_negative_seed_calibrates():
    policy = ConformalBudget((2, 4), delta="0.3", n_calibration=20, seed=-1)
    policy.calibrate(table())
    assert policy.stop_rule is not None


@pytest.mark.parametrize("field", [{"prompt_ids": [1.7]}, {"prompt_ids": [1], "drawn": [1.9]}])
def test_ids_and_counts_are_never_truncated(field):
    with pytest.raises(ValueError, match=r"need integers; because"):
        Outcomes(passes=np.ones((1, 2), bool), **{k: np.array(v) for k, v in field.items()})


def test_checkpoints_and_scores_of_the_wrong_kind():
    with pytest.raises(ValueError, match=r"checkpoints: got 1\.5"):
        calibrate_thresholds(np.zeros((99, 2)), (2, 4), "0.1", "bonferroni", checkpoints=1.5)
    with pytest.raises(ValueError, match="score: got 'aps'; need a Score"):
        ConformalBudget((2, 4), score="aps")


@pytest.mark.parametrize("policy", [ConformalBudget((2, 4)), SignalBudget((2, 4))])
def test_an_empty_state_is_refused_in_words(policy):
    with pytest.raises(ValueError, match="state: got the state of None"):
        policy.load_state_dict({})
