"""torch.compile: one graph, one compilation for all lengths, the same decisions, and no look at a value from the host."""

import math

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
        packed, packed_keep = packed_policy_loss(*flat, advantages, rule, token_mask=mask.reshape(-1))
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


def check_inductor(rule, dtype, rows=4, width=300):
    current, rollout, mask, a = (x.to(dtype) if x.is_floating_point() else x for x in batch(rows, width))
    step = torch.compile(everything(rule, "token"), fullgraph=True)
    x = current.clone().requires_grad_()
    compiled = step(x, rollout, mask, a)
    compiled[0].backward()
    y = current.clone().requires_grad_()
    eager = everything(rule, "token")(y, rollout, mask, a)
    eager[0].backward()
    z = log_ratio(current.double().numpy(), rollout.double().numpy(), mask.numpy()).z
    numpy_keep = rule.keep(z, mask.numpy(), a.double().numpy()).tolist()
    for keeps in (compiled[3:], eager[3:]):
        assert [k.tolist() for k in keeps] == [numpy_keep] * 4
    torch.testing.assert_close(compiled[0], eager[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-7)
    assert torch.isfinite(x.grad).all() and (x.grad[mask == 0] == 0).all()


def test_inductor_masks_like_numpy():
    current, rollout, mask, _ = batch(4, 300)
    compiled = torch.compile(lambda c, r, m: keep_mask(c, r, m, CARM(1.02)), fullgraph=True)
    z = log_ratio(current.double().numpy(), rollout.double().numpy(), mask.numpy()).z
    assert compiled(current, rollout, mask).tolist() == CARM(1.02).keep(z, mask.numpy()).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_inductor_agrees_with_eager_and_with_numpy_for_every_rule(rule, dtype):
    check_inductor(rule, dtype)


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
