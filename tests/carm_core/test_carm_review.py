"""Faults found in review: shapes that broadcast along the wrong axis, types that slip through, empty responses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from carm_core import CARM, IcePop, SeqMIS, calibrated_tau, masked_loss, tau_for_reject_rate


def test_weights_of_one_per_response_are_refused_even_when_rows_equal_tokens():
    z = torch.zeros(2, 2, requires_grad=True)
    with pytest.raises(ValueError, match="weights: got shape"):
        masked_loss(z, torch.ones(2), torch.ones(2, 2), torch.tensor([True, True]), weights=torch.tensor([1.0, 0.0]))
    with pytest.raises(TypeError):
        masked_loss(z, torch.ones(2), torch.ones(2, 2), torch.tensor([True, True]), weights=np.ones((2, 2)))


@pytest.mark.parametrize("denominator", [0, torch.tensor(0), torch.tensor(0.0)])
def test_nothing_kept_is_a_loss_of_zero_under_any_denominator(denominator):
    z = torch.zeros(2, 2, requires_grad=True)
    loss = masked_loss(z, torch.ones(2), torch.ones(2, 2), torch.tensor([False, False]), denominator=denominator)
    loss.backward()
    assert float(loss.detach()) == 0 and not z.grad.any()


def test_icepop_has_no_negative_only_form():
    with pytest.raises(ValueError, match="conditioning: got 'negative'; need 'both'"):
        IcePop(conditioning="negative")


def test_a_response_without_live_tokens_is_kept_under_any_cap():
    assert SeqMIS(0.5).keep(np.zeros((1, 2)), np.zeros((1, 2))).tolist() == [True]


def test_advantages_of_another_array_type_are_refused():
    with pytest.raises(TypeError):
        CARM(1.02, conditioning="negative").keep(torch.zeros(2, 2), torch.ones(2, 2), np.ones(2))


@pytest.mark.parametrize("choose", [calibrated_tau, tau_for_reject_rate])
@pytest.mark.parametrize("level", [None, "x", float("nan"), float("inf"), True, 1.0])
def test_levels_that_are_none_get_the_usual_message(choose, level):
    with pytest.raises(ValueError, match=r": got .*; need .*; because "):
        choose(np.linspace(0, 1, 50), level)
    assert choose(np.linspace(0, 1, 50), np.float32(0.1)).level == choose(np.linspace(0, 1, 50), "0.1").level


@pytest.mark.parametrize(("tau", "hint"), [(0.02, "1.02"), (0.99, "1.0101")])
def test_the_hint_names_what_was_probably_meant(tau, hint):
    with pytest.raises(ValueError, match=f"did you mean {hint}"):
        CARM(tau)
    with pytest.raises(ValueError, match="tau: got 'x'; need a number"):
        CARM("x")
