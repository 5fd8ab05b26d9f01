"""Faults found in a second review, each as a property of its class: batches, lattices, clocks without news, NumPy numbers, NaN."""

from __future__ import annotations

import json
from fractions import Fraction
from math import comb, inf, log, nan
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import conformal_core as c
from conformal_core.checks import as_ids, generator, int64_codes
from conformal_core.level import exact, log_of
from conformal_core.vote_statistics import VoteStatistic

codes_of = st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(st.integers(-1, 5), min_size=12, max_size=12), min_size=n, max_size=n))


@given(codes_of, st.sampled_from(get_args(VoteStatistic)), st.integers(1, 12))
def test_how_settled_a_vote_is_does_not_depend_on_the_other_prompts(rows: Any, statistic: VoteStatistic, k: int) -> None:
    codes = np.array(rows)
    together, leaders = c.settledness(codes, k, 32, statistic)
    for i in range(len(codes)):
        alone, leader = c.settledness(codes[i : i + 1], k, 32, statistic)
        assert alone[0] == together[i] and leader[0] == leaders[i]
    assert c.settledness(np.asfortranarray(codes), k, 32, statistic)[0].tolist() == together.tolist()


def test_the_lead_of_a_prompt_whose_terms_round_differently_in_another_order() -> None:
    row = [0, 2, 1, 4, 0, 3, 3, 3, 2, 0, 6, 0, 0, 4, 5, 1, 0, 2, 4, 5, 0, 4, 3, 4, 4, 2, 1, 1, 2, 0, 2, 0]
    assert len({c.settledness(np.repeat([row], n, axis=0), 8, 32, "lead")[0][0] for n in (1, 2, 3, 8)}) == 1


@given(st.integers(1, 14), st.integers(1, 9))
def test_pac_rank_is_exact_where_gamma_is_a_probability_of_the_law(n: int, tenths: int) -> None:
    delta = Fraction(tenths, 10)

    def missed(rank: int) -> Fraction:  # P(Beta(L, n+1-L) < 1 - delta) = P(Bin(n, 1 - delta) >= L)
        return sum((comb(n, i) * (1 - delta) ** i * delta ** (n - i) for i in range(rank, n + 1)), Fraction(0))

    for rank in range(1, n + 1):
        assert c.pac_rank(n, delta, missed(rank)) == rank
        smaller = missed(rank) * Fraction(10**12 - 1, 10**12)
        assert c.pac_rank(n, delta, smaller) == rank + 1


@pytest.mark.parametrize("n", range(1, 80, 2))
def test_pac_rank_of_a_fair_coin_is_the_middle(n: int) -> None:
    assert c.pac_rank(n, "0.5", "0.5") == (n + 1) // 2


steps = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 20), max_size=4)), min_size=1, max_size=12)


@pytest.mark.filterwarnings("ignore:recency")
@given(steps, st.sampled_from(["0.5", "0.9", "1"]))
def test_scores_grow_older_at_steps_without_news(plan: Any, recency: str) -> None:
    window = c.StreamWindow("0.3", 9, drift="recency", recency=recency)
    now, held = 0, []
    for skip, scores in plan:
        now += skip
        held = [*held, *((s, now) for s in scores)][-9:]
        window.extend(scores, step=now)
        if held:
            weights = [float(Fraction(recency)) ** (now + 1 - t) for _, t in held]
            assert window.threshold == c.weighted_quantile([s for s, _ in held], weights, 1, "0.3").value
    again = c.StreamWindow("0.3", 9, drift="recency", recency=recency)
    again.load_state_dict(json.loads(json.dumps(window.state_dict())))
    assert (again.threshold, again.short) == (window.threshold, window.short)


def test_scores_of_an_earlier_step_are_refused_where_age_counts() -> None:
    window = c.StreamWindow("0.2", 9, drift="recency")
    window.extend([1, 2], step=5)
    window.extend([3], step=5)
    with pytest.raises(ValueError, match=r"^step: got 4 after 5; need .*; because "):
        window.extend([4], step=4)


