"""Nonconformity scores of the gold answer, and the stop that goes with each.

One object calibrates (:meth:`Score.gold_scores`) and decides (:meth:`Score.stop`), so it is impossible to calibrate on one
score and stop on another.  Notation, for the first k responses of a prompt: ``phat(a)`` is the share of answer ``a`` among
them, ``G(a)`` the share of answers strictly more frequent than ``a``.  An unparsable response has no answer: it carries no
mass but stays in the denominator.  The prediction set ranges over *all* answers: one that was not sampled has score 1, so
it is in the set as soon as q >= 1, and a budget with q >= 1 never stops.  (:class:`ReleasedAPS` departs from this on purpose.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .keys import mix64
from .outcomes import UNPARSABLE, Outcomes

__all__ = [
    "APS",
    "FirstSuccess",
    "MassAbove",
    "ReleasedAPS",
    "Score",
    "answer_counts",
    "empty_probability",
    "k_mix",
    "signal_score",
    "singleton_probability",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Score(ABC):
    """A nonconformity score together with its prediction set and its stop.

    Guarantee, for calibration prompts and a new prompt that are exchangeable, a policy fixed independently of them, and
    ``q = conformal_quantile(gold_scores[:, m], delta).value``: ``P(the gold answer is not in the set at budget k_m) <= delta``,
    hence ``P(stop at k_m and commit to an answer that is not gold) <= delta`` at every *fixed* budget.  At a budget chosen by
    the stopping itself the bound is M * delta (see the multiplicity rules).  Nothing is said about P(wrong given stop).
    """

    #: Name with the convention, for logs and state files.
    name: str
    #: Whether the score reads answer codes (``Outcomes.codes``).
    needs_answers: bool

    @abstractmethod
    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        """Score of the gold answer at every budget of ``grid``; at budget k only the first k responses are read.

        Parameters
        ----------
        outcomes : Outcomes
            With ``codes`` and ``gold`` if :attr:`needs_answers`.
        grid : sequence of M ints
            Budgets, each in ``[1, outcomes.width]``.
        u : array_like, shape (n,)
            One uniform number per prompt in [0, 1], shared over answers and budgets (:func:`conformal_core.keys.uniforms`).

        Returns
        -------
        array of float64, shape (n, M)
            NaN where the responses drawn do not determine the score; :func:`conformal_core.conformal_quantile` refuses it.

        Raises
        ------
        ValueError
            If codes or gold are missing, a budget exceeds the width, or ``u`` has the wrong shape or range.
        """

    @abstractmethod
    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        """Whether the prediction set at threshold ``q``, from the first ``k`` responses, is a single answer; and which.

        Parameters
        ----------
        outcomes : Outcomes
            Gold is never read.
        k : int
            Budget.  Prompts with ``drawn < k`` do not stop.
        q : float
            Threshold at this budget.
        u : array_like, shape (n,)
            The same numbers as in calibration would use for these prompts.

        Returns
        -------
        stop : array of bool, shape (n,)
        committed : array of int64, shape (n,)
            Code of the single answer where ``stop``, else -1.

        Raises
        ------
        ValueError
            If codes are missing, ``q`` is NaN, or ``u`` has the wrong shape or range.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class APS(Score):
    """Adaptive prediction sets on self-consistency: ``s(a) = G(a) + u * phat(a)``, and 1 for an answer not sampled.

    Parameters
    ----------
    set_rule : {"randomized", "inclusive"}
        ``"randomized"``: the set ``{a : s(a) <= q}`` (Eq. 8), which can be empty: a unanimous group stops only if u <= q.
        ``"inclusive"``: ``{a sampled : G(a) < q}``, a superset for q < 1 that never is empty and reads no u; it covers at
        least as much and its singletons are wrong no more often.

    Both are calibrated on the same score.  Both stop only if q < 1.

    Raises
    ------
    ValueError
        For another ``set_rule``.

    References
    ----------
    Romano, Sesia, Candes (2020); C-GRPO paper, Eqs. 4 and 8.  Against the paper: the score is not continuous (its atom at 1
    is P(gold not sampled)), so only the lower coverage bound holds, and thresholds are not monotone in k.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes([1, 2], np.zeros((2, 4), bool), codes=np.array([[0, 0, 0, 1], [0, 1, -1, 1]]), gold=np.array([0, 0]))
    >>> APS().gold_scores(o, (2, 4), [0.5, 0.5]).tolist()
    [[0.5, 0.375], [0.25, 0.625]]
    >>> APS().stop(o, 4, 0.6, [0.5, 0.5])
    (array([ True,  True]), array([0, 1]))
    """

    needs_answers = True

    def __init__(self, set_rule: str = "randomized") -> None:
        if set_rule not in ("randomized", "inclusive"):
            raise ValueError(f"set_rule: got {set_rule!r}; need 'randomized' or 'inclusive'; because those are the two sets of APS")
        self.set_rule = set_rule
        self.name = f"aps/{set_rule}"

    def __repr__(self) -> str:
        return f"APS({self.set_rule!r})"

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        coin = _uniform(u, outcomes.n)
        codes, gold = _answers(outcomes), _gold(outcomes)
        scores = np.empty((outcomes.n, len(_grid(grid, outcomes.width))))
        for m, k, counts in _counts_on_grid(codes, grid):
            own = _gold_counts(codes, gold, k)
            above = (counts > own[:, None]).sum(axis=1)
            scores[:, m] = np.where(own > 0, (above + coin * own) / k, 1.0)
        return _blank(scores, outcomes, grid)

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        coin = _uniform(u, outcomes.n)
        if _never(q, outcomes, k):
            return _nobody(outcomes.n)
        top = _top(_answers(outcomes), k)
        if self.set_rule == "inclusive":
            single = (q > 0) & ((top.second == 0) | (top.first / k >= q))
        else:
            single = (coin * top.first / k <= q) & ((top.second == 0) | ((top.first + coin * top.second) / k > q))
        return _commit(single & top.unique, top.answer, outcomes, k)


