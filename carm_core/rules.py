"""Response masks as small frozen objects: ``rule.keep(z, token_mask, advantages)`` decides, ``rule.certificate(band)`` says what it buys.

Shapes: `z` and `token_mask` (B, T); `advantages` (B,), (B, 1) or (B, T) (averaged over live tokens); keep (B,) bool, True = takes part
in the loss. All comparisons are made in the log domain on the score's own dtype, so NaN rejects; the threshold is rounded to that dtype.
A response without live tokens is kept and contributes nothing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from . import scores as _s
from ._checks import DEFAULT_BAND, boundary_costs, check_positive, check_tau
from .certificates import Certificate, _fraction
from .rows import Rows
from .witnesses import geomean_witness

Conditioning = Literal["both", "negative"]
Band = tuple[float, float]


@dataclass(frozen=True)
class Rule(ABC):
    """Base of all rules. `conditioning`: "both" gates every response, "negative" only those with a negative advantage.

    With "negative" a response of non-negative advantage is kept whatever its ratios (unless a log-ratio is not finite), so the
    certificate covers negative advantages only and `certificate` reports p_out = 1.

    A custom rule overrides `accept(rows)`; it sets ``blockwise = True`` if that reads only `length` and the `*_of` methods of `Rows` and
    decides each response alone, so that a batch may be evaluated block by block.
    """

    conditioning: Conditioning = field(default="both", kw_only=True)
    blockwise: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "accept" in vars(cls) and "blockwise" not in vars(cls):
            cls.blockwise = False

    def __post_init__(self) -> None:
        if self.conditioning not in ("both", "negative"):
            raise ValueError(f"conditioning: got {self.conditioning!r}; need 'both' or 'negative'; because a response has one sign")

    def _store(self, **numbers: float) -> None:
        """Keep checked numbers as floats, so that equal rules compare, print and serialise alike."""
        for name, number in numbers.items():
            object.__setattr__(self, name, number)

    def keep(self, z: Any, token_mask: Any, advantages: Any = None) -> Any:
        """(B,) bool: which responses may move the policy.

        Raises: ValueError for shapes that differ, or when the rule needs advantages and got none; TypeError for mixed array types.

        >>> import numpy as np
        >>> CARM(1.02).keep(np.array([[0.01, -0.01], [0.5, -0.5]]), np.ones((2, 2))).tolist()
        [True, False]
        """
        return self.keep_rows(Rows(z, token_mask), advantages)

    def weights(self, z: Any, token_mask: Any, advantages: Any = None) -> Any:
        """(B, T) factor on each token's surrogate: 1 at live tokens of kept responses, 0 elsewhere; importance rules differ."""
        return self._weights(Rows(z, token_mask), advantages)

    def certificate(self, band: Band = DEFAULT_BAND) -> Certificate:
        """What every kept response satisfies, in the worst case; see `Certificate`."""
        found = self._certify(band)
        if self.conditioning == "both" or isinstance(self, OPSM):
            return found
        a = max(boundary_costs(band)) + 1.0
        text = f"none over all responses: those with advantage >= 0 are never rejected; for advantage < 0: {found.guarantee}"
        return Certificate(repr(self), found.tau, found.band, 1.0, 1.0, 1.0, text, witness=(-a,))

    def keep_rows(self, rows: Rows, advantages: Any = None) -> Any:
        """`keep` for any layout of tokens that a `Rows` describes; `keep` itself builds the padded one."""
        if advantages is not None:
            rows.check(advantages)
        elif self.conditioning == "negative":
            raise ValueError(f"advantages: got None; need one per response; because {type(self).__name__} gates negative advantages only")
        accepted = self.accept(rows)
        if self.conditioning == "both":
            return accepted
        return accepted | ((rows.advantage(advantages) >= 0) & rows.finite())

    def weigh_rows(self, rows: Rows, advantages: Any = None) -> Any:
        """`weights` for any layout of tokens that a `Rows` describes."""
        return self._weights(rows, advantages)

    def _weights(self, rows: Rows, advantages: Any) -> Any:
        active = rows.live & rows.spread(self.keep_rows(rows, advantages))
        return rows.xp.where(active, rows.xp.ones_like(rows.z), 0.0)

    @abstractmethod
    def accept(self, rows: Rows) -> Any:
        """(B,) bool, the rule before conditioning on the sign of the advantage; what a custom rule implements."""

    def _certify(self, band: Band) -> Certificate:
        return _nothing(self, band, (-(max(boundary_costs(band)) + 1.0),), "none: no bound on the tokens of a kept response")