@pytest.mark.filterwarnings("ignore:recency")
def test_the_clock_of_a_signal_policy_runs_out_when_nobody_is_designated() -> None:
    policy = c.SignalBudget((2, 4, 8), delta="0.2", window=20, share=1, drift="recency", recency="0.9")
    passes = np.tile([True, False, False, False, False, False, False, False], (20, 1))
    policy.update(c.Outcomes(np.arange(20, dtype=np.uint64), passes))
    assert policy.metrics()["f"] == 2
    for step in range(1, 40):
        policy.update(c.Outcomes(np.zeros(0, np.uint64), np.zeros((0, 8), bool), step=step))
    assert policy.metrics()["f"] == inf


HUGE = np.array([[2**63 + 5] * 4], np.uint64)


@pytest.mark.parametrize(
    "call",
    [
        lambda: c.Outcomes([1], np.ones((1, 4), bool), codes=HUGE),
        lambda: c.Outcomes([1], np.ones((1, 4), bool), codes=np.zeros((1, 4), int), gold=HUGE[0, :1]),
        lambda: c.inclusive_set(HUGE, 4, 0.5),
        lambda: c.inclusive_set(np.zeros((1, 4), int), 4, 0.5).contains(HUGE[0, :1]),
        lambda: c.answer_counts(HUGE, 4),
        lambda: c.answer_counts([[0.2, 0.9]], 2),
        lambda: c.answer_counts([[True, False]], 2),
    ],
)
def test_codes_are_never_truncated(call: Any) -> None:
    with pytest.raises(ValueError, match=r"^(codes|gold|answers): got .*; need integers.*; because "):
        call()


@given(st.integers(1, 70), st.integers(1, 30), st.integers(1, 30))
def test_exact_laws_take_numpy_integers(n: int, a: int, b: int) -> None:
    pmf = [Fraction(1, 10), Fraction(2, 5), Fraction(1, 2)]
    assert c.tied_coverage(pmf, np.int64(n), "1/10") == c.tied_coverage(pmf, n, "1/10")
    assert c.first_success_cdf(np.int64(n), np.int64(a), np.int32(b)) == c.first_success_cdf(n, a, b)
    mine = Fraction(np.int64(a), np.int64(a + b))
    plain = Fraction(a, a + b)
    assert c.tied_coverage([mine, 1 - mine], n, plain) == c.tied_coverage([plain, 1 - plain], n, plain)
    assert c.total_variation([mine, 1 - mine], [1, 0]) == 1 - plain
    assert c.conformal_rank(10**25 + n, mine) == c.conformal_rank(10**25 + n, plain)
    for value in (as_written := c.as_level(mine), c.auto_delta(a, a + b, epsilon=np.float32(0))):
        assert type(value.numerator) is int is type(value.denominator)
    assert json.loads(json.dumps(c.conformal_quantile(range(200), as_written).to_json()))["delta"] == str(plain)


@pytest.mark.parametrize("value", [True, np.True_, nan, inf, -inf, "x", "1/0", None, 1j, [1], np.array([0.5])])
def test_what_is_no_number_has_no_exact_value(value: object) -> None:
    assert exact(value) is None


@pytest.mark.parametrize("value", [0.1, "0.1", "1/10", Fraction(1, 10), np.float32(0.1), np.float16(0.1), np.float64(0.1)])
def test_every_way_to_write_a_tenth(value: object) -> None:
    assert exact(value) == Fraction(1, 10)


def test_logarithms_below_the_floats() -> None:
    assert log_of(Fraction(1, 10**400)) == pytest.approx(-400 * log(10), rel=1e-15)
    assert log_of(Fraction(1, 10)) == log(0.1)
    monitor = c.DriftMonitor("1e-400")
    assert not monitor.observe(np.arange(50.0), np.full(50, 0.5))


