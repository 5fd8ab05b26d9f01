"""Whatever stands in a data file, a row, a setting or a size: examples, or one error that names file and row."""

import dataclasses
import gzip
import importlib
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.tasks import TASKS, Example, load, split, task
from experiments.tasks.load import _MOST_DRAWS
from experiments.tasks.rows import NoTests

HOUSE = r"(?s)^.+?: got .*; need .*; because .+$"
ROWS = json.loads((Path(__file__).parents[1] / "data" / "task_rows.json").read_text(encoding="utf-8"))
SUFFIXES = ["jsonl", "jsonl.gz", "json", "parquet"]
same_folder = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def content(rows, suffix):
    if suffix == "parquet":
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
        return sink.getvalue().to_pybytes()
    text = json.dumps(rows) if suffix == "json" else "".join(json.dumps(row) + "\n" for row in rows)
    return gzip.compress(text.encode(), mtime=0) if suffix.endswith("gz") else text.encode()


def outcome(name, file):
    """Examples, or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return load(name, file)
        except ValueError as error:
            return str(error)


def in_form(found, *parts):
    return isinstance(found, list) or (re.match(HOUSE, found) is not None and all(part in found for part in parts))


odd = ["", " ", "####", "[", "{}", "[]", "[1]", "null", "eJw=", "AAAA", "\ud800", "def", "(" * 300, '{"inputs": [1], "outputs": []}']
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
    | st.sampled_from(odd),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "inputs", "outputs", "fn_name", "x"]), inner),
    max_leaves=4,
)  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
@given(data=st.data())
@settings(same_folder, max_examples=60)
def test_rows_of_any_shape_are_examples_or_named(tmp_path, name, data):
    good = ROWS[name]["rows"] if "rows" in ROWS[name] else next(iter(ROWS[name].values()))
    row = dict(good[0])
    for column in data.draw(st.sets(st.sampled_from(sorted(row)), min_size=1, max_size=2)):
        if data.draw(st.booleans()):
            row[column] = data.draw(values)
        else:
            del row[column]
    file = tmp_path / "x.jsonl"
    file.write_bytes(content([*good, row], "jsonl"))
    found = outcome(name, file)
    alone = found == f"source: got no rows for {name}; need at least one; because there is nothing to ask"  # the question has two answers
    assert alone or in_form(found, f"x.jsonl: row {len(good)} of {name}: "), found


@pytest.mark.parametrize("record", [3, "text", None, [1], []])
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_rows_that_are_no_objects(tmp_path, suffix, record):
    good = {"problem": "1+1?", "answer": "2"}
    file = tmp_path / f"x.{suffix}"
    file.write_bytes(content([good, record], suffix))
    assert re.match(r"x\.(jsonl:2|json: row 1 of aime25): got a \w+; need an object; because ", outcome("aime25", file))


RAISED = [
    AttributeError,
    TypeError,
    IndexError,
    KeyError,
    ValueError,
    ZeroDivisionError,
    OverflowError,
    RecursionError,
    EOFError,
    SyntaxError,
]


@pytest.mark.parametrize(
    "kind", [*RAISED, AssertionError, UnicodeError, "pickle.UnpicklingError", "zlib.error", "binascii.Error", "json.JSONDecodeError"]
)
def test_whatever_a_parser_raises_is_named(tmp_path, monkeypatch, kind):
    if isinstance(kind, str):
        module, _, attribute = kind.partition(".")
        kind = getattr(importlib.import_module(module), attribute)

    def parse(row):
        if row["answer"] == "2":
            raise kind("odd", "", 0) if kind.__name__ == "JSONDecodeError" else kind("odd")
        return Example(row["problem"], row["answer"])

    monkeypatch.setitem(TASKS, "aime25", dataclasses.replace(TASKS["aime25"], parse=parse))
    for suffix in SUFFIXES:
        file = tmp_path / f"x.{suffix}"
        file.write_bytes(content([{"problem": "a", "answer": "1"}, {"problem": "b", "answer": "2"}], suffix))
        found = outcome("aime25", file)
        assert in_form(found, f"x.{suffix}: row 1 of aime25: ", "odd"), found
        assert isinstance(found, str)


@pytest.mark.parametrize("without", [set(), {"0"}, {"1", "3"}, {"0", "1", "2", "3"}])
def test_rows_without_tests_are_dropped_aloud(tmp_path, monkeypatch, without):
    def parse(row):
        if row["answer"] in without:
            raise NoTests("none")
        return Example(row["problem"], row["answer"])

    monkeypatch.setitem(TASKS, "taco", dataclasses.replace(TASKS["taco"], parse=parse))
    (tmp_path / "x.jsonl").write_bytes(content([{"problem": f"{i}?", "answer": str(i)} for i in range(4)], "jsonl"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if len(without) == 4:
            with pytest.raises(ValueError, match="source: got no rows for taco"):
                load("taco", tmp_path)
        else:
            assert {e.answer for e in load("taco", tmp_path)} == set("0123") - without
    assert [str(w.message) for w in caught] == [f"taco: {len(without)} of 4 rows have no tests and are dropped"] * bool(without)


@pytest.mark.parametrize("name", [name for name in ROWS if task(name).kind in ("function", "program")])
def test_a_row_without_tests_does_not_refuse_the_data_set(tmp_path, name):
    good = ROWS[name]["rows"][0]
    question = next(c for c in ("question", "question_content", "text", "prompt") if c in good)
    gone = {"test": "METADATA = {}", "test_list": [], "input_output": "", "public_test_cases": "[]", "private_test_cases": "[]"}
    bare = {**good, question: "Another one.", **{c: v for c, v in gone.items() if c in good}}
    (tmp_path / "x.jsonl").write_bytes(content([bare, good], "jsonl"))
    with pytest.warns(UserWarning, match=f"{name}: 1 of 2 rows have no tests and are dropped"):
        assert len(load(name, tmp_path)) == 1


BROKEN = {
    "no gzip": ("jsonl.gz", b'{"problem": "a", "answer": "1"}'),
    "gzip of no deflate": ("jsonl.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 20),
    "empty gzip": ("jsonl.gz", b""),
    "no parquet": ("parquet", b"PAR1"),
    "parquet of nothing": ("parquet", b""),
    "parquet ends": ("parquet", b"PAR1" + b"\0" * 20 + b"PAR1"),
    "no utf-8": ("jsonl", b'{"problem": "\xff", "answer": "1"}'),
    "no utf-8 in a list": ("json", b'[{"problem": "\xff", "answer": "1"}]'),
    "utf-16": ("jsonl", '{"problem": "a", "answer": "1"}'.encode("utf-16")),
    "no json": ("json", b"[{"),
    "an object": ("json", b'{"problem": "a", "answer": "1"}'),
    "a number": ("json", b"3"),
    "nothing": ("json", b""),
    "deep": ("jsonl", b"[" * 100_000),
    "deep list": ("json", b"[" * 100_000),
    "a long number": ("jsonl", b'{"problem": "a", "answer": ' + b"1" * 5000 + b"}"),
    "nan": ("jsonl", b'{"problem": "a", "answer": NaN}'),
    "half a surrogate pair": ("jsonl", b'{"problem": "\\ud800", "answer": "1"}'),
    "zero bytes": ("jsonl", b"\0\0\0"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_named(tmp_path, case):
    suffix, data = BROKEN[case]
    file = tmp_path / f"x.{suffix}"
    file.write_bytes(data)
    for source in (file, tmp_path):
        found = outcome("aime25", source)
        assert isinstance(found, str) and in_form(found), found
        assert case == "empty gzip" or found.startswith(f"x.{suffix}:"), found


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
@settings(same_folder, max_examples=80)
def test_files_cut_off_or_with_a_wrong_byte(tmp_path, suffix, data):
    rows = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(40)]
    good = bytearray(content(rows, suffix))
    at = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        del good[at:]
    else:
        good[at] = data.draw(st.integers(0, 255))
    file = tmp_path / f"x.{suffix}"
    file.write_bytes(good)
    found = outcome("aime25", file)
    assert in_form(found), found
    assert isinstance(found, list) or found.startswith((f"x.{suffix}:", "source: got no rows")), found


@pytest.mark.parametrize(
    "source",
    ["", " ", "x" * 5000, "~nobody-of-this-name/x", "a\0b", "/dev/null", "/dev/zero", "/no/such", "x.jsonl", "a/x.parquet", "./x", "a/b/c"],
)
def test_sources_that_are_none(source):
    with pytest.raises(ValueError, match=r"(?s)^source: got .*; need .*; because "):
        load("aime25", source)


@pytest.mark.parametrize("name", [None, 3, "", " ", "GSM8K", "gsm8k ", b"gsm8k", ["gsm8k"], "reasoning_gym"])
def test_names_that_are_no_task(name):
    with pytest.raises(ValueError, match=r"(?s)^task: got .*; need one of gsm8k, .*; because no other loader is written$"):
        load(name)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "json"])
def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path, suffix):
    rows = [{"problem": "A?", "answer": "1"}, {"problem": "B?", "answer": "2"}]
    marked = b"\xef\xbb\xbf" + content(rows, suffix.removesuffix(".gz"))
    (tmp_path / f"x.{suffix}").write_bytes(gzip.compress(marked) if suffix.endswith("gz") else marked)
    assert [e.answer for e in load("aime25", tmp_path)] == ["1", "2"]


def test_folders_and_files_of_other_names(tmp_path):
    (tmp_path / "x.jsonl").mkdir()
    (tmp_path / "x.csv").touch()
    for source in (tmp_path, tmp_path / "x.csv"):
        assert outcome("aime25", source).startswith("source: got ")
    (tmp_path / "hidden.jsonl").symlink_to(tmp_path / "gone")
    assert in_form(outcome("aime25", tmp_path / "hidden.jsonl"))


@given(query=st.text(alphabet="=&?_xm3-.", max_size=12) | st.sampled_from([
    "x", "=", "max_terms", "max_terms=", "=2", "max_terms=x", "max_terms=2.5", "max_terms=2&", "&", "max_terms=2&max_terms=3", "size=3",
    "seed=3", "max_terms=-1", "max_terms=0", "min_digits=9&max_digits=2", "max_digits=5000&min_digits=5000", "no_such=1",
    "max_terms=" + "1" * 30, "max_terms=\u0663", "size=1&size=2", "__class__=1",
]))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_settings_of_a_family_are_taken_or_named(query):
    name = f"reasoning_gym/chain_sum?{query}"
    try:
        assert len(load(name, size=3)) == 3
    except ValueError as error:
        message = str(error)
    else:
        message = f"task: got {name}; need ; because ."
    assert re.match(HOUSE, message) and message.startswith(f"task: got {name}; "), message


GENERATED = [
    "additions",
    "small_functions",
    "reasoning_gym/chain_sum",
    "reasoning_gym/tower_of_hanoi",
    "reasoning_gym/chain_sum?max_terms=2&max_digits=1",
]


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("size", [0, -1, 2.0, 2.5, "3", True, float("nan"), np.float64(3), [3]])
def test_sizes_that_count_nothing(name, size):
    with pytest.raises(ValueError, match=r"(?s)^size: got .*; need an integer >= 1; because "):
        load(name, size=size)


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("seed", [-1, 2**31, 1.0, "1", None, True])
def test_seeds_that_seed_nothing(name, seed):
    with pytest.raises(ValueError, match=r"^seed: got .*; need an integer in \[0, 2\*\*31\); because "):
        load(name, size=3, seed=seed)
    with pytest.raises(ValueError, match=r"^seed: got .*; need an integer in \[0, 2\*\*31\); because "):
        split([Example("q", "1")], 0, 1, 0, seed)


@pytest.mark.parametrize("name", GENERATED)
@given(size=st.integers(1, 40), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=12, deadline=None)
def test_a_size_is_the_number_of_different_questions(name, size, seed):
    examples = load(name, size=size, seed=seed)
    assert len(examples) == len({e.key for e in examples}) == size
    assert examples == load(name, size=np.int64(size), seed=seed)
    assert load(name, size=size + 5, seed=seed)[:size] == examples or name == "additions"


def test_a_family_that_has_no_more_is_refused_with_what_it_has():
    name = "reasoning_gym/chain_sum?max_terms=2&max_digits=1"
    with pytest.raises(
        ValueError, match=rf"^size: got 400 for .*; need at most \d+; because {400 * _MOST_DRAWS} draws gave no more questions$"
    ):
        load(name, size=400)
    assert 100 < len(load(name)) < 400  # 1000 draws
    with pytest.raises(ValueError, match="size: got 1195 for small_functions; need at most 1194"):
        load("small_functions", size=1195)
    assert len(load("additions")) == 1000 and len(load("small_functions")) == 1194


@pytest.mark.parametrize("size", [-1, 1.0, 2.5, "1", None, True, float("nan")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_sizes_of_splits_are_whole_numbers(place, size):
    sizes = [1, 1, 1]
    sizes[place] = size
    name = ("n_calibration", "n_train", "n_test")[place]
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need an integer >= 0; because it counts examples$"):
        split([Example(f"{i}?", "1") for i in range(9)], *sizes)


same = st.builds(
    lambda i, start, space, identifier: Example(f"{start}{space}is {i}?", str(i), "", identifier),
    st.integers(0, 7),
    st.sampled_from(["What", "what"]),
    st.sampled_from([" ", "  ", "\n"]),
    st.sampled_from(["", "a", "b"]),
)


@given(rows=st.lists(same, min_size=1, max_size=30), seed=st.integers(0, 5), data=st.data())
@settings(deadline=None)
def test_splits_are_functions_of_the_contents_whatever_the_order_of_rows(rows, seed, data):
    n = len({e.key for e in rows})
    sizes = (n // 3, n - 2 * (n // 3), n // 3)
    assert split(data.draw(st.permutations(rows)), *sizes, seed) == split(rows, *sizes, seed)
    assert split(rows * 2, *sizes, seed) == split(rows, *sizes, seed)


@given(rows=st.lists(st.builds(Example, st.sampled_from("abc"), st.sampled_from("12")), min_size=1, max_size=8), data=st.data())
@settings(deadline=None)
def test_a_question_with_two_answers_is_in_no_split(rows, data):
    disputed = {e.question for e in rows if {e.answer, "1", "2"} == {o.answer for o in rows if o.question == e.question}}
    shuffled = data.draw(st.permutations(rows))
    if disputed:
        with pytest.raises(
            ValueError, match=r"^examples: got '[abc]' with the answers '1' and '2'; need one answer to a question; because "
        ):
            split(shuffled, 0, 1, 0)
    else:
        assert split(shuffled, 0, 1, 0) == split(rows, 0, 1, 0)


@pytest.mark.parametrize("order", [1, -1])
def test_disputed_questions_of_a_file_are_dropped_aloud_whatever_the_order(tmp_path, order):
    rows = [{"problem": "A?", "answer": "1"}, {"problem": "B?", "answer": "1"}, {"problem": "a?", "answer": "2"}][::order]
    (tmp_path / "x.jsonl").write_bytes(content(rows, "jsonl"))
    with pytest.warns(UserWarning, match="aime25: 1 questions have several answers and are dropped, such as '[aA]"):
        assert load("aime25", tmp_path) == [Example("B?", "1")]
    (tmp_path / "x.jsonl").write_bytes(content([rows[0], rows[-1]], "jsonl"))
    with pytest.warns(UserWarning, match="several answers"), pytest.raises(ValueError, match="source: got no rows for aime25"):
        load("aime25", tmp_path)
