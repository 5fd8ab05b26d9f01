"""Answers as small integers: the scores only ask which answers of a prompt are equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import count
from operator import eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .outcomes import NOT_DRAWN, UNPARSABLE

__all__ = ["encode_answers"]


def encode_answers(
    answers: Iterable[Sequence[Hashable | None]], gold: Sequence[Hashable | None] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Integer codes of answers, row by row, in order of first appearance.

    Answers are equal if Python says so (``1 == 1.0 == True``): normalise them first.  Codes mean nothing across rows.  What does not
    equal itself (NaN) is no answer: ``-1``, as answer and as gold.

    Parameters
    ----------
    answers : iterable of n sequences of hashables
        Row i holds the answers of prompt i in the order drawn.  ``None`` is an unparsable answer: code ``-1``.  Short rows
        are padded with ``-2`` (not drawn).
    gold : sequence of n hashables, optional
        The gold answers.  One that was not sampled gets a code of its own; ``None`` gets ``-1``, which no answer equals.

    Returns
    -------
    codes : array of int64, shape (n, width)
        For :class:`conformal_core.Outcomes`; ``width`` is the length of the longest row.
    gold_codes : array of int64, shape (n,), or None
        ``None`` iff ``gold`` is.

    Raises
    ------
    ValueError
        If a row is a string, an answer cannot be hashed, or ``gold`` has the wrong length.

    Examples
    --------
    >>> codes, gold = encode_answers([["4", "5", "4"], ["x", None]], gold=["5", "y"])
    >>> codes.tolist(), gold.tolist()
    ([[0, 1, 0], [0, -1, -2]], [1, 1])
    """
    rows = [row if isinstance(row, Sequence | np.ndarray) else _listed(i, row) for i, row in enumerate(answers)]
    if gold is not None and len(gold) != len(rows):
        raise ValueError(f"gold: got {len(gold)} answers; need {len(rows)}; because there is one per prompt")
    codes = np.full((len(rows), max(map(len, rows), default=0)), NOT_DRAWN, np.int64)
    gold_codes = None if gold is None else np.full(len(rows), UNPARSABLE, np.int64)
    for i, row in enumerate(rows):
        if isinstance(row, (str, bytes)):
            raise ValueError(f"answers: got the string {row!r} as row {i}; need a sequence of answers; because a row is a group")
        code = _next_codes()
        try:
            codes[i, : len(row)] = list(map(code.__getitem__, row))
            if not all(map(eq, code, code)):
                code = _next_codes()
                codes[i, : len(row)] = [code[a] if a == a else UNPARSABLE for a in row]
            if gold is not None and gold_codes is not None and gold[i] == gold[i]:
                gold_codes[i] = code[gold[i]]
        except TypeError as error:
            raise ValueError(f"answers: got an unhashable answer in row {i}; need hashables; because only equality counts") from error
    return codes, gold_codes


def _listed(i: int, row: Any) -> list[Any]:
    if not isinstance(row, Iterable):
        raise ValueError(f"answers: got {row!r} as row {i}; need a sequence of answers; because a row is a group")
    return list(row)


def _next_codes() -> dict[Hashable | None, int]:
    """Codes of one row: an answer that was not seen gets the next one."""
    return defaultdict(count().__next__, {None: UNPARSABLE})
