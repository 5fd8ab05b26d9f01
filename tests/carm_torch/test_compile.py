"""torch.compile: one graph, one compilation for all lengths, the same decisions, and no look at a value from the host."""

import math

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_strategies import RULES

from carm_core import CARM, OPSM, IcePop, log_ratio
from carm_torch import global_denominator, keep_mask, masked_policy_loss, packed_keep_mask, packed_policy_loss


def batch(rows, width, seed=0):
    """Responses at 0, 0.5 and -0.3 nats plus noise, the last token of each dead and full of garbage, one response not finite."""
    generator = torch.Generator().manual_seed(seed)
    rollout = torch.randn(rows, width, generator=generator)
    shift = torch.tensor([0.001, 0.5, -0.3, 0.002])[torch.arange(rows) % 4]
    current = rollout + shift[:, None] * torch.rand(rows, width, generator=generator)
    mask = torch.ones(rows, width, dtype=torch.long)
    current[:, -1], mask[:, -1] = math.nan, 0
    if rows > 3:
        current[3, 0] = math.inf
    return current, rollout, mask, torch.tensor([1.0, -1.0])[torch.arange(rows) % 2]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def everything(rule, ratio):
    def step(current, rollout, mask, advantages):
        loss, keep = masked_policy_loss(current, rollout, mask, advantages, rule, ratio=ratio)
        cu = torch.arange(mask.shape[0] + 1) * mask.shape[1]
        flat = current.reshape(-1), rollout.reshape(-1), cu
        packed, packed_keep = packed_policy_loss(*flat, advantages, rule, token_mask=mask.reshape(-1), ratio=ratio, aggregate=ratio)
        count = global_denominator(mask, keep)
        also = keep_mask(current, rollout, mask, rule, advantages), packed_keep_mask(*flat, rule, advantages, token_mask=mask.reshape(-1))
        return loss, packed, count, keep, packed_keep, *also

    return step


@pytest.mark.parametrize(("rule", "ratio"), [(rule, "token") for rule in RULES] + [(CARM(1.02), "sequence")], ids=repr)
def test_every_rule_traces_as_one_graph(rule, ratio):
    step, inputs = everything(rule, ratio), batch(4, 6)
    counter = CompileCounter()
    got = torch.compile(step, fullgraph=True, backend=counter)(*inputs)
    assert counter.frame_count == 1
    for x, y in zip(got, step(*inputs), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rule", [CARM(1.02), OPSM(0.01), IcePop()], ids=repr)
def test_other_lengths_and_batch_sizes_do_not_compile_again(rule):
    counter = CompileCounter()
    step = torch.compile(everything(rule, "token"), fullgraph=True, dynamic=True, backend=counter)
    for rows, width in ((4, 6), (4, 9), (5, 33), (7, 128), (6, 6)):
        inputs = batch(rows, width)
        torch.testing.assert_close(step(*inputs)[0], everything(rule, "token")(*inputs)[0], rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 1


def test_inductor_masks_like_numpy():
    current, rollout, mask, _ = batch(4, 300)
    compiled = torch.compile(lambda c, r, m: keep_mask(c, r, m, CARM(1.02)), fullgraph=True)
    z = log_ratio(current.double().numpy(), rollout.double().numpy(), mask.numpy()).z
    assert compiled(current, rollout, mask).tolist() == CARM(1.02).keep(z, mask.numpy()).tolist()


def in_dtype(inputs, dtype):
    return [x.to(dtype) if x.is_floating_point() else x for x in inputs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "dtype"),
    [(rule, torch.float32) for rule in RULES] + [(rule, torch.float64) for rule in (CARM(1.02), OPSM(0.01), IcePop())],
    ids=str,
)
def test_inductor_decides_and_weighs_like_eager_and_like_numpy(rule, dtype):
    def step(current, rollout, mask, a):
        found = log_ratio(current, rollout, mask)
        flat = current.reshape(-1), rollout.reshape(-1), torch.arange(mask.shape[0] + 1) * mask.shape[1]
        packed = packed_keep_mask(*flat, rule, a, token_mask=mask.reshape(-1))
        return keep_mask(current, rollout, mask, rule, a), packed, rule.weights(found.z, found.live, a)

    inputs = in_dtype(batch(4, 300), dtype)
    current, rollout, mask, a = (x.double().numpy() for x in inputs)
    z = log_ratio(current, rollout, mask).z
    for keep, packed, weights in (torch.compile(step, fullgraph=True)(*inputs), step(*inputs)):
        assert keep.tolist() == packed.tolist() == rule.keep(z, mask, a).tolist()
        np.testing.assert_allclose(weights, rule.weights(z, mask, a), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "dtype"), [(CARM(1.02), torch.float32), (CARM(1.02), torch.float64), (IcePop(), torch.float32)], ids=str)