class MassAbove(Score):
    """The deterministic score ``G(a)``, the share of answers strictly more frequent; 1 for an answer not sampled.

    Set ``{a sampled : G(a) <= q}`` for q < 1; it stops iff one answer is ahead of all others and has share > q (or is the
    only one).  Deterministic: no u.  Calibrating G itself gives the tight version of the inclusive APS set.

    References
    ----------
    Not in the papers.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes([1], np.zeros((1, 4), bool), codes=np.array([[0, 0, 0, 1]]), gold=np.array([1]))
    >>> MassAbove().gold_scores(o, (2, 4), [0.0]).tolist(), MassAbove().stop(o, 4, 0.5, [0.0])[0].tolist()
    ([[1.0, 0.75]], [True])
    """

    name = "mass_above"
    needs_answers = True

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        return APS().gold_scores(outcomes, grid, np.zeros_like(_uniform(u, outcomes.n)))

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        _uniform(u, outcomes.n)
        if _never(q, outcomes, k):
            return _nobody(outcomes.n)
        top = _top(_answers(outcomes), k)
        return _commit(top.unique & (q >= 0) & ((top.second == 0) | (top.first / k > q)), top.answer, outcomes, k)


class ReleasedAPS(Score):
    """What the C-GRPO authors' public code does, by name: **no guarantee against wrong commits at q = 1**.

    Answers are ranked by frequency, ties in random order.  Score: ``mass ranked ahead + u * phat(a)``, 1 if not sampled.
    Set: *sampled* answers in that order until the cumulative mass reaches q, the crossing one included.  It is a singleton
    iff the top share is >= q.  ``q = 1`` is allowed, so a unanimous group stops: answers not sampled, which have score 1 <= q
    and count as covered, are left out of the set.  Half the prompts always right, half with one wrong answer of
    probability 0.9, delta = 0.12, k = 2: P(stop and wrong) = 0.405.  For q < 1, P(wrong stop at a fixed k) <= delta does hold.

    The tie order is a hash of (u, prompt id, answer code): a function of the prompt, not of call order.

    References
    ----------
    ``trl-cgrpo`` 0.2, ``conformal.py`` (tie order and set; its saturation of the rank at n is not reproduced).

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes([1], np.zeros((1, 2), bool), codes=np.array([[0, 0]]))
    >>> ReleasedAPS().stop(o, 2, 1.0, [0.5])[0].tolist(), APS().stop(o, 2, 1.0, [0.5])[0].tolist()
    ([True], [False])
    """

    name = "released"
    needs_answers = True

    def tie_keys(self, outcomes: Outcomes, codes: Ints, u: Floats) -> NDArray[np.uint64]:
        """Random keys of answers ``codes`` (n, anything); among equally frequent answers the smaller key ranks ahead."""
        prompt = mix64(outcomes.prompt_ids ^ mix64(u.view(np.uint64)))
        with np.errstate(over="ignore"):
            return mix64(prompt[:, None] + mix64(codes.astype(np.uint64)))

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        coin = _uniform(u, outcomes.n)
        codes, gold = _answers(outcomes), _gold(outcomes)
        scores = np.empty((outcomes.n, len(_grid(grid, outcomes.width))))
        wins_tie = self.tie_keys(outcomes, codes, coin) < self.tie_keys(outcomes, gold[:, None], coin)
        for m, k, counts in _counts_on_grid(codes, grid):
            own = _gold_counts(codes, gold, k)[:, None]
            ahead = ((counts > own) | (counts == own) & wins_tie[:, :k]).sum(axis=1)
            scores[:, m] = np.where(own[:, 0] > 0, (ahead + coin * own[:, 0]) / k, 1.0)
        return _blank(scores, outcomes, grid)

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        coin = _uniform(u, outcomes.n)
        if _never(q, outcomes, k, unanimity=True):
            return _nobody(outcomes.n)
        codes = _answers(outcomes)[:, :k]
        counts = answer_counts(codes, k)
        most = counts.max(axis=1)
        keys = np.where(counts == most[:, None], self.tie_keys(outcomes, codes, coin), np.uint64(2**64 - 1))
        first = codes[np.arange(outcomes.n), keys.argmin(axis=1)]
        return _commit((most > 0) & (most / k >= q), first, outcomes, k)


