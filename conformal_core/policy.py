"""The one interface between who decides (a rollout policy) and who generates (a trainer, a simulator, an engine)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .outcomes import Outcomes

__all__ = ["CalibrationRequest", "FixedBudget", "RolloutPolicy"]


@dataclass(frozen=True)
class CalibrationRequest:
    """A policy asks for calibration rollouts, outside the training stream.

    ``n`` prompts of the calibration set are rolled out under ``rollout`` (itself a :class:`RolloutPolicy`, so a score that
    is known early costs no more than it must) with the *current* weights, and come back through
    :meth:`RolloutPolicy.calibrate`.
    """

    n: int
    rollout: RolloutPolicy
    reason: str = ""


class RolloutPolicy(ABC):
    """Decides how many responses each prompt gets, which of them train, and how they are weighed.

    Protocol, for a batch of prompts at optimizer step ``step``::

        request = policy.calibration(step)            # None, or rollouts to draw first and hand to policy.calibrate
        counts = policy.first(prompt_ids, step)       # responses to draw at once
        while (extra := policy.more(outcomes)).any(): # further responses; 0 = this prompt has stopped
            ...                                       # draw them, verify them, extend outcomes
        keep = policy.keep(outcomes)                  # which responses may train
        policy.update(outcomes)                       # feedback; last call of the step

    ``more`` is asked about prompts together, must be a pure function of ``outcomes`` and the policy's state, and must
    answer 0 for a prompt with ``drawn == k_max``.  A prompt for which it answered 0 is not asked about again, unless
    :attr:`whole_batch` is set.
    Implementations are deterministic: randomness comes from streams keyed by (seed, step, prompt id).

    *Optional*: a policy that settles on an answer may have ``committed(outcomes)``, the ``(n,)`` code of the answer each prompt stopped
    on in these final outcomes and -1 where it settled on none; :func:`replay` then reports how often that answer was wrong.
    """

    #: Largest number of responses a prompt may get.
    k_max: int
    #: Whether ``more`` reads answer codes.  If not, the caller need not extract answers.
    needs_answers: bool = False
    #: Whether ``more`` is shown the whole batch every time, prompts at rest and prompts not begun included, until it answers 0 for all.
    #: For rules that decide across prompts: a prompt may wait and be drawn later in the step.
    whole_batch: bool = False

    @abstractmethod
    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        """``(n,)`` responses to draw before any outcome is known; 0 skips the prompt."""

    @abstractmethod
    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        """``(n,)`` further responses to draw; 0 means stop."""

    def keep(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        """``(n, width)``: responses that may enter the update.  Default: all that were drawn."""
        return outcomes.live

    def advantages(self, outcomes: Outcomes) -> NDArray[np.float64] | None:
        """``(n, width)`` advantages, or ``None`` for the trainer's own.  Default: ``None``."""
        return None

    def update(self, outcomes: Outcomes) -> None:
        """Feedback: the final outcomes of one step.  Default: nothing is learnt."""

    def calibration(self, step: int) -> CalibrationRequest | None:
        """Calibration rollouts that are due before step ``step``.  Default: none, ever.

        A pure question: the clock moves when the rollouts arrive (:meth:`calibrate`), not when they are asked for.
        """
        return None

    def calibrate(self, outcomes: Outcomes) -> None:
        """Receive the rollouts asked for by :meth:`calibration`."""

    def audit(self, outcomes: Outcomes) -> Mapping[str, tuple[int, int]]:
        """``{event: (occurred, trials)}`` of the policy's own error events in final outcomes with known gold.

        Called before :meth:`update`, so that a policy that learns from its stream is judged out of sample.
        """
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Scalars worth logging: thresholds, levels, clocks.  Keys are slash-separated paths."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state: with it, a run killed anywhere and resumed takes the same decisions."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` saved."""
        if state:
            raise ValueError(f"state: got keys {sorted(state)}; need none; because {type(self).__name__} is stateless")


class FixedBudget(RolloutPolicy):
    """The same group size for every prompt: plain GRPO, and the rival to beat.

    Examples
    --------
    >>> import numpy as np
    >>> FixedBudget(8).first(np.array([1, 2], np.uint64), 0)
    array([8, 8])
    """

    def __init__(self, k: int) -> None:
        if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
            raise ValueError(f"k: got {k!r}; need an integer >= 1; because a group holds at least one response")
        self.k_max = int(k)

    def __repr__(self) -> str:
        return f"FixedBudget({self.k_max})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.k_max, np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        return np.maximum(self.k_max - outcomes.drawn, 0)
