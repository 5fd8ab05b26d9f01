"""Every rule through the config; rejected rows stay finite; what a mask does is counted and said."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import carm_core
from conformal_trl import CGRPOTrainer
from conformal_trl.masks import RULES, MaskMonitor, guarded_base, make_rule
from tests.conformal_trl.test_losses import Rollout, check, run

ROW_RULES = ("no_mask", "carm", "geomean", "trm", "trm_mean", "mean_exp_abs", "opsm")


def test_every_rule_of_carm_core_has_a_name():
    rules = {n for n in carm_core.__all__ if isinstance(getattr(carm_core, n), type) and issubclass(getattr(carm_core, n), carm_core.Rule)}
    assert {kind for kind, _, _ in RULES.values()} == rules - {"Rule"}
    for name in RULES:
        assert isinstance(make_rule(name), carm_core.Rule)


@pytest.mark.parametrize("name", ROW_RULES)
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_extreme_rejected_rows_are_finite(model, tokenizer, dataset, name, loss_type):
    """A response whose log-probabilities lie 300 nats off has a ratio that overflows; a NaN log-probability has none."""

    class Extreme(Rollout):
        def __call__(self, prompts, trainer):
            out = super().__call__(prompts, trainer)
            out["logprobs"][0] = [x - 300 for x in out["logprobs"][0]]
            out["logprobs"][1] = [x + 300 for x in out["logprobs"][1]]
            out["logprobs"][2][0] = math.nan
            return out

    overrides = dict(loss_type=loss_type, prune="none", response_mask=name)
    trainer, loss, gradients, _ = run(
        model, tokenizer, dataset, drift=0.0, rollout=Extreme(tokenizer, 0, 0.0), counts=(4, 4, 4, 4), **overrides
    )
    assert math.isfinite(loss) and all(g.isfinite().all() for g in gradients.values())
    record = trainer.ledger.history[0]
    assert record["masked"] >= 1 and record["masked_of"] >= 15  # the NaN row is rejected by every rule, and counted


def test_the_kl_of_an_extreme_rejected_row_is_not_blown_up(saved_model, tokenizer, dataset):
    """TRL multiplies the KL term by the importance ratio; e^300 of it belongs to no policy."""
    with torch.no_grad():
        start = {n: p.clone() for n, p in saved_model.named_parameters()}

    class Extreme(Rollout):
        def __call__(self, prompts, trainer):
            with torch.no_grad():  # so that the KL term is not 0
                for name, p in trainer.model.named_parameters():
                    p.copy_(1.01 * start[name])
            out = super().__call__(prompts, trainer)
            out["logprobs"] = [[x - 300 for x in row] for row in out["logprobs"]]
            return out

    rollout = Extreme(tokenizer, 0, 0.0)
    trainer, loss, gradients, _ = run(saved_model, tokenizer, dataset, rollout=rollout, response_mask="carm", beta=1.0, prune="none")
    assert trainer.ledger.totals()["masked"] == trainer.ledger.totals()["masked_of"] > 0
    assert 0 < loss < 1 and 0 < max(float(g.abs().max()) for g in gradients.values()) < 100


def test_opsm_is_trls_rule(model, tokenizer, dataset):
    """TRL's own off-policy mask, on the same rows, drops what OPSM drops."""
    one = run(model, tokenizer, dataset, response_mask="opsm", response_mask_threshold=0.02, drift=0.5)
    two = run(model, tokenizer, dataset, off_policy_mask_threshold=0.02, drift=0.5)
    assert one[0].ledger.totals()["masked"] > 0
    assert one[1] == pytest.approx(two[1], abs=1e-7)
    for name, gradient in one[2].items():
        torch.testing.assert_close(gradient, two[2][name])


