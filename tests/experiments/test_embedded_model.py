"""The shipped model: small, loadable, and with the spread of difficulty that budgets are about."""

import json

import numpy as np
import pytest

from experiments import models
from experiments.arithmetic import make_problems, pool_of
from experiments.build_model import encode, supervised_pairs
from experiments.evaluate import evaluate

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def embedded():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield models.load("embedded")
    torch.set_num_threads(threads)


def test_all_assets_together_are_small():
    assert sum(path.stat().st_size for path in models.ASSETS.parent.rglob("*") if path.is_file()) < 2_000_000


def test_shape_and_dtype(embedded):
    model, tokenizer = embedded
    assert model.num_parameters() == 361_920
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.max_position_embeddings >= 64
    assert model.config.vocab_size == len(tokenizer) == 19


def test_special_tokens_agree_between_model_and_tokenizer(embedded):
    model, tokenizer = embedded
    for config in (model.config, model.generation_config):
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (
            tokenizer.pad_token_id,
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
        )
    assert (model.generation_config.temperature, model.generation_config.top_k, model.generation_config.top_p) == (1.0, 0, 1.0)


def test_shipped_tokenizer_is_the_one_the_code_makes(embedded):
    _, tokenizer = embedded
    fresh = models.character_tokenizer()
    assert tokenizer.get_vocab() == fresh.get_vocab()
    assert tokenizer.padding_side == "left"
    texts = ["12+345=", "9*8-7= 0"]
    assert tokenizer(texts, padding=True)["input_ids"] == fresh(texts, padding=True)["input_ids"]
    assert set(tokenizer("1+2=")) == {"input_ids", "attention_mask"}
    assert tokenizer.batch_decode(tokenizer(texts)["input_ids"]) == texts


@pytest.mark.parametrize("pool", ["any", "fresh"])
def test_solve_rates_spread_from_hopeless_to_certain(embedded, pool):
    rates = evaluate(*embedded, make_problems(200, seed=2026, pool=pool), samples=32).mean(1)
    assert (rates < 0.2).mean() >= 0.2
    assert (rates > 0.8).mean() >= 0.2
    assert ((rates >= 0.2) & (rates <= 0.8)).mean() >= 0.15
    assert 0.4 <= rates.mean() <= 0.65


def test_evaluate_is_deterministic_and_leaves_the_world_alone(embedded):
    model, tokenizer = embedded
    problems = make_problems(30, seed=1)
    state = torch.random.get_rng_state()
    model.train()
    first = evaluate(model, tokenizer, problems, samples=4, batch=16, seed=3)
    assert model.training
    model.eval()
    assert first.shape == (30, 4)
    assert first.dtype == bool
    assert np.array_equal(first, evaluate(model, tokenizer, problems, samples=4, batch=16, seed=3))
    assert not np.array_equal(first, evaluate(model, tokenizer, problems, samples=4, batch=16, seed=4))
    assert torch.equal(state, torch.random.get_rng_state())
    assert evaluate(model, tokenizer, [], samples=4).shape == (0, 4)


def test_evaluate_agrees_with_generate_when_sampling_is_greedy(embedded):
    """Near temperature 0 every sample is the greedy response, so padding, cache and order of rows are checked exactly."""
    model, tokenizer = embedded
    problems = make_problems(60, seed=5)
    ours = evaluate(model, tokenizer, problems, samples=3, batch=24, temperature=1e-6)
    for row, problem in zip(ours, problems, strict=True):
        ids = tokenizer(problem["prompt"], return_tensors="pt")
        output = model.generate(**ids, max_new_tokens=8, do_sample=False, temperature=None, top_p=None, top_k=None)
        text = tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        assert set(row.tolist()) == {text == problem["answer"]}
    assert 0.2 < ours.mean() < 0.9


@pytest.mark.parametrize("arguments", [{"samples": 0}, {"batch": 0}, {"max_new_tokens": 0}, {"temperature": 0.0}])
def test_evaluate_refuses_impossible_arguments(embedded, arguments):
    with pytest.raises(ValueError, match=f"^{next(iter(arguments))}: got"):
        evaluate(*embedded, make_problems(1, 0), **arguments)


def test_supervised_training_sees_no_fresh_problem_and_learns_only_answers():
    pairs = supervised_pairs(np.random.default_rng(0), 300)
    assert len(pairs) == 300
    assert {pool_of(f"{a}+{b}=") for a, b in pairs} == {"supervised"}
    tokenizer = models.character_tokenizer()
    ids, mask, labels = encode(tokenizer, [(7, 8), (123, 999)])
    for row, answer in zip(labels, ["15<eos>", "1122<eos>"], strict=True):
        assert tokenizer.decode(row[row != -100]) == answer
    assert torch.equal(ids[labels != -100], labels[labels != -100])
    assert bool(mask[labels != -100].all())


def test_no_machine_path_in_the_assets():
    for path in models.ASSETS.glob("*.json"):
        text = path.read_text()
        json.loads(text)
        assert "/work" not in text
        assert "/home" not in text
        assert "/tmp" not in text
