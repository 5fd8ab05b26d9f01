"""GSPO's sequence ratio, sequence counts, clip-higher, and the policy for tokens that are not finite."""

import math

import numpy as np
import pytest
import torch
from carm_strategies import batches, some
from hypothesis import assume, given
from hypothesis import strategies as st

from carm_core import CARM, GeoMean, carm_score, clipped_surrogate, log_ratio, masked_loss, sequence_log_ratio
from carm_torch import masked_policy_loss

signs = st.sampled_from([-1.5, 0.0, 2.0])


def surrogate(r, a, low, high, c):
    value = min(r * a, min(max(r, 1 - low), 1 + high) * a)
    return max(value, c * a) if c is not None and a < 0 else value


@some
@given(batches(), st.data())
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("aggregate", ["token", "sequence"])
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
def test_loss_equals_the_sum_written_out(ratio, aggregate, normalize, batch, data):
    rows, z, mask = batch
    n = len(rows)
    a = data.draw(st.lists(signs, min_size=n, max_size=n))
    keep = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    low, high, c = data.draw(st.sampled_from([(0.2, 0.28, 3.0), (3e-4, 4e-4, None), (0.2, 0.2, 1.5)]))
    total, count = 0.0, 0
    for row, sign, kept in zip(rows, a, keep, strict=True):
        s = math.exp(max(-20.0, min(20.0, math.fsum(row) / max(len(row), 1))))
        values = [surrogate(s if ratio == "sequence" else math.exp(max(-20.0, min(20.0, x))), sign, low, high, c) for x in row]
        if row and kept:
            total += math.fsum(values) / (len(row) if aggregate == "sequence" else 1)
        if row and (kept or normalize == "fixed"):
            count += 1 if aggregate == "sequence" else len(row)
    options = dict(normalize=normalize, clip_low=low, clip_high=high, dual_clip=c, ratio=ratio, aggregate=aggregate)
    want = -total / max(count, 1)
    assert masked_loss(z, np.array(a), mask, np.array(keep), **options) == pytest.approx(want, rel=1e-9, abs=1e-12)
    tensors = (torch.tensor(x) for x in (z, np.array(a), mask, np.array(keep)))
    assert masked_loss(*tensors, **options).item() == pytest.approx(want, rel=1e-9, abs=1e-12)


@some
@given(batches(allow_empty=False), st.sampled_from([math.nan, math.inf, 1e4, -1e4]), st.data())
@pytest.mark.parametrize("aggregate", ["token", "sequence"])
def test_sequence_ratio_is_blind_to_rejected_and_dead_tokens_and_spreads_its_gradient_evenly(aggregate, batch, poison, data):
    rows, z, mask = batch
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    active = (mask == 1) & keep[:, None]
    x = torch.tensor(np.where(active, np.clip(z, -1, 1) * 1e-5, poison), requires_grad=True)
    loss = masked_loss(
        x, torch.ones(len(rows)), torch.tensor(mask), torch.tensor(keep), ratio="sequence", aggregate=aggregate, clip_low=0.1, clip_high=0.1
    )
    loss.backward()
    assert math.isfinite(loss.item())
    grad = x.grad.numpy()
    assert np.all(grad[~active] == 0)
    for i in np.flatnonzero(keep):
        live = grad[i][mask[i] == 1]
        np.testing.assert_allclose(live, live[0], rtol=1e-12)
        unit = len(rows) if aggregate == "sequence" else mask.sum() / mask[i].sum()
        assert live.sum() == pytest.approx(-1 / unit, rel=1e-3)


@some
@given(batches())
def test_sequence_log_ratio_is_the_signed_mean_on_every_token(batch):
    rows, z, mask = batch
    got = sequence_log_ratio(z, mask)
    assert got.shape == z.shape
    for i, row in enumerate(rows):
        np.testing.assert_allclose(got[i], math.fsum(row) / max(len(row), 1), rtol=1e-12, atol=1e-15)


def test_clip_higher_moves_the_upper_edge_alone():
    z = np.log(np.array([[1.5, 0.5]]))
    for a, edges in ((1.0, (1.28, 0.5)), (-1.0, (-1.5, -0.8))):
        np.testing.assert_allclose(clipped_surrogate(z, np.array([a])), [edges], rtol=1e-12)
    assert clipped_surrogate(z, np.array([1.0]), clip_high=0.2)[0, 0] == pytest.approx(1.2)