def _nothing(rule: Rule, band: Band, witness: tuple[float, ...] | None, why: str, tau: float | None = None) -> Certificate:
    return Certificate(repr(rule), tau, (float(band[0]), float(band[1])), 1.0, 1.0, 1.0, why, witness=witness)


def _additive(rule: Rule, band: Band, budget: float, cost: Callable[[float], float], why: str, tau: float | None = None) -> Certificate:
    """Certificate of a rule that keeps a response iff the mean of `cost` over its log-ratios is within the budget."""
    b_minus, b_plus = boundary_costs(band)
    costs = cost(-b_minus), cost(b_plus)
    low, high = (_fraction(budget, c) for c in costs)
    severity = math.inf if budget > 0.0 else 0.0
    edge, sign = (b_minus, -1.0) if costs[0] <= costs[1] else (b_plus, 1.0)
    past = edge + 1.0
    while past > edge and cost(sign * past) > budget:
        middle = (past + edge) / 2
        past = middle if middle < past else edge
    return Certificate(
        repr(rule), tau, (float(band[0]), float(band[1])), max(low, high), low, high, why, budget,
        cost_minus=costs[0], cost_plus=costs[1], witness=(sign * past,) if past > edge else None,
        severity_minus=severity, severity_plus=severity,
    )  # fmt: skip


@dataclass(frozen=True)
class NoMask(Rule):
    """Keep every response whose log-ratios are finite. Certifies nothing.

    >>> import numpy as np
    >>> NoMask().keep(np.array([[9.0], [np.nan]]), np.ones((2, 1))).tolist()
    [True, False]
    """

    blockwise: ClassVar[bool] = True

    def accept(self, rows: Rows) -> Any:
        return rows.finite()


@dataclass(frozen=True)
class CARM(Rule):
    """Keep iff exp(mean |z|) <= tau, compared as mean |z| <= log tau.

    Guarantee (Proposition 3), for the ratios as guarded by the clip: p_minus b_minus + p_plus b_plus + p_out severity <= log tau, hence
    p_out <= log tau / b_min; at length T sharply `finite_T_bound`. Raises ValueError for tau < 1. Source: CARM, Eqs. 6, 7, 12, 13.

    >>> round(CARM(1.02).certificate((0.8, 1.28)).p_out, 4)
    0.0887
    """

    blockwise: ClassVar[bool] = True
    tau: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(tau=check_tau("tau", self.tau))

    @property
    def log_tau(self) -> float:
        """The threshold in nats."""
        return math.log(self.tau)

    def accept(self, rows: Rows) -> Any:
        return _s._mean_abs(rows) <= self.log_tau

    def _certify(self, band: Band) -> Certificate:
        why = "p_minus*b_minus + p_plus*b_plus + p_out*severity <= log tau for every kept response (CARM, Proposition 3)"
        return _additive(self, band, self.log_tau, abs, why, self.tau)


@dataclass(frozen=True)
class GeoMean(Rule):
    """Keep iff exp(|mean z|) <= tau. Opposite drifts cancel, so it certifies nothing (Proposition 1). ValueError for tau < 1. CARM, Eq. 5.

    >>> GeoMean(1.005).certificate().witness
    (1.0, -1.0)
    """

    blockwise: ClassVar[bool] = True
    tau: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(tau=check_tau("tau", self.tau))

    @property
    def log_tau(self) -> float:
        """The threshold in nats."""
        return math.log(self.tau)

    def accept(self, rows: Rows) -> Any:
        return abs(_s._signed(rows)) <= self.log_tau

    def _certify(self, band: Band) -> Certificate:
        why = "none: every token may be outside, by any distance, from two tokens on (CARM, Proposition 1)"
        return _nothing(self, band, geomean_witness(2, band), why, self.tau)


