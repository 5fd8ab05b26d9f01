"""One run: build the rule, train it on its budget with the trainer of :mod:`conformal_trl`, evaluate, return what happened."""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from conformal_core import Outcomes, RolloutPolicy, replay

from .. import arithmetic
from .actor import stale
from .rules import BudgetRule, MaskRule, budget, mask
from .settings import Run, Settings

__all__ = ["Recorder", "prompts_per_step", "run", "start_tables"]

#: Prompts of a start table, and responses of each.
TABLE = (300, 32)
#: Problems a regime may train on; the few regime keeps ``Settings.pool`` of them.
MANY = 20_000
VALIDATION = 500


def problems(s: Settings, regime: str, seed: int) -> arithmetic.Splits:
    """Calibration, evaluation (test first, then validation) and training problems; the test set is the same for every seed and rule.

    ``few`` has a hard tail: operands of two and three digits, at which the embedded start model mostly fails.
    """
    digits = (1, 2, 3) if regime == "many" else (2, 3)
    train = MANY if regime == "many" else s.pool
    if s.model != "embedded":
        digits = (1, 2) if regime == "many" else (2,)
        train = min(train, 2000)
    drawn = arithmetic.splits(0, 400 + TABLE[0], s.eval_prompts + VALIDATION, MANY if s.model == "embedded" else 2000, digits=digits)
    chosen = np.random.default_rng([seed, 7]).permutation(len(drawn.train))[:train]
    lists = drawn._replace(train=[drawn.train[i] for i in chosen])
    return lists if s.model == "embedded" else lists._make(arithmetic.few_shot(rows) for rows in lists)


class Recorder(RolloutPolicy):
    """The same policy, which also adds up what its groups were worth; decisions pass through untouched.

    ``mass`` is ``sum_groups c (n - c) / n`` over the kept responses: the squared centred rewards, which scale the squared gradient.
    """

    def __init__(self, policy: RolloutPolicy) -> None:
        self.inner = policy
        self.k_max, self.needs_answers = policy.k_max, policy.needs_answers
        self.whole_batch = policy.whole_batch
        self.mass = 0.0
        self.seen: set[int] = set()
        self.visits = 0

    def __repr__(self) -> str:
        return repr(self.inner)

    def first(self, prompt_ids: Any, step: int) -> Any:
        return self.inner.first(prompt_ids, step)

    def more(self, outcomes: Outcomes) -> Any:
        return self.inner.more(outcomes)

    def keep(self, outcomes: Outcomes) -> Any:
        return self.inner.keep(outcomes)

    def advantages(self, outcomes: Outcomes) -> Any:
        return self.inner.advantages(outcomes)

    def update(self, outcomes: Outcomes) -> None:
        kept = self.inner.keep(outcomes)
        c, n = (outcomes.passes & kept).sum(1), kept.sum(1)
        self.mass += float((c * (n - c) / np.maximum(n, 1)).sum())
        drawn = outcomes.prompt_ids[outcomes.drawn > 0]
        self.seen.update(int(i) for i in drawn)
        self.visits += len(drawn)
        self.inner.update(outcomes)

    def calibration(self, step: int) -> Any:
        return self.inner.calibration(step)

    def calibrate(self, outcomes: Outcomes) -> None:
        self.inner.calibrate(outcomes)

    def audit(self, outcomes: Outcomes) -> Mapping[str, tuple[int, int]]:
        return self.inner.audit(outcomes)

    def metrics(self) -> Mapping[str, float]:
        return self.inner.metrics()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "mass": self.mass, "seen": sorted(self.seen), "visits": self.visits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.mass, self.seen, self.visits = state["mass"], set(state["seen"]), state["visits"]


