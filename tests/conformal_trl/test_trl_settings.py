"""TRL's other settings on ragged groups: KL, entropy, PEFT, checkpointing, chat, several rewards, vLLM, and the paper's objective."""

from __future__ import annotations

import math
import types
import warnings

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOTrainer
from trl.generation import vllm_generation

from conformal_trl import CGRPOConfig, CGRPOTrainer, advantages
from conformal_trl.engines import importance_ratio
from conformal_trl.startup import check_router
from tests.conformal_trl.reference import logps_and_entropy
from tests.conformal_trl.test_losses import LOSSES, Rollout, check, reward, run, weighed
from tests.conformal_trl.test_true_cost import Scripted


@pytest.mark.parametrize("loss_type", LOSSES)
def test_kl_and_entropy_terms(saved_model, tokenizer, dataset, loss_type):
    """The KL and entropy terms of the ragged batch, of accumulated micro-batches with unequal rows."""
    kwargs = dict(loss_type=loss_type, beta=0.2, parts=2, gradient_accumulation_steps=2, counts=(4, 2, 3, 4))
    trainer, loss, gradients, _ = run(saved_model, tokenizer, dataset, entropy_coef=0.01, **kwargs)
    assert {"kl", "entropy"} <= set(trainer.state.log_history[0])
    assert check(saved_model, trainer, loss, gradients) > 0


@pytest.mark.parametrize("kl_on_pruned", [False, True])
def test_kl_on_pruned(saved_model, tokenizer, dataset, kl_on_pruned):
    """With pruning, a zero-variance group has no KL term unless it is asked for; it then counts in every denominator."""
    trainer, loss, gradients, groups = run(
        saved_model, tokenizer, dataset, beta=0.2, loss_type="grpo", kl_on_pruned=kl_on_pruned, counts=(4, 1, 1, 4)
    )
    check(saved_model, trainer, loss, gradients)
    trained, generated = trainer.ledger.totals()["trained"], sum(len(g.responses) for g in groups)
    assert (trained == generated) is kl_on_pruned


def test_lora_and_gradient_checkpointing(saved_model, tokenizer, dataset):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    kwargs = dict(trainer_kwargs={"peft_config": lora}, beta=0.1, gradient_checkpointing=True)
    trainer, loss, gradients, _ = run(saved_model, tokenizer, dataset, **kwargs)
    assert check(trainer.model, trainer, loss, gradients) == 8
    assert all("lora" in name for name in gradients)


def test_top_entropy_tokens(model, tokenizer, dataset):
    """Only tokens in the upper entropy quantile carry the policy loss, as TRL defines it, the quantile being that of live tokens."""
    trainer, loss, _, _ = run(model, tokenizer, dataset, loss_type="dapo", top_entropy_quantile=0.3, prune="none")
    (part,) = trainer._buffered_inputs
    rows = weighed(part)
    scored = [logps_and_entropy(model, r.prompt, r.completion) for r in rows]
    threshold = torch.quantile(torch.cat([e for _, e in scored]), 0.7)
    total = 0.0
    for row, (logps, entropy) in zip(rows, scored, strict=True):
        ratio = torch.exp(logps - torch.tensor(row.old))
        term = -torch.min(ratio * row.advantage, ratio.clamp(0.8, 1.2) * row.advantage)
        total += float(term[entropy >= threshold].sum())
    assert loss == pytest.approx(total / sum(len(r.completion) for r in rows), abs=1e-5)


def test_importance_of_several_reward_functions():
    """normalize_then_sum on a full rectangle is TRL's; a missing response is as if it had never been."""
    torch.manual_seed(0)
    per_function, weights = torch.randn(3, 4, 2), torch.tensor([1.0, 0.5])
    grouped = (per_function - per_function.mean(1, keepdim=True)) / (per_function.std(1, keepdim=True) + 1e-4)
    total = (grouped * weights).sum(-1)
    expected = (total - total.mean()) / (total.std() + 1e-4)
    got, varies = advantages.per_function_advantages(per_function, weights)
    torch.testing.assert_close(got, expected)
    assert varies.all()
    padded = torch.cat([per_function, torch.full((3, 2, 2), math.nan)], 1)
    torch.testing.assert_close(advantages.per_function_advantages(padded, weights)[0][:, :4], expected)


