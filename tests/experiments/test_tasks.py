"""Every public schema gives right examples; splits share nothing; the sealed test is opened once."""

import base64
import gzip
import json
import pickle
import re
import zlib
from pathlib import Path

import pytest

from experiments.sandbox import Sandbox
from experiments.tasks import TASKS, Example, SealedTest, load, split, task
from experiments.tasks.prompts import columns, messages, text
from experiments.tasks.rows import livecodebench
from experiments.verifiers import answer_code, canonical, math_reward
from experiments.verifiers.code import job_of

CALLS = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
SOLUTION = "class Solution:\n    def shift(self, xs: List[int], k: int) -> List[int]:\n        "


def packed(cases):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


#: One or two rows per data set, written for these tests in its public schema, with a right and a wrong response to the first.
ROWS = json.loads((Path(__file__).parents[1] / "data" / "task_rows.json").read_text(encoding="utf-8"))
CODE = [name for name in ROWS if task(name).kind in ("function", "program")]
MATH = [name for name in ROWS if name not in CODE]


@pytest.fixture(scope="module")
def box():
    return Sandbox(workers=2)


@pytest.mark.parametrize("name", MATH)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "json", "jsonl.gz"])
def test_math_schemas_round_trip_through_file_template_and_verifier(tmp_path, name, suffix):
    rows, right, wrong = ROWS[name].values()
    example = load(name, write(tmp_path, rows, suffix))[0]
    assert math_reward([right, wrong], answer=[example.answer] * 2) == [1.0, 0.0]
    assert messages(task(name), example)[-1]["content"].endswith(example.question)
    assert "Remember to put" not in example.question


def write(folder, rows, suffix):
    file = folder / f"test-00000-of-00001.{suffix}"
    if suffix == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return folder
    lines = json.dumps(rows) if suffix == "json" else "".join(json.dumps(row) + "\n" for row in rows)
    file.write_bytes(gzip.compress(lines.encode()) if suffix.endswith("gz") else lines.encode())
    return file


@pytest.mark.parametrize("name", CODE)
def test_code_schemas_run_in_the_sandbox(box, tmp_path, name):
    rows, right, wrong = ROWS[name].values()
    example = load(name, write(tmp_path, rows, "jsonl"))[0]
    verdicts = box.check_all([job_of(response, example.answer) for response in (right, wrong, "import os; os._exit(0)")])
    assert [v.passed for v in verdicts] == [True, False, False], verdicts


def test_livecodebench_methods_and_pickles(box):
    cases = {"public_test_cases": json.dumps(CALLS), "private_test_cases": packed(CALLS)}
    row = {"question_content": "Shift.", "starter_code": SOLUTION, **cases}
    example = livecodebench(row | {"metadata": json.dumps({"func_name": "shift"})})
    right = "from typing import List\n" + SOLUTION + "return [x + k for x in xs]"
    assert box.check_all([job_of(right, example.answer)])[0].passed
    evil = base64.b64encode(zlib.compress(b"cos\nsystem\n(S'true'\ntR.")).decode()
    with pytest.raises(pickle.UnpicklingError, match=r"os\.system"):
        livecodebench(row | {"private_test_cases": evil, "metadata": "{}"})


def test_gpqa_options_are_shuffled_by_content(tmp_path):
    wrong = {f"Incorrect Answer {j}": f"wrong {j}" for j in (1, 2, 3)}
    rows = [{"Question": f"Question {i}?", "Correct Answer": "right", **wrong} for i in range(40)]
    examples = load("gpqa_diamond", write(tmp_path, rows, "jsonl"))
    assert {e.answer for e in examples} == set("ABCD")
    assert all(f"({e.answer}) right" in e.question for e in examples)
    assert load("gpqa_diamond", write(tmp_path, rows[::-1], "jsonl"))[::-1] == examples


def test_gsm8k_questions_of_the_package_round_trip():
    from math_verify import parse, verify

    examples = load("gsm8k")
    assert len(examples) == 100
    for e in examples:
        assert canonical(e.answer) == answer_code(f"First ...\n#### {e.answer}") == answer_code(rf"Thus \boxed{{{int(e.answer):,}}}.")
        assert answer_code(f"The answer is {e.answer}.") == canonical(e.answer)
        assert e.question in text(task("gsm8k"), e)
        assert verify(parse(e.answer), parse(rf"Thus $\boxed{{{int(e.answer):,}}}$."))


def test_humaneval_comes_from_its_package():
    examples = load("humaneval")
    assert len(examples) == 164 and len({e.source_id for e in examples}) == 164


@pytest.mark.parametrize("family", ["gsm_symbolic", "chain_sum", "basic_arithmetic"])
def test_reasoning_gym_families(family):
    examples = load(f"reasoning_gym/{family}", size=20, seed=3)
    assert examples == load(f"reasoning_gym/{family}", size=20, seed=3) != load(f"reasoning_gym/{family}", size=20, seed=4)
    assert all(answer_code(rf"\boxed{{{e.answer}}}") == canonical(e.answer) is not None for e in examples)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gsm9k",), "task: got 'gsm9k'; need one of gsm8k, "),
        (("reasoning_gym/chain_summ",), "task: got reasoning_gym/chain_summ; need one of its 1.. families such as chain_sum"),
        (("reasoning_gym/rubiks_cube",), "a scorer alone gives no answer"),
        (("additions", "file.jsonl"), "source: got 'file.jsonl' for additions; need None"),
    ],
)
def test_unknown_tasks_and_sources(arguments, message):
    with pytest.raises(ValueError, match=message):
        load(*arguments)


