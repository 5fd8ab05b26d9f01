"""Per-response reductions, so that a rule is written once and runs on padded, packed and blockwise tokens."""

from collections.abc import Callable
from typing import Any

from ._checks import check_shape
from ._namespace import accumulator, detached, namespace, narrow, upcast

Elementwise = Callable[[Any], Any]


def check_advantages(advantages: Any, rows: Any, *tokens: Any) -> None:
    """ValueError unless the shape of `advantages` is that of the responses `rows`, with one more axis of 1 or not, or one of `tokens`."""
    *fitting, last = tuple(rows), (*rows, 1), *(tuple(shape) for shape in tokens)
    if tuple(advantages.shape) not in (*fitting, last):
        raise ValueError(
            f"advantages: got shape {tuple(advantages.shape)}; need {', '.join(map(str, fitting))} or {last}; "
            "because a response has one sign"
        )


class Rows:
    """Padded responses: `z` and `token_mask` of shape (..., T), reduced over the last axis.

    Dead tokens are set to 0 before anything is computed; a non-finite value on a live token becomes NaN, which every rule rejects.
    Sums accumulate in float64 where the device has it and are divided there, then rounded once to the dtype of `z`.

    Attributes: `xp` (numpy or torch), `z`, `live` (..., T), `length` (...,).
    """

    def __init__(self, z: Any, token_mask: Any) -> None:
        self.xp = namespace(z, token_mask)
        check_shape("token_mask", token_mask, z.shape, "it marks the tokens of z")
        wide = upcast(detached(z))
        live = token_mask != 0
        self._set(self.xp.where(live, self.xp.where(self.xp.isfinite(wide), wide, float("nan")), 0.0), live)

    def _set(self, z: Any, live: Any) -> None:
        self.z, self.live = z, live
        self.length = self.sum(live)

    def sum(self, x: Any) -> Any:
        """Sum of per-token `x` for each response, in the dtype of `x` (integers for bool)."""
        return narrow(self._accumulate(x), x.dtype) if self._is_float(x) else self.xp.sum(x, -1)

    def mean(self, x: Any) -> Any:
        """Sum of `x`, which is 0 at dead tokens, over the number of live tokens; 0 for a response without any."""
        return narrow(self._accumulate(x) / narrow(self.xp.clip(self.length, 1, None), accumulator(x)), x.dtype)

    def max(self, x: Any) -> Any:
        """Largest of non-negative `x`; 0 for a response without live tokens."""
        return self.xp.amax(x, -1) if x.shape[-1] else self.sum(x)

    def total_of(self, f: Elementwise) -> Any:
        """Sum over live tokens of f(z); `f` is elementwise with f(0) = 0 and f(NaN) = NaN."""
        return self.sum(f(self.z))

    def mean_of(self, f: Elementwise) -> Any:
        """Mean over live tokens of f(z), `f` as in `total_of`. Rules that read only `*_of` run blockwise in bounded memory."""
        return self.mean(f(self.z))

    def max_of(self, f: Elementwise) -> Any:
        """Largest f(z) over live tokens, `f` as in `total_of` and non-negative."""
        return self.max(f(self.z))

    def finite(self) -> Any:
        """One bool per response: every live log-ratio is finite."""
        return self.xp.isfinite(self.total_of(lambda z: z))

    def spread(self, per_row: Any) -> Any:
        """One value per response, repeated to the shape of the tokens."""
        return self.xp.broadcast_to(per_row[..., None], self.z.shape)

    def check(self, advantages: Any) -> None:
        """ValueError or TypeError unless `advantages` fit these responses: one each, or one a token."""
        namespace(self.length, advantages)
        check_advantages(advantages, self.length.shape, self.live.shape)

    def advantage(self, advantages: Any) -> Any:
        """One advantage per response; per-token advantages are averaged over live tokens, so a response is decided as a whole."""
        if advantages.shape == self.length.shape:
            return advantages
        if advantages.shape == (*self.length.shape, 1):
            return advantages[..., 0]
        return self.mean(self.xp.where(self.live, upcast(advantages), 0.0))

    def _is_float(self, x: Any) -> bool:
        return bool(x.dtype.kind == "f") if hasattr(x.dtype, "kind") else bool(x.dtype.is_floating_point)

    def _accumulate(self, x: Any) -> Any:
        return self.xp.sum(x, -1, dtype=accumulator(x))