def test_several_rewards_in_training(model, tokenizer, dataset):
    def length(completion_ids, **_):
        return [len(ids) / 6 if len(ids) > 1 else None for ids in completion_ids]

    for aggregation in ("sum_then_normalize", "normalize_then_sum"):
        trainer, loss, gradients, _ = run(
            model, tokenizer, dataset, reward_funcs=[reward, length], reward_weights=[1.0, 0.5], multi_objective_aggregation=aggregation
        )
        check(model, trainer, loss, gradients)
        assert {"rewards/reward/mean", "rewards/length/mean"} <= set(trainer.state.log_history[0])


def test_chat_prompts(model, tokenizer, dataset, make_config):
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
    chat = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{i}+1"}]} for i in range(20)])
    seen = []

    def graded(completions, completion_ids, **_):
        seen.extend(completions)
        return [float(sum(ids) % 2) for ids in completion_ids]

    trainer = CGRPOTrainer(model, graded, make_config(4, 4, max_steps=1), chat, processing_class=tokenizer, answer_fn=lambda t: t[:1])
    trainer.train()
    assert all(c[0]["role"] == "assistant" for c in seen) and trainer.ledger.totals()["generated"] == len(seen) == 16


def test_metrics_count_generated_rows_only(model, tokenizer, dataset):
    trainer, _, _, groups = run(model, tokenizer, dataset, counts=(4, 1, 2, 3))
    logged, responses = trainer.state.log_history[0], [r for g in groups for r in g.responses]
    lengths = [len(r.ids) for r in responses]
    assert len(responses) == 10
    assert logged["completions/mean_length"] == pytest.approx(np.mean(lengths))
    assert logged["completions/min_length"] == min(lengths) and logged["completions/max_length"] == max(lengths)
    assert logged["num_tokens"] == sum(lengths) + sum(len(r.prompt) for r in responses)
    assert logged["reward"] == pytest.approx(np.mean([r.total for r in responses]))
    assert logged["reward_std"] == pytest.approx(np.std([r.total for r in responses], ddof=1))
    assert logged["frac_reward_zero_std"] == np.mean([len({r.total for r in g.responses}) == 1 for g in groups])


def test_features_off_is_stock_trl(model, tokenizer, dataset, make_config):
    """A fixed budget, no mask, no pruning: the loss of TRL's own trainer on the same responses."""
    overrides = dict(loss_type="dapo", prune="none", counts=(4, 4, 4, 4), drift=0.0)
    ours = run(model, tokenizer, dataset, **overrides)
    weights = {n: g.clone() for n, g in ours[2].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fields = {f: getattr(ours[0].args, f) for f in ("loss_type", "max_completion_length", "seed", "learning_rate", "num_iterations")}
        config = make_config(4, 4, max_steps=1, max_grad_norm=1e9, **fields)
        answers = iter([r for g in ours[3] for r in g.responses])

        def replayed(prompts, trainer):
            picked = [next(answers) for _ in prompts]
            return {"prompt_ids": [r.prompt.tolist() for r in picked], "completion_ids": [r.ids.tolist() for r in picked],
                    "logprobs": [r.logps.tolist() for r in picked]}  # fmt: skip

        stock = GRPOTrainer(model, reward, args=config, train_dataset=dataset, processing_class=tokenizer, rollout_func=replayed)
        gradients = {}
        stock.create_optimizer()
        stock.optimizer.register_step_pre_hook(lambda *a, **k: gradients.update({n: p.grad.clone() for n, p in model.named_parameters()}))
        stock.train()
    for name, gradient in gradients.items():
        torch.testing.assert_close(weights[name], gradient, atol=2e-6, rtol=1e-4)


# ---------------------------------------------------------------------------------------------------------------- engines


class StandIn:
    """vLLM's interface in both modes: a client's ``generate`` and an ``LLM``'s, with log-probabilities, on the model being trained."""

    def __init__(self, model, shift=0.0):
        self.model, self.shift, self.requests = model, shift, []

    def _answer(self, prompt):
        rng = np.random.default_rng([len(self.requests), *prompt])
        ids = [*rng.integers(4, 14, int(rng.integers(1, 5))).tolist(), 2]
        with torch.no_grad():
            logps = logps_and_entropy(self.model, list(prompt), ids)[0] + self.shift
        return ids, [[float(x)] for x in logps]

    def generate(self, prompts, sampling_params=None, use_tqdm=None, **params):
        self.requests.append(len(prompts))
        if params:  # the server's client
            assert params["n"] == 1
            answers = [self._answer(p) for p in prompts]
            return {"prompt_ids": prompts, "completion_ids": [a for a, _ in answers], "logprobs": [b for _, b in answers]}
        outputs = []
        for prompt in prompts:
            ids, logps = self._answer(prompt["prompt_token_ids"])
            table = [{i: types.SimpleNamespace(logprob=lp[0], rank=1)} for i, lp in zip(ids, logps, strict=True)]
            output = types.SimpleNamespace(token_ids=ids, logprobs=table)
            outputs.append(types.SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[output]))
        return outputs


