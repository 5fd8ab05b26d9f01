"""Checks by which an own response mask or score is held against the theorems of the CARM paper; needs ``conformal-carm[testing]``.

Each check searches for a counterexample with Hypothesis and raises ``AssertionError`` with the smallest it finds.

>>> from carm_core import CARM, GeoMean
>>> check_mask(CARM(1.02), max_examples=20)
>>> check_mask_inclusion(CARM(1.02), GeoMean(1.02), max_examples=20)
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ._checks import DEFAULT_BAND, boundary_costs
from .certificates import Certificate
from .rules import Rule

__all__ = ["check_certificate", "check_mask", "check_mask_inclusion", "check_sub_additivity", "log_ratio_rows"]

Band = tuple[float, float]
Keep = Callable[[Any, Any], Any]
MaskScore = Callable[[Any, Any], Any]

_NOT_FINITE = (math.nan, math.inf, -math.inf)
_log_ratios = st.one_of(
    st.just(0.0),
    st.floats(-0.03, 0.03),
    st.sampled_from([-1.0, 1.0, -0.3, 0.3, 0.5, -0.5]),
    st.floats(-3, 3),
    st.sampled_from([-math.log(1.28), math.log(1.28), math.log(0.8), -math.log(0.8)]),
)
#: Log-ratios of one response: mostly on-policy tokens, some far outside, and pairs that cancel.
log_ratio_rows = st.one_of(
    st.lists(_log_ratios, min_size=1, max_size=8),
    st.lists(st.floats(-2, 2), min_size=1, max_size=4).map(lambda half: [*half, *(-x for x in half)]),
    st.tuples(st.floats(-3, 3), st.integers(1, 60)).map(lambda one: [one[0]] + [0.0] * one[1]),
    st.tuples(st.floats(-0.05, 0.05), st.integers(1, 20)).map(lambda flat: [flat[0]] * flat[1]),
)


def _searching(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def _require(ok: object, message: str) -> None:
    """An assertion that ``python -O`` does not remove."""
    if not ok:
        raise AssertionError(message)


def _batch(rows: list[list[float]], fill: float = 0.0, extra: int = 0) -> tuple[Any, Any]:
    width = max(map(len, rows)) + extra
    z, mask = np.full((len(rows), width), fill), np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        z[i, : len(row)], mask[i, : len(row)] = row, 1.0
    return z, mask


def _spread(rows: list[list[float]], fill: float) -> tuple[Any, Any]:
    """The same live tokens, each behind one that does not count."""
    z, mask = _batch(rows)
    apart, live = np.full((len(rows), 2 * z.shape[1]), fill), np.zeros((len(rows), 2 * z.shape[1]))
    apart[:, 1::2], live[:, 1::2] = np.where(mask > 0, z, fill), mask
    return apart, live


def _just_kept(keep: Keep, row: list[float]) -> list[float]:
    """The largest multiple of ``row`` that is kept, less a part in 10^9; ``row`` itself if it has no such multiple."""

    def kept(scale: float) -> bool:
        return bool(keep(*_batch([[scale * x for x in row]]))[0])

    low, high = 0.0, 1.0
    while kept(high) and high < 64:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    scale = low * (1 - 1e-9)
    return [scale * x for x in row] if low > 0 and kept(scale) else row


def check_mask(rule: Rule | Keep, *, max_examples: int = 200) -> None:
    """A mask decides each response alone, from its live tokens, and rejects what is not finite.

    Order and company of the responses, padding (behind, before and between live tokens) and what stands in it do not matter; a response
    with a NaN or infinite log-ratio on any live token is rejected; asked again it answers the same, and its arguments stay as they were.

    Parameters
    ----------
    rule : Rule or callable
        A callable takes ``(z, token_mask)``, both (B, T) NumPy arrays, and returns (B,) bool, True = takes part in the loss.
    max_examples : int

    Raises
    ------
    AssertionError
        With the smallest batch found and which of these it breaks.

    Examples
    --------
    >>> import numpy as np
    >>> try:
    ...     check_mask(lambda z, m: abs(z * m).mean(axis=1) < 0.02, max_examples=50)
    ... except AssertionError:
    ...     print("the mean runs over padding, or NaN * 0 is NaN")
    the mean runs over padding, or NaN * 0 is NaN
    """
    keep, asked = _keep(rule), []

    @_searching(max_examples)
    @given(st.lists(log_ratio_rows, min_size=1, max_size=4), st.randoms(use_true_random=False), st.sampled_from(_NOT_FINITE))
    def sound(rows: list[list[float]], random: Any, bad: float) -> None:
        z, mask = _batch(rows, 5.0, 1)
        kept = keep(z, mask)
        _require(np.array_equal(z, _batch(rows, 5.0, 1)[0]), f"{rows}: the mask writes into its arguments")
        asked.append((rows, kept))
        order = random.sample(range(len(rows)), len(rows))
        _require((keep(*_batch([rows[i] for i in order])) == kept[order]).all(), f"{rows}: the order of the responses matters")
        alone = np.concatenate([keep(*_batch([row])) for row in rows])
        _require((alone == kept).all(), f"{rows}: kept {kept.tolist()} together, {alone.tolist()} one by one")
        for fill in (5.0, math.nan):
            _require((keep(*_batch(rows, fill, 3)) == kept).all(), f"{rows}: padding that holds {fill} changes the decision")
            _require((keep(*_spread(rows, fill)) == kept).all(), f"{rows}: tokens between that do not count and hold {fill} change it")
        for i, row in enumerate(rows):
            at = random.randrange(len(row))
            spoilt = [*rows[:i], [*row[:at], bad, *row[at + 1 :]], *rows[i + 1 :]]
            _require(not keep(*_batch(spoilt))[i], f"{spoilt[i]}: kept although a live log-ratio is not finite")

    sound()
    for rows, kept in asked[:50]:
        _require((keep(*_batch(rows, 5.0, 1)) == kept).all(), f"{rows}: decided otherwise when asked again later")


def check_certificate(
    rule: Rule | Keep, certificate: Certificate | None = None, *, band: Band = DEFAULT_BAND, max_examples: int = 500
) -> None:
    """No accepted response has a larger share of tokens outside the band than the certificate says.

    Parameters
    ----------
    rule : Rule or callable
        As in :func:`check_mask`.
    certificate : Certificate, optional
        Default: ``rule.certificate(band)``.  Its ``p_out``, ``p_minus`` and ``p_plus`` are checked, its budget ``p_minus b_minus + p_plus
        b_plus + p_out severity <= log tau`` where it has one, and its witness (which must be accepted and lie outside everywhere) where it
        certifies nothing.
    band : (float, float)
        Ratios ``[low, high]``.
    max_examples : int

    Raises
    ------
    AssertionError
        With the smallest response found: a mask that compares the signed mean fails on (a, -a).
    ValueError
        If a callable comes without a certificate.

    References
    ----------
    CARM, Proposition 3, Eqs. 12 and 13.

    Examples
    --------
    >>> from carm_core import CARM
    >>> check_certificate(CARM(1.3), max_examples=50)
    """
    if certificate is None:
        if not isinstance(rule, Rule):
            raise ValueError("certificate: got None; need one; because only a Rule knows its own")
        certificate = rule.certificate(band)
    claimed, keep = certificate, _keep(rule)
    low, high = -boundary_costs(band)[0], boundary_costs(band)[1]

    def within(row: list[float]) -> None:
        z, mask = _batch([row])
        if not keep(z, mask)[0]:
            return
        minus, plus = z[z < low], z[z > high]
        shares = {"p_out": (minus.size + plus.size) / z.size, "p_minus": minus.size / z.size, "p_plus": plus.size / z.size}
        for name, share in shares.items():
            bound = getattr(claimed, name)
            _require(share <= bound + 1e-9, f"log-ratios {row} are accepted with {name} = {share:.4g}; the certificate says {bound:.4g}")
        for name, excess_of in (("severity_minus", low - minus), ("severity_plus", plus - high)):
            worst, bound = float(excess_of.max(initial=0.0)), getattr(claimed, name)
            _require(worst <= bound + 1e-9, f"log-ratios {row} are accepted with {name} = {worst:.4g}; the certificate says {bound:.4g}")
        if claimed.budget is not None and claimed.cost_minus is not None and claimed.cost_plus is not None:
            excess = float((low - minus).sum() + (plus - high).sum()) / z.size
            spent = shares["p_minus"] * claimed.cost_minus + shares["p_plus"] * claimed.cost_plus
            if math.isclose(claimed.cost_minus, -low) and math.isclose(claimed.cost_plus, high):
                spent += excess
            _require(spent <= claimed.budget + 1e-9, f"log-ratios {row} are accepted and spend {spent:.4g} of {claimed.budget:.4g}")

    @_searching(max_examples)
    @given(log_ratio_rows)
    def kept_within(row: list[float]) -> None:
        within(row)
        within(_just_kept(keep, row))

    kept_within()
    for length in (*range(1, 33), 64, 257, 1024):
        for count in sorted({min(m, length) for m in (1, 2, 3, 5, 8, length // 8, length // 2, length)}):
            for edge in (low - 1e-9, high + 1e-9):
                within([edge] * count + [0.0] * (length - count))
    if claimed.witness is not None:
        z, mask = _batch([list(claimed.witness)])
        outside = ((z < low) | (z > high)).all()
        _require(keep(z, mask)[0] and outside, f"the witness {claimed.witness} is not an accepted response with every ratio outside")


def check_mask_inclusion(inner: Rule | Keep, outer: Rule | Keep, *, max_examples: int = 500) -> None:
    """Every response that ``inner`` keeps is kept by ``outer`` (CARM in GeoMean at one threshold: Proposition 2).

    Parameters
    ----------
    inner, outer : Rule or callable
    max_examples : int

    Raises
    ------
    AssertionError
        With the smallest response found.

    Examples
    --------
    >>> from carm_core import CARM, MeanExpAbs
    >>> check_mask_inclusion(MeanExpAbs(1.02), CARM(1.02), max_examples=50)
    """
    first, second = _keep(inner), _keep(outer)

    @_searching(max_examples)
    @given(log_ratio_rows)
    def inside(row: list[float]) -> None:
        for tried in (row, _just_kept(first, row)):
            z, mask = _batch([tried])
            _require(second(z, mask)[0] or not first(z, mask)[0], f"log-ratios {tried}: kept by the inner mask, not by the outer one")

    inside()


def check_sub_additivity(score: MaskScore, *, cancels: bool = False, max_examples: int = 300) -> None:
    """A drift score in nats is a (semi)norm of the log-ratios: d(y + z) <= d(y) + d(z), d(c z) = |c| d(z), d >= 0.

    Then the drift of two updates is at most the sum of both, and a budget can be split over updates.

    Parameters
    ----------
    score : callable
        From (z, token_mask) to (B,) nats, like :func:`carm_core.carm_score`.
    cancels : bool
        Whether d(z) = 0 is allowed for z other than 0, as it is for a signed mean.  If not, opposite log-ratios do not hide.
    max_examples : int

    Raises
    ------
    AssertionError
        With the smallest pair found.

    References
    ----------
    CARM, Proposition 1 (cancellation), Appendix A.

    Examples
    --------
    >>> from carm_core import carm_score, geomean_score
    >>> check_sub_additivity(carm_score, max_examples=50)
    >>> check_sub_additivity(geomean_score, cancels=True, max_examples=50)
    """

    number = st.floats(-2, 2).map(lambda x: x if abs(x) > 1e-6 else 0.0)  # squares must not underflow

    @_searching(max_examples)
    @given(st.lists(st.tuples(number, number), min_size=1, max_size=6), number)
    def norm(pairs: list[tuple[float, float]], c: float) -> None:
        y, z = (np.array([column]) for column in zip(*pairs, strict=True))
        ones = np.ones(y.shape)
        a, b, both, scaled = (float(score(x, ones)[0]) for x in (y, z, y + z, c * z))
        padded = float(score(np.append(z, [[math.nan]], axis=1), np.append(ones, [[0.0]], axis=1))[0])
        _require(abs(padded - b) <= 1e-9, f"d(z) = {b:.4g}, but {padded:.4g} with padding, for z = {z[0].tolist()}")
        _require(a >= 0 and b >= 0, f"scores {a:.4g} and {b:.4g}; need at least 0")
        _require(both <= a + b + 1e-9, f"d(y + z) = {both:.4g} above {a:.4g} + {b:.4g} for y = {y[0].tolist()}, z = {z[0].tolist()}")
        _require(abs(scaled - abs(c) * b) <= 1e-9, f"d({c:.4g} z) = {scaled:.4g}, |c| d(z) = {abs(c) * b:.4g} for z = {z[0].tolist()}")
        _require(cancels or b >= 1e-3 * float(abs(z).max()) / z.size, f"d(z) = {b:.4g} for z = {z[0].tolist()}: log-ratios cancel")

    norm()
    if not cancels:
        z = np.array([[1.0, -1.0]])
        _require(float(score(z, np.ones((1, 2)))[0]) > 0, "d(1, -1) = 0: opposite log-ratios cancel")


def _keep(rule: Rule | Keep) -> Keep:
    """The decision on responses of negative advantage, the side that every rule certifies; one 0 or 1 per response."""

    def decide(z: Any, mask: Any) -> Any:
        kept = np.asarray(rule.keep(z, mask, -np.ones(len(z))) if isinstance(rule, Rule) else rule(z, mask))
        _require(kept.shape == (len(z),), f"the mask has shape {kept.shape} for {len(z)} responses; need ({len(z)},)")
        _require(((kept == 0) | (kept == 1)).all(), f"the mask holds {kept.tolist()}; need True or False")
        return kept.astype(bool)

    return decide
