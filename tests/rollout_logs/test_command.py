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
from rollout_logs.page import coloured_tokens
from rollout_logs.tokens import Example

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
    assert set(frames) == {"groups", "rules", "thresholds", "drift", "masks", "pairs", "sweep", "responses"}
    assert frames["rules"].set_index("rule").loc["fixed G=4", "mean_k"] == 4.0
    assert {"rules", "drift", "sweep", "response-1"} <= set(figures)
