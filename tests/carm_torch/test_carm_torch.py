import doctest
import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import carm_torch
from carm_core import CARM, OPSM, TRM, GeoMean, IcePop, MeanExpAbs, NoMask, SeqMIS, SeqTIS, TRMMean, log_ratio, masked_loss
from carm_torch import PackedRows, keep_mask, masked_policy_loss, packed_keep_mask

RULES = [
    NoMask(),
    CARM(1.02),
    GeoMean(1.02),
    TRM(0.05),
    TRMMean(0.001),
    MeanExpAbs(1.02),
    OPSM(0.01),
    SeqMIS(3.0),
    SeqTIS(2.0),
    IcePop(),
    CARM(1.02, conditioning="negative"),
]
few = settings(max_examples=12, deadline=None)
# values off every threshold, so that summation order cannot decide
values = st.sampled_from([0.0, 0.003, -0.004, 0.013, 0.11, -0.27, 2.5, -4.0, 60.0])


@st.composite
def packs(draw):
    """(list of responses, advantages): zero-length responses included."""
    rows = draw(st.lists(st.lists(values, max_size=6), min_size=1, max_size=5))
    return rows, draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=len(rows), max_size=len(rows)))


def padded(rows, side, extra, fill):
    width = max(map(len, rows)) + extra
    z, mask = torch.full((len(rows), width), fill), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        where = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        z[i, where], mask[i, where] = torch.tensor(row), 1
    return z, mask


def numpy_decision(rule, rows, advantages):
    z, mask = padded(rows, "right", 0, 0.0)
    z, mask = z.double().numpy(), mask.numpy()
    return rule.keep(log_ratio(z, np.zeros(z.shape), mask).z, mask, np.array(advantages)).tolist()


@few
@given(packs(), st.sampled_from(["left", "right"]), st.integers(0, 3), st.sampled_from([0.0, math.nan, math.inf, -1e10]))
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_padded_decisions_equal_the_core_whatever_side_and_content_of_padding(rule, pack, side, extra, fill):
    rows, a = pack
    z, mask = padded(rows, side, extra, fill)
    keep = keep_mask(z, torch.zeros(z.shape), mask, rule, torch.tensor(a))
    assert keep.dtype == torch.bool and keep.tolist() == numpy_decision(rule, rows, a)


@few
@given(packs(), st.integers(0, 3), st.sampled_from([torch.int32, torch.int64]), st.booleans())
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_packed_decisions_equal_padded_ones_with_trailing_padding_and_empty_responses(rule, pack, tail, dtype, row_axis):
    rows, a = pack
    flat = torch.tensor([x for r in rows for x in r] + [math.nan] * tail)
    cu = torch.tensor([0, *np.cumsum([len(r) for r in rows]).tolist()], dtype=dtype)
    if row_axis:
        flat = flat[None]
    keep = packed_keep_mask(flat, torch.zeros(flat.shape), cu, rule, torch.tensor(a))
    assert keep.dtype == torch.bool and keep.tolist() == numpy_decision(rule, rows, a)


@few
@given(packs(), st.data())
def test_packed_token_mask_removes_tokens_from_sum_and_length(pack, data):
    rows, a = pack
    flat = [x for r in rows for x in r]
    live = data.draw(st.lists(st.booleans(), min_size=len(flat), max_size=len(flat)))
    cu = torch.tensor([0, *np.cumsum([len(r) for r in rows]).tolist()])
    it = iter(live)
    remaining = [[x for x in r if next(it)] for r in rows]
    z = torch.tensor(flat)
    keep = packed_keep_mask(z, torch.zeros(z.shape), cu, CARM(1.02), token_mask=torch.tensor(live, dtype=torch.bool))
    assert keep.tolist() == numpy_decision(CARM(1.02), remaining, a)


def test_two_packed_segments_and_one_pad_give_two_rows():
    rows = PackedRows(torch.tensor([-1.0, -3.0, 2.0, 99.0]), torch.ones(4), torch.tensor([0, 2, 3]))
    assert rows.z.tolist() == [-1.0, -3.0, 2.0, 0.0]
    assert rows.length.tolist() == [2, 1]
    assert rows.sum(rows.z).tolist() == [-4.0, 2.0]
    assert rows.max(abs(rows.z)).tolist() == [3.0, 2.0]
    assert rows.spread(torch.tensor([5.0, 6.0])).tolist() == [5.0, 5.0, 6.0, 0.0]


def test_packed_nonfinite_token_rejects_its_response_only():
    cu = torch.tensor([0, 2, 3, 5])
    current = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0])
    for poison in (math.nan, math.inf, -math.inf):
        rollout = current.clone()
        rollout[2] = poison
        for rule in RULES:
            assert packed_keep_mask(current, rollout, cu, rule, torch.ones(3)).tolist() == [True, False, True]
        with pytest.raises(ValueError, match="non-finite"):
            packed_keep_mask(current, rollout, cu, CARM(1.02), nonfinite="raise")


