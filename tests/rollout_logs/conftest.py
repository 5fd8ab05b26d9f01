"""Small logs on disk, and the tiny model of the trainer's tests for logs that trainers write themselves."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conformal_trl.conftest import dataset, make_config, model, tokenizer

__all__ = ["dataset", "make_config", "model", "tokenizer"]


@pytest.fixture
def outcome_rows():
    """Rows of ``steps x prompts`` groups of ``size`` with integer answers; gold is 7."""

    def make(steps: int = 6, prompts: int = 30, size: int = 8, seed: int = 0) -> list[dict]:
        rng = np.random.default_rng(seed)
        rows = []
        for step in range(1, steps + 1):
            for p in range(prompts):
                theta = rng.beta(0.6, 0.6)
                for _ in range(size):
                    ok = rng.random() < theta
                    answer = 7 if ok else int(rng.integers(0, 5))
                    text = f"so \\boxed{{{answer}}}" + " ok" * int(rng.integers(0, 9))
                    rows.append({"input": f"q{step}-{p}", "output": text, "gts": "7", "score": float(ok), "step": step})
        return rows

    return make


@pytest.fixture
def write_jsonl():
    def write(path, rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def token_rows():
    """Responses of mixed length with current, rollout and old log-probabilities, a mask, rewards and advantages."""

    def make(n: int = 120, seed: int = 0) -> list[dict]:
        rng = np.random.default_rng(seed)
        rows = []
        for _ in range(n):
            length = int(rng.integers(1, 60))
            old = -rng.exponential(0.5, length)
            rows.append(
                {
                    "current_logprobs": (old + rng.normal(0, rng.choice([0.002, 0.02, 0.06]), length)).tolist(),
                    "rollout_logprobs": (old + rng.normal(0, 0.003, length)).tolist(),
                    "old_logprobs": old.tolist(),
                    "loss_mask": (rng.random(length) < 0.9).astype(int).tolist(),
                    "tokens": [f"t{i} " for i in range(length)],
                    "reward": float(rng.random() < 0.5),
                    "advantage": float(rng.normal()),
                }
            )
        return rows

    return make


@pytest.fixture
def token_file(token_rows, tmp_path):
    path = tmp_path / "tokens.parquet"
    pq.write_table(pa.Table.from_pylist(token_rows()), path)
    return path