@pytest.mark.parametrize("values", [1e-7, 0.9999999])
def test_a_float_that_rounds_to_an_end_says_so(values: float) -> None:
    with pytest.raises(ValueError, match="write it as a string"):
        c.as_level(values)
    assert 0 < c.as_level(repr(values)) < 1


def test_a_step_that_rounds_to_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="write it as a string"):
        c.adaptive_level("0.1", 1e-7)
    assert c.adaptive_level("0.1", "1e-7").gamma == Fraction(1, 10**7)


def test_an_error_seen_by_numpy_moves_the_level_like_any_other() -> None:
    level = c.adaptive_level("0.1", np.float32(0.05))
    assert level.gamma == Fraction(1, 20)
    assert level.after(np.float64(3) > level.threshold([1, 2])) == level.after(0)
    assert level.after(np.True_) == level.after(1) == level.after(True)
    assert level.after(np.float32(0.5)) == level.after("1/2")
    for share in (inf, nan, 2, -1, "x"):
        with pytest.raises(ValueError, match=r"^share: got .*; need .*; because "):
            level.after(share)


def test_an_answer_that_is_not_itself_is_none() -> None:
    for row in ([nan, nan, 3.0, float("nan")], np.array([nan, nan, 3.0, nan])):
        codes, gold = c.encode_answers([row, ["x", nan, "x", None]], gold=[nan, "x"])
        assert codes.tolist() == [[-1, -1, 0, -1], [0, -1, 0, -1]]
        assert gold is not None and gold.tolist() == [-1, 0]
    assert c.encode_answers([iter("aba")])[0].tolist() == [[0, 1, 0]]
    with pytest.raises(ValueError, match=r"^answers: got 3 as row 0; need .*; because "):
        c.encode_answers([3])


TABLE = c.Outcomes(np.arange(4, dtype=np.uint64), np.tile([True, False, True, False], (4, 1)), codes=np.zeros((4, 4), int))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("policy.keep", {"keep": lambda self, o: 2 * o.live.astype(int)}),
        ("policy.keep", {"keep": lambda self, o: np.ones(o.width, bool)}),
        ("policy.committed", {"committed": lambda self, o: np.zeros((o.n, 1), int)}),
        ("policy.committed", {"committed": lambda self, o: np.zeros(o.n)}),
        ("policy.audit", {"audit": lambda self, o: {"mean_k": (1, 2)}}),
    ],
)
def test_replay_refuses_answers_of_another_shape(name: str, method: Any) -> None:
    policy = type("Odd", (c.FixedBudget,), method)(4)
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
        c.replay(policy, TABLE)


def test_a_yardstick_from_numpy_stays_serialisable() -> None:
    assert json.loads(json.dumps(c.replay(c.FixedBudget(2), TABLE, k_max=np.int64(4)).to_json()))["k_max"] == 4


@pytest.mark.parametrize("bets", [c.SimpleJumper, c.PowerMixture])
@pytest.mark.parametrize("p", [nan, -1e-9, 1.0000001, 5])
def test_bets_are_on_p_values(bets: Any, p: float) -> None:
    with pytest.raises(ValueError, match=r"^p: got .*; need .*; because "):
        bets().bet(p)
    bets().bet(0.0), bets().bet(1.0)


def test_the_p_value_of_a_capital_long_lost() -> None:
    monitor = c.DriftMonitor()
    monitor._bets._log = -1e6  # type: ignore[union-attr]
    assert monitor.p_bound() == 1.0


def test_the_p_value_of_a_capital_that_grew() -> None:
    monitor = c.DriftMonitor("1e-9")
    monitor.restart(np.linspace(0, 1, 50))
    monitor.observe(np.linspace(2, 3, 20), np.full(20, 0.5))
    assert monitor.p_bound() == pytest.approx(np.exp(-monitor.log_capital), rel=1e-12) and monitor.log_capital > 1


