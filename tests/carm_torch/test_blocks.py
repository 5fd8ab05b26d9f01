"""Blockwise evaluation: the same decisions as in one piece, at the memory of one block."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_strategies import RULES, alone, few, padded_batches

from benchmarks.masks import extra_memory
from carm_core import CARM, OPSM, TRM, GeoMean, Rule, log_ratio
from carm_torch import blocks, keep_mask, packed_keep_mask
from carm_torch.blocks import GuardedRows, count, guarded, zero_dead


@few
@given(padded_batches(), st.sampled_from([torch.float32, torch.float64]), st.sampled_from(["(B,)", "(B, 1)", "(B, T)"]))
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("block", [1, 5, 1 << 16])
def test_padded_decisions_do_not_depend_on_the_block(rule, block, batch, dtype, shape):
    rows, current, rollout, mask, a = batch
    want = [alone(rule, row, x)[0] for row, x in zip(rows, a, strict=True)]
    if shape == "(B, T)" and mask.shape[1] != len(rows):
        signs = torch.where(mask != 0, a[:, None], math.nan)
        want = [alone(rule, row, x if row else 0.0)[0] for row, x in zip(rows, a, strict=True)]
    else:
        signs = a if shape == "(B,)" else a[:, None]
    got = blocks.keep_padded(rule, current.to(dtype), rollout.to(dtype), mask, signs, clip=20.0, drop=False, block=block)
    assert got.dtype == torch.bool and got.tolist() == want


@few
@given(padded_batches(), st.integers(0, 3), st.sampled_from([torch.int32, torch.int64]), st.booleans())
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_packed_decisions_do_not_depend_on_the_block(rule, batch, tail, dtype, per_token):
    rows, current, rollout, mask, a = batch
    cu = torch.arange(len(rows) + 1, dtype=dtype) * mask.shape[1]
    flat = [torch.cat([x.reshape(-1), x.new_zeros(tail)]) for x in (current, rollout, mask)]
    flat[0][flat[0].numel() - tail :] = math.nan
    signs = a
    if per_token and flat[0].shape != a.shape:
        signs = torch.cat([a.repeat_interleave(mask.shape[1]), torch.full((tail,), math.nan)])
        a = torch.where(mask.any(1), a, 0.0)
    want = [alone(rule, row, x)[0] for row, x in zip(rows, a, strict=True)]
    for size in (1, 4, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "CPU_BLOCK", size)
            assert packed_keep_mask(flat[0], flat[1], cu, rule, signs, token_mask=flat[2]).tolist() == want


@few
@given(padded_batches(), st.sampled_from([math.nan, math.inf, -math.inf]), st.sampled_from(["current", "rollout", "both"]))
@pytest.mark.parametrize("nonfinite", ["reject", "drop"])
@pytest.mark.parametrize("rule", [CARM(1.02), TRM(0.05), OPSM(0.01), GeoMean(1.02, conditioning="negative")], ids=repr)
def test_nonfinite_tokens_follow_the_policy_in_every_layout(rule, nonfinite, batch, poison, where):
    rows, current, rollout, mask, a = batch
    first = (mask != 0) & ((mask != 0).cumsum(1) == 1)
    if where != "rollout":
        current = torch.where(first, poison, current)
    if where != "current":
        rollout = torch.where(first, poison, rollout)
    want = [nonfinite == "drop" and alone(rule, row[1:], x)[0] if row else True for row, x in zip(rows, a, strict=True)]
    cu = torch.arange(len(rows) + 1) * mask.shape[1]
    for size in (1, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "CPU_BLOCK", size)
            assert keep_mask(current, rollout, mask, rule, a, nonfinite=nonfinite).tolist() == want
            flat = current.reshape(-1), rollout.reshape(-1), cu, rule, a
            assert packed_keep_mask(*flat, token_mask=mask.reshape(-1), nonfinite=nonfinite).tolist() == want


@few
@given(padded_batches(), st.sampled_from([torch.float32, torch.float64]), st.floats(0.1, 30))
def test_guarded_equals_log_ratio(batch, dtype, clip):
    _, current, rollout, mask, _ = batch
    z, live = guarded(current.to(dtype), rollout.to(dtype), mask, clip, False)
    want = log_ratio(current.to(dtype), rollout.to(dtype), mask, clip=clip)
    assert torch.equal(z.nan_to_num(nan=99.0), want.z.nan_to_num(nan=99.0)) and torch.equal(live, want.live)
    assert count(live).dtype == torch.int64 and torch.equal(count(live), want.length)


@few
@given(padded_batches())
def test_inputs_are_never_written_to(batch):
    _, current, rollout, mask, a = batch
    before = [x.clone() for x in (current, rollout, mask, a)]
    keep_mask(current, rollout, mask, OPSM(0.01), a)
    for x, y in zip((current, rollout, mask, a), before, strict=True):
        assert torch.equal(x.nan_to_num(nan=7.0), y.nan_to_num(nan=7.0))


def test_clearing_bits_equals_where():
    for dtype in (torch.float32, torch.float64):
        z = torch.tensor([1.5, -2.5, math.nan, math.inf, -0.0], dtype=dtype)
        for bits in range(32):
            live = torch.tensor([bool(bits >> i & 1) for i in range(5)])
            assert torch.equal(zero_dead(z.clone(), live).nan_to_num(nan=9.0), torch.where(live, z, 0.0).nan_to_num(nan=9.0))


def test_empty_batches():
    for shape in ((0, 3), (3, 0), (0, 0)):
        x = torch.zeros(shape)
        for rule in RULES:
            assert keep_mask(x, x, x.long(), rule, torch.ones(shape[0])).tolist() == [True] * shape[0]
    assert packed_keep_mask(torch.zeros(0), torch.zeros(0), torch.tensor([0]), CARM(1.02)).tolist() == []
    assert packed_keep_mask(torch.zeros(2), torch.zeros(2), torch.tensor([0, 0, 2, 2]), TRM(0.05)).tolist() == [True] * 3


def test_advantages_of_the_wrong_length_are_refused_before_any_block(monkeypatch):
    monkeypatch.setattr(blocks, "CPU_BLOCK", 3)
    x = torch.zeros(2, 3)
    for bad in (torch.ones(3), torch.ones(3, 1), torch.ones(2, 2), torch.ones(1)):
        with pytest.raises(
            ValueError, match=r"^advantages: got shape \(.*\); need \(2,\), \(2, 1\) or \(2, 3\); because a response has one"
        ):
            keep_mask(x, x, x.long(), CARM(1.02), bad)
    with pytest.raises(ValueError, match=r"^advantages: got shape \(3,\); need \(2,\), \(2, 1\), \(6,\) or \(1, 6\); because"):
        packed_keep_mask(torch.zeros(6), torch.zeros(6), torch.tensor([0, 3, 6]), OPSM(0.1), torch.ones(3))


def test_a_custom_rule_sees_the_whole_batch_in_both_layouts(monkeypatch):
    monkeypatch.setattr(blocks, "CPU_BLOCK", 2)

    class BelowBatchMean(Rule):
        def accept(self, rows):
            d = rows.mean(abs(rows.z))
            return d <= d.mean()

    current, zero = torch.tensor([[0.1, 0.1], [0.2, 0.2], [0.6, 0.6]]), torch.zeros(3, 2)
    assert keep_mask(current, zero, torch.ones(3, 2), BelowBatchMean()).tolist() == [True, True, False]
    flat = current.reshape(-1), zero.reshape(-1), torch.tensor([0, 2, 4, 6])
    assert packed_keep_mask(*flat, BelowBatchMean()).tolist() == [True, True, False]


@pytest.mark.parametrize("rule", [CARM(1.02), GeoMean(1.02), TRM(0.05), OPSM(0.02)], ids=repr)
def test_padded_mask_needs_at_most_two_percent_more_memory(rule):
    current = torch.zeros(256, 16_384)
    mask, a = torch.ones(256, 16_384, dtype=torch.long), -torch.ones(256)
    inputs = 2 * current.numel() * 4 + mask.numel() * 8
    assert 0 < extra_memory(lambda: keep_mask(current, current, mask, rule, a), "cpu") <= 0.02 * inputs


@pytest.mark.parametrize("tokens", [1 << 20, 1 << 22])
def test_memory_of_packed_and_of_very_long_responses_does_not_grow_with_them(tokens):
    current = torch.zeros(tokens)
    cu = torch.arange(0, tokens + 1, 4096)
    assert extra_memory(lambda: packed_keep_mask(current, current, cu, CARM(1.02)), "cpu") < 4 << 20
    mask = torch.ones(1, tokens, dtype=torch.bool)
    assert extra_memory(lambda: keep_mask(current[None], current[None], mask, CARM(1.02)), "cpu") < 2 << 20


def test_sums_of_long_float32_responses_accumulate_in_float64():
    rng = np.random.default_rng(0)
    z = torch.tensor(0.0245 + 1e-4 * rng.standard_normal((2, 200_001)), dtype=torch.float32)
    exact = z.double().abs().mean(-1).to(torch.float32)
    rows = GuardedRows(z, torch.zeros(z.shape), torch.ones(z.shape), 20.0, False)
    columns = blocks.ColumnBlocks(z, torch.zeros(z.shape), torch.ones(z.shape), 20.0, False, 1000)
    for got in (rows.mean_of(abs), columns.mean_of(abs)):
        assert torch.equal(got, exact)


def test_mixed_float_types_score_in_the_wider_one_in_every_layout():
    narrow, wide = torch.full((1, 6), 0.02), torch.zeros(1, 6, dtype=torch.float64)
    between = math.exp((0.02 + narrow.double()[0, 0].item()) / 2)  # float32(0.02) is below 0.02
    assert narrow.double()[0, 0].item() < math.log(between) < 0.02
    rule = CARM(between)
    assert keep_mask(narrow, wide, torch.ones(1, 6), rule).item()
    columns = blocks.ColumnBlocks(narrow, wide, torch.ones(1, 6), 20.0, False, 2)
    assert columns.mean_of(abs).dtype == GuardedRows(narrow, wide, torch.ones(1, 6), 20.0, False).mean_of(abs).dtype == torch.float64
    assert packed_keep_mask(narrow, wide, torch.tensor([0, 6]), rule).item()
