"""Layouts once more: default float types, as many tokens as responses, tensors that are views, arguments that are no tensors."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_strategies import RULES, alone, few, padded_batches

from carm_core import CARM, OPSM, TRM, GeoMean, IcePop, NoMask, TRMMean
from carm_torch import blocks, keep_mask, masked_policy_loss, packed_keep_mask, packed_policy_loss

SIGNED = [make(x, conditioning="negative") for make, x in ((CARM, 1.02), (GeoMean, 1.02), (TRM, 0.05), (TRMMean, 0.001))] + [OPSM(0.01)]


DEFAULTS = [torch.float32, torch.float64, torch.bfloat16]


@contextmanager
def default_float(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def decisions(rule, current, rollout, mask, signs):
    """keep of one batch by every layout: whole, by rows, by columns, packed in one and in many blocks, and by both losses."""
    rows, width = mask.shape
    cu, arrays = torch.arange(rows + 1) * width, (current, rollout, mask)
    flat = current.reshape(-1), rollout.reshape(-1), cu
    marks = mask.reshape(-1)
    tokens = signs.reshape(1, -1) if signs.shape == mask.shape else signs
    found = [masked_policy_loss(*arrays, signs, rule)[1], packed_policy_loss(*flat, tokens, rule, token_mask=marks)[1]]
    for size in (1, 4, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "CPU_BLOCK", size)
            found += [keep_mask(*arrays, rule, signs), packed_keep_mask(*flat, rule, tokens, token_mask=marks)]
    return [x.tolist() for x in found]


@few
@given(padded_batches(), st.data(), st.sampled_from([torch.float32, torch.float64]), st.sampled_from(DEFAULTS))
@pytest.mark.parametrize("rule", [*RULES[:-2], *SIGNED], ids=repr)
def test_every_layout_decides_alike_whatever_the_default_float_type_and_the_signs(rule, batch, data, dtype, default):
    rows, current, rollout, mask, a = batch
    current, rollout = current.to(dtype), rollout.to(dtype)
    want = [alone(rule, row, x)[0] for row, x in zip(rows, a, strict=True)]
    with default_float(default):
        assert decisions(rule, current, rollout, mask, a.to(dtype)) == [want] * 8
    drawn = data.draw(st.lists(st.sampled_from([-1.0, 0.25, 2.0]), min_size=mask.numel(), max_size=mask.numel()))
    signs = torch.tensor(drawn, dtype=dtype).reshape(mask.shape)
    means = [[x for x, m in zip(s, marks, strict=True) if m] for s, marks in zip(signs.tolist(), mask.tolist(), strict=True)]
    means = [sum(x) / len(x) if x else 0.0 for x in means]
    if mask.shape[1] and all(abs(x) > 1e-3 or x == 0.0 for x in means):
        want = [alone(rule, row, x)[0] for row, x in zip(rows, means, strict=True)]
        with default_float(default):
            assert decisions(rule, current, rollout, mask, signs) == [want] * 8


@pytest.mark.parametrize("default", DEFAULTS, ids=str)
@pytest.mark.parametrize("rule", SIGNED, ids=repr)
def test_running_totals_of_one_statistic_never_reach_the_next(rule, default):
    current, zero, cu = torch.tensor([4.0, -4.0, -0.5, -4.0]), torch.zeros(4), torch.tensor([0, 4])
    signs = torch.tensor([[-1.0, -1.0, -1.0, 1.0]])
    with default_float(default):
        assert packed_keep_mask(current, zero, cu, rule, signs).tolist() == [False]


def test_as_many_tokens_as_responses():
    current, zero, cu = torch.tensor([-1.0, -1.0]), torch.zeros(2), torch.tensor([0, 2, 2])
    per_token = torch.tensor([[-1.0, 3.0]])  # mean 1 for the first response, none for the second
    assert packed_keep_mask(current, zero, cu, OPSM(0.1), per_token).tolist() == [True, True]
    assert packed_keep_mask(current, zero, cu, OPSM(0.1), per_token[0]).tolist() == [False, True]
    loss, keep = packed_policy_loss(current, zero, cu, per_token, NoMask())
    assert keep.tolist() == [True, True] and loss.item() == pytest.approx(-(-0.8 + 3 * math.exp(-1)) / 2)
    loss, _ = packed_policy_loss(current, zero, cu, per_token[0], NoMask())
    assert loss.item() == pytest.approx(0.8)


@few
@given(padded_batches())
@pytest.mark.parametrize("rule", [CARM(1.02), OPSM(0.01), TRM(0.05)], ids=repr)
def test_views_and_gradients_change_nothing(rule, batch):
    _, current, rollout, mask, a = batch
    want = keep_mask(current, rollout, mask, rule, a)
    views = [x.t().contiguous().t() for x in (current, rollout, mask)]
    strided = [torch.stack([x, x], -1)[..., 0] for x in (current, rollout, mask)]
    wanting = current.clone().requires_grad_(), rollout.clone().requires_grad_(), mask
    for arrays in (views, strided, wanting):
        keep = keep_mask(*arrays, rule, a)
        assert torch.equal(keep, want) and not keep.requires_grad
        assert torch.equal(masked_policy_loss(*arrays, a, rule)[1], want)
    masked_policy_loss(*wanting, a, rule)[0].backward()
    assert wanting[1].grad is None


def test_arguments_that_are_no_tensors_are_named():
    one, cu, array = torch.zeros(1, 2), torch.tensor([0, 2]), np.zeros((1, 2))
    calls = [
        lambda x, rule: keep_mask(x, x, x, rule),
        lambda x, rule: packed_keep_mask(x, x, cu, rule),
        lambda x, rule: masked_policy_loss(x, x, x, torch.ones(1), rule),
        lambda x, rule: packed_policy_loss(x, x, cu, torch.ones(1), rule),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"^arrays: got NumPy arrays; need torch tensors; because carm_core takes NumPy arrays itself$"):
            call(array, CARM(1.02))
        with pytest.raises(TypeError, match=r"^rule: got 1\.02; need a carm_core rule, e\.g\. CARM\(1\.02\); because a number alone"):
            call(one, 1.02)
    for call in (masked_policy_loss, lambda a, b, c, d, e: packed_policy_loss(a, b, cu, d, e)):
        with pytest.raises(ValueError, match=r"^advantages: got None; need an array; because the surrogate multiplies ratios by them$"):
            call(one, one, one + 1, None, CARM(1.02))
    for size in (1, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "CPU_BLOCK", size)
            for bad in (np.ones(1), [1.0], 1.0):
                with pytest.raises(TypeError, match=r"^arrays: got Tensor, \w+; need all NumPy arrays or all torch tensors"):
                    keep_mask(one, one, one, OPSM(0.1), bad)
                with pytest.raises(TypeError, match=r"^arrays: got Tensor, \w+; need all NumPy arrays or all torch tensors"):
                    packed_keep_mask(one, one, cu, OPSM(0.1), bad)


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (torch.tensor([[0, 2]]), r"torch\.int64 \(1, 2\)"),
        (torch.tensor([], dtype=torch.int32), r"torch\.int32 \(0,\)"),
        (torch.tensor([0.0, 2.0]), r"torch\.float32 \(2,\)"),
        (np.array([0, 2]), "ndarray"),
        ([0, 2], "list"),
        (None, "NoneType"),
    ],
)
def test_boundaries_are_integers_on_one_axis(bad, got):
    two = torch.zeros(2)
    for call in (
        lambda cu: packed_keep_mask(two, two, cu, CARM(1.02)),
        lambda cu: packed_policy_loss(two, two, cu, torch.ones(1), CARM(1.02)),
    ):
        with pytest.raises(ValueError, match=rf"^cu_seqlens: got {got}; need a \(B \+ 1,\) integer tensor; because it holds the bound"):
            call(bad)


@few
@given(padded_batches(), st.integers(0, 3), st.sampled_from(["reject", "drop"]), st.sampled_from([math.nan, 1e4, None]), st.booleans())
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("aggregate", ["token", "sequence"])
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
@pytest.mark.parametrize("rule", [CARM(1.02), IcePop(), OPSM(0.01)], ids=repr)
def test_packed_losses_and_gradients_equal_padded_ones(rule, normalize, aggregate, ratio, batch, tail, nonfinite, poison, counted):
    _, current, rollout, mask, a = batch
    first = (mask != 0) & ((mask != 0).cumsum(1) == 1)
    if poison is not None:
        current = torch.where(first, poison, current)
    options = dict(
        normalize=normalize, aggregate=aggregate, ratio=ratio, nonfinite=nonfinite, clip_low=3e-4, clip_high=4e-4, dual_clip=1.5,
        denominator=torch.tensor(2.5) if counted else None,
    )  # fmt: skip
    x, flat = current.clone().requires_grad_(), torch.nn.functional.pad(current.reshape(-1), (0, tail), value=math.nan).requires_grad_()
    old, marks = (torch.nn.functional.pad(y.reshape(-1), (0, tail), value=1) for y in (rollout, mask))
    want, keep = masked_policy_loss(x, rollout, mask, a, rule, **options)
    got, packed_keep = packed_policy_loss(flat, old, torch.arange(mask.shape[0] + 1) * mask.shape[1], a, rule, token_mask=marks, **options)
    (want + got).backward()
    assert packed_keep.tolist() == keep.tolist()
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)
    torch.testing.assert_close(flat.grad[: x.numel()].reshape(x.shape), x.grad, rtol=1e-5, atol=1e-7)
    assert (flat.grad[x.numel() :] == 0).all() and (x.grad[~keep] == 0).all()


def test_words_of_the_packed_loss_are_checked():
    two, cu = torch.zeros(2), torch.tensor([0, 2])
    for name in ("normalize", "ratio", "aggregate"):
        with pytest.raises(ValueError, match=rf"^{name}: got 'x'; need '\w+' or '\w+'; because "):
            packed_policy_loss(two, two, cu, torch.ones(1), CARM(1.02), **{name: "x"})