@pytest.mark.parametrize("name", ["seq_mis", "seq_tis", "token_mis", "token_tis", "icepop"])
def test_weighing_rules_multiply_by_the_engine_ratio(model, tokenizer, dataset, name):
    """With old_logps recomputed the ratio pi_theta / pi_old is 1 at rest, so the gradient is the advantage times the rule's weight."""
    trainer, _loss, gradients, _ = run(model, tokenizer, dataset, response_mask=name, old_logps="recompute", drift=0.5)
    (part,) = trainer._buffered_inputs
    z = part["old_per_token_logps"] - part["sampling_per_token_logps"]
    weights = trainer.mask_rule.weights(z, part["completion_mask"], advantages=part["advantages"])
    assert not torch.equal(weights, part["completion_mask"].float())
    model.zero_grad()
    logps = trainer._logps(model, part)
    (-(weights * part["advantages"][:, None] * logps).sum() / part["completion_mask"].sum()).backward()
    for parameter, value in model.named_parameters():
        torch.testing.assert_close(gradients[parameter], value.grad, atol=2e-6, rtol=1e-5)


def test_weighing_rules_need_recomputed_log_probabilities(make_config):
    with pytest.raises(ValueError, match=r'old_logps: got "rollout" beside response_mask=\'icepop\''):
        make_config(4, 2, response_mask="icepop")


def test_what_a_mask_did_is_logged(model, tokenizer, dataset):
    trainer, *_ = run(model, tokenizer, dataset, response_mask="carm", response_mask_threshold=1.05, drift=0.5)
    logged = next(h for h in trainer.state.log_history if "mask/seq_masked_fraction" in h)
    part = trainer._buffered_inputs[0]
    z = trainer._logps(model, part).detach() - part["sampling_per_token_logps"]
    d = carm_core.carm_score(z, part["completion_mask"])
    out = d > math.log(1.05)
    assert 0 < out.sum() < len(out)
    assert logged["mask/seq_masked_fraction"] == pytest.approx(float(out.float().mean()))
    assert logged["mask/fraction_high"] + logged["mask/fraction_low"] == pytest.approx(logged["mask/seq_masked_fraction"])
    assert logged["mask/masked_correct_share"] == pytest.approx(float(part["passed"][out].float().mean()))
    assert logged["mask/token_masked_fraction"] == pytest.approx(float(part["completion_mask"][out].sum() / part["completion_mask"].sum()))
    assert logged["mask/d_p50"] == pytest.approx(float(d.quantile(0.5)), rel=1e-4)
    assert logged["mask/s_max"] == pytest.approx(math.exp(float(d.max())), rel=1e-4)
    assert logged["mask/certificate"] == pytest.approx(carm_core.CARM(1.05).certificate((0.8, 1.2)).p_out)


def test_nearly_everything_rejected_is_said(model, tokenizer, dataset, make_config):
    config = make_config(4, 6, num_iterations=2, max_steps=4, learning_rate=0.3, response_mask="carm", mask_warn_after=1)
    trainer = CGRPOTrainer(
        model, lambda completion_ids, **_: [float(sum(i) % 2) for i in completion_ids], config, dataset, processing_class=tokenizer
    )
    with pytest.warns(UserWarning, match="of responses were rejected, 1 passes in a row"):
        trainer.train()


