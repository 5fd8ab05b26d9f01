import json
from collections import Counter
from fractions import Fraction
from functools import cache
from math import comb, inf, log

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from scipy.stats import beta, binomtest

from conformal_core.intervals import mean_interval
from conformal_core.outcomes import Outcomes
from conformal_core.replay import replay
from conformal_core.vote import ConformalVote, FixedVote, VoteRule, adaptive_consistency, calibrate_vote, unanimous_vote, vote_loss_level
from conformal_core.vote_report import VoteReport, vote_report
from conformal_core.vote_statistics import _overtaken, count_votes, settledness

CODES = arrays(np.int64, st.tuples(st.integers(1, 6), st.just(6)), elements=st.integers(-1, 2))


def outcomes(codes, gold=None, **kwargs):
    codes = np.asarray(codes, np.int64)
    gold = None if gold is None else np.asarray(gold, np.int64)
    return Outcomes(np.arange(len(codes), dtype=np.uint64), np.zeros(codes.shape, bool), codes=codes, gold=gold, **kwargs)


def sample(n, seed, k=32):
    rng = np.random.default_rng(seed)
    right = rng.random((n, k)) < rng.beta(1.14, 0.86, size=(n, 1))
    return outcomes(np.where(right, 0, rng.integers(1, 6, (n, k))), np.zeros(n))


@given(CODES, st.integers(1, 6))
def test_votes_against_a_count_by_hand(codes, k):
    votes = count_votes(codes, k)
    for i, row in enumerate(codes[:, :k].tolist()):
        tally = {a: row.count(a) for a in dict.fromkeys(row) if a >= 0}
        leader = max(tally, key=tally.get) if tally else -1
        rest = sorted((c for a, c in tally.items() if a != leader), reverse=True)
        assert (votes.answer[i], votes.first[i], votes.second[i]) == (leader, tally.get(leader, 0), (rest or [0])[0])


@given(CODES, st.integers(1, 6), st.sampled_from(["margin", "lead", "beta", "share"]))
def test_no_leader_never_settles_and_a_leader_beyond_reach_always_does(codes, k, statistic):
    value, answer = settledness(codes, k, 6, statistic)
    votes = count_votes(codes, k)
    np.testing.assert_array_equal(np.isneginf(value), votes.first == votes.second)
    np.testing.assert_array_equal(np.isposinf(value), votes.first - votes.second > 6 - k)
    assert (answer[np.isposinf(value)] == count_votes(codes, 6).answer[np.isposinf(value)]).all()


@example(np.array([[0, 1, 1, 1, 0, 0]]), [0], "margin", "worse")  # a margin of 1 at k = 1 and again, for the other answer, at k = 4
@example(np.array([[-1] * 6]), [-1], "share", "wrong")  # no answer is never right
@given(
    CODES,
    st.lists(st.integers(-1, 2), min_size=6, max_size=6),
    st.sampled_from(["margin", "share"]),
    st.sampled_from(["differs", "wrong", "worse"]),
)
def test_loss_level_is_the_end_of_the_loss_over_all_knobs(codes, gold, statistic, loss):
    """max over l >= lam of the loss at l is 1[lam < w], at every knob that can matter and between them."""
    grid, table = (1, 2, 3, 4, 6), outcomes(codes, gold[: len(codes)])
    level = vote_loss_level(table, grid, statistic, loss)
    values = sorted({v for k in grid for v in settledness(codes, k, 6, statistic)[0] if np.isfinite(v)})
    knobs = [-inf, *values, *(np.add(values[1:], values[:-1]) / 2), inf]
    final = count_votes(codes, 6).answer
    envelope = np.zeros(len(codes), bool)
    for knob in sorted(knobs, reverse=True):
        answer = FixedVote(grid, statistic, knob).committed(table)
        wrong = (answer != table.gold) | (answer < 0)
        envelope |= {"differs": answer != final, "wrong": wrong, "worse": wrong & (final == table.gold) & (final >= 0)}[loss]
        np.testing.assert_array_equal(envelope, (knob < level) | np.isposinf(level))


def test_beta_statistic_is_the_posterior_of_adaptive_consistency():
    codes = np.array([[0, 0, 0, 1, 2, -1], [0, 0, 0, 0, 1, 1], [0, -1, -1, -1, -1, -1]])
    expected = [beta(4, 2).sf(0.5), beta(5, 3).sf(0.5), beta(2, 1).sf(0.5)]
    np.testing.assert_allclose(settledness(codes, 6, 32, "beta")[0], expected, rtol=1e-12)


