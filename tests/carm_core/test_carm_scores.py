import math
import warnings
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from carm_strategies import batches, exact_mean, exact_mean_abs, responses, some, vectors
from hypothesis import given
from hypothesis import strategies as st

import carm_core
from carm_core import carm_score, geomean_score, log_ratio, mean_k1, response_scores, signed_mean
from carm_core._namespace import accumulator

STATISTICS = {
    "d": lambda r: exact_mean_abs(r),
    "g": lambda r: exact_mean(r),
    "geomean": lambda r: abs(exact_mean(r)),
    "mean_k1": lambda r: -exact_mean(r),
    "mean_k2": lambda r: sum((Fraction(x) ** 2 / 2 for x in r), Fraction(0)) / max(len(r), 1),
    "mean_k3": lambda r: math.fsum(math.expm1(x) - x for x in r) / max(len(r), 1),
    "max_k2": lambda r: max((Fraction(x) ** 2 / 2 for x in r), default=0),
    "mean_exp_abs": lambda r: math.fsum(math.exp(abs(x)) for x in r) / len(r) if r else 1.0,
}


@some
@given(batches())
def test_scores_equal_exact_arithmetic_whatever_the_padding_holds(batch):
    rows, z, mask = batch
    got = response_scores(z, mask)
    for name, oracle in STATISTICS.items():
        np.testing.assert_allclose(getattr(got, name), [float(oracle(r)) for r in rows], rtol=1e-12, atol=1e-14, err_msg=name)
    assert got.length.tolist() == [len(r) for r in rows]
    assert got.empty.tolist() == [not r for r in rows]


@some
@given(batches())
def test_named_functions_equal_the_one_pass_version(batch):
    _, z, mask = batch
    got = response_scores(z, mask)
    for name in ("mean_k1", "mean_k2", "mean_k3", "max_k2", "mean_exp_abs"):
        np.testing.assert_array_equal(getattr(carm_core, name)(z, mask), getattr(got, name))
    np.testing.assert_array_equal(carm_score(z, mask), got.d)
    np.testing.assert_array_equal(geomean_score(z, mask), got.geomean)
    np.testing.assert_array_equal(signed_mean(z, mask), got.g)


@some
@given(batches(), st.sampled_from([torch.float64, torch.float32]))
def test_torch_agrees_with_numpy(batch, dtype):
    _, z, mask = batch
    got, want = response_scores(torch.tensor(z).to(dtype), torch.tensor(mask)), response_scores(z, mask)
    for name in STATISTICS:
        value = getattr(got, name)
        assert value.dtype == dtype
        np.testing.assert_allclose(value.double().numpy(), getattr(want, name), rtol=1e-12 if dtype == torch.float64 else 2e-6, atol=1e-6)


@some
@given(responses, st.randoms())
def test_permutation_reciprocal_and_padding_invariance(row, random):
    shuffled = list(row)
    random.shuffle(shuffled)
    d = carm_score(np.array([row]), np.ones((1, len(row))))[0]
    assert carm_score(np.array([shuffled]), np.ones((1, len(row))))[0] == pytest.approx(d, abs=1e-14)
    assert carm_score(-np.array([row]), np.ones((1, len(row))))[0] == d
    left = np.array([[math.nan, *row]]), np.array([[0] + [1] * len(row)])
    assert carm_score(*left)[0] == pytest.approx(d, abs=1e-14)


