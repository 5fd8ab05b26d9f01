"""The losses as verl's worker calls them."""

import math

from tests.carm_verl.build import AGG_MODES, actor, batch, call, policy_loss  # isort: skip (skips the module where verl is absent)

import logging

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import compute_policy_loss_bypass_mode, compute_policy_loss_vanilla
from verl.utils import tensordict_utils
from verl.workers.config import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from carm_core import log_ratio, logratio, masked_loss
from carm_verl import LOSSES, MaskedPolicyLoss

TIGHT = {
    "carm": {"tau": 1.02}, "carm_negative": {"tau": 1.02}, "geomean": {"tau": 1.005}, "trm": {"delta": 0.001}, "opsm": {"delta": 0.002},
}  # fmt: skip


def hand() -> tuple[torch.Tensor, ...]:
    """Row 0 within tau, row 1 (two tokens of three) cancelling; ratios (1.01, 0.99), (2, 0.5), advantages +1 and -1."""
    old = torch.zeros(2, 3, dtype=torch.float64) - 1.0
    z = torch.tensor([[1.01, 0.99, 7.0], [2.0, 0.5, 1.0]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True, False], [True, True, True]])
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 3).clone()
    return old, (old + z).requires_grad_(), advantages, mask


@pytest.mark.parametrize(("normalize", "tokens"), [("fixed", 5), ("retained", 2)])
def test_hand_computation_for_both_denominators(normalize: str, tokens: int) -> None:
    old, new, advantages, mask = hand()
    loss, metrics = call(actor(policy_loss("carm", normalize=normalize)), old, new, advantages, mask)
    loss.backward()
    assert loss.item() == pytest.approx(-(1.01 + 0.99) / tokens, rel=1e-7)
    assert new.grad[0].tolist() == pytest.approx([-1.01 / tokens, -0.99 / tokens, 0.0], rel=1e-7)
    assert new.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert metrics["actor/carm/rejected"] == 1 and metrics["actor/carm/responses"] == 2
    assert metrics["actor/carm/rejected_token_fraction"] == pytest.approx(3 / 5)
    assert metrics["actor/carm/d_max"] == pytest.approx(2 * math.log(2) / 3)
    assert metrics["actor/carm/kept_out_of_band"] == 0 and metrics["actor/carm/rejected_positive"] == 0


def test_geomean_keeps_the_row_that_cancels_and_dual_clip_is_verls() -> None:
    old, new, advantages, mask = hand()
    loss, metrics = call(actor(policy_loss("geomean", tau=1.02)), old, new, advantages, mask)
    # Row 1, A = -1: max(2, 1.28) = 2 (below c = 3), max(0.5, 0.8) = 0.8, 1.
    assert loss.item() == pytest.approx((-(1.01 + 0.99) + 2.0 + 0.8 + 1.0) / 5)
    assert metrics["actor/carm/rejected"] == 0
    assert metrics["actor/carm/kept_out_of_band"] == pytest.approx(2 / 5)
    new = (new.detach() + torch.tensor([[0.0], [math.log(4.0)]])).requires_grad_()
    loss, metrics = call(actor(policy_loss("no_mask")), old, new, advantages, mask)
    assert loss.item() == pytest.approx((-(1.01 + 0.99) + 3.0 + 2.0 + 3.0) / 5)
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(2 / 5)


@pytest.mark.parametrize("loss_mode", LOSSES)
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
@pytest.mark.parametrize("seed", range(5))
def test_same_numbers_as_carm_core(loss_mode: str, normalize: str, seed: int) -> None:
    old, new, advantages, mask = batch(seed)
    section = policy_loss(loss_mode, normalize=normalize, **TIGHT.get(loss_mode, {}))
    loss, metrics = call(actor(section), old, new, advantages, mask)
    (grad,) = torch.autograd.grad(loss, new)
    z = log_ratio(new, old, mask).z
    keep = section.rule.keep(z, mask, advantages)
    expected = masked_loss(z, advantages, mask, keep, normalize=normalize)
    (expected_grad,) = torch.autograd.grad(expected, new)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-12)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-6, atol=1e-12)
    assert metrics["actor/carm/rejected"] == int((~keep).sum())
    assert bool((grad[~keep] == 0).all())


def test_the_batches_of_the_comparison_are_mixed() -> None:
    for loss_mode, threshold in TIGHT.items():
        shares = []
        for seed in range(5):
            _, metrics = call(actor(policy_loss(loss_mode, **threshold)), *batch(seed))
            shares.append(metrics["actor/carm/rejected_fraction"])
        assert 0 < sum(shares) < 5, loss_mode


