"""GRPO with calibrated rollout budgets and response masks, at true cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import send_to_device
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl import GRPOTrainer

import carm_core
from conformal_core import FixedBudget, RolloutPolicy

from .advantages import combine
from .checkpoint import REFERENCE_FILE, buffer_file, last_whole_checkpoint, read_state, write_state
from .checks import check_arguments
from .config import CGRPOConfig
from .distributed import ragged_gather
from .generation import Generation
from .ledger import Ledger
from .masking import TOKEN_COUNT_LOSSES, Masking
from .masks import make_rule, weighs
from .migration import policy_from_config, verifier_success
from .objective import cgrpo_loss, k3
from .rollouts import Rollouts
from .rows import Response
from .sampling import sample
from .startup import check_processes, check_router, check_sampling, warn_if_inert
from .tables import as_json, beside, from_json, no_rows

__all__ = ["CGRPOTrainer"]


class _Clock(TrainerCallback):
    """Keeps the ledger's clock and stops at ``max_seconds``."""

    def __init__(self, trainer: CGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.ledger.start()
        self.trainer._continue_loss()

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
        if mask_rule is not None:
            taken = next(
                (n for n, off in (("response_mask", "none"), ("off_policy_mask_threshold", None)) if getattr(args, n) != off), None
            )
            if taken is not None:
                raise ValueError(
                    f"mask_rule: got {mask_rule!r} beside {taken}={getattr(args, taken)!r}; need one of the two; because one rule decides"
                )
            if weighs(mask_rule) and args.old_logps == "rollout":
                raise ValueError(
                    f'old_logps: got "rollout" beside mask_rule={mask_rule!r}; need "recompute"; because the rule weighs by '
                    "pi_old / pi_rollout, which is 1 if pi_old is what was recorded"
                )
        self.rollout_policy = policy
        self.calibration_dataset = calibration_dataset
        self.answer_fn, self.gold_column = answer_fn, gold_column
        self.gold_as_text = answer_extractor is not None
        self._verifier = None if verifier is None else verifier_success(verifier)
        self.ledger = Ledger()
        self.mask_rule = mask_rule or make_rule(args.response_mask, args.response_mask_threshold, args.response_mask_conditioning)
        #: ``(loss since the last log, step of that log)`` of a checkpoint, until training goes on from it.
        self._resumed_loss: tuple[torch.Tensor, int] | None = None
        self.own_sampler = not (args.use_vllm or args.use_transformers_continuous_batching or kwargs.get("rollout_func") is not None)
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        passes = args.steps_per_generation * self.num_iterations
        #: Whether rollouts train after an optimizer step that moved the policy they were drawn from.
        self.off_policy = args.gradient_accumulation_steps % passes != 0
        #: Whether a loss term reads the log-probabilities that were recorded while sampling.
        self.reads_recorded = self.mask_rule is not None or self.off_policy
        self.corrects = self.use_vllm and self.vllm_importance_sampling_correction
        #: Whether the reference model moves, so that a checkpoint must hold it.
        self.keeps_reference = args.sync_ref_model and self.ref_model is not None and not (self._dist.is_fsdp or self._dist.is_zero3)
        self.rollouts = Rollouts(self)
        if self.mask_rule is not None:
            self.off_policy_mask_threshold = 0.0  # TRL calls its mask hook iff this is set
        self.generation = Generation(self)
        self.masking = None if self.mask_rule is None else Masking(self)
        self.add_callback(_Clock(self))
        check_processes(self)
        check_router(self)
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

    # ------------------------------------------------------------------ micro-batches

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self.generation.step(generation_batch)
        return self._buffered_inputs[self._step % parts]

    def score(self, model, batch: dict[str, Any]) -> torch.Tensor:
        """Log-probabilities of a micro-batch's responses, without a graph."""
        with torch.no_grad():
            return self._logps(model, batch)

    def _logps(self, model, batch: dict[str, Any]) -> torch.Tensor:
        return self._logps_and_entropies(model, batch)[0]

    def _logps_and_entropies(self, model, batch: dict[str, Any], compute_entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
            batch["completion_ids"].size(1),
            compute_entropy=compute_entropy,
        )[:2]

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
        if self.masking is not None:
            self.masking.micro = inputs
        if self.args.objective == "cgrpo":
            return self._paper_loss(model, inputs)
        if self.mask_rule is not None and "old_per_token_logps" in inputs:
            inputs["old_per_token_logps"] = inputs["old_per_token_logps"].clone()
        if self.loss_type in TOKEN_COUNT_LOSSES:
            inputs["num_items_in_batch"] = inputs["num_items_in_batch"] * weight
        with ragged_gather(self.accelerator):
            return super()._compute_loss(model, inputs) * weight

    def _paper_loss(self, model, inputs: dict[str, Any]) -> torch.Tensor:
        """Eq. 10-11 over one optimizer step, which is ``share`` of the generation."""
        logps, entropies = self._logps_and_entropies(model, inputs, compute_entropy=True)
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        weights = None if self.masking is None else self.masking.factor(logps, mask, inputs["advantages"])
        share = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        self._log_means(logps.detach(), entropies.detach(), mask, inputs.get("ref_per_token_logps"))
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

    def _log_means(self, logps: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor, ref_logps: torch.Tensor | None) -> None:
        """TRL's ``kl`` (if ``beta`` is not 0) and ``entropy``: means over the live tokens of the micro-batch, over all processes."""
        live = mask != 0
        values = {"entropy": entropies}
        if self.beta != 0.0:
            values["kl"] = k3(logps, ref_logps, live)
        sums = torch.stack([torch.where(live, value.float(), 0.0).sum() for value in values.values()] + [live.sum().float()])
        *sums, tokens = self.accelerator.reduce(sums, reduction="sum").tolist()
        for name, total in zip(values, sums, strict=True):
            self._metrics["train"][name].append(total / max(tokens, 1.0))

    def get_off_policy_mask(self, advantages, per_token_logps, sampling_per_token_logps, mask, off_policy_threshold):
        """``(B, T)`` factor of the configured rule on ``z = log pi_theta - log pi_rollout``; TRL's own rule if none is configured."""
        if self.mask_rule is None:
            return GRPOTrainer.get_off_policy_mask(advantages, per_token_logps, sampling_per_token_logps, mask, off_policy_threshold)
        if not self.model.training:
            return torch.ones_like(per_token_logps)
        return self.masking.factor(per_token_logps, mask, advantages)

    # ------------------------------------------------------------------ logs

    @property
    def _logs(self) -> dict[str, Any]:
        """Rows of the completions table since the last log, of training or of evaluation; TRL's own code reads and writes them."""
        return self._rows["train" if self.model.training else "eval"]

    @_logs.setter
    def _logs(self, _: dict[str, Any]) -> None:
        self._rows = {"train": no_rows(), "eval": no_rows()}

    def log(self, logs, start_time=None):
        """As ``GRPOTrainer.log``; a completions table holds the rows generated since the last one, and none is written without rows."""
        mode, shown = "train" if self.model.training else "eval", self.log_completions
        self.log_completions = shown and bool(self._rows[mode]["prompt"])
        apart = mode == "eval" and self.log_completions and self.accelerator.is_main_process
        name = next((key.removesuffix("_runtime").replace(os.sep, "_") for key in logs if key.endswith("_runtime")), "eval")
        folder = os.path.join(self.args.output_dir, "completions")
        try:
            with beside(folder, self.state.global_step, name) if apart else nullcontext():
                super().log(logs, start_time)
        finally:
            self.log_completions = shown
        self._rows[mode] = no_rows()

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
        mine = {"micro_batches": self._buffered_inputs, "loss": self._tr_loss}
        torch.save(mine, os.path.join(folder, buffer_file(self.accelerator.process_index)))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            state = {"policy": self.rollout_policy.state_dict(), "ledger": self.ledger.state_dict(), "micro_step": self._step}
            state["monitor"] = None if self.masking is None else self.masking.monitor.state_dict()
            state["processes"] = self.accelerator.num_processes
            unlogged = {"metrics": as_json(self._metrics["train"]), "rows": as_json(self._rows["train"])}
            state["log"] = {"step": self._globalstep_last_logged, **unlogged}
            if self.keeps_reference:
                torch.save(self.accelerator.unwrap_model(self.ref_model).state_dict(), os.path.join(folder, REFERENCE_FILE))
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
        if self.masking is not None and state["monitor"] is not None:
            self.masking.monitor.load_state_dict(state["monitor"])
        self._step = state["micro_step"]
        self._metrics["train"].update({name: list(values) for name, values in state["log"]["metrics"].items()})
        self._rows["train"] = from_json(state["log"]["rows"])
        if self.keeps_reference:
            weights = torch.load(os.path.join(checkpoint, REFERENCE_FILE), weights_only=True, map_location="cpu")
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(weights)
        path = os.path.join(checkpoint, buffer_file(self.accelerator.process_index))
        mine = send_to_device(torch.load(path, weights_only=True, map_location="cpu"), self.accelerator.device)
        self._buffered_inputs, self._resumed_loss = mine["micro_batches"], (mine["loss"], state["log"]["step"])

    def _continue_loss(self) -> None:
        """Count the loss of the steps between the last log and the checkpoint into the next log, as if there had been no stop."""
        if self._resumed_loss is not None:
            loss, self._globalstep_last_logged = self._resumed_loss
            self._tr_loss += loss
            self._total_loss_scalar -= loss.item()  # the summary at the end is of this call's steps
            self._resumed_loss = None


def _stripped(extract: Callable[[str], Any]) -> Callable[[str], str | None]:
    def answer(text: str) -> str | None:
        found = extract(text)
        return None if found is None or not str(found).strip() else str(found).strip()

    return answer
