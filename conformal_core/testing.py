"""Checks by which an own score, calibrator, set rule or rollout policy is held against the theorems; needs ``conformal-carm[testing]``.

Each check searches for a counterexample with Hypothesis and raises ``AssertionError`` with the smallest it finds.  Coverage is exact: given
the n + 1 prompts of an exchangeable draw each is equally often the new one, so the probability is a count over which one is left out.

>>> from conformal_core import APS, conformal_quantile
>>> check_score(APS(), max_examples=20)
>>> check_calibrator(lambda scores, delta: conformal_quantile(scores, delta).value, max_examples=20)
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from .laws import betabinomial_hits
from .level import Level, as_level, conformal_rank
from .outcomes import UNPARSABLE, Outcomes
from .policy import RolloutPolicy
from .quantile import conformal_quantile
from .score import Score
from .sets import AnswerSets

__all__ = [
    "check_calibrator",
    "check_coverage_law",
    "check_exchangeability",
    "check_inclusion",
    "check_joint_calibrator",
    "check_rollout_policy",
    "check_score",
    "check_sub_additivity",
    "levels",
    "outcome_tables",
]

Calibrator = Callable[[NDArray[np.float64], Fraction], float]
JointCalibrator = Callable[[NDArray[np.float64], Fraction], Any]
SetRule = Callable[[NDArray[np.int64], int, float, NDArray[np.float64]], AnswerSets]

#: Levels at which ranks are decided: 1/d and j/20.
levels = st.one_of(st.integers(2, 12).map(lambda d: Fraction(1, d)), st.integers(1, 19).map(lambda j: Fraction(j, 20)))
_numbers = st.one_of(st.integers(-2, 4).map(float), st.just(float("inf")), st.floats(0, 1))
#: Sizes beyond those searched: n = 9 is the first at which a rank computed in binary64 is wrong.
_SIZES = (9, 19, 49)


@st.composite
def outcome_tables(draw: st.DrawFn, max_n: int = 6, width: int = 4, answers: int = 3) -> Outcomes:
    """Full tables of answers in which the gold is code 0 and -1 is unparsable."""
    n = draw(st.integers(2, max_n))
    row = st.lists(st.integers(UNPARSABLE, answers - 1), min_size=width, max_size=width)
    codes = np.array(draw(st.lists(row, min_size=n, max_size=n)), np.int64)
    ids = np.array(draw(st.lists(st.integers(0, 2**64 - 1), min_size=n, max_size=n, unique=True)), np.uint64)
    return Outcomes(ids, codes == 0, codes=codes, gold=np.zeros(n, np.int64))


def _searching(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def check_calibrator(threshold: Calibrator, *, tight: bool = False, max_examples: int = 200) -> None:
    """``threshold(scores, delta)`` covers: P(S <= q) >= 1 - delta for every exchangeable law, ties and +inf included.

    Searched up to n = 7; distinct scores also at n = 9, 19, 49 for delta = j/20, where ranks in binary64 go wrong.

    Parameters
    ----------
    threshold : callable
        From ``(n,)`` calibration scores and a ``Fraction`` to a threshold; +inf covers everything.
    tight : bool
        Whether distinct scores must also give exactly L/(n + 1), L = ceil((n + 1)(1 - delta)): neither a rank too high nor too low.
    max_examples : int
        Examples that Hypothesis tries.

    Raises
    ------
    AssertionError
        With the smallest scores and level found that break it: a rank one too low, min(L, n) for +inf, < for <= all do.

    References
    ----------
    C-GRPO, Theorem 2, as repaired; Vovk, Gammerman, Shafer (2005).

    Examples
    --------
    >>> try:
    ...     check_calibrator(lambda scores, delta: max(scores), max_examples=50)
    ... except AssertionError as counterexample:
    ...     print(counterexample)
    coverage of the scores [0.0, inf] at delta = 1/3 is 1/2; need at least 2/3
    """

    def held(scores: list[float], delta: Fraction) -> None:
        s = np.array(scores)
        hits = sum(bool(s[i] <= threshold(np.delete(s, i), delta)) for i in range(len(s)))
        covered = Fraction(hits, len(s))
        _require(covered >= 1 - delta, f"coverage of the scores {scores} at delta = {delta} is {covered}; need at least {1 - delta}")
        exact = Fraction(conformal_rank(len(s) - 1, delta), len(s))
        if tight and len(set(scores)) == len(scores):
            _require(covered == exact, f"coverage of the distinct scores {scores} at delta = {delta} is {covered}; need {exact}")

    @_searching(max_examples)
    @given(st.lists(_numbers, min_size=2, max_size=8), levels)
    def covers(values: list[float], delta: Fraction) -> None:
        for scores in (values, [float(i) for i in range(len(values))]):
            held(scores, delta)

    covers()
    for n in _SIZES:
        fine = np.random.default_rng(n).random(n + 1).tolist()
        for j in range(1, 20):
            held(fine, Fraction(j, 20))


def check_joint_calibrator(thresholds: JointCalibrator, *, budgets: int = 2, max_examples: int = 200) -> None:
    """``thresholds(scores, delta)`` covers at all budgets together: P(S_k <= q_k for every k) >= 1 - delta.

    Parameters
    ----------
    thresholds : callable
        From ``(n, budgets)`` scores and a level to ``budgets`` thresholds.
    budgets, max_examples : int

    Raises
    ------
    AssertionError
        With the smallest table found.

    References
    ----------
    C-GRPO, Theorem 5.

    Examples
    --------
    >>> from conformal_core import max_rank
    >>> check_joint_calibrator(lambda s, d: max_rank(s, d).q, max_examples=50)
    """

    entries = st.one_of(st.integers(0, 5).map(float), st.just(float("inf")))

    @_searching(max_examples)
    @given(st.lists(st.lists(entries, min_size=budgets, max_size=budgets), min_size=2, max_size=8), levels)
    def covers(rows: list[list[float]], delta: Fraction) -> None:
        s, hits = np.array(rows, np.float64), 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for i in range(len(s)):
                q = np.asarray(thresholds(np.delete(s, i, 0), delta))
                _require(q.shape == (budgets,), f"thresholds of shape {q.shape} for {rows}; need one per budget, ({budgets},)")
                hits += bool((s[i] <= q).all())
        _require(Fraction(hits, len(s)) >= 1 - delta, f"joint coverage of {rows} at delta = {delta} is {hits}/{len(s)}; need {1 - delta}")

    covers()


def check_sub_additivity(threshold: Calibrator, *, budgets: int = 2, max_examples: int = 200) -> None:
    """Level delta/M at each of M budgets keeps the union: P(S_k > q_k for some k) <= delta.

    Parameters
    ----------
    threshold : callable
        As in :func:`check_calibrator`; called once per budget at ``delta / budgets``.
    budgets, max_examples : int

    Raises
    ------
    AssertionError
        With the smallest table found.

    Examples
    --------
    >>> from conformal_core import conformal_quantile
    >>> check_sub_additivity(lambda s, d: conformal_quantile(s, d).value, max_examples=50)
    """

    def joint(s: NDArray[np.float64], delta: Fraction) -> list[float]:
        return [threshold(s[:, j], delta / budgets) for j in range(budgets)]

    check_joint_calibrator(joint, budgets=budgets, max_examples=max_examples)


def check_exchangeability(scores: Callable[[Outcomes], NDArray[np.float64]], *, width: int = 4, max_examples: int = 100) -> None:
    """A prompt's scores are a function of that prompt alone: of neither its place in the batch nor its company.

    Then scores of exchangeable prompts are exchangeable, whatever is calibrated on them.

    Parameters
    ----------
    scores : callable
        From :class:`conformal_core.Outcomes` with n prompts to an array whose first axis has length n.
    width : int
        Responses per prompt.
    max_examples : int

    Raises
    ------
    AssertionError
        With the smallest batch found, e.g. for scores that are ranks within the batch or use a random stream in call order.

    Examples
    --------
    >>> check_exchangeability(lambda o: 1 - o.passes.mean(axis=1), max_examples=20)
    """

    @_searching(max_examples)
    @given(outcome_tables(width=width), st.randoms(use_true_random=False))
    def alone(o: Outcomes, random: Any) -> None:
        order = np.array(random.sample(range(o.n), o.n))
        together, moved = scores(o), scores(o.take(order))
        _require(np.array_equal(together[order], moved, equal_nan=True), f"scores of {_show(o)} change in the order {order}")
        one = np.concatenate([scores(o.take(np.array([i]))) for i in range(o.n)])
        _require(np.array_equal(together, one, equal_nan=True), f"scores of {_show(o)} differ from those of each prompt alone")

    alone()


def check_score(score: Score, *, grid: Sequence[int] = (1, 2, 4), max_examples: int = 150) -> None:
    """A :class:`conformal_core.Score` satisfies what C-GRPO's Corollary 4 needs, at every budget and threshold.

    Exchangeability (:func:`check_exchangeability`) of scores and stops; coverage of its calibrated threshold by exact count; only the first
    k responses are read; the gold is whichever answer is named so; **inclusion**: a stop on an answer that is not gold implies a gold
    score above the threshold, so P(wrong stop) <= delta; nothing stops at q >= 1, where unsampled answers are in the set.

    Parameters
    ----------
    score : Score
    grid : sequence of int
        Budgets, the largest of at most 8.
    max_examples : int

    Raises
    ------
    AssertionError
        With the smallest example found and which of these it breaks.

    Examples
    --------
    >>> from conformal_core import MassAbove
    >>> check_score(MassAbove(), max_examples=20)
    """
    width = max(grid)

    def scored(o: Outcomes) -> NDArray[np.float64]:
        return score.gold_scores(o, grid, _coins(o))

    check_exchangeability(scored, width=width, max_examples=max_examples)

    @_searching(max_examples)
    @given(outcome_tables(width=width), levels, st.floats(0, 1), st.integers(0, 2))
    def valid(o: Outcomes, delta: Fraction, other: float, gold: int) -> None:
        o = _renamed(o, gold)
        u, table = _coins(o), scored(o)
        for m, k in enumerate(grid):
            short = score.gold_scores(o.prefix(k), (k,), u)[:, 0]
            _require(np.array_equal(short, table[:, m]), f"the score at budget {k} of {_show(o)} depends on responses after the first {k}")
            missed = sum(bool(table[i, m] > conformal_quantile(np.delete(table[:, m], i), delta).value) for i in range(o.n))
            _require(Fraction(missed, o.n) <= delta, f"coverage at budget {k} of {_show(o)}, delta = {delta}: {missed}/{o.n} missed")
            for q in {other, *(float(x) for x in table[:, m]), 1.0, float("inf")}:
                stop, answer = score.stop(o, k, q, u)
                for i in range(o.n):
                    one, named = score.stop(o.take(np.array([i])), k, q, u[i : i + 1])
                    same = one[0] == stop[i] and (not stop[i] or named[0] == answer[i])
                    _require(same, f"a stop at budget {k}, q = {q:g} of {_show(o)} depends on place or company, or is drawn anew")
                hidden, guess = score.stop(_flip_unseen(o, np.full(o.n, k)), k, q, u)
                same = np.array_equal(hidden, stop) and np.array_equal(guess[stop], answer[stop])
                _require(same, f"a stop at budget {k}, q = {q:g} of {_show(o)} depends on responses after the first {k}")
                if q >= 1:
                    _require(not stop.any(), f"{_show(o)} stops at budget {k} with q = {q}, where every unsampled answer is in the set")
                right = answer == gold if score.needs_answers else o.passes[:, :k].any(axis=1)
                wrong = stop & ~right
                text = f"a wrong stop at budget {k}, q = {q:g} of {_show(o)} though the gold score is within the threshold"
                _require((table[wrong, m] > q).all(), text)

    valid()


def check_inclusion(inner: SetRule, outer: SetRule, *, thresholds: tuple[float, float] = (0.0, 0.999), max_examples: int = 200) -> None:
    """Every answer of ``inner(codes, k, q, u)`` is in ``outer(codes, k, q, u)``, so a wrong singleton of ``outer`` is no more likely.

    Parameters
    ----------
    inner, outer : callable
        From codes (n, k), k, a threshold and u (n,) to :class:`conformal_core.AnswerSets`, whose empty sets never count.
    thresholds : (float, float)
        Range of q.
    max_examples : int

    Raises
    ------
    AssertionError
        With the smallest example found.

    Examples
    --------
    >>> from conformal_core import inclusive_set, randomized_set
    >>> check_inclusion(randomized_set, lambda c, k, q, u: inclusive_set(c, k, q), max_examples=50)
    """

    @_searching(max_examples)
    @given(outcome_tables(), st.integers(1, 4), st.floats(*thresholds), st.floats(0.001, 0.999))
    def inside(o: Outcomes, k: int, q: float, u: float) -> None:
        coins = np.full(o.n, u)
        a, b = inner(_codes(o), k, q, coins), outer(_codes(o), k, q, coins)
        ok = (b.member | ~a.member).all() and (b.unsampled | ~a.unsampled).all()
        _require(ok, f"answers {_codes(o)[:, :k].tolist()} at q = {q}, u = {u}: an answer of the inner set is not in the outer one")

    inside()


def check_rollout_policy(make: Callable[[], RolloutPolicy], *, max_examples: int = 100) -> None:
    """A :class:`conformal_core.RolloutPolicy` decides from what was drawn, prompt by prompt, and says so again after a restart.

    That is asked of ``first``, ``more`` and ``keep``, before and after an ``update``.  Undrawn columns do not matter; neither do order and
    company of the prompts; asked again, at once or later in the step, it answers the same and leaves the outcomes as they were; it asks for
    no more than ``k_max`` and for nothing there; it keeps only drawn responses; ``state_dict`` survives JSON and restores the decisions.
    Selection across prompts (a knapsack over the batch, say) is by design no function of one prompt and does not pass.

    Parameters
    ----------
    make : callable
        Makes the policy, calibrated if it needs that; called for every example.
    max_examples : int

    Raises
    ------
    AssertionError
        With the smallest example found and which of these it breaks.

    Examples
    --------
    >>> from conformal_core import UntilMixed
    >>> check_rollout_policy(lambda: UntilMixed((2, 4)), max_examples=20)
    """
    k_max = make().k_max

    def restored(policy: RolloutPolicy) -> RolloutPolicy:
        try:
            state = json.loads(json.dumps(policy.state_dict()))
        except TypeError as error:
            raise AssertionError(f"state_dict: need plain JSON values; {error}") from None
        again = make()
        again.load_state_dict(state)
        return again

    def pure(name: str, ask: Callable[[RolloutPolicy, Outcomes], Any], policy: RolloutPolicy, o: Outcomes, order: Any) -> Any:
        """The answer, if it is the same when asked again, after a restart, in another order and prompt by prompt."""
        before, answer = _codes(o).copy(), ask(policy, o)
        _require(np.array_equal(ask(policy, o), answer), f"{name}: answers differently when asked again about {_show(o)}")
        _require(np.array_equal(before, _codes(o)), f"{name}: writes into the outcomes {_show(o)}")
        _require(np.array_equal(ask(policy, o.take(order)), answer[order]), f"{name}: depends on the order of the prompts of {_show(o)}")
        alone = np.concatenate([ask(policy, o.take(np.array([i]))) for i in range(o.n)])
        _require(np.array_equal(alone, answer), f"{name}: depends on the other prompts of {_show(o)}")
        _require(np.array_equal(ask(restored(policy), o), answer), f"state_dict: {name} of a restored policy differs on {_show(o)}")
        return answer

    @_searching(max_examples)
    @given(outcome_tables(width=k_max), st.randoms(use_true_random=False))
    def honest(table: Outcomes, random: Any) -> None:
        policy = make()
        order = np.array(random.sample(range(table.n), table.n))
        first = pure("first", lambda p, o: p.first(o.prompt_ids, 0), policy, table, order)
        drawn = np.minimum(first, k_max)
        _require((first == drawn).all() and (first >= 0).all(), f"first: asks for {first.tolist()}; need 0 to k_max = {k_max}")
        asked = []
        for _ in range(k_max + 1):
            seen, unseen = table.prefix(drawn), _flip_unseen(table, drawn)
            more = pure("more", lambda p, o: p.more(o), policy, seen, order)
            _require(np.array_equal(policy.more(unseen), more), f"more: reads undrawn responses of {_show(seen)}")
            _require((more >= 0).all() and (drawn + more <= k_max).all(), f"more: asks for {more.tolist()} at {drawn.tolist()} of {k_max}")
            _require((more == np.floor(more)).all(), f"more: asks for {more.tolist()}; need whole responses")
            kept = pure("keep", lambda p, o: p.keep(o), policy, seen, order)
            _require(not (kept & ~seen.live).any(), f"keep: holds responses of {_show(seen)} that were not drawn")
            _require(np.array_equal(policy.keep(unseen), kept), f"keep: reads undrawn responses of {_show(seen)}")
            asked.append((seen, more))
            if not more.any():
                break
            drawn = drawn + np.asarray(more, np.int64)
        for seen, more in asked:
            _require(np.array_equal(policy.more(seen), more), f"more: answers differently when asked later about {_show(seen)}")
        policy.update(asked[-1][0])
        pure("first", lambda p, o: p.first(o.prompt_ids, 1), policy, table, order)
        pure("more", lambda p, o: p.more(o), policy, asked[0][0], order)

    honest()


def check_coverage_law(hits: int, m: int, n: int, delta: Level, *, alpha: Level = "1/1000") -> None:
    """``hits`` covered of m fresh prompts fits one threshold from n calibration prompts: two-sided exact test of the BetaBinomial law.

    For a measured coverage.  The spread over calibration sets is in the law, so no tolerance has to be chosen; scores must be continuous
    (ties make coverage larger: then only too few hits count, which is what is tested if ``hits`` exceeds the median).

    Raises
    ------
    AssertionError
        If so few or so many hits have probability below ``alpha``.
    ValueError
        If the level is out of reach with n.

    Examples
    --------
    >>> check_coverage_law(263, 300, 200, "0.12")
    >>> check_coverage_law(225, 300, 200, "0.12")
    Traceback (most recent call last):
    AssertionError: 225 of 300 covered: probability 2.2e-04 under the law of n = 200, delta = 3/25
    """
    law, level = betabinomial_hits(m, n, delta), as_level(alpha, "alpha")
    p = min(1.0, 2 * min(float(law.cdf(hits)), float(law.sf(hits - 1))))
    _require(p >= float(level), f"{hits} of {m} covered: probability {p:.1e} under the law of n = {n}, delta = {as_level(delta)}")


def _require(ok: object, message: str) -> None:
    """An assertion that ``python -O`` does not remove."""
    if not ok:
        raise AssertionError(message)


def _codes(o: Outcomes) -> NDArray[np.int64]:
    if o.codes is None:
        raise ValueError("outcomes.codes: got None; need answer codes; because tables of answers are searched")
    return o.codes


def _coins(o: Outcomes) -> NDArray[np.float64]:
    """One number in (0, 1) per prompt, a function of its id."""
    return ((o.prompt_ids % np.uint64(61)).astype(np.float64) + 1) / 63


def _flip_unseen(table: Outcomes, drawn: NDArray[np.int64]) -> Outcomes:
    """The same drawn responses, and the opposite verdict and another answer in every cell that was not drawn."""
    live = np.arange(table.width) < drawn[:, None]
    gold = 0 if table.gold is None else table.gold[:, None]
    codes = np.where(live, _codes(table), np.where(_codes(table) == gold, (gold + 1) % 3, gold))
    return replace(table, passes=np.where(live, table.passes, ~table.passes), drawn=drawn, codes=codes)


def _renamed(o: Outcomes, gold: int) -> Outcomes:
    """The same prompts with the answers named in another order: the gold is ``gold``."""
    codes = np.where(_codes(o) == UNPARSABLE, UNPARSABLE, (_codes(o) + gold) % 3)
    return replace(o, codes=codes, gold=np.full(o.n, gold, np.int64))


def _show(o: Outcomes) -> str:
    gold = 0 if o.gold is None else int(o.gold[0])
    return f"answers {_codes(o).tolist()} ({gold} is gold)"