@pytest.mark.parametrize("agg", AGG_MODES)
@pytest.mark.parametrize("counts", [{}, {"dp_size": 2, "batch_num_tokens": 70, "global_batch_size": 12, "loss_scale_factor": 5}])
def test_without_rejections_it_is_verls_loss_bit_for_bit(agg: str, counts: dict[str, int]) -> None:
    old, new, advantages, mask = batch(3, scale=2.0, dtype=torch.float32)
    config = actor(policy_loss("no_mask"), agg, **counts)
    loss, metrics = call(config, old, new, advantages, mask)
    expected, expected_metrics = call(config, old, new, advantages, mask, compute_policy_loss_vanilla)
    assert loss.item() == expected.item()
    assert {k: metrics[k] for k in expected_metrics} == expected_metrics
    grads = [torch.autograd.grad(x, new)[0] for x in (loss, expected)]
    assert torch.equal(*grads)


@pytest.mark.parametrize("agg", AGG_MODES)
@pytest.mark.parametrize(("loss_mode", "threshold", "rs", "spec"), [
    ("geomean", {"tau": 1.005}, "seq_mean_k1", 1.005),
    ("trm", {"delta": 0.002}, "seq_max_k2", 0.002),
])  # fmt: skip
def test_fixed_is_verls_bypass_loss_with_its_rejection_mask(
    agg: str, loss_mode: str, threshold: dict[str, float], rs: str, spec: float
) -> None:
    counts = {"dp_size": 4, "batch_num_tokens": 123, "global_batch_size": 24}
    correction = {"loss_type": "ppo_clip", "rollout_rs": rs, "rollout_rs_threshold": spec}
    for seed in range(5):
        old, new, advantages, mask = batch(seed)
        loss, _ = call(actor(policy_loss(loss_mode, **threshold), agg, **counts), old, new, advantages, mask)
        theirs = actor(PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction), agg, **counts)
        expected, _ = call(theirs, old, new, advantages, mask, compute_policy_loss_bypass_mode)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12, abs=1e-15)
        torch.testing.assert_close(torch.autograd.grad(loss, new)[0], torch.autograd.grad(expected, new)[0])


@pytest.mark.parametrize("agg", [mode for mode in AGG_MODES if mode != "token-sum"])
def test_retained_is_the_loss_of_the_kept_responses_alone(agg: str) -> None:
    old, new, advantages, mask = batch(1)
    section = policy_loss("carm", normalize="retained")
    keep = section.rule.keep(log_ratio(new.detach(), old, mask).z, mask)
    assert 0 < int(keep.sum()) < len(keep)
    loss, _ = call(actor(section, agg), old, new, advantages, mask)
    alone, _ = call(actor(section, agg), old[keep], new[keep], advantages[keep], mask[keep], compute_policy_loss_vanilla)
    assert loss.item() == pytest.approx(alone.item(), rel=1e-6)


@pytest.mark.parametrize("agg", AGG_MODES)
def test_micro_batches_on_two_ranks_add_up_to_the_whole_batch(agg: str) -> None:
    old, new, advantages, mask = batch(2, rows=8)
    counts = {"batch_num_tokens": int(mask.sum()), "global_batch_size": 8, "loss_scale_factor": 9}
    whole, _ = call(actor(policy_loss(), agg, dp_size=1, **counts), old, new, advantages, mask)
    ranks = []
    for rank in range(2):
        parts = [slice(4 * rank, 4 * rank + 1), slice(4 * rank + 1, 4 * rank + 4)]
        config = actor(policy_loss(), agg, dp_size=2, **counts)
        ranks.append(sum(call(config, old[s], new[s], advantages[s], mask[s])[0] for s in parts))
    assert (sum(ranks) / 2).item() == pytest.approx(whole.item(), rel=1e-9)


