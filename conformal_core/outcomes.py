"""What a rollout policy is shown: the verified responses of a batch of prompts, so far.

Rows are prompts, columns are responses in the order they were drawn.  Prompts may stand at different budgets:
row ``i`` holds ``drawn[i]`` responses, and nothing at or beyond column ``drawn[i]`` may influence a decision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import as_ids, int64_codes

__all__ = ["NOT_DRAWN", "UNPARSABLE", "Outcomes"]

#: Answer code of a response whose answer could not be parsed: it carries no mass but stays in the denominator.
UNPARSABLE = -1
#: Answer code in columns that were never drawn.
NOT_DRAWN = -2
#: Default of ``drawn``: every column; replaced by the number of columns when the object is made.
_ALL: Any = None


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Verified responses of ``n`` prompts, up to ``width`` responses each.

    Parameters
    ----------
    prompt_ids : array of uint64, shape (n,)
        Content hashes of the prompts (:func:`conformal_core.prompt_ids`).  They key every random stream, so a
        decision does not depend on call order, batch composition or process rank.
    passes : array of bool, shape (n, width)
        Whether the verifier accepted the response.  ``False`` in columns not drawn.
    drawn : array of int64, shape (n,), optional
        Responses drawn so far, ``0 <= drawn <= width``.  Default: all ``width``.
    codes : array of int64, shape (n, width), optional
        Integer answer codes, equal codes being equal answers *within a row*; ``-1`` is an unparsable answer
        (:data:`UNPARSABLE`), ``-2`` a response not drawn (:data:`NOT_DRAWN`).  ``None`` where answers have no identity (code).
    gold : array of int64, shape (n,), optional
        Code of the gold answer in the same coding.  ``None`` where it is unknown, as at inference.
    step : int
        Optimizer step at which the responses were drawn; part of the key of the random streams, and the clock of policies that
        calibrate: it must advance from one batch of training to the next.

    Raises
    ------
    ValueError
        If shapes disagree, ``drawn`` leaves ``[0, width]``, or a code is below ``-2`` or above ``2**63 - 1``.

    Notes
    -----
    Arrays are kept as given where their type allows, not copied: changing them afterwards changes the outcomes.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes(np.array([7], np.uint64), np.array([[True, False, True]]))
    >>> o.prefix(np.array([2])).passes.tolist()
    [[True, False, False]]
    """

    prompt_ids: NDArray[np.uint64]
    passes: NDArray[np.bool_]
    drawn: NDArray[np.int64] = _ALL
    codes: NDArray[np.int64] | None = None
    gold: NDArray[np.int64] | None = None
    step: int = 0

    def __post_init__(self) -> None:
        if self.drawn is not None and np.asarray(self.drawn).size and np.asarray(self.drawn).dtype.kind not in "iu":
            raise ValueError(f"drawn: got {np.asarray(self.drawn).dtype}; need integers; because they are counts")
        ids = as_ids("prompt_ids", self.prompt_ids)
        passes = np.asarray(self.passes)
        object.__setattr__(self, "step", int(self.step))
        if passes.ndim != 2 or passes.dtype != np.bool_:
            raise ValueError(
                f"passes: got {passes.dtype} of shape {passes.shape}; need bool of shape (prompts, responses); "
                "because a verdict is true or false, one per response"
            )
        n, width = passes.shape
        if ids.shape != (n,):
            raise ValueError(f"prompt_ids: got shape {ids.shape}; need ({n},); because passes has {n} rows")
        drawn = np.full(n, width, np.int64) if self.drawn is None else np.asarray(self.drawn, dtype=np.int64)
        if drawn.shape != (n,) or (n and (drawn.min() < 0 or drawn.max() > width)):
            raise ValueError(
                f"drawn: got shape {drawn.shape} with values in "
                f"[{drawn.min() if drawn.size else 0}, {drawn.max() if drawn.size else 0}]; need ({n},) within "
                f"[0, {width}]; because row i holds drawn[i] of at most {width} responses"
            )
        object.__setattr__(self, "prompt_ids", ids)
        object.__setattr__(self, "passes", passes)
        object.__setattr__(self, "drawn", drawn)
        for name, shape in (("codes", (n, width)), ("gold", (n,))):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int64_codes(name, getattr(self, name), shape, least=NOT_DRAWN))

    @property
    def n(self) -> int:
        """Number of prompts."""
        return int(self.passes.shape[0])

    @property
    def width(self) -> int:
        """Number of response columns."""
        return int(self.passes.shape[1])

    @property
    def live(self) -> NDArray[np.bool_]:
        """``(n, width)``: which cells hold a response that was drawn."""
        return np.arange(self.width) < self.drawn[:, None]

    def prefix(self, drawn: NDArray[np.int64] | int) -> Outcomes:
        """The same prompts when only the first ``drawn`` responses of each had been seen (later cells are blanked)."""
        drawn = np.minimum(np.broadcast_to(np.asarray(drawn, np.int64), (self.n,)), self.drawn)
        live = np.arange(self.width) < drawn[:, None]
        codes = None if self.codes is None else np.where(live, self.codes, NOT_DRAWN)
        return replace(self, passes=self.passes & live, drawn=drawn, codes=codes)

    def widen(self, width: int) -> Outcomes:
        """At least ``width`` response columns, the new ones not drawn: for groups all of which stopped before ``width`` responses.

        Examples
        --------
        >>> Outcomes([1], np.array([[True]])).widen(3).drawn.tolist()
        [1]
        """
        pad = ((0, 0), (0, max(width - self.width, 0)))
        codes = None if self.codes is None else np.pad(self.codes, pad, constant_values=NOT_DRAWN)
        return replace(self, passes=np.pad(self.passes, pad), codes=codes)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Outcomes:
        """The chosen rows, in the given order."""
        return replace(
            self,
            prompt_ids=self.prompt_ids[rows],
            passes=self.passes[rows],
            drawn=self.drawn[rows],
            codes=None if self.codes is None else self.codes[rows],
            gold=None if self.gold is None else self.gold[rows],
        )
