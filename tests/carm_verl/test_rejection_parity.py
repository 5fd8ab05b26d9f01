"""Decisions against verl's own rejection masks (`rollout_correction.rollout_rs`), as replay and as a baseline."""

from tests.carm_verl.build import actor, call, policy_loss  # isort: skip (skips the module where verl is absent)

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import compute_policy_loss_bypass_mode
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask
from verl.workers.config import PolicyLossConfig

from carm_core import CARM, TRM, GeoMean, geomean_score, max_k2


@st.composite
def log_ratios(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """(z, mask) float64 (B, T): ragged rows with holes, drifts of every size, none of them near-tied by construction."""
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    value = st.floats(-1.0, 1.0) | st.floats(-0.05, 0.05) | st.just(0.0)
    z = torch.tensor(draw(st.lists(st.lists(value, min_size=width, max_size=width), min_size=rows, max_size=rows)), dtype=torch.float64)
    flags = st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows)
    return z, torch.tensor(draw(flags))


def verls(z: torch.Tensor, mask: torch.Tensor, option: str, threshold: float | str) -> torch.Tensor:
    """Rows that verl keeps; rows without live tokens count as kept, as `carm_core` counts them."""
    kept, _ = compute_rollout_rejection_mask(z, mask.double(), option, threshold)
    return (kept.sum(-1) > 0) | ~mask.any(-1)


@settings(max_examples=100, deadline=None)
@given(log_ratios(), st.sampled_from([1.0025, 1.005, 1.01, 1.02, 1.03, 1.5]))
def test_geomean_decides_as_seq_mean_k1(batch: tuple[torch.Tensor, torch.Tensor], tau: float) -> None:
    z, mask = batch
    assume(bool(mask.any()))  # verl raises where no token is live
    assume(bool(((geomean_score(z, mask) - math.log(tau)).abs() > 1e-7).all()))
    assert GeoMean(tau).keep(z, mask).tolist() == verls(z, mask, "seq_mean_k1", tau).tolist()


@settings(max_examples=100, deadline=None)
@given(log_ratios(), st.sampled_from([0.001, 0.05, 0.3]))
def test_trm_decides_as_seq_max_k2(batch: tuple[torch.Tensor, torch.Tensor], delta: float) -> None:
    z, mask = batch
    assume(bool(mask.any()))
    assume(bool(((max_k2(z, mask) - delta).abs() > 1e-12).all()))
    assert TRM(delta).keep(z, mask).tolist() == verls(z, mask, "seq_max_k2", delta).tolist()


def test_verls_k1_bands_bound_the_inverse_ratio() -> None:
    """k1 = -z: a band "lo_hi" of verl accepts current / rollout in [1/hi, 1/lo], which only a reciprocal band hides."""
    z, mask = torch.tensor([[math.log(1.5)], [math.log(0.65)]], dtype=torch.float64), torch.ones(2, 1)
    assert verls(z, mask.bool(), "seq_mean_k1", "0.6_1.4").tolist() == [True, False]
    inside = (z.exp() >= 0.6) & (z.exp() <= 1.4)
    assert inside[:, 0].tolist() == [False, True]
    assert verls(z, mask.bool(), "seq_mean_k1", 1.52).tolist() == [True, False] == GeoMean(1.52).keep(z, mask).tolist()


def test_no_mean_of_verls_sees_what_carm_sees() -> None:
    """Half the tokens doubled, half of them halved: seq_mean_k1 keeps it at every threshold, CARM rejects it."""
    z = torch.tensor([[math.log(2.0), -math.log(2.0)] * 4], dtype=torch.float64)
    mask = torch.ones_like(z)
    assert verls(z, mask.bool(), "seq_mean_k1", 1.0025).tolist() == [True]
    assert CARM(1.04).keep(z, mask).tolist() == [False]


def test_without_global_counts_verls_bypass_loss_is_the_retained_one() -> None:
    """With verl's counts of the mini-batch its bypass loss is "fixed" (see test_loss); without them the mask shrinks the denominator."""
    old = torch.full((2, 3), -2.0, dtype=torch.float64)
    new = (old + torch.tensor([[0.0], [1.0]], dtype=torch.float64)).requires_grad_()
    advantages, mask = torch.ones_like(old), torch.ones_like(old).bool()
    correction = {"loss_type": "ppo_clip", "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 1.02}
    theirs = actor(PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction))
    expected, _ = call(theirs, old, new, advantages, mask, compute_policy_loss_bypass_mode)
    retained, _ = call(actor(policy_loss("geomean", tau=1.02, normalize="retained")), old, new, advantages, mask)
    fixed, _ = call(actor(policy_loss("geomean", tau=1.02)), old, new, advantages, mask)
    assert (retained.item(), fixed.item()) == pytest.approx((-1.0, -0.5)) and expected.item() == retained.item()
