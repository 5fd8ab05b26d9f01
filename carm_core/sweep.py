"""How do decisions change with the threshold, and what do they cost? Host-side, over responses with a live token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._checks import DEFAULT_BAND, check_shape
from ._namespace import host, namespace
from .rules import Rule
from .scores import response_scores


def cancellation_share(d: Any, g: Any) -> Any:
    """1 - |g| / d: the share of the absolute log-ratio mass that a signed mean cancels; 0 where d is 0.

    Args: d, g: `carm_score` and `signed_mean`, arrays of one library. Raises: TypeError for mixed array types.
    Source: CARM, Appendix C (89.78% of the response in Figure 1).

    >>> round(float(cancellation_share(np.array(0.024486), np.array(0.002502))), 4)
    0.8978
    """
    xp = namespace(d, g)
    return xp.where(d == 0, 0.0, 1.0 - abs(g) / xp.where(d == 0, 1.0, d))


@dataclass(frozen=True)
class SweepPoint:
    """What one threshold does to one batch; shares are of responses (or tokens) before rejection, 0 where nothing counts.

    Attributes:
        rule: as written; threshold: the value swept.
        rejected_fraction, rejected_token_fraction: shares not kept.
        masked_correct: share of the rejected responses with a positive reward (0 without rewards).
        correct_masked: share of the responses with a positive reward that are rejected (0 without rewards).
        p_out: the certificate's bound on the out-of-band fraction of a kept response.
    """

    rule: str
    threshold: float
    rejected_fraction: float
    rejected_token_fraction: float
    masked_correct: float
    correct_masked: float
    p_out: float


def threshold_sweep(
    make_rule: Callable[[float], Rule],
    thresholds: Sequence[float],
    z: Any,
    token_mask: Any,
    advantages: Any = None,
    *,
    rewards: Any = None,
    band: tuple[float, float] = DEFAULT_BAND,
) -> tuple[SweepPoint, ...]:
    """One `SweepPoint` per threshold, in the order given.

    Args:
        make_rule: a rule from one number, e.g. ``CARM`` or ``lambda t: GeoMean(t, conditioning="negative")``.
        z, token_mask: (B, T). advantages: as ``rule.keep`` takes them. rewards: (B,), positive = correct. band: for the certificates.

    Raises: ValueError for rewards of another shape, and what the rule raises. Source: CARM, Section 5.1 and Figure 3.

    >>> from carm_core import CARM
    >>> points = threshold_sweep(CARM, [1.005, 1.02], np.array([[0.01], [0.03]]), np.ones((2, 1)), rewards=np.array([1, 1]))
    >>> [(p.rejected_fraction, p.correct_masked, round(p.p_out, 4)) for p in points]
    [(1.0, 1.0, 0.0224), (0.5, 0.5, 0.0887)]
    """
    length = host(response_scores(z, token_mask).length)
    live = length > 0
    correct = np.zeros(live.shape, dtype=bool) if rewards is None else host(rewards) > 0
    check_shape("rewards", correct, live.shape, "a response has one reward")
    points = []
    for threshold in thresholds:
        rule = make_rule(threshold)
        rejected = live & ~host(rule.keep(z, token_mask, advantages))
        points.append(
            SweepPoint(
                rule=repr(rule),
                threshold=float(threshold),
                rejected_fraction=_share(rejected.sum(), live.sum()),
                rejected_token_fraction=_share(length[rejected].sum(), length.sum()),
                masked_correct=_share((rejected & correct).sum(), rejected.sum()),
                correct_masked=_share((rejected & correct).sum(), (live & correct).sum()),
                p_out=rule.certificate(band).p_out,
            )
        )
    return tuple(points)


def _share(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0
