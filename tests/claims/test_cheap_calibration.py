"""Early-stopped calibration gives the thresholds of full sampling, at the expected cost stated; nested sets have exact ranks."""

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal_core.early import UntilFirstSuccess, UntilMixed, calibration_rollout, expected_draws
from conformal_core.level import conformal_rank
from conformal_core.nested import nested_budgets, nested_thresholds
from conformal_core.outcomes import Outcomes
from conformal_core.replay import replay
from conformal_core.scores import APS, FirstSuccess
from conformal_core.signal import SignalBudget
from conformal_core.thresholds import calibrate_thresholds

TABLES = arrays(np.bool_, st.tuples(st.integers(1, 14), st.just(8)))
GRIDS = st.sampled_from([tuple(range(1, 9)), (2, 4, 8), (1, 8), (3, 7, 8)])


def outcomes(passes):
    return Outcomes(np.arange(len(passes), dtype=np.uint64), np.asarray(passes, bool))


def blinded(table, drawn):
    """Only what was drawn, and the opposite verdict in every cell that was not."""
    live = np.arange(table.width) < drawn[:, None]
    return Outcomes(table.prompt_ids, np.where(live, table.passes, ~table.passes), drawn=drawn)


@pytest.mark.filterwarnings("ignore:n. got")
@given(TABLES, GRIDS, st.sampled_from(["failure_above_success", "paper"]), st.sampled_from(["1/10", "1/4", "2/3"]))
def test_early_stopped_first_success_calibration_equals_full_sampling(passes, grid, convention, delta):
    score, table = FirstSuccess(convention), outcomes(passes)
    cheap = blinded(table, replay(calibration_rollout(score, grid), table).drawn)
    u = np.zeros(len(passes))
    early, full = (score.gold_scores(o, (2, 4, 8), u) for o in (cheap, table))
    np.testing.assert_array_equal(early, full)
    assert calibrate_thresholds(early, (2, 4, 8), delta) == calibrate_thresholds(full, (2, 4, 8), delta)


@given(TABLES, GRIDS, st.integers(1, 3), st.sampled_from(["1/10", "1/4", "2/3"]), st.booleans())
def test_early_stopped_signal_calibration_equals_full_sampling(passes, grid, m, delta, by_first):
    table = outcomes(passes)
    cheap = blinded(table, replay(UntilMixed(grid, m), table).drawn)
    policies = [
        SignalBudget((2, 4, 8), m=m, delta=delta, calibration="offline", n_calibration=50, by_first_outcome=by_first) for _ in range(2)
    ]
    for policy, seen in zip(policies, (cheap, table), strict=True):
        policy.calibrate(seen)
    assert policies[0].metrics() == policies[1].metrics()
    assert policies[0].state_dict() == policies[1].state_dict()


def test_groups_that_all_stopped_early_are_widened():
    narrow = Outcomes([1, 2], np.array([[False, True], [True, False]]), drawn=np.array([2, 1]), codes=np.array([[0, 1], [1, -2]]))
    wide = narrow.widen(8)
    assert wide.width == 8 and wide.drawn.tolist() == [2, 1] and (wide.codes[:, 2:] == -2).all() and narrow.widen(1).width == 2
    assert FirstSuccess().gold_scores(wide, (2, 8), np.zeros(2)).tolist() == [[1.0, 0.25], [0.5, 0.125]]


def test_scores_that_read_answers_need_every_response():
    assert calibration_rollout(APS(), (2, 8)).first(np.arange(2, dtype=np.uint64), 0).tolist() == [8, 8]


@pytest.mark.parametrize("grid", [(1, 2, 3, 4, 5), (2, 5), (1, 3, 5), (4, 5)])
@pytest.mark.parametrize("make", [UntilFirstSuccess, UntilMixed, lambda grid: UntilMixed(grid, 2)], ids=["success", "mixed", "mixed2"])
@pytest.mark.parametrize("p", [Fraction(0), Fraction(1, 3), Fraction(9, 10), Fraction(1)])
def test_expected_cost_of_early_stopped_calibration(grid, make, p):
    rollout, paths = make(grid), list(product((0, 1), repeat=5))
    drawn = replay(rollout, outcomes(paths)).drawn
    exact = sum(int(k) * p ** sum(path) * (1 - p) ** (5 - sum(path)) for path, k in zip(paths, drawn, strict=True))
    assert expected_draws(rollout, [float(p)])[0] == pytest.approx(float(exact), rel=1e-13)


def test_nested_calibration_sets_have_exact_ranks():
    """Pairs of scores from a law with ties, sizes 4 and 2: P(S_k > q_k) <= delta at both budgets, over every calibration set."""
    sizes, grid, delta = (4, 2), (2, 4), Fraction(2, 5)
    law = {(1, 1): Fraction(1, 2), (1, 2): Fraction(1, 6), (2, 1): Fraction(1, 12), (3, 2): Fraction(1, 4)}
    drawn = nested_budgets(np.arange(4, dtype=np.uint64), grid, sizes, seed=5)
    assert sorted(drawn) == [2, 2, 4, 4]
    missed = [Fraction(0), Fraction(0)]
    for calibration in product(law, repeat=4):
        scores = np.array(calibration, float)
        scores[drawn < 4, 1] = np.nan
        q = nested_thresholds(scores, drawn, grid, delta).q
        mass = prod(law[s] for s in calibration)
        for j in range(2):
            missed[j] += mass * sum(w for s, w in law.items() if s[j] > q[j])
    assert all(0 < miss <= delta for miss in missed)


@pytest.mark.filterwarnings("ignore:drawn. got")
@given(st.permutations(range(7)), st.lists(st.integers(1, 6), min_size=3, max_size=3), st.sampled_from(["1/6", "1/4", "2/5", "1/2"]))
def test_nested_threshold_is_the_exact_order_statistic_at_every_budget(values, sizes, delta):
    sizes = sorted(sizes, reverse=True)
    ids = np.arange(7, dtype=np.uint64)
    drawn = nested_budgets(ids, (1, 2, 3), sizes)
    scores = np.array([[v, 10 + v, 20 + v] for v in values], float)
    for rule in ("per_budget", "bonferroni"):
        found = nested_thresholds(np.where(drawn[:, None] >= [1, 2, 3], scores, np.nan), drawn, (1, 2, 3), delta, rule)
        level = Fraction(delta) / (3 if rule == "bonferroni" else 1)
        for j, n in enumerate(sizes):
            rank = conformal_rank(n, level)
            mine = sorted(scores[drawn >= j + 1, j])
            assert found.n[j] == n == len(mine) and found.ranks[j] == rank and found.attainable[j] == (rank <= n)
            assert found.q[j] == (mine[rank - 1] if rank <= n else np.inf)