def test_lead_statistic_against_a_direct_integral():
    """P(rival passes leader) by integrating the multinomial law over the Dirichlet posterior, one rival at a time."""
    k, k_max, c1, c2 = 4, 7, 3, 1

    def law(p, r, a, b):
        """P(a further votes for the leader, b for the rival in 3) given probabilities p, r."""
        return comb(3, a) * comb(3 - a, b) * p**a * r**b * (1 - p - r) ** (3 - a - b)

    def density(p, r):
        return p**c1 * r**c2 * (1 - p - r) ** (k - c1 - c2)

    def integral(f):
        return quad(lambda p: quad(lambda r: f(p, r), 0, 1 - p)[0], 0, 1)[0]

    passed = sum(
        (1.0 if c2 + b > c1 + a else 0.5) * integral(lambda p, r, a=a, b=b: law(p, r, a, b) * density(p, r))
        for a in range(4)
        for b in range(4 - a)
        if c2 + b >= c1 + a
    )
    assert _overtaken(k, k_max)[c1, c2] == pytest.approx(passed / integral(density), rel=1e-6)
    table = _overtaken(k, k_max)
    value = settledness(np.array([[0, 0, 1, 0]]), k, k_max, "lead")[0][0]
    assert value == pytest.approx(-np.log(table[3, 1] + table[3, 0]), rel=1e-12)
    two_rivals = settledness(np.array([[0, 0, 1, 2]]), k, k_max, "lead")[0][0]
    assert two_rivals == pytest.approx(-np.log(2 * table[2, 1] + table[2, 0]), rel=1e-12)


def test_longer_unanimity_is_stronger_evidence_for_every_statistic_but_the_share():
    codes = np.zeros((1, 32), np.int64)
    for statistic in ("margin", "lead", "beta"):
        values = [settledness(codes, k, 32, statistic)[0][0] for k in (1, 2, 4, 8, 12)]
        assert values == sorted(set(values))
    assert {settledness(codes, k, 32, "share")[0][0] for k in (1, 4, 12)} == {1.0}


@pytest.mark.parametrize("statistic", ["margin", "lead", "beta", "share"])
def test_stops_as_committed_and_ignores_what_was_not_drawn(statistic):
    vote = ConformalVote(delta="0.1", statistic=statistic, n_calibration=100)
    vote.calibrate(sample(100, 0))
    table = sample(200, 1)
    drawn = replay(vote, table).drawn
    at, answer = vote.stops(table)
    np.testing.assert_array_equal(drawn, at)
    assert 2 <= drawn.min() < drawn.max() == 32
    order = np.random.default_rng(0).permutation(200)
    np.testing.assert_array_equal(vote.committed(table.take(order)), answer[order])
    np.testing.assert_array_equal(vote.more(table.prefix(drawn)), 0)
    hidden = Outcomes(table.prompt_ids, table.passes, drawn=drawn, codes=table.codes)
    np.testing.assert_array_equal(vote.committed(hidden), answer)
    assert vote.audit(table.prefix(drawn)) == {"wrong": (int((answer != 0).sum()), 200)}
    assert vote.audit(hidden) == {}


def test_a_table_is_read_in_slices(monkeypatch):
    table = sample(50, 4).codes
    whole = settledness(table, 8, 32, "lead")
    monkeypatch.setattr("conformal_core.vote_statistics._ROWS", 7)
    for part, expected in zip(settledness(table, 8, 32, "lead"), whole, strict=True):
        np.testing.assert_array_equal(part, expected)


def test_before_calibration_only_a_decided_vote_stops():
    vote = ConformalVote((2, 4, 6), n_calibration=50)
    assert vote.more(outcomes([[0, 0, 0, 0], [0, 0, 0, 1]])).tolist() == [0, 2]
    assert vote.metrics() == {}


def test_unparsable_votes_count_as_responses_and_no_answer_is_an_answer_lost():
    blank = outcomes([[-1] * 4], [0])
    vote = FixedVote((2, 4), "share", 0.5)
    assert vote.more(blank.prefix(2)).tolist() == [2]
    assert [x.tolist() for x in vote.stops(blank)] == [[4], [-1]]
    assert vote.audit(blank) == {"wrong": (1, 1)} == vote.audit(outcomes([[-1] * 4], [-1]))
    report = vote_report(vote, blank)
    assert (report.differs, report.right, report.right_full) == (0, 0, 0)


