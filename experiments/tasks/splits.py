"""Calibration, training and sealed test examples that share nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import NamedTuple

import numpy as np

from experiments import checks

from .rows import Example

__all__ = ["Splits", "distinct", "split"]


class Splits(NamedTuple):
    """Three lists of examples, disjoint by content and exchangeable."""

    calibration: list[Example]
    train: list[Example]
    test: list[Example]


def distinct(examples: Iterable[Example]) -> tuple[dict[str, Example], dict[str, tuple[str, str]]]:
    """One example per question by key, in the order of first occurrence, and two answers of every question that has several.

    Of rows that differ in white space, case or identifier only, the alphabetically first stands for all: which rows there are decides, not
    their order.  A question with two answers has no gold answer, so it is not among the examples.

    >>> kept, disputed = distinct([Example("A?", "1"), Example("a? ", "1"), Example("B?", "1"), Example("B?", "2")])
    >>> list(kept.values()), list(disputed.values())
    ([Example(question='A?', answer='1', starter='', source_id='')], [('1', '2')])
    """
    groups: dict[str, list[Example]] = {}
    for e in examples:
        groups.setdefault(e.key, []).append(e)
    answers = {key: sorted({e.answer for e in group}) for key, group in groups.items()}
    disputed = {key: (found[0], found[1]) for key, found in answers.items() if len(found) > 1}
    kept = {key: min(group, key=astuple) for key, group in groups.items() if key not in disputed}
    return kept, disputed


def split(examples: Sequence[Example], n_calibration: int, n_train: int, n_test: int, seed: int = 0) -> Splits:
    """Cut a data set into the three lists, a pure function of contents, sizes and seed.

    Each example is placed by a random permutation of the contents sorted by hash, so the split does not depend on the order of the file,
    and every example is equally likely to land in each list: what conformal guarantees assume.  The test list is cut first, so that
    other calibration and training sizes leave it as it is.

    Raises
    ------
    ValueError : a negative size, more than there is, with what fits, or a question with two answers.

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
        checks.whole(name, value, 0, "it counts examples")
    checks.seed("seed", seed)
    unique, disputed = distinct(examples)
    if disputed:
        key, (one, other) = next(iter(disputed.items()))
        question = next(e.question for e in examples if e.key == key)
        raise ValueError(
            f"examples: got {question[:60]!r} with the answers {one[:40]!r} and {other[:40]!r}; need one answer to a question; because the "
            "split would depend on which row comes first"
        )
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
