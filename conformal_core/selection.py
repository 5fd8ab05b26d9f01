"""Conformal selection: which of a batch of prompts may stop, with a bound on the share of wrong answers among those that do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .lead import Statistic, lead
from .level import Level, as_level
from .outcomes import Outcomes
from .risk_control import known_gold
from .score import answer_codes

__all__ = ["Selection", "conformal_selection", "select_stops"]


@dataclass(frozen=True, eq=False)
class Selection:
    """Which candidates of a batch were selected.

    Attributes
    ----------
    selected : bool array, shape (m,)
    p_values : float64 array, shape (m,)
        Conformal p-value of "this answer is wrong".
    n : int
        Calibration prompts.
    delta : Fraction
        Bound on the false discovery rate.
    attainable : bool
        Whether a selection is possible at all: the smallest p-value, 1/(n + 1) without randomisation, is at most delta.
    guarantee : str
        What holds, and under which assumption.
    """

    selected: NDArray[np.bool_]
    p_values: NDArray[np.float64]
    n: int
    delta: Fraction
    attainable: bool
    guarantee: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return vars(self) | {"selected": self.selected.tolist(), "p_values": self.p_values.tolist(), "delta": str(self.delta)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Selection:
        """Inverse of :meth:`to_json`."""
        arrays = {"selected": np.array(data["selected"], np.bool_), "p_values": np.array(data["p_values"], np.float64)}
        return cls(**(dict(data) | arrays | {"delta": Fraction(data["delta"])}))


def conformal_selection(
    confidence: ArrayLike, right: ArrayLike, candidates: ArrayLike, delta: Level, u: ArrayLike | None = None
) -> Selection:
    r"""Select among ``m`` candidates by confidence so that the expected share of wrong ones among the selected is at most ``delta``.

    ``p_j = (#{i wrong : g_i > g_j} + u_j (1 + #{i wrong : g_i = g_j})) / (n + 1)`` over the wrong calibration answers; Benjamini-Hochberg
    at ``delta`` over the m p-values, compared exactly.

    Parameters
    ----------
    confidence : array_like, shape (n,)
        Confidence g of each calibration answer: any function fixed beforehand of the responses, larger meaning surer.
    right : array_like of bool, shape (n,)
        Whether the answer is right.
    candidates : array_like, shape (m,)
        Confidence of the answers to choose from.
    delta : level
        Bound on the false discovery rate.
    u : array_like, shape (m,), optional
        Independent uniform numbers.  Default: all 1, which needs none and is conservative under ties.

    Returns
    -------
    Selection
        *Guarantee*: ``E[#wrong selected / max(1, #selected)] <= delta`` if the n calibration prompts and the m candidates are independent
        draws from one law.  It is an average over batches and holds at one budget: over M budgets use ``delta / M``.

    Raises
    ------
    ValueError
        If shapes disagree, there is a NaN, ``right`` is not bool, ``u`` leaves [0, 1], or ``delta`` is outside (0, 1).

    References
    ----------
    Jin, Candes (2023), *Selection by prediction with conformal p-values*, JMLR 24.

    Examples
    --------
    >>> g = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    >>> conformal_selection(g, [True] * 7 + [False] * 2, [0.95, 0.15, 0.35], "0.15").selected.tolist()
    [True, False, True]
    """
    g, test, truth = np.asarray(confidence, np.float64), np.asarray(candidates, np.float64), np.asarray(right)
    level = as_level(delta)
    for name, value in (("confidence", g), ("candidates", test)):
        if value.ndim != 1 or np.isnan(value).any():
            raise ValueError(f"{name}: got shape {value.shape}; need one dimension without NaN; because there is one number per answer")
    if truth.shape != g.shape or truth.dtype != np.bool_:
        raise ValueError(f"right: got {truth.dtype} of shape {truth.shape}; need bool {g.shape}; because an answer is right or wrong")
    coin = np.ones(test.size) if u is None else np.asarray(u, np.float64)
    if coin.shape != test.shape or not bool(np.all((coin >= 0) & (coin <= 1))):
        raise ValueError(f"u: got shape {coin.shape}; need {test.shape} with values in [0, 1]; because u is uniform, one per candidate")
    n, m = g.size, test.size
    wrong = np.sort(g[~truth])
    above = wrong.size - np.searchsorted(wrong, test, side="right")
    equal = wrong.size - np.searchsorted(wrong, test, side="left") - above
    ranks = above + coin * (1 + equal)  # p = rank / (n + 1)
    order = np.sort(ranks)
    # the largest r with p_(r) <= delta r / m, as rationals
    chosen = next((r for r in range(m, 0, -1) if Fraction(float(order[r - 1])) * m <= level * r * (n + 1)), 0)
    limit = order[chosen - 1] if chosen else -np.inf
    return Selection(
        selected=ranks <= limit,
        p_values=ranks / (n + 1),
        n=n,
        delta=level,
        attainable=u is not None or level * (n + 1) >= 1,
        guarantee=f"E[wrong selected / max(1, selected)] <= {level} for prompts and candidates drawn independently from one law",
    )


def select_stops(
    calibration: Outcomes, batch: Outcomes, k: int, delta: Level, *, statistic: Statistic = "margin", u: ArrayLike | None = None
) -> Selection:
    """Which prompts of a batch may stop after k responses: :func:`conformal_selection` with the lead of the leading answer as confidence.

    Parameters
    ----------
    calibration : Outcomes
        With codes and gold, at least k responses each.
    batch : Outcomes
        With codes, at least k responses each; gold is not read.
    k : int
        Budget.
    delta : level
        Bound on the expected share of wrong answers among the stops.
    statistic : {"top_share", "margin"}
        The confidence; an answer without a unique leader has confidence 0 and counts as wrong.
    u : array_like, shape (m,), optional
        As in :func:`conformal_selection`.

    Returns
    -------
    Selection
        Candidates without a leader are never selected.  *Guarantee*: that of :func:`conformal_selection`, at this one budget.

    Raises
    ------
    ValueError
        If codes, gold or responses are missing; else as in :func:`conformal_selection`.

    Examples
    --------
    >>> import numpy as np
    >>> cal = Outcomes(np.arange(9), np.ones((9, 2), bool), codes=np.array([[0, 0]] * 8 + [[0, 1]]), gold=np.zeros(9, int))
    >>> select_stops(cal, cal.take(np.array([0, 8])), 2, "0.2").selected.tolist()
    [True, False]
    """
    gold = known_gold(calibration)
    for name, value in (("calibration", calibration), ("batch", batch)):
        if k > value.width or (value.n and value.drawn.min() < k):
            raise ValueError(f"{name}: got prompts with fewer than {k} responses; need {k}; because the lead is read at that budget")
    size, answer = lead(answer_codes(calibration), k, statistic)
    known, _ = lead(answer_codes(batch), k, statistic)
    chosen = conformal_selection(size, (answer == gold) & (size > 0), known, delta, u)
    return Selection(chosen.selected & (known > 0), chosen.p_values, chosen.n, chosen.delta, chosen.attainable, chosen.guarantee)
