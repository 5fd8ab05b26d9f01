"""Per-response reductions, so that a rule is written once and runs on padded as well as on packed tokens."""

from typing import Any

from ._namespace import namespace, upcast


class Rows:
    """Padded responses: `z` and `token_mask` of shape (..., T), reduced over the last axis.

    Dead tokens are set to 0 before anything is computed; a non-finite value on a live token becomes NaN, which every rule rejects.
    """

    def __init__(self, z: Any, token_mask: Any) -> None:
        self.xp = namespace(z, token_mask)
        if z.shape != token_mask.shape:
            raise ValueError(f"token_mask: got shape {tuple(token_mask.shape)}; need {tuple(z.shape)}; because it marks the tokens of z")
        self.live = token_mask != 0
        wide = upcast(z.detach() if hasattr(z, "detach") else z)
        finite = self.xp.where(self.xp.isfinite(wide), wide, float("nan"))
        self.z = self.xp.where(self.live, finite, 0.0)
        self._setup()

    def finite(self) -> Any:
        """One bool per response: every live log-ratio is finite."""
        return self.xp.isfinite(self.sum(self.z))

    def _setup(self) -> None:
        self.length = self.sum(self.live)
        self.divisor = upcast(self.xp.clip(self.length, 1, None))

    def sum(self, x: Any) -> Any:
        return self.xp.sum(x, -1)

    def mean(self, x: Any) -> Any:
        return self.sum(x) / self.divisor

    def max(self, x: Any) -> Any:
        """Largest of non-negative `x`; 0 for a response without live tokens."""
        return self.xp.amax(x, -1) if x.shape[-1] else self.sum(x)

    def spread(self, per_row: Any) -> Any:
        """One value per response, repeated to the shape of the tokens."""
        return self.xp.broadcast_to(per_row[..., None], self.z.shape)

    def advantage(self, advantages: Any) -> Any:
        """One advantage per response; per-token advantages are averaged over live tokens, so a response is decided as a whole."""
        namespace(self.z, advantages)
        if advantages.shape == self.length.shape:
            return advantages
        if advantages.shape == (*self.length.shape, 1):
            return advantages[..., 0]
        if advantages.shape == self.z.shape:
            return self.mean(self.xp.where(self.live, upcast(advantages), 0.0))
        raise ValueError(
            f"advantages: got shape {tuple(advantages.shape)}; need {tuple(self.length.shape)}, one more axis of 1, or "
            f"{tuple(self.z.shape)}; because a response has one sign"
        )
