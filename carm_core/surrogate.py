"""The clipped surrogate that a response mask gates. A rejected token is replaced before `exp`, so its gradient is exactly 0."""

from typing import Any, Literal

from ._namespace import namespace, upcast

Normalize = Literal["fixed", "retained"]


def _token_advantages(advantages: Any, z: Any) -> Any:
    a = upcast(advantages)
    if a.shape == z.shape[:-1]:
        a = a[..., None]
    if a.shape not in (z.shape, (*z.shape[:-1], 1)):
        raise ValueError(
            f"advantages: got shape {tuple(advantages.shape)}; need {tuple(z.shape[:-1])}, {(*z.shape[:-1], 1)} or {tuple(z.shape)}; "
            "because every token needs exactly one"
        )
    return a


def clipped_surrogate(
    z: Any, advantages: Any, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = 3.0, guard: float = 20.0
) -> Any:
    """min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), and for A < 0 at least dual_clip * A. To be maximised; differentiable in z.

    Args:
        z: (..., T) log-ratios; |z| is guarded at `guard`.
        advantages: (...,), (..., 1) or (..., T).
        dual_clip: c > 1, or None for no dual clip.

    Returns: (..., T), float64 in NumPy and at least float32 in torch.
    Raises: ValueError for dual_clip <= 1, a negative clip width or shapes that do not fit; TypeError for mixed array types.
    Source: CARM, Eqs. 2 and 72 (PPO clip with DAPO's clip-higher, dual clip of arXiv 1912.09729).

    >>> import numpy as np
    >>> clipped_surrogate(np.log(np.array([[1.5], [3.5]])), np.array([1.0, -1.0])).round(9).tolist()
    [[1.28], [-3.0]]
    """
    xp = namespace(z, advantages)
    if not (0.0 <= clip_low < 1.0 and clip_high >= 0.0):
        raise ValueError(
            f"clip_low, clip_high: got {clip_low}, {clip_high}; need 0 <= clip_low < 1 and clip_high >= 0; because r = 1 is inside"
        )
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip: got {dual_clip}; need > 1; because at most 1 would clip on-policy tokens")
    r = xp.exp(xp.clip(upcast(z), -guard, guard))
    a = _token_advantages(advantages, z)
    value = xp.minimum(r * a, xp.clip(r, 1.0 - clip_low, 1.0 + clip_high) * a)
    return value if dual_clip is None else xp.where(a < 0, xp.maximum(value, dual_clip * a), value)


def masked_loss(
    z: Any,
    advantages: Any,
    token_mask: Any,
    keep: Any,
    *,
    normalize: Normalize = "fixed",
    denominator: Any = None,
    weights: Any = None,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
) -> Any:
    """-sum of the clipped surrogate over live tokens of kept responses, divided by a token count; a scalar, differentiable in z.

    ``normalize="fixed"`` divides by all live tokens, whatever was rejected (verl, TRL, the paper's experiments); ``"retained"`` by those
    of kept responses (Eq. 3). `denominator` replaces the count, e.g. by one taken over all ranks (below 1 it is taken as 1).
    Rejected responses and dead tokens give
    loss and gradient exactly 0 whatever they hold (NaN, inf, 1e4). With nothing kept the loss is 0 and the graph is kept, so every rank
    still runs its backward. The mask gates this policy loss only; a KL term stays the caller's.

    Args:
        z: (B, T) log-ratios, with gradient in torch (`log_ratio(...).z`).
        advantages: (B,), (B, 1) or (B, T).
        token_mask: (B, T), non-zero at live tokens.
        keep: (B,) or (B, 1) bool from ``rule.keep``.
        weights: optional (B, T) factors from ``rule.weights``, treated as constants.

    Raises: ValueError for an unknown `normalize` or shapes that do not fit; TypeError for mixed array types.
    Source: CARM, Eqs. 2, 3, 72 and Appendix B.

    >>> import numpy as np
    >>> z, A = np.log(np.array([[1.0, 1.5], [0.5, 1.0]])), np.array([1.0, -1.0])
    >>> m, keep = np.array([[1, 1], [1, 0]]), np.array([True, False])
    >>> round(float(masked_loss(z, A, m, keep)), 6), round(float(masked_loss(z, A, m, keep, normalize="retained")), 6)
    (-0.76, -1.14)
    """
    if normalize not in ("fixed", "retained"):
        raise ValueError(f"normalize: got {normalize!r}; need 'fixed' or 'retained'; because the two losses differ by the kept fraction")
    xp = namespace(z, advantages, token_mask, keep)
    if token_mask.shape != z.shape:
        raise ValueError(f"token_mask: got shape {tuple(token_mask.shape)}; need {tuple(z.shape)}; because it marks the tokens of z")
    gate = keep[..., None] if keep.shape == z.shape[:-1] else keep
    if gate.shape != (*z.shape[:-1], 1):
        raise ValueError(f"keep: got shape {tuple(keep.shape)}; need {tuple(z.shape[:-1])}; because a response is kept or rejected whole")
    if weights is not None:
        namespace(z, weights)
        if weights.shape != z.shape:
            raise ValueError(f"weights: got shape {tuple(weights.shape)}; need {tuple(z.shape)}; because they weigh the tokens of z")
    live = token_mask != 0
    active = live & (gate != 0)
    safe_z = xp.where(active, upcast(z), 0.0)
    safe_a = xp.where(active, _token_advantages(advantages, z), 0.0)
    value = clipped_surrogate(safe_z, safe_a, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    if weights is not None:
        value = value * xp.where(active, upcast(weights.detach() if hasattr(weights, "detach") else weights), 0.0)
    total = xp.sum(xp.where(active, value, 0.0))
    if denominator is None:
        denominator = xp.sum(live if normalize == "fixed" else active)
    return -total / (xp.clip(denominator, 1, None) if hasattr(denominator, "shape") else max(denominator, 1))
