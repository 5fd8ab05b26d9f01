"""One process of a two-process run (or the only one): trains a tiny model on scripted responses and writes what happened.

torchrun --nproc-per-node 2 tests/conformal_trl/ddp_worker.py OUT.json '{"case": "plain"}'
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback

from conformal_core import ConformalBudget, FixedBudget, SignalBudget, prompt_ids
from conformal_trl import CGRPOConfig, CGRPOTrainer

SYMBOLS = ["<pad>", "<bos>", "<eos>", "<unk>", *"0123456789+-*= "]
K = 4
SHARED = ("completions/", "reward", "frac_", "rollouts/", "policy/", "num_tokens", "mask/seq_")


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

    def __init__(self, trainer, case: dict) -> None:
        self.trainer, self.alike, self.drifts = trainer, case.get("alike", False), case.get("drifts", 0.5)

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
            response.logps = (own + 0.1 * rng.standard_normal(len(ids)) * (rng.random() < self.drifts)).astype(np.float32)
            response.text = response.completion = "".join(SYMBOLS[i] for i in ids[:-1])
        return responses, fields


def install(trainer, case: dict) -> None:
    """Number the draws of every group, so that responses are keyed."""
    rollouts, keyed = trainer.rollouts, Keyed(trainer, case)
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


def reward(prompts, completions, kind, **_):
    """Parity of the text; ``all_fail``: 0; ``rank_fails``: 0 for odd prompts; ``few``: only prompts that start with 0 ever pass."""
    fails = {"all_fail": lambda p: True, "rank_fails": lambda p: int(p[0]) % 2 == 1, "few": lambda p: p[:2] != "0+", "": lambda p: False}
    return [0.0 if fails[k](p) else float(sum(map(ord, text)) % 2) for p, text, k in zip(prompts, completions, kind, strict=True)]


def run(case: dict) -> dict:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model, tokenizer = tiny()
    if case.get("lora"):
        from peft import LoraConfig

        peft = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    kind = next((k for k in ("all_fail", "rank_fails", "few") if case.get(k)), "")
    rows = [{"prompt": f"{i}+{i % 7}=", "answer": str(i % 5), "kind": kind} for i in range(40)]
    calibration = Dataset.from_list([{**r, "prompt": r["prompt"].replace("+", "*")} for r in rows])
    policies = {
        "fixed": lambda: FixedBudget(K),
        "conformal": lambda: ConformalBudget((2, K), delta="0.3", multiplicity="risk_control", n_calibration=20, recalibrate_every=1),
        "signal": lambda: SignalBudget((2, K), delta="0.3", share=0.5),
    }
    policy = policies[case.get("policy", "fixed")]()
    groups = 8
    parts = case.get("parts", 2)  # micro-batches over all processes
    if world == 1:
        parts = case.get("parts_alone", parts)
    with tempfile.TemporaryDirectory() as folder:
        config = CGRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", report_to="none",
            disable_tqdm=True, num_generations=K, per_device_train_batch_size=case.get("per_device", groups * K // parts),
            gradient_accumulation_steps=parts // world, steps_per_generation=parts // world, max_completion_length=6,
            max_steps=case.get("steps", 2), learning_rate=1e-3, lr_scheduler_type="constant", num_iterations=2, seed=3,
            calibration_progress=False, max_grad_norm=1e9, shuffle_dataset=False, **case.get("config", {}),
        )  # fmt: skip
        data = Dataset.from_list(rows).to_iterable_dataset() if case.get("stream") else Dataset.from_list(rows)
        trainer = CGRPOTrainer(
            model, reward, config, data, processing_class=tokenizer, rollout_policy=policy,
            calibration_dataset=None if case.get("policy") != "conformal" else calibration,
            answer_fn=lambda text: text[:1] or None, gold_column="answer", **({"peft_config": peft} if case.get("lora") else {}),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        install(trainer, case)
        losses, gradients = [], []
        compute = trainer._compute_loss
        trainer._compute_loss = lambda m, i: losses.append(compute(m, i)) or losses[-1]
        calls = dict.fromkeys(("_generate", "_get_per_token_logps_and_entropies"), 0)
        for name in calls:
            original = getattr(trainer, name)

            def counted(*args, _name=name, _original=original, **kwargs):
                calls[_name] += 1
                return _original(*args, **kwargs)

            setattr(trainer, name, counted)
        trainer.create_optimizer()

        def keep(*args, **kwargs):
            named = trainer.accelerator.unwrap_model(trainer.model).named_parameters()
            gradients.append({n: p.grad.flatten()[:50].tolist() for n, p in named if p.grad is not None})

        trainer.optimizer.register_step_pre_hook(keep)
        trainer.train()
        local = torch.stack([x.detach() for x in losses]).reshape(config.max_steps, -1).sum(1)
        total = trainer.accelerator.reduce(local, reduction="mean").tolist()
        totals = trainer.ledger.totals()
        tables = (
            [pd.read_parquet(path) for path in sorted(Path(folder).glob("completions/*"))] if trainer.accelerator.is_main_process else []
        )
        return {
            "table": [[step, *row] for t in tables for step, *row in t[["step", "prompt", "completion"]].to_numpy().tolist()],
            "losses": total,
            "calls": calls,
            "gradients": gradients,
            "drawn": [r["drawn"] for r in trainer.ledger.history],
            "policy": [r["policy"] for r in trainer.ledger.history],
            "totals": {k: totals[k] for k in ("generated", "trained", "calibration", "reward_calls", "masked", "masked_of", "audit")},
            "metrics": [{k: v for k, v in h.items() if k.startswith(SHARED)} for h in trainer.state.log_history],
            "weights": float(sum(p.detach().double().abs().sum() for p in trainer.model.parameters())),
        }


def main(out: str, cases: dict) -> None:
    report: dict = {}
    for name, case in cases.items():
        try:
            report[name] = run(case)
        except ValueError as error:
            report[name] = {"error": str(error)}
    with open(f"{out}.{os.environ.get('RANK', '0')}", "w") as file:
        json.dump(report, file)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
