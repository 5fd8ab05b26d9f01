"""Refusals in full: what was got, what is needed, and why; each check at both sides of its boundary."""

import math

import numpy as np
import pytest
import torch

from carm_core import (
    CARM,
    OPSM,
    TRM,
    GeoMean,
    MeanExpAbs,
    Rows,
    TRMMean,
    carm_bound,
    clipped_surrogate,
    finite_T_bound,
    log_ratio,
    masked_loss,
    paired_decisions,
    rejection_curve,
    severity_bound,
    tau_for_certificate,
    tau_for_reject_rate,
)


def refuses(message, call):
    with pytest.raises(ValueError, match="got") as caught:
        call()
    assert str(caught.value) == message


def test_thresholds():
    why = "because it is a ratio-domain threshold and the score is never below 1"
    for rule, name in ((CARM, "tau"), (GeoMean, "tau"), (MeanExpAbs, "threshold")):
        refuses(f"{name}: got 0.02; need >= 1; {why} (did you mean 1.02?)", lambda rule=rule: rule(0.02))
        refuses(f"{name}: got 0.8; need >= 1; {why} (did you mean 1.25?)", lambda rule=rule: rule(0.8))
        refuses(f"{name}: got 0; need >= 1; {why}", lambda rule=rule: rule(0.0))
        refuses(f"{name}: got nan; need >= 1; {why}", lambda rule=rule: rule(math.nan))
        refuses(f"{name}: got None; need a number >= 1; because it is a ratio-domain threshold", lambda rule=rule: rule(None))
        assert rule(1.0).keep(np.zeros((1, 1)), np.ones((1, 1))).all()
    refuses("delta: got 0; need > 0; because it bounds z^2 / 2", lambda: TRM(0.0))
    refuses("delta: got -1; need > 0; because it bounds a mean of non-negative terms", lambda: TRMMean(-1.0))
    refuses("delta: got nan; need > 0; because it bounds a downward drift in nats", lambda: OPSM(math.nan))
    refuses("conditioning: got 'up'; need 'both' or 'negative'; because a response has one sign", lambda: CARM(1.02, conditioning="up"))
    assert TRM(5e-324).delta > 0


def test_certificates():
    refuses("band: got (1, 1.28); need 0 < l < 1 < u; because an on-policy ratio is 1", lambda: carm_bound(1.02, (1.0, 1.28)))
    refuses("T: got 0; need an integer >= 1; because a fraction of no tokens is undefined", lambda: finite_T_bound(0, 1.02))
    refuses(
        "severity: got nan; need 0 <= severity < inf; because it is a distance past the boundary",
        lambda: carm_bound(1.02, severity=math.nan),
    )
    refuses("p_out: got 0; need 0 < p_out <= 1; because severity is the mean over violating tokens", lambda: severity_bound(0.0, 1.02))
    refuses("p_out: got 1.5; need 0 <= p_out <= 1; because it is a fraction of tokens", lambda: tau_for_certificate(1.5))
    refuses("p_out: got 1.01; need 0 < p_out <= 1; because severity is the mean over violating tokens", lambda: severity_bound(1.01, 1.02))
    assert finite_T_bound(1, 1.02) == 0.0 and severity_bound(1.0, 1.28) > 0 and tau_for_certificate(0.0) == 1.0


def test_arrays():
    one, wide = np.ones((1, 1)), np.ones((1, 2))
    refuses("token_mask: got shape (1, 2); need (1, 1); because it marks the tokens of z", lambda: Rows(one, wide))
    refuses(
        "rollout, token_mask: got shapes (1, 2), (1, 1); need (1, 1); because all three are read token for token",
        lambda: log_ratio(one, wide, one),
    )
    refuses("clip: got -1; need > 0; because it bounds |z|", lambda: log_ratio(one, one, one, clip=-1))
    refuses("advantages: got None; need one per response; because OPSM gates negative advantages only", lambda: OPSM(0.1).keep(one, one))
    refuses(
        "advantages: got shape (3,); need (1,), (1, 1) or (1, 2); because a response has one sign",
        lambda: OPSM(0.1).keep(wide, wide, np.ones(3)),
    )
    with pytest.raises(
        TypeError, match=r"^arrays: got ndarray, Tensor; need all NumPy arrays or all torch tensors; because dtype and device"
    ):
        Rows(one, torch.ones(1, 1))


def test_losses_and_reports():
    one, a, keep = np.zeros((1, 1)), np.ones(1), np.ones(1, dtype=bool)
    refuses("dual_clip: got 1; need > 1; because at most 1 would clip on-policy tokens", lambda: clipped_surrogate(one, a, dual_clip=1))
    for low, high in ((1.0, 0.28), (-0.1, 0.28), (0.2, -0.1)):
        refuses(
            f"clip_low, clip_high: got {low}, {high}; need 0 <= clip_low < 1 and clip_high >= 0; because r = 1 is inside",
            lambda low=low, high=high: clipped_surrogate(one, a, clip_low=low, clip_high=high),
        )
    assert clipped_surrogate(one, a, clip_low=0.0, clip_high=0.0, dual_clip=1.0001).tolist() == [[1.0]]
    refuses(
        "advantages: got shape (2,); need (1,), (1, 1) or (1, 1); because every token needs exactly one",
        lambda: clipped_surrogate(one, np.ones(2)),
    )
    refuses("keep: got shape (2,); need (1,); because a response is kept or rejected whole", lambda: masked_loss(one, a, one, np.ones(2)))
    refuses(
        "weights: got shape (1,); need (1, 1); because they weigh the tokens of z",
        lambda: masked_loss(one, a, one, keep, weights=np.ones(1)),
    )
    refuses("keep_second: got shape (1,); need (2,); because decisions are paired", lambda: paired_decisions([True, False], [True]))
    refuses("taus: got [0.5]; need >= 1; because they are ratio-domain thresholds", lambda: rejection_curve([0.1], 0.5))
    refuses("scores: got none; need at least 1; because a quantile of nothing is undefined", lambda: tau_for_reject_rate([], 0))
    refuses(
        "scores: got negative or NaN values; need CARM scores in nats; because a quantile of them would be meaningless",
        lambda: tau_for_reject_rate([-1.0], 0),
    )
    refuses(
        "rate: got 0; need >= 1/2; because that many scores are NaN and NaN is always rejected",
        lambda: tau_for_reject_rate([0.1, math.nan], 0),
    )
    assert tau_for_reject_rate([0.0], 0).log_tau == 0.0
