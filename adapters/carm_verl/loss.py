"""verl's clipped policy loss, gated per response by a `carm_core` rule."""

import copy
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

from carm_core import log_ratio, response_scores

from .checks import GROUP
from .config import CARMPolicyLossConfig
from .metrics import Watch, mask_metrics

_SEQUENCE_MODES = ("seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")


class MaskedPolicyLoss:
    r"""A verl policy loss: z = clip(log pi_theta - log pi_rollout, +-20), keep = rule(z), loss = verl's own clipped loss on kept responses.

    In verl's bypass mode ``old_log_prob`` holds the sampler's log-probabilities, so one forward pass gives the mask and the surrogate.
    Clip band, dual clip, ``loss_agg_mode`` and all global counts are verl's, because verl's `compute_policy_loss_vanilla` computes them;
    a rejected response enters it with ratio 1 and advantage 0, so its loss and its gradient are exactly 0 whatever it holds. With nothing
    kept the loss is 0 and the graph is whole, so every rank runs its backward. KL and entropy terms are verl's and are not gated.

    Denominators: "fixed" leaves verl's counts, taken before rejection. verl fixes the count of a mini-batch before its first forward pass,
    when nobody knows what will be kept; "retained" therefore multiplies each micro-batch by live / kept tokens (responses for the seq-mean
    modes): Eq. 3 exactly for one micro-batch, and otherwise every micro-batch keeps the share it had.

    Source: CARM, Algorithm 1, Eqs. 2, 3, 72 and Appendix B.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = f"compute_policy_loss_{name}"
        self.watch = Watch()

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """(scalar loss with gradient in `log_prob`, metrics), the signature verl calls by keyword; tensors (B, T).

        Raises: ValueError when `config` is not a checked one, its loss_mode was changed, or importance weights arrive as well.
        RuntimeError when the sampler's log-probabilities are missing or the mask stays inert (`metrics.Watch`).
        """
        settings = self._settings(config)
        if rollout_is_weights is not None:
            raise ValueError(
                "rollout_is_weights: got a tensor; need None; because the ratio is already current / rollout and the weights would "
                "correct a second time (algorithm.rollout_correction.rollout_is=null)"
            )
        rule = settings.rule
        live = response_mask != 0
        ratio = log_ratio(log_prob.detach(), old_log_prob, live)
        keep = rule.keep(ratio.z, live, advantages)
        active = live & keep[:, None]
        loss, _ = compute_policy_loss_vanilla(
            old_log_prob=torch.where(active, _wide(old_log_prob), 0.0),
            log_prob=torch.where(active, _wide(log_prob), 0.0),
            advantages=torch.where(active, advantages, 0.0),
            response_mask=response_mask,
            loss_agg_mode=loss_agg_mode,
            config=_counted(config, live, loss_agg_mode),
        )
        if settings.normalize == "retained":
            loss = loss * _live_per_kept(ratio.length, keep, loss_agg_mode).to(loss.dtype)
        with torch.no_grad():
            z = torch.where(torch.isfinite(ratio.z), ratio.z, 0.0)
            _, metrics = compute_policy_loss_vanilla(
                old_log_prob=torch.zeros_like(z), log_prob=z, advantages=advantages, response_mask=response_mask,
                loss_agg_mode=loss_agg_mode, config=_counted(config, live, loss_agg_mode),
            )  # fmt: skip
            r, low, high = z.exp(), *_band(config)
            positive = torch.where(live, advantages, 0.0).sum(-1) > 0
            found = mask_metrics(
                ratio, response_scores(ratio.z, live), keep, positive, live & ((r < low) | (r > high)), live & (old_log_prob != 0)
            )
        self.watch.see(found, settings.inert_after)
        return loss, {**metrics, **found}

    def _settings(self, config: Any) -> CARMPolicyLossConfig:
        settings = getattr(config, "policy_loss", None)
        if not isinstance(settings, CARMPolicyLossConfig):
            raise ValueError(
                f"policy_loss: got {type(settings).__name__}; need CARMPolicyLossConfig; because without the checks of {GROUP} nothing "
                "shows that old_log_probs are the sampler's"
            )
        if settings.loss_mode != self.name:
            raise ValueError(f"policy_loss.loss_mode: got {settings.loss_mode!r}; need {self.name!r}; because another loss was configured")
        return settings


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _band(config: Any) -> tuple[float, float]:
    low, high = (config.clip_ratio if x is None else x for x in (config.clip_ratio_low, config.clip_ratio_high))
    return 1.0 - low, 1.0 + high


def _counted(config: Any, live: Tensor, loss_agg_mode: str) -> Any:
    """`config` with the local count filled in where verl gives no global one, and no count below 1: nothing live is a loss of 0, not 0/0.

    verl's own count is 0 where a whole mini-batch is filler rows, with which it pads a batch that lost responses.
    """
    info = dict(config.global_batch_info)
    key = "global_batch_size" if loss_agg_mode in _SEQUENCE_MODES else "batch_num_tokens"
    count = info.get(key)
    if count is None and info.get("dp_size", 1) == 1:
        count = live.any(-1).sum() if key == "global_batch_size" else live.sum()
    if count is None:
        return config
    info[key] = count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
    counted = copy.copy(config)
    object.__setattr__(counted, "global_batch_info", info)
    return counted


def _live_per_kept(length: Tensor, keep: Tensor, loss_agg_mode: str) -> Tensor:
    if loss_agg_mode == "token-sum":
        raise ValueError("loss_agg_mode: got 'token-sum'; need a mean; because normalize=retained changes a denominator and it has none")
    weight = (length > 0).double() if loss_agg_mode in _SEQUENCE_MODES else length.double()
    kept = torch.where(keep, weight, 0.0).sum()
    return weight.sum() / kept.clamp(min=1)