def test_rows_that_do_not_fit_are_named(tmp_path):
    file = tmp_path / "x.jsonl"
    for line, message in [
        ('{"question": "q"}', "row 0 of gsm8k: got columns question; need 'answer'; because that is the public schema"),
        ('{"question": "q", "answer": "12"}', "row 0 of gsm8k: answer: got a text without '####'"),
        ("{oops", "x.jsonl:1: got no JSON"),
        ("[1]", "x.jsonl:1: got a list; need an object"),
        ("", "source: got no rows for gsm8k"),
    ]:
        file.write_text(line)
        with pytest.raises(ValueError, match=re.escape(message)):
            load("gsm8k", file)
    with pytest.raises(ValueError, match=r"need a file or folder with \.jsonl"):
        load("gsm8k", _empty(tmp_path))


def _empty(folder):
    (folder / "empty").mkdir()
    return folder / "empty"


def test_repeated_questions_are_dropped_aloud(tmp_path):
    rows = [{"problem": " A?", "answer": "1"}, {"problem": "a?  ", "answer": "1"}, {"problem": "B?", "answer": "2"}]
    with pytest.warns(UserWarning, match="1 of 3 rows repeat"):
        assert [e.question for e in load("aime25", write(tmp_path, rows, "jsonl"))] == ["A?", "B?"]


def test_the_hub_that_does_not_answer_is_one_clear_line(monkeypatch):
    import datasets

    def fail(*arguments, **keywords):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ValueError, match=r"source: got 'HuggingFaceH4/MATH-500' \(test\); need .*no route"):
        load("math500")


def test_the_hub_is_asked_for_configuration_and_pieces(monkeypatch):
    import datasets

    asked = []

    def answer(repository, config, *, split):
        asked.append((repository, config, split))
        return [{"question": f"{split}?", "answer": "#### 1"}]

    monkeypatch.setattr(datasets, "load_dataset", answer)
    assert [e.question for e in load("gsm8k", "hub")] == ["train?", "test?"]
    assert asked == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]


DATA = [Example(f"{i} + {i} =", str(2 * i)) for i in range(500)]


def test_splits_are_disjoint_seeded_and_do_not_depend_on_order():
    one = split(DATA, 200, 200, 100, seed=1)
    assert split(DATA[::-1], 200, 200, 100, seed=1) == one != split(DATA, 200, 200, 100, seed=2)
    keys = [{e.key for e in part} for part in one]
    assert list(map(len, keys)) == [200, 200, 100] and len(set.union(*keys)) == 500
    assert split(DATA, 50, 100, 100, seed=1).test == one.test


def test_every_example_is_equally_likely_in_each_list():
    """Counts over 400 seeds against the exact binomial law, family-wise over 60 examples."""
    from scipy.stats import binom

    data, seeds = DATA[:60], 400
    counts = dict.fromkeys((e.key for e in data), 0)
    for seed in range(seeds):
        for e in split(data, 20, 20, 20, seed).calibration:
            counts[e.key] += 1
    low, high = binom.ppf([1e-3 / 120, 1 - 1e-3 / 120], seeds, 1 / 3)
    assert all(low <= n <= high for n in counts.values())


@pytest.mark.parametrize(("name", "size"), [("humaneval", 164), ("gpqa_diamond", 198)])
def test_the_papers_sizes_are_refused_where_they_do_not_fit(name, size):
    assert TASKS[name].size == size
    data = DATA[:size]
    with pytest.raises(ValueError, match=rf"splits: got 200 calibration \+ 2000 train \+ 200 test = 2400; need at most {size}; .* fit"):
        split(data, 200, 2000, 200)


def test_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="n_train: got -1"):
        split(DATA, 1, -1, 1)


def test_the_sealed_test_is_opened_once_per_report(tmp_path):
    record = tmp_path / "runs" / "opened.jsonl"
    sealed = SealedTest(DATA[:5], record)
    assert sealed.open("table 1") == DATA[:5]
    assert SealedTest(DATA[4::-1], record).open("table 2")[0] == DATA[4]
    with pytest.raises(ValueError, match="report: got 'table 1'; need a report that has not opened this test split"):
        SealedTest(DATA[4::-1], record).open("table 1")
    assert sealed.open("table 1", again="new plot") == DATA[:5]
    assert SealedTest(DATA[5:9], record).open("table 1") == DATA[5:9]
    assert [e.get("again") for e in sealed.openings()] == [None, None, "new plot"]
    with pytest.raises(ValueError, match="report: got ''"):
        sealed.open("")
    with pytest.raises(ValueError, match="examples: got none"):
        SealedTest([], record)


def test_prompts_carry_question_and_starter_once():
    for name, t in TASKS.items():
        example = Example("QUESTION {with} braces", "1", starter="def start(): ..." if t.kind == "program" else "")
        content = messages(t, example)[-1]["content"]
        assert content.count(example.question) == 1, name
        assert content.count("def start()") == (t.kind == "program")
    plain = task("additions")
    assert columns(plain, [Example("1+1=", "2")], chat=False) == {"prompt": ["1+1="], "answer": ["2"]}