class FirstSuccess(Score):
    """Position of the first verified success: ``j* / k``; for verifiers (code) whose answers have no identity.

    Stops iff ``j* / k <= q < 1``, so only with a verified success in hand: the commit is as right as the verifier.  What is
    calibrated is how often a solvable prompt is *not* stopped.

    Parameters
    ----------
    convention : {"failure_above_success", "paper"}
        Score when none of the first k passed: +inf, above the score 1 of a first success at exactly k; or the paper's 1,
        which cannot tell the two apart.  No stop differs, since q >= 1 never stops; only the latter counts a prompt solved at its last
        response as unsolved.

    The score is discrete (multiples of 1/k), so of the two coverage bounds only the lower one holds.  With nested prefixes
    it is non-increasing in k, and the thresholds of all budgets are one number: ``q_k = J_(L) / k`` while that is below 1.

    Raises
    ------
    ValueError
        For another ``convention``.

    References
    ----------
    C-GRPO paper, Eq. 5 and Section 4.2.2.

    Examples
    --------
    >>> import numpy as np
    >>> o = Outcomes([1, 2], np.array([[False, True, False, True], [False] * 4]))
    >>> FirstSuccess().gold_scores(o, (1, 2, 4), [0.0, 0.0]).tolist()
    [[inf, 1.0, 0.5], [inf, inf, inf]]
    >>> FirstSuccess().stop(o, 4, 0.5, [0.0, 0.0])[0].tolist()
    [True, False]
    """

    needs_answers = False
    _FAILED: ClassVar[dict[str, float]] = {"failure_above_success": np.inf, "paper": 1.0}

    def __init__(self, convention: str = "failure_above_success") -> None:
        if convention not in self._FAILED:
            raise ValueError(f"convention: got {convention!r}; need one of {sorted(self._FAILED)}; because it scores prompts never solved")
        self.convention = convention
        self.name = f"first_success/{convention}"

    def __repr__(self) -> str:
        return f"FirstSuccess({self.convention!r})"

    def gold_scores(self, outcomes: Outcomes, grid: Sequence[int], u: ArrayLike) -> Floats:
        _uniform(u, outcomes.n)
        k = np.array(_grid(grid, outcomes.width), dtype=np.int64)
        j = _first_pass(outcomes)[:, None]
        failed = np.where(outcomes.drawn[:, None] >= k, self._FAILED[self.convention], np.nan)
        return np.where(j <= k, j / k, failed)

    def stop(self, outcomes: Outcomes, k: int, q: float, u: ArrayLike) -> tuple[Bools, Ints]:
        _uniform(u, outcomes.n)
        if _never(q, outcomes, k):
            return _nobody(outcomes.n)
        j = _first_pass(outcomes)
        if outcomes.codes is None:
            answer = np.full(outcomes.n, UNPARSABLE, np.int64)
        else:
            answer = outcomes.codes[np.arange(outcomes.n), np.minimum(j, outcomes.width) - 1]
        return _commit((j <= k) & (j / k <= q), answer, outcomes, k)


