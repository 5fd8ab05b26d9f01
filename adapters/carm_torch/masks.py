"""From log-probabilities to a keep mask and to a loss, in one call."""

from typing import Any, Literal

import torch
from torch import Tensor

from carm_core import Rule, log_ratio, masked_loss

from .packed import PackedRows

NonFinite = Literal["reject", "raise"]


def keep_mask(
    current: Tensor,
    rollout: Tensor,
    token_mask: Tensor,
    rule: Rule,
    advantages: Tensor | None = None,
    *,
    clip: float = 20.0,
    nonfinite: NonFinite = "reject",
) -> Tensor:
    """Which padded responses take part in the loss: (B,) bool, no gradient, no host sync (unless ``nonfinite="raise"``).

    Args:
        current, rollout: (B, T) log-probabilities of the sampled tokens, padded on either side with anything.
        token_mask: (B, T) bool or integer, non-zero at tokens the policy generated (not tool output, not an appended EOS).
        rule: any `carm_core` rule, e.g. ``CARM(1.02)``.
        advantages: (B,), (B, 1) or (B, T); needed by rules that condition on the sign.

    Raises: ValueError for shapes that differ or missing advantages.

    >>> from carm_core import CARM
    >>> new = torch.tensor([[-1.0, -2.0, 0.0], [-1.0, -2.0, -3.0]])
    >>> old = torch.tensor([[-1.01, -2.0, 9.0], [-1.5, -1.5, -3.0]])
    >>> keep_mask(new, old, torch.tensor([[1, 1, 0], [1, 1, 1]]), CARM(1.02)).tolist()
    [True, False]
    """
    z = log_ratio(current.detach(), rollout.detach(), token_mask, clip=clip, nonfinite=nonfinite).z
    keep: Tensor = rule.keep(z, token_mask, advantages)
    return keep


def packed_keep_mask(
    current: Tensor,
    rollout: Tensor,
    cu_seqlens: Tensor,
    rule: Rule,
    advantages: Tensor | None = None,
    *,
    token_mask: Tensor | None = None,
    clip: float = 20.0,
    nonfinite: NonFinite = "reject",
) -> Tensor:
    """`keep_mask` for responses packed on one axis: (B,) bool.

    Args:
        current, rollout: (N,) or (1, N); tokens after cu_seqlens[-1] are padding.
        cu_seqlens: (B + 1,) ascending integer boundaries within [0, N], as flash-attention takes them; not checked (no host sync).
        advantages: (B,), (N,) or (1, N).
        token_mask: optional (N,) or (1, N), non-zero at tokens the policy generated; all tokens when absent.

    Raises: ValueError for shapes that differ, more than one packed row, or missing advantages.

    >>> from carm_core import CARM
    >>> packed_keep_mask(torch.tensor([0.0, 0.0, -1.0]), torch.zeros(3), torch.tensor([0, 2, 3]), CARM(1.02)).tolist()
    [True, False]
    """
    current, rollout = _flat(current.detach()), _flat(rollout.detach())
    positions = torch.arange(current.numel(), device=current.device)
    live = (positions >= cu_seqlens[0]) & (positions < cu_seqlens[-1])
    if token_mask is not None:
        live = live & (_flat(token_mask) != 0)
    z = log_ratio(current, rollout, live, clip=clip, nonfinite=nonfinite).z
    if advantages is not None and advantages.shape == (1, current.numel()):
        advantages = advantages[0]
    keep: Tensor = rule.keep_rows(PackedRows(z, live, cu_seqlens), advantages)
    return keep


def masked_policy_loss(
    current: Tensor,
    rollout: Tensor,
    token_mask: Tensor,
    advantages: Tensor,
    rule: Rule,
    *,
    normalize: Literal["fixed", "retained"] = "fixed",
    denominator: Any = None,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
    clip: float = 20.0,
) -> tuple[Tensor, Tensor]:
    """The paper's loss on padded tensors: (scalar loss with gradient in `current`, (B,) keep mask).

    Mask and surrogate read the same log-ratios of one forward pass; see `carm_core.masked_loss` for the normalisations.

    >>> from carm_core import CARM
    >>> new = torch.zeros(2, 2, requires_grad=True)
    >>> loss, keep = masked_policy_loss(new, torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.ones(2, 2), torch.ones(2), CARM(1.02))
    >>> loss.backward(); keep.tolist(), new.grad.tolist()
    ([True, False], [[-0.25, -0.25], [0.0, 0.0]])
    """
    z = log_ratio(current, rollout.detach(), token_mask, clip=clip).z
    keep = rule.keep(z, token_mask, advantages)
    weights = rule.weights(z, token_mask, advantages)
    loss = masked_loss(
        z, advantages, token_mask, keep, normalize=normalize, denominator=denominator, weights=weights,
        clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip,
    )  # fmt: skip
    return loss, keep


def _flat(x: Tensor) -> Tensor:
    if x.dim() == 2 and x.shape[0] == 1:
        return x[0]
    if x.dim() != 1:
        raise ValueError(f"packed tensors: got shape {tuple(x.shape)}; need (N,) or (1, N); because responses are packed on one axis")
    return x
