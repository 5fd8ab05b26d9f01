"""Classes of faults that other implementations had, each over its whole class rather than its trigger."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_strategies import RULES, alone, few, padded_batches

from carm_core import CARM, OPSM, GeoMean, IcePop, SeqMIS, TokenMIS, log_ratio, mask_report, masked_loss
from carm_torch import keep_mask, masked_policy_loss, packed_keep_mask, packed_policy_loss


def loss_written_out(rule, rows, a, normalize):
    """(loss, total count): Eqs. 2, 3, 72 on selected tokens with the rule's weights, one response at a time."""
    total, count = 0.0, 0
    for row, x in zip(rows, a, strict=True):
        keep, weights = alone(rule, row, x)
        for z, w in zip(row, weights, strict=True):
            r = math.exp(max(-20.0, min(20.0, z)))
            value = min(r * x, min(max(r, 0.8), 1.28) * x)
            total += float(keep) * w * (max(value, 3 * x) if x < 0 else value)
        count += len(row) if keep or normalize == "fixed" else 0
    return -total / max(count, 1)


@few
@given(padded_batches(), st.booleans())
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_masked_batch_gives_what_its_selected_tokens_give(rule, normalize, batch, square):
    rows, current, rollout, mask, a = batch
    want = loss_written_out(rule, rows, a.tolist(), normalize)
    x = current.clone().requires_grad_()
    loss, keep = masked_policy_loss(x, rollout, mask, a, rule, normalize=normalize)
    assert keep.tolist() == [alone(rule, row, s)[0] for row, s in zip(rows, a, strict=True)]
    assert loss.item() == pytest.approx(want, rel=2e-5, abs=1e-5)
    loss.backward()
    assert torch.isfinite(x.grad).all() and (x.grad[mask == 0] == 0).all() and (x.grad[~keep] == 0).all()
    cu = torch.arange(len(rows) + 1) * mask.shape[1]
    flat = current.reshape(-1).clone().requires_grad_()
    packed, packed_keep = packed_policy_loss(flat, rollout.reshape(-1), cu, a, rule, token_mask=mask.reshape(-1), normalize=normalize)
    packed.backward()
    assert packed_keep.tolist() == keep.tolist()
    assert packed.item() == pytest.approx(loss.item(), rel=1e-6, abs=1e-7)
    torch.testing.assert_close(flat.grad.reshape(x.shape), x.grad, rtol=1e-6, atol=1e-7)


@few
@given(padded_batches(square=True))
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_as_many_responses_as_tokens_never_broadcasts_the_wrong_way(rule, batch):
    rows, current, rollout, mask, a = batch
    want = [alone(rule, row, s)[0] for row, s in zip(rows, a, strict=True)]
    for signs in (a, a[:, None]):
        keep = keep_mask(current, rollout, mask, rule, signs)
        assert keep.shape == (len(rows),) and keep.tolist() == want
        loss, _ = masked_policy_loss(current, rollout, mask, signs, rule)
        assert loss.item() == pytest.approx(loss_written_out(rule, rows, a.tolist(), "fixed"), rel=2e-5, abs=1e-5)
    found = log_ratio(current, rollout, mask)
    flat = masked_loss(found.z, a, mask, keep)
    assert torch.equal(masked_loss(found.z, a[:, None], mask, keep[:, None]), flat)


@few
@given(padded_batches(), st.permutations(range(5)), st.integers(0, 3), st.sampled_from(["left", "right"]))
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_order_of_rows_and_more_padding_change_nothing(rule, batch, order, extra, side):
    rows, current, rollout, mask, a = batch
    keep = keep_mask(current, rollout, mask, rule, a)
    at = torch.tensor([i for i in order if i < len(rows)])
    assert keep_mask(current[at], rollout[at], mask[at], rule, a[at]).tolist() == keep[at].tolist()
    pad = (extra, 0) if side == "left" else (0, extra)
    wider = [torch.nn.functional.pad(x, pad, value=v) for x, v in ((current, math.nan), (rollout, -math.inf), (mask, 0))]
    assert keep_mask(*wider, rule, a).tolist() == keep.tolist()
    before, after = (masked_policy_loss(*x, a, rule)[0] for x in ((current, rollout, mask), wider))
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-7)


