"""Randomness without state: uniform numbers as a pure function of (seed, step, stream, prompt).

A sequential generator hands out numbers in call order, so a decision would depend on batch composition, process rank and
what was resumed.  Here every prompt has its own number, wherever and whenever it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import as_ids

__all__ = ["prompt_ids", "uniforms"]

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def prompt_ids(texts: Iterable[str | bytes]) -> NDArray[np.uint64]:
    """Content hashes of prompts: the first 8 bytes (little endian) of BLAKE2b of the UTF-8 text.

    Equal texts get equal ids on every machine and in every process, unlike Python's salted ``hash``.  Two of N distinct
    texts collide with probability about ``N**2 / 2**65`` (3e-8 for a million).

    Parameters
    ----------
    texts : iterable of str or bytes
        Prompts; a conversation must be rendered to text first.

    Returns
    -------
    array of uint64, shape (n,)

    Raises
    ------
    ValueError
        If ``texts`` is itself a string, or an element is neither ``str`` nor ``bytes``.

    Examples
    --------
    >>> a, b, c = prompt_ids(["1+1=", "2+2=", "1+1="])
    >>> bool(a == c), bool(a == b)
    (True, False)
    """
    if isinstance(texts, (str, bytes)):
        raise ValueError("texts: got a single string; need a sequence of prompts; because its characters would be hashed")
    ids = []
    for text in texts:
        if not isinstance(text, (str, bytes)):
            raise ValueError(f"texts: got an element of type {type(text).__name__}; need str or bytes; because ids hash content")
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        ids.append(int.from_bytes(blake2b(raw, digest_size=8).digest(), "little"))
    return np.array(ids, dtype=np.uint64)


def uniforms(ids: ArrayLike, *, seed: int, step: int = 0, stream: str = "") -> NDArray[np.float64]:
    """One number in [0, 1) per id: a fixed function of (seed, step, stream, id), independent of order and batch.

    ``(mix(mix(id) + key) >> 11) * 2**-53`` with ``mix`` the finaliser of SplitMix64 and ``key`` a BLAKE2b hash of
    (seed, step, stream).  The same on every platform.

    Parameters
    ----------
    ids : array_like of uint64, any shape
        Prompt ids.
    seed, step : int
        Seed of the run; optimizer step.
    stream : str
        Purpose of the draw, so that two uses never share their numbers.

    Returns
    -------
    array of float64
        Shape of ``ids``.  As a model of randomness: independent uniform numbers for distinct (seed, step, stream, id).
        Equal ids (duplicated prompts) get equal numbers.

    Raises
    ------
    ValueError
        If ``ids`` are not integers in [0, 2**64), or seed or step is no integer.

    References
    ----------
    Steele, Lea, Flood (2014), *Fast splittable pseudorandom number generators* (SplitMix64).

    Examples
    --------
    >>> ids = prompt_ids(["a", "b", "c"])
    >>> all_at_once = uniforms(ids, seed=1, step=3, stream="aps")
    >>> bool(uniforms(ids[1:2], seed=1, step=3, stream="aps")[0] == all_at_once[1])
    True
    """
    raw = as_ids("ids", ids)
    for name, value in (("seed", seed), ("step", step)):
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise ValueError(
                f"{name}: got {value!r}; need an integer; because it keys the numbers, and a rounded key would repeat another's"
            )
    text = f"{int(seed)}/{int(step)}/{stream}".encode()
    key = np.uint64(int.from_bytes(blake2b(text, digest_size=8).digest(), "little"))
    with np.errstate(over="ignore"):
        mixed = _mixed(_mixed(raw) + key)
    return np.asarray((mixed >> _11).astype(np.float64) * 2.0**-53)


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The SplitMix64 step and finaliser: a bijection of the 64-bit integers that scatters nearby inputs."""
    with np.errstate(over="ignore"):
        return np.asarray(_mixed(x), dtype=np.uint64)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = x + _STEP
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)
