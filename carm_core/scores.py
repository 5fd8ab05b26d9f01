"""Per-response mismatch scores, all in the log domain: how far is this response from the policy being trained?

Every function takes `z` (..., T) log-ratios and `token_mask` (..., T), and returns one value per response, shape (...,), with the
array type and device of `z` (float64 in NumPy, at least float32 in torch), detached from the graph. A response without live tokens
scores 0 (`response_scores(...).empty` flags it); a non-finite z on a live token gives NaN, so that ``score <= threshold`` rejects.
"""

from dataclasses import dataclass
from typing import Any

from .rows import Rows

_EXP_LIMIT = 60.0


@dataclass(frozen=True)
class Scores:
    """Everything the rules look at, one value per response (see the functions of the same names)."""

    d: Any
    g: Any
    geomean: Any
    mean_k1: Any
    mean_k2: Any
    mean_k3: Any
    max_k2: Any
    mean_exp_abs: Any
    length: Any
    empty: Any


def _identity(z: Any) -> Any:
    return z


def _square(z: Any) -> Any:
    return z * z


def _mean_abs(rows: Rows) -> Any:
    return rows.mean_of(abs)


def _signed(rows: Rows) -> Any:
    return rows.mean_of(_identity)


def _mean_k2(rows: Rows) -> Any:
    return rows.mean_of(_square) / 2


def _max_k2(rows: Rows) -> Any:
    return rows.max_of(_square) / 2


def _mean_k3(rows: Rows) -> Any:
    def k3(z: Any) -> Any:
        z = rows.xp.clip(z, -_EXP_LIMIT, _EXP_LIMIT)
        return rows.xp.expm1(z) - z

    return rows.mean_of(k3)


def _excess_exp_abs(rows: Rows) -> Any:
    """mean e^|z| - 1: the part that can be small, kept apart so that it does not drown in the 1."""
    return rows.mean_of(lambda z: rows.xp.expm1(rows.xp.clip(abs(z), None, _EXP_LIMIT)))


def carm_score(z: Any, token_mask: Any) -> Any:
    """d = sum_t a_t |z_t| / T, the CARM score in nats; s_CARM = exp(d). No direction, so nothing cancels.

    Guaranteed for every response: d >= geomean_score (Proposition 2), d unchanged by reciprocals, permutations and padding.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: CARM, Eq. 6.

    >>> import numpy as np
    >>> carm_score(np.log(np.array([[10.0, 0.1, 7.0]])), np.array([[1, 1, 0]])).round(6).tolist()
    [2.302585]
    """
    return _mean_abs(Rows(z, token_mask))


def geomean_score(z: Any, token_mask: Any) -> Any:
    """|sum_t a_t z_t| / T, the geometric-mean score in nats. Opposite drifts cancel (Proposition 1): it certifies nothing.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: CARM, Eq. 5.

    >>> import numpy as np
    >>> geomean_score(np.array([[2.0, -2.0]]), np.ones((1, 2))).tolist()
    [0.0]
    """
    return abs(_signed(Rows(z, token_mask)))


def signed_mean(z: Any, token_mask: Any) -> Any:
    """g = sum_t a_t z_t / T, the signed mean log-ratio in nats (log of the geometric-mean ratio).

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: CARM, Eq. 4.

    >>> import numpy as np
    >>> signed_mean(np.array([[1.0, -2.0]]), np.ones((1, 2))).tolist()
    [-0.5]
    """
    return _signed(Rows(z, token_mask))


def mean_k1(z: Any, token_mask: Any) -> Any:
    """mean_t(-z_t): unbiased estimate of KL(rollout || theta) from rollout samples; any sign.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: the k1 estimator of verl and TRL.

    >>> import numpy as np
    >>> mean_k1(np.array([[1.0, -2.0]]), np.ones((1, 2))).tolist()
    [0.5]
    """
    return -_signed(Rows(z, token_mask))


def mean_k2(z: Any, token_mask: Any) -> Any:
    """mean_t z_t^2 / 2. d <= sqrt(2 mean_k2) by Jensen.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: verl `seq_mean_k2`.

    >>> import numpy as np
    >>> mean_k2(np.array([[1.0, -2.0]]), np.ones((1, 2))).tolist()
    [1.25]
    """
    return _mean_k2(Rows(z, token_mask))


def mean_k3(z: Any, token_mask: Any) -> Any:
    """mean_t (e^z_t - 1 - z_t) >= 0, the low-variance KL(rollout || theta) estimate; phi(d) <= mean_k3 with phi(a) = a - 1 + e^-a.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: verl `seq_mean_k3`.

    >>> import numpy as np
    >>> mean_k3(np.log(np.array([[10.0, 0.1]])), np.ones((1, 2))).round(9).tolist()
    [4.05]
    """
    return _mean_k3(Rows(z, token_mask))


def max_k2(z: Any, token_mask: Any) -> Any:
    """max_t z_t^2 / 2, the sampled-token statistic of Trust Region Masking; 0 for an empty response.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: verl `seq_max_k2`.

    >>> import numpy as np
    >>> max_k2(np.array([[1.0, -2.0]]), np.ones((1, 2))).tolist()
    [2.0]
    """
    return _max_k2(Rows(z, token_mask))


def mean_exp_abs(z: Any, token_mask: Any) -> Any:
    """mean_t e^|z_t| (1 for an empty response), the arithmetic mean of max(r, 1/r); never below exp(d). |z| counts up to 60 nats.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: NeMo-RL `seq_logprob_error_threshold`.

    >>> import numpy as np
    >>> mean_exp_abs(np.log(np.array([[10.0, 0.1]])), np.ones((1, 2))).round(9).tolist()
    [10.0]
    """
    return _excess_exp_abs(Rows(z, token_mask)) + 1.0


def response_scores(z: Any, token_mask: Any) -> Scores:
    """All statistics of this module in one pass over the arrays, plus length T and the `empty` flag.

    Raises: ValueError for different shapes, TypeError for mixed array types. Source: CARM, Eqs. 4-6, and the estimators k1, k2, k3.

    >>> import numpy as np
    >>> s = response_scores(np.array([[1.0, -2.0], [3.0, 3.0]]), np.array([[1, 1], [0, 0]]))
    >>> s.d.tolist(), s.length.tolist(), s.empty.tolist()
    ([1.5, 0.0], [2, 0], [False, True])
    """
    rows = Rows(z, token_mask)
    g = _signed(rows)
    return Scores(
        d=_mean_abs(rows),
        g=g,
        geomean=abs(g),
        mean_k1=-g,
        mean_k2=_mean_k2(rows),
        mean_k3=_mean_k3(rows),
        max_k2=_max_k2(rows),
        mean_exp_abs=_excess_exp_abs(rows) + 1.0,
        length=rows.length,
        empty=rows.length == 0,
    )
