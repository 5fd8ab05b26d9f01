"""Groups: the responses of one prompt at one step, as the arrays the cores take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_core import NOT_DRAWN, Outcomes, encode_answers, uniforms

from .responses import Responses
from .sources import Intake

__all__ = ["Groups", "one_per_prompt"]

_SLAB = 4096


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of responses, in order of step and appearance.

    Attributes
    ----------
    prompt : uint64 array, shape (n,)
        Content hash of the prompt (:func:`conformal_core.prompt_ids` of its text) or of the group id.
    step, size : int32 arrays, shape (n,)
    signal : bool array, shape (n,)
        Whether the group could move the weights: its logged advantages are not all 0, or, without advantages, its rewards differ.
    solved : float array, shape (n,)
        Share of responses that passed.
    tokens : float array, shape (n,), or None
        Tokens (see ``length_unit``) of all responses of the group.
    order, starts : int64 arrays
        Group i holds the responses ``order[starts[i] : starts[i + 1]]`` of ``responses`` (``order`` is None where they lie in order).
    responses : Responses
    passes : bool array
        Verdict of every response.
    """

    prompt: NDArray[np.uint64]
    step: NDArray[np.int32]
    size: NDArray[np.int32]
    signal: NDArray[np.bool_]
    solved: NDArray[np.float64]
    tokens: NDArray[np.float64] | None
    starts: NDArray[np.int64]
    order: NDArray[np.int64] | None
    responses: Responses
    passes: NDArray[np.bool_]
    intake: Intake

    @property
    def n(self) -> int:
        """Number of groups."""
        return int(self.prompt.size)

    @property
    def usual_size(self) -> int:
        """The most common group size."""
        return int(np.bincount(self.size).argmax()) if self.n else 0

    def cells(self, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """``(len(rows), width)`` positions of the first responses of the chosen groups, each of which has that many."""
        where = self.starts[rows][:, None] + np.arange(width)
        return where if self.order is None else self.order[where]

    def outcomes(self, rows: NDArray[np.int64], width: int) -> Outcomes:
        """The first ``width`` responses of the chosen groups as the cores take them.

        Answers become codes by :func:`conformal_core.encode_answers`.  Where the logs hold no gold answer, it is the most common answer
        among the accepted responses of the group; where nothing was accepted, an answer nobody gave.
        """
        passes = self.passes[self.cells(rows, width)]
        codes = gold = None
        if self.responses.answer is not None:
            codes = np.full((rows.size, width), NOT_DRAWN, np.int64)
            gold = np.zeros(rows.size, np.int64)
            for a in range(0, rows.size, _SLAB):
                cells = self.cells(rows[a : a + _SLAB], width)
                answers = self.responses.answer[cells].tolist()
                named = [[x or None for x in row] for row in answers]
                truth = self._gold(cells, named, passes[a : a + _SLAB])
                found, found_gold = encode_answers(named, gold=truth)
                codes[a : a + _SLAB, : found.shape[1]] = found
                gold[a : a + _SLAB] = found_gold
        return Outcomes(self.prompt[rows], passes, codes=codes, gold=gold)

    def _gold(self, cells: NDArray[np.int64], named: list[list[Any]], passes: NDArray[np.bool_]) -> list[Any]:
        known = [0] * len(named) if self.responses.gold is None else self.responses.gold[cells[:, 0]].tolist()
        out: list[Any] = []
        for truth, row, ok in zip(known, named, passes, strict=True):
            accepted = [x for x, passed in zip(row, ok.tolist(), strict=True) if passed and x is not None]
            if accepted and (not truth or truth not in accepted):  # the verifier's word: equal to gold in a form of its own
                truth = max(dict.fromkeys(accepted), key=accepted.count)
            out.append(truth or "\0 an answer nobody gave")
        return out


def one_per_prompt(groups: Groups, rows: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """One of the groups of each prompt, drawn by a keyed uniform, so that rows are exchangeable over prompts."""
    draw = uniforms(groups.prompt[rows] ^ groups.step[rows].astype(np.uint64), seed=seed, stream="one group per prompt")
    by = np.lexsort((draw, groups.prompt[rows]))
    sorted_prompts = groups.prompt[rows][by]
    first = np.concatenate([[True], sorted_prompts[1:] != sorted_prompts[:-1]]) if rows.size else np.zeros(0, np.bool_)
    return np.sort(rows[by[first]])