@pytest.mark.parametrize(("name", "least"), [("delta", Fraction(1, 10**6)), ("gamma", Fraction(1, 10**300))])
def test_levels_that_nobody_can_certify(name: str, least: Fraction) -> None:
    one = c.Outcomes([1], np.ones((1, 2), bool), codes=np.zeros((1, 2), int), gold=[0])
    levels: dict[str, Any] = {"delta": "0.1", "gamma": "0.1"}
    with pytest.warns(UserWarning, match="calibration prompts; need"):
        assert not c.learn_then_test(one, (2,), **(levels | {name: least})).attainable
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need at least 1e-.*; because "):
        c.learn_then_test(one, (2,), **(levels | {name: least * Fraction(10**9 - 1, 10**9)}))


def test_nan_is_no_threshold() -> None:
    with pytest.raises(ValueError, match=r"^lam: got NaN; need .*; because "):
        c.FixedVote((2, 4), "share", nan)
    with pytest.raises(ValueError, match=r"^in_force: got NaN; need .*; because "):
        c.StreamWindow("0.2", 9, drift="aci").extend([1.0], 0, in_force=nan)
    with pytest.raises(ValueError, match=r"^scores: got NaN; need .*; because "):
        c.StreamWindow("0.2", 9).replace([nan], 0)
    for lam in (nan, inf, -1):
        with pytest.raises(ValueError, match=r"^lam: got .*; need .*; because "):
            c.margin_stop(TABLE, 2, lam)


@pytest.mark.parametrize("rule", ["randomized", "independent", "inclusive", "mass_above", "released"])
def test_an_unattainable_threshold_leaves_no_single_answer(rule: str) -> None:
    assert c.singleton_probability([3, 1], inf, rule) == 0
    assert c.singleton_probability([4], inf, rule) == 0
    if rule in ("randomized", "independent"):
        assert c.empty_probability([3, 1], inf, rule) == 0
        assert c.empty_probability([3, 1], -inf, rule) == 1
    with pytest.raises(ValueError, match=r"^q: got NaN; need .*; because "):
        c.singleton_probability([4], nan, rule)


MASKED = np.ma.masked_array([1.0, 2.0, 999.0], [0, 0, 1])


@pytest.mark.parametrize("scores", [MASKED, ["a", "b"], [1j], [[1], [1, 2]], [object()]])
@pytest.mark.parametrize(
    "call",
    [
        lambda s: c.conformal_quantile(s, "1/2"),
        lambda s: c.plain_p_values(s, [1.0]),
        lambda s: c.smoothed_p_values([1.0], s, [0.5]),
        lambda s: c.permutation_test([1.0], s),
        lambda s: c.online_p_values(s, [0.5, 0.5, 0.5]),
        lambda s: c.StreamWindow("1/2", 9).extend(s, 0),
    ],
)
def test_scores_are_known_real_numbers(scores: Any, call: Any) -> None:
    with pytest.raises(ValueError, match=r"^[a-z]+: got .*; need .*; because "):
        call(scores)


def test_a_mask_that_hides_nothing_is_no_mask() -> None:
    assert c.conformal_quantile(np.ma.masked_array([1.0, 2.0]), "1/2").value == 2.0


