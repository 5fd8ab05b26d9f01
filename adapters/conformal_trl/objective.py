"""The objective of the C-GRPO paper, next to TRL's own losses."""

from __future__ import annotations

import torch

__all__ = ["cgrpo_loss", "k3"]

_CLAMP = 10.0


def k3(logps: torch.Tensor, ref_logps: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """``e^D - D - 1`` with ``D = log pi_ref - log pi`` clamped to +-10, per token; 0 where ``live`` is False."""
    gap = (torch.where(live, ref_logps, 0.0) - torch.where(live, logps, 0.0)).clamp(-_CLAMP, _CLAMP)
    return torch.exp(gap) - gap - 1


def cgrpo_loss(
    logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    responses: float,
    tokens: float,
    weights: torch.Tensor | None = None,
    ref_logps: torch.Tensor | None = None,
    beta: float = 0.0,
) -> torch.Tensor:
    r"""``-(1/|B|) sum_i A_i sum_t log pi(y_it) + beta (1/T) sum_it k3_it``, the share of the rows given (:func:`k3`).

    The sum of token log-probabilities is not divided by the length, there is no ratio and no clip: one on-policy step.

    Parameters
    ----------
    logps, mask : (B, T)
        Log-probabilities of the response tokens under the policy being trained; which tokens count.
    advantages : (B,)
    responses, tokens : float
        ``|B|`` and ``T`` of the whole optimizer step.
    weights : (B, T), optional
        Response mask: multiplies the policy term only.
    ref_logps : (B, T), needed if ``beta`` is not 0.

    Source: C-GRPO, Eq. 10-11.

    Examples
    --------
    >>> logps = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    >>> float(cgrpo_loss(logps, torch.tensor([1.0, 0.0]), torch.tensor([[1, 1], [1, 0]]), responses=2, tokens=3))
    1.5
    """
    live = mask != 0
    term = torch.where(live, logps, 0.0) * advantages[:, None]
    if weights is not None:
        term = term * weights
    loss = -term.sum() / max(responses, 1.0)
    if beta != 0.0:
        if ref_logps is None:
            raise ValueError(f"ref_logps: got None; need one per token; because beta is {beta}")
        loss = loss + beta * k3(logps, ref_logps, live).sum() / max(tokens, 1.0)
    return loss
