"""One generation step: calibrate if it is due, roll out, weigh, select the rows that train, deal them into micro-batches."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from conformal_core import Outcomes

from .advantages import batch_standardised, group_advantages, per_function_advantages
from .engines import importance_ratio
from .metrics import log_generation
from .rows import Deal, Group, Response, Row, compact_batch

__all__ = ["Generation"]


class Generation:
    """Turns the prompts of a generation batch into this process's micro-batches; every process decides alike."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def _calibrate(self) -> None:
        request = self.trainer.rollout_policy.calibration(self.trainer.state.global_step)
        if request is None:
            return
        if self.trainer.calibration_dataset is None or len(self.trainer.calibration_dataset) < request.n:
            have = 0 if self.trainer.calibration_dataset is None else len(self.trainer.calibration_dataset)
            raise ValueError(
                f"calibration_dataset: got {have} prompts; need {request.n}; because {self.trainer.rollout_policy!r} asks for them"
            )
        step = self.trainer.state.global_step
        with self.trainer.ledger.phase("calibrate", absorb=True):
            # Drawn without replacement, keyed by (seed, step): no order of the data set matters, and calibrations share few prompts if
            # it is large.
            chosen = np.random.default_rng([self.trainer.args.seed, step]).permutation(len(self.trainer.calibration_dataset))
            examples = [self._example(self.trainer.calibration_dataset[int(i)]) for i in chosen[: request.n]]
            shown = self.trainer.args.calibration_progress and self.trainer.accelerator.is_main_process
            with tqdm(
                total=request.n * request.rollout.k_max, desc=f"calibration at step {step}", unit="response", leave=False, disable=not shown
            ) as bar:
                groups, outcomes = self.trainer.rollouts.roll_out(
                    examples, request.rollout, step, self.trainer.args.calibration_batch_size, bar
                )
            self.trainer.rollout_policy.calibrate(outcomes)
            self.trainer._pending_metrics.clear()  # what reward functions logged about calibration is not about training
        self.trainer.ledger.add(
            calibration=int(outcomes.drawn.sum()), calibration_tokens=sum(r.tokens for g in groups for r in g.responses)
        )

    def _example(self, example: dict[str, Any]) -> dict[str, Any]:
        example = dict(example)
        if self.trainer.gold_as_text and example.get(self.trainer.gold_column) is not None:
            example[self.trainer.gold_column] = str(example[self.trainer.gold_column]).strip()
        return example

    def step(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Calibrate if it is due, roll out the prompts of all processes, and return this process's micro-batches."""
        policy, step = self.trainer.rollout_policy, self.trainer.state.global_step
        record = self.trainer.ledger.open(step)
        self._calibrate()
        examples = gather_object([self._example(e) for e in inputs[:: self.trainer.num_generations]])
        self.trainer.rollouts.tool_use = [0.0, 0.0, 0.0]
        groups, outcomes = self.trainer.rollouts.roll_out(examples, policy, step, self.trainer.args.rollout_batch_size)
        kept = np.asarray(policy.keep(outcomes))
        if kept.shape != outcomes.passes.shape or kept.dtype != bool:
            raise ValueError(
                f"keep: got {kept.dtype} of shape {kept.shape} from {policy!r}; need bool of shape {outcomes.passes.shape}; "
                "because each response is kept or not"
            )
        kept = kept & outcomes.live  # a copy: the array is the policy's
        record["audit"] = {event: list(count) for event, count in policy.audit(outcomes).items()}
        advantages, varies = self._advantages(groups, outcomes, kept)
        policy.update(outcomes)
        record["policy"] = {name: float(value) for name, value in policy.metrics().items()}
        extra = record["policy"].get("calibration_extra_share", 0.0)
        rows = self._rows_that_train(groups, kept, advantages, varies)
        responses = [r for g in groups for r in g.responses]
        totals = [r.total for r in responses if not math.isnan(r.total)]
        self.trainer.ledger.add(
            prompts=len(groups),
            generated=len(responses),
            generated_tokens=sum(r.tokens for r in responses),
            calibration_extra=round(extra * len(responses)) if math.isfinite(extra) else 0,
            kept=int(kept.sum()),
            trained=len(rows),
            trained_tokens=sum(row.response.tokens for row in rows),
            groups=len(groups),
            groups_with_variance=int(varies.sum()),
        )
        record["drawn"], record["mean_k"] = outcomes.drawn.tolist(), float(outcomes.drawn.mean())
        record["reward_mean"] = float(np.mean(totals)) if totals else math.nan
        log_generation(self.trainer, groups, advantages, varies)
        return self._deal(rows, int(kept.sum()))

    def _advantages(self, groups: Sequence[Group], outcomes: Outcomes, kept: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """(prompts, width) advantages and which groups vary: the policy's own, the paper's, or TRL's."""
        per_function = torch.full((*kept.shape, len(self.trainer.reward_func_names)), torch.nan)
        rewards = torch.full(kept.shape, torch.nan)
        for i, group in enumerate(groups):
            for j, response in enumerate(group.responses):
                if kept[i, j]:
                    per_function[i, j], rewards[i, j] = torch.tensor(response.rewards), response.total
        own = self.trainer.rollout_policy.advantages(outcomes)
        if own is not None:
            if np.shape(own) != outcomes.passes.shape or not np.isfinite(np.asarray(own)[kept]).all():
                raise ValueError(
                    f"advantages: got shape {np.shape(own)} from {self.trainer.rollout_policy!r}; need finite numbers of shape "
                    f"{outcomes.passes.shape}; because they weigh responses"
                )
            advantages = torch.where(torch.from_numpy(kept), torch.as_tensor(own, dtype=torch.float32), 0.0)
            return advantages, (advantages != 0).any(1)
        if self.trainer.args.objective == "cgrpo":
            return batch_standardised(rewards)
        if self.trainer.multi_objective_aggregation == "normalize_then_sum":
            return per_function_advantages(per_function, self.trainer.reward_weights)
        return group_advantages(rewards, self.trainer.scale_rewards)

    def _rows_that_train(self, groups: Sequence[Group], kept: np.ndarray, advantages: torch.Tensor, varies: torch.Tensor) -> list[Row]:
        prune = self.trainer.args.prune == "zero_variance" and not (self.trainer.args.kl_on_pruned and self.trainer.beta > 0)
        rows, missing = [], 0
        for i, group in enumerate(groups):
            for j, response in enumerate(group.responses):
                if not kept[i, j] or math.isnan(response.total) or response.tokens == 0 or (prune and not varies[i]):
                    continue
                if self.trainer.mask_truncated_completions and not self.trainer.has_ended(response):
                    continue
                if self.trainer.reads_recorded and self.trainer.args.old_logps == "rollout":
                    if response.logps is None:
                        raise ValueError(
                            'rollout_func: got no logprobs; need them, or old_logps="recompute"; because the loss compares with them'
                        )
                    if self.trainer.mask_rule is None and not np.isfinite(response.logps).all():
                        missing += 1
                        continue
                rows.append(Row(response, float(advantages[i, j])))
        if missing:
            warnings.warn(f"{missing} responses have log-probabilities that the engine could not give; they do not train", stacklevel=2)
        return rows

    def _deal(self, rows: Sequence[Row], kept: int) -> list[dict[str, Any]]:
        """This process's micro-batches.  A keyed shuffle and an even deal, the same on every process."""
        world, rank = self.trainer.accelerator.num_processes, self.trainer.accelerator.process_index
        parts, accumulation = self.trainer.args.steps_per_generation, self.trainer.args.gradient_accumulation_steps
        deal = Deal(len(rows), parts, world, accumulation if parts % accumulation == 0 else parts)
        order = np.random.default_rng([self.trainer.args.seed, self.trainer.state.global_step, 1]).permutation(len(rows))
        tokens = torch.tensor(sum(row.response.tokens for row in rows), device=self.trainer.accelerator.device)
        out = []
        for part in range(parts):
            mine = [rows[i] for i in order[deal.hand(part, rank)]]
            # Every process runs a forward iff one process of the window has rows: no collective is ever skipped by one of them.
            filler = not mine and world > 1 and deal.rows_of_window(part) > 0
            batch = compact_batch(
                mine or ([self._filler(rows[0])] if filler else []), self.trainer._tokenizer.pad_token_id, self.trainer.accelerator.device
            )
            if filler:
                batch["tool_mask"] = torch.zeros_like(batch["completion_mask"])
            batch["num_items_in_batch"] = tokens
            batch["row_weight"] = deal.weight(part, rank)
            batch["window_rows"], batch["part_rows"] = deal.rows_of_window(part), deal.rows_at(part)
            batch["kept_rows"] = kept
            self._add_logps(batch)
            out.append(batch)
        return out

    @staticmethod
    def _filler(row: Row) -> Row:
        """A row of one token that keeps the collectives of an empty micro-batch; nothing of it counts."""
        r = row.response
        one = Response(r.prompt[-1:], r.ids[:1], None if r.logps is None else r.logps[:1], None, r.completion, r.text)
        return Row(one, 0.0)

    def _add_logps(self, batch: dict[str, Any]) -> None:
        """Denominator of the ratio and, with ``beta > 0``, reference log-probabilities: of the trained rows only."""
        if not batch["advantages"].size(0):
            return
        with disable_gradient_checkpointing(self.trainer.model, self.trainer.args.gradient_checkpointing_kwargs):
            if self.trainer.args.old_logps == "recompute" and (self.trainer.reads_recorded or self.trainer.corrects):
                batch["old_per_token_logps"] = self.trainer.score(self.trainer.model, batch)
                if self.trainer.own_sampler or "sampling_per_token_logps" not in batch:
                    batch["sampling_per_token_logps"] = batch["old_per_token_logps"]
                if self.trainer.corrects:
                    mask = batch["completion_mask"] * batch.get("tool_mask", 1)
                    old, sampling = batch["old_per_token_logps"], batch["sampling_per_token_logps"]
                    batch["importance_sampling_ratio"] = importance_ratio(self.trainer.args, old, sampling, mask)
                    self._log_engine(old, sampling, mask, batch["importance_sampling_ratio"])
            elif self.trainer.off_policy:
                batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
            if self.trainer.beta != 0.0:
                batch["ref_per_token_logps"] = self._reference(batch)

    def _log_engine(self, old: torch.Tensor, sampling: torch.Tensor, mask: torch.Tensor, ratio: torch.Tensor) -> None:
        """TRL's ``sampling/*``, over all processes; a token whose engine log-probability is missing is in neither mean."""
        accelerator, metrics = self.trainer.accelerator, self.trainer._metrics["train"]
        live = mask != 0
        gap = (old - sampling).abs()[live & ~sampling.isnan()]
        weights = ratio[live] if ratio.shape == mask.shape else ratio[live.any(1)].flatten()
        sums = torch.stack([gap.sum(), gap.new_tensor(gap.numel()), weights.sum(), weights.new_tensor(weights.numel())])
        gap_sum, gaps, weight_sum, n = accelerator.reduce(sums, reduction="sum").tolist()
        none = weights.new_tensor([-math.inf])
        extremes = accelerator.gather(torch.stack([torch.cat([x, none]).max() for x in (gap, weights, -weights)])).view(-1, 3)
        if gaps:
            metrics["sampling/sampling_logp_difference/mean"].append(gap_sum / gaps)
            metrics["sampling/sampling_logp_difference/max"].append(float(extremes[:, 0].max()))
        if n:
            metrics["sampling/importance_sampling_ratio/min"].append(-float(extremes[:, 2].max()))
            metrics["sampling/importance_sampling_ratio/mean"].append(weight_sum / n)
            metrics["sampling/importance_sampling_ratio/max"].append(float(extremes[:, 1].max()))

    def _reference(self, batch: dict[str, Any]) -> torch.Tensor:
        if self.trainer.ref_model is not None:
            return self.trainer.score(self.trainer.ref_model, batch)
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return self.trainer.score(self.trainer.model, batch)
