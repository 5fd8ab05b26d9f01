"""GRPO with calibrated rollout budgets and response masks, at true cost."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.data_utils import is_conversational

import carm_core
from conformal_core import NOT_DRAWN, FixedBudget, Outcomes, RolloutPolicy, encode_answers, prompt_ids

from .checks import LOGIT_EDITS, check_arguments, checked_counts, prompt_text
from .config import CGRPOConfig
from .ledger import Ledger
from .rows import ROW_MEAN_LOSSES, compact_batch, group_advantages, split_rows
from .sampling import sample

__all__ = ["CGRPOTrainer"]

_STATE_FILE = "rollout_policy.json"
_BUFFER_FILE = "rollout_buffer.pt"
_MAX_D_SCORES = 64


@dataclass
class _Group:
    """The responses of one prompt, in the order they were drawn."""

    example: dict[str, Any]
    prompt: list[int]
    ids: list[list[int]] = field(default_factory=list)
    logps: list[list[float]] = field(default_factory=list)
    answers: list[Hashable | None] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    per_function: list[list[float]] = field(default_factory=list)
    texts: list[Any] = field(default_factory=list)
    extra: list[dict[str, Any]] = field(default_factory=list)


class _Clock(TrainerCallback):
    """Keeps the ledger's clock and stops at ``max_seconds``."""

    def __init__(self, trainer: CGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.ledger.start()

    def on_step_end(self, args, state, control, **kwargs):
        ledger = self.trainer.ledger
        ledger.add(optimizer_steps=1)
        if args.max_seconds is not None and ledger.elapsed >= args.max_seconds:
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
        Default ``FixedBudget(args.num_generations)``.  ``args.num_generations`` must equal its ``k_max``.
    calibration_dataset : Dataset, optional
        Prompts for the policy's calibration requests, disjoint from ``train_dataset``.
    answer_fn : callable, optional
        ``answer_fn(completion_text) -> hashable or None``: the canonical answer, ``None`` if it cannot be parsed.
    gold_column : str, optional
        Column with the gold answer, comparable with what ``answer_fn`` returns.
    model, reward_funcs, args, train_dataset, ... :
        As in ``GRPOTrainer``; ``args`` is a :class:`CGRPOConfig`.

    Raises
    ------
    ValueError
        For an unknown model path, an empty data set, a calibration set too small or not disjoint, a budget that disagrees
        with ``num_generations``, and for settings this trainer does not support (named, with the reason) - all before a
        model is loaded.

    Notes
    -----
    Guarantees are those of the policy and of the mask rule; the trainer adds none.  The mask's denominator is *fixed* (TRL's):
    rejected rows contribute 0 and stay in the count.
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
        **kwargs: Any,
    ) -> None:
        args = CGRPOConfig(f"{model if isinstance(model, str) else 'model'}-CGRPO") if args is None else args
        if not isinstance(args, CGRPOConfig):
            raise ValueError(f"args: got {type(args).__name__}; need CGRPOConfig; because budgets and masks are configured there")
        policy = FixedBudget(args.num_generations) if rollout_policy is None else rollout_policy
        check_arguments(model, args, train_dataset, calibration_dataset, policy, answer_fn, gold_column, kwargs)
        self.rollout_policy = policy
        self.calibration_dataset = calibration_dataset
        self.answer_fn, self.gold_column = answer_fn, gold_column
        self.ledger = Ledger()
        rules = {"carm": carm_core.CARM, "geomean": carm_core.GeoMean}
        self.mask_rule = rules[args.response_mask](args.response_mask_threshold) if args.response_mask != "none" else None
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        if self.accelerator.num_processes > 1:
            raise ValueError(
                f"num_processes: got {self.accelerator.num_processes}; need 1; because budgets are not yet synchronised over ranks"
            )
        passes = args.steps_per_generation * self.num_iterations
        self._off_policy = args.gradient_accumulation_steps % passes != 0
        self.add_callback(_Clock(self))
        self._check_sampling()
        self._warn_if_inert()

    def _check_sampling(self) -> None:
        """Refuse sampling that the recorded log-probabilities do not describe."""
        asked: dict[str, Any] = {}  # as `generate` reads them: what is unset comes from the model's own generation config
        for source in (self.model.generation_config.to_dict(), self.generation_config.to_dict(), self.args.generation_kwargs or {}):
            asked |= {name: value for name, value in source.items() if value is not None}
        several = [name for name in ("num_beams", "num_return_sequences") if (asked.get(name) or 1) > 1]
        if several:
            raise ValueError(f"{several[0]}: got {asked[several[0]]}; need 1; because a rollout is one sampled response per row")
        edits = [name for name, neutral in LOGIT_EDITS.items() if asked.get(name) not in (None, neutral)]
        if edits and (self.mask_rule is not None or self._off_policy) and self.args.old_logps == "rollout":
            raise ValueError(
                f'old_logps: got "rollout" beside {edits[0]}={asked[edits[0]]!r}; need "recompute"; because that setting edits logits '
                "while sampling, so recorded log-probabilities are not the policy's"
            )

    def _warn_if_inert(self) -> None:
        steps, accumulation = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        if steps % accumulation:
            warnings.warn(
                f"steps_per_generation: got {steps} with gradient_accumulation_steps={accumulation}; an accumulation window then spans "
                "generations, which weigh alike however many of their rows were pruned",
                stacklevel=3,
            )
        if self.args.kl_on_pruned and self.beta == 0:
            warnings.warn("kl_on_pruned: has no effect with beta=0; there is no KL term", stacklevel=3)
        if self.calibration_dataset is not None and self.rollout_policy.calibration(0) is None:
            warnings.warn(f"calibration_dataset: is not used; {self.rollout_policy!r} asks for no calibration", stacklevel=3)
        if self.gold_column is not None and self.answer_fn is None:
            warnings.warn("gold_column: is not used without answer_fn", stacklevel=3)
        if self.mask_rule is None:
            return
        dropout = any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in self.model.modules())
        if dropout or (getattr(self.model.config, "attention_dropout", 0.0) or 0.0) > 0:
            warnings.warn("dropout: the trained policy is not the one that sampled; the mask counts its noise as drift", stacklevel=3)
        truncated = [n for n, off in (("top_p", 1.0), ("top_k", 0), ("min_p", None)) if getattr(self.args, n) not in (off, None)]
        if truncated:
            warnings.warn(
                f"{', '.join(truncated)}: truncated sampling draws from another law than the one the mask compares with; every "
                "log-ratio understates the drift by the truncated mass",
                stacklevel=3,
            )
        if not self._off_policy:
            warnings.warn(
                "response_mask: every rollout trains once, before the first optimizer step after it was drawn, so log-ratios are "
                "numerical noise and the mask rejects nothing; raise num_iterations or steps_per_generation",
                stacklevel=3,
            )

    # ------------------------------------------------------------------ rollouts

    def _roll_out(
        self, examples: Sequence[dict[str, Any]], policy: RolloutPolicy, batch_size: int, bar=None
    ) -> tuple[list[_Group], Outcomes]:
        """Draw responses for every example until ``policy`` stops each of them."""
        step = self.state.global_step
        tokenized, _, _ = self._tokenize_prompts([e["prompt"] for e in examples])
        groups = [_Group(e, ids) for e, ids in zip(examples, tokenized, strict=True)]
        ids = prompt_ids([prompt_text(e["prompt"]) for e in examples])
        live = np.arange(len(groups))
        counts = checked_counts(policy, policy.first(ids, step), np.zeros(len(groups), np.int64))
        while counts.any():
            self._draw([groups[i] for i in np.repeat(live, counts)], batch_size, bar)
            live = live[counts > 0]
            outcomes = self._outcomes([groups[i] for i in live], ids[live], step)
            counts = checked_counts(policy, policy.more(outcomes), outcomes.drawn)
        return groups, self._outcomes(groups, ids, step)

    def _draw(self, rows: list[_Group], batch_size: int, bar=None) -> None:
        """One more response for every entry of ``rows`` (a group may occur several times), verified once."""
        for start in range(0, len(rows), batch_size):
            chunk = rows[start : start + batch_size]
            with self.ledger.phase("generate"):
                ids, logps = sample(self, [g.prompt for g in chunk])
                texts = self.processing_class.batch_decode(ids, skip_special_tokens=True)
                chat = is_conversational({"prompt": chunk[0].example["prompt"]})
                completions = [[{"role": "assistant", "content": t}] for t in texts] if chat else texts
            with self.ledger.phase("reward"):
                prompts = [g.example["prompt"] for g in chunk]
                scores = self._calculate_rewards([g.example for g in chunk], prompts, completions, ids)
                if scores.isinf().any():
                    name = self.reward_func_names[int(scores.isinf().any(0).int().argmax())]
                    raise ValueError(f"reward: got an infinite value from {name}; need finite numbers or None; because they are averaged")
                totals = (scores * self.reward_weights.to(scores.device)).nansum(1)
                totals[scores.isnan().all(1)] = torch.nan
                answers = [None if self.answer_fn is None else self.answer_fn(t) for t in texts]
            self.ledger.add(reward_calls=len(chunk))
            extra = {column: list(values) for column, values in self._pending_extra_logs.items()}
            self._pending_extra_logs.clear()
            for column, values in extra.items():
                if len(values) != len(chunk):
                    raise ValueError(
                        f"log_extra: got {len(values)} values of {column!r}; need {len(chunk)}; because there is one per completion"
                    )
            for row, (group, completion) in enumerate(zip(chunk, completions, strict=True)):
                group.ids.append(ids[row])
                group.logps.append(logps[row])
                group.answers.append(answers[row])
                group.texts.append(completion)
                group.extra.append({column: values[row] for column, values in extra.items()})
            for group, total, per_function in zip(chunk, totals.tolist(), scores.tolist(), strict=True):
                group.rewards.append(total)
                group.per_function.append(per_function)
            if bar is not None:
                bar.update(len(chunk))

    def _outcomes(self, groups: Sequence[_Group], ids: np.ndarray, step: int) -> Outcomes:
        drawn = np.array([len(g.ids) for g in groups], np.int64)
        passes = np.zeros((len(groups), max(int(drawn.max(initial=0)), 1)), bool)
        for i, group in enumerate(groups):
            passes[i, : drawn[i]] = np.array(group.rewards) > self.args.success_threshold
        codes = gold = None
        if self.answer_fn is not None:
            golds = None if self.gold_column is None else [g.example[self.gold_column] for g in groups]
            codes, gold = encode_answers([g.answers for g in groups], golds)
            codes = np.pad(codes, ((0, 0), (0, passes.shape[1] - codes.shape[1])), constant_values=NOT_DRAWN)
        return Outcomes(ids, passes, drawn, codes, gold, step)

    def _calibrate(self) -> None:
        request = self.rollout_policy.calibration(self.state.global_step)
        if request is None:
            return
        if self.calibration_dataset is None or len(self.calibration_dataset) < request.n:
            have = 0 if self.calibration_dataset is None else len(self.calibration_dataset)
            raise ValueError(f"calibration_dataset: got {have} prompts; need {request.n}; because {self.rollout_policy!r} asks for them")
        with self.ledger.phase("calibrate", absorb=True):
            # Drawn without replacement, keyed by (seed, step): no order of the data set matters, and calibrations share few prompts if
            # it is large.
            chosen = np.random.default_rng([self.args.seed, self.state.global_step]).permutation(len(self.calibration_dataset))
            examples = [dict(self.calibration_dataset[int(i)]) for i in chosen[: request.n]]
            with tqdm(
                total=request.n * request.rollout.k_max,
                desc=f"calibration at step {self.state.global_step}",
                unit="response",
                leave=False,
                disable=not self.args.calibration_progress,
            ) as bar:
                groups, outcomes = self._roll_out(examples, request.rollout, self.args.calibration_batch_size, bar)
            self.rollout_policy.calibrate(outcomes)
            self._pending_metrics.clear()  # what reward functions logged about calibration is not about training
        self.ledger.add(calibration=int(outcomes.drawn.sum()), calibration_tokens=sum(len(ids) for g in groups for ids in g.ids))

    # ------------------------------------------------------------------ one generation step

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        self.ledger.open(self.state.global_step)
        self._calibrate()
        groups, outcomes = self._roll_out(inputs[:: self.num_generations], self.rollout_policy, self.args.rollout_batch_size)
        policy = self.rollout_policy
        kept = np.asarray(policy.keep(outcomes))
        if kept.shape != outcomes.passes.shape or kept.dtype != bool:
            raise ValueError(
                f"keep: got {kept.dtype} of shape {kept.shape} from {policy!r}; need bool of shape {outcomes.passes.shape}; "
                "because each response is kept or not"
            )
        kept = kept & outcomes.live  # a copy: the array is the policy's
        record = self.ledger.current
        record["audit"] = {event: list(count) for event, count in policy.audit(outcomes).items()}
        own = policy.advantages(outcomes)
        policy.update(outcomes)
        record["policy"] = {name: float(value) for name, value in policy.metrics().items()}

        rewards = torch.full(outcomes.passes.shape, torch.nan)
        for i, group in enumerate(groups):
            rewards[i, : len(group.rewards)] = torch.tensor(group.rewards)
        rewards[~torch.from_numpy(kept)] = torch.nan
        advantages, varies = group_advantages(rewards, self.scale_rewards)
        if own is not None:
            if np.shape(own) != outcomes.passes.shape or not np.isfinite(np.asarray(own)[kept]).all():
                raise ValueError(
                    f"advantages: got shape {np.shape(own)} from {policy!r}; need finite numbers of shape {outcomes.passes.shape}; "
                    "because they weigh responses"
                )
            advantages = torch.as_tensor(own, dtype=torch.float32)
            varies = (torch.where(torch.from_numpy(kept), advantages, 0.0) != 0).any(1)
        train = ~rewards.isnan()
        if self.args.prune == "zero_variance" and not (self.args.kl_on_pruned and self.beta > 0):
            train &= varies[:, None]
        if self.mask_truncated_completions:
            train &= torch.tensor([[j < len(g.ids) and g.ids[j][-1] in self.eos_token_ids for j in range(train.size(1))] for g in groups])
        cells = train.nonzero().tolist()
        batch = compact_batch(
            [groups[i].prompt for i, _ in cells],
            [groups[i].ids[j] for i, j in cells],
            [groups[i].logps[j] for i, j in cells],
            [float(advantages[i, j]) for i, j in cells],
            self._tokenizer.pad_token_id,
            self.accelerator.device,
        )
        self._add_logps(batch)
        lengths = [len(ids) for g in groups for ids in g.ids]
        self.ledger.add(
            prompts=len(groups),
            generated=int(outcomes.drawn.sum()),
            generated_tokens=sum(lengths),
            kept=int(kept.sum()),
            trained=len(cells),
            trained_tokens=int(batch["num_items_in_batch"]),
            groups=len(groups),
            groups_with_variance=int(varies.sum()),
        )
        record["drawn"] = outcomes.drawn.tolist()
        record["mean_k"] = float(outcomes.drawn.mean())
        record["reward_mean"] = float(np.nanmean([r for g in groups for r in g.rewards])) if lengths else math.nan
        self._log_generation(groups, lengths, varies, advantages)
        return batch

    def _add_logps(self, batch: dict[str, Any]) -> None:
        """Denominator of the ratio and, with ``beta > 0``, reference log-probabilities: of the trained rows only."""
        rows = batch["advantages"].size(0)
        if self.args.old_logps == "recompute" and rows and (self._off_policy or self.mask_rule is not None):
            batch["sampling_per_token_logps"] = self._score(self.model, batch)
        if self._off_policy:
            batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
        if self.beta != 0.0 and rows:
            if self.ref_model is not None:
                batch["ref_per_token_logps"] = self._score(self.ref_model, batch)
            else:
                from trl.trainer.utils import use_adapter

                model = self.accelerator.unwrap_model(self.model)
                with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
                    batch["ref_per_token_logps"] = self._score(self.model, batch)

    def _score(self, model, batch: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            return self._get_per_token_logps_and_entropies(
                model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
                batch["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
            )[0]

    def _log_generation(self, groups, lengths, varies, advantages) -> None:
        """TRL's metrics, over the rows that were generated."""
        metrics, record = self._metrics["train"], self.ledger.current
        flat = [total for g in groups for total in g.rewards]
        self.state.num_input_tokens_seen += sum(lengths) + sum(len(g.prompt) * len(g.ids) for g in groups)
        metrics["num_tokens"] = [self.state.num_input_tokens_seen]
        ended = [n for g in groups for ids, n in zip(g.ids, map(len, g.ids), strict=True) if ids[-1] in self.eos_token_ids]
        for name, values in (("", lengths), ("_terminated", ended or [0])):
            metrics[f"completions/mean{name}_length"].append(float(np.mean(values or [0])))
            metrics[f"completions/min{name}_length"].append(float(min(values, default=0)))
            metrics[f"completions/max{name}_length"].append(float(max(values, default=0)))
        metrics["completions/clipped_ratio"].append(1 - len(ended) / max(len(lengths), 1))
        per_function = torch.tensor([row for g in groups for row in g.per_function])
        for i, name in enumerate(self.reward_func_names):
            column = per_function[:, i] if len(per_function) else per_function
            metrics[f"rewards/{name}/mean"].append(float(column.nanmean()))
            metrics[f"rewards/{name}/std"].append(float(column[~column.isnan()].std()) if column.numel() > 1 else 0.0)
        metrics["reward"].append(record["reward_mean"])
        metrics["reward_std"].append(float(np.nanstd(flat, ddof=1)) if len(flat) > 1 else 0.0)
        metrics["frac_reward_zero_std"].append(float((~varies).float().mean()))
        for name in ("generated", "kept", "trained", "calibration", "generated_tokens", "calibration_tokens"):
            metrics[f"rollouts/{name}"].append(float(record[name]))
        metrics["rollouts/mean_k"].append(record["mean_k"])
        total = record["generated"] + record["calibration"]
        metrics["rollouts/savings"].append(1 - total / (len(groups) * self.num_generations))
        for name, value in record["policy"].items():
            if math.isfinite(value):
                metrics[f"policy/{name}"].append(value)
        for i, group in enumerate(groups):
            self._logs["prompt"].extend([group.example["prompt"]] * len(group.ids))
            self._logs["completion"].extend(group.texts)
            self._logs["advantages"].extend(advantages[i, : len(group.ids)].tolist())
        for i, name in enumerate(self.reward_func_names):
            self._logs["rewards"][name].extend(per_function[:, i].tolist() if len(per_function) else [])
        for column in sorted({column for g in groups for row in g.extra for column in row}):
            self._logs["extra"][column].extend(row.get(column) for g in groups for row in g.extra)
        for name, values in self._pending_metrics.items():
            metrics[name].append(sum(values) / len(values))
        self._pending_metrics.clear()

    # ------------------------------------------------------------------ optimisation

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            accumulation = self.args.gradient_accumulation_steps
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_rows(batch, parts, accumulation if parts % accumulation == 0 else parts)
        return self._buffered_inputs[self._step % parts]

    def training_step(self, model, inputs, num_items_in_batch):
        with self.ledger.phase("train"):
            return super().training_step(model, inputs, num_items_in_batch)

    def _compute_loss(self, model, inputs):
        rows = inputs["advantages"].size(0)
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        if rows == 0:  # nothing to learn from: no forward, and no parameter gets a gradient that an optimizer would act on
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        self.ledger.add(forward_rows=rows)
        loss = super()._compute_loss(model, inputs)
        return loss * inputs["row_weight"] if self.loss_type in ROW_MEAN_LOSSES else loss

    def get_off_policy_mask(self, advantages, per_token_logps, sampling_per_token_logps, mask, off_policy_threshold):
        """``(B, 1)`` mask of the configured rule on ``z = log pi_theta - log pi_rollout``; TRL's own rule if none is configured."""
        if self.mask_rule is None:
            return GRPOTrainer.get_off_policy_mask(advantages, per_token_logps, sampling_per_token_logps, mask, off_policy_threshold)
        z = carm_core.log_ratio(per_token_logps.detach(), sampling_per_token_logps, mask).z
        keep = self.mask_rule.keep(z, mask, advantages=advantages)
        if self.model.training:
            record = self.ledger.current
            record["masked"] += int((~keep).sum())
            record["masked_of"] += keep.numel()
            share = max(1, _MAX_D_SCORES // (self.args.steps_per_generation * self.num_iterations))  # of every pass alike
            record["d_scores"].extend(carm_core.carm_score(z, mask)[:share].tolist())
            self._metrics["train"]["mask/seq_masked_fraction"].append(float((~keep).float().mean()))
        return keep[:, None].to(mask.dtype)

    # ------------------------------------------------------------------ checkpoints

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = os.path.join(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        with open(os.path.join(folder, _STATE_FILE), "w", encoding="utf-8") as file:
            json.dump({"policy": self.rollout_policy.state_dict(), "ledger": self.ledger.state_dict(), "micro_step": self._step}, file)
        torch.save(self._buffered_inputs, os.path.join(folder, _BUFFER_FILE))

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = os.path.join(checkpoint, _STATE_FILE)
        if not os.path.exists(path):
            raise ValueError(f"resume_from_checkpoint: got {checkpoint} without {_STATE_FILE}; need it; because the budgets resume from it")
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
        self.rollout_policy.load_state_dict(state["policy"])
        self.ledger.load_state_dict(state["ledger"])
        self._step = state["micro_step"]
        self._buffered_inputs = torch.load(os.path.join(checkpoint, _BUFFER_FILE), weights_only=True)
