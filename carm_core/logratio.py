"""Log-ratios between the policy being trained and the policy that generated: the only way in for raw log-probabilities."""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

from ._checks import check_positive
from ._namespace import namespace, upcast

NonFinite = Literal["reject", "raise", "drop"]

_warned: set[str] = set()


@dataclass(frozen=True)
class LogRatio:
    """Guarded log-ratios and what was noticed on the way.

    Attributes:
        z: (..., T) log pi_theta - log pi_rollout, clipped; 0 at dead tokens, NaN at live tokens where it is not finite.
        clipped: (...,) number of live tokens the guard moved.
        nonfinite: (...,) bool, the response has a live token whose log-ratio is not finite; every rule rejects it, unless dropped.
        live: (..., T) bool, the tokens that count: what to pass to a rule as `token_mask`. It differs from ``token_mask != 0`` only under
            ``nonfinite="drop"``.
        length: (...,) number of live tokens T.
        empty: (...,) bool, no live token: neither accepted nor rejected, contributes 0, stays out of fractions.
    """

    z: Any
    clipped: Any
    nonfinite: Any
    live: Any
    length: Any
    empty: Any


def warn_half(*arrays: Any) -> None:
    """Warn, once per dtype and process, that log-probabilities arrive in half precision. Silent while torch.compile traces."""
    xp = namespace(*arrays)
    half = {str(a.dtype).rsplit(".", 1)[-1] for a in arrays} & {"float16", "bfloat16"}
    if not half or (hasattr(xp, "compiler") and xp.compiler.is_compiling()) or half <= _warned:
        return
    _warned.update(half)
    warnings.warn(
        f"log-probabilities arrive as {', '.join(sorted(half))}: their rounding alone can move a CARM score by several percent of "
        "log 1.02; keep log-probabilities in float32",
        UserWarning,
        stacklevel=3,
    )


def check_log_ratio(current: Any, rollout: Any, token_mask: Any, clip: float, nonfinite: NonFinite) -> Any:
    """The array library of the inputs of `log_ratio`, once they are known to fit together."""
    for name, value in (("current", current), ("rollout", rollout), ("token_mask", token_mask)):
        if value is None:
            because = "without the sampler's log-probabilities every log-ratio is 0" if name == "rollout" else "nothing stands in for it"
            raise ValueError(f"{name}: got None; need an array; because {because}")
    xp = namespace(current, rollout, token_mask)
    if not (current.shape == rollout.shape == token_mask.shape):
        raise ValueError(
            f"rollout, token_mask: got shapes {tuple(rollout.shape)}, {tuple(token_mask.shape)}; need {tuple(current.shape)}; "
            "because all three are read token for token"
        )
    check_positive("clip", clip, "it bounds |z|")
    if nonfinite not in ("reject", "raise", "drop"):
        raise ValueError(f"nonfinite: got {nonfinite!r}; need 'reject', 'raise' or 'drop'; because a silent fourth way would dilute scores")
    return xp


def log_ratio(current: Any, rollout: Any, token_mask: Any, *, clip: float = 20.0, nonfinite: NonFinite = "reject") -> LogRatio:
    r"""z_t = clip(log pi_theta(y_t) - log pi_rollout(y_t), -clip, clip) on live tokens, 0 elsewhere.

    Each operand is upcast before the subtraction (float64 in NumPy, at least float32 in torch). Values at dead tokens - padding, prompt,
    tool or observation tokens, whatever they hold - reach neither the result nor its gradient. In torch the result stays differentiable
    in `current`; the rules detach.

    Args:
        current: (..., T) log-probabilities of the sampled tokens under the policy being trained.
        rollout: (..., T) stored log-probabilities of the same tokens under the policy and engine that generated them, aligned token
            for token (shape is all that can be checked).
        token_mask: (..., T) bool or integer, non-zero at response tokens the policy generated.
        clip: guard in nats. The bounds on counts of out-of-band tokens survive it for bands inside (e^-clip, e^clip); severities and
            scores are those of the guarded ratios (paper, Appendix B).
        nonfinite: what to do with a live token whose log-ratio is not finite (an unscorable token, a masked vocabulary entry). "reject"
            marks its response so that every rule rejects it; "drop" removes the token from the sum *and* from T (pass `live` to the
            rule: with the original mask the response is still rejected, never diluted); "raise" raises, and syncs with the host.

    Raises:
        ValueError: shapes differ, clip is not positive, `nonfinite` is unknown, or a live token is not finite and "raise" was asked for.
        TypeError: NumPy and torch are mixed.

    Source: CARM, Algorithm 1 and Appendix B (numerical convention).

    >>> import numpy as np
    >>> r = log_ratio(np.array([[-1.0, -30.0, 0.0]]), np.array([[-1.5, -1.0, np.nan]]), np.array([[1, 1, 0]]))
    >>> r.z.tolist(), r.clipped.tolist(), r.length.tolist()
    ([[0.5, -20.0, 0.0]], [1], [2])
    """
    xp = check_log_ratio(current, rollout, token_mask, clip, nonfinite)
    warn_half(current, rollout)
    live = token_mask != 0
    wide_current, wide_rollout = upcast(current), upcast(rollout)
    usable = live & xp.isfinite(wide_current) & xp.isfinite(wide_rollout)
    raw = xp.where(usable, wide_current, 0.0) - xp.where(usable, wide_rollout, 0.0)
    bad = live & ~(usable & xp.isfinite(raw))
    z = xp.where(bad, float("nan"), xp.clip(raw, -clip, clip))
    flagged = xp.any(bad, -1)
    if nonfinite == "raise" and bool(xp.any(flagged)):
        raise ValueError(
            f"current, rollout: got a non-finite log-probability on {int(xp.sum(bad))} live token(s); need finite values; "
            "because nonfinite='raise'"
        )
    clipped = xp.sum((abs(raw) > clip) & ~bad, -1)
    live = live & ~bad if nonfinite == "drop" else live
    length = xp.sum(live, -1)
    return LogRatio(z=z, clipped=clipped, nonfinite=flagged, live=live, length=length, empty=length == 0)