def test_a_denominator_below_one_is_used_and_zero_counts_as_one():
    z, a, m, keep = np.zeros((1, 1)), np.ones(1), np.ones((1, 1)), np.array([True])
    assert masked_loss(z, a, m, keep, denominator=0.5) == -2.0
    assert masked_loss(z, a, m, keep, denominator=np.float64(0.5)) == -2.0
    assert masked_loss(z, a, m, keep, denominator=0) == masked_loss(z, a, m, keep, denominator=np.int64(0)) == -1.0
    loss = masked_loss(*(torch.tensor(x, dtype=torch.float32) for x in (z, a, m, keep)), denominator=torch.tensor(0.5, dtype=torch.float64))
    assert loss.dtype == torch.float32 and loss.item() == -2.0


def test_option_errors():
    z, a, m, keep = np.zeros((1, 1)), np.ones(1), np.ones((1, 1)), np.array([True])
    for name, because in (
        ("normalize", "the two losses differ by the kept fraction"),
        ("ratio", "a ratio is of a token or of a response"),
        ("aggregate", "the count is of tokens or of responses"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: got 'x'; need '(fixed|token)' or '(retained|sequence)'; because {because}$"):
            masked_loss(z, a, m, keep, **{name: "x"})
    with pytest.raises(ValueError, match=r"^token_mask: got shape \(1, 2\); need \(1, 1\); because it marks the tokens of z$"):
        sequence_log_ratio(z, np.ones((1, 2)))


# ---- nonfinite="drop"


@some
@given(batches(), st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_dropped_tokens_leave_both_the_sum_and_the_length(batch, poison, data):
    rows, z, mask = batch
    hit = (mask == 1) & (np.array(data.draw(st.lists(st.booleans(), min_size=z.size, max_size=z.size))).reshape(z.shape) == 1)
    rollout = np.where(hit, poison, 0.0)
    current = np.where(mask == 1, z, 0.0)
    got = log_ratio(current, rollout, mask, nonfinite="drop")
    remaining = [list(z[i][(mask[i] == 1) & ~hit[i]]) for i in range(len(rows))]
    assert got.length.tolist() == [len(r) for r in remaining]
    assert got.empty.tolist() == [not r for r in remaining]
    assert got.nonfinite.tolist() == hit.any(axis=1).tolist()
    assert (got.live == ((mask == 1) & ~hit)).all()
    want = [math.fsum(abs(max(-20.0, min(20.0, x))) for x in r) / max(len(r), 1) for r in remaining]
    np.testing.assert_allclose(carm_score(got.z, got.live), want, rtol=1e-12, atol=1e-15)
    with_original_mask = GeoMean(1e9).keep(got.z, mask)
    assert not with_original_mask[hit.any(axis=1)].any(), "the original mask rejects, it never dilutes"


def test_drop_reaches_the_loss_and_raise_stops_it():
    current = torch.tensor([[0.0, 0.01, 0.0]], requires_grad=True)
    rollout = torch.tensor([[math.nan, 0.0, 0.0]])
    mask = torch.ones(1, 3)
    loss, keep = masked_policy_loss(current, rollout, mask, torch.ones(1), CARM(1.02), nonfinite="drop")
    loss.backward()
    assert keep.tolist() == [True] and loss.item() == pytest.approx(-(math.exp(0.01) + 1) / 2)
    assert current.grad[0, 0] == 0 and (current.grad[0, 1:] < 0).all()
    loss, keep = masked_policy_loss(current, rollout, mask, torch.ones(1), CARM(1.02))
    assert keep.tolist() == [False] and loss.item() == 0.0
    with pytest.raises(ValueError, match=r"^current, rollout: got a non-finite log-probability on 1 live token\(s\); need finite values"):
        masked_policy_loss(current, rollout, mask, torch.ones(1), CARM(1.02), nonfinite="raise")


def test_the_count_of_clipped_tokens_leaves_nonfinite_ones_out():
    got = log_ratio(np.array([[30.0, math.inf, 20.0, -21.0]]), np.zeros((1, 4)), np.ones((1, 4)))
    assert got.clipped.tolist() == [2]


@some
@given(st.floats(0.1, 20), st.floats(-40, 40))
def test_the_guard_is_the_given_clip(clip, x):
    assume(abs(abs(x) - clip) > 1e-9)
    got = log_ratio(np.array([[x]]), np.zeros((1, 1)), np.ones((1, 1)), clip=clip)
    assert got.z[0, 0] == max(-clip, min(clip, x)) and got.clipped[0] == (abs(x) > clip)