def k_mix(passes: ArrayLike, m: int = 1, *, drawn: ArrayLike | None = None) -> Ints:
    """First k at which the first k responses hold at least ``m`` successes and at least ``m`` failures; 0 if never.

    From then on the group has non-zero reward variance, i.e. a learning signal.

    Parameters
    ----------
    passes : array_like of bool, shape (n, width)
        Verdicts in the order drawn.
    m : int
        At least 1.
    drawn : array_like of int, shape (n,), optional
        Responses drawn; columns beyond are neither success nor failure.  Default: all.

    Returns
    -------
    array of int64, shape (n,)

    Raises
    ------
    ValueError
        If ``passes`` is not a two-dimensional bool array or ``m < 1``.

    Examples
    --------
    >>> k_mix([[True, True, False], [False, False, False]]).tolist()
    [3, 0]
    """
    won = np.asarray(passes)
    if won.ndim != 2 or won.dtype != np.bool_:
        raise ValueError(f"passes: got {won.dtype} of shape {won.shape}; need bool (n, width); because verdicts are true or false")
    if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1:
        raise ValueError(f"m: got {m!r}; need an integer >= 1; because it counts successes and failures")
    lost = ~won
    if drawn is not None:
        live = np.arange(won.shape[1]) < np.asarray(drawn)[:, None]
        won, lost = won & live, lost & live
    mixed = (won.cumsum(axis=1) >= m) & (lost.cumsum(axis=1) >= m)
    if not won.shape[1]:
        return np.zeros(won.shape[0], np.int64)
    return np.where(mixed.any(axis=1), mixed.argmax(axis=1) + 1, 0).astype(np.int64)


def signal_score(passes: ArrayLike, m: int = 1, *, drawn: ArrayLike | None = None) -> Floats:
    """Calibration score of the signal stop: ``k_mix - 1`` if the group becomes mixed within its row, else 0.

    A prompt that would become mixed is cut off by a futility stop after f draws iff ``k_mix > f``, i.e. iff its score is
    >= f.  With ``f = 1 + conformal quantile`` of the score, P(a prompt that would have become mixed is cut off) <= delta for
    exchangeable prompts: one number for the whole path, so no multiplicity factor.

    Parameters
    ----------
    passes, m, drawn
        As in :func:`k_mix`.

    Returns
    -------
    array of float64, shape (n,)

    Raises
    ------
    ValueError
        As in :func:`k_mix`.

    Examples
    --------
    >>> signal_score([[True, True, False], [False, False, False]]).tolist()
    [2.0, 0.0]
    """
    return np.maximum(k_mix(passes, m, drawn=drawn) - 1, 0).astype(np.float64)


def answer_counts(codes: ArrayLike, k: int) -> Ints:
    """How often the answer at each of the first ``k`` positions occurs among the first ``k``; 0 if it has no answer.

    Parameters
    ----------
    codes : array_like of int, shape (n, width)
        Answer codes; negative ones (unparsable, not drawn) have no answer.
    k : int
        In ``[1, width]``.

    Returns
    -------
    array of int64, shape (n, k)
        The share of answers strictly more frequent than ``c`` times is ``(counts > c).sum(1) / k``.

    Raises
    ------
    ValueError
        If ``k`` is not in ``[1, width]``.

    Examples
    --------
    >>> answer_counts([[0, 1, 0, -1]], 4).tolist()
    [[2, 1, 2, 0]]
    """
    table = np.asarray(codes)
    _grid((k,), table.shape[1])
    return next(counts for _, _, counts in _counts_on_grid(table, (k,)))


