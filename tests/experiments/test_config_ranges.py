"""Every field of a configuration, and every option of ``train``, outside its range: refused by name, before torch is imported."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import configs
from experiments.configs import parse, schema

ROOT = Path(__file__).parents[2]
HOUSE = r"(?s)^.+?: got .*; need .*; because .+$"
TABLE = {
    "name": "x",
    "paper": "none",
    "model": {"id": "embedded", "lora": {}},
    "data": {"task": "additions", "n_calibration": 8},
    "budget": {"rule": "conformal"},
    "mask": {"rule": "carm", "tau": 1.02},
    "update": {"steps": 1, "prompts": 4},
    "evaluation": {},
}

below_0 = st.integers(max_value=-1)
below_1 = st.integers(max_value=0)
no_number = st.sampled_from([math.nan, math.inf, -math.inf])
not_positive = no_number | st.floats(max_value=0.0)
seeds = below_0 | st.integers(min_value=2**31)
not_carm = no_number | st.floats(max_value=1.0, exclude_max=True)


def one_of_them(bad, good):
    """Tuples of which one entry is bad."""
    return st.lists(good, max_size=2).flatmap(lambda head: bad.map(lambda value: [*head, value]))


#: Every numeric field, with values outside its range.
OUTSIDE = {
    "model.lora.rank": below_1,
    "model.lora.alpha": below_1,
    "model.lora.dropout": no_number | st.floats(max_value=0.0, exclude_max=True) | st.floats(min_value=1.0),
    "data.n_calibration": below_0,
    "data.n_train": below_1,
    "data.n_test": below_0,
    "data.seed": seeds,
    "data.max_tests": below_1,
    "budget.grid": one_of_them(below_1, st.just(2)) | st.sampled_from([[], [1], [2, 2], [4, 2], [0, 2]]),
    "budget.recalibrate_every": below_1,
    "mask.tau": not_carm,
    "mask.sweep": one_of_them(not_carm, st.just(1.02)),
    "update.steps": below_1,
    "update.prompts": below_1,
    "update.mini_batch": below_1 | st.sampled_from([3, 5, 8]),
    "update.micro_batch": below_1,
    "update.learning_rate": not_positive,
    "update.beta": no_number | st.floats(max_value=0.0, exclude_max=True),
    "update.clip": not_positive.map(lambda c: [0.2, c]) | not_positive.map(lambda c: [c, 0.2]) | st.sampled_from([[], [0.2], [0.2] * 3]),
    "update.max_tokens": below_1,
    "update.temperature": not_positive,
    "update.warmup": below_0,
    "evaluation.samples": below_1,
    "evaluation.k": one_of_them(below_1 | st.integers(min_value=33), st.just(1)) | st.sampled_from([[], [1, 1]]),
    "evaluation.temperature": not_positive,
    "evaluation.top_p": not_positive | st.floats(min_value=1.0, exclude_min=True),
    "evaluation.top_k": below_0,
}
#: Texts and lists of texts.
TEXTS = {
    "name": ["", " ", ".", "..", "a/b", "/x", "~", "a\nb", "\0"],
    "model.id": ["", " "],
    "model.lora.targets": [[], [""], ["q_proj", "q_proj"]],
    "data.task": ["", "gsm9k", "GSM8K"],
    "data.source": ["", " "],
    "budget.rule": ["", "Fixed", "guess"],
    "budget.delta": ["", "0", "1", "-0.1", "1.5", "nan", "inf", "1/0", "0.1.2", "1e-99999999", "1" * 5000, "0." + "1" * 99, "ten", "0.1\n"],
    "budget.epsilon": ["", "0", "1", "-0.1", "auto", "nan", "1/0", "1e-99999999"],
    "budget.multiplicity": ["", "foo", "Bonferroni"],
    "mask.rule": ["", "carmen"],
    "mask.conditioning": ["", "positive"],
    "update.objective": ["", "ppo"],
    "update.engine": ["", "sglang"],
    "evaluation.tasks": [["nope"], [""], ["aime24", "aime24"], ["additions"]],
}
FREE = {"paper", "model.chat", "budget.split"}


def fields(kind=configs.Experiment, where=""):
    for name, hint in typing.get_type_hints(kind).items():
        inner = next((t for t in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(t)), None)
        yield from fields(inner, f"{where}{name}.") if inner else [(f"{where}{name}", hint)]


def changed(path, value):
    table = json.loads(json.dumps(TABLE))
    place = table
    *sections, last = path.split(".")
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return table


def refusal(make):
    try:
        make()
    except ValueError as error:
        return str(error)
    return None


def test_every_field_is_in_one_of_the_tables():
    hints = dict(fields())
    assert hints.keys() == OUTSIDE.keys() | TEXTS.keys() | FREE
    numeric = {path for path, hint in hints.items() if any(t in str(hint) for t in ("int", "float"))}
    assert numeric == OUTSIDE.keys()
    assert parse(TABLE).mask.tau == 1.02


@pytest.mark.parametrize("path", OUTSIDE)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_numbers_outside_their_range_are_refused_by_name(path, data):
    value = data.draw(OUTSIDE[path])
    with pytest.raises(ValueError, match=HOUSE) as caught:
        parse(changed(path, value))
    assert str(caught.value).startswith((f"{path}: got ", f"{path}.0: got ", f"{path}.1: got ", f"{path}.2: got "))


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in TEXTS.items() for value in values])
def test_texts_that_mean_nothing_are_refused_by_name(path, value):
    with pytest.raises(ValueError, match=HOUSE) as caught:
        parse(changed(path, value))
    assert str(caught.value).startswith((f"{path}: ", "task: "))


@pytest.mark.parametrize("rule", schema.MASKS)
@given(value=not_positive)
@settings(max_examples=20, deadline=None)
def test_no_mask_takes_a_threshold_that_is_not_positive(rule, value):
    for key in ("tau", "sweep"):
        with pytest.raises(ValueError, match=rf"^mask\.{key}: got .*; need .*; because "):
            parse(changed("mask", {"rule": rule, key: value if key == "tau" else [value]}))


@pytest.mark.parametrize("rule", [r for r in schema.MASKS if r != "none"])
@given(tau=st.floats(0.0, 3.0))
@settings(max_examples=40, deadline=None)
def test_thresholds_are_refused_exactly_where_the_mask_refuses_them(rule, tau):
    import carm_core

    kind = {"carm": "CARM", "geomean": "GeoMean", "trm": "TRM", "opsm": "OPSM", "icepop": "IcePop"}[rule]
    parameter = {"carm": "tau", "geomean": "tau", "icepop": "beta"}.get(rule, "delta")

    mine = refusal(lambda: parse(changed("mask", {"rule": rule, "tau": tau})))
    assert (mine is None) == (refusal(lambda: getattr(carm_core, kind)(**{parameter: tau})) is None)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([10**400, -(2**64)])
    | st.just("1e-999999999"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
PLACES = [path for path, _ in fields()] + ["model", "model.lora", "data", "budget", "mask", "update", "evaluation", "x", "data.x"]


@given(path=st.sampled_from(PLACES), value=anything)
@settings(max_examples=600, deadline=None)
def test_whatever_stands_in_a_file_is_taken_or_refused_in_one_form(path, value):
    message = refusal(lambda: parse(changed(path, value)))
    assert message is None or re.match(HOUSE, message), message


@pytest.mark.parametrize(
    "content", [b"", b"name = ", b"\xff\xfe", b'name = "\xff"', b"x = " + b"[" * 20_000, b"x = " + b"1" * 5000, b"name = 1979-05-27", b"\0"]
)
def test_files_that_are_no_configuration(tmp_path, content):
    file = tmp_path / "x.toml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=HOUSE):
        configs.read(file)


@pytest.mark.parametrize("name", ["", "x" * 5000, "~nobody-of-this-name/x", "a\0b", "/", ".", "cgrpo", "../schema.py/x"])
def test_names_that_are_no_configuration(name):
    with pytest.raises(ValueError, match=r"(?s)^config: got .*; need a TOML file or a (shipped )?name.*; because "):
        configs.find(name)


NAME = "cgrpo/qwen2.5-7b-gsm8k"
SMALL = ["--config", NAME, "--model", "embedded"]
OPTIONS = [
    *([*SMALL, "--seed", seed] for seed in ("-1", str(2**31), str(10**30))),
    *([*SMALL, "--report", name] for name in ("", " ", "\t", "\u3000")),
    *([*SMALL, "--out", out] for out in ("", " ", "/proc/x", "/proc/self/x/y", "/dev/null", "/dev/null/x", "x" * 300)),
    *([*SMALL, "--max-steps", steps] for steps in ("0", "-1")),
    *([*SMALL, f"--max-seconds={seconds}"] for seconds in ("0", "-1", "nan", "inf", "-inf")),
    *([*SMALL, "--set", setting] for setting in (
        "evaluation.top_p=5.0", "evaluation.temperature=-1.0", "evaluation.top_k=-2", "update.warmup=-3", "budget.multiplicity='foo'",
        "model.lora.alpha=-1", "data.seed=-1", "data.task='reasoning_gym/chain_sum?x'", "data.task='reasoning_gym/no'", "budget.grid=[]",
        "budget.rule='ada-seq'.x", "x=[[", "data.n_train=0x" + "f" * 5000, "update.steps=" + "1" * 5000, "a=" + "[" * 3000,
        "model.id='no such model!'",
    )),
    *(["--config", config] for config in ("", "nope", "x" * 5000, "~nobody-of-this-name/x", str(ROOT))),
    ["--config", NAME, "--model", ""],
    ["--config", NAME, "--model", "/dev/null"],
    ["--config", "cgrpo/qwen2.5-7b-humaneval", "--model", "smollm2", "--sandbox", "nowhere"],
]  # fmt: skip
SCRIPT = """
import json, sys
from contextlib import redirect_stderr
from io import StringIO
from experiments.__main__ import main

for options in json.loads(sys.argv[1]):
    with redirect_stderr(StringIO()) as err:
        try:
            code = main(["train", "--max-steps", "1", *options])
        except Exception as error:
            code = repr(error)
    print(json.dumps([options, code, err.getvalue(), "torch" in sys.modules]))
"""


def test_options_that_cannot_work_are_refused_in_one_line_without_torch(tmp_path):
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(OPTIONS)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=True)
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(seen) == len(OPTIONS)
    for options, code, err, torch in seen:
        assert code == 2 and re.match(r"^error: .+?: got .*; need .*; because .+\n$", err) and err.count("\n") == 1, (options, code, err)
        assert not torch, options
    assert not list(tmp_path.rglob("run.json"))