@given(st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_ids_survive_json(ids: list[int]) -> None:
    again = json.loads(json.dumps(ids))
    assert as_ids("ids", again).tolist() == ids
    assert c.Outcomes(again, np.ones((len(ids), 1), bool)).prompt_ids.tolist() == ids


@pytest.mark.parametrize("ids", [[-1, 3], np.array([-1]), [2**64], [-1, 2**63], [True], [0.5], ["x"]])
def test_ids_are_hashes(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"^ids: got .*; need .*; because "):
        c.uniforms(ids, seed=0)


@pytest.mark.parametrize("key", [{"seed": 1.9}, {"seed": True}, {"seed": 0, "step": 0.5}])
def test_keys_are_never_rounded(key: Any) -> None:
    with pytest.raises(ValueError, match=r"^(seed|step): got .*; need an integer; because "):
        c.uniforms([1], **key)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1", (), (1, -1), None])
def test_seeds_of_shuffles(seed: Any) -> None:
    for call in (generator, lambda s: c.disjoint_split(9, seed=s), lambda s: c.permutation_test(range(50), range(50), seed=s)):
        with pytest.raises(ValueError, match=r"^seed: got .*; need .*; because "):
            call(seed)


def test_weights_of_every_kind() -> None:
    for one in (1, 1.0, np.float32(1), np.longdouble(1), np.int8(1), Fraction(1), np.array(1.0), True):
        assert c.weighted_quantile([3, 1, 2], [one] * 3, one, "1/2").rank == 2
    for bad in (nan, inf, "1", None, 1j):
        with pytest.raises(ValueError, match=r"^weights: got .*; need .*; because "):
            c.weighted_quantile([3, 1, 2], [1, bad, 1], 1, "1/2")
    with pytest.raises(ValueError, match=r"^weights: got a minimum of -1 and a sum of 1000"):
        c.weighted_quantile([3, 1, 2], [-1, 10**400, 1], 1, "1/2")
    with pytest.raises(ValueError, match=r"^weights: got shape \(2, 2\); need \(2,\)"):
        c.weighted_quantile([3, 1], np.ones((2, 2)), 1, "1/2")


def test_labels_without_an_order() -> None:
    with pytest.raises(ValueError, match=r"^strata: got labels without an order"):
        c.disjoint_split(4, seed=0, strata=["a", None, "a", "b"])
    with pytest.raises(ValueError, match=r"^u: got shape \(2,\); need one that fits \(3,\)"):
        c.smoothed_p_values([1.0], [1, 2, 3], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"^hits: got 0\.5 of 3"):
        c.share_interval(0.5, 3, adaptive=True)


def test_a_share_of_one_however_it_is_written() -> None:
    for one in (1, "1", "1.0", 1.0, Fraction(1)):
        assert c.NestedRollout((2, 4), (one, "0.5")).shares == (1, Fraction(1, 2))


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda **k: c.SignalBudget((2, 4), window=20, **k), {"alarm": "0.5"}),
        (lambda **k: c.SignalBudget((2, 4), window=20, calibration="offline", **k), {"n_calibration": 99}),
        (lambda **k: c.SignalBudget((2, 4), window=20, calibration="offline", **k), {"recalibrate_every": 7}),
        (lambda **k: c.ConformalBudget((2, 4), **k), {"alarm": "0.5"}),
        (lambda **k: c.ConformalBudget((2, 4), **k), {"n_calibration": 99}),
        (lambda **k: c.ConformalBudget((2, 4), **k), {"recalibrate_every": 7}),
        (lambda **k: c.ConformalVote((2, 4), **k), {"n_calibration": 99}),
        (lambda **k: c.ConformalVote((2, 4), **k), {"recalibrate_every": 7}),
    ],
)
def test_a_state_is_refused_by_a_policy_with_other_arguments(make: Any, other: dict[str, Any]) -> None:
    mine = {"alarm": "0.01"} if "alarm" in other else {}
    state = json.loads(json.dumps(make(**mine).state_dict()))
    make(**mine).load_state_dict(state)
    with pytest.raises(ValueError, match=r"^state: got .*; need .*; because "):
        make(**other).load_state_dict(state)


@pytest.mark.parametrize("gamma", [0, 0.0, -0.0, -1e-9, -0.5, "0", "x", nan])
def test_a_step_that_is_none_is_not_said_to_be_rounded(gamma: Any) -> None:
    with pytest.raises(ValueError, match=r"^gamma: got .*; because it is the step by which the level moves$"):
        c.adaptive_level("0.1", gamma)