def singleton_probability(counts: Sequence[int], q: Fraction | int | str, rule: str = "randomized", *, k: int | None = None) -> Fraction:
    """Exact P(the prediction set is a single answer) over u uniform on [0, 1], given the counts of the sampled answers.

    With ``t(a) = clip((q - G(a)) / phat(a), 0, 1)`` the probability that ``a`` is in the randomized set: the largest t minus the
    second largest when u is shared (``"randomized"``), ``sum_a t(a) prod_{b != a} (1 - t(b))`` when every answer has a u of its own
    (``"independent"``, not offered as a score).  0 or 1 for the deterministic rules.

    Parameters
    ----------
    counts : sequence of int
        Occurrences of each distinct sampled answer, each at least 1.
    q : rational
        Threshold.  At q >= 1 every rule but ``"released"`` gives 0.
    rule : {"randomized", "independent", "inclusive", "mass_above", "released"}
    k : int, optional
        Responses, if some were unparsable.  Default: the sum of ``counts``.

    Returns
    -------
    Fraction

    Raises
    ------
    ValueError
        For an unknown rule, or counts that are below 1 or exceed k.

    Examples
    --------
    >>> singleton_probability([4], "22/25"), singleton_probability([3, 1], "1/2")
    (Fraction(22, 25), Fraction(2, 3))
    """
    threshold, rows = _law(counts, q, k)
    if rule == "released":
        return Fraction(int(bool(rows) and max(p for _, p in rows) >= threshold))
    if threshold >= 1:
        return Fraction(0)
    if rule == "inclusive":
        return Fraction(int(sum(above < threshold for above, _ in rows) == 1))
    if rule == "mass_above":
        return Fraction(int(sum(above <= threshold for above, _ in rows) == 1))
    inside = [min(max((threshold - above) / p, Fraction(0)), Fraction(1)) for above, p in rows]
    if rule == "randomized":
        first, second = sorted([*inside, Fraction(0), Fraction(0)], reverse=True)[:2]
        return first - second
    if rule == "independent":
        total = Fraction(0)
        for i, t in enumerate(inside):
            for j, other in enumerate(inside):
                t = t * (1 - other) if j != i else t
            total += t
        return total
    raise ValueError(
        f"rule: got {rule!r}; need 'randomized', 'independent', 'inclusive', 'mass_above' or 'released'; because those are the set rules"
    )


def empty_probability(counts: Sequence[int], q: Fraction | int | str, *, k: int | None = None) -> Fraction:
    """Exact P(the randomized APS set with one shared u is empty): ``1 - q / phat(top)`` for q below the top share, else 0.

    An empty set sends a prompt on to the next budget, even a unanimous one.

    Parameters
    ----------
    counts, q, k
        As in :func:`singleton_probability`.

    Returns
    -------
    Fraction

    Raises
    ------
    ValueError
        If counts are below 1 or exceed k.

    Examples
    --------
    >>> empty_probability([4], "22/25")
    Fraction(3, 25)
    """
    threshold, rows = _law(counts, q, k)
    if threshold >= 1:
        return Fraction(0)
    return 1 - max((min(max(threshold / p, Fraction(0)), Fraction(1)) for above, p in rows if above == 0), default=Fraction(0))


def _law(counts: Sequence[int], q: Fraction | int | str, k: int | None) -> tuple[Fraction, list[tuple[Fraction, Fraction]]]:
    size = sum(counts) if k is None else k
    if any(c < 1 for c in counts) or sum(counts) > size:
        raise ValueError(f"counts: got {list(counts)} of {size} responses; need counts >= 1 summing to at most k; because they are sampled")
    return Fraction(q), [(Fraction(sum(c for c in counts if c > own), size), Fraction(own, size)) for own in counts]


