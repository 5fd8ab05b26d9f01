"""Calibration, training and sealed test examples that share nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .rows import Example

__all__ = ["Splits", "split"]


class Splits(NamedTuple):
    """Three lists of examples, disjoint by content and exchangeable."""

    calibration: list[Example]
    train: list[Example]
    test: list[Example]


def split(examples: Sequence[Example], n_calibration: int, n_train: int, n_test: int, seed: int = 0) -> Splits:
    """Cut a data set into the three lists, a pure function of contents, sizes and seed.

    Each example is placed by a random permutation of the contents sorted by hash, so the split does not depend on the order of the file,
    and every example is equally likely to land in each list: what conformal guarantees assume.  The test list is cut first, so that
    other calibration and training sizes leave it as it is.

    Raises
    ------
    ValueError : a negative size, or more than there is, with what fits.

    >>> data = [Example(f"{i} + 1 =", str(i + 1)) for i in range(10)]
    >>> [len(part) for part in split(data, 2, 5, 3)]
    [2, 5, 3]
    >>> split(data, 3, 10, 7)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: splits: got 3 calibration + 10 train + 7 test = 20; need at most 10; because there ... 1 + 6 + 3 fit)
    """
    sizes = {"n_calibration": n_calibration, "n_train": n_train, "n_test": n_test}
    for name, value in sizes.items():
        if value < 0:
            raise ValueError(f"{name}: got {value}; need an integer >= 0; because it counts examples")
    unique = {e.key: e for e in examples}
    total = sum(sizes.values())
    if total > len(unique):
        c, t = (n * len(unique) // total for n in (n_calibration, n_test))
        raise ValueError(
            f"splits: got {n_calibration} calibration + {n_train} train + {n_test} test = {total}; need at most {len(unique)}; because "
            f"there are no more distinct examples (in the same proportion {c} + {len(unique) - c - t} + {t} fit)"
        )
    keys = sorted(unique)
    order = np.random.default_rng([seed, 0x5EA1]).permutation(len(keys))
    shuffled = [unique[keys[i]] for i in order]
    cut = n_test + n_calibration
    return Splits(shuffled[n_test:cut], shuffled[cut : cut + n_train], shuffled[:n_test])
