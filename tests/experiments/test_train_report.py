"""``train --report``: the sealed test is opened by one process, once per name, and never at the price of the run."""

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments import configs, train
from experiments.__main__ import main
from experiments.tasks import Example, SealedTest
from experiments.tasks.sealed import report_name
from experiments.train import RECORD, examples, small

ROOT = Path(__file__).parents[2]
NAME = "cgrpo/qwen2.5-7b-gsm8k"
OPTIONS = ["train", "--config", NAME, "--model", "embedded", "--max-steps", "2"]
DATA = [Example(f"{i} + {i} =", str(2 * i)) for i in range(8)]


def torchrun(folder, world, report, *more):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(world), "--master-port", port]
    command = [sys.executable, *launcher, "-m", "experiments", *OPTIONS, "--out", str(folder), "--report", report, *more]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_two_processes_open_the_test_once_and_share_its_measurement(tmp_path):
    done = torchrun(tmp_path, 2, "table 1")
    assert done.returncode == 0, done.stderr[-3000:]
    (entry,) = [json.loads(line) for line in (tmp_path / RECORD).read_text().splitlines()]
    assert (entry["report"], entry["n"]) == ("table 1", "40")
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["steps"] == 2 and (run["test"]["additions"]["n"], run["test"]["additions"]["samples"]) == (40, 8)
    ave = next(s for s in run["test"]["additions"]["statistics"] if s["statistic"] == "pass" and s["k"] == 1)
    assert 0.2 < ave["value"] < 0.95
    vote_of_one = run["test"]["additions"]["majority"]["1"][0]  # drawn at random: far off if answers were judged by other rows' gold
    assert abs(vote_of_one - ave["value"]) < 0.05
    assert done.stdout.count("run.json") == 1

    before = (tmp_path / "run.json").read_bytes()
    again = torchrun(tmp_path, 2, " table  1")
    assert again.returncode != 0 and "error: report: got 'table 1'; need a report that has not opened this test split" in again.stderr
    assert "'loss'" not in again.stdout  # before training
    assert (tmp_path / "run.json").read_bytes() == before and len((tmp_path / RECORD).read_text().splitlines()) == 1


@pytest.mark.slow
def test_more_processes_than_test_examples(tmp_path):
    done = torchrun(tmp_path, 2, "x", "--set", "data.n_test=1", "--set", "budget.rule='fixed'")
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads((tmp_path / "run.json").read_text())["test"]["additions"]
    assert measured["n"] == 1 and len((tmp_path / RECORD).read_text().splitlines()) == 1


def test_a_used_name_is_refused_before_training(tmp_path, capsys, monkeypatch):
    import conformal_trl

    monkeypatch.setattr(conformal_trl, "CGRPOTrainer", None)
    SealedTest(examples(small(configs.read(NAME), "embedded")).test, tmp_path / RECORD).open("used")
    for name in ("used", " used ", "used\n"):
        assert main([*OPTIONS, "--out", str(tmp_path), "--report", name]) == 2
        assert "error: report: got 'used'; need a report that has not opened this test split" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists() and len((tmp_path / RECORD).read_text().splitlines()) == 1


@pytest.mark.slow
def test_the_run_is_kept_where_someone_else_opens_the_test_meanwhile(tmp_path, monkeypatch):
    experiment = small(configs.read(NAME), "embedded")
    SealedTest(examples(experiment).test, tmp_path / RECORD).open("x")
    monkeypatch.setattr(SealedTest, "check", lambda self, report, again=None: None)
    with pytest.raises(ValueError, match="report: got 'x'; need a report that has not opened"):
        train.train(experiment, tmp_path, max_steps=1, report="x")
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["steps"] == 1 and "test" not in run


def test_of_many_at_once_one_opens(tmp_path):
    def attempt(_):
        try:
            return len(SealedTest(DATA, tmp_path / "opened.jsonl").open("x"))
        except ValueError:
            return 0

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(attempt, range(24))) == [0] * 23 + [len(DATA)]
    assert len((tmp_path / "opened.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", ["", " ", "\n\t", "\u00a0", "\u3000", None, 3])
def test_names_that_are_none(tmp_path, name):
    sealed = SealedTest(DATA, tmp_path / "opened.jsonl")
    for refused in (report_name, sealed.check, sealed.open):
        with pytest.raises(ValueError, match=r"^report: got .*; need a name; because openings are counted per report$"):
            refused(name)
    assert not sealed.record.exists()


def test_answers_are_in_the_digest_and_do_not_make_a_seen_question_unseen(tmp_path):
    corrected = [Example(DATA[0].question, "1"), *DATA[1:]]
    one, other = (SealedTest(data, tmp_path / "opened.jsonl") for data in (DATA, corrected))
    assert one.digest != other.digest and one.questions == other.questions
    assert SealedTest(DATA[::-1], tmp_path / "x").digest == one.digest
    one.open("x")
    with pytest.raises(ValueError, match=r"because it was opened at .*, with other gold answers; name a reason"):
        other.open("x")


def test_records_of_before_count(tmp_path):
    """Older records hold one digest, that of the questions."""
    sealed = SealedTest(DATA, tmp_path / "opened.jsonl")
    sealed.record.write_text(json.dumps({"report": "x", "digest": sealed.questions, "n": "8", "at": "then"}))  # and no end of line
    with pytest.raises(ValueError, match="because it was opened at then; name"):
        sealed.open(" x")
    assert sealed.open("y") == DATA and [e["report"] for e in sealed.openings()] == ["x", "y"]


WHOLE = json.dumps({"report": "x", "digest": "0" * 32, "n": "1", "at": "now"}).encode()


@pytest.mark.parametrize(
    "rest", [*(WHOLE[:n] for n in range(1, len(WHOLE), 7)), b"[1]", b"3", b"{}", b"\xff", b"[" * 100_000, b'{"report": 1}']
)
def test_a_damaged_record_is_refused_with_its_line(tmp_path, rest):
    sealed = SealedTest(DATA, tmp_path / "opened.jsonl")
    sealed.record.write_bytes(WHOLE + b"\n" + rest)
    for refused in (sealed.check, sealed.open):
        with pytest.raises(ValueError, match=r"^record: got line 2 of .*opened\.jsonl, .*; need a JSON object with .*; because "):
            refused("y")
    assert sealed.record.read_bytes() == WHOLE + b"\n" + rest


def test_a_record_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for record in (tmp_path, tmp_path / "file" / "opened.jsonl", Path("/proc/x/opened.jsonl")):
        sealed = SealedTest(DATA, record)
        with pytest.raises(
            ValueError, match=rf"^record: got {re.escape(repr(str(record)))}; need a file that can be read and written; because "
        ):
            sealed.open("x")