@pytest.fixture
def vllm(monkeypatch):
    def install(model, shift=0.0):
        engine = StandIn(model, shift)

        def start(self):
            self.vllm_client, self.llm = engine, engine
            engine.get_server_info = lambda: {"model_config": {"logprobs_mode": "processed_logprobs"}}

        synced = []
        monkeypatch.setattr(vllm_generation.VLLMGeneration, "_init_vllm", start)
        monkeypatch.setattr(vllm_generation.VLLMGeneration, "sync_weights", lambda self: synced.append(1))
        monkeypatch.setattr(vllm_generation, "SamplingParams", lambda **kwargs: kwargs, raising=False)
        engine.synced = synced
        return engine

    return install


@pytest.mark.parametrize("mode", ["server", "colocate"])
@pytest.mark.parametrize("correction", [True, False])
def test_vllm(model, tokenizer, dataset, make_config, vllm, mode, correction):
    engine = vllm(model, shift=0.02)
    config = make_config(
        4, 4, use_vllm=True, vllm_mode=mode, vllm_importance_sampling_correction=correction, num_iterations=2, max_steps=2,
        response_mask="carm", response_mask_threshold=1.01, prune="none",
    )  # fmt: skip
    trainer = CGRPOTrainer(model, reward, config, dataset, processing_class=tokenizer, rollout_policy=Scripted([4, 2, 3, 4], 4))
    trainer.train()
    totals = trainer.ledger.totals()
    assert engine.requests == [8, 5] and totals["generated"] == 13  # one request per increment, of what is still wanted
    assert len(engine.synced) == 1  # weights go over once a step
    assert totals["masked"] == totals["masked_of"] == 26  # the engine's 0.02 nats per token exceed log 1.01, from the first pass on
    part = trainer._buffered_inputs[0]
    if correction:
        live = part["completion_mask"].bool()
        assert "importance_sampling_ratio" in part
        gap = (part["old_per_token_logps"] - part["sampling_per_token_logps"])[live]
        torch.testing.assert_close(gap, torch.full_like(gap, -0.02), atol=1e-4, rtol=0)
        logged = trainer.state.log_history[0]
        for name in ("mean", "max"):
            assert logged[f"sampling/sampling_logp_difference/{name}"] == pytest.approx(0.02, abs=1e-4)
        ratio = part["importance_sampling_ratio"][live if part["importance_sampling_ratio"].shape == live.shape else slice(None)]
        for name, value in (("min", ratio.min()), ("mean", ratio.mean()), ("max", ratio.max())):
            assert logged[f"sampling/importance_sampling_ratio/{name}"] == pytest.approx(float(value), rel=1e-5)
    else:
        assert torch.equal(part["old_per_token_logps"], part["sampling_per_token_logps"])


