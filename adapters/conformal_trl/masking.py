"""The mask rule at work in the loss of one micro-batch."""

from __future__ import annotations

from typing import Any

import torch

import carm_core

from .masks import MaskMonitor, guarded_base, mask_weights, weighs

__all__ = ["TOKEN_COUNT_LOSSES", "Masking"]

#: TRL losses that divide by a count of tokens over the whole generation; the others are means over rows or over a micro-batch.
TOKEN_COUNT_LOSSES = ("cispo", "dapo", "vespo")
#: d scores of a generation step that the ledger keeps.
MAX_D_SCORES = 64


class Masking:
    """Factor on the surrogate of the micro-batch in :attr:`micro`, with the rule's denominator and its record."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.rule = trainer, trainer.mask_rule
        self.monitor = MaskMonitor(trainer.accelerator, self.rule, trainer.args.mask_warn_after)
        self.micro: dict[str, Any] = {}

    def factor(self, per_token_logps: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        """``(B, T)``: 0 where the surrogate is dropped, else 1 (or the weight of a weighing rule).  A collective."""
        current, sampling, old = per_token_logps.detach(), self.micro["sampling_per_token_logps"], self.micro.get("old_per_token_logps")
        if self.trainer.args.nonfinite_logps == "drop_token":
            mask = mask * torch.isfinite(sampling)
        policy = "raise" if self.trainer.args.nonfinite_logps == "raise" else "reject"
        z = carm_core.log_ratio(current, sampling, mask, nonfinite=policy).z
        weigh_by = None
        if weighs(self.rule):
            weigh_by = carm_core.log_ratio(old, sampling, mask, nonfinite=policy).z
        keep, factor = mask_weights(self.rule, z, mask, advantages, weigh_by)
        if old is not None and self.trainer.args.objective == "trl":
            # TRL forms exp(log pi_theta - log pi_old) of every row, then multiplies by this factor: what overflows there would be NaN here.
            base, moved = guarded_base(old, current, mask)
            old.copy_(torch.where(moved & ~keep[:, None], current, base))  # so that no KL term is corrected by such a ratio either
            factor = torch.where(moved, 0.0, factor)
        if self.trainer.args.response_mask_normalize == "retained":
            factor = factor * self._retained(factor, mask)
        self._observe(z, mask, keep, factor == 0)
        return factor.to(per_token_logps.dtype)

    def _retained(self, factor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What turns the loss's fixed denominator into the count of what was kept, over all ranks."""
        tokens = ((factor != 0) & (mask != 0)).sum().float()
        if self.trainer.loss_type == "bnpo":
            return (mask != 0).sum() / tokens.clamp(min=1.0)
        kept = self.trainer.accelerator.reduce(torch.stack([((factor != 0) & (mask != 0)).any(1).sum().float(), tokens]), reduction="sum")
        if self.trainer.loss_type in TOKEN_COUNT_LOSSES:
            window = self.micro["num_items_in_batch"] / max(self.micro["row_weight"], 1e-12) / self.trainer.args.steps_per_generation
            return window / kept[1].clamp(min=1.0)
        return self.micro["window_rows"] / kept[0].clamp(min=1.0)

    def _observe(self, z: torch.Tensor, mask: torch.Tensor, keep: torch.Tensor, dropped: torch.Tensor) -> None:
        metrics, d, counted, rejected = self.monitor.observe(z, mask, keep, self.micro["passed"], dropped)
        record = self.trainer.ledger.current
        record["masked"] += rejected
        record["masked_of"] += counted
        share = max(1, MAX_D_SCORES // (self.trainer.args.steps_per_generation * self.trainer.num_iterations))  # of every pass alike
        record["d_scores"].extend(d[:share].tolist())
        band = (1 - self.trainer.epsilon_low, 1 + self.trainer.epsilon_high)
        if 0 < band[0] < 1 < band[1]:
            metrics["mask/certificate"] = self.rule.certificate(band).p_out
        for name, value in metrics.items():
            self.trainer._metrics["train"][name].append(value)
