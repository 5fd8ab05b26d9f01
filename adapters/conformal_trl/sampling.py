"""Sampling with the log-probability of every sampled token, at the cost of one (rows, vocabulary) buffer."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import pad

__all__ = ["LogprobRecorder", "sample"]


class LogprobRecorder(LogitsProcessor):
    """Records ``log softmax(logits / temperature)[token]`` of the tokens that ``generate`` samples; changes no score.

    It sees the raw logits, before temperature and any truncation, so its numbers are those a trainer computes for the same
    weights: ``log pi(y_t | x, y_<t)`` at the given temperature.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self._previous: torch.Tensor | None = None
        self._recorded: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._record(input_ids[:, -1:])
        self._previous = torch.log_softmax(scores.float() / self.temperature, dim=-1)
        return scores

    def _record(self, last_token: torch.Tensor) -> None:
        if self._previous is not None:
            self._recorded.append(self._previous.gather(1, last_token))

    def finish(self, sequences: torch.Tensor) -> torch.Tensor:
        """``(rows, new tokens)`` log-probabilities, given what ``generate`` returned."""
        self._record(sequences[:, -1:])
        return torch.cat(self._recorded, dim=1)


def sample(trainer, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
    """One response per entry of ``prompt_ids``, with the current weights: token ids up to and including the first EOS, and
    their log-probabilities."""
    prompts = [torch.tensor(ids) for ids in prompt_ids]
    inputs = {
        "input_ids": pad(prompts, padding_value=trainer._tokenizer.pad_token_id, padding_side="left"),
        "attention_mask": pad([torch.ones_like(p) for p in prompts], padding_value=0, padding_side="left"),
    }
    inputs = {name: value.to(trainer.accelerator.device) for name, value in inputs.items()}
    recorder = LogprobRecorder(trainer.temperature)
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            generation_kwargs=trainer.generation_kwargs,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
        torch.no_grad(),
        trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
    ):
        sequences = model.generate(**inputs, generation_config=trainer.generation_config, logits_processor=LogitsProcessorList([recorder]))
    logps = recorder.finish(sequences).cpu()
    completions = sequences[:, inputs["input_ids"].size(1) :]
    is_eos = torch.isin(completions, torch.tensor(trainer.eos_token_ids, device=completions.device))
    lengths = torch.where(is_eos.any(1), is_eos.int().argmax(1) + 1, completions.size(1)).tolist()
    completions = completions.cpu()
    ids = [row[:length].tolist() for row, length in zip(completions, lengths, strict=True)]
    return ids, [row[:length].tolist() for row, length in zip(logps, lengths, strict=True)]
