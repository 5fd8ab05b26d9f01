"""What did the mask do, and is it looking at the right numbers? Host-side summaries; responses without live tokens are left out."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._checks import check_shape
from ._namespace import host
from .scores import response_scores
from .sweep import _share, cancellation_share


@dataclass(frozen=True)
class PairedDecisions:
    """How two rules decide the same responses: counts kept by both, by one only, by neither."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def total(self) -> int:
        """Number of responses compared."""
        return self.both + self.only_first + self.only_second + self.neither


def paired_decisions(keep_first: Any, keep_second: Any, empty: Any = None) -> PairedDecisions:
    """Counts of (kept by both, only the first, only the second, neither) over responses that are not `empty`; all inputs (B,) bool.

    Raises: ValueError for shapes that differ. Source: CARM, Section 3.3 (160 / 195 / 1 / 668 of 1,024).

    >>> paired_decisions([True, True, False], [True, False, False])
    PairedDecisions(both=1, only_first=1, only_second=0, neither=1)
    """
    a, b = host(keep_first).astype(bool), host(keep_second).astype(bool)
    check_shape("keep_second", b, a.shape, "decisions are paired")
    counted = np.ones(a.shape, dtype=bool) if empty is None else ~_flags(empty, a.shape)
    counts = [int((x & y & counted).sum()) for x, y in ((a, b), (a, ~b), (~a, b), (~a, ~b))]
    return PairedDecisions(*counts)


def _flags(empty: Any, shape: tuple[int, ...]) -> Any:
    return check_shape("empty", host(empty).astype(bool), shape, "it marks responses")


def rejection_curve(scores: Any, taus: Any, empty: Any = None) -> Any:
    """Share of responses with score > log tau for each tau (NaN scores are rejected at every tau); 0 where no response counts.

    Args:
        scores: (B,) in nats.
        taus: (m,) ratio-domain thresholds, >= 1.
        empty: optional (B,) bool, responses to leave out.

    Returns: (m,) float64, non-increasing in tau.
    Raises: ValueError for tau < 1 or shapes that do not fit. Source: CARM, Figure 3 (right).

    >>> rejection_curve([0.01, 0.03], [1.005, 1.02, 1.05]).tolist()
    [1.0, 0.5, 0.0]
    """
    d, grid = np.asarray(host(scores), dtype=np.float64), np.atleast_1d(np.asarray(taus, dtype=np.float64))
    if not bool((grid >= 1.0).all()):
        raise ValueError(f"taus: got {grid.tolist()}; need >= 1; because they are ratio-domain thresholds")
    if d.ndim != 1:
        raise ValueError(f"scores: got shape {d.shape}; need (B,); because a response has one score")
    if empty is not None:
        d = d[~_flags(empty, d.shape)]
    rejected = ~(d[None, :] <= np.log(grid)[:, None])
    return rejected.sum(axis=1) / max(d.size, 1)


def _per_response(name: str, values: Any, shape: tuple[int, ...]) -> Any:
    x = host(values)
    return check_shape(name, x[..., 0] if x.shape == (*shape, 1) else x, shape, "a response has one")


@dataclass(frozen=True)
class MaskReport:
    """One batch under one mask. Fractions are over responses (or tokens) before rejection; 0 where nothing counts.

    Attributes:
        responses, tokens: non-empty responses and their live tokens.
        rejected_fraction, rejected_token_fraction: shares not kept.
        rejected_success_fraction: share of rejected responses with positive reward (0 without rewards).
        nonfinite: responses rejected for a non-finite log-probability.
        mean_d, max_d, mean_g: over finite responses, in nats.
        mean_cancellation: mean share of a finite response's absolute mass that its signed mean cancels.
        warnings: suspicious patterns, in words.
    """

    responses: int
    tokens: int
    rejected_fraction: float
    rejected_token_fraction: float
    rejected_success_fraction: float
    nonfinite: int
    mean_d: float
    max_d: float
    mean_g: float
    mean_cancellation: float
    warnings: tuple[str, ...]


def mask_report(z: Any, token_mask: Any, keep: Any, rewards: Any = None) -> MaskReport:
    """Summarise a batch: what was rejected, how far it is off-policy, and patterns that mean the mask reads the wrong numbers.

    Warns of: d identically 0 (current compared with itself, the mask is inert); a nearly constant negative shift (top-p / top-k
    renormalised sampler log-probabilities add log S to every token); a large shift in every response (temperature, wrong weights, tokens
    off by one); everything rejected.

    Args: z, token_mask (B, T); keep (B,) or (B, 1) bool; rewards (B,) or (B, 1).
    Raises: ValueError for shapes that differ; TypeError for mixed array types. Source: TRL #6789, #4159; slime, NeMo-RL metrics.

    >>> report = mask_report(np.full((2, 3), -0.05), np.ones((2, 3)), np.array([False, False]))
    >>> report.rejected_fraction, len(report.warnings)
    (1.0, 2)
    """
    stats = response_scores(z, token_mask)
    length = host(stats.length)
    counted = length > 0
    kept = _per_response("keep", keep, length.shape).astype(bool)
    rejected = counted & ~kept
    d, g, k2 = (np.asarray(host(x), dtype=np.float64) for x in (stats.d, stats.g, stats.mean_k2))
    finite = counted & np.isfinite(d)
    n, n_rejected = int(counted.sum()), int(rejected.sum())
    success = 0 if rewards is None else int((rejected & (_per_response("rewards", rewards, length.shape) > 0)).sum())
    found: list[str] = []
    if finite.any():
        dd, gg, variance = d[finite], g[finite], 2 * k2[finite] - g[finite] ** 2
        if dd.max() == 0.0:
            found.append("inert: every log-ratio is 0; do the sampler's log-probabilities reach the loss?")
        elif bool(((gg <= 0.0) & (variance <= (0.1 * dd) ** 2)).all()):
            found.append("constant negative shift: truncated sampling (top-p, top-k, min-p) renormalises the sampler's log-probabilities?")
        elif dd.min() > 0.1:
            found.append("large shift in every response: temperature, weights or token alignment differ between sampler and trainer?")
    if n and n_rejected == n:
        found.append("every response is rejected: the update is empty")
    return MaskReport(
        responses=n,
        tokens=int(length.sum()),
        rejected_fraction=_share(n_rejected, n),
        rejected_token_fraction=_share(length[rejected].sum(), length.sum()),
        rejected_success_fraction=_share(success, n_rejected),
        nonfinite=int((counted & ~np.isfinite(d)).sum()),
        mean_d=float(d[finite].mean()) if finite.any() else 0.0,
        max_d=float(d[finite].max()) if finite.any() else 0.0,
        mean_g=float(g[finite].mean()) if finite.any() else 0.0,
        mean_cancellation=float(cancellation_share(d[finite], g[finite]).mean()) if finite.any() else 0.0,
        warnings=tuple(found),
    )
