"""Refusals word for word: what was given, what is needed."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import nan

import numpy as np
import pytest

from conformal_core import APS, Outcomes, calibrate_thresholds, conformal_quantile, lead, margin_stop, risk_control, weighted_quantile
from conformal_core.lead import stop_intervals
from conformal_core.sets import randomized_set
from conformal_core.simultaneous import max_rank, split_ecdf

CODES, GOLD = np.zeros((2, 4), np.int64), np.zeros(2, np.int64)


def table(**fields: object) -> Outcomes:
    return Outcomes([1, 2], np.zeros((2, 4), bool), **fields)


REFUSALS: list[tuple[Callable[[], object], str]] = [
    (lambda: conformal_quantile([[1.0]], "0.1"), "scores: got shape (1, 1); need one dimension"),
    (lambda: conformal_quantile([], "0.1"), "scores: got none; need at least 1"),
    (lambda: conformal_quantile([0, nan, 1, nan, nan, nan, nan, nan], "0.1"), "scores: got NaN at [1, 3, 4, 5, 6]; need numbers or +inf"),
    (lambda: weighted_quantile([1, 2], [1], 1, "0.1"), "weights: got shape (1,); need (2,)"),
    (
        lambda: weighted_quantile([1, 2], [2, -0.5], 1, "0.1"),
        "weights: got a minimum of -1/2 and a sum of 5/2; need none below 0 and a sum above 0",
    ),
    (
        lambda: weighted_quantile([1, 2], [0, 0], 0, "0.1"),
        "weights: got a minimum of 0 and a sum of 0; need none below 0 and a sum above 0",
    ),
    (lambda: weighted_quantile([1, 2], [1, nan], 0, "0.1"), "weights: got nan; need finite numbers"),
    (lambda: max_rank([1.0, 2.0], "0.1"), "scores: got shape (2,); need (n, M), n and M >= 1"),
    (
        lambda: max_rank([[1, 2], [nan, 1], [1, 1], [nan, nan], [1, nan], [nan, 1], [1, nan], [nan, 1]], "0.1"),
        "scores: got NaN in rows [1, 3, 4, 5, 6]; need numbers or +inf",
    ),
    (lambda: split_ecdf([[1, 2, 3]], [[1, 2]], "0.1"), "reference: got 3 columns; need 2"),
    (lambda: calibrate_thresholds([[1, 2, 3]], (2, 4), "0.1"), "scores: got shape (1, 3); need (n, 2)"),
    (
        lambda: calibrate_thresholds([[1, 2]], (4, 2), "0.1"),
        "grid: got (4, 2); need strictly ascending integers >= 1 that end at 2 or more",
    ),
    (
        lambda: calibrate_thresholds([[1, 2]], (2, 4), "0.1", "median"),
        "multiplicity: got 'median'; need one of "
        "('per_budget', 'bonferroni', 'max_rank', 'max_rank_uncorrected', 'split_ecdf', 'max_score')",
    ),
    (lambda: calibrate_thresholds([[1, 2]], (2, 4), "0.1", checkpoints=2), "checkpoints: got 2; need 1, or more under a joint rule"),
    (
        lambda: calibrate_thresholds([[1, 2]], (2, 4), "0.1", "bonferroni", checkpoints=0),
        "checkpoints: got 0; need 1, or more under a joint rule",
    ),
    (lambda: calibrate_thresholds([[1, 2]], (2, 4), "0.1", "split_ecdf"), "reference: got none; need scores"),
    (lambda: calibrate_thresholds([[1, 2]], (2, 4), "0.1", reference=[[1, 2]]), "reference: got scores; need none"),
    (lambda: Outcomes([1.5], np.zeros((1, 2), bool)), "prompt_ids: got float64; need integers"),
    (lambda: Outcomes([1, 2], np.zeros((2, 4))), "passes: got float64 of shape (2, 4); need bool of shape (prompts, responses)"),
    (lambda: Outcomes([1], np.zeros((2, 4), bool)), "prompt_ids: got shape (1,); need (2,)"),
    (lambda: table(drawn=np.array([1, 5])), "drawn: got shape (2,) with values in [1, 5]; need (2,) within [0, 4]"),
    (lambda: table(drawn=np.array([-1, 3])), "drawn: got shape (2,) with values in [-1, 3]; need (2,) within [0, 4]"),
    (lambda: table(drawn=np.array([])), "drawn: got shape (0,) with values in [0, 0]; need (2,) within [0, 4]"),
    (lambda: table(drawn=np.array([1])), "drawn: got shape (1,) with values in [1, 1]; need (2,) within [0, 4]"),
    (lambda: table(codes=np.array([[0, 1]])), "codes: got int64 of shape (1, 2); need integers >= -2 of shape (2, 4)"),
    (lambda: table(codes=np.full((2, 4), -3)), "codes: got int64 of shape (2, 4); need integers >= -2 of shape (2, 4)"),
    (lambda: table(gold=np.array([0.0, 1.0])), "gold: got float64 of shape (2,); need integers >= -2 of shape (2,)"),
    (lambda: APS().gold_scores(table(codes=CODES, gold=GOLD), (2, 5), [0.5, 0.5]), "grid: got the budget 5; need integers in [1, 4]"),
    (lambda: APS().gold_scores(table(codes=CODES, gold=GOLD), (2, 0), [0.5, 0.5]), "grid: got the budget 0; need integers in [1, 4]"),
    (lambda: APS().gold_scores(table(codes=CODES, gold=GOLD), (2, 4), [0.5, 1.5]), "u: got shape (2,); need (2,) with values in [0, 1]"),
    (lambda: APS().gold_scores(table(codes=CODES, gold=GOLD), (2, 4), [-0.5, 0.5]), "u: got shape (2,); need (2,) with values in [0, 1]"),
    (lambda: APS().gold_scores(table(codes=CODES, gold=GOLD), (2, 4), [0.5]), "u: got shape (1,); need (2,) with values in [0, 1]"),
    (lambda: APS().stop(table(codes=CODES), 2, nan, [0.5, 0.5]), "q: got NaN; need a number or +inf"),
    (lambda: APS().stop(table(codes=CODES), 0, 0.5, [0.5, 0.5]), "grid: got the budget 0; need integers in [1, 1]"),
    (
        lambda: list(stop_intervals(table(codes=CODES, drawn=np.array([4, 3])), (2, 4))),
        "outcomes.drawn: got a minimum of 3; need 4 responses for each prompt",
    ),
    (
        lambda: risk_control(table(codes=CODES, gold=GOLD, drawn=np.array([4, 3])), (2, 4), "0.1"),
        "outcomes.drawn: got a minimum of 3; need 4 responses for each prompt",
    ),
    (lambda: margin_stop(table(codes=CODES), 2, Fraction(-1, 2)), "lam: got -1/2; need a finite number >= 0"),
    (lambda: randomized_set(CODES, 2, 0.5, [0.5]), "u: got shape (1,); need (2,) or (2, 2) with values in [0, 1]"),
    (lambda: randomized_set(CODES, 2, 0.5, [0.5, -0.5]), "u: got shape (2,); need (2,) or (2, 2) with values in [0, 1]"),
    (lambda: lead(CODES, 2, "share"), "statistic: got 'share'; need one of ('top_share', 'margin')"),
]


@pytest.mark.parametrize(("call", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
def test_refusals_say_what_was_given_and_what_is_needed(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError) as refusal:
        call()
    assert str(refusal.value).split("; because ")[0] == words
