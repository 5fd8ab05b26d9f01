"""Any number of leading axes: (P, G, T) gives what its (P G, T) rows give."""

import numpy as np
import pytest
import torch
from carm_strategies import ALL_RULES

from carm_core import (
    clipped_surrogate,
    group_advantages,
    log_ratio,
    masked_loss,
    prefix_drift,
    response_scores,
    sequence_log_ratio,
)

P, G, T = 2, 3, 5
RNG = np.random.default_rng(0)
CURRENT, ROLLOUT = RNG.normal(-1, 0.3, (2, P, G, T))
CURRENT[0, 1, 2], CURRENT[1] = np.nan, ROLLOUT[1] + 0.001
MASK = (RNG.random((P, G, T)) < 0.7).astype(int)
MASK[0, 1, 2], MASK[1, 2] = 1, 0
SIGNS = np.array([[-1.0, 1.0, 0.5], [1.0, -0.5, 1.0]])


def flat(x):
    return x.reshape(P * G, *x.shape[2:])


@pytest.mark.parametrize("xp", [np.array, torch.tensor])
def test_log_ratios_scores_and_drift(xp):
    arrays = [xp(x) for x in (CURRENT, ROLLOUT, MASK)]
    deep, rows = log_ratio(*arrays), log_ratio(*map(flat, arrays))
    for name in ("z", "clipped", "nonfinite", "live", "length", "empty"):
        np.testing.assert_array_equal(flat(getattr(deep, name)), getattr(rows, name))
    for make, names in (
        (response_scores, "d g mean_k2 mean_k3 max_k2 mean_exp_abs length empty"),
        (prefix_drift, "signed absolute length"),
    ):
        one, two = make(deep.z, deep.live), make(rows.z, rows.live)
        for name in names.split():
            np.testing.assert_array_equal(flat(getattr(one, name)), getattr(two, name))
    finite = xp(np.nan_to_num(np.asarray(deep.z)))
    np.testing.assert_array_equal(flat(sequence_log_ratio(finite, arrays[2])), sequence_log_ratio(flat(finite), flat(arrays[2])))


@pytest.mark.parametrize("xp", [np.array, torch.tensor])
@pytest.mark.parametrize("rule", ALL_RULES, ids=repr)
def test_decisions_weights_and_losses(rule, xp):
    z, mask, a = xp(log_ratio(CURRENT, ROLLOUT, MASK).z), xp(MASK), xp(SIGNS)
    rows = flat(z), flat(mask), flat(a)
    keep, weights = rule.keep(z, mask, a), rule.weights(z, mask, a)
    assert tuple(keep.shape) == (P, G)
    np.testing.assert_array_equal(flat(keep), rule.keep(*rows))
    np.testing.assert_array_equal(flat(weights), rule.weights(*rows))
    for signs in (a[..., None], xp(np.broadcast_to(SIGNS[..., None], MASK.shape).copy())):
        np.testing.assert_array_equal(rule.keep(z, mask, signs), keep)
    for normalize in ("fixed", "retained"):
        for aggregate in ("token", "sequence"):
            options = dict(normalize=normalize, aggregate=aggregate, ratio=aggregate)
            want = float(masked_loss(rows[0], rows[2], rows[1], flat(keep), weights=flat(weights), **options))
            assert float(masked_loss(z, a, mask, keep, weights=weights, **options)) == pytest.approx(want, rel=1e-12)
    finite = xp(np.nan_to_num(np.asarray(z)))
    np.testing.assert_array_equal(flat(clipped_surrogate(finite, a)), clipped_surrogate(flat(finite), rows[2]))


@pytest.mark.parametrize("xp", [np.array, torch.tensor])
@pytest.mark.parametrize("scale", ["group", "none"])
def test_group_advantages(xp, scale):
    rewards = np.array(
        [
            [[1.0, 0.0, 0.0, 0.5], [1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 0.0, 1.0]],
            [[0.1, 0.1, 0.1, 0.1], [3.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
        ]
    )
    deep = group_advantages(xp(rewards), scale=scale, eps=0.1)
    np.testing.assert_array_equal(flat(deep), group_advantages(xp(flat(rewards)), scale=scale, eps=0.1))
    single = group_advantages(xp(rewards[0, 0]), scale=scale, eps=0.1)
    np.testing.assert_allclose(single, deep[0][0], rtol=1e-15)
    assert group_advantages(xp([0.1] * 4), scale=scale).tolist() == [0.0] * 4
    with pytest.raises(ValueError, match=r"^rewards: got shape \(0,\); need"):
        group_advantages(xp([]))