def test_inductor_gives_the_losses_and_gradients_of_eager(rule, dtype):
    current, *rest = in_dtype(batch(4, 300), dtype)
    step = everything(rule, "token")
    x, y = current.clone().requires_grad_(), current.clone().requires_grad_()
    compiled, eager = torch.compile(step, fullgraph=True)(x, *rest), step(y, *rest)
    for found in (compiled, eager):
        (found[0] + found[1]).backward()
    for got, want in zip(compiled, eager, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-7)
    assert torch.isfinite(x.grad).all() and (x.grad[rest[1] == 0] == 0).all()


@pytest.mark.slow
def test_inductor_accumulates_long_responses_without_drift():
    z = torch.full((2, 200_001), 0.0245)
    exact = torch.tensor(0.0245).item()
    for tau, keep in ((math.exp(exact * (1 + 2e-6)), True), (math.exp(exact * (1 - 2e-6)), False)):
        rule = CARM(tau)
        mask = torch.compile(lambda c, r, m, rule=rule: keep_mask(c, r, m, rule), fullgraph=True)
        assert mask(z, torch.zeros(z.shape), torch.ones(z.shape)).tolist() == [keep, keep]


@pytest.mark.parametrize("margin", [2e-7, -2e-7])
@pytest.mark.parametrize("tau", [1.0025, 1.02, 1.04])
def test_at_the_boundary_float32_agrees_with_float64_outside_two_parts_in_ten_million(tau, margin):
    """d is a float64 sum rounded once to float32, as is log tau: two roundings of 2**-24 each, and those of the inputs."""
    z = torch.full((1, 7), math.log(tau) * (1 + margin), dtype=torch.float64)
    zero, ones = torch.zeros(1, 7, dtype=torch.float64), torch.ones(1, 7)
    wide = keep_mask(z, zero, ones, CARM(tau)).item()
    assert wide == (margin < 0)
    assert keep_mask(z.float(), zero.float(), ones, CARM(tau)).item() == wide


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_nothing_reads_a_value_from_the_device(rule):
    """A fake tensor has no values: .item(), bool() or .tolist() on one raises."""
    with FakeTensorMode():
        z, mask, a = torch.empty(3, 4), torch.ones(3, 4), torch.empty(3)
        for nonfinite in ("reject", "drop"):
            assert keep_mask(z, z, mask, rule, a, nonfinite=nonfinite).shape == (3,)
            assert masked_policy_loss(z, z, mask, a, rule, nonfinite=nonfinite, normalize="retained", ratio="sequence")[0].shape == ()
        cu = torch.tensor([0, 3, 9])
        assert packed_keep_mask(torch.empty(9), torch.empty(9), cu, rule, a[:2]).shape == (2,)
        assert packed_policy_loss(torch.empty(9), torch.empty(9), cu, a[:2], rule)[1].shape == (2,)
        assert global_denominator(mask, torch.ones(3, dtype=torch.bool)).shape == ()
        with pytest.raises(Exception, match="_local_scalar_dense"):
            keep_mask(z, z, mask, rule, a, nonfinite="raise")
