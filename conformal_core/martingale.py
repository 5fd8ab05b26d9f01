"""A conformal test martingale: evidence, at any time, that scores are no longer exchangeable with those before them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from itertools import groupby
from math import exp, lgamma, log
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import as_floats
from .level import Level, as_level, log_of

__all__ = ["DriftMonitor", "PowerMixture", "SimpleJumper", "online_p_values"]

_SMALLEST = 2.0**-60


def online_p_values(scores: ArrayLike, u: ArrayLike, history: ArrayLike = ()) -> NDArray[np.float64]:
    """Each score's smoothed p-value among itself and *all scores before it*.

    ``p_t = (#{i < t : S_i > S_t} + u_t (1 + #{i < t : S_i = S_t})) / t``, the index running over ``history`` and then ``scores``.

    *Guarantee*: if ``history`` and ``scores`` are exchangeable and the ``u_t`` independent uniforms, the p-values are **independent** and
    uniform on [0, 1], ties or not.  P-values against one fixed calibration set are uniform too, but not independent: they share
    its luck, and a martingale on them raises false alarms.

    Parameters
    ----------
    scores, u : array_like, shape (m,)
        Scores in the order they came; one uniform number in [0, 1] each.
    history : array_like, shape (n,)
        Earlier scores, for instance those of the calibration set; no p-value is returned for them.

    Returns
    -------
    array of float64, shape (m,)

    Raises
    ------
    ValueError
        If shapes disagree, a score is NaN, or ``u`` leaves [0, 1].

    References
    ----------
    Vovk, Nouretdinov, Gammerman (2003), *Testing exchangeability on-line*, Thm 1.

    Examples
    --------
    >>> online_p_values([3.0, 1.0, 3.0], [0.5, 0.5, 0.5]).tolist()
    [0.5, 0.75, 0.3333333333333333]
    """
    return _p_values(_checked(scores, u), sorted(_numbers("history", history).tolist()))


class PowerMixture:
    """Bet against small p-values (scores that grow): capital ``integral over e in [0, 1] of prod_i e p_i^(e - 1)``.

    In closed form from ``t`` and ``L = -sum log p_i``: ``e^L L^-(t+1) * (lower incomplete gamma)(t + 1, L)``.

    References
    ----------
    Vovk, Nouretdinov, Gammerman (2003), Sect. 4.

    Examples
    --------
    >>> bets = PowerMixture()
    >>> for p in (0.01, 0.02, 0.01): bets.bet(p)
    >>> bets.log_capital > 3
    True
    """

    def __init__(self) -> None:
        self._t, self._sum = 0, 0.0

    def bet(self, p: float) -> None:
        """Bet on one p-value.  Below 2**-60 it counts as 2**-60, which can only lower the capital."""
        self._t, self._sum = self._t + 1, self._sum - log(max(_p_value(p), _SMALLEST))

    @property
    def log_capital(self) -> float:
        """Natural logarithm of the capital; 0 at the start."""
        t, total = self._t, self._sum
        if total > t + 1:
            from scipy.special import gammainc  # type: ignore[import-untyped, unused-ignore]

            return total + lgamma(t + 1) + log(gammainc(t + 1, total)) - (t + 1) * log(total)
        term = value = 1.0 / (t + 1)  # sum over k of L^k / ((t+1) ... (t+1+k)): all terms positive
        k = 1
        while term > 1e-17 * value:
            term *= total / (t + 1 + k)
            value += term
            k += 1
        return log(value)

    def state_dict(self) -> list[float]:
        """Number of bets and ``L``."""
        return [self._t, self._sum]

    def load_state_dict(self, state: list[float]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._t, self._sum = int(state[0]), float(state[1])


class SimpleJumper:
    """Bet for or against small p-values, switching sides now and then: follows drifts in both directions.

    Capital ``C = C_-1 + C_0 + C_1``, one third each at first; at every p-value each third gives up a share ``jump`` that is spread
    evenly, then ``C_e`` is multiplied by ``1 + e (p - 1/2)``.

    Parameters
    ----------
    jump : float
        In (0, 1].

    References
    ----------
    Vovk, Petej, Nouretdinov, Ahlberg, Carlsson, Gammerman (2021), *Retrain or not retrain*, Algorithm 1.

    Examples
    --------
    >>> bets = SimpleJumper()
    >>> for _ in range(40): bets.bet(0.95)
    >>> bets.log_capital > 4
    True
    """

    _SIDES = (-1, 0, 1)

    def __init__(self, jump: float = 0.01) -> None:
        if isinstance(jump, bool) or not 0 < jump <= 1:
            raise ValueError(f"jump: got {jump!r}; need a number in (0, 1]; because it is a share of the capital")
        self.jump = float(jump)
        self._shares, self._log = [1 / 3] * 3, 0.0

    def bet(self, p: float) -> None:
        """Bet on one p-value."""
        p = _p_value(p)
        mixed = [(1 - self.jump) * c + self.jump / 3 for c in self._shares]
        grown = [c * (1 + side * (p - 0.5)) for side, c in zip(self._SIDES, mixed, strict=True)]
        total = sum(grown)
        self._shares = [c / total for c in grown]
        self._log += log(total)

    @property
    def log_capital(self) -> float:
        """Natural logarithm of the capital; 0 at the start."""
        return self._log

    def state_dict(self) -> list[float]:
        """Shares and the logarithm of the capital."""
        return [*self._shares, self._log]

    def load_state_dict(self, state: list[float]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._shares, self._log = [float(c) for c in state[:3]], float(state[3])


class DriftMonitor:
    r"""Watch a stream of scores; raise an alarm when the evidence against exchangeability reaches ``1 / alpha``.

    *Guarantee* (Ville's inequality): ``P(an alarm is ever raised) <= alpha`` from one :meth:`restart` to the next, if the history
    and all scores after it are exchangeable, however long one watches.  After an alarm and a restart, the next false alarm has a budget
    ``alpha`` of its own.  Nothing is promised on how fast a drift is found.

    Parameters
    ----------
    alpha : number
        Bound on the probability of a false alarm, in (0, 1).
    betting : {"jumper", "power"}
        :class:`SimpleJumper` finds scores that grow or shrink; :class:`PowerMixture` only those that grow, faster.

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    Ville (1939); Volkhonskiy, Burnaev, Nouretdinov, Gammerman, Vovk (2017), *Inductive conformal martingales for change-point detection*.

    Examples
    --------
    >>> import numpy as np
    >>> monitor = DriftMonitor("0.01")
    >>> monitor.restart(np.linspace(0, 1, 50))
    >>> monitor.observe(np.linspace(2, 3, 30), np.full(30, 0.5))
    True
    """

    def __init__(self, alpha: Level = "0.01", betting: Literal["jumper", "power"] = "jumper") -> None:
        self.alpha = as_level(alpha, "alpha")
        if betting not in ("jumper", "power"):
            raise ValueError(f"betting: got {betting!r}; need 'jumper' or 'power'; because those are the two ways to bet")
        self.betting = betting
        self.restart()

    def __repr__(self) -> str:
        return f"DriftMonitor({str(self.alpha)!r}, {self.betting!r})"

    def restart(self, history: ArrayLike = ()) -> None:
        """Start anew: capital 1, no alarm, and ``history`` (scores of the calibration set) as the scores before the first."""
        self._history: list[float] = sorted(_numbers("history", history).tolist())
        self._bets: SimpleJumper | PowerMixture = SimpleJumper() if self.betting == "jumper" else PowerMixture()
        self._alarm = False

    def observe(self, scores: ArrayLike, u: ArrayLike) -> bool:
        """Bet on further scores, in their order, each with its uniform number; returns :attr:`alarm`."""
        for p in _p_values(_checked(scores, u), self._history):
            self._bets.bet(float(p))
            self._alarm = self._alarm or self._bets.log_capital >= -log_of(self.alpha)
        return self._alarm

    @property
    def alarm(self) -> bool:
        """Whether the capital has ever reached ``1 / alpha`` since the last restart."""
        return self._alarm

    @property
    def log_capital(self) -> float:
        """Natural logarithm of the capital: 0 at a restart, an alarm at ``log(1 / alpha)``."""
        return self._bets.log_capital

    def p_bound(self) -> float:
        """Anytime-valid p-value of exchangeability from the present capital: ``min(1, 1 / capital)``."""
        return exp(-max(0.0, self.log_capital))

    def state_dict(self) -> dict[str, Any]:
        """Level, history as (value, count) pairs, bets and alarm."""
        pairs = [[value if np.isfinite(value) else str(value), len(list(same))] for value, same in groupby(self._history)]
        return {"alpha": str(self.alpha), "betting": self.betting, "history": pairs, "bets": self._bets.state_dict(), "alarm": self._alarm}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; ``ValueError`` if it was saved with another level or other bets."""
        for what, mine in (("alpha", str(self.alpha)), ("betting", self.betting)):
            if state[what] != mine:
                raise ValueError(f"state: got {what} {state[what]!r}; need {mine!r}; because capital and alarm of one are not the other's")
        self.restart([float(value) for value, count in state["history"] for _ in range(count)])
        self._bets.load_state_dict(state["bets"])
        self._alarm = bool(state["alarm"])


def _p_value(p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"p: got {p}; need a number in [0, 1]; because the capital is a martingale for p-values")
    return float(p)


def _p_values(pairs: list[tuple[float, float]], history: list[float]) -> NDArray[np.float64]:
    """P-values of (score, u) pairs in turn; ``history`` is sorted, and grows by the scores."""
    found = []
    for score, u in pairs:
        below, right = bisect_left(history, score), bisect_right(history, score)
        found.append((len(history) - right + u * (1 + right - below)) / (len(history) + 1))
        insort(history, score)
    return np.array(found, np.float64)


def _numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    numbers = as_floats(name, values)
    if numbers.ndim != 1 or np.isnan(numbers).any():
        raise ValueError(f"{name}: got shape {numbers.shape}; need one dimension without NaN; because NaN has no rank")
    return numbers


def _checked(scores: ArrayLike, u: ArrayLike) -> list[tuple[float, float]]:
    values, coins = _numbers("scores", scores), as_floats("u", u)
    if coins.shape != values.shape or not bool(np.all((coins >= 0) & (coins <= 1))):
        raise ValueError(f"u: got shape {coins.shape}; need {values.shape} with values in [0, 1]; because each score has one coin")
    return list(zip(values.tolist(), coins.tolist(), strict=True))