@few
@given(packs())
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
def test_masked_policy_loss_is_the_core_loss_and_gates_gradients(normalize, pack):
    rows, a = pack
    z, mask = padded(rows, "right", 1, math.nan)
    current, a = z.clone().requires_grad_(), torch.tensor(a)
    loss, keep = masked_policy_loss(current, torch.zeros(z.shape), mask, a, CARM(1.02), normalize=normalize)
    guarded = log_ratio(z, torch.zeros(z.shape), mask).z
    assert torch.equal(keep, CARM(1.02).keep(guarded, mask))
    assert loss.item() == masked_loss(guarded, a, mask, keep, normalize=normalize).item()
    loss.backward()
    assert torch.all(current.grad[~keep] == 0) and torch.all(current.grad[mask == 0] == 0)


def test_all_rejected_and_all_masked_micro_batches_keep_the_graph():
    for mask in (torch.ones(2, 3), torch.zeros(2, 3)):
        current = torch.zeros(2, 3, requires_grad=True)
        loss, _ = masked_policy_loss(current, torch.full((2, 3), -5.0), mask, torch.ones(2), CARM(1.02))
        loss.backward()
        assert loss.item() == 0.0 and torch.all(current.grad == 0)


def test_token_weights_of_the_rule_reach_the_loss():
    current = torch.log(torch.tensor([[1.1, 6.0]]))
    loss, _ = masked_policy_loss(current, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1), IcePop())
    assert loss.item() == pytest.approx(-(1.1 * 1.1) / 2)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_host_sync_on_fake_tensors(rule):
    """A fake tensor has no values: reading one on the host (.item(), bool(), .tolist()) raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        z, mask, a = torch.empty(3, 4), torch.ones(3, 4), torch.empty(3)
        assert keep_mask(z, z, mask, rule, a).shape == (3,)
        assert packed_keep_mask(torch.empty(9), torch.empty(9), torch.tensor([0, 3, 9]), rule, a[:2]).shape == (2,)
        assert masked_policy_loss(z, z, mask, a, rule)[0].shape == ()


def test_traces_as_one_graph_under_torch_compile():
    rules = [CARM(1.02), TRM(0.05), OPSM(0.01)]

    def step(current, rollout, mask, a, cu):
        masks = [keep_mask(current, rollout, mask, r, a) for r in rules]
        packed = [packed_keep_mask(current.reshape(-1), rollout.reshape(-1), cu, r, a) for r in rules]
        return *masks, *packed, masked_policy_loss(current, rollout, mask, a, CARM(1.02))[0]

    generator = torch.Generator().manual_seed(0)
    rollout = torch.randn(3, 5, generator=generator)
    current = (rollout + torch.tensor([[0.001], [0.5], [-0.3]])).requires_grad_()
    inputs = rollout, torch.ones(3, 5, dtype=torch.long), torch.tensor([1.0, -1.0, 1.0]), torch.tensor([0, 5, 5, 13])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(current, *inputs)
    for got, want in zip(compiled, step(current, *inputs), strict=True):
        assert torch.equal(got, want)
    compiled[-1].backward()
    assert torch.all(current.grad[1] == 0) and torch.all(current.grad[0] != 0)


def test_dtype_and_device_class_of_the_result_follow_the_input():
    for dtype in (torch.float32, torch.float64):
        z = torch.zeros(1, 2, dtype=dtype, requires_grad=True)
        loss, keep = masked_policy_loss(z, torch.zeros(1, 2, dtype=dtype), torch.ones(1, 2), torch.ones(1, dtype=dtype), CARM(1.02))
        assert loss.dtype == dtype and not keep.requires_grad


def test_doctests_names_and_argument_errors():
    for name in ("masks", "packed"):
        assert doctest.testmod(importlib.import_module(f"carm_torch.{name}")).failed == 0
    assert set(carm_torch.__all__) <= set(dir(carm_torch))
    two = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="packed tensors: got shape"):
        packed_keep_mask(two, two, torch.tensor([0, 6]), CARM(1.02))
    with pytest.raises(ValueError, match=r"^z: got shape \(2, 3\); need \(N,\); because responses are packed on one axis$"):
        PackedRows(two, torch.ones(2, 3), torch.tensor([0, 6]))
    with pytest.raises(ValueError, match="advantages: got None"):
        keep_mask(two, two, torch.ones(2, 3), OPSM(0.1))
    with pytest.raises(ValueError, match="rollout, token_mask: got shapes"):
        keep_mask(two, two[:, :2], torch.ones(2, 3), CARM(1.02))