@few
@given(padded_batches(), st.sampled_from([torch.bool, torch.uint8, torch.int32, torch.float32, torch.bfloat16]))
def test_any_nonzero_mark_of_any_dtype_is_one_live_token(batch, dtype):
    _, current, rollout, mask, a = batch
    marked = (
        (mask != 0).to(dtype)
        if dtype in (torch.bool, torch.uint8)
        else (mask * 0.5).to(dtype)
        if dtype.is_floating_point
        else mask.to(dtype)
    )
    for rule in (CARM(1.02), SeqMIS(3.0), OPSM(0.01)):
        want, got = (masked_policy_loss(current, rollout, m, a, rule) for m in (mask, marked))
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@few
@given(padded_batches(), st.sampled_from([torch.bfloat16, torch.float16]))
@pytest.mark.filterwarnings("ignore:log-probabilities arrive")
def test_half_precision_inputs_decide_as_their_float32_values(batch, dtype):
    _, current, rollout, mask, a = batch
    half = current.to(dtype), rollout.to(dtype)
    for rule in (CARM(1.02), GeoMean(1.02), OPSM(0.01)):
        wide = keep_mask(half[0].float(), half[1].float(), mask, rule, a)
        assert torch.equal(keep_mask(*half, mask, rule, a), wide)
        cu = torch.arange(mask.shape[0] + 1) * mask.shape[1]
        assert torch.equal(packed_keep_mask(half[0].reshape(-1), half[1].reshape(-1), cu, rule, a, token_mask=mask.reshape(-1)), wide)
        loss, _ = masked_policy_loss(*half, mask, a, rule)
        assert loss.dtype == torch.float32


@few
@given(padded_batches(), st.sampled_from([math.nan, math.inf, -math.inf, 1e4, -1e4]))
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("aggregate", ["token", "sequence"])
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
def test_no_branch_of_the_loss_trains_a_rejected_response(ratio, aggregate, normalize, batch, poison):
    _, current, rollout, mask, _ = batch
    a = -torch.ones(mask.shape[0])
    first = (mask != 0) & ((mask != 0).cumsum(1) == 1)
    for spoiled in (torch.where(first, poison, current), torch.where(mask != 0, 9.0 + current, current)):
        x = spoiled.clone().requires_grad_()
        loss, keep = masked_policy_loss(x, rollout, mask, a, CARM(1.02), normalize=normalize, ratio=ratio, aggregate=aggregate)
        loss.backward()
        assert not keep[(mask != 0).any(1)].any()
        assert loss.item() == 0.0 and (x.grad == 0).all()


@pytest.mark.parametrize(("low", "high"), [(0.6, 1.4), (0.9, 1.2)])
def test_bands_that_are_not_reciprocal_read_the_ratio_the_right_way_up(low, high):
    up = torch.log(torch.tensor([[1.5]]))
    down = torch.log(torch.tensor([[1 / 1.3]]))
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    assert not keep_mask(up, zero, one, SeqMIS(high, low)).item()
    assert keep_mask(down, zero, one, SeqMIS(high, low)).item() == (low <= 1 / 1.3)
    for rule in (TokenMIS(high, low), IcePop(low, high)):
        assert rule.weights(up, one).item() == 0.0
        assert (rule.weights(down, one).item() > 0) == (low <= 1 / 1.3)


def test_missing_arrays_are_named():
    one = torch.ones(1, 1)
    for f in (keep_mask, lambda *x: masked_policy_loss(*x[:3], one[0], x[3])):
        with pytest.raises(ValueError, match=r"^rollout: got None; need an array; because without the sampler's log-probabilities every"):
            f(one, None, one, CARM(1.02))
    with pytest.raises(ValueError, match=r"^packed tensors: got None; need \(N,\) or \(1, N\); because nothing stands in for log-prob"):
        packed_keep_mask(one, None, torch.tensor([0, 1]), CARM(1.02))
    with pytest.raises(ValueError, match=r"^token_mask: got None; need an array; because nothing stands in for it$"):
        log_ratio(one, one, None)
    with pytest.raises(ValueError, match=r"^current: got None; need an array; because nothing stands in for it$"):
        log_ratio(None, one, one)
    with pytest.raises(ValueError, match=r"^nonfinite: got 'skip'; need 'reject', 'raise' or 'drop'; because a silent fourth way would"):
        keep_mask(one, one, one, CARM(1.02), nonfinite="skip")


def test_placeholder_scores_of_an_appended_end_token_reject_unless_masked():
    current, rollout = torch.tensor([[-1.0, -4.0]]), torch.tensor([[-1.0, 0.0]])
    assert keep_mask(current, rollout, torch.tensor([[1, 1]]), CARM(1.02)).tolist() == [False]
    assert keep_mask(current, rollout, torch.tensor([[1, 0]]), CARM(1.02)).tolist() == [True]


@few
@given(padded_batches())
def test_reports_of_a_batch_divide_by_live_tokens_only(batch):
    rows, current, rollout, mask, _ = batch
    found = log_ratio(current, rollout, mask)
    report = mask_report(found.z, mask, keep_mask(current, rollout, mask, CARM(1.02)))
    live = [r for r in rows if r]
    assert report.responses == len(live) and report.tokens == sum(map(len, live))
    rejected = [len(r) for r in live if not alone(CARM(1.02), r, 0.0)[0]]
    assert report.rejected_token_fraction == pytest.approx(sum(rejected) / max(report.tokens, 1))
    assert 0.0 <= report.rejected_fraction <= 1.0 and math.isfinite(report.mean_d)