@some
@given(batches(), st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_a_nonfinite_live_token_gives_nan_for_that_response_only(batch, poison, data):
    rows, z, mask = batch
    live = np.argwhere(mask)
    if not len(live):
        return
    i, t = live[data.draw(st.integers(0, len(live) - 1))]
    poisoned = z.copy()
    poisoned[i, t] = poison
    before, after = response_scores(z, mask), response_scores(poisoned, mask)
    others = np.arange(len(rows)) != i
    for name in STATISTICS:
        assert math.isnan(getattr(after, name)[i]), name
        np.testing.assert_array_equal(getattr(after, name)[others], getattr(before, name)[others])


@pytest.mark.parametrize("case", vectors("carm"), ids=lambda c: c["id"])
def test_vector_scores(case):
    z = np.array([[math.log(Fraction(r)) for r in case["input"]["ratios"]]])
    got, want = response_scores(z, np.ones(z.shape)), case["expected"]
    for ours, theirs in [("d", "d_carm"), ("geomean", "d_geomean"), ("g", "signed_mean"), ("max_k2", "trm_max_k2")]:
        assert getattr(got, ours)[0] == pytest.approx(want[theirs], abs=1e-12), theirs
    for name in ("mean_k1", "mean_k2", "mean_k3"):
        assert getattr(got, name)[0] == pytest.approx(want[name], abs=1e-12), name
    assert math.exp(got.d[0]) == pytest.approx(want["s_carm"], rel=1e-12)
    assert math.exp(got.geomean[0]) == pytest.approx(want["s_geomean"], rel=1e-12)


# ---- log_ratio


@some
@given(batches(), st.floats(-30, 0))
def test_log_ratio_is_the_clipped_difference_on_live_tokens_and_zero_elsewhere(batch, shift):
    rows, z, mask = batch
    current = np.where(mask == 1, shift + z, z)
    rollout = np.where(mask == 1, shift, z)
    got = log_ratio(current, rollout, mask, clip=1.5)
    assert np.all(got.z[mask == 0] == 0)
    want = np.clip(current[mask == 1] - rollout[mask == 1], -1.5, 1.5)
    np.testing.assert_array_equal(got.z[mask == 1], want)
    assert got.clipped.tolist() == [sum(abs((shift + x) - shift) > 1.5 for x in r) for r in rows]
    assert got.length.tolist() == [len(r) for r in rows]
    assert got.empty.tolist() == [not r for r in rows]
    assert not got.nonfinite.any()


@some
@given(batches(), st.sampled_from(["current", "rollout", "both"]), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_log_ratio_flags_nonfinite_live_tokens_and_raises_on_request(batch, where, poison):
    _, z, mask = batch
    current, rollout = np.zeros(z.shape), np.zeros(z.shape)
    if where != "rollout":
        current[:, :1] = poison
    if where != "current":
        rollout[:, :1] = poison
    got = log_ratio(current, rollout, mask)
    hit = mask[:, :1].any(axis=1)
    assert got.nonfinite.tolist() == hit.tolist()
    assert np.isnan(got.z).any(axis=1).tolist() == hit.tolist()
    if hit.any():
        with pytest.raises(ValueError, match="non-finite"):
            log_ratio(current, rollout, mask, nonfinite="raise")
    else:
        log_ratio(current, rollout, mask, nonfinite="raise")


def test_log_ratio_gradient_is_one_on_live_tokens_and_zero_at_dead_clipped_and_nonfinite_ones():
    current = torch.tensor([[-1.0, -1.0, -1.0, -50.0, math.nan]], requires_grad=True)
    rollout = torch.tensor([[-1.2, math.nan, math.nan, -1.0, 0.0]])
    got = log_ratio(current, rollout, torch.tensor([[1, 0, 1, 1, 0]]))
    assert torch.nan_to_num(got.z, nan=9.0).tolist() == [[pytest.approx(0.2), 0.0, 9.0, -20.0, 0.0]]
    got.z.nansum().backward()
    assert current.grad.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("case", vectors("carm_guard"), ids=lambda c: c["id"])
def test_vector_guard(case):
    row = np.array([case["input"]["log_ratios_nonzero"] + [0.0] * case["input"]["n_zero_tokens"]])
    mask, tau = np.ones(row.shape), float(Fraction(case["input"]["tau"]))
    guarded = log_ratio(row, np.zeros(row.shape), mask, clip=case["input"]["clip"])
    assert guarded.clipped[0] == 1
    assert carm_score(guarded.z, mask)[0] == pytest.approx(case["expected"]["d_guarded"], abs=1e-12)
    assert carm_score(row, mask)[0] == pytest.approx(case["expected"]["d_true"], abs=1e-12)
    assert bool(carm_core.CARM(tau).keep(guarded.z, mask)[0]) is case["expected"]["accept_guarded"]
    assert bool(carm_core.CARM(tau).keep(row, mask)[0]) is case["expected"]["accept_true"]


# ---- faults others had


def test_observation_and_tool_tokens_enter_neither_sum_nor_length():
    got = log_ratio(np.array([[-1.0, -3.0]]), np.array([[-1.0, 0.0]]), np.array([[1, 0]]))
    assert carm_score(got.z, np.array([[1, 0]])).tolist() == [0.0]
    assert got.length.tolist() == [1]


def test_score_uses_current_against_rollout_not_old_policy():
    got = log_ratio(np.array([[-1.0]]), np.array([[-2.0]]), np.ones((1, 1)))
    assert got.z.tolist() == [[1.0]]
    assert mean_k1(got.z, np.ones((1, 1))).tolist() == [-1.0]


def test_half_precision_is_upcast_before_subtracting_and_warned_about_once():
    carm_core.logratio._warned.clear()
    a, b = torch.tensor([[-10.0]], dtype=torch.bfloat16), torch.tensor([[-0.0103]], dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="bfloat16") as caught:
        got = log_ratio(a, b, torch.ones(1, 1))
    assert [w.filename for w in caught] == [__file__]
    assert got.z.dtype == torch.float32
    assert got.z.item() == a.float().item() - b.float().item()
    assert got.z.item() != (a - b).float().item()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log_ratio(a, b, torch.ones(1, 1))


def test_long_float32_sum_does_not_lose_small_terms():
    z = torch.full((1, 8619), 0.0245)
    assert carm_score(z, torch.ones(1, 8619)).item() == pytest.approx(0.0245, rel=1e-6)


@pytest.mark.parametrize("fn", [carm_score, geomean_score, response_scores])
def test_mixed_types_lists_and_wrong_shapes_are_errors(fn):
    with pytest.raises(TypeError, match="all NumPy arrays or all torch tensors"):
        fn(np.zeros((1, 2)), torch.ones(1, 2))
    with pytest.raises(TypeError):
        fn([[0.0]], [[1]])
    with pytest.raises(ValueError, match="token_mask: got shape"):
        fn(np.zeros((2, 2)), np.ones((2, 1)))


def test_log_ratio_argument_errors():
    one = np.ones((1, 1))
    with pytest.raises(ValueError, match="rollout: got None"):
        log_ratio(one, None, one)
    with pytest.raises(ValueError, match="got shapes"):
        log_ratio(one, np.ones((1, 2)), one)
    with pytest.raises(ValueError, match="clip: got 0"):
        log_ratio(one, one, one, clip=0)
    with pytest.raises(ValueError, match="nonfinite: got 'zero'"):
        log_ratio(one, one, one, nonfinite="zero")
    with pytest.raises(TypeError):
        log_ratio(one, torch.ones(1, 1), one)


def test_batch_without_any_token_column():
    got = response_scores(np.zeros((2, 0)), np.zeros((2, 0)))
    assert got.d.tolist() == got.max_k2.tolist() == [0.0, 0.0]
    assert got.empty.all()


def test_half_precision_is_not_warned_about_while_a_compiler_traces(monkeypatch):
    carm_core.logratio._warned.clear()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    half = torch.zeros(1, 1, dtype=torch.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log_ratio(half, half, torch.ones(1, 1))
    assert carm_core.logratio._warned == set()


def test_sums_on_a_device_without_float64_keep_the_dtype_of_the_input():
    class Elsewhere(torch.Tensor):
        device = SimpleNamespace(type="mps")

    x = torch.zeros(2, dtype=torch.float32)
    assert [accumulator(a) for a in (x, x.as_subclass(Elsewhere), np.zeros(2, np.float32))] == [torch.float64, torch.float32, np.float64]