@pytest.mark.parametrize("agg", AGG_MODES)
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
@pytest.mark.parametrize("case", ["all rejected", "no live token", "no row"])
def test_a_micro_batch_with_nothing_to_learn_is_zero_and_keeps_the_graph(agg: str, normalize: str, case: str) -> None:
    if agg == "token-sum" and normalize == "retained":
        with pytest.raises(ValueError, match="token-sum"):
            policy_loss(normalize=normalize, run={"loss_agg_mode": agg})
        return
    old, new, advantages, mask = batch(0)
    if case == "all rejected":
        new = (new.detach() + 1.0).requires_grad_()
    elif case == "no live token":
        mask = torch.zeros_like(mask)
    else:
        old, new, advantages, mask = old[:0], new[:0].detach().requires_grad_(), advantages[:0], mask[:0]
    for counts in ({}, {"dp_size": 2, "batch_num_tokens": 40, "global_batch_size": 6}):
        loss, metrics = call(actor(policy_loss(normalize=normalize), agg, **counts), old, new, advantages, mask)
        (grad,) = torch.autograd.grad(loss, new)
        assert loss.item() == 0 and bool((grad == 0).all())
        assert all(math.isfinite(x) for x in metrics.values())
        assert metrics["actor/carm/rejected_fraction"] == (case == "all rejected")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e4, -1e10])
def test_whatever_a_rejected_row_or_a_dead_token_holds_stays_out(value: float) -> None:
    clean = batch(4, dtype=torch.float32)
    old, new, advantages, mask = (x.detach().clone() for x in clean)
    new[5, 0] = value
    mask[5, 0] = True
    old[~mask] = value
    advantages[~mask] = value
    new.requires_grad_()
    loss, metrics = call(actor(policy_loss()), old, new, advantages, mask)
    (grad,) = torch.autograd.grad(loss, new)
    assert math.isfinite(loss.item()) and bool(torch.isfinite(grad).all())
    assert bool((grad[5] == 0).all()) and bool((grad[~mask] == 0).all())
    assert all(math.isfinite(x) for x in metrics.values())
    assert metrics["actor/carm/nonfinite"] == (not math.isfinite(value))


@pytest.mark.parametrize("agg", AGG_MODES)
@pytest.mark.parametrize("zero", [0, torch.tensor(0)])
def test_a_mini_batch_of_filler_rows_alone_is_zero(agg: str, zero: int | torch.Tensor) -> None:
    """verl pads a batch to a multiple of its mini-batch; a mini-batch may then hold filler rows only, its counts 0, verl's own loss 0/0."""
    old, new, advantages, mask = batch(0)
    config = actor(policy_loss(), agg, dp_size=2, batch_num_tokens=zero, global_batch_size=zero)
    loss, _ = call(config, old, new, advantages, torch.zeros_like(mask))
    assert loss.item() == 0 and bool((torch.autograd.grad(loss, new)[0] == 0).all())


def test_a_count_that_only_verl_can_give_is_still_demanded() -> None:
    with pytest.raises(ValueError, match="batch_num_tokens is required"):
        call(actor(policy_loss(), dp_size=2), *batch(0))


def test_rejected_positive_counts_advantages_above_zero_on_live_tokens() -> None:
    old, new, advantages, mask = hand()
    far = (new.detach() + 1.0).requires_grad_()
    for values, positive in (([1.0, 0.0], 1), ([0.0, -1.0], 0), ([2.0, 0.5], 2)):
        advantages = torch.tensor(values, dtype=torch.float64)[:, None].expand(2, 3).clone()
        advantages[0, 2] = 9.0
        _, metrics = call(actor(policy_loss()), old, far, advantages, mask)
        assert (metrics["actor/carm/rejected"], metrics["actor/carm/rejected_positive"]) == (2, positive)


def test_half_precision_is_widened_before_the_subtraction() -> None:
    old, new, advantages, mask = batch(0, dtype=torch.float32)
    half = [x.detach().bfloat16() for x in (old, new)]
    logratio._warned.clear()
    with pytest.warns(UserWarning, match="bfloat16"):
        loss, metrics = call(actor(policy_loss()), *half, advantages, mask)
    wide = call(actor(policy_loss()), *(x.float() for x in half), advantages, mask)
    assert loss.item() == wide[0].item() and metrics == wide[1]


def test_the_loss_reads_neither_the_gradient_nor_the_values_of_its_decision() -> None:
    old, new, advantages, mask = batch(0)
    loss, _ = call(actor(policy_loss(tau=1e9)), old, new, advantages, mask)
    free, _ = call(actor(policy_loss("no_mask")), old, new, advantages, mask)
    assert torch.equal(torch.autograd.grad(loss, new)[0], torch.autograd.grad(free, new)[0])


