"""The protocol of the C-GRPO authors' released code, by name."""

from __future__ import annotations

from collections.abc import Sequence

from .conformal_budget import ConformalBudget
from .released_aps import ReleasedAPS

__all__ = ["released_cgrpo"]


def released_cgrpo(
    grid: Sequence[int] = (2, 4, 8, 16, 32), n_calibration: int = 200, recalibrate_every: int = 50, seed: int = 0
) -> ConformalBudget:
    """What the authors' released code trains with: its own answer set, automatic delta, no split, level ``delta`` at every budget.

    Parameters are those of :class:`ConformalBudget`, and so is every ``ValueError``.  *Guarantee*: none.  Delta and thresholds come from
    the same prompts, the level is not divided over budgets, and at a threshold of 1 the rule stops on unanimity.

    Source: C-GRPO's released code; C-GRPO, Eq. 9 and 13-14.

    Examples
    --------
    >>> released_cgrpo().split
    False
    """
    return ConformalBudget(
        grid, score=ReleasedAPS(), delta="auto", split=False, n_calibration=n_calibration, recalibrate_every=recalibrate_every, seed=seed
    )
