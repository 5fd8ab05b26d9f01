"""GRPO with calibrated rollout budgets and response masks, at true cost."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

import carm_core
from conformal_core import FixedBudget, Outcomes, RolloutPolicy

from .advantages import batch_standardised, combine, group_advantages, per_function_advantages
from .checkpoint import buffer_file, last_whole_checkpoint, read_state, write_state
from .checks import check_arguments
from .config import CGRPOConfig
from .distributed import ragged_gather
from .engines import importance_ratio
from .ledger import Ledger
from .masks import WEIGHING, MaskMonitor, guarded_base, make_rule, mask_weights
from .metrics import log_generation
from .migration import policy_from_config, verifier_success
from .objective import cgrpo_loss
from .rollouts import Rollouts
from .rows import Deal, Group, Response, Row, compact_batch
from .sampling import sample
from .startup import check_processes, check_sampling, warn_if_inert

__all__ = ["CGRPOTrainer"]

#: TRL losses that divide by a count of tokens over the whole generation; the others are means over rows or over a micro-batch.
_TOKEN_COUNT_LOSSES = ("cispo", "dapo", "vespo")
_MAX_D_SCORES = 64


class _Clock(TrainerCallback):
    """Keeps the ledger's clock and stops at ``max_seconds``."""

    def __init__(self, trainer: CGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.ledger.start()

    def on_step_end(self, args, state, control, **kwargs):
        ledger = self.trainer.ledger
        ledger.add(optimizer_steps=1)
        if args.max_seconds is not None:
            late = torch.tensor(float(ledger.elapsed >= args.max_seconds), device=args.device)
            if self.trainer.accelerator.reduce(late, reduction="sum") > 0:  # all ranks stop together
                control.should_training_stop = True

    def on_train_end(self, args, state, control, **kwargs):
        self.trainer.ledger.stop()


class CGRPOTrainer(GRPOTrainer):
    """TRL's ``GRPOTrainer`` with responses drawn in increments until a :class:`~conformal_core.RolloutPolicy` stops.

    Rows that were never generated, and rows of pruned zero-variance groups, do not exist: no reward call, no reference or
    policy forward, no backward, no place in a denominator or a metric.  The loss is TRL's own ``_compute_loss`` on the
    compact batch.  ``trainer.ledger`` counts what was generated, trained and spent, calibration included.

    Parameters
    ----------
    rollout_policy : RolloutPolicy, optional
        Default: the policy that ``args.budget_grid`` describes, else ``FixedBudget(args.num_generations)``.
        ``args.num_generations`` must equal its ``k_max``.
    calibration_dataset : Dataset, optional
        Prompts for the policy's calibration requests, disjoint from ``train_dataset``.
    answer_fn : callable, optional
        ``answer_fn(completion_text) -> hashable or None``: the canonical answer, ``None`` if it cannot be parsed.
    gold_column : str, optional
        Column with the gold answer, comparable with what ``answer_fn`` returns.
    mask_rule : carm_core.Rule, optional
        A rule object in place of ``args.response_mask``.
    answer_extractor, verifier : callable, optional
        trl-cgrpo's names.  ``answer_extractor`` is ``answer_fn`` with answers and gold compared as stripped strings;
        ``verifier(completions=[text], **example)`` decides success in place of ``args.success_threshold``.
    model, reward_funcs, args, train_dataset, ... :
        As in ``GRPOTrainer``; ``args`` is a :class:`CGRPOConfig`.

    Raises
    ------
    ValueError
        For an unknown model path, an empty data set, a calibration set too small or not disjoint, a budget that disagrees
        with ``num_generations``, a group split over processes, and for settings this trainer does not support (named, with the
        reason) - all before a model is loaded.

    Notes
    -----
    Guarantees are those of the policy and of the mask rule; the trainer adds none.  Over several processes every process takes the same
    decisions on all prompts; drawing, verifying and training are shared out evenly.
    """

    def __init__(
        self,
        model,
        reward_funcs,
        args: CGRPOConfig | None = None,
        train_dataset=None,
        *,
        rollout_policy: RolloutPolicy | None = None,
        calibration_dataset=None,
        answer_fn: Callable[[str], Hashable | None] | None = None,
        gold_column: str | None = None,
        mask_rule: carm_core.Rule | None = None,
        answer_extractor: Callable[[str], Any] | None = None,
        verifier: Callable[..., Sequence[bool]] | None = None,
        **kwargs: Any,
    ) -> None:
        args = CGRPOConfig(f"{model if isinstance(model, str) else 'model'}-CGRPO") if args is None else args
        if not isinstance(args, CGRPOConfig):
            raise ValueError(f"args: got {type(args).__name__}; need CGRPOConfig; because budgets and masks are configured there")
        if answer_extractor is not None:
            if answer_fn is not None:
                raise ValueError("answer_extractor: got one beside answer_fn; need one of the two; because they are the same")
            answer_fn, gold_column = _stripped(answer_extractor), gold_column or args.calibration_answer_column
        if rollout_policy is not None and args.budget_grid is not None:
            raise ValueError(
                f"rollout_policy: got {rollout_policy!r} beside budget_grid; need one of the two; because both say how many to draw"
            )
        policy = rollout_policy or policy_from_config(args, calibration_dataset) or FixedBudget(args.num_generations)
        if (answer_extractor is not None or verifier is not None) and rollout_policy is None and args.budget_grid is None:
            name = "verifier" if answer_extractor is None else "answer_extractor"
            raise ValueError(
                f"{name}: got one without budget_grid; need the grid, e.g. [2, 4, 8, 16, 32]; because nothing would stop early"
            )
        if args.budget_grid is not None and policy.needs_answers and gold_column is None:
            gold_column = args.calibration_answer_column
        check_arguments(model, args, train_dataset, calibration_dataset, policy, answer_fn, gold_column, kwargs)
        if mask_rule is not None and args.response_mask != "none":
            raise ValueError(f"mask_rule: got {mask_rule!r} beside response_mask={args.response_mask!r}; need one of the two")
        if mask_rule is not None:
            args.off_policy_mask_threshold = 0.0  # TRL calls its mask hook iff this field is set
        self.rollout_policy = policy
        self.calibration_dataset = calibration_dataset
        self.answer_fn, self.gold_column = answer_fn, gold_column
        self._gold_as_text = answer_extractor is not None
        self._verifier = None if verifier is None else verifier_success(verifier)
        self.ledger = Ledger()
        self.mask_rule = mask_rule or make_rule(args.response_mask, args.response_mask_threshold, args.response_mask_conditioning)
        self.own_sampler = not (args.use_vllm or args.use_transformers_continuous_batching or kwargs.get("rollout_func") is not None)
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        passes = args.steps_per_generation * self.num_iterations
        #: Whether rollouts train after an optimizer step that moved the policy they were drawn from.
        self.off_policy = args.gradient_accumulation_steps % passes != 0
        #: Whether a loss term reads the log-probabilities that were recorded while sampling.
        self.reads_recorded = self.mask_rule is not None or self.off_policy
        self._corrects = self.use_vllm and self.vllm_importance_sampling_correction
        self.rollouts = Rollouts(self)
        self._monitor = None if self.mask_rule is None else MaskMonitor(self.accelerator, self.mask_rule, args.mask_warn_after)
        self._micro: dict[str, Any] = {}
        self.add_callback(_Clock(self))
        check_processes(self)
        check_sampling(self)
        warn_if_inert(self)

    # ------------------------------------------------------------------ responses

    def totals(self, per_function: torch.Tensor) -> torch.Tensor:
        """Weighted total of the reward functions (last axis); NaN where none applied."""
        return combine(per_function, self.reward_weights.to(per_function.device))

    def success(self, example: dict[str, Any], response: Response) -> bool:
        """Whether a response passes."""
        return self._verifier(example, response.text) if self._verifier is not None else response.total > self.args.success_threshold

    def has_ended(self, response: Response) -> bool:
        """Whether a response ended by itself."""
        return len(response.ids) > 0 and int(response.ids[-1]) in (*self.eos_token_ids, self._tokenizer.pad_token_id)

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        """While training: one response per entry of ``prompt_ids``, with log-probabilities where this trainer samples."""
        if not self.model.training:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        if self.use_vllm or self.use_transformers_continuous_batching:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, 1, has_tool_images)
        return sample(self, prompt_ids)

    def _calibrate(self) -> None:
        request = self.rollout_policy.calibration(self.state.global_step)
        if request is None:
            return
        if self.calibration_dataset is None or len(self.calibration_dataset) < request.n:
            have = 0 if self.calibration_dataset is None else len(self.calibration_dataset)
            raise ValueError(f"calibration_dataset: got {have} prompts; need {request.n}; because {self.rollout_policy!r} asks for them")
        step = self.state.global_step
        with self.ledger.phase("calibrate", absorb=True):
            # Drawn without replacement, keyed by (seed, step): no order of the data set matters, and calibrations share few prompts if
            # it is large.
            chosen = np.random.default_rng([self.args.seed, step]).permutation(len(self.calibration_dataset))
            examples = [self._example(self.calibration_dataset[int(i)]) for i in chosen[: request.n]]
            shown = self.args.calibration_progress and self.accelerator.is_main_process
            with tqdm(
                total=request.n * request.rollout.k_max, desc=f"calibration at step {step}", unit="response", leave=False, disable=not shown
            ) as bar:
                groups, outcomes = self.rollouts.roll_out(examples, request.rollout, step, self.args.calibration_batch_size, bar)
            self.rollout_policy.calibrate(outcomes)
            self._pending_metrics.clear()  # what reward functions logged about calibration is not about training
        self.ledger.add(calibration=int(outcomes.drawn.sum()), calibration_tokens=sum(r.tokens for g in groups for r in g.responses))

    def _example(self, example: dict[str, Any]) -> dict[str, Any]:
        example = dict(example)
        if self._gold_as_text and example.get(self.gold_column) is not None:
            example[self.gold_column] = str(example[self.gold_column]).strip()
        return example

    # ------------------------------------------------------------------ one generation step

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._generation_step(generation_batch)
        return self._buffered_inputs[self._step % parts]

    def _generation_step(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Calibrate if it is due, roll out the prompts of all processes, and return this process's micro-batches."""
        policy, step = self.rollout_policy, self.state.global_step
        record = self.ledger.open(step)
        self._calibrate()
        examples = gather_object([self._example(e) for e in inputs[:: self.num_generations]])
        groups, outcomes = self.rollouts.roll_out(examples, policy, step, self.args.rollout_batch_size)
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
        self.ledger.add(
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
        log_generation(self, groups, advantages, varies)
        return self._deal(rows, int(kept.sum()))

    def _advantages(self, groups: Sequence[Group], outcomes: Outcomes, kept: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """(prompts, width) advantages and which groups vary: the policy's own, the paper's, or TRL's."""
        per_function = torch.full((*kept.shape, len(self.reward_func_names)), torch.nan)
        rewards = torch.full(kept.shape, torch.nan)
        for i, group in enumerate(groups):
            for j, response in enumerate(group.responses):
                if kept[i, j]:
                    per_function[i, j], rewards[i, j] = torch.tensor(response.rewards), response.total
        own = self.rollout_policy.advantages(outcomes)
        if own is not None:
            if np.shape(own) != outcomes.passes.shape or not np.isfinite(np.asarray(own)[kept]).all():
                raise ValueError(
                    f"advantages: got shape {np.shape(own)} from {self.rollout_policy!r}; need finite numbers of shape "
                    f"{outcomes.passes.shape}; because they weigh responses"
                )
            advantages = torch.where(torch.from_numpy(kept), torch.as_tensor(own, dtype=torch.float32), 0.0)
            return advantages, (advantages != 0).any(1)
        if self.args.objective == "cgrpo":
            return batch_standardised(rewards)
        if self.multi_objective_aggregation == "normalize_then_sum":
            return per_function_advantages(per_function, self.reward_weights)
        return group_advantages(rewards, self.scale_rewards)

    def _rows_that_train(self, groups: Sequence[Group], kept: np.ndarray, advantages: torch.Tensor, varies: torch.Tensor) -> list[Row]:
        prune = self.args.prune == "zero_variance" and not (self.args.kl_on_pruned and self.beta > 0)
        rows, missing = [], 0
        for i, group in enumerate(groups):
            for j, response in enumerate(group.responses):
                if not kept[i, j] or math.isnan(response.total) or response.tokens == 0 or (prune and not varies[i]):
                    continue
                if self.mask_truncated_completions and not self.has_ended(response):
                    continue
                if self.reads_recorded and self.args.old_logps == "rollout":
                    if response.logps is None:
                        raise ValueError(
                            'rollout_func: got no logprobs; need them, or old_logps="recompute"; because the loss compares with them'
                        )
                    if self.mask_rule is None and not np.isfinite(response.logps).all():
                        missing += 1
                        continue
                rows.append(Row(response, float(advantages[i, j])))
        if missing:
            warnings.warn(f"{missing} responses have log-probabilities that the engine could not give; they do not train", stacklevel=2)
        return rows

    def _deal(self, rows: Sequence[Row], kept: int) -> list[dict[str, Any]]:
        """This process's micro-batches.  A keyed shuffle and an even deal, the same on every process."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        parts, accumulation = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        deal = Deal(len(rows), parts, world, accumulation if parts % accumulation == 0 else parts)
        order = np.random.default_rng([self.args.seed, self.state.global_step, 1]).permutation(len(rows))
        tokens = torch.tensor(sum(row.response.tokens for row in rows), device=self.accelerator.device)
        out = []
        for part in range(parts):
            mine = [rows[i] for i in order[deal.hand(part, rank)]]
            # Every process runs a forward iff one process of the window has rows: no collective is ever skipped by one of them.
            filler = not mine and world > 1 and deal.rows_of_window(part) > 0
            batch = compact_batch(
                mine or ([self._filler(rows[0])] if filler else []), self._tokenizer.pad_token_id, self.accelerator.device
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
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            if self.args.old_logps == "recompute" and (self.reads_recorded or self._corrects):
                batch["old_per_token_logps"] = self._score(self.model, batch)
                if self.own_sampler or "sampling_per_token_logps" not in batch:
                    batch["sampling_per_token_logps"] = batch["old_per_token_logps"]
                if self._corrects:
                    mask = batch["completion_mask"] * batch.get("tool_mask", 1)
                    old, sampling = batch["old_per_token_logps"], batch["sampling_per_token_logps"]
                    batch["importance_sampling_ratio"] = importance_ratio(self.args, old, sampling, mask)
                    self._log_engine_gap(old, sampling, mask)
            elif self.off_policy:
                batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
            if self.beta != 0.0:
                batch["ref_per_token_logps"] = self._reference(batch)

    def _log_engine_gap(self, old: torch.Tensor, sampling: torch.Tensor, mask: torch.Tensor) -> None:
        gap = torch.where((mask != 0) & ~sampling.isnan(), (old - sampling).abs(), 0.0)
        count = ((mask != 0) & ~sampling.isnan()).sum()
        total, n = self.accelerator.reduce(torch.stack([gap.sum(), count.float()]), reduction="sum").tolist()
        self._metrics["train"]["sampling/sampling_logp_difference/mean"].append(total / max(n, 1))
        self._metrics["train"]["sampling/sampling_logp_difference/max"].append(float(self.accelerator.gather(gap.max()).max()))

    def _reference(self, batch: dict[str, Any]) -> torch.Tensor:
        if self.ref_model is not None:
            return self._score(self.ref_model, batch)
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return self._score(self.model, batch)

    def _score(self, model, batch: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            return self._logps(model, batch)

    def _logps(self, model, batch: dict[str, Any]) -> torch.Tensor:
        return self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
            batch["completion_ids"].size(1),
        )[0]

    # ------------------------------------------------------------------ optimisation

    def training_step(self, model, inputs, num_items_in_batch):
        with self.ledger.phase("train"):
            return super().training_step(model, inputs, num_items_in_batch)

    def _compute_loss(self, model, inputs):
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        if inputs["advantages"].size(0) == 0:  # no forward, and no parameter gets a gradient that an optimizer would act on
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        self.ledger.add(forward_rows=inputs["part_rows"])
        weight, inputs = inputs["row_weight"], dict(inputs)
        self._micro = inputs
        if self.args.objective == "cgrpo":
            return self._paper_loss(model, inputs)
        if self.mask_rule is not None and "old_per_token_logps" in inputs:
            inputs["old_per_token_logps"] = inputs["old_per_token_logps"].clone()
        if self.loss_type in _TOKEN_COUNT_LOSSES:
            inputs["num_items_in_batch"] = inputs["num_items_in_batch"] * weight
        with ragged_gather(self.accelerator):
            return super()._compute_loss(model, inputs) * weight

    def _paper_loss(self, model, inputs: dict[str, Any]) -> torch.Tensor:
        """Eq. 10-11 over one optimizer step, which is ``share`` of the generation."""
        logps = self._logps(model, inputs)
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        weights = None if self.mask_rule is None else self._mask_factor(logps, mask, inputs["advantages"])
        share = self.args.gradient_accumulation_steps / self.args.steps_per_generation
        loss = cgrpo_loss(
            logps,
            inputs["advantages"],
            mask,
            responses=inputs["kept_rows"] * share,
            tokens=int(inputs["num_items_in_batch"]) * share,
            weights=weights,
            ref_logps=inputs.get("ref_per_token_logps"),
            beta=self.beta,
        )
        return loss * self.accelerator.num_processes

    def get_off_policy_mask(self, advantages, per_token_logps, sampling_per_token_logps, mask, off_policy_threshold):
        """``(B, T)`` factor of the configured rule on ``z = log pi_theta - log pi_rollout``; TRL's own rule if none is configured."""
        if self.mask_rule is None:
            return GRPOTrainer.get_off_policy_mask(advantages, per_token_logps, sampling_per_token_logps, mask, off_policy_threshold)
        if not self.model.training:
            return torch.ones_like(per_token_logps)
        return self._mask_factor(per_token_logps, mask, advantages)

    def _mask_factor(self, per_token_logps: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        current, sampling, old = per_token_logps.detach(), self._micro["sampling_per_token_logps"], self._micro.get("old_per_token_logps")
        if self.args.nonfinite_logps == "drop_token":
            mask = mask * torch.isfinite(sampling)
        policy = "raise" if self.args.nonfinite_logps == "raise" else "reject"
        z = carm_core.log_ratio(current, sampling, mask, nonfinite=policy).z
        weigh_by = None
        if self.args.response_mask in WEIGHING:
            weigh_by = carm_core.log_ratio(old, sampling, mask, nonfinite=policy).z
        keep, factor = mask_weights(self.mask_rule, z, mask, advantages, weigh_by)
        if old is not None and self.args.objective == "trl":
            # TRL forms exp(log pi_theta - log pi_old) of every row, then multiplies by this factor: what overflows there would be NaN here.
            base, moved = guarded_base(old, current, mask)
            old.copy_(torch.where(moved & ~keep[:, None], current, base))  # so that no KL term is corrected by such a ratio either
            factor = torch.where(moved, 0.0, factor)
        if self.args.response_mask_normalize == "retained":
            factor = factor * self._retained(factor, mask)
        self._observe(z, mask, keep, factor == 0)
        return factor.to(per_token_logps.dtype)

    def _retained(self, factor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What turns the loss's fixed denominator into the count of what was kept, over all ranks."""
        tokens = ((factor != 0) & (mask != 0)).sum().float()
        if self.loss_type == "bnpo":
            return (mask != 0).sum() / tokens.clamp(min=1.0)
        kept = self.accelerator.reduce(torch.stack([((factor != 0) & (mask != 0)).any(1).sum().float(), tokens]), reduction="sum")
        if self.loss_type in _TOKEN_COUNT_LOSSES:
            window = self._micro["num_items_in_batch"] / max(self._micro["row_weight"], 1e-12) / self.args.steps_per_generation
            return window / kept[1].clamp(min=1.0)
        return self._micro["window_rows"] / kept[0].clamp(min=1.0)

    def _observe(self, z: torch.Tensor, mask: torch.Tensor, keep: torch.Tensor, dropped: torch.Tensor) -> None:
        metrics, d, counted, rejected = self._monitor.observe(z, mask, keep, self._micro["passed"], dropped)
        record = self.ledger.current
        record["masked"] += rejected
        record["masked_of"] += counted
        share = max(1, _MAX_D_SCORES // (self.args.steps_per_generation * self.num_iterations))  # of every pass alike
        record["d_scores"].extend(d[:share].tolist())
        band = (1 - self.epsilon_low, 1 + self.epsilon_high)
        if 0 < band[0] < 1 < band[1]:
            metrics["mask/certificate"] = self.mask_rule.certificate(band).p_out
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)

    # ------------------------------------------------------------------ checkpoints

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """As ``GRPOTrainer.train``; ``resume_from_checkpoint=True`` takes the newest checkpoint that was written to its end."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_whole_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(
                    f"resume_from_checkpoint: got True; need a whole checkpoint in {self.args.output_dir}; because none is there"
                )
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_checkpoint(self, model, trial):
        limit, self.args.save_total_limit = self.args.save_total_limit, None  # older ones go when this one is whole
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        run = self._get_output_dir(trial=trial)
        folder = os.path.join(run, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        torch.save(self._buffered_inputs, os.path.join(folder, buffer_file(self.accelerator.process_index)))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            state = {"policy": self.rollout_policy.state_dict(), "ledger": self.ledger.state_dict(), "micro_step": self._step}
            state["monitor"] = None if self._monitor is None else self._monitor.state_dict()
            state["processes"] = self.accelerator.num_processes
            write_state(folder, state)
            rotate_checkpoints(run, limit, self.state.best_model_checkpoint, use_mtime=True)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = read_state(checkpoint)
        if state["processes"] != self.accelerator.num_processes:
            raise ValueError(
                f"resume_from_checkpoint: got {checkpoint} of {state['processes']} processes; need as many as now "
                f"({self.accelerator.num_processes}); because each holds its own buffered rollouts and random state"
            )
        self.rollout_policy.load_state_dict(state["policy"])
        self.ledger.load_state_dict(state["ledger"])
        if self._monitor is not None and state["monitor"] is not None:
            self._monitor.load_state_dict(state["monitor"])
        self._step = state["micro_step"]
        device = self.accelerator.device
        self._buffered_inputs = torch.load(
            os.path.join(checkpoint, buffer_file(self.accelerator.process_index)), weights_only=True, map_location=device
        )


def _stripped(extract: Callable[[str], Any]) -> Callable[[str], str | None]:
    def answer(text: str) -> str | None:
        found = extract(text)
        return None if found is None or not str(found).strip() else str(found).strip()

    return answer
