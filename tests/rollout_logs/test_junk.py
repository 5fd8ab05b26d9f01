"""Junk in any cell: the audit answers or refuses, and every row is used or named."""

from __future__ import annotations

import json
import random

import pytest

from rollout_logs import NothingToAudit, audit

JUNK = [
    None,
    float("nan"),
    float("inf"),
    "x",
    "",
    [],
    [1, "a"],
    [None, 1.0],
    [[1.0]],
    {},
    {"z": 1},
    True,
    -1,
    10**30,
    10**400,
    "2024-01-01",
]


def outcome_rows(rng):
    return [
        {"prompt": f"{s}-{p}", "completion": f"\\boxed{{{rng.randint(0, 3)}}}", "reward": float(rng.random() < 0.5), "step": s}
        for s in range(3)
        for p in range(12)
        for _ in range(4)
    ]


def token_rows(rng):
    return [
        {"current_logprobs": [-1.0] * n, "rollout_logprobs": [-1.1] * n, "loss_mask": [1] * n, "reward": 1.0, "tokens": ["a"] * n}
        for n in (rng.randint(0, 6) for _ in range(20))
    ]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("what", "make"), [("budgets", outcome_rows), ("masks", token_rows)])
def test_no_row_vanishes(tmp_path, what, make, seed):
    rng = random.Random(seed)
    rows = make(rng)
    for _ in range(rng.randint(1, 20)):
        row = rng.choice(rows)
        name = rng.choice(list(row) or ["reward"])
        if rng.random() < 0.2:
            row.pop(name, None)
        else:
            row[name] = rng.choice(JUNK)
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if rng.random() < 0.3:
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at:]
    lines = sum(bool(line.strip()) for line in raw.split(b"\n"))
    (tmp_path / "a.jsonl").write_bytes(raw)
    report, refused = None, None
    try:
        report = audit(tmp_path / "a.jsonl", what=(what,))
    except NothingToAudit as error:
        refused = error
    if report is None:
        assert refused.intake.problems
        return
    intake = report.intakes[what]
    assert intake.rows == lines and intake.used + intake.unread >= lines
    json.dumps(report.to_json(), allow_nan=False)
    assert report.verdict()[what]