def nested(
    old: torch.Tensor, new: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> tuple[dict[str, torch.Tensor], TensorDict]:
    """The batch as verl's engine hands it to `ppo_loss` with use_remove_padding: jagged, prompt and response in one row, shifted by one."""
    jagged, lengths = tensordict_utils.nested_tensor_from_tensor_list, mask.sum(-1).tolist()
    rows = {"old_log_probs": old, "advantages": advantages, "response_mask": mask.long(), "ref_log_prob": old - 0.3}
    data = {name: jagged([x[i, :n] for i, n in enumerate(lengths)]) for name, x in rows.items()}
    data["responses"] = jagged([torch.ones(n, dtype=torch.int64) for n in lengths])
    data["prompts"] = jagged([torch.ones(2 + i % 3, dtype=torch.int64) for i in range(len(lengths))])
    pad = new.new_zeros(1)
    flat = [torch.cat([pad.expand(1 + i % 3), new[i, :n], pad]) for i, n in enumerate(lengths)]
    batched = TensorDict(data, batch_size=len(lengths))
    tensordict_utils.assign_non_tensor(batched, dp_size=2, batch_num_tokens=77, global_batch_size=12)
    return {"log_probs": torch.cat(flat)}, batched


@pytest.mark.parametrize("agg", ["token-mean", "seq-mean-token-mean"])
def test_packed_rows_through_verls_ppo_loss_equal_the_padded_call(agg: str) -> None:
    old, new, advantages, mask = batch(1)
    mask = torch.arange(mask.shape[1]) < mask.sum(-1, keepdim=True)
    counts = {"dp_size": 2, "batch_num_tokens": 77, "global_batch_size": 12}
    expected, expected_metrics = call(actor(policy_loss(), agg, **counts), old, new, advantages, mask)
    loss, metrics = ppo_loss(actor(policy_loss(), agg), *nested(old, new, advantages, mask))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(loss, new)[0], torch.autograd.grad(expected, new)[0])
    assert metrics["actor/carm/rejected"].aggregate() == expected_metrics["actor/carm/rejected"] > 0


def test_the_kl_term_of_a_rejected_response_stays_verls() -> None:
    old, new, advantages, mask = batch(1)
    mask = torch.arange(mask.shape[1]) < mask.sum(-1, keepdim=True)
    config = actor(policy_loss())
    object.__setattr__(config, "use_kl_loss", True)
    loss, metrics = ppo_loss(config, *nested(old, new, advantages, mask))
    keep = config.policy_loss.rule.keep(log_ratio(new.detach(), old, mask).z, mask)
    (grad,) = torch.autograd.grad(loss, new)
    assert bool((grad[~keep][mask[~keep]] != 0).all()) and metrics["kl_loss"].aggregate() > 0


def test_importance_weights_would_correct_twice() -> None:
    old, new, advantages, mask = batch(0)
    with pytest.raises(ValueError, match="correct a second time"):
        MaskedPolicyLoss("carm")(old, new, advantages, mask, config=actor(policy_loss()), rollout_is_weights=torch.ones_like(old))


def test_a_section_that_is_not_checked_or_was_changed_is_refused() -> None:
    with pytest.raises(ValueError, match="got PolicyLossConfig; need CARMPolicyLossConfig"):
        call(actor(PolicyLossConfig(loss_mode="carm")), *batch(0))
    changed = policy_loss("carm")
    object.__setattr__(changed, "loss_mode", "bypass_mode")
    with pytest.raises(ValueError, match="got 'bypass_mode'; need 'carm'"):
        call(actor(changed), *batch(0), MaskedPolicyLoss("carm"))


def test_retained_is_refused_where_there_is_no_denominator_whatever_the_section_was_told() -> None:
    with pytest.raises(ValueError, match="got 'token-sum'; need a mean"):
        call(actor(policy_loss(normalize="retained"), "token-sum"), *batch(0))


def test_an_inert_mask_warns_then_raises(caplog: pytest.LogCaptureFixture) -> None:
    old, new, advantages, mask = batch(0)
    loss, config = MaskedPolicyLoss("carm"), actor(policy_loss(inert_after=3))
    same = old.clone().requires_grad_()
    with caplog.at_level(logging.WARNING, logger="carm_verl"):
        for new_log_prob in (same, same, new, same, same):
            call(config, old, new_log_prob, advantages, mask, loss)
    assert caplog.text.count("decides nothing") == 1
    with pytest.raises(RuntimeError, match="inert"):
        call(config, old, same, advantages, mask, loss)
    patient = MaskedPolicyLoss("carm")
    for _ in range(5):
        call(actor(policy_loss(inert_after=0)), old, same, advantages, mask, patient)


