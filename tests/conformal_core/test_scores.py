"""Every score and every stop against a slow oracle in Fractions that follows the definitions literally."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.outcomes import Outcomes
from conformal_core.score import row_blocks
from conformal_core.scores import (
    APS,
    FirstSuccess,
    MassAbove,
    PassRate,
    ReleasedAPS,
    Score,
    answer_counts,
    empty_probability,
    k_mix,
    signal_score,
    singleton_probability,
)
from tests.strategies import dyadic_uniforms, outcomes

SCORES: list[Score] = [
    APS(),
    APS("inclusive"),
    MassAbove(),
    ReleasedAPS(),
    FirstSuccess(),
    FirstSuccess("paper"),
    PassRate(),
]
GUARANTEED = [s for s in SCORES if not isinstance(s, ReleasedAPS)]
each_score = pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
OTHER = 10**6  # stands for every answer that was not sampled
thresholds = st.one_of(st.integers(0, 70).map(lambda j: j / 64), st.fractions(0, 1, max_denominator=9).map(float), st.just(math.inf))


def oracle(score: Score, o: Outcomes, i: int, k: int, u: Fraction) -> dict[int, Fraction | float]:
    """Score of every answer of row i at budget k, ``OTHER`` included; for first success, of the row itself."""
    assert o.codes is not None
    if isinstance(score, PassRate):
        return {0: Fraction(int(k - o.passes[i, :k].sum()), k)}
    if isinstance(score, FirstSuccess):
        j = next((j for j in range(1, k + 1) if o.passes[i, j - 1]), None)
        failed = 1.0 if score.convention == "paper" else math.inf
        return {0: failed if j is None else Fraction(j, k)}
    counts = Counter(c for c in o.codes[i, :k].tolist() if c >= 0)
    table: dict[int, Fraction | float] = {OTHER: Fraction(1)}
    keys: dict[int, int] = {}
    if isinstance(score, ReleasedAPS):
        rows = score.tie_keys(o, np.broadcast_to(np.array(list(counts), np.int64), (o.n, len(counts))), np.full(o.n, float(u)))[i]
        keys = dict(zip(counts, rows.tolist(), strict=True))
    for a, c in counts.items():
        ahead = sum(d for b, d in counts.items() if d > c or (keys and b != a and d == c and keys[b] < keys[a]))
        table[a] = (ahead + (0 if isinstance(score, MassAbove) else u) * c) / Fraction(k)
    return table


@each_score
@given(data=st.data())
def test_gold_scores(score: Score, data: st.DataObject) -> None:
    o = data.draw(outcomes(full=True))
    assert o.gold is not None
    u = data.draw(dyadic_uniforms)
    grid = tuple(data.draw(st.lists(st.integers(1, o.width), min_size=1, max_size=4)))
    got = score.gold_scores(o, grid, np.full(o.n, u))
    assert got.shape == (o.n, len(grid)) and got.dtype == np.float64
    for i in range(o.n):
        for m, k in enumerate(grid):
            table = oracle(score, o, i, k, Fraction(u))
            key = int(o.gold[i]) if score.needs_answers else 0
            assert got[i, m] == float(table.get(key, Fraction(1)))


@each_score
@given(data=st.data())
def test_stop_is_the_singleton_of_the_prediction_set(score: Score, data: st.DataObject) -> None:
    o = data.draw(outcomes())
    assert o.codes is not None
    u, q, k = data.draw(dyadic_uniforms), data.draw(thresholds), data.draw(st.integers(1, o.width + 1))
    stop, committed = score.stop(o, k, q, np.full(o.n, u))
    assert stop.dtype == np.bool_ and committed.dtype == np.int64
    assert (committed[~stop] == -1).all()
    for i in range(o.n):
        if o.drawn[i] < k:
            assert not stop[i]
            continue
        table = {a: float(s) for a, s in oracle(score, o, i, k, Fraction(u)).items()}
        mass = Counter(c for c in o.codes[i, :k].tolist() if c >= 0)
        above = {a: sum(d for d in mass.values() if d > c) / k for a, c in mass.items()}
        if not score.needs_answers:
            assert stop[i] == (table[0] <= q < 1)
            if stop[i]:
                assert committed[i] == o.codes[i, np.argmax(o.passes[i])]
            continue
        if isinstance(score, ReleasedAPS):
            chosen, total = set(), 0
            for a, c in sorted(mass.items(), key=lambda item: float(table[item[0]])):
                if total / k >= q and chosen:
                    break
                chosen.add(a)
                total += c
            if total / k < q:  # never reached: the set is everything sampled, and more mass is missing
                chosen = set()
        elif isinstance(score, APS) and score.set_rule == "inclusive":
            chosen = {a for a in mass if above[a] < q} if q < 1 else {*mass, OTHER, -OTHER}
        else:
            chosen = {a for a, s in table.items() if s <= q} if q < 1 else {*mass, OTHER, -OTHER}
        if isinstance(score, ReleasedAPS) and u == 0:
            continue  # the oracle orders by score, which u = 0 leaves tied
        assert stop[i] == (len(chosen) == 1), (mass, q, u)
        if stop[i]:
            assert {int(committed[i])} == chosen


@each_score
@given(data=st.data())
def test_only_the_first_k_responses_and_the_own_row_count(score: Score, data: st.DataObject) -> None:
    o = data.draw(outcomes())
    u = np.array(data.draw(st.lists(dyadic_uniforms, min_size=o.n, max_size=o.n)))
    q, k = data.draw(thresholds), data.draw(st.integers(1, o.width))
    stop, committed = score.stop(o, k, q, u)
    whole = score.gold_scores(o, (k,), u)
    head = score.stop(o.prefix(k), k, q, u)
    assert (stop == head[0]).all() and (committed == head[1]).all()
    np.testing.assert_array_equal(whole, score.gold_scores(o.prefix(k), (k,), u))
    rows = np.array(data.draw(st.lists(st.integers(0, o.n - 1), min_size=1, max_size=6)))
    part = score.stop(o.take(rows), k, q, u[rows])
    assert (part[0] == stop[rows]).all() and (part[1] == committed[rows]).all()
    np.testing.assert_array_equal(score.gold_scores(o.take(rows), (k,), u[rows]), whole[rows])
    if isinstance(score, FirstSuccess):
        return
    assert np.isnan(whole[:, 0]).tolist() == (o.drawn < k).tolist()


@each_score
@given(data=st.data())
def test_relabelling_answers_changes_nothing(score: Score, data: st.DataObject) -> None:
    if isinstance(score, ReleasedAPS):
        return  # its random tie order is keyed by the code
    o = data.draw(outcomes(full=True))
    assert o.codes is not None and o.gold is not None
    u, q, k = np.full(o.n, data.draw(dyadic_uniforms)), data.draw(thresholds), o.width
    new = np.array(data.draw(st.permutations(range(10, 20))))
    other = Outcomes(
        o.prompt_ids,
        o.passes,
        codes=np.where(o.codes < 0, o.codes, new[np.maximum(o.codes, 0)]),
        gold=np.where(o.gold < 0, o.gold, new[np.maximum(o.gold, 0)]),
    )
    np.testing.assert_array_equal(score.gold_scores(o, (1, k), u), score.gold_scores(other, (1, k), u))
    a, b = score.stop(o, k, q, u), score.stop(other, k, q, u)
    assert (a[0] == b[0]).all()
    assert (np.where(a[0], new[np.maximum(a[1], 0)], -1)[a[1] >= 0] == b[1][a[1] >= 0]).all()


@pytest.mark.parametrize("score", GUARANTEED, ids=lambda s: s.name)
@given(o=outcomes(), u=dyadic_uniforms, q=st.sampled_from([1.0, 1.5, math.inf]))
def test_a_threshold_of_one_or_more_never_stops(score: Score, o: Outcomes, u: float, q: float) -> None:
    stop, committed = score.stop(o, o.width, q, np.full(o.n, u))
    assert not stop.any()
    assert (committed == -1).all()


def test_first_success_determines_its_score_early() -> None:
    o = Outcomes([1, 2, 3], np.array([[False, True, False], [False, False, False], [False] * 3]), drawn=np.array([2, 2, 3]))
    got = FirstSuccess().gold_scores(o, (1, 3), np.zeros(3))
    np.testing.assert_array_equal(got, [[np.inf, 2 / 3], [np.inf, np.nan], [np.inf, np.inf]])
    assert FirstSuccess().stop(o, 2, 0.99, np.zeros(3))[0].tolist() == [False, False, False]  # j* = k scores 1
    assert FirstSuccess().stop(o, 2, 0.99, np.zeros(3))[1].tolist() == [-1, -1, -1]  # and there are no codes


@each_score
def test_cells_that_were_not_drawn_are_never_read(score: Score) -> None:
    """Even where a caller left verdicts or codes of another run in them."""
    passes, codes = np.array([[False, True, True]]), np.array([[1, 0, 0]])
    o = Outcomes([1], passes, drawn=np.array([1]), codes=codes, gold=np.array([0]))
    np.testing.assert_array_equal(score.gold_scores(o, (1, 2, 3), [0.5]), score.gold_scores(o.prefix(1), (1, 2, 3), [0.5]))
    for k in (2, 3):
        assert not score.stop(o, k, 0.9, [0.5])[0].any()
    if not score.needs_answers:
        assert np.isnan(score.gold_scores(o, (2, 3), [0.5])).all()


@each_score
def test_a_long_table_is_the_sum_of_its_parts(score: Score) -> None:
    """Rows are worked through in blocks of 2**17 cells; no block boundary shows."""
    n, width = 2**17 // 8 * 2 + 5, 8
    rng = np.random.default_rng(0)
    codes = rng.integers(-1, 3, (n, width))
    o = Outcomes(np.arange(n), codes == 0, codes=codes, gold=np.zeros(n, int))
    u, grid = rng.random(n), (1, 3, 8)
    whole, (stop, committed) = score.gold_scores(o, grid, u), score.stop(o, 8, 0.5, u)
    for rows in np.array_split(np.arange(n), 7):
        np.testing.assert_array_equal(score.gold_scores(o.take(rows), grid, u[rows]), whole[rows])
        part = score.stop(o.take(rows), 8, 0.5, u[rows])
        assert (part[0] == stop[rows]).all() and (part[1] == committed[rows]).all()


def test_unparsable_gold_equals_no_answer() -> None:
    o = Outcomes([1], np.zeros((1, 2), bool), codes=np.array([[-1, -1]]), gold=np.array([-1]))
    for score in SCORES:
        if score.needs_answers:
            assert score.gold_scores(o, (2,), [0.5]).tolist() == [[1.0]]
            assert not score.stop(o, 2, 0.5, [0.5])[0].any()


def test_released_tie_order_is_random_and_fair() -> None:
    n = 4000
    o = Outcomes(np.arange(n, dtype=np.uint64), np.zeros((n, 2), bool), codes=np.tile([0, 1], (n, 1)), gold=np.zeros(n, int))
    u = np.full(n, 0.25)
    scores = ReleasedAPS().gold_scores(o, (2,), u)[:, 0]
    stop, committed = ReleasedAPS().stop(o, 2, 0.5, u)
    assert stop.all()
    assert set(scores.tolist()) == {0.125, 0.625}
    assert ((scores == 0.125) == (committed == 0)).all()  # one order ranks and commits
    assert abs((committed == 0).mean() - 0.5) < 0.04


# --- bad input


@each_score
def test_bad_input_is_refused(score: Score) -> None:
    o = Outcomes([1, 2], np.zeros((2, 3), bool), codes=np.zeros((2, 3), int), gold=np.zeros(2, int))
    message = "^{}: got .*; need .*; because "
    for u in ([0.5], [0.5, 1.5], [0.5, math.nan], 0.5):
        with pytest.raises(ValueError, match=message.format("u")):
            score.gold_scores(o, (1,), u)
        with pytest.raises(ValueError, match=message.format("u")):
            score.stop(o, 1, 0.5, u)
    for grid in ((0,), (4,), (1.5,), (True,)):
        with pytest.raises(ValueError, match=message.format("grid")):
            score.gold_scores(o, grid, [0.5, 0.5])
    with pytest.raises(ValueError, match=message.format("q")):
        score.stop(o, 1, math.nan, [0.5, 0.5])
    with pytest.raises(ValueError, match=message.format("grid")):
        score.stop(o, 0, 0.5, [0.5, 0.5])
    if score.needs_answers:
        bare = Outcomes([1, 2], np.zeros((2, 3), bool), codes=np.zeros((2, 3), int))
        with pytest.raises(ValueError, match=message.format("outcomes.gold")):
            score.gold_scores(bare, (1,), [0.5, 0.5])
        with pytest.raises(ValueError, match=message.format("outcomes.codes")):
            score.stop(Outcomes([1], np.zeros((1, 3), bool)), 1, 0.5, [0.5])


def test_unknown_conventions_are_refused() -> None:
    for make, word in ((lambda: APS("exact"), "set_rule"), (lambda: FirstSuccess("none"), "convention")):
        with pytest.raises(ValueError, match=f"^{word}: got "):
            make()
    with pytest.raises(ValueError, match=r"^rule: got "):
        singleton_probability([1], "1/2", "best")
    with pytest.raises(ValueError, match=r"^counts: got "):
        singleton_probability([2, 0], "1/2")


def test_names_and_reprs_tell_the_conventions_apart() -> None:
    assert len({s.name for s in SCORES}) == len(SCORES)
    for s in SCORES:
        assert eval(repr(s)).name == s.name


# --- counts, signal, laws


@given(outcomes())
def test_answer_counts(o: Outcomes) -> None:
    assert o.codes is not None
    got = answer_counts(o.codes, o.width)
    for i, row in enumerate(o.codes.tolist()):
        assert got[i].tolist() == [row.count(c) if c >= 0 else 0 for c in row]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 3), st.integers(0, 6))
def test_k_mix_and_signal_score(rows: list[list[bool]], m: int, drawn: int) -> None:
    expected = [next((k for k in range(1, drawn + 1) if min(sum(row[:k]), k - sum(row[:k])) >= m), 0) for row in rows]
    given_drawn = np.full(len(rows), drawn)
    assert k_mix(rows, m, drawn=given_drawn).tolist() == expected
    assert signal_score(rows, m, drawn=given_drawn).tolist() == [max(k - 1, 0) for k in expected]
    assert k_mix(np.array(rows)[:, :drawn], m).tolist() == expected


def test_k_mix_refuses_what_is_not_a_verdict() -> None:
    with pytest.raises(ValueError, match=r"^passes: got "):
        k_mix([[0.5, 1.0]])
    with pytest.raises(ValueError, match=r"^m: got 0"):
        k_mix([[True]], 0)


counts_lists = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(counts_lists, st.integers(0, 2), st.fractions(0, Fraction(9, 8), max_denominator=24))
def test_singleton_probability_is_the_law_of_the_stop(counts: list[int], junk: int, q: Fraction) -> None:
    """Share of u on a midpoint grid at which the library stops; the law is piecewise constant in u with two jumps at most."""
    k, size = sum(counts) + junk, 256
    row = [a for a, c in enumerate(counts) for _ in range(c)] + [-1] * junk
    q = Fraction(float(q)).limit_denominator(24) + Fraction(1, 10**7)  # off the lattice, where floats decide
    u = (np.arange(size) + 0.5) / size
    o = Outcomes(np.arange(size, dtype=np.uint64), np.zeros((size, k), bool), codes=np.tile(row, (size, 1)))
    for score, rule in ((APS(), "randomized"), (APS("inclusive"), "inclusive"), (MassAbove(), "mass_above"), (ReleasedAPS(), "released")):
        exact = singleton_probability(counts, q, rule, k=k)
        assert abs(score.stop(o, k, float(q), u)[0].mean() - float(exact)) <= 2 / size
    assert 0 <= empty_probability(counts, q, k=k) + singleton_probability(counts, q, k=k) <= 1


@given(st.integers(1, 9), st.integers(1, 9), st.fractions(0, Fraction(29, 30), max_denominator=30))
def test_singleton_closed_form(a: int, b: int, q: Fraction) -> None:
    """claims.md E1: q/p1, then 1 - (q - p1)/p2, then 0; tied: 0 if u is shared, 2a(1-a) if independent."""
    p1, p2 = (Fraction(x, a + b) for x in sorted((a, b), reverse=True))
    if a == b:
        t = min(Fraction(1), q / p1)
        assert singleton_probability([a, b], q) == 0
        assert singleton_probability([a, b], q, "independent") == 2 * t * (1 - t)
        return
    expected = q / p1 if q < p1 else 1 - (q - p1) / p2
    assert singleton_probability([a, b], q) == singleton_probability([a, b], q, "independent") == expected


def test_released_ties_are_ordered_by_a_hash_of_prompt_coin_and_code() -> None:
    o = Outcomes([7, 8], np.zeros((2, 2), bool), codes=np.array([[0, 3], [0, 3]]))
    keys = ReleasedAPS().tie_keys(o, o.codes, np.array([0.25, 0.25]))
    bits = int(np.float64(0.25).view(np.uint64))
    want = [[scatter((scatter(p ^ scatter(bits)) + scatter(c)) % 2**64) for c in (0, 3)] for p in (7, 8)]
    assert keys.tolist() == want


def scatter(x: int) -> int:
    """SplitMix64 in Python integers."""
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_released_rule_commits_to_no_answer_where_there_is_none() -> None:
    o = Outcomes([1, 2], np.zeros((2, 2), bool), codes=np.array([[-1, -1], [-1, 5]]))
    stop, answer = ReleasedAPS().stop(o, 2, 0.0, [0.5, 0.5])
    assert (stop.tolist(), answer.tolist()) == ([False, True], [-1, 5])


@pytest.mark.parametrize(("width", "rows"), [(0, 2**17), (1, 2**17), (32, 2**12), (2**16, 2), (2**17, 1), (2**18, 1)])
def test_a_block_of_rows_has_2_to_the_17_cells_or_one_row(width: int, rows: int) -> None:
    blocks = list(row_blocks(2 * rows + 1, width))
    assert blocks == [slice(0, rows), slice(rows, 2 * rows), slice(2 * rows, 3 * rows)]


@pytest.mark.parametrize("rule", ["randomized", "independent"])
def test_no_sampled_answer_leaves_the_set_empty_below_one_only(rule: str) -> None:
    assert empty_probability([], "99/100", k=4, rule=rule) == 1
    assert empty_probability([], 1, k=4, rule=rule) == 0
