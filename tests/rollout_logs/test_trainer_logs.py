"""Files written by the trainers' own code: TRL's completions tables, verl's rollout dump, this project's trainer."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from trl import GRPOConfig, GRPOTrainer

from conformal_core import FixedBudget, SignalBudget
from conformal_trl import CGRPOTrainer
from rollout_logs import audit, load_groups


class Reward:
    """Even token counts pass; keeps what it was asked."""

    __name__ = "even"

    def __init__(self):
        self.seen = []

    def __call__(self, prompts, completions, completion_ids, **_):
        values = [float(sum(ids) % 2 == 0) for ids in completion_ids]
        self.seen += list(zip(prompts, completions, values, strict=True))
        return values


def by_prompt(seen):
    groups = {}
    for prompt, _, value in seen:
        groups.setdefault(prompt, []).append(value)
    return groups


@pytest.mark.parametrize("iterations", [1, 2])
def test_trl_completions_tables(model, tokenizer, dataset, tmp_path, iterations):
    """TRL writes the same window again at every step that generates nothing: each completion is counted once."""
    reward = Reward()
    config = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=iterations,
        max_completion_length=6,
        max_steps=4,
        log_completions=True,
        num_completions_to_print=0,
    )
    GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=dataset, processing_class=tokenizer).train()
    groups = load_groups([str(tmp_path / "completions")])
    assert groups is not None
    assert groups.responses.n == len(reward.seen)
    assert sum(pq.read_metadata(p).num_rows for p in (tmp_path / "completions").glob("*.parquet")) == iterations * len(reward.seen)
    assert any("repeats" in note for note in groups.intake.notes) == (iterations > 1)
    assert sorted(groups.solved.tolist()) == sorted(np.mean(v) for v in by_prompt(reward.seen).values())
    assert groups.signal.tolist() == [0 < s < 1 for s in groups.solved]
    assert set(groups.size.tolist()) == {4}


def test_ragged_groups_of_our_trainer(model, tokenizer, dataset, make_config, tmp_path):
    """Adaptive budgets leave old rows in TRL's window: they are repeats; the replay stays within what every group has."""
    reward = Reward()
    policy = SignalBudget((2, 4, 8), delta="0.5", window=4, share="0.01", seed=1)
    config = make_config(8, 4, max_steps=5, log_completions=True, num_completions_to_print=0, save_strategy="steps", save_steps=5)
    CGRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=dataset, processing_class=tokenizer, rollout_policy=policy
    ).train()
    report = audit(tmp_path)
    waste = report.budgets.waste
    assert waste.rollouts == len(reward.seen)
    groups = by_prompt(reward.seen)
    assert waste.no_signal == sum(len(set(v)) == 1 for v in groups.values())
    assert report.budgets.k_max == min(map(len, groups.values()))
    assert report.ledger is not None and report.ledger.generated == len(reward.seen)
    assert any("own ledger" in sentence for sentence in report.verdict()["budgets"])


def test_fixed_groups_of_our_trainer(model, tokenizer, dataset, make_config, tmp_path):
    reward = Reward()
    config = make_config(4, 4, max_steps=3, log_completions=True, num_completions_to_print=0)
    CGRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=dataset, processing_class=tokenizer, rollout_policy=FixedBudget(4)
    ).train()
    groups = load_groups([str(tmp_path / "completions")])
    assert groups.responses.n == len(reward.seen) == 48
    assert groups.intake.unread == 0


#: The first line of ``rollout_data_dir/3.jsonl`` byte for byte, by verl's Ray trainer, which writes NumPy's booleans as text.
VERL_LINE = (
    '{"input": "user\\n1+1=?\\nassistant\\n", "output": "Zwei \\\\boxed{2} – ☃", "gts": "2", "score": 1.0, "step": 3, '
    '"acc": "True", "pred": "2"}'
)


def verl_rows():
    inputs = [f"user\n{p}+1=?\nassistant\n" for p in (1, 1, 2, 2)]
    outputs = ["Zwei \\boxed{2} – ☃", "\\boxed{3}", "nothing", "\\boxed{3}"]
    scores = np.array([1.0, 0.0, 0.0, 1.0])
    return inputs, outputs, ["2", "2", "3", "3"], scores.tolist(), {"acc": scores > 0, "pred": ["2", "3", None, "3"]}


def check_verl(folder):
    groups = load_groups([str(folder)])
    assert groups.responses.n == 4 and groups.size.tolist() == [2, 2] and set(groups.step.tolist()) == {3}
    assert groups.solved.tolist() == [0.5, 0.5] and groups.signal.all()
    outcomes = groups.outcomes(np.arange(2), 2)
    table = {tuple(row): gold for row, gold in zip(outcomes.codes.tolist(), outcomes.gold.tolist(), strict=True)}
    assert table == {(0, 1): 0, (-1, 0): 0}


@pytest.mark.parametrize("true", ['"True"', "true"])
def test_verl_rollout_dump_as_recorded(tmp_path, true):
    inputs, outputs, gts, scores, extra = verl_rows()
    rows = [
        {"input": i, "output": o, "gts": g, "score": s, "step": 3, "acc": str(a), "pred": p}
        for i, o, g, s, a, p in zip(inputs, outputs, gts, scores, extra["acc"].tolist(), extra["pred"], strict=True)
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    assert text.split("\n")[0] == VERL_LINE
    (tmp_path / "3.jsonl").write_text(
        text.replace('"True"', true).replace('"False"', "false" if true == "true" else '"False"'), encoding="utf-8"
    )
    check_verl(tmp_path)


def verl_dump():
    """``RayPPOTrainer._write_generations`` out of verl's source, which imports half of Ray around it."""
    package = importlib.util.find_spec("verl")
    if package is None:
        pytest.skip("verl is not installed")
    path = Path(package.submodule_search_locations[0]) / "trainer" / "ppo" / "ray_trainer.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [function] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_write_generations"]
    function.decorator_list = []
    names = {"json": json, "os": os, "np": np}
    exec(compile(ast.Module([function], []), str(path), "exec"), names)
    return names["_write_generations"]


def test_verl_rollout_dump_by_its_own_code(tmp_path):
    dump = verl_dump()
    dump(*verl_rows(), str(tmp_path), 3)
    assert (tmp_path / "3.jsonl").read_text(encoding="utf-8").split("\n")[0] == VERL_LINE
    check_verl(tmp_path)
