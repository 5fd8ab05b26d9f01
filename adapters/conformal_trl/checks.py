"""Bad input, refused in one line before a model is loaded or a rollout is lost."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset
from transformers import AutoConfig

from conformal_core import RolloutPolicy

__all__ = ["LOGIT_EDITS", "check_arguments", "checked_counts", "prompt_text"]

#: Generation settings that edit logits before sampling, with their neutral values.
LOGIT_EDITS = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
}


def prompt_text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, ensure_ascii=False)


def checked_counts(policy: RolloutPolicy, counts: Any, drawn: np.ndarray) -> np.ndarray:
    """What a policy asked for, or one line that says why it cannot be had."""
    counts = np.asarray(counts)
    if counts.shape != drawn.shape or counts.dtype.kind not in "iu" or (counts < 0).any() or (drawn + counts > policy.k_max).any():
        raise ValueError(
            f"rollout_policy: got counts {counts.tolist()} after {drawn.tolist()} responses; need integers >= 0 that keep every prompt "
            f"within {policy.k_max}; because {policy!r} has that k_max"
        )
    return counts


def check_arguments(model, args, train_dataset, calibration_dataset, policy, answer_fn, gold_column, kwargs) -> None:
    """Refuse bad input before a model is loaded."""
    if not isinstance(policy, RolloutPolicy):
        raise ValueError(f"rollout_policy: got {type(policy).__name__}; need a RolloutPolicy; because the trainer asks it for budgets")
    if policy.k_max < 2:
        raise ValueError(f"rollout_policy: got k_max {policy.k_max}; need at least 2; because a group of one has no reward variance")
    if args.num_generations != policy.k_max:
        raise ValueError(
            f"num_generations: got {args.num_generations}; need {policy.k_max}; because it is the largest group {policy!r} may draw"
        )
    if train_dataset is None or (isinstance(train_dataset, Dataset) and len(train_dataset) == 0):
        raise ValueError("train_dataset: got no rows; need at least one prompt; because there is nothing to train on")
    for name, data in (("train_dataset", train_dataset), ("calibration_dataset", calibration_dataset)):
        stream = name == "train_dataset" and isinstance(data, IterableDataset)
        if data is None:
            continue
        if not stream and not isinstance(data, Dataset):
            raise ValueError(f"{name}: got {type(data).__name__}; need a datasets.Dataset; because prompts are drawn by index")
        if data.column_names is not None and "prompt" not in data.column_names:  # a stream may not know its columns
            raise ValueError(
                f"{name}: got columns {', '.join(data.column_names)}; need a column prompt; because responses are drawn for it"
            )
    if isinstance(train_dataset, IterableDataset) and args.max_steps <= 0:
        raise ValueError(
            f"max_steps: got {args.max_steps} beside a train_dataset that is a stream; need a positive number; because a stream has no "
            "length that an epoch could be counted by"
        )
    rows = args.per_device_train_batch_size * args.steps_per_generation
    if rows % args.num_generations:
        raise ValueError(
            f"per_device_train_batch_size: got {rows} rows per process and generation; need a multiple of num_generations="
            f"{args.num_generations}; because a group would be split over processes"
        )
    prompts = args.generation_batch_size // args.num_generations
    if isinstance(train_dataset, Dataset) and len(train_dataset) < prompts:
        raise ValueError(f"train_dataset: got {len(train_dataset)} prompts; need {prompts}; because every generation step draws that many")
    if calibration_dataset is not None and isinstance(train_dataset, Dataset):
        shared = {prompt_text(p) for p in calibration_dataset["prompt"]} & {prompt_text(p) for p in train_dataset["prompt"]}
        if shared:
            raise ValueError(
                f"calibration_dataset: got {len(shared)} prompts that are in train_dataset too; need none; because a policy trained on "
                "its calibration prompts is not exchangeable with fresh ones"
            )
    elif calibration_dataset is not None:
        warnings.warn("calibration_dataset: cannot be compared with a train_dataset that is a stream; keep them disjoint", stacklevel=3)
    request = policy.calibration(0)
    if request is not None and (calibration_dataset is None or len(calibration_dataset) < request.n):
        have = 0 if calibration_dataset is None else len(calibration_dataset)
        raise ValueError(f"calibration_dataset: got {have} prompts; need {request.n}; because {policy!r} calibrates on that many")
    if policy.needs_answers and (answer_fn is None or gold_column is None):
        missing = "answer_fn" if answer_fn is None else "gold_column"
        raise ValueError(f"{missing}: got None; need one; because {policy!r} compares answers")
    if gold_column is not None:
        needed = [("train_dataset", train_dataset)] if calibration_dataset is None else [("calibration_dataset", calibration_dataset)]
        for name, data in needed:
            if data.column_names is not None and gold_column not in data.column_names:
                raise ValueError(
                    f"gold_column: got {gold_column!r}; need a column of {name} ({', '.join(data.column_names)}); because it holds gold"
                )
    for name, data in (("train_dataset", train_dataset), ("calibration_dataset", calibration_dataset)):
        columns = (getattr(data, "column_names", None) or []) if data is not None else []
        if {"image", "images"} & set(columns):
            raise ValueError(f"{name}: got a column of images; need text; because pixel values are not dealt to ragged micro-batches")
    if kwargs.get("environment_factory") is not None:
        raise ValueError(
            "environment_factory: got one; need None (tools, or a rollout_func that runs the environment); because TRL binds an "
            "environment to a row of its rectangular batch, and here rows appear as the budget asks for them"
        )
    if isinstance(model, str):
        try:
            wanted = ("subfolder", "revision", "trust_remote_code", "cache_dir", "token")
            AutoConfig.from_pretrained(model, **{k: v for k, v in (args.model_init_kwargs or {}).items() if k in wanted})
        except (OSError, ValueError) as error:
            raise ValueError(
                f"model: got {model!r}; need a folder with config.json or a loadable model id; because {str(error).splitlines()[0]}"
            ) from error
