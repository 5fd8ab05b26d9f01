"""Importance corrections: rules that weigh tokens by a ratio, truncated (TIS) or masked outside a band (MIS), per token or per response.

The ratio is that of the `z` they are given. IcePop, TIS and MIS as published take pi_old / pi_rollout (the trainer's copy of the rollout
policy against the engine), not pi_theta / pi_rollout; pass z of that, and the surrogate's own ratio separately.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from . import scores as _s
from ._checks import boundary_costs, check_number, check_positive
from .certificates import Certificate
from .rows import Rows
from .rules import Band, Rule, _nothing
from .witnesses import geomean_witness


def _check_band(names: str, low: float, high: float, *, positive: bool = False) -> tuple[float, float]:
    need = f"0 {'<' if positive else '<='} {names.replace(', ', ' < ')}"
    cap = check_number(names, high, lambda x: x > 0.0, need, "they bound a ratio")
    return check_number(names, low, lambda x: 0.0 <= x < cap and (x > 0.0 or not positive), need, "they bound a ratio"), cap


def _log(x: float) -> float:
    return math.log(x) if x > 0.0 else -math.inf


@dataclass(frozen=True)
class _Correction(Rule):
    """Keeps every response whose log-ratios are finite, and weighs its tokens; the sign of the advantage plays no part."""

    blockwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conditioning != "both":
            name = type(self).__name__
            raise ValueError(f"conditioning: got {self.conditioning!r}; need 'both'; because {name} weighs tokens, whatever the advantage")

    def accept(self, rows: Rows) -> Any:
        return rows.finite()


def _token_weights(rule: Rule, rows: Rows, band: Band, cap: float, weighted: bool) -> Any:
    inside = (rows.z >= _log(band[0])) & (rows.z <= _log(band[1]))
    active = rows.live & inside & rows.spread(rule.keep_rows(rows))
    z = rows.xp.clip(rows.xp.where(active, rows.z, 0.0), None, min(_log(cap), _s._EXP_LIMIT))
    return rows.xp.where(active, rows.xp.exp(z) if weighted else rows.xp.ones_like(z), 0.0)


def _token_certificate(rule: Rule, band: Band, kept: Band, names: str) -> Certificate:
    b_minus, b_plus = boundary_costs(band)
    low, high = float(kept[0] < band[0]), float(kept[1] > band[1])
    why = f"surviving tokens have {names.replace(', ', ' <= r <= ')}; original tokens of the response: none"
    beyond = (-_log(kept[0]) - b_minus, _log(kept[1]) - b_plus)
    steps = [min(x, 1.0) * (1 - 1e-9) for x in beyond]
    witness = (-b_minus - steps[0],) if low else (b_plus + steps[1],) if high else None
    return Certificate(
        repr(rule), None, (float(band[0]), float(band[1])), max(low, high), low, high, why, witness=witness,
        severity_minus=max(0.0, beyond[0]), severity_plus=max(0.0, beyond[1]),
    )  # fmt: skip


@dataclass(frozen=True)
class IcePop(_Correction):
    """Token mask: a token counts iff alpha <= r <= beta, with weight r (`weighted`) or 1; no response is dropped as a whole.

    The original ratio is pi_train(theta_old) / pi_infer(theta_old); pass z of that. `certificate` speaks of the surviving tokens only.
    ValueError unless 0 < alpha < beta. Source: IcePop (arXiv 2510.18855), alpha, beta = 0.5, 5.

    >>> import numpy as np
    >>> IcePop(weighted=False).weights(np.log(np.array([[0.4, 1.0, 6.0]])), np.ones((1, 3))).tolist()
    [[0.0, 1.0, 0.0]]
    """

    alpha: float = 0.5
    beta: float = 5.0
    weighted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        alpha, beta = _check_band("alpha, beta", self.alpha, self.beta, positive=True)
        self._store(alpha=alpha, beta=beta)

    def _weights(self, rows: Rows, advantages: Any) -> Any:
        return _token_weights(self, rows, (self.alpha, self.beta), math.inf, self.weighted)

    def _certify(self, band: Band) -> Certificate:
        return _token_certificate(self, band, (self.alpha, self.beta), "alpha, beta")


@dataclass(frozen=True)
class TokenMIS(_Correction):
    """Masked token importance sampling: a token counts iff floor <= r <= cap, with weight r. ValueError unless 0 <= floor < cap.

    Source: TRL ``vllm_importance_sampling_mode="token_mask"`` (cap 3, no floor), verl `token_k1`.

    >>> import numpy as np
    >>> TokenMIS(3.0).weights(np.log(np.array([[0.1, 2.0, 4.0]])), np.ones((1, 3))).round(6).tolist()
    [[0.1, 2.0, 0.0]]
    """

    cap: float = 3.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        floor, cap = _check_band("floor, cap", self.floor, self.cap)
        self._store(floor=floor, cap=cap)

    def _weights(self, rows: Rows, advantages: Any) -> Any:
        return _token_weights(self, rows, (self.floor, self.cap), math.inf, True)

    def _certify(self, band: Band) -> Certificate:
        return _token_certificate(self, band, (self.floor, self.cap), "floor, cap")


@dataclass(frozen=True)
class TokenTIS(_Correction):
    """Truncated token importance sampling: every token counts, with weight min(r, cap). Certifies nothing. ValueError for cap <= 0.

    Source: verl, slime, Tunix (cap 2), TRL ``vllm_importance_sampling_mode="token_truncate"``.

    >>> import numpy as np
    >>> TokenTIS(2.0).weights(np.log(np.array([[0.5, 4.0]])), np.ones((1, 2))).round(6).tolist()
    [[0.5, 2.0]]
    """

    cap: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(cap=check_positive("cap", self.cap, "it caps a ratio"))

    def _weights(self, rows: Rows, advantages: Any) -> Any:
        return _token_weights(self, rows, (0.0, math.inf), self.cap, True)


@dataclass(frozen=True)
class SeqTIS(_Correction):
    """Truncated sequence importance sampling: keep all, weight min(prod_t r_t, cap). Certifies nothing. ValueError for cap <= 0.

    Source: verl (cap 2), SkyRL (5).

    >>> import numpy as np
    >>> SeqTIS(2.0).weights(np.log(np.array([[2.0, 2.0], [2.0, 0.5]])), np.ones((2, 2))).round(6).tolist()
    [[2.0, 2.0], [1.0, 1.0]]
    """

    cap: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store(cap=check_positive("cap", self.cap, "it caps a product of ratios"))

    def _weights(self, rows: Rows, advantages: Any) -> Any:
        return _sequence_weights(rows, self.keep_rows(rows), math.log(self.cap))


@dataclass(frozen=True)
class SeqMIS(Rule):
    """Masked sequence importance sampling: keep iff floor <= prod_t r_t <= cap, compared as sum z; kept tokens weigh prod_t r_t.

    Certifies nothing. ValueError unless 0 <= floor < cap. Source: TRL ``vllm_importance_sampling_mode="sequence_mask"`` (cap 3, no
    floor), verl `seq_sum_k1` (0.5, 2).

    >>> import numpy as np
    >>> SeqMIS(3.0).keep(np.log(np.array([[2.0, 2.0], [2.0, 0.5]])), np.ones((2, 2))).tolist()
    [False, True]
    """

    blockwise: ClassVar[bool] = True
    cap: float = 3.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        floor, cap = _check_band("floor, cap", self.floor, self.cap)
        self._store(floor=floor, cap=cap)

    def accept(self, rows: Rows) -> Any:
        total = rows.total_of(_s._identity)
        return ((total >= _log(self.floor)) & (total <= math.log(self.cap))) | (rows.length == 0)

    def _weights(self, rows: Rows, advantages: Any) -> Any:
        return _sequence_weights(rows, self.keep_rows(rows, advantages), _s._EXP_LIMIT)

    def _certify(self, band: Band) -> Certificate:
        low, high = _log(self.floor), math.log(self.cap)
        total = 0.0 if low <= 0.0 <= high else high - 1.0 if low == -math.inf else low + 1.0 if high == math.inf else (low + high) / 2
        a = max(boundary_costs(band)) + 1.0 + abs(total)
        witness = geomean_witness(2, band) if total == 0.0 else (a, total - a)
        return _nothing(self, band, witness, "none: a bounded product leaves every single ratio free")


def _sequence_weights(rows: Rows, keep: Any, limit: float) -> Any:
    ratio = rows.xp.exp(rows.xp.clip(rows.xp.where(keep, rows.total_of(_s._identity), 0.0), None, limit))
    return rows.xp.where(rows.live & rows.spread(keep), rows.spread(ratio), 0.0)
