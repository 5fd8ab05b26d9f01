"""A warning points at the line that called, not at a line of the library."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from conformal_core import (
    ConformalBudget,
    FirstSuccess,
    Outcomes,
    SignalBudget,
    StreamWindow,
    calibrate_thresholds,
    calibrate_vote,
    learn_then_test,
    nested_thresholds,
    replay,
    risk_control,
)

CODES = np.zeros((3, 4), np.int64)
TABLE = Outcomes([1, 2, 3], CODES == 0, codes=CODES, gold=CODES[:, 0])


def short_window() -> None:
    window = StreamWindow("1/2", 2, drift="recency", recency="1/2")
    window.extend([9], 0)
    window.extend([1], 3)


def two_updates_of_a_step() -> None:
    policy, mixed = SignalBudget((2, 4), delta="0.25", window=50), np.tile([True, False, False, False], (20, 1))
    for half in np.split(np.arange(20), 2):
        policy.update(Outcomes(half, mixed[half], step=3))


CALLS: dict[str, Callable[[], object]] = {
    "risk_control": lambda: risk_control(TABLE, (2, 4), "0.1"),
    "learn_then_test": lambda: learn_then_test(TABLE, (2, 4), "0.1"),
    "calibrate_vote": lambda: calibrate_vote(TABLE, (2, 4), "0.1"),
    "calibrate_thresholds": lambda: calibrate_thresholds(np.zeros((3, 2)), (2, 4), "0.1"),
    "nested_thresholds": lambda: nested_thresholds(np.zeros((3, 2)), np.array([4, 4, 4]), (2, 4), "0.1"),
    "replay": lambda: replay(ConformalBudget((2, 4), score=FirstSuccess(), delta="0.4", n_calibration=20), TABLE),
    "StreamWindow": short_window,
    "SignalBudget": two_updates_of_a_step,
}


@pytest.mark.parametrize("name", CALLS)
def test_warnings_point_at_the_caller(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALLS[name]()
    assert [w.filename for w in caught] == [__file__]
    assert caught[0].lineno in {line for _, _, line in CALLS[name].__code__.co_lines()}
    assert caught[0].category is UserWarning
