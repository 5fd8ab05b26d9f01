"""The completions table: every generated response once, whatever is logged when, evaluated in between, or resumed."""

from __future__ import annotations

import collections
import re

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from conformal_trl import CGRPOTrainer
from conformal_trl.rows import Group, Response
from conformal_trl.tables import add_rows, as_json, beside, from_json, no_rows
from tests.conformal_trl.test_true_cost import Scripted


class Numbered:
    """Rewards every response with a number of its own, which is also a column of its own every other call."""

    __name__ = "numbered"

    def __init__(self, start=0):
        self.given = start

    def __call__(self, completions, log_extra, **_):
        numbers = [float(self.given + i) for i in range(len(completions))]
        self.given += len(completions)
        log_extra("number", [np.float64(n) for n in numbers])
        return numbers


def trainer_of(model, tokenizer, dataset, make_config, reward, **config):
    config = make_config(4, 4, **({"log_completions": True, "num_completions_to_print": 0, "logging_strategy": "steps"} | config))
    return CGRPOTrainer(
        model, reward, config, dataset, processing_class=tokenizer, rollout_policy=Scripted([4, 3, 4, 2], 4),
        eval_dataset=Dataset.from_list([{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}]),
    )  # fmt: skip


def tables(folder):
    """{step: training rows}, {step: evaluation rows}."""
    found: dict[str, dict[int, pd.DataFrame]] = {"": {}, "_eval": {}}
    for path in sorted((folder / "completions").glob("*")):
        step, kind = re.fullmatch(r"completions_(\d+)(_eval)?\.parquet", path.name).groups()
        found[kind or ""][int(step)] = pd.read_parquet(path)
    return found[""], found["_eval"]


@pytest.mark.parametrize(("logging_steps", "num_iterations"), [(1, 1), (1, 2), (2, 1), (3, 1), (2, 2)])
def test_every_generated_row_once(model, tokenizer, dataset, make_config, tmp_path, logging_steps, num_iterations):
    """Four steps of 13 responses a generation: more logs than generations, fewer, and a rest that only the end logs."""
    reward = Numbered()
    trainer = trainer_of(
        model, tokenizer, dataset, make_config, reward, max_steps=4, logging_steps=logging_steps, num_iterations=num_iterations
    )
    trainer.train()
    training, evaluation = tables(tmp_path)
    rows = pd.concat(list(training.values()))
    assert not evaluation and trainer.ledger.totals()["generated"] == reward.given == 52 // num_iterations
    assert collections.Counter(rows["numbered"]) == collections.Counter(float(i) for i in range(reward.given))
    assert (rows["numbered"] == rows["number"]).all()
    for step, table in training.items():
        assert set(table["step"]) == {step} and len(table) % 13 == 0
    assert trainer._logs["prompt"] == []


def test_an_evaluation_leaves_the_table_of_the_step(model, tokenizer, dataset, make_config, tmp_path):
    """Evaluated at a step that is logged (2, 4) and at one whose rows are not logged yet (1, 3)."""
    reward = Numbered()
    trainer = trainer_of(
        model, tokenizer, dataset, make_config, reward, max_steps=4, logging_steps=2, eval_strategy="steps", eval_steps=1,
        per_device_eval_batch_size=4,
    )  # fmt: skip
    trainer.train()
    training, evaluation = tables(tmp_path)
    assert {step: len(t) for step, t in training.items()} == {2: 26, 4: 26}
    assert {step: len(t) for step, t in evaluation.items()} == dict.fromkeys((1, 2, 3, 4), 8)  # two prompts, four responses each
    rows = pd.concat([*training.values(), *evaluation.values()])
    assert collections.Counter(rows["numbered"]) == collections.Counter(float(i) for i in range(reward.given))


def test_rows_that_wait_for_a_log_are_in_the_checkpoint(model, saved_model, tokenizer, dataset, make_config, tmp_path):
    """Logged at 3, saved at 2: a resumed run writes the table, the metrics and the loss of step 3 as if it had never stopped."""
    config = dict(max_steps=3, logging_steps=3, save_strategy="steps", save_steps=2)
    whole = trainer_of(model, tokenizer, dataset, make_config, Numbered(), **config)
    whole.train()
    expected, _ = tables(tmp_path)
    (tmp_path / "completions" / "completions_00003.parquet").unlink()
    resumed = trainer_of(saved_model, tokenizer, dataset, make_config, Numbered(start=26), **config)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    got, _ = tables(tmp_path)
    pd.testing.assert_frame_equal(got[3], expected[3])
    one, two = (next(h for h in t.state.log_history if "loss" in h) for t in (whole, resumed))
    timed = {"step_time"}
    assert {k: v for k, v in one.items() if k not in timed} == {k: v for k, v in two.items() if k not in timed}


def test_a_column_that_some_rows_lack():
    """Columns of ``log_extra`` that come and go stay level with the rows; a checkpoint holds them as plain values."""
    table, columns = no_rows(), ({}, {"n": np.float32(1)}, {"m": object})
    for extra in columns:
        response = Response(np.ones(1), np.ones(1), None, None, "text", "text", rewards=(0.5,), extra=extra)
        add_rows(table, [Group({"prompt": "p"}, [response])], np.zeros((1, 1)), ["r"])
    again = from_json(as_json(table))
    assert again["extra"] == {"n": [None, 1.0, None], "m": [None, None, str(object)]}
    assert again["rewards"]["r"] == [0.5] * 3 and again["advantages"] == [0.0] * 3
    assert again["rewards"]["new"] == [] and again["prompt"] == ["p"] * 3


def test_tables_written_beside(tmp_path):
    path = tmp_path / "completions_00007.parquet"
    path.write_text("training")
    with beside(str(tmp_path), 7, "eval"):
        assert not path.exists()
        path.write_text("evaluation")
    assert path.read_text() == "training" and (tmp_path / "completions_00007_eval.parquet").read_text() == "evaluation"
    with pytest.raises(KeyError), beside(str(tmp_path), 7, "eval"):
        raise KeyError
    assert path.read_text() == "training"
