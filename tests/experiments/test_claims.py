"""The claims ledger: verdicts as expected, guards that exist, checks that can fail, and the command."""

import ast
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.claims import LEDGER, run
from experiments.claims.ledger import EXTRA, FALSE, HOLDS, SELF, Evidence, Figure, Search, claim, search
from tests.experiments.claim_fault_table import FAULTS, RED

ROOT = Path(__file__).parents[2]
ROWS = {"A": 15, "E": 4, "F": 4, "G": 8, "H": 9, "I": 5, "J": 7, "L": 17, "M": 19, "N": 3, "S": 7}


@pytest.mark.parametrize("id", LEDGER)
def test_the_verdict_is_the_expected_one(id):
    result = run(LEDGER[id])
    e = result.evidence
    assert e.verdict == LEDGER[id].expected, (e.stated, e.assuming)
    assert e.repair_holds, e.repaired
    assert all(f.agrees for f in e.figures), [(f.name, f.shown, f.recorded) for f in e.figures if not f.agrees]


def test_every_row_has_an_entry_and_says_what_it_must():
    assert Counter(i[0] for i in LEDGER) == ROWS
    for entry in LEDGER.values():
        assert entry.expected in (HOLDS, EXTRA, FALSE)
        assert entry.place and entry.says.endswith(".")
        assert entry.assumption or entry.expected != EXTRA, entry.id


@pytest.mark.parametrize("guard", sorted({c.guard for c in LEDGER.values()}))
def test_the_guarding_test_exists(guard):
    path, _, name = guard.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_an_entry_without_another_guard_is_a_test_of_its_own():
    assert SELF.endswith(f"::{test_the_verdict_is_the_expected_one.__name__}") and (ROOT / SELF.partition("::")[0]).samefile(__file__)


# --- the meta-test: a check that cannot fail is refused


def test_every_entry_has_a_fault_that_turns_it_red():
    assert set(FAULTS) == set(RED)
    assert set(" ".join(RED.values()).split()) == set(LEDGER)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_turns_its_entries_red(name, monkeypatch):
    FAULTS[name](monkeypatch)
    red = [id for id in RED[name].split() if not run(LEDGER[id]).agrees]
    assert red == RED[name].split()


# --- how a verdict follows


CLEAN, BAD, NONE = Search(5, 0, None, ""), Search(5, 1, "x", ""), Search(0, 0, None, "")


@pytest.mark.parametrize(
    ("stated", "assuming", "verdict"),
    [
        (CLEAN, None, HOLDS), (BAD, None, FALSE), (BAD, CLEAN, EXTRA), (BAD, BAD, FALSE), (BAD, NONE, FALSE), (NONE, None, FALSE),
        (CLEAN, BAD, HOLDS),
    ],
)  # fmt: skip
def test_verdict_is_a_function_of_the_evidence(stated, assuming, verdict):
    assert Evidence(stated, assuming).verdict == verdict


def test_search_keeps_the_first_counterexample():
    assert search(((i, i < 3) for i in range(6)), "m") == Search(6, 3, "3", "m")
    assert not Evidence(CLEAN, None, NONE).repair_holds


@pytest.mark.parametrize(
    ("computed", "recorded", "agrees"),
    [(0.12345, "0.123", True), (0.1236, "0.123", False), (27 / 32, "27/32", True), (3, "3", True), (3.2, "3", False), (0.88, "0.88", True)],
)
def test_figures_are_compared_to_their_last_digit(computed, recorded, agrees):
    assert Figure("", computed, recorded).agrees is agrees


def test_an_id_is_taken_once():
    with pytest.raises(ValueError, match=r"^id: got A1 twice"):
        claim("A1", "", "", HOLDS)(lambda effort: Evidence(CLEAN))


# --- the command


def test_one_claim_in_full(capsys):
    assert main(["claims", "--claim", "g5"]) == 0
    out = capsys.readouterr().out
    assert "smallest counterexample" in out and "1/50" in out and "1 are false as stated" in out


def test_json_is_the_same_twice(capsys):
    texts = []
    for _ in range(2):
        assert main(["claims", "--claim", "I", "--json"]) == 0
        texts.append(capsys.readouterr().out)
    data = json.loads(texts[0])
    assert texts[0] == texts[1] and [c["id"] for c in data["claims"]] == ["I1", "I2", "I3", "I4", "I5"]
    assert data["claims"][0]["evidence"]["stated"]["failed"] > 0


def test_bad_options(capsys, tmp_path):
    assert main(["claims", "--claim", "Q9"]) == 2
    assert capsys.readouterr().err.startswith("error: claim: got 'Q9'; need an id such as G5")
    (tmp_path / "file").write_text("")
    assert main(["claims", "--claim", "G7", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("error: out: got")
    assert main(["claims", "--claim", "G7", "--out", "/proc/nowhere"]) == 2  # before any claim is checked
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: out: got /proc/nowhere; need a folder that can be written")
    with pytest.raises(SystemExit):
        main(["claims", "--quick", "--full"])


@pytest.mark.slow
def test_json_on_stdout_stays_json_when_files_are_written(capsys, tmp_path):
    assert main(["claims", "--claim", "G7", "--json", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["claims"][0]["id"] == "G7" and captured.err.count("wrote ") == 7


def test_a_verdict_that_is_not_the_expected_one_is_an_exit_code(capsys, monkeypatch):
    FAULTS["Table 1: a k_train of 20"](monkeypatch)
    assert main(["claims", "--claim", "L4"]) == 1
    captured = capsys.readouterr()
    assert "NOT as expected: L4" in captured.out and captured.err == "error: a claim does not come out as expected\n"


@pytest.mark.slow
def test_page_and_figures(capsys, tmp_path):
    assert main(["claims", "--claim", "G", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "claims.html").read_text(encoding="utf-8")
    assert re.findall(r'<article id="(\w+)">', page) == [i for i in LEDGER if i[0] == "G"]
    assert len(re.findall("<img ", page)) == 5 == len(list(tmp_path.glob("claims_*.png")))
    assert json.loads((tmp_path / "claims.json").read_text())["claims"][0]["id"] == "G1"


def test_the_committed_page_is_of_this_ledger():
    data = json.loads((ROOT / "docs" / "claims" / "claims.json").read_text(encoding="utf-8"))
    told = [(c["id"], c["place"], c["statement"], c["verdict"], c["assumption"], c["repaired"], c["guard"]) for c in data["claims"]]
    assert told == [(c.id, c.place, c.says, c.expected, c.assumption, c.repaired, c.guard) for c in LEDGER.values()]


@pytest.mark.slow
def test_quick_takes_under_a_minute():
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "experiments", "claims", "--quick", "--json"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert time.perf_counter() - start < 60
