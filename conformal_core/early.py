"""Early-stopped calibration: stop sampling a calibration prompt as soon as its score is known.

A first-success score is known at the first success, a signal score when the group is mixed; only prompts that never get there cost
``K_max``.  The scores, hence the thresholds, are identical to those of full sampling.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .climb import ClimbingPolicy
from .outcomes import Outcomes
from .policy import FixedBudget, RolloutPolicy
from .schedule import positive
from .scores import FirstSuccess, Score, k_mix
from .thresholds import check_grid

__all__ = ["UntilFirstSuccess", "UntilMixed", "calibration_rollout", "expected_draws"]


class _Until(ClimbingPolicy):
    """Climb the grid until an event is seen, or ``K_max`` responses."""

    @abstractmethod
    def happened_at(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """``(n,)``: the fewest responses, within ``K_max`` and those drawn, in which the event is seen; 0 if it is not."""

    def known(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        """``(n,)``: whether further responses cannot change the score: the event was seen, or ``K_max`` responses without it."""
        return np.asarray((self.happened_at(outcomes) > 0) | (outcomes.drawn >= self.k_max))

    def finished(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        return self.known(outcomes)


class UntilFirstSuccess(_Until):
    """Climb the grid until a response passes, or ``K_max`` responses: what :class:`FirstSuccess` needs, at every budget at once.

    Parameters
    ----------
    grid : sequence of int
        Budgets at which to look.  ``range(1, K_max + 1)`` wastes nothing; a coarse grid takes fewer rounds of generation.

    Examples
    --------
    >>> UntilFirstSuccess((2, 4)).more(Outcomes([1, 2], np.array([[False, True], [False, False]])))
    array([0, 2])
    """

    def __repr__(self) -> str:
        return f"UntilFirstSuccess({self.grid})"

    def happened_at(self, outcomes: Outcomes) -> NDArray[np.int64]:
        passes = outcomes.passes[:, : self.k_max] & outcomes.live[:, : self.k_max]
        if not passes.shape[1]:
            return np.zeros(outcomes.n, np.int64)
        return np.where(passes.any(axis=1), passes.argmax(axis=1) + 1, 0).astype(np.int64)


class UntilMixed(_Until):
    """Climb the grid until the group holds ``m`` successes and ``m`` failures, or ``K_max`` responses: what the signal score needs.

    Parameters
    ----------
    grid : sequence of int
        As in :class:`UntilFirstSuccess`; ``K_max >= 2 m``.
    m : int
        Successes and failures a group must hold.

    Examples
    --------
    >>> UntilMixed((2, 4)).more(Outcomes([1, 2], np.array([[False, True], [False, False]])))
    array([0, 2])
    """

    def __init__(self, grid: Sequence[int], m: int = 1) -> None:
        super().__init__(grid)
        self.m = positive("m", m)
        if self.k_max < 2 * self.m:
            raise ValueError(f"m: got {m}; need at most {self.k_max // 2}; because a group of {self.k_max} cannot hold {m} of each")

    def __repr__(self) -> str:
        return f"UntilMixed({self.grid}, m={self.m})"

    def happened_at(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return k_mix(outcomes.passes[:, : self.k_max], self.m, drawn=outcomes.drawn)


def calibration_rollout(score: Score, grid: Sequence[int]) -> RolloutPolicy:
    """The cheapest rollout after which ``score`` is known at every budget of ``grid``.

    :class:`UntilFirstSuccess` for :class:`FirstSuccess`; ``K_max`` responses for scores that read answers, whose value at ``K_max`` no
    prefix determines.  ``score.gold_scores`` of its outcomes (``outcomes.widen(K_max)`` where all stopped early) equals that of full
    groups; NaN marks what is not known.  ``ValueError`` for a grid that does not ascend.

    Examples
    --------
    >>> calibration_rollout(FirstSuccess(), (2, 4)), calibration_rollout(Score.__subclasses__()[0](), (2, 4))
    (UntilFirstSuccess((2, 4)), FixedBudget(4))
    """
    return UntilFirstSuccess(grid) if isinstance(score, FirstSuccess) else FixedBudget(check_grid(grid)[-1])


def expected_draws(rollout: UntilFirstSuccess | UntilMixed, pass_rates: ArrayLike) -> NDArray[np.float64]:
    """Expected responses per prompt of an early-stopped rollout, given the prompt's pass rate p: exact, in closed form.

    ``E[k] = k_1 + sum_j (k_{j+1} - k_j) P(not seen in k_j)`` over the grid, with ``P(not seen in k) = (1 - p)^k`` for a first success and
    ``P(Bin(k, p) < m or Bin(k, p) > k - m)`` for a mixed group.  ``K_max`` less this is saved per calibration prompt.

    Parameters
    ----------
    rollout : UntilFirstSuccess or UntilMixed
    pass_rates : array_like
        In [0, 1]; responses of a prompt are independent given its pass rate.

    Returns
    -------
    array of float64, shape of ``pass_rates``

    Raises
    ------
    ValueError
        If a pass rate is outside [0, 1].

    Examples
    --------
    >>> expected_draws(UntilFirstSuccess(range(1, 5)), [0.0, 0.5, 1.0]).tolist()
    [4.0, 1.875, 1.0]
    """
    p = np.asarray(pass_rates, np.float64)
    if not bool(np.all((p >= 0) & (p <= 1))):
        raise ValueError("pass_rates: got values outside [0, 1] or NaN; need numbers in [0, 1]; because they are probabilities")
    total = np.full(p.shape, float(rollout.grid[0]))
    for k, following in zip(rollout.grid, rollout.grid[1:], strict=False):
        total += (following - k) * _unseen(rollout, k, p)
    return total


def _unseen(rollout: UntilFirstSuccess | UntilMixed, k: int, p: NDArray[np.float64]) -> NDArray[np.float64]:
    if isinstance(rollout, UntilFirstSuccess):
        return np.asarray((1 - p) ** k)
    if k < 2 * rollout.m:
        return np.ones_like(p)
    from scipy.stats import binom  # type: ignore[import-untyped, unused-ignore]

    return np.asarray(binom.cdf(rollout.m - 1, k, p) + binom.sf(k - rollout.m, k, p))