def test_each_metric_of_a_mixed_batch() -> None:
    """A drifting response, one without live tokens, one that is not finite, one clipped at 20."""
    z = torch.tensor([[0.1, -0.3], [9.0, 9.0], [math.nan, 0.0], [-25.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [0, 0], [1, 1], [1, 1]]).bool()
    old, advantages = torch.full_like(z, -2.0), torch.tensor([[1.0], [1.0], [-1.0], [1.0]], dtype=torch.float64).expand(4, 2)
    _, metrics = call(actor(policy_loss("carm", tau=1.5)), old, (old + z).requires_grad_(), advantages, mask)
    found = {key.removeprefix("actor/carm/"): value for key, value in metrics.items() if key.startswith("actor/carm/")}
    assert found == pytest.approx({
        "responses": 3, "tokens": 6, "rejected": 2, "rejected_tokens": 4, "rejected_positive": 1, "nonfinite": 1, "recorded_tokens": 6,
        "clipped_tokens": 1, "d_mean": (0.2 + 10) / 2, "d_max": 10, "g_mean": (-0.1 - 10) / 2, "kept_out_of_band": 1 / 2,
        "rejected_fraction": 2 / 3, "rejected_token_fraction": 4 / 6,
    })  # fmt: skip


def test_a_response_that_is_not_finite_is_not_inert() -> None:
    old, _, advantages, mask = batch(0)
    same = old.clone()
    same[0, 0] = math.nan
    loss = MaskedPolicyLoss("carm")
    for _ in range(3):
        call(actor(policy_loss(inert_after=2)), old, same.requires_grad_(), advantages, mask, loss)
    assert loss.watch.inert == 0


def test_kept_out_of_band_counts_against_the_configured_band() -> None:
    z = torch.tensor([[0.75, 0.85, 1.25, 1.35, 1.0], [1.0, 0.75, 1.25, 1.25, 1.0]], dtype=torch.float64).log()
    old, ones = torch.full_like(z, -2.0), torch.ones_like(z)
    config = actor(policy_loss("no_mask"))
    _, metrics = call(config, old, (old + z).requires_grad_(), ones, ones.bool())
    assert metrics["actor/carm/kept_out_of_band"] == pytest.approx(3 / 10)
    for name, value in (("clip_ratio_low", None), ("clip_ratio_high", None), ("clip_ratio", 0.1)):
        object.__setattr__(config, name, value)
    _, metrics = call(config, old, (old + z).requires_grad_(), ones, ones.bool())
    assert metrics["actor/carm/kept_out_of_band"] == pytest.approx(7 / 10)


def test_log_probabilities_of_tool_tokens_do_not_pass_for_the_sampler_s() -> None:
    old, new, advantages, mask = batch(0)
    old = torch.where(mask, 0.0, -1.0)
    _, metrics = call(actor(policy_loss()), old, new, advantages, mask, MaskedPolicyLoss("carm"))
    assert metrics["actor/carm/recorded_tokens"] == 0 and bool((old != 0).any())


def test_missing_rollout_log_probabilities_raise() -> None:
    _, new, advantages, mask = batch(0)
    loss, config = MaskedPolicyLoss("carm"), actor(policy_loss())
    for _ in range(7):
        call(config, torch.zeros_like(new), new, advantages, mask, loss)
    with pytest.raises(RuntimeError, match="got 0 on every response token"):
        call(config, torch.zeros_like(new), new, advantages, mask, loss)


def test_a_policy_that_does_not_move_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    old, new, advantages, mask = batch(0)
    loss = MaskedPolicyLoss("carm")
    with caplog.at_level(logging.WARNING, logger="carm_verl"):
        for _ in range(9):
            call(actor(policy_loss()), old, (new.detach() + 1).requires_grad_(), advantages, mask, loss)
    assert caplog.text.count("the policy does not move") == 1


def test_one_micro_batch_that_learns_ends_a_row_of_those_that_do_not(caplog: pytest.LogCaptureFixture) -> None:
    old, new, advantages, mask = batch(0)
    config, far = actor(policy_loss()), (new.detach() + 1).requires_grad_()
    with caplog.at_level(logging.WARNING, logger="carm_verl"):
        empty, silent = MaskedPolicyLoss("carm"), MaskedPolicyLoss("carm")
        for i in range(15):
            call(config, old, new if i == 7 else far, advantages, mask, empty)
        assert "the policy does not move" not in caplog.text
        call(config, old, far, advantages, mask, empty)
        assert "the policy does not move" in caplog.text
    for i in range(15):
        call(config, old if i == 7 else torch.zeros_like(old), new, advantages, mask, silent)
    with pytest.raises(RuntimeError, match="got 0 on every response token of 8 consecutive"):
        call(config, torch.zeros_like(old), new, advantages, mask, silent)