def test_a_server_that_returns_raw_log_probabilities_is_named(model, tokenizer, dataset, make_config, vllm):
    """TRL says so for its correction; a mask without the correction compares with them all the same."""
    engine = vllm(model)
    start = vllm_generation.VLLMGeneration._init_vllm

    def raw(self):
        start(self)
        engine.get_server_info = lambda: {"model_config": {"logprobs_mode": "raw_logprobs"}}

    vllm_generation.VLLMGeneration._init_vllm = raw  # the fixture's patch is undone after the test
    config = make_config(4, 4, use_vllm=True, vllm_mode="server", vllm_importance_sampling_correction=False, response_mask="carm")
    with pytest.warns(UserWarning, match=r"logprobs-mode: got raw_logprobs; need processed_logprobs"):
        CGRPOTrainer(model, reward, config, dataset, processing_class=tokenizer)


def test_vllm_old_logps(make_config):
    with pytest.raises(ValueError, match='old_logps: got "rollout" beside vllm_importance_sampling_correction'):
        make_config(4, 2, use_vllm=True, old_logps="rollout")
    assert make_config(4, 2, use_vllm=True).old_logps == "recompute"
    assert make_config(4, 2).old_logps == "rollout"


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_engine_correction(mode):
    args = types.SimpleNamespace(
        vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=0.5, vllm_importance_sampling_clip_max=2.0
    )
    ratios = torch.tensor([[3.0, 0.1, 1.2], [1.5, 1.1, math.nan]])
    got = importance_ratio(args, ratios.log(), torch.zeros(2, 3), torch.tensor([[1, 1, 1], [1, 1, 1]]))
    expected = {
        "token_truncate": [[2.0, 0.5, 1.2], [1.5, 1.1, 1.0]],
        "token_mask": [[0.0, 0.0, 1.2], [1.5, 1.1, 1.0]],
        "sequence_truncate": [[0.5], [1.65]],
        "sequence_mask": [[0.0], [1.65]],
    }[mode]
    torch.testing.assert_close(got, torch.tensor(expected))


def test_rollout_func_environment_tokens_and_fields(model, tokenizer, dataset):
    """``env_mask`` keeps tokens the policy did not write out of loss, mask and lengths; extra fields reach the reward functions."""

    class Environment(Rollout):
        def __call__(self, prompts, trainer):
            out = super().__call__(prompts, trainer)
            out["env_mask"] = [[1, *[0] * (len(ids) - 1)] for ids in out["completion_ids"]]
            out["bonus"] = [float(i % 2) for i in range(len(prompts))]
            return out

    trainer, loss, gradients, groups = run(
        model, tokenizer, dataset, rollout=Environment(tokenizer, 0, 0.3), reward_funcs=lambda bonus, **_: bonus, response_mask="carm",
        response_mask_threshold=1.05, loss_type="grpo",
    )  # fmt: skip
    assert trainer.ledger.totals()["trained_tokens"] == trainer.ledger.totals()["trained"] > 0
    assert trainer.state.log_history[0]["completions/max_length"] == 1
    check(model, trainer, loss, gradients, rule=trainer.mask_rule)
    assert {r.total for g in groups for r in g.responses} == {0.0, 1.0}


def test_rollout_func_of_the_wrong_length(model, tokenizer, dataset):
    class Short(Rollout):
        def __call__(self, prompts, trainer):
            return super().__call__(prompts[:-1], trainer)

    with pytest.raises(ValueError, match=r"rollout_func: got \d+ completions for \d+ prompts"):
        run(model, tokenizer, dataset, rollout=Short(tokenizer, 0, 0.0))


# ------------------------------------------------------------------------------------------------------ the paper's objective


