"""A tiny causal LM with a character tokenizer, built in memory, and data sets to train it on."""

from __future__ import annotations

import gc

import pytest
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from conformal_trl import CGRPOConfig

SYMBOLS = ["<pad>", "<bos>", "<eos>", "<unk>", *"0123456789+-*= "]


@pytest.fixture(autouse=True, scope="session")
def _imports_are_no_garbage():
    """``Trainer.train`` collects garbage at its start: a second each time, over what importing torch left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def tokenizer():
    backend = Tokenizer(models.WordLevel({s: i for i, s in enumerate(SYMBOLS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SYMBOLS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def saved_model(model, tmp_path):
    """The same model loaded from a folder, as TRL needs it to load a reference copy."""
    model.save_pretrained(tmp_path / "start")
    return LlamaForCausalLM.from_pretrained(tmp_path / "start")


@pytest.fixture
def dataset():
    return Dataset.from_list([{"prompt": f"{i}+{i % 7}=", "answer": str(i + i % 7)} for i in range(40)])


@pytest.fixture
def calibration():
    return Dataset.from_list([{"prompt": f"{i}*{i % 7}=", "answer": str(i * (i % 7))} for i in range(60)])


@pytest.fixture
def make_config(tmp_path):
    def make(k_max: int, prompts: int, **overrides) -> CGRPOConfig:
        defaults = dict(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
            per_device_train_batch_size=k_max * prompts,
            num_generations=k_max,
            max_completion_length=6,
            max_steps=2,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            seed=3,
            calibration_progress=False,
        )
        return CGRPOConfig(**(defaults | overrides))

    return make
