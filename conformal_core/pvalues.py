"""Conformal p-values.  The set ``{p > delta}`` of the plain ones is the set ``{score <= conformal_quantile}``."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import as_floats

__all__ = ["plain_p_values", "smoothed_p_values"]


def plain_p_values(calibration: ArrayLike, test: ArrayLike) -> NDArray[np.float64]:
    """``p = (1 + #{i : S_i >= s}) / (n + 1)`` for every test score ``s``.

    If the test score is exchangeable with the calibration scores, ``P(p <= t) <= t`` for all t, ties or not.  ``p > delta``
    (strict) iff ``s <= conformal_quantile(calibration, delta).value``: compare with ``float(as_level(delta))``, since a
    Python ``Fraction`` compares with a float's exact binary value.

    Parameters
    ----------
    calibration : array_like, shape (n,)
        Calibration scores, n >= 0; +inf allowed.
    test : array_like, any shape
        Test scores.

    Returns
    -------
    array of float64
        Shape of ``test``; multiples of 1/(n + 1) in [1/(n + 1), 1].

    Raises
    ------
    ValueError
        If there is a NaN, or ``calibration`` is not one-dimensional.

    References
    ----------
    Vovk, Gammerman, Shafer (2005), Prop. 2.8.

    Examples
    --------
    >>> plain_p_values([1.0, 2.0, 2.0, 3.0], [2.0, 9.0]).tolist()
    [0.8, 0.2]
    """
    ordered, s = _checked(calibration, test)
    at_least = ordered.size - np.searchsorted(ordered, s, side="left")
    return np.asarray((1 + at_least) / (ordered.size + 1), dtype=np.float64)


def smoothed_p_values(calibration: ArrayLike, test: ArrayLike, u: ArrayLike) -> NDArray[np.float64]:
    """``p = (#{i : S_i > s} + u * (1 + #{i : S_i = s})) / (n + 1)`` for every test score ``s``.

    With ``u`` uniform on [0, 1] and independent of exchangeable scores, p is *exactly* uniform, ties or not, for every
    n >= 0: the set ``{p > delta}`` covers with probability exactly ``1 - delta``, even for ``delta < 1 / (n + 1)``.  The price
    is a randomised decision: record ``u``.

    Parameters
    ----------
    calibration : array_like, shape (n,)
        Calibration scores, n >= 0; +inf allowed.
    test : array_like, any shape
        Test scores.
    u : array_like, broadcastable to ``test``
        One uniform number per test *point*, in [0, 1] (see :func:`conformal_core.keys.uniforms`).

    Returns
    -------
    array of float64
        Shape of ``test`` broadcast with ``u``.

    Raises
    ------
    ValueError
        If there is a NaN, ``u`` leaves [0, 1], or ``calibration`` is not one-dimensional.

    References
    ----------
    Vovk, Gammerman, Shafer (2005), Prop. 2.4.

    Examples
    --------
    >>> smoothed_p_values([0.5, 0.5, 1.0, 0.25], [0.5], [0.5]).tolist()
    [0.5]
    """
    ordered, s = _checked(calibration, test)
    coin = as_floats("u", u)
    try:
        np.broadcast_shapes(coin.shape, s.shape)
    except ValueError:
        raise ValueError(f"u: got shape {coin.shape}; need one that fits {s.shape}; because each test point has one number") from None
    if not bool(np.all((coin >= 0) & (coin <= 1))):
        raise ValueError("u: got values outside [0, 1] or NaN; need numbers in [0, 1]; because they smooth between two ranks")
    right = np.searchsorted(ordered, s, side="right")
    equal = right - np.searchsorted(ordered, s, side="left")
    return np.asarray((ordered.size - right + coin * (1 + equal)) / (ordered.size + 1), dtype=np.float64)


def _checked(calibration: ArrayLike, test: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    cal, s = as_floats("calibration", calibration), as_floats("test", test)
    if cal.ndim != 1:
        raise ValueError(f"calibration: got shape {cal.shape}; need one dimension; because it is one sample of scores")
    for name, value in (("calibration", cal), ("test", s)):
        if np.isnan(value).any():
            raise ValueError(f"{name}: got NaN; need numbers or +inf; because NaN has no rank")
    return np.sort(cal), s
