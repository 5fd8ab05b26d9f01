"""One large file on several cores: pieces hold every line once, and give what the whole file gives."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carm_core import CARM, GeoMean
from rollout_logs import audit_masks, load_groups, plan_files
from rollout_logs.pieces import blocks, cut
from rollout_logs.sources import LogFile


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr("rollout_logs.workers._PARALLEL_FROM", 0)
    monkeypatch.setattr("rollout_logs.pieces._SMALLEST", 2000)


@given(lines=st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=12), ends=st.booleans(), data=st.data())
@settings(max_examples=150)
def test_byte_ranges_hold_every_line_once(tmp_path_factory, lines, ends, data):
    raw = b"\n".join(lines) + (b"\n" if ends else b"")
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    path.write_bytes(raw)
    inner = data.draw(st.lists(st.integers(0, len(raw)), max_size=5))
    edges = [0, *sorted(inner), len(raw)]
    parts = [b"".join(blocks(LogFile(str(path), "jsonl", True, (a, b)))) for a, b in pairwise(edges)]
    assert b"".join(parts) == raw
    assert all(not part or part.endswith(b"\n") or b"".join(parts[i + 1 :]) == b"" for i, part in enumerate(parts))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_pieces_give_the_groups_of_the_file(tmp_path, outcome_rows, small_pieces, kind):
    rows = outcome_rows(steps=4, prompts=40)
    rows[700]["score"] = None
    rows[1000]["input"] = None
    rows[300]["step"] = rows[1100]["step"] = None
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        text = [json.dumps(row) for row in rows]
        text[900] = '{"input": "q'
        path.write_text("\n\n".join(text), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=60, compression="none", use_dictionary=False)
    log = plan_files([str(path)])[0][0].log
    assert len(cut(log, log.size, 2, [])) > 4
    one, two = load_groups([str(path)], jobs=1), load_groups([str(path)], jobs=2)
    for name in ("prompt", "step", "size", "solved", "tokens"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    for intake in (one.intake, two.intake):
        intake.problems.sort(key=lambda p: p.row)
    assert one.intake == two.intake
    assert {p.row for p in one.intake.problems} == ({1401, 1801, 2001} if kind == "jsonl" else {701, 1001})


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_pieces_give_the_masks_of_the_file(tmp_path, token_rows, small_pieces, kind):
    rows = token_rows(300)
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=25)
    found = []
    for jobs in (1, 2):
        plans, intake = plan_files([str(path)])
        found.append((audit_masks(plans, intake, jobs=jobs), intake))
    (one, met), (two, also) = found
    a, b = one.to_json(), two.to_json()
    assert a.pop("report").keys() == b.pop("report").keys()  # of a sample of the first batch
    assert a == b and met == also
    assert [e.row for e in one.examples] == [e.row for e in two.examples]


def test_what_cannot_be_cut_is_named(tmp_path, outcome_rows, small_pieces):
    raw = "".join(json.dumps(row) + "\n" for row in outcome_rows(steps=8, prompts=40)).encode()
    rng = np.random.default_rng(0)
    raw += b"".join(json.dumps({"input": "z", "output": rng.bytes(60).hex(), "score": 1, "step": 1}).encode() + b"\n" for _ in range(300))
    with pa.output_stream(str(tmp_path / "a.jsonl.gz"), compression="gzip") as out:
        out.write(raw)
    (tmp_path / "b.jsonl").write_bytes(raw[: raw.index(b"\n") + 1])
    groups = load_groups([str(tmp_path)], jobs=2)
    assert any("a.jsonl.gz: read by one process (a compressed stream, cannot be cut)" in note for note in groups.intake.notes)


SCRIPT = """
import rollout_logs.workers, rollout_logs.pieces
rollout_logs.workers._PARALLEL_FROM, rollout_logs.pieces._SMALLEST = 0, 2000
from rollout_logs import audit
print("once")
report = audit({path!r}, jobs=2)
print(report.budgets.waste.groups)
"""


@pytest.mark.parametrize("how", ["file", pytest.param("stdin", marks=pytest.mark.slow)])
def test_a_script_needs_no_main_guard(tmp_path, outcome_rows, write_jsonl, how):
    script = SCRIPT.format(path=str(write_jsonl(tmp_path / "logs" / "a.jsonl", outcome_rows(steps=2, prompts=20))))
    (tmp_path / "mine.py").write_text(script)
    command = [sys.executable, str(tmp_path / "mine.py")] if how == "file" else [sys.executable, "-"]
    given_in = None if how == "file" else script
    done = subprocess.run(command, input=given_in, capture_output=True, text=True, env={**_env()}, check=True)
    assert done.stdout == "once\n40\n" and done.stderr == ""


def _env():
    import os

    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_a_rule_that_no_other_process_can_import_is_used_in_this_one(tmp_path, token_rows, small_pieces):
    token_file = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(token_rows()), token_file, row_group_size=10)

    class Mine(CARM):
        pass

    plans, intake = plan_files([str(token_file)])
    with pytest.warns(UserWarning, match="read in one process"):
        found = audit_masks(plans, intake, rules=(Mine(1.02), GeoMean(1.005)), jobs=2)
    assert found.rules[0].rejected == audit_masks(plans, intake, jobs=1).rule("CARM 1.02").rejected


def killed(plan):
    import os

    os._exit(9)


def broken(plan):
    raise ValueError(f"no: {plan.log.path}")


def test_a_process_that_dies_names_the_file(tmp_path, outcome_rows, write_jsonl, small_pieces):
    from rollout_logs.workers import parallel

    write_jsonl(tmp_path / "a.jsonl", outcome_rows())
    plans, _ = plan_files([str(tmp_path)])
    with pytest.raises(RuntimeError, match=r"a\.jsonl: the process reading it ended with code 9"):
        list(parallel(killed, plans, 2))
    with pytest.raises(ValueError, match="no: "):
        list(parallel(broken, plans, 2))
