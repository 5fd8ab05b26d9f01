"""One process of a two-process run (or the only one): trains a tiny model on scripted responses and writes what happened.

torchrun --nproc-per-node 2 tests/conformal_trl/ddp_worker.py OUT.json '{"case": "plain"}'
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback

from conformal_core import ConformalBudget, FixedBudget, SignalBudget, prompt_ids
from conformal_trl import CGRPOConfig, CGRPOTrainer

SYMBOLS = ["<pad>", "<bos>", "<eos>", "<unk>", *"0123456789+-*= "]
K = 4


def tiny() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    backend = Tokenizer(models.WordLevel({s: i for i, s in enumerate(SYMBOLS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SYMBOLS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2, max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config), tokenizer


class Keyed:
    """The j-th response of a prompt is a function of the prompt and j, whoever draws it; log-probabilities are the model's, moved by it."""

    def __init__(self, trainer, answers_alike: bool) -> None:
        self.trainer, self.alike = trainer, answers_alike

    def __call__(self, examples):
        from tests.conformal_trl.reference import logps_and_entropy

        responses, fields = self.original(examples)
        for response, example in zip(responses, examples, strict=True):
            key = int(prompt_ids([example["prompt"]])[0] % 2**32)
            rng = np.random.default_rng([key, example["__draw__"]])
            ids = [5, 2] if self.alike else [*rng.integers(4, 14, int(rng.integers(1, 5))).tolist(), 2]
            with torch.no_grad():
                own = logps_and_entropy(self.trainer.model, response.prompt.tolist(), ids)[0].numpy()
            response.ids = np.array(ids, np.int64)
            response.logps = (own + 0.1 * rng.standard_normal(len(ids)) * (rng.random() < 0.5)).astype(np.float32)
            response.text = response.completion = "".join(SYMBOLS[i] for i in ids[:-1])
        return responses, fields


def install(trainer, alike: bool) -> None:
    """Number the draws of every group, so that responses are keyed."""
    rollouts, keyed = trainer.rollouts, Keyed(trainer, alike)
    keyed.original = rollouts._respond
    rollouts._respond = keyed
    draw = rollouts.draw

    def numbered(rows, size, bar=None):
        seen: dict[int, int] = {}
        copies = []
        for group in rows:
            n = seen.get(id(group), len(group.responses))
            seen[id(group)] = n + 1
            one = type(group)({**group.example, "__draw__": n})
            copies.append(one)
        draw(copies, size, bar)
        for group, one in zip(rows, copies, strict=True):
            group.responses.extend(one.responses)

    rollouts.draw = numbered


def reward(prompts, completions, all_fail, rank_fails, **_):
    return [
        0.0 if fail or (part and int(prompt[0]) % 2) else float(sum(map(ord, text)) % 2)
        for prompt, text, fail, part in zip(prompts, completions, all_fail, rank_fails, strict=True)
    ]


def main(out: str, case: dict) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model, tokenizer = tiny()
    if case.get("lora"):
        from peft import LoraConfig

        peft = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    rows = [
        {
            "prompt": f"{i}+{i % 7}=",
            "answer": str(i % 5),
            "all_fail": case.get("all_fail", False),
            "rank_fails": case.get("rank_fails", False),
        }
        for i in range(40)
    ]
    calibration = Dataset.from_list([{**r, "prompt": r["prompt"].replace("+", "*")} for r in rows])
    policies = {
        "fixed": lambda: FixedBudget(K),
        "conformal": lambda: ConformalBudget((2, K), delta="0.3", multiplicity="risk_control", n_calibration=20, recalibrate_every=1),
        "signal": lambda: SignalBudget((2, K), delta="0.3", share=0.5),
    }
    policy = policies[case.get("policy", "fixed")]()
    groups = 8
    parts = case.get("parts", 2)  # micro-batches of the single process; two processes have half as many each
    with tempfile.TemporaryDirectory() as folder:
        config = CGRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", report_to="none",
            disable_tqdm=True, num_generations=K, per_device_train_batch_size=case.get("per_device", groups * K // parts),
            gradient_accumulation_steps=parts // world, steps_per_generation=parts // world, max_completion_length=6,
            max_steps=case.get("steps", 2), learning_rate=1e-3, lr_scheduler_type="constant", num_iterations=2, seed=3,
            calibration_progress=False, max_grad_norm=1e9, shuffle_dataset=False, **case.get("config", {}),
        )  # fmt: skip
        trainer = CGRPOTrainer(
            model, reward, config, Dataset.from_list(rows), processing_class=tokenizer, rollout_policy=policy,
            calibration_dataset=None if case.get("policy") != "conformal" else calibration,
            answer_fn=lambda text: text[:1] or None, gold_column="answer", **({"peft_config": peft} if case.get("lora") else {}),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        install(trainer, case.get("alike", False))
        losses, gradients = [], []
        compute = trainer._compute_loss
        trainer._compute_loss = lambda m, i: losses.append(compute(m, i)) or losses[-1]
        trainer.create_optimizer()

        def keep(*args, **kwargs):
            named = trainer.accelerator.unwrap_model(trainer.model).named_parameters()
            gradients.append({n: p.grad.flatten()[:50].tolist() for n, p in named if p.grad is not None})

        trainer.optimizer.register_step_pre_hook(keep)
        trainer.train()
        local = torch.stack([x.detach() for x in losses]).reshape(config.max_steps, -1).sum(1)
        total = trainer.accelerator.reduce(local, reduction="mean").tolist()
        if trainer.accelerator.is_main_process:
            totals = trainer.ledger.totals()
            report = {
                "world": world,
                "losses": total,
                "gradients": gradients,
                "drawn": [r["drawn"] for r in trainer.ledger.history],
                "policy": [r["policy"] for r in trainer.ledger.history],
                "totals": {k: totals[k] for k in ("generated", "trained", "calibration", "reward_calls", "masked", "masked_of")},
                "metrics": [
                    {k: v for k, v in h.items() if k.startswith(("mask/", "completions/", "reward", "frac", "rollouts"))}
                    for h in trainer.state.log_history
                ],
                "weights": float(sum(p.detach().double().abs().sum() for p in trainer.model.parameters())),
            }
            with open(out, "w") as file:
                json.dump(report, file)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