def test_the_papers_objective(saved_model, tokenizer, dataset):
    """Eq. 10-11: batch-standardised group-centred advantages, sums of log-probabilities over |B|, k3 over tokens, -1 below five tokens."""
    preset = dict(
        objective="cgrpo", beta=0.05, degenerate_tokens=5, kl_on_pruned=True, num_iterations=1, parts=2, gradient_accumulation_steps=2
    )
    _, loss, gradients, groups = run(saved_model, tokenizer, dataset, drift=0.0, **preset)
    responses = [g.responses for g in groups]
    for r in (r for g in responses for r in g):
        assert r.total == (-1.0 if len(r.ids) < 5 else float(sum(r.ids.tolist()) % 3))
    centred = [np.array([r.total for r in g]) - np.mean([r.total for r in g]) for g in responses]
    every = np.concatenate(centred)
    exact = saved_model
    exact.zero_grad()
    total, n, tokens = torch.zeros(()), len(every), sum(len(r.ids) for g in responses for r in g)
    for group, d in zip(responses, centred, strict=True):
        for r, advantage in zip(group, (d - every.mean()) / (every.std(ddof=1) + 1e-8), strict=True):
            logps, _ = logps_and_entropy(exact, r.prompt.tolist(), r.ids.tolist())
            gap = logps.detach() - logps
            total = total - float(advantage) * logps.sum() / n + 0.05 * (torch.exp(gap) - gap - 1).sum() / tokens
    total.backward()
    assert loss == pytest.approx(float(total.detach()), abs=1e-6)
    for name, parameter in exact.named_parameters():
        torch.testing.assert_close(gradients[name].double(), parameter.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_the_papers_objective_logs_kl_and_entropy(saved_model, tokenizer, dataset, beta):
    """TRL's names and meaning: means over the live tokens of what trains, the KL term before beta."""
    start = [p.detach().clone() for p in saved_model.parameters()]

    class Moved(Rollout):
        def __call__(self, prompts, trainer):
            with torch.no_grad():  # so that the KL term is not 0
                for p, value in zip(trainer.model.parameters(), start, strict=True):
                    p.copy_(1.01 * value)
            out = super().__call__(prompts, trainer)
            out["env_mask"] = [[1, *[0] * (len(ids) > 1), *[1] * (len(ids) - 2)] for ids in out["completion_ids"]]
            return out

    trainer, *_ = run(
        saved_model, tokenizer, dataset, rollout=Moved(tokenizer, 0, 0.0), objective="cgrpo", beta=beta, num_iterations=1, prune="none"
    )
    (part,) = trainer._buffered_inputs
    terms, entropies = [], []
    for row in weighed(part):
        logps, entropy = logps_and_entropy(saved_model, row.prompt, row.completion)
        live = torch.tensor(row.live).bool()
        entropies.append(entropy[live])
        if beta:
            gap = torch.tensor(row.ref)[live] - logps[live]
            terms.append(torch.exp(gap) - gap - 1)
    logged = trainer.state.log_history[0]
    assert logged["entropy"] == pytest.approx(float(torch.cat(entropies).mean().detach()), rel=1e-5)
    if beta:
        assert logged["kl"] == pytest.approx(float(torch.cat(terms).mean().detach()), rel=1e-4) and logged["kl"] > 1e-5
    else:
        assert "kl" not in logged


def test_the_papers_objective_has_no_router_term():
    settings = types.SimpleNamespace(objective="cgrpo")
    check_router(types.SimpleNamespace(args=settings, aux_loss_enabled=False))
    with pytest.raises(ValueError, match=r"router_aux_loss_coef: got 0.001; need 0.0; because Eq. 10-11"):
        check_router(types.SimpleNamespace(args=settings, aux_loss_enabled=True, router_aux_loss_coef=0.001))


def test_the_preset(tmp_path):
    config = CGRPOConfig.paper(output_dir=str(tmp_path), use_cpu=True, bf16=False, beta=0.1)
    assert (config.objective, config.beta, config.degenerate_tokens, config.learning_rate) == ("cgrpo", 0.1, 5, 2e-6)
    for name, value in (
        ("entropy_coef", 0.1),
        ("use_adaptive_entropy", True),
        ("top_entropy_quantile", 0.2),
        ("importance_sampling_level", "sequence"),
        ("multi_objective_aggregation", "normalize_then_sum"),
        ("off_policy_mask_threshold", 0.5),
        ("vllm_importance_sampling_correction", True),
    ):  # what the objective would not read is refused, not ignored
        with pytest.raises(ValueError, match=rf"{name}: got .*; need .*; because"):
            CGRPOConfig.paper(output_dir=str(tmp_path), use_cpu=True, bf16=False, **{"use_vllm": name.startswith("vllm"), name: value})
    assert CGRPOConfig.paper(output_dir=str(tmp_path), use_cpu=True, bf16=False, use_vllm=True).old_logps == "rollout"
