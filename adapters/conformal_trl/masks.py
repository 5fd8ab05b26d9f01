"""Response masks in TRL's loss: which rule, what it weighs, over which denominator, and what it did."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

import carm_core

__all__ = ["RULES", "MaskMonitor", "guarded_base", "make_rule", "mask_weights", "weighs"]

#: name: (class in carm_core, the parameter a threshold sets, its default)
RULES: dict[str, tuple[str, str | None, float | None]] = {
    "no_mask": ("NoMask", None, None),
    "carm": ("CARM", "tau", 1.02),
    "geomean": ("GeoMean", "tau", 1.005),
    "trm": ("TRM", "delta", 0.05),
    "trm_mean": ("TRMMean", "delta", 0.001),
    "mean_exp_abs": ("MeanExpAbs", "threshold", 2.0),
    "opsm": ("OPSM", "delta", 0.5),
    "seq_mis": ("SeqMIS", "cap", 3.0),
    "seq_tis": ("SeqTIS", "cap", 2.0),
    "token_mis": ("TokenMIS", "cap", 3.0),
    "token_tis": ("TokenTIS", "cap", 2.0),
    "icepop": ("IcePop", "beta", 5.0),
}
#: Rules whose weights are the ratio pi_old / pi_rollout itself, not 0 or 1.
WEIGHING = ("seq_mis", "seq_tis", "token_mis", "token_tis", "icepop")
#: Guard of the surrogate's log-ratio in nats, as for the mask (CARM, Appendix B).
CLIP = 20.0


def make_rule(name: str, threshold: float | None = None, conditioning: str | None = None) -> carm_core.Rule | None:
    """The rule of that name, ``None`` for ``"none"``; ``ValueError`` for a threshold or conditioning it does not take.

    Examples
    --------
    >>> make_rule("carm", 1.02), make_rule("trm"), make_rule("none")
    (CARM(conditioning='both', tau=1.02), TRM(conditioning='both', delta=0.05), None)
    """
    if name == "none":
        return None
    kind, parameter, default = RULES[name]
    cls = getattr(carm_core, kind)
    arguments: dict[str, Any] = {}
    if parameter is not None:
        arguments[parameter] = default if threshold is None else threshold
    elif threshold is not None:
        raise ValueError(
            f"response_mask_threshold: got {threshold!r} beside response_mask={name!r}; need None; because it has no threshold"
        )
    if conditioning is not None:
        arguments["conditioning"] = conditioning
    try:
        return cls(**arguments)
    except ValueError as error:
        name_, _, text = str(error).partition(": ")
        field = "conditioning" if name_ == "conditioning" else "threshold"
        raise ValueError(f"response_mask_{field}: {text}") from error


def weighs(rule: carm_core.Rule | None) -> bool:
    """Whether a rule's factors are the ratio pi_old / pi_rollout."""
    return isinstance(rule, tuple(getattr(carm_core, RULES[name][0]) for name in WEIGHING))


def mask_weights(
    rule: carm_core.Rule, z: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor, weigh_by: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(B,)`` keep and ``(B, T)`` factor on the surrogate.

    A factor is 0 or 1, except that a weighing rule (``weigh_by`` = log pi_old - log pi_rollout) gives its ratio.
    """
    z = z.detach()
    if weigh_by is not None:
        z = weigh_by.detach()
    keep = rule.keep(z, mask, advantages=advantages)
    factor = rule.weights(z, mask, advantages=advantages)
    return keep, torch.nan_to_num(factor, nan=0.0)


def guarded_base(base: torch.Tensor, current: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The surrogate's denominator with ``|current - base| <= 20``, and ``(B, T)`` bool where the guard moved it.

    A token the guard moved has a finite ratio; its gradient is dropped by the caller, as that of a clip is 0.
    """
    current = current.detach()
    gap = current - base
    moved = ~(gap.abs() <= CLIP) & (mask != 0)
    return torch.where(moved, current - torch.nan_to_num(gap, nan=0.0).clamp(-CLIP, CLIP), torch.nan_to_num(base, nan=0.0)), moved


class MaskMonitor:
    """Counts what a mask did, over ranks, before rejection; speaks up when it does nothing or leaves nothing.

    Metrics: shares of responses and tokens rejected, of responses rejected upwards and downwards (sign of the signed mean), of rejected
    responses that had passed; quantiles of d (nats) and s = exp(d).
    """

    def __init__(self, accelerator: Any, rule: carm_core.Rule, warn_after: int) -> None:
        self.accelerator, self.rule, self.warn_after = accelerator, rule, warn_after
        self.nearly_all = 0
        self.looked = False

    def observe(
        self, z: torch.Tensor, mask: torch.Tensor, keep: torch.Tensor, passed: torch.Tensor, dropped: torch.Tensor
    ) -> tuple[dict[str, float], torch.Tensor, int, int]:
        """Metrics of one micro-batch over all ranks, the finite d scores of its responses, and how many there were and were rejected.

        A collective.
        """
        scores = carm_core.response_scores(z, mask)
        counted = scores.length > 0
        rejected = counted & ~keep
        shares = (counted, rejected, rejected & (scores.g > 0), rejected & (scores.g < 0), rejected & passed)
        stats = torch.stack([x.sum().float() for x in (*shares, scores.length, dropped & (mask != 0))])
        stats = self.accelerator.reduce(stats, reduction="sum")
        n, out, high, low, right, tokens, out_tokens = stats.tolist()
        d = torch.where(counted, scores.d.float(), torch.nan)
        d = self.accelerator.gather(self.accelerator.pad_across_processes(d, pad_index=math.nan))
        d = d[~d.isnan()]
        metrics = {
            "mask/seq_masked_fraction": out / max(n, 1),
            "mask/token_masked_fraction": out_tokens / max(tokens, 1),
            "mask/fraction_high": high / max(n, 1),
            "mask/fraction_low": low / max(n, 1),
            "mask/masked_correct_share": right / max(out, 1),
        }
        if d.numel():
            levels = torch.quantile(d, torch.tensor([0.5, 0.9, 0.99, 1.0], device=d.device)).tolist()
            for name, level in zip(("p50", "p90", "p99", "max"), levels, strict=True):
                metrics[f"mask/d_{name}"], metrics[f"mask/s_{name}"] = level, math.exp(min(level, CLIP))
        self._speak(n, out, z, mask, keep, passed)
        return metrics, d, int(n), int(out)

    def _speak(self, n: float, out: float, z: torch.Tensor, mask: torch.Tensor, keep: torch.Tensor, passed: torch.Tensor) -> None:
        if n and not self.looked:
            self.looked = True
            for found in carm_core.mask_report(z.cpu(), mask.cpu(), keep.cpu(), passed.float().cpu()).warnings:
                if not found.startswith(("inert", "every")):
                    warnings.warn(f"response_mask: {found}", stacklevel=2)
        if n:
            self.nearly_all = self.nearly_all + 1 if out >= 0.95 * n else 0
        if self.nearly_all == self.warn_after:
            warnings.warn(
                f"response_mask: {out / n:.0%} of responses were rejected, {self.nearly_all} passes in a row; {self.rule!r} leaves nearly "
                "nothing to learn from: raise the threshold, or look for a mismatch between sampler and trainer",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {"nearly_all": self.nearly_all, "looked": self.looked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` saved."""
        self.nearly_all, self.looked = int(state["nearly_all"]), bool(state["looked"])
