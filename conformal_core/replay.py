"""Run a rollout policy over a table of finished groups: what it would have drawn, and how often it would have erred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .laws import clopper_pearson
from .outcomes import Outcomes
from .policy import RolloutPolicy

__all__ = ["ReplayReport", "replay"]


@dataclass(frozen=True, eq=False)
class ReplayReport:
    """What a policy did with a table.

    Attributes
    ----------
    drawn : int64 array, shape (n,)
        Responses drawn per prompt.
    mean_k : float
        Mean of ``drawn``.
    savings : float
        ``1 - mean_k / k_max``: share of responses saved against ``k_max`` for every prompt; calibration is not counted.
    audit : dict of str to (int, int)
        The policy's own error events, occurred and trials.
    intervals : dict of str to (float, float)
        Clopper-Pearson 95% interval of each event's probability, valid for prompts drawn independently and a policy fixed before them;
        (0, 1) without trials.
    groups_with_variance : int
        Groups whose kept responses are neither all accepted nor all rejected: those that move the weights.
    """

    drawn: NDArray[np.int64]
    mean_k: float
    savings: float
    audit: Mapping[str, tuple[int, int]]
    intervals: Mapping[str, tuple[float, float]]
    groups_with_variance: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        pairs = {name: {event: list(pair) for event, pair in getattr(self, name).items()} for name in ("audit", "intervals")}
        return vars(self) | pairs | {"drawn": self.drawn.tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReplayReport:
        """Inverse of :meth:`to_json`."""
        d = dict(data)
        d |= {"drawn": np.array(d["drawn"], np.int64)}
        d |= {name: {event: tuple(pair) for event, pair in d[name].items()} for name in ("audit", "intervals")}
        return cls(**d)


def replay(policy: RolloutPolicy, table: Outcomes, step: int = 0) -> ReplayReport:
    """Let ``policy`` draw from a table of finished groups, seeing of each prompt only the responses it has asked for.

    Parameters
    ----------
    policy : RolloutPolicy
        Calibrated beforehand if it needs to be: ``calibration`` is not asked, and ``update`` is not called, so the policy is unchanged.
    table : Outcomes
        ``n`` prompts with at least ``policy.k_max`` responses each; with gold if the policy's audit needs it.
    step : int
        Optimizer step the policy is told.

    Returns
    -------
    ReplayReport

    Raises
    ------
    ValueError
        If the table is empty or too narrow, or the policy asks for more than ``k_max``.

    Examples
    --------
    >>> import numpy as np
    >>> from conformal_core.policy import FixedBudget
    >>> table = Outcomes(np.arange(3, dtype=np.uint64), np.array([[1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]], bool))
    >>> report = replay(FixedBudget(2), table)
    >>> report.mean_k, report.groups_with_variance
    (2.0, 1)
    """
    if table.n < 1 or table.drawn.min() < policy.k_max:
        raise ValueError(
            f"table: got {table.n} prompts with at least {table.drawn.min() if table.n else 0} responses; "
            f"need {policy.k_max} responses of at least one prompt; because the policy may ask for that many"
        )
    table = replace(table, step=step)
    drawn = np.array(policy.first(table.prompt_ids, step), np.int64)
    asked = np.flatnonzero(drawn > 0)
    while asked.size:
        if drawn.max() > policy.k_max:
            raise ValueError(f"policy: got a request for {drawn.max()} responses; need at most {policy.k_max}; because that is its k_max")
        extra = np.asarray(policy.more(table.take(asked).prefix(drawn[asked])), np.int64)
        drawn[asked] += extra
        asked = asked[extra > 0]
    final = table.prefix(drawn)
    kept = policy.keep(final) & final.live
    accepted = (final.passes & kept).sum(axis=1)
    audit = {event: (int(hits), int(trials)) for event, (hits, trials) in policy.audit(final).items()}
    intervals = {event: _interval(hits, trials) for event, (hits, trials) in audit.items()}
    mean_k = float(drawn.mean())
    return ReplayReport(
        drawn=drawn,
        mean_k=mean_k,
        savings=1 - mean_k / policy.k_max,
        audit=audit,
        intervals=intervals,
        groups_with_variance=int(((accepted > 0) & (accepted < kept.sum(axis=1))).sum()),
    )


def _interval(hits: int, trials: int) -> tuple[float, float]:
    if not trials:
        return 0.0, 1.0
    low, high = clopper_pearson(hits, trials)
    return float(low), float(high)
