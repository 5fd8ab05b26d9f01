"""The command: answers first, exit codes, JSON, HTML, and a report that needs nothing else."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from rollout_logs import audit, demo_logs
from rollout_logs.cli import app
from rollout_logs.examples import Example
from rollout_logs.page import coloured_tokens

runner = CliRunner()


def run(*args, code=0):
    result = runner.invoke(app, [str(a) for a in args], env={"COLUMNS": "140"})
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    return result


@pytest.fixture
def outcomes(outcome_rows, write_jsonl, tmp_path):
    return write_jsonl(tmp_path / "run" / "1.jsonl", outcome_rows())


def test_a_folder_gets_an_answer_by_one_command(outcomes, token_file):
    text = " ".join(run(outcomes.parent.parent, "--gpu-hours", 96).output.split())
    first = text.index("of the rollouts bought no gradient")
    assert (
        first
        < text.index("The calibrated rule that saves most")
        < text.index("CARM 1.02 rejects")
        < text.index("What these files cannot tell")
    )
    assert "of 96 GPU-hours" in text and "num_generations" in text and "Read for masks: 1 files" in text


def test_help_names_every_command_and_an_example():
    text = run("--help").output
    for command in ("audit", "budgets", "masks", "compare", "demo"):
        assert command in text
        assert f"rollout-audit {command}" in run(command, "--help").output or command == "audit"
    assert "Exit codes" in text and "--install-completion" in text


def test_json_is_json_without_infinities(outcomes, token_file):
    data = json.loads(run(outcomes.parent.parent, "--json").stdout, parse_constant=lambda x: pytest.fail(x))
    assert data["budgets"]["waste"]["groups"] == 180 and data["masks"]["responses"] == 120
    assert set(data) >= {"verdict", "cannot_tell", "settings", "read"}
    report = audit(outcomes.parent.parent)
    assert data["verdict"] == report.verdict()


def test_exit_codes(outcomes, tmp_path):
    run("budgets", tmp_path / "absent", code=2)
    run("budgets", outcomes, "--map", "nobody=x", code=2)
    run("budgets", outcomes, "--delta", "2", code=2)
    run("masks", outcomes, "--tau", "0.5", code=2)
    run("masks", outcomes, "--band", "0.8", code=2)
    assert "token-level log-probabilities" in " ".join(run("masks", outcomes, code=1).output.split())
    run("budgets", outcomes, "--fail-above", "0.01", code=4)
    run("budgets", outcomes, "--fail-above", "0.99")
    with outcomes.open("a") as out:
        out.write('{"input": "q\n')
    result = run("budgets", outcomes, code=3)
    assert "1.jsonl, row 1441" in result.output.replace("\n", "")
    run("budgets", outcomes, "--lenient")
    run("--lenient", "--gpu-hours", 3, outcomes)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--gpu-hours", -5],
        ["--gpu-hours", "nan"],
        ["--jobs", 0],
        ["--delta", "abc"],
        ["--k-max", 1],
        ["--grid", ""],
        ["--grid", "4,2"],
        ["--grid", "2,4", "--k-max", 8],
        ["--pass-threshold", "nan"],
        ["--answer", "guess"],
        ["--calibration-prompts", 0],
        ["--recalibrate-every", 0],
        ["--max-groups", 1],
        ["--fail-above", 7],
        ["--noise-delta", 3],
        ["--sweep", "TRM=-1"],
        ["--sweep", "TRM"],
        ["--sweep", "XYZ=1"],
        ["--tau", "nan"],
        ["--geomean-tau", "0.9"],
        ["--html", "/nowhere/a.html"],
    ],
)
def test_wrong_settings_are_refused_before_anything_is_read(outcomes, monkeypatch, wrong):
    monkeypatch.setattr("rollout_logs.report.plan_files", lambda *a: pytest.fail("read"))
    if "--answer" in wrong:
        monkeypatch.undo()
    result = run(outcomes, *wrong, code=2)
    assert re.search(r"error: .*: got .*; need .*; because ", result.output.replace("\n", " "))


def test_out_must_not_be_a_file(outcomes):
    assert "need a folder" in run(outcomes, "--out", outcomes, code=2).output


def test_nothing_in_common_is_said(outcomes, token_file):
    assert "nothing in common" in run("compare", outcomes, token_file, code=1).output


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_tables_break_no_number(outcomes, token_file, width):
    result = runner.invoke(app, [str(outcomes.parent.parent)], env={"COLUMNS": str(width)})
    lines = result.output.splitlines()
    report = audit(outcomes.parent.parent)
    assert f"{report.budgets.waste.rollouts:,}" in result.output
    table = lines[lines.index(next(x for x in lines if x.startswith("Rules replayed"))) :]
    row = next(x for x in table if x.startswith("fixed G=8"))
    assert row.split()[2:4] == ["8.0", "0.0"]
    assert "policy = SignalBudget" in result.output or "num_generations=" in result.output


def test_only_rules_with_a_bound_are_recommended_as_replayed(outcomes):
    import conformal_core

    found = audit(outcomes).budgets
    assert not any(r.bounded for r in found.rules if r.rule.startswith(("released", "fixed", "vote")) or r.rule.endswith("per_budget"))
    assert found.best().bounded
    for r in found.rules:
        policy = eval(r.settings, dict(vars(conformal_core)))
        assert policy.k_max == (int(r.rule.split("=")[1]) if r.family == "fixed" else found.k_max), r.rule


def test_a_mask_that_rejects_most_is_not_recommended_blindly(tmp_path, token_rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for scale, blind in ((50.0, True), (0.0, False)):
        rows = [{k: r[k] for k in ("current_logprobs", "rollout_logprobs")} for r in token_rows()]
        for r in rows:
            r["current_logprobs"] = [b + scale * (a - b) for a, b in zip(r["current_logprobs"], r["rollout_logprobs"], strict=True)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        words = " ".join(audit(tmp_path / "a.parquet", gpu_hours=10).verdict()["masks"])
        assert ("Do not switch that on blindly" in words) == blind and "of 10 GPU-hours" in words


def test_logs_without_groups_claim_nothing(tmp_path, write_jsonl):
    rows = [{"prompt": str(i), "reward": float(i % 2)} for i in range(30)]
    report = audit(write_jsonl(tmp_path / "a.jsonl", rows))
    assert report.verdict()["budgets"] == [
        "These logs hold one response a prompt (30 prompts, 50.0 % pass): without groups there is no budget to audit."
    ]
    assert "0 of 30 groups hold 2 responses" in report.unknown()[0]
    assert "Budgets" in report.html()


def test_out_holds_everything(outcomes, token_file, tmp_path):
    run(outcomes.parent.parent, "--out", tmp_path / "out")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {
        "report.html",
        "report.json",
        "rules.csv",
        "groups.csv",
        "masks.csv",
        "sweep.csv",
        "rules.svg",
        "sweep.svg",
        "response-1.svg",
    } <= names


class Outside(HTMLParser):
    """Collects what a page would fetch, and its open tags."""

    def __init__(self):
        super().__init__()
        self.fetched, self.stack, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not value.startswith("#"):
                self.fetched.append(value)
            if name == "id":
                self.ids.append(value)
        if tag == "script":
            self.fetched.append(tag)


def test_html_is_self_contained_and_escapes(outcomes, token_file, tmp_path):
    evil = tmp_path / "run" / "<b>&evil.jsonl"
    outcomes.rename(evil)
    page = tmp_path / "a.html"
    run(tmp_path, "--html", page)
    text = page.read_text(encoding="utf-8")
    seen = Outside()
    seen.feed(text)
    assert seen.fetched == [] and len(seen.ids) == len(set(seen.ids))
    assert "<b>&evil" not in text and 'name="viewport"' in text and "url(http" not in text
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ElementTree.fromstring(picture)
        assert root.get("viewBox") and not root.get("width")


def test_tokens_are_coloured_by_sign_and_escaped():
    z = np.array([0.5, -0.5, 0.0, 0.25], np.float32)
    shown = str(coloured_tokens(Example("f", 1, "w", 0.3, 0.06, 1.0, 4, z, tokens=("<a>", "▁b", "\n", "c"))))
    colours = re.findall(r"background:rgba\((\d+,\d+,\d+),([\d.]+)\)", shown)
    assert [c[0] for c in colours] == ["192,57,43", "30,132,73", "30,132,73", "192,57,43"]
    assert float(colours[2][1]) == 0 < float(colours[3][1]) < float(colours[0][1])
    assert "&lt;a&gt;" in shown and "<a>" not in shown and " b" in shown and "↵" in shown


def test_long_responses_show_the_window_with_most_mass():
    z = np.zeros(5000, np.float32)
    z[3000:3100] = 0.3
    shown = str(coloured_tokens(Example("f", 1, "w", 0.3, 0.3, 1.0, 5000, z), limit=200))
    assert shown.count("<span") == 200 and "token 3050:" in shown and "4,800 more tokens" in shown


def test_compare(outcomes, outcome_rows, write_jsonl, tmp_path):
    other = write_jsonl(tmp_path / "other" / "1.jsonl", outcome_rows(seed=5))
    rows = {r["figure"]: r for r in json.loads(run("compare", outcomes, other, "--json").stdout)}
    assert rows["groups"]["difference"] == 0 and rows["groups without gradient"]["intervals"] in ("overlap", "apart")
    same = {r["figure"]: r for r in json.loads(run("compare", outcomes, outcomes, "--json").stdout)}
    assert {r["difference"] for r in same.values()} == {0}
    assert "A against B" in run("compare", outcomes, other).output


def test_demo_ships_and_answers(tmp_path):
    assert [p.name for p in demo_logs()] == ["completions.parquet", "tokens.parquet"]
    text = run("demo", "--html", tmp_path / "demo.html").output
    assert "bought no gradient" in text and "CARM 1.02 rejects" in text and (tmp_path / "demo.html").exists()


def test_three_lines_in_a_notebook(outcomes, token_file):
    report = audit(outcomes.parent.parent)
    frames, figures = report.frames(), report.figures()
    assert set(frames) == {"groups", "rules", "thresholds", "drift", "masks", "pairs", "sweep", "mask_thresholds", "responses"}
    assert frames["rules"].set_index("rule").loc["fixed G=4", "mean_k"] == 4.0
    assert {"rules", "drift", "sweep", "response-1"} <= set(figures)