class _Top(NamedTuple):
    first: Ints  # count of the most frequent answer
    second: Ints  # count of the next, 0 if there is none
    unique: Bools  # whether one answer alone has the largest count
    answer: Ints  # its code


def _top(codes: Ints, k: int) -> _Top:
    counts = answer_counts(codes, k)
    first = counts.max(axis=1)
    at_top = counts == first[:, None]
    # an answer of count c fills c positions: a unique top answer fills exactly `first` of them
    return _Top(
        first=first,
        second=np.where(at_top, 0, counts).max(axis=1),
        unique=(first > 0) & (at_top.sum(axis=1) == first),
        answer=codes[np.arange(len(codes)), counts.argmax(axis=1)],
    )


def _counts_on_grid(codes: Ints, grid: Sequence[int]) -> Iterator[tuple[int, int, Ints]]:
    """(index, k, counts of each position's answer among the first k), with one pass over the columns for all budgets."""
    wanted: dict[int, list[int]] = {}
    for m, k in enumerate(grid):
        wanted.setdefault(int(k), []).append(m)
    counts = np.zeros((codes.shape[0], max(wanted, default=0)), np.int64)
    answered = codes[:, : counts.shape[1]] >= 0
    for column in range(counts.shape[1]):
        counts += (codes[:, : counts.shape[1]] == codes[:, column, None]) & answered
        for m in wanted.get(column + 1, ()):
            yield m, column + 1, counts[:, : column + 1].copy()


def _gold_counts(codes: Ints, gold: Ints, k: int) -> Ints:
    return np.asarray(((codes[:, :k] == gold[:, None]) & (gold[:, None] >= 0)).sum(axis=1), dtype=np.int64)


def _first_pass(outcomes: Outcomes) -> Ints:
    """1-based position of the first success among those drawn; past every budget if there is none."""
    won = outcomes.passes & outcomes.live
    never = np.iinfo(np.int64).max
    if not outcomes.width:
        return np.full(outcomes.n, never)
    return np.where(won.any(axis=1), won.argmax(axis=1) + 1, never)


def _blank(scores: Floats, outcomes: Outcomes, grid: Sequence[int]) -> Floats:
    return np.where(outcomes.drawn[:, None] >= np.asarray(grid, dtype=np.int64), scores, np.nan)


def _never(q: float, outcomes: Outcomes, k: int, *, unanimity: bool = False) -> bool:
    if np.isnan(q):
        raise ValueError("q: got NaN; need a number or +inf; because a threshold that was never calibrated must not stop anything")
    _grid((k,), max(k, 1))
    return k > outcomes.width or q > 1 or (q == 1 and not unanimity)


def _nobody(n: int) -> tuple[Bools, Ints]:
    return np.zeros(n, np.bool_), np.full(n, UNPARSABLE, np.int64)


def _commit(single: Bools, answer: Ints, outcomes: Outcomes, k: int) -> tuple[Bools, Ints]:
    stop = single & (outcomes.drawn >= k)
    return stop, np.where(stop, answer, UNPARSABLE)


def _answers(outcomes: Outcomes) -> Ints:
    if outcomes.codes is None:
        raise ValueError("outcomes.codes: got None; need answer codes; because this score compares answers (see encode_answers)")
    return outcomes.codes


def _gold(outcomes: Outcomes) -> Ints:
    if outcomes.gold is None:
        raise ValueError("outcomes.gold: got None; need the code of the gold answer; because it is the gold answer that is scored")
    return outcomes.gold


def _grid(grid: Sequence[int], width: int) -> Sequence[int]:
    for k in grid:
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= width:
            raise ValueError(f"grid: got the budget {k!r}; need integers in [1, {width}]; because a budget counts responses held")
    return grid


def _uniform(u: ArrayLike, n: int) -> Floats:
    coin = np.ascontiguousarray(u, dtype=np.float64)
    if coin.shape != (n,) or not bool(np.all((coin >= 0) & (coin <= 1))):
        raise ValueError(f"u: got shape {coin.shape}; need ({n},) with values in [0, 1]; because every prompt has one uniform number")
    return coin
