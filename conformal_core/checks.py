"""Input as the arrays the library works on, refused where a conversion would change what it says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["as_floats", "as_ids", "generator", "int64_codes"]


def as_floats(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """``values`` as float64; ``ValueError`` for text, complex numbers, and masked entries, whose mask would be lost.

    Examples
    --------
    >>> as_floats("scores", [1, 2]).tolist()
    [1.0, 2.0]
    """
    if np.ma.is_masked(values):
        raise ValueError(f"{name}: got a masked array; need all entries known; because a masked entry would count with its hidden value")
    try:
        raw = np.asarray(values)
        if raw.dtype.kind in "cSU":
            raise TypeError(f"{raw.dtype}")
        return np.asarray(raw, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name}: got {type(values).__name__} ({error}); need real numbers; because they are compared") from None


def as_ids(name: str, values: ArrayLike) -> NDArray[np.uint64]:
    """``values`` as uint64; a list may mix small and huge Python integers.  ``ValueError`` unless integers in [0, 2**64).

    Examples
    --------
    >>> as_ids("ids", [1, 2**63]).tolist()
    [1, 9223372036854775808]
    """
    raw = np.asarray(values)
    if raw.dtype.kind not in "iu" and not isinstance(values, np.ndarray):
        listed = np.asarray(values, dtype=object)  # a list of small and of huge Python ints would become float64
        if all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in listed.flat):
            low, high = min(listed.flat, default=0), max(listed.flat, default=0)
            if low < 0 or high >= 2**64:
                raise ValueError(
                    f"{name}: got {low} to {high}; need numbers in [0, 2**64); because they are 64-bit hashes (see prompt_ids)"
                )
            raw = listed.astype(np.uint64)
    if raw.size and raw.dtype.kind not in "iu":
        raise ValueError(f"{name}: got {raw.dtype}; need integers; because they are content hashes (see prompt_ids)")
    if raw.size and raw.dtype.kind == "i" and raw.min() < 0:
        raise ValueError(f"{name}: got {raw.min()}; need numbers in [0, 2**64); because they are 64-bit hashes (see prompt_ids)")
    return raw.astype(np.uint64)


def int64_codes(name: str, values: ArrayLike, shape: tuple[int, ...] | None = None, *, least: int | None = None) -> NDArray[np.int64]:
    """Answer codes as int64; ``ValueError`` unless they are integers of that shape, at least ``least`` and below 2**63.

    Examples
    --------
    >>> int64_codes("codes", [[0, -1]]).dtype.name
    'int64'
    """
    raw = np.asarray(values)
    fits = raw.size == 0 or raw.dtype.kind in "iu"
    small = least is not None and fits and raw.size and raw.min() < least
    huge = raw.size and raw.dtype == np.uint64 and raw.max() >= 2**63
    if not fits or (shape is not None and raw.shape != shape) or small or huge:
        bound = "integers" if least is None else f"integers >= {least}"
        wanted = "" if shape is None else f" of shape {shape}"
        below = " below 2**63" if huge else ""
        raise ValueError(
            f"{name}: got {raw.dtype} of shape {raw.shape}; need {bound}{below}{wanted}; because answers enter as integer codes "
            "(see encode_answers)"
        )
    return raw.astype(np.int64, copy=False)


def generator(seed: int | Sequence[int]) -> np.random.Generator:
    """NumPy's generator of a seed; ``ValueError`` unless it is made of integers >= 0.

    Examples
    --------
    >>> generator(0).integers(10, size=3).tolist() == generator([0]).integers(10, size=3).tolist()
    True
    """
    parts = list(seed) if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str) else [seed]
    if not parts or any(isinstance(s, bool) or not isinstance(s, (int, np.integer)) or s < 0 for s in parts):
        raise ValueError(f"seed: got {seed!r}; need an integer >= 0, or several; because it is the key of a reproducible shuffle")
    return np.random.default_rng(seed)