@pytest.mark.parametrize("delta", [0, 0.0, -0.0, -1e-9, 1, 1.0, 1.0000001, "0", "x", nan])
def test_a_level_that_is_none_is_not_said_to_be_rounded(delta: Any) -> None:
    with pytest.raises(ValueError, match=r"^delta: got .*; because it is an error rate$"):
        c.as_level(delta)


@pytest.mark.parametrize(("a", "b"), [("x", 1), (1, "x"), (nan, 1), (1, nan), (0, 1), (1, 0), (-1, 1)])
def test_a_beta_law_has_two_positive_numbers(a: Any, b: Any) -> None:
    with pytest.raises(ValueError, match=r"^j, a, b: got .*; need .*; because "):
        c.first_success_cdf(1, a, b)


def test_the_largest_code_of_every_type() -> None:
    for top in (1, 126, 2**62, 2**62 + 1, 2**63 - 1):
        assert int64_codes("codes", np.array([[top]], np.uint64)).tolist() == [[top]]
    with pytest.raises(ValueError, match=r"need integers >= -2 below 2\*\*63 of shape \(1, 1\)"):
        int64_codes("codes", np.array([[2**63]], np.uint64), (1, 1), least=-2)
    assert int64_codes("codes", np.zeros((0, 4))).shape == (0, 4)
    for odd in (np.array([[0.0]]), np.zeros((1, 2)), np.array([["0"]])):
        with pytest.raises(ValueError, match=r"^codes: got .*; need integers; because "):
            int64_codes("codes", odd)


@pytest.mark.parametrize("statistic", ["top_share", "margin"])
def test_a_lead_of_one_vote_is_a_lead(statistic: Any) -> None:
    codes = np.array([[0, -1]] * 9)
    cal = c.Outcomes(np.arange(9), codes == 0, codes=codes, gold=np.zeros(9, int))
    assert c.select_stops(cal, cal.take(np.array([0])), 2, "0.1", statistic=statistic).selected.tolist() == [True]


@pytest.mark.parametrize("u", [-0.5, -1.0, 1.5, 2.0, nan])
def test_the_coin_of_a_selection_is_within_its_bounds(u: float) -> None:
    with pytest.raises(ValueError, match=r"^u: got shape \(1,\); need \(1,\) with values in \[0, 1\]; because "):
        c.conformal_selection([0.5], [True], [0.5], "0.1", [u])


def test_what_drift_may_cost_is_at_most_everything() -> None:
    assert c.nonexchangeable_bound("0.9", [1, 1], [1, 1]) == 0
    with pytest.raises(ValueError, match=r"^q: got 2 masses; need 1; because "):
        c.total_variation([1], ["1/2", "1/2"])
    with pytest.raises(ValueError, match=r"^q: got 1 masses; need 3; because "):
        c.total_variation(["1/3"] * 3, [1])


def test_too_few_prompts_for_any_rule_are_told_the_bound() -> None:
    one = c.Outcomes([1, 2], np.ones((2, 2), bool), codes=np.zeros((2, 2), int), gold=[0, 0])
    with pytest.warns(
        UserWarning, match=r"^n: got 2 calibration prompts; need 9; because a rule that never errs is bounded only by 1/3 > 1/10$"
    ):
        c.risk_control(one, (2,), "1/10")


@pytest.mark.parametrize("tables", [1, 2, 3])
def test_intervals_of_several_tables_allow_for_what_was_learnt(tables: int) -> None:
    report = c.replay(c.FixedBudget(2), [TABLE] * tables, k_max=4)
    low, high = c.mean_interval(report.drawn / 4, adaptive=tables > 1)
    assert report.intervals["mean_k"] == (4 * low, 4 * high)


def test_sets_at_a_threshold_that_a_share_equals() -> None:
    assert c.singleton_probability([3, 1], "3/4", "inclusive") == 1
    assert c.singleton_probability([3, 1], "3/4", "mass_above") == 0
    for rule in ("randomized", "independent", "inclusive", "mass_above", "released"):
        assert c.singleton_probability([], "1/2", rule, k=4) == 0
    for rule in ("randomized", "independent", "inclusive", "mass_above"):
        assert c.singleton_probability([4], -inf, rule) == 0
    assert c.singleton_probability([4], -inf, "released") == 1