def test_ties_at_the_end_go_to_the_answer_that_came_first():
    vote = FixedVote((2, 4), "margin", inf)
    assert vote.committed(outcomes([[1, 0, 0, 1], [-1, 2, 0, -1]])).tolist() == [1, 2]


def test_named_heuristics():
    codes = outcomes([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, -1, 0, 0, 0, 0]])
    assert replay(unanimous_vote((2, 6)), codes).drawn.tolist() == [2, 2, 6]
    assert replay(adaptive_consistency(range(1, 7)), codes).drawn.tolist() == [4, 4, 4]  # 31/32, 31/32, decided


def test_wrong_loss_says_when_no_stop_can_be_right_often_enough():
    table = outcomes([[1] * 8] * 30 + [[0] * 8] * 70, np.zeros(100))
    with pytest.warns(UserWarning, match=r"^delta: got 1/5; need more than the error of the vote at K_max = 8; because"):
        rule = calibrate_vote(table, (2, 8), "0.2", "wrong")
    assert not rule.attainable and rule.lam == inf and rule.guarantee.startswith("none")
    assert calibrate_vote(table, (2, 8), "0.2", "worse").lam == -inf
    with pytest.warns(UserWarning, match=r"^n: got 3 calibration prompts; need 9; because"):
        assert not calibrate_vote(table.take(np.arange(3)), (2, 8), "0.1").attainable


def test_rule_report_and_state_survive_json():
    vote = ConformalVote(delta="0.1", loss="worse", n_calibration=60, recalibrate_every=5)
    assert vote.calibration(0).n == 60
    vote.calibrate(sample(60, 3))
    assert vote.calibration(4) is None and vote.calibration(5) is not None
    again = ConformalVote(delta="0.1", loss="worse", n_calibration=60, recalibrate_every=5)
    again.load_state_dict(json.loads(json.dumps(vote.state_dict(), allow_nan=False)))
    assert again.rule == vote.rule and again.state_dict() == vote.state_dict() and again.metrics() == vote.metrics()
    np.testing.assert_array_equal(replay(again, sample(50, 4)).drawn, replay(vote, sample(50, 4)).drawn)
    for lam in (inf, -inf, 0.25):
        rule = VoteRule((2, 4), "margin", "differs", lam, 3, 4, Fraction(1, 5), False, "none")
        assert VoteRule.from_json(json.loads(json.dumps(rule.to_json(), allow_nan=False))) == rule
    for table in (sample(50, 4), outcomes(sample(50, 4).codes)):
        report = vote_report(vote, table)
        assert VoteReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False))) == report
    assert vote_report(vote, outcomes(sample(50, 4).codes)).mcnemar_p is None
    with pytest.raises(ValueError, match=r"^state: got .*; need .*; because "):
        ConformalVote(delta="0.1", n_calibration=60).load_state_dict(vote.state_dict())


