import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from carm_strategies import batches, some, vectors
from hypothesis import assume, given
from hypothesis import strategies as st

from carm_core import CARM, IcePop, clipped_surrogate, masked_loss

advantage = st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-3, 3))


def surrogate_by_cases(x, a, low=0.2, high=0.28, c=3.0):
    """Eq. 2 and 72 written as cases on the sign of the advantage."""
    r = math.exp(max(-20.0, min(20.0, x)))
    if a >= 0:
        return a * min(r, 1 + high)
    return a * min(max(r, 1 - low), c)


@some
@given(st.lists(st.tuples(st.floats(-30, 30), advantage), min_size=1, max_size=8))
def test_clipped_surrogate_equals_the_case_form(pairs):
    z, a = np.array([[x for x, _ in pairs]]), np.array([[y for _, y in pairs]])
    want = [[surrogate_by_cases(x, y) for x, y in pairs]]
    np.testing.assert_allclose(clipped_surrogate(z, a), want, rtol=1e-12)
    np.testing.assert_allclose(clipped_surrogate(torch.tensor(z), torch.tensor(a)).numpy(), want, rtol=1e-12)
    single = clipped_surrogate(z.T, a[0])
    np.testing.assert_allclose(single[:, 0], want[0], rtol=1e-12)


@pytest.mark.parametrize("case", vectors("dual_clip"), ids=lambda c: c["id"])
def test_vector_dual_clip(case):
    i = {k: float(Fraction(v)) for k, v in case["input"].items()}
    z = torch.tensor([[math.log(i["r"])]], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([i["A"]], dtype=torch.float64)
    widths = {"clip_low": i["eps_low"], "clip_high": i["eps_high"]}
    plain = clipped_surrogate(z, a, **widths, dual_clip=None)
    dual = clipped_surrogate(z, a, **widths, dual_clip=i["c"])
    assert plain.item() == pytest.approx(float(Fraction(case["expected"]["surrogate"])), abs=1e-12)
    assert dual.item() == pytest.approx(float(Fraction(case["expected"]["dual"])), abs=1e-12)
    loss = masked_loss(z, a, torch.ones(1, 1), torch.tensor([True]), **widths, dual_clip=i["c"])
    assert loss.item() == pytest.approx(float(Fraction(case["expected"]["loss"])), abs=1e-12)
    if abs(i["r"] - 1 - i["eps_high"]) > 1e-9:
        loss.backward()
        assert (z.grad.item() != 0) is case["expected"]["gradient_active_interior"]


@pytest.mark.parametrize("case", vectors("masked_loss"), ids=lambda c: c["id"])
def test_vector_masked_loss(case):
    rows = case["input"]["responses"]
    width = max(len(r["ratios"]) for r in rows)
    z, mask = np.full((len(rows), width), math.nan), np.zeros((len(rows), width))
    for i, r in enumerate(rows):
        z[i, : len(r["ratios"])] = [math.log(Fraction(x)) for x in r["ratios"]]
        mask[i, : len(r["ratios"])] = 1
    a, keep = np.array([float(r["A"]) for r in rows]), np.array([bool(r["mask"]) for r in rows])
    for normalize, key in [("retained", "loss_eq3"), ("fixed", "loss_all_token_mean")]:
        want = float(Fraction(case["expected"][key]))
        assert masked_loss(z, a, mask, keep, normalize=normalize) == pytest.approx(want, abs=1e-12)
        got = masked_loss(torch.tensor(z), torch.tensor(a), torch.tensor(mask), torch.tensor(keep), normalize=normalize)
        assert got.item() == pytest.approx(want, abs=1e-12)


@some
@given(batches(), st.data(), st.sampled_from(["fixed", "retained"]))
def test_masked_loss_equals_a_sum_over_tokens(batch, data, normalize):
    rows, z, mask = batch
    n = len(rows)
    a = data.draw(st.lists(advantage, min_size=n, max_size=n))
    keep = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    total = math.fsum(surrogate_by_cases(x, y) for row, y, k in zip(rows, a, keep, strict=True) if k for x in row)
    count = sum(len(r) for r, k in zip(rows, keep, strict=True) if k or normalize == "fixed")
    want = -total / max(count, 1)
    got = masked_loss(z, np.array(a), mask, np.array(keep), normalize=normalize)
    assert got == pytest.approx(want, rel=1e-10, abs=1e-12)
    column = masked_loss(z, np.array(a)[:, None], mask, np.array(keep)[:, None], normalize=normalize)
    assert column == got
    assert masked_loss(z, np.array(a), mask, np.array(keep), denominator=7) == pytest.approx(-total / 7, rel=1e-10, abs=1e-12)


@some
@given(batches(), st.data(), st.sampled_from([math.nan, math.inf, -math.inf, 1e4, -1e4]), st.sampled_from([torch.float32, torch.float64]))
def test_rejected_responses_and_dead_tokens_have_exactly_zero_loss_and_gradient(batch, data, poison, dtype):
    rows, z, mask = batch
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    active = (mask == 1) & keep[:, None]
    a = np.where(keep, -1.0, poison)
    clean = torch.tensor(np.where(active, z, 0.0), dtype=dtype, requires_grad=True)
    dirty = torch.tensor(np.where(active, z, poison), dtype=dtype, requires_grad=True)
    results = []
    for x, adv in ((clean, np.full(len(rows), -1.0)), (dirty, a)):
        loss = masked_loss(x, torch.tensor(adv, dtype=dtype), torch.tensor(mask), torch.tensor(keep))
        loss.backward()
        results.append((loss.item(), x.grad.numpy()))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert np.all(results[1][1][~active] == 0)


@some
@given(batches(), st.sampled_from(["fixed", "retained"]))
def test_an_empty_update_is_zero_with_its_graph(batch, normalize):
    rows, z, mask = batch
    x = torch.tensor(z, requires_grad=True)
    loss = masked_loss(x, torch.ones(len(rows)), torch.tensor(mask), torch.zeros(len(rows), dtype=torch.bool), normalize=normalize)
    assert loss.item() == 0.0 and loss.requires_grad
    loss.backward()
    assert torch.all(x.grad == 0)


@some
@given(batches(allow_empty=False), st.data())
def test_gradient_of_kept_tokens_is_the_derivative(batch, data):
    rows, z, mask = batch
    a = np.array(data.draw(st.lists(st.sampled_from([-2.0, 1.0]), min_size=len(rows), max_size=len(rows))))
    edges = [math.log(e) for e in (0.8, 1.28, 3.0)]
    assume(all(abs(x - e) > 1e-4 for r in rows for x in r for e in edges))
    x = torch.tensor(z, requires_grad=True)
    masked_loss(x, torch.tensor(a), torch.tensor(mask), torch.ones(len(rows), dtype=torch.bool), denominator=1).backward()
    for i, t in np.argwhere(mask):
        h = 1e-6
        slope = (surrogate_by_cases(z[i, t] + h, a[i]) - surrogate_by_cases(z[i, t] - h, a[i])) / (2 * h)
        assert x.grad[i, t].item() == pytest.approx(-slope, rel=1e-4, abs=1e-6)


def test_rejection_changes_the_value_by_the_documented_denominator_only():
    z, a, mask, keep = np.zeros((2, 2)), np.ones(2), np.ones((2, 2)), np.array([True, False])
    assert masked_loss(z, a, mask, keep) == -0.5
    assert masked_loss(z, a, mask, keep, normalize="retained") == -1.0


def test_a_column_mask_never_broadcasts_over_the_batch():
    z, a = np.zeros((2, 1)), np.ones(2)
    assert masked_loss(z, a, np.ones((2, 1)), np.array([[True], [True]])) == -1.0
    with pytest.raises(ValueError, match="keep: got shape"):
        masked_loss(z, a, np.ones((2, 1)), np.array([[True, True]]))


def test_extreme_log_ratio_with_zero_advantage_is_finite():
    for dtype in (torch.float32, torch.float16):
        z = torch.tensor([[100.0]], dtype=dtype, requires_grad=True)
        loss = masked_loss(z, torch.tensor([0.0]), torch.ones(1, 1), torch.tensor([True]))
        loss.backward()
        assert loss.item() == 0.0 and z.grad.item() == 0.0


def test_half_precision_surrogate_is_computed_in_float32():
    assert clipped_surrogate(torch.zeros(1, 1, dtype=torch.bfloat16), torch.ones(1)).dtype == torch.float32


def test_token_weights_multiply_the_surrogate():
    z, a, mask = np.log(np.array([[1.1, 6.0]])), np.array([1.0]), np.ones((1, 2))
    rule = IcePop()
    got = masked_loss(z, a, mask, rule.keep(z, mask), weights=rule.weights(z, mask))
    assert got == pytest.approx(-(1.1 * 1.1) / 2)


def test_loss_follows_the_mask_of_the_rule():
    z = torch.tensor([[0.0, 0.01], [0.5, -0.5]], requires_grad=True)
    mask = torch.ones(2, 2)
    masked_loss(z, torch.ones(2), mask, CARM(1.02).keep(z, mask)).backward()
    assert (z.grad[0] < 0).all() and (z.grad[1] == 0).all()


def test_surrogate_argument_errors():
    z, a = np.zeros((2, 3)), np.ones(2)
    with pytest.raises(ValueError, match="dual_clip: got 1"):
        clipped_surrogate(z, a, dual_clip=1.0)
    with pytest.raises(ValueError, match="clip_low, clip_high: got"):
        clipped_surrogate(z, a, clip_low=1.0)
    with pytest.raises(ValueError, match="advantages: got shape"):
        clipped_surrogate(z, np.ones(3))
    with pytest.raises(ValueError, match="normalize: got 'mean'"):
        masked_loss(z, a, np.ones((2, 3)), np.ones(2), normalize="mean")
    with pytest.raises(ValueError, match="token_mask: got shape"):
        masked_loss(z, a, np.ones((2, 1)), np.ones(2))
    with pytest.raises(TypeError):
        masked_loss(z, torch.ones(2), np.ones((2, 3)), np.ones(2))