def test_truncation_and_temperature_of_the_engine_itself(model, tokenizer, dataset, make_config):
    """``generation_kwargs`` overrides what the config says about sampling, and is what the checks read."""

    def build(**sampling):
        config = make_config(4, 2, num_iterations=2, response_mask="carm", **sampling)
        return CGRPOTrainer(model, lambda completions, **_: [0.0] * len(completions), config, dataset, processing_class=tokenizer)

    for name, value in (("top_p", 0.9), ("top_k", 5), ("min_p", 0.1)):
        with pytest.warns(UserWarning, match=f"{name}: truncated sampling"):
            build(generation_kwargs={name: value})
    with pytest.raises(ValueError, match=r"generation_kwargs: got temperature=0.5 beside temperature=1.0; need one value"):
        build(generation_kwargs={"temperature": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        build(temperature=0.5)


class _Alone:
    """An accelerator of one process."""

    reduce = staticmethod(lambda x, reduction: x)
    gather = staticmethod(lambda x: x)
    pad_across_processes = staticmethod(lambda x, pad_index: x)


@pytest.mark.parametrize(("shift", "said"), [(-0.05, "constant negative shift"), (0.7, "large shift in every response")])
def test_a_sampler_that_disagrees_is_named_at_the_start(shift, said):
    """Truncated sampling adds log S to every token; a wrong temperature moves every token a lot."""
    monitor = MaskMonitor(_Alone(), carm_core.CARM(1.02), 10)
    z, mask = torch.full((6, 8), shift), torch.ones(6, 8, dtype=torch.long)
    keep = monitor.rule.keep(z, mask)
    with pytest.warns(UserWarning, match=said):
        monitor.observe(z, mask, keep, torch.zeros(6, dtype=torch.bool), ~keep[:, None].expand_as(z))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.observe(z, mask, keep, torch.zeros(6, dtype=torch.bool), ~keep[:, None].expand_as(z))  # once is enough


def test_the_guard_moves_extremes_only():
    base = torch.tensor([[-1.0, -50.0, 40.0, math.nan, math.nan]])
    current, mask = torch.full((1, 5), -1.5), torch.tensor([[1, 1, 1, 1, 0]])
    guarded, moved = guarded_base(base, current, mask)
    assert moved.tolist() == [[False, True, True, True, False]]
    assert guarded.isfinite().all() and (current - guarded)[0, :4].tolist() == [-0.5, 20.0, -20.0, 0.0]


def test_missing_engine_log_probabilities(model, tokenizer, dataset):
    class Missing(Rollout):
        def __call__(self, prompts, trainer):
            out = super().__call__(prompts, trainer)
            out["logprobs"][0][0] = None
            return out

    def go(**overrides):
        return run(model, tokenizer, dataset, drift=0.0, rollout=Missing(tokenizer, 0, 0.0), prune="none", **overrides)

    with pytest.raises(ValueError, match="non-finite log-probability on 2 live token"):
        go(response_mask="carm", nonfinite_logps="raise")
    assert go(response_mask="carm", nonfinite_logps="reject")[0].ledger.totals()["masked"] == 2  # one in each of two increments
    dropped = go(response_mask="carm", nonfinite_logps="drop_token", old_logps="recompute")[0].ledger.totals()
    assert dropped["masked"] == 0
    trainer, loss, *_ = go(response_mask="none")
    assert math.isfinite(loss) and trainer.ledger.totals()["trained"] == trainer.ledger.totals()["generated"] - 2


def test_retained_needs_one_micro_batch(make_config):
    with pytest.raises(ValueError, match="response_mask_normalize: got 'retained' with gradient_accumulation_steps=2"):
        make_config(4, 2, response_mask="carm", response_mask_normalize="retained", gradient_accumulation_steps=2)


def test_a_rule_object(model, tokenizer, dataset):
    rule = carm_core.CARM(1.05, conditioning="negative")
    by_object = run(model, tokenizer, dataset, trainer_kwargs={"mask_rule": rule})
    by_name = run(model, tokenizer, dataset, response_mask="carm", response_mask_threshold=1.05, response_mask_conditioning="negative")
    assert by_object[1] == by_name[1] and by_object[0].ledger.totals()["masked"] == by_name[0].ledger.totals()["masked"] > 0
    check(model, by_name[0], by_name[1], by_name[2], rule=rule)


def test_a_rule_object_leaves_the_config_alone(model, tokenizer, dataset, make_config):
    config = make_config(4, 2, num_iterations=2)
    CGRPOTrainer(model, lambda completions, **_: [0.0] * len(completions), config, dataset, processing_class=tokenizer,
                 mask_rule=carm_core.CARM(1.05))  # fmt: skip
    assert config.off_policy_mask_threshold is None and config.response_mask == "none"
    for overrides, rule, match in (
        ({"response_mask": "carm"}, carm_core.CARM(1.05), "beside response_mask='carm'"),
        ({"off_policy_mask_threshold": 0.5}, carm_core.CARM(1.05), "beside off_policy_mask_threshold=0.5"),
        ({}, carm_core.IcePop(), "the rule weighs by"),
    ):
        with pytest.raises(ValueError, match=match):
            CGRPOTrainer(model, lambda **_: [], make_config(4, 2, **overrides), dataset, processing_class=tokenizer, mask_rule=rule)


def test_thresholds_in_the_wrong_units(make_config):
    for name, bad in (("trm", -1.0), ("mean_exp_abs", 0.02), ("opsm", 0.0), ("no_mask", 1.0)):
        with pytest.raises(ValueError, match="response_mask_threshold: got"):
            make_config(4, 2, response_mask=name, response_mask_threshold=bad)