def test_report_counts_and_intervals():
    rows = [[0, 0, 1, 1, 1]] * 5 + [[1, 1, 0, 0, 0]] * 2 + [[0, 0, 0, 0, 1]] * 13
    report = vote_report(FixedVote((2, 5), "share", 0.9), outcomes(rows, [0] * 20))
    assert (report.mean_k, report.differs, report.right, report.right_full, report.lost, report.won) == (2, 7, 18, 15, 2, 5)
    assert report.mcnemar_p == pytest.approx(binomtest(2, 7).pvalue, rel=1e-12)
    low, high = (binomtest(5, 20).proportion_ci(0.975), binomtest(2, 20).proportion_ci(0.975))
    assert report.accuracy_difference == 0.15
    assert report.accuracy_difference_interval == pytest.approx((low.low - high.high, low.high - high.low))
    assert report.differs_interval == pytest.approx(tuple(binomtest(7, 20).proportion_ci(0.95)))
    assert report.saved_interval == mean_interval(np.full(20, 0.6))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConformalVote(loss="error"), "loss: got 'error'; need"),
        (lambda: ConformalVote(statistic="top"), "statistic: got 'top'"),
        (lambda: ConformalVote(delta="0.01", n_calibration=50), "n_calibration: got 50; need 99"),
        (lambda: ConformalVote((4, 2)), "grid: got"),
        (lambda: settledness(np.zeros((1, 4), int), 5, 4, "margin"), "k: got 5"),
        (lambda: settledness(np.zeros((1, 4), int), 2, 4, "top"), "statistic: got 'top'"),
        (lambda: calibrate_vote(outcomes(np.zeros((0, 4))), (2, 4), "0.5"), "outcomes: got 0 prompts"),
        (lambda: calibrate_vote(outcomes(np.zeros((9, 2))), (2, 4), "0.5"), "outcomes.drawn: got a minimum of 2; need 4 responses"),
        (lambda: calibrate_vote(outcomes(np.zeros((9, 4))), (2, 4), "0.5", "wrong"), "outcomes.gold: got None"),
        (lambda: calibrate_vote(outcomes(np.zeros((9, 4))), (2, 4), "0.5", "error"), "loss: got 'error'; need"),
        (lambda: calibrate_vote(Outcomes([1], np.zeros((1, 4), bool)), (2, 4), "0.5"), "outcomes.codes: got None"),
        (lambda: vote_report(unanimous_vote((2, 8)), outcomes(np.zeros((3, 4)))), "table: got 3 prompts"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}.*; because "):
        call()


def test_without_a_period_a_vote_is_calibrated_once():
    vote = ConformalVote((2, 4), delta="1/4", n_calibration=9)
    assert vote.calibration(0) is not None
    vote.calibrate(outcomes(np.zeros((9, 4), np.int64)))
    assert all(vote.calibration(step) is None for step in (1, 124, 10**9))


def test_audit_counts_prompts_that_committed_only():
    """One stops on gold, one on another answer, one has drawn too little to stop."""
    table = outcomes([[0, 0], [1, 1], [1, 0]], np.zeros(3, np.int64)).prefix(np.array([2, 2, 1]))
    assert unanimous_vote((2, 4)).audit(table.widen(4)) == {"wrong": (1, 2)}


def test_the_share_saved_is_what_the_mean_leaves_of_k_max():
    report = vote_report(unanimous_vote((2, 4)), outcomes([[0, 0, 0, 0], [0, 1, 0, 0], [2, 2, 0, 0]]))
    assert report.mean_k == 8 / 3 and report.saved == pytest.approx(1 / 3, abs=1e-15)


def test_the_last_budget_before_k_max_counts():
    """A tie at 2, the wrong answer ahead at 3, the first answer on a tie at 4: only the stop at 3 differs from the end."""
    table = outcomes([[0, 1, 1, 0]], [0])
    for statistic in ("share", "margin"):
        ahead, leader = settledness(table.codes, 3, 4, statistic)
        assert leader.tolist() == [1]
        assert vote_loss_level(table, (2, 3, 4), statistic, "differs").tolist() == ahead.tolist()
        assert ahead[0] > vote_loss_level(table, (2, 4), statistic, "differs")[0]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("differs", "the committed answer is not the vote at 8"),
        ("wrong", "the committed answer is not gold"),
        ("worse", "the committed answer is not gold and the vote at 8 is"),
    ],
)
def test_the_guarantee_names_the_loss(loss, words):
    rule = calibrate_vote(outcomes(np.zeros((9, 8), np.int64), np.zeros(9)), (2, 4, 8), "1/4", loss)
    assert f"({words})" in rule.guarantee and "the 9 calibration prompts" in rule.guarantee


def test_an_unattainable_level_is_named_beside_what_is():
    with pytest.warns(UserWarning, match=r"n: got 3 calibration prompts; need 9; because .* bounded only by 1/4 > 1/10"):
        calibrate_vote(outcomes(np.zeros((3, 8), np.int64)), (2, 8), "0.1")


@cache
def _overtakes(lead: int, rival: int, rest: int, left: int, votes: tuple[int, int]) -> Fraction:
    """Exactly: P(the rival ends ahead of the leader, or level: half), drawing from an urn of that many balls, each drawn ball doubled."""
    if not left:
        return Fraction(votes[1] > votes[0]) + Fraction(votes[1] == votes[0], 2)
    total, (first, second) = lead + rival + rest, votes
    return (
        Fraction(lead, total) * _overtakes(lead + 1, rival, rest, left - 1, (first + 1, second))
        + Fraction(rival, total) * _overtakes(lead, rival + 1, rest, left - 1, (first, second + 1))
        + Fraction(rest, total) * _overtakes(lead, rival, rest + 1, left - 1, votes)
    )


