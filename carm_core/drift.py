"""Where along a response does the drift build up? Prefix sums of log-ratios, for plots like Figure 1 of the paper."""

from dataclasses import dataclass
from typing import Any

from ._namespace import accumulator, narrow
from .rows import Rows


@dataclass(frozen=True)
class Drift:
    """Running sums over the live tokens of each response, (..., T); constant over dead tokens, NaN from a non-finite one on.

    Attributes:
        signed: sum of z up to and including each token; its last value is T g.
        absolute: sum of |z|; its last value is T d.
        length: number of live tokens so far.
    """

    signed: Any
    absolute: Any
    length: Any

    @property
    def positive(self) -> Any:
        """Mass of the log-ratios above 0 so far: (absolute + signed) / 2."""
        return (self.absolute + self.signed) / 2

    @property
    def negative(self) -> Any:
        """Mass of the log-ratios below 0 so far, as a non-negative number: (absolute - signed) / 2."""
        return (self.absolute - self.signed) / 2


def prefix_drift(z: Any, token_mask: Any) -> Drift:
    """Prefix sums of z and |z| over the live tokens of each response.

    Args: z, token_mask: (..., T). Returns: `Drift`, float64 in NumPy and at least float32 in torch, detached.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: CARM, Figure 1 (top).

    >>> import numpy as np
    >>> drift = prefix_drift(np.array([[0.5, 9.0, -0.25]]), np.array([[1, 0, 1]]))
    >>> drift.signed.tolist(), drift.absolute.tolist(), drift.negative.tolist()
    ([[0.5, 0.5, 0.25]], [[0.5, 0.5, 0.75]], [[0.0, 0.0, 0.25]])
    """
    rows = Rows(z, token_mask)
    wide = narrow(rows.z, accumulator(rows.z))
    signed, absolute = (narrow(rows.xp.cumsum(x, -1), rows.z.dtype) for x in (wide, abs(wide)))
    return Drift(signed=signed, absolute=absolute, length=rows.xp.cumsum(rows.live, -1))