def start_tables(s: Settings, regime: str) -> Path:
    """Responses of the start model to prompts of the calibration list, answers coded; written once per comparison."""
    path = Path(s.out) / f"start.{regime}.npz"
    if path.exists():
        return path
    from conformal_core import encode_answers, prompt_ids

    from .. import models
    from ..evaluate import evaluate

    model, tokenizer = _model(s, models)
    rows = problems(s, regime, 0).calibration[-TABLE[0] :]
    if s.model != "embedded":  # a large model takes minutes for all of them
        rows = rows[: TABLE[0] // 3]
    answers: list[list[str | None]] = [[] for _ in rows]

    def collect(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        for text, index in zip(completions, answer, strict=True):
            answers[int(index)].append(arithmetic.extract_answer(text))
        return [0.0] * len(completions)

    evaluate(model, tokenizer, [{**row, "answer": str(i)} for i, row in enumerate(rows)], samples=TABLE[1], seed=99, score=collect)
    codes, gold = encode_answers(answers, [row["answer"] for row in rows])
    assert gold is not None
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, ids=prompt_ids([r["prompt"] for r in rows]), passes=codes == gold[:, None], codes=codes, gold=gold)
    temporary.replace(path)
    return path


def prompts_per_step(rule: BudgetRule, s: Settings, regime: str) -> int:
    """Prompts per step at which the rule generates ``s.responses`` responses per update, by replay on the start model's responses.

    A rule calibrates (or learns, ten prompts a step) on one half of the table and is replayed on the other.
    Dynamic sampling is given as many groups as the share of groups with variance leaves of the responses.
    """
    with np.load(start_tables(s, regime)) as data:
        table = Outcomes(data["ids"], data["passes"], None, data["codes"], data["gold"])
    half = table.n // 2
    evaluation, calibration = table.take(np.arange(half)), table.take(np.arange(half, table.n))
    if rule.reserve > 1:
        policy = rule.make(1, 0)
        k = policy.k_max
        c = evaluation.passes[:, :k].sum(1)
        share = max(float(((c > 0) & (c < k)).mean()), 1 / rule.reserve)
        return max(1, round(s.responses * share / k))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = rule.make(max(1, s.responses // 8), 0)
        steps = [calibration.take(np.arange(i, min(i + 10, calibration.n))) for i in range(0, calibration.n, 10)]
        replay(policy, steps, calibration=calibration, learn=True)
        mean_k = replay(policy, evaluation, step=len(steps)).mean_k
    return max(1, round(s.responses / max(mean_k, 1)))


def _model(s: Settings, models: Any) -> Any:
    model, tokenizer = models.load(s.model)
    if s.model != "embedded":
        newlines = [ids[0] for text in ("\n", "\n\n") if len(ids := tokenizer.encode(text, add_special_tokens=False)) == 1]
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, *newlines]
    return model, tokenizer


def masking(rule: MaskRule) -> dict[str, Any]:
    """Arguments of ``CGRPOConfig`` for a mask rule."""
    from conformal_trl.masks import WEIGHING

    options: dict[str, Any] = {"response_mask": rule.rule, "response_mask_threshold": rule.threshold}
    if rule.conditioning != "both":
        options["response_mask_conditioning"] = rule.conditioning
    if rule.rule in WEIGHING:  # by pi_old / pi_rollout, which is 1 if pi_old is what was recorded
        options["old_logps"] = "recompute"
    return options


def run(spec: Run, s: Settings, phase: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """Train and evaluate; the result is one line of ``results.jsonl``."""
    phase("load")
    import torch
    import transformers
    from transformers import PrinterCallback, TrainerCallback

    from conformal_trl import CGRPOConfig, CGRPOTrainer

    from .. import models
    from ..evaluate import evaluate

    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    rule, mask_rule = budget(spec.rule), mask(spec.mask)
    data = problems(s, spec.regime, spec.seed)
    prompts = prompts_per_step(rule, s, spec.regime)
    transformers.set_seed(spec.seed)
    model, tokenizer = _model(s, models)
    policy = Recorder(rule.make(prompts, spec.seed))
    amount = s.amount * (s.tune_share if spec.tuning else 1.0)

    parts = s.staleness
    handed = prompts * rule.reserve
    config = CGRPOConfig(
        output_dir=str(Path(s.out) / spec.name),
        **masking(mask_rule),
        per_device_train_batch_size=handed * policy.k_max,
        num_generations=policy.k_max,
        num_iterations=parts,
        gradient_accumulation_steps=1,
        learning_rate=spec.lr,
        max_steps=1_000_000,
        max_completion_length=8,
        temperature=1.0,
        scale_rewards=s.scale_rewards,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        calibration_progress=False,
        logging_steps=1,
        logging_strategy="steps",
        seed=spec.seed,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.lr, weight_decay=0.0)
    spent = [0.0]  # share of the budget
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: max(0.0, 1 - spent[0]))
    foreign = s.actor_delay or s.actor_dtype != "float32"
    trainer_class = stale(CGRPOTrainer, s.actor_delay, s.actor_dtype) if foreign else CGRPOTrainer
    trainer = trainer_class(
        model=model,
        reward_funcs=arithmetic.reward,
        args=config,
        train_dataset=arithmetic.to_dataset(data.train),
        calibration_dataset=arithmetic.to_dataset(data.calibration[: -TABLE[0]]),
        processing_class=tokenizer,
        rollout_policy=policy,
        answer_fn=arithmetic.extract_answer,
        gold_column="answer",
        optimizers=(optimizer, schedule),
    )

    def used() -> float:
        if s.by == "seconds":
            return trainer.ledger.elapsed / amount
        if s.by == "cpu":
            return (time.process_time() - began_cpu) / amount
        if s.by == "prompts":
            return policy.visits / amount
        return sum(r["generated_tokens"] + r["calibration_tokens"] for r in trainer.ledger.history) / amount

    curves: list[dict[str, float]] = []

    class Budget(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            spent[0] = used()
            if spent[0] >= 1:
                control.should_training_stop = True
            return control

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            keys = ("reward", "entropy", "grad_norm", "mask/seq_masked_fraction", "rollouts/mean_k", "loss")
            found = {k: float(logs[k]) for k in keys if logs and logs.get(k) is not None}  # a step without rows has no entropy
            curves.append({"step": state.global_step, **found})

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Budget())
    phase("train")
    began, began_cpu = time.perf_counter(), time.process_time()
    trainer.train()
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    phase("evaluate")
    result: dict[str, Any] = {
        "run": {"regime": spec.regime, "rule": spec.rule, "mask": spec.mask, "seed": spec.seed, "lr": spec.lr, "tuning": spec.tuning},
        "policy": repr(policy),
        "prompts_per_step": prompts,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "totals": trainer.ledger.totals(),
        "mass": policy.mass,
        "distinct_prompts": len(policy.seen),
        "metrics": {k: str(v) for k, v in policy.metrics().items()},
        "curves": curves[:: max(1, len(curves) // 100)],
    }
    test, validation = data.eval[: s.eval_prompts], data.eval[s.eval_prompts :]
    if spec.tuning:
        result["validation"] = float(evaluate(trainer.model, tokenizer, validation, samples=4, seed=spec.seed + 2).mean())
    else:
        counts = evaluate(trainer.model, tokenizer, test, samples=s.eval_samples, seed=spec.seed + 1).sum(1)
        result["test_counts"] = counts.tolist()
        if spec.regime == "few":
            result["pool"] = float(evaluate(trainer.model, tokenizer, data.train, samples=s.eval_samples, seed=spec.seed + 3).mean())
    return result


def main(spec: str) -> None:
    """``python -m experiments compare-run``: one run from JSON, appended to ``results.jsonl``."""
    import os

    import torch

    raw = json.loads(spec)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    s = Settings.load(Path(raw.pop("settings")))
    result = run(Run(**raw), s, lambda name: print(f"@phase {name}", flush=True))
    line = json.dumps(result) + "\n"
    with open(Path(s.out) / "results.jsonl", "a", encoding="utf-8") as file:  # one write per line: runs append side by side
        file.write(line)
    print("@phase done", flush=True)