@dataclass(frozen=True)
class TRM(Rule):
    """Trust Region Masking on sampled tokens: keep iff max_t z_t^2 / 2 <= delta, i.e. every |z| <= sqrt(2 delta).

    Certifies 0 for a side whose boundary is at least sqrt(2 delta) away, and nothing for the other. ValueError for delta <= 0.
    Source: verl `seq_max_k2`, TRM (delta = 0.05 in the CARM paper).

    >>> TRM(0.05).certificate((0.8, 1.28)).p_out, TRM(0.05).certificate((0.7, 1.4)).p_out
    (1.0, 0.0)
    """

    blockwise: ClassVar[bool] = True
    delta: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(delta=check_positive("delta", self.delta, "it bounds z^2 / 2"))

    def accept(self, rows: Rows) -> Any:
        return _s._max_k2(rows) <= self.delta

    def _certify(self, band: Band) -> Certificate:
        reach = math.sqrt(2 * self.delta)
        b_minus, b_plus = boundary_costs(band)
        low, high = float(reach > b_minus), float(reach > b_plus)
        edge = math.nextafter(reach, 0.0)
        witness = ((-edge,) if edge > b_minus else (edge,) if edge > b_plus else None) if max(low, high) else None
        why = (
            f"every |z| <= {reach:.6g}: a side is certified empty iff its boundary is that far, else all tokens may be outside, "
            f"by at most {reach - min(b_minus, b_plus):.6g}"
        )
        return Certificate(
            repr(self), None, (float(band[0]), float(band[1])), max(low, high), low, high, why, witness=witness,
            severity_minus=max(0.0, reach - b_minus), severity_plus=max(0.0, reach - b_plus),
        )  # fmt: skip


@dataclass(frozen=True)
class TRMMean(Rule):
    """Keep iff mean_t (e^z_t - 1 - z_t) <= delta (k3). ValueError for delta <= 0. Source: verl `seq_mean_k3`.

    Guarantee: p_minus k3(-b_minus) + p_plus k3(b_plus) <= delta, because k3 >= 0 grows away from 0 on both sides.

    >>> round(TRMMean(0.001).certificate((0.8, 1.28)).p_out, 4)
    0.0432
    """

    blockwise: ClassVar[bool] = True
    delta: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(delta=check_positive("delta", self.delta, "it bounds a mean of non-negative terms"))

    def accept(self, rows: Rows) -> Any:
        return _s._mean_k3(rows) <= self.delta

    def _certify(self, band: Band) -> Certificate:
        why = "p_minus*k3(-b_minus) + p_plus*k3(b_plus) <= delta for every kept response"
        return _additive(self, band, self.delta, lambda z: math.expm1(z) - z, why)


@dataclass(frozen=True)
class MeanExpAbs(Rule):
    """Keep iff mean_t e^|z_t| <= threshold. At one threshold it keeps a subset of what CARM keeps. ValueError for threshold < 1.

    Guarantee: p_minus (e^b_minus - 1) + p_plus (e^b_plus - 1) <= threshold - 1. Source: NeMo-RL `seq_logprob_error_threshold`.

    >>> round(MeanExpAbs(1.02).certificate((0.8, 1.28)).p_out, 4)
    0.08
    """

    blockwise: ClassVar[bool] = True
    threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(threshold=check_tau("threshold", self.threshold))

    def accept(self, rows: Rows) -> Any:
        return _s._excess_exp_abs(rows) <= self.threshold - 1.0

    def _certify(self, band: Band) -> Certificate:
        why = "p_minus*(e^b_minus - 1) + p_plus*(e^b_plus - 1) <= threshold - 1 for every kept response"
        return _additive(self, band, self.threshold - 1.0, lambda z: math.expm1(abs(z)), why, self.threshold)


@dataclass(frozen=True)
class OPSM(Rule):
    """DeepSeek-V3.2 off-policy sequence mask: drop iff advantage < 0 and mean(-z) > delta, z against the sampler. Certifies nothing.

    ``conditioning="both"`` drops on mean(-z) > delta for either sign. ValueError for delta <= 0. Source: DeepSeek-V3.2, Eq. 9; TRL #4857.

    >>> import numpy as np
    >>> OPSM(0.5).keep(np.array([[-1.0], [-1.0], [1.0]]), np.ones((3, 1)), np.array([-1.0, 0.0, -1.0])).tolist()
    [False, True, True]
    """

    blockwise: ClassVar[bool] = True
    delta: float
    conditioning: Conditioning = field(default="negative", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(delta=check_positive("delta", self.delta, "it bounds a downward drift in nats"))

    def accept(self, rows: Rows) -> Any:
        return -_s._signed(rows) <= self.delta

    def _certify(self, band: Band) -> Certificate:
        return _nothing(self, band, geomean_witness(2, band), "none: upward or cancelling drift passes at any advantage")
