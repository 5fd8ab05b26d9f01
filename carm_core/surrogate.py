"""The clipped surrogate that a response mask gates. A rejected token is replaced before `exp`, so its gradient is exactly 0."""

import math
from typing import Any, Literal

from ._checks import check_number, check_shape
from ._namespace import detached, namespace, narrow, upcast

Normalize = Literal["fixed", "retained"]
Unit = Literal["token", "sequence"]


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
    Raises: ValueError for dual_clip <= 1, a negative clip width, guard <= 0 or shapes that do not fit; TypeError for mixed array types.
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
    if not guard > 0.0:
        raise ValueError(f"guard: got {guard}; need > 0; because it bounds |z|")
    r = xp.exp(xp.clip(upcast(z), -guard, guard))
    a = _token_advantages(advantages, z)
    value = xp.minimum(r * a, xp.clip(r, 1.0 - clip_low, 1.0 + clip_high) * a)
    return value if dual_clip is None else xp.where(a < 0, xp.maximum(value, dual_clip * a), value)


def sequence_log_ratio(z: Any, token_mask: Any) -> Any:
    """log s = mean of z over live tokens, repeated to (..., T): the length-normalised sequence ratio of GSPO. Differentiable in z.

    0 for a response without live tokens; what z holds at dead tokens reaches neither the value nor the gradient.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: GSPO (arXiv 2507.18071), Eq. 7.

    >>> import numpy as np
    >>> sequence_log_ratio(np.array([[0.3, -0.1, 9.0]]), np.array([[1, 1, 0]])).round(9).tolist()
    [[0.1, 0.1, 0.1]]
    """
    xp = namespace(z, token_mask)
    _check_tokens(z, token_mask)
    live = token_mask != 0
    safe = xp.where(live, upcast(z), 0.0)
    mean = xp.sum(safe, -1) / upcast(xp.clip(xp.sum(live, -1), 1, None))
    return xp.broadcast_to(mean[..., None], safe.shape)


def _check_tokens(z: Any, token_mask: Any) -> None:
    check_shape("token_mask", token_mask, z.shape, "it marks the tokens of z")


def _check_denominator(denominator: Any) -> None:
    because = "it counts tokens or responses"
    if hasattr(denominator, "shape"):
        check_shape("denominator", denominator, (), because)
    elif denominator is not None:
        check_number("denominator", denominator, lambda count: 0.0 <= count < math.inf, "a finite number >= 0", because)


def check_choice(name: str, value: Any, choices: tuple[str, str], because: str) -> None:
    """ValueError unless `value` is one of two words."""
    if value not in choices:
        raise ValueError(f"{name}: got {value!r}; need {choices[0]!r} or {choices[1]!r}; because {because}")


def check_form(normalize: Any, ratio: Any, aggregate: Any) -> None:
    """ValueError unless each option of the loss is one of its two words."""
    check_choice("normalize", normalize, ("fixed", "retained"), "the two losses differ by the kept fraction")
    check_choice("ratio", ratio, ("token", "sequence"), "a ratio is of a token or of a response")
    check_choice("aggregate", aggregate, ("token", "sequence"), "the count is of tokens or of responses")


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
    ratio: Unit = "token",
    aggregate: Unit = "token",
) -> Any:
    """-sum of the clipped surrogate over live tokens of kept responses, divided by a count; a scalar, differentiable in z.

    ``normalize="fixed"`` divides by all live tokens, whatever was rejected (verl, TRL, the paper's experiments); ``"retained"`` by those
    of kept responses (Eq. 3). `denominator` replaces the count, e.g. by one over all ranks: a number or a 0-d array (0 is taken as 1).
    Rejected responses and dead tokens give loss and gradient exactly 0 whatever they hold (NaN, inf, 1e4). With nothing kept the loss is
    0 and the graph is kept, so every rank still runs its backward. The mask gates this policy loss only; a KL term stays the caller's.

    Args:
        z: (B, T) log-ratios, with gradient in torch (`log_ratio(...).z`); |z| counts up to 20 nats.
        advantages: (B,), (B, 1) or (B, T).
        token_mask: (B, T), non-zero at live tokens (`log_ratio(...).live`).
        keep: (B,) or (B, 1) bool from ``rule.keep``.
        weights: optional (B, T) factors from ``rule.weights``, treated as constants.
        clip_low, clip_high, dual_clip: of `clipped_surrogate`. DAPO's clip-higher is 0.2, 0.28; GSPO uses 3e-4, 4e-4, None.
        ratio: "token" clips every r_t; "sequence" clips GSPO's s = exp(mean z) in its place (`sequence_log_ratio`).
        aggregate: "token" sums over tokens and counts tokens; "sequence" averages over the tokens of each response first and counts
            responses (GSPO, GRPO), those with a live token.

    Raises: ValueError for an unknown `normalize`, `ratio` or `aggregate`, or shapes that do not fit; TypeError for mixed array types.
    Source: CARM, Eqs. 2, 3, 72 and Appendix B; GSPO, Eqs. 5-7.

    >>> import numpy as np
    >>> z, A = np.log(np.array([[1.0, 1.5], [0.5, 1.0]])), np.array([1.0, -1.0])
    >>> m, keep = np.array([[1, 1], [1, 0]]), np.array([True, False])
    >>> round(float(masked_loss(z, A, m, keep)), 6), round(float(masked_loss(z, A, m, keep, normalize="retained")), 6)
    (-0.76, -1.14)
    >>> round(float(masked_loss(z, A, m, keep, ratio="sequence", aggregate="sequence", clip_low=3e-4, clip_high=4e-4)), 6)
    -0.5002
    """
    check_form(normalize, ratio, aggregate)
    if advantages is None:
        raise ValueError("advantages: got None; need an array; because the surrogate multiplies ratios by them")
    xp = namespace(z, advantages, token_mask, keep)
    _check_tokens(z, token_mask)
    _check_denominator(denominator)
    gate = keep[..., None] if keep.shape == z.shape[:-1] else keep
    if gate.shape != (*z.shape[:-1], 1):
        raise ValueError(f"keep: got shape {tuple(keep.shape)}; need {tuple(z.shape[:-1])}; because a response is kept or rejected whole")
    if weights is not None:
        namespace(z, weights)
        check_shape("weights", weights, z.shape, "they weigh the tokens of z")
    live = token_mask != 0
    active = live & (gate != 0)
    safe_z = sequence_log_ratio(z, active) if ratio == "sequence" else xp.where(active, upcast(z), 0.0)
    safe_a = xp.where(active, _token_advantages(advantages, z), 0.0)
    value = clipped_surrogate(safe_z, safe_a, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    if weights is not None:
        value = value * xp.where(active, upcast(detached(weights)), 0.0)
    value = xp.where(active, value, 0.0)
    counted = live if normalize == "fixed" else active
    if aggregate == "sequence":
        value = xp.sum(value, -1) / upcast(xp.clip(xp.sum(live, -1), 1, None))
        counted = xp.any(counted, -1)
    if denominator is None:
        denominator = xp.sum(counted)
    total = -xp.sum(value)
    if hasattr(denominator, "shape"):
        namespace(z, denominator)
        return total / narrow(xp.where(denominator == 0, 1, denominator), total.dtype)
    return total / (denominator or 1)