@pytest.mark.parametrize("k_max", [6, 7, 10])
@example([0, 0, 0, 1, 1, 2], 5)
@example([0, 0, 0, 1, 1, 2], 6)
@given(st.lists(st.integers(-1, 3), min_size=6, max_size=6), st.integers(1, 6))
def test_lead_is_the_expected_number_of_answers_that_overtake(k_max: int, row: list[int], k: int) -> None:
    seen = Counter(x for x in row[:k] if x >= 0).most_common()
    value, leader = settledness(np.array([row]), k, k_max, "lead")
    if not seen or (len(seen) > 1 and seen[0][1] == seen[1][1]):
        assert value[0] == -inf
        return
    first = seen[0][1]
    second = seen[1][1] if len(seen) > 1 else 0
    assert leader[0] == seen[0][0]
    if first - second > k_max - k:
        assert value[0] == inf
        return
    rivals = [c2 for _, c2 in seen[1:]] + [0]
    expected = sum(_overtakes(first + 1, c2 + 1, k - first - c2 + 1, k_max - k, (first, c2)) for c2 in rivals)
    assert value[0] == pytest.approx(-log(expected), rel=1e-9)


@given(st.integers(1, 9), st.data())
def test_beta_is_the_tail_of_a_fair_coin(k: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, k))
    second = data.draw(st.integers(0, min(first - 1, k - first)))
    row = [0] * first + [1] * second + [-1] * (k - first - second)
    n = first + second + 1
    exact = Fraction(sum(comb(n, i) for i in range(first + 1)), 2**n)
    assert settledness(np.array([row]), k, 99, "beta")[0][0] == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("k", [0, -1, 9])
def test_a_vote_is_settled_within_its_budget(k: int) -> None:
    with pytest.raises(ValueError, match=rf"^k: got {k}; need 1 to 8; because "):
        settledness(np.zeros((1, 9), np.int64), k, 8, "margin")


def test_votes_of_one_response_are_audited() -> None:
    o = Outcomes([1, 2], np.zeros((2, 1), bool), codes=np.array([[0], [1]]), gold=np.array([1, 1]))
    assert FixedVote((1, 2), "share", 0.5).audit(o) == {"wrong": (1, 2)}


def test_a_vote_reads_answers_and_takes_the_fewest_prompts() -> None:
    assert ConformalVote((2, 4)).needs_answers and FixedVote((2, 4), "share", 1).needs_answers
    assert ConformalVote((2, 4), delta="0.1", n_calibration=9).n_calibration == 9
    with pytest.raises(ValueError, match="n_calibration: got 8; need 9"):
        ConformalVote((2, 4), delta="0.1", n_calibration=8)


def test_a_vote_is_calibrated_on_whole_groups() -> None:
    o = Outcomes(np.arange(9), np.zeros((9, 8), bool), codes=np.zeros((9, 8), np.int64), gold=np.ones(9, np.int64))
    with pytest.raises(ValueError, match=r"^outcomes.drawn: got a minimum of 4; need 8 responses for each prompt; because "):
        vote_loss_level(o.prefix(4), (2, 4, 8), "margin", "differs")
    with pytest.warns(UserWarning, match=r"^delta: got 1/10; need more than the error of the vote at K_max = 8; because "):
        calibrate_vote(o, (2, 4, 8), "0.1", "wrong", "margin")


def test_reports_say_what_is_missing() -> None:
    vote = FixedVote((2, 4), "share", 0.5)
    for table, words in (
        (Outcomes([1], np.zeros((1, 4), bool)), "table: got 1 prompts without codes; need at least one"),
        (Outcomes([], np.zeros((0, 4), bool), codes=np.zeros((0, 4), np.int64)), "table: got 0 prompts; need at least one"),
        (Outcomes([], np.zeros((0, 4), bool)), "table: got 0 prompts without codes; need at least one"),
        (Outcomes([1], np.zeros((1, 2), bool), codes=np.zeros((1, 2), np.int64)), "table: got 1 prompts; need at least one"),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            vote_report(vote, table)