@given(st.integers(0, 10**6), st.sampled_from(["1/10", "1/3", "9/10"]))
def test_joint_thresholds_of_many_prompts_are_order_statistics(seed: int, delta: str) -> None:
    scores = np.random.default_rng(seed).permuted(np.arange(3 * 400.0).reshape(3, 400), axis=1).T
    rank = c.conformal_rank(400, delta)
    assert c.max_score(scores, delta).q.tolist() == [sorted(scores.max(axis=1))[rank - 1]] * 3
    places = 1 + scores.argsort(axis=0).argsort(axis=0)
    t = sorted(places.max(axis=1))[rank - 1] + 1
    assert c.max_rank(scores, delta).rank == t if t <= 400 else np.isinf(c.max_rank(scores, delta).q).all()
    half, other = scores[:200], scores[200:]
    above = np.array([(half < row).sum(axis=0) for row in other]).max(axis=1)
    t = sorted(above)[c.conformal_rank(200, delta) - 1]
    assert c.split_ecdf(half, other, delta).rank == t + 1 if t < 200 else np.isinf(c.split_ecdf(half, other, delta).q).all()


@pytest.mark.parametrize(("rule", "delta", "least"), [("split_ecdf", "1/2", 2), ("split_ecdf", "1/3", 3), ("max_rank", "1/2", 3)])
def test_fewest_prompts_of_a_rule(rule: Any, delta: str, least: int) -> None:
    c.ConformalBudget((2, 4), multiplicity=rule, delta=delta, n_calibration=least)
    with pytest.raises(ValueError, match=rf"^n_calibration: got {least - 1}; need {least}; because "):
        c.ConformalBudget((2, 4), multiplicity=rule, delta=delta, n_calibration=least - 1)


def test_a_budget_that_nobody_can_certify() -> None:
    with pytest.raises(ValueError, match=r"^delta: got .*; need at least 1e-06; because "):
        c.ConformalBudget((2, 4), multiplicity="learn_then_test", delta="1e-400")


def test_what_a_joint_rank_would_need() -> None:
    column = np.arange(19.0)
    scores = np.column_stack([column, np.roll(column, 1), np.roll(column, 2)])
    with pytest.warns(UserWarning, match=r"^n: got 19 calibration prompts; need up to 39 for a joint rank at level 1/10; because "):
        c.calibrate_thresholds(scores, (2, 4, 8), "1/10", "max_rank")
    with pytest.warns(UserWarning, match=r"^n: got 18 calibration prompts; need 19 at level 1/10 under 'max_rank'; because "):
        c.calibrate_thresholds(scores[:18], (2, 4, 8), "1/10", "max_rank")


@given(st.integers(0, 10**6), st.sampled_from(["1/10", "1/3", "9/10"]))
def test_thresholds_of_many_prompts_are_order_statistics(seed: int, delta: str) -> None:
    scores = np.random.default_rng(seed).permuted(np.arange(2 * 500.0).reshape(2, 500), axis=1).T
    rank = c.conformal_rank(500, delta)
    found = c.calibrate_thresholds(scores, (2, 4), delta, "per_budget").q
    assert list(found) == [sorted(column)[rank - 1] for column in scores.T]


@pytest.mark.parametrize(("top", "bottom"), [(np.int64(3), 10), (3, np.int64(10)), (np.int64(3), np.int64(10)), (3, 10)])
def test_the_parts_of_an_exact_number_are_python_integers(top: Any, bottom: Any) -> None:
    half_made = Fraction(3, 10)
    object.__setattr__(half_made, "_numerator", top), object.__setattr__(half_made, "_denominator", bottom)
    found = exact(half_made)
    assert found is not None and [type(found.numerator), type(found.denominator)] == [int, int]
