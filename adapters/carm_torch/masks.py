"""From log-probabilities to a keep mask and to a loss, in one call."""

from typing import Any, Literal

import torch
from torch import Tensor

from carm_core import Rule, log_ratio, masked_loss
from carm_core.logratio import NonFinite, check_log_ratio, warn_half
from carm_core.surrogate import check_form

from .blocks import GuardedRows, block_size, keep_padded
from .packed import PackedBlocks, PackedRows, check_bounds, packed_live


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
    _check(current, rollout, token_mask, rule, clip, nonfinite)
    warn_half(current, rollout)
    if nonfinite == "raise":
        log_ratio(current.detach(), rollout.detach(), token_mask, clip=clip, nonfinite=nonfinite)
    arrays, drop = (current.detach(), rollout.detach(), token_mask), nonfinite == "drop"
    if current.dim() == 2 and rule.blockwise and not torch.compiler.is_compiling():
        return keep_padded(rule, *arrays, advantages, clip=clip, drop=drop, block=block_size(current))
    keep: Tensor = rule.keep_rows(GuardedRows(*arrays, clip, drop), advantages)
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
        cu_seqlens: (B + 1,) ascending integer boundaries within [0, N], as flash-attention takes them; values not checked (no host sync).
        advantages: (B,), (B, 1), (N,) or (1, N); with B = N a flat one is read per response.
        token_mask: optional (N,) or (1, N), non-zero at tokens the policy generated; all tokens when absent.

    Raises: ValueError for shapes that differ, more than one packed row, or missing advantages.

    >>> from carm_core import CARM
    >>> packed_keep_mask(torch.tensor([0.0, 0.0, -1.0]), torch.zeros(3), torch.tensor([0, 2, 3]), CARM(1.02)).tolist()
    [True, False]
    """
    current, rollout, token_mask = _flatten(current, rollout, token_mask, cu_seqlens)
    _check(current, rollout, current if token_mask is None else token_mask, rule, clip, nonfinite)
    current, rollout = current.detach(), rollout.detach()
    if rule.blockwise and nonfinite != "raise" and not torch.compiler.is_compiling():
        warn_half(current, rollout)
        blocks = PackedBlocks(current, rollout, token_mask, cu_seqlens, clip, nonfinite == "drop", block_size(current))
        streamed: Tensor = rule.keep_rows(blocks, advantages)
        return streamed
    ratio = log_ratio(current, rollout, packed_live(current, cu_seqlens, token_mask), clip=clip, nonfinite=nonfinite)
    keep: Tensor = rule.keep_rows(PackedRows(ratio.z, ratio.live, cu_seqlens), advantages)
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
    nonfinite: NonFinite = "reject",
    ratio: Literal["token", "sequence"] = "token",
    aggregate: Literal["token", "sequence"] = "token",
) -> tuple[Tensor, Tensor]:
    """The paper's loss on padded tensors: (scalar loss with gradient in `current`, (B,) keep mask).

    Mask and surrogate read the same log-ratios of one forward pass. Takes tensors, no module: it fits any training loop.

    Args:
        current: (B, T) log-probabilities of the sampled tokens from the forward pass that is to be differentiated.
        rollout, token_mask, rule, clip, nonfinite: as `keep_mask`.
        advantages: (B,), (B, 1) or (B, T).
        normalize, denominator, clip_low, clip_high, dual_clip, ratio, aggregate: as `carm_core.masked_loss`; a count over all ranks comes
            from `global_denominator`.

    Raises: ValueError for shapes that differ or an unknown option.

    >>> from carm_core import CARM
    >>> new = torch.zeros(2, 2, requires_grad=True)
    >>> loss, keep = masked_policy_loss(new, torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.ones(2, 2), torch.ones(2), CARM(1.02))
    >>> loss.backward(); keep.tolist(), new.grad.tolist()
    ([True, False], [[-0.25, -0.25], [0.0, 0.0]])
    """
    _check(current, rollout, token_mask, rule, clip, nonfinite)
    found = log_ratio(current, rollout.detach(), token_mask, clip=clip, nonfinite=nonfinite)
    keep = rule.keep(found.z, found.live, advantages)
    weights = rule.weights(found.z, found.live, advantages)
    loss = masked_loss(
        found.z, advantages, found.live, keep, normalize=normalize, denominator=denominator, weights=weights,
        clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, ratio=ratio, aggregate=aggregate,
    )  # fmt: skip
    return loss, keep


def packed_policy_loss(
    current: Tensor,
    rollout: Tensor,
    cu_seqlens: Tensor,
    advantages: Tensor,
    rule: Rule,
    *,
    token_mask: Tensor | None = None,
    normalize: Literal["fixed", "retained"] = "fixed",
    denominator: Any = None,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
    clip: float = 20.0,
    nonfinite: NonFinite = "reject",
    ratio: Literal["token", "sequence"] = "token",
    aggregate: Literal["token", "sequence"] = "token",
) -> tuple[Tensor, Tensor]:
    """`masked_policy_loss` for responses packed on one axis: (scalar loss with gradient in `current`, (B,) keep mask).

    Args: current, rollout, cu_seqlens, token_mask, advantages: as `packed_keep_mask`. The rest: as `masked_policy_loss`.

    Raises: ValueError for shapes that differ or an unknown option.

    >>> from carm_core import CARM
    >>> new = torch.zeros(3, requires_grad=True)
    >>> loss, keep = packed_policy_loss(new, torch.tensor([0.0, 0.0, 9.0]), torch.tensor([0, 2, 3]), torch.ones(2), CARM(1.02))
    >>> round(loss.item(), 4), keep.tolist()
    (-0.6667, [True, False])
    """
    check_form(normalize, ratio, aggregate)
    flat, flat_rollout, mask = _flatten(current, rollout, token_mask, cu_seqlens)
    _check(flat, flat_rollout, flat if mask is None else mask, rule, clip, nonfinite)
    found = log_ratio(flat, flat_rollout.detach(), packed_live(flat, cu_seqlens, mask), clip=clip, nonfinite=nonfinite)
    if advantages is None:
        raise ValueError("advantages: got None; need an array; because the surrogate multiplies ratios by them")
    rows = PackedRows(found.z, found.live, cu_seqlens)
    keep = rule.keep_rows(rows, advantages)
    tokens = rows.per_token(advantages)
    spread = rows.spread(rows.advantage(advantages)) if tokens is None else tokens
    z, weights = found.z, rule.weigh_rows(rows, advantages)
    if ratio == "sequence":
        z = rows.spread(rows.mean(torch.where(rows.spread(keep) & rows.live, z, 0.0)))
    if aggregate == "sequence":
        weights = weights / rows.spread(rows.length).clip(1)
        counted = rows.length > 0 if normalize == "fixed" else (rows.length > 0) & keep
        denominator = counted.sum() if denominator is None else denominator
    loss = masked_loss(
        z[:, None], spread[:, None], found.live[:, None], rows.spread(keep), normalize=normalize, denominator=denominator,
        weights=weights[:, None], clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip,
    )  # fmt: skip
    return loss, keep


def _check(current: Any, rollout: Any, token_mask: Any, rule: Any, clip: float, nonfinite: NonFinite) -> None:
    if not isinstance(rule, Rule):
        raise TypeError(f"rule: got {rule!r}; need a carm_core rule, e.g. CARM(1.02); because a number alone names no statistic")
    if check_log_ratio(current, rollout, token_mask, clip, nonfinite) is not torch:
        raise TypeError("arrays: got NumPy arrays; need torch tensors; because carm_core takes NumPy arrays itself")


def _flat(x: Any) -> Any:
    if x is None:
        raise ValueError("packed tensors: got None; need (N,) or (1, N); because nothing stands in for log-probabilities")
    if len(x.shape) == 2 and x.shape[0] == 1:
        return x[0]
    if len(x.shape) != 1:
        raise ValueError(f"packed tensors: got shape {tuple(x.shape)}; need (N,) or (1, N); because responses are packed on one axis")
    return x


def _flatten(current: Tensor, rollout: Tensor, token_mask: Tensor | None, cu_seqlens: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    check_bounds(cu_seqlens)
    return _flat(current), _flat(rollout), None if token_mask is None else _flat(token_mask)
