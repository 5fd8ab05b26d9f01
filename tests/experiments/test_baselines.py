"""Each baseline against hand-worked numbers of its pseudo-code; state; the known faults of released re-implementations."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core import Outcomes, RolloutPolicy
from experiments.baselines import (
    AERO,
    GRESO,
    DynamicSampling,
    Knapsack,
    PilotCommit,
    PromptGDRO,
    ReinforceAdaEst,
    ReinforceAdaSeq,
    RolloutGDRO,
    SquareRootBudget,
    Unanimity,
)
from experiments.baselines.common import round_to_sum
from experiments.baselines.gdro import Bins

RULES: list[RolloutPolicy] = [
    DynamicSampling(4, prompts=3, max_batches=2),
    AERO(4, n_extra=2, n_max=8),
    PromptGDRO(4),
    RolloutGDRO(4),
    SquareRootBudget(4),
    GRESO(4),
    ReinforceAdaSeq(n=2, per_round=2, rounds=3),
    ReinforceAdaSeq(n=2, per_round=2, rounds=3, exit="positive_focused", log_objective=True),
    ReinforceAdaEst(4),
    PilotCommit(2, 4, train=4),
    Knapsack(4, n_max=16),
    Unanimity((2, 4, 8)),
]


def table(*rows: str, step: int = 0, ids: list[int] | None = None) -> Outcomes:
    """``"1100"``: successes and failures of a prompt, in order; a shorter row has drawn less."""
    width = max(map(len, rows))
    passes = np.array([[c == "1" for c in row.ljust(width, "0")] for row in rows])
    drawn = np.array([len(row) for row in rows])
    names = np.arange(len(rows), dtype=np.uint64) if ids is None else np.array(ids, np.uint64)
    codes = np.where(np.arange(width) < drawn[:, None], passes.astype(int), -2)
    return Outcomes(names, passes, drawn, codes, np.ones(len(rows), int), step)


def drive(policy: RolloutPolicy, truth: np.ndarray, ids: np.ndarray, step: int) -> Outcomes:
    """The protocol of a trainer: every prompt of the batch is shown until nobody asks for more."""
    drawn = policy.first(ids, step)
    while True:
        live = np.arange(truth.shape[1]) < drawn[:, None]
        seen = Outcomes(ids, truth & live, drawn, np.where(live, truth.astype(int), -2), np.ones(len(ids), int), step)
        extra = policy.more(seen) if policy.whole_batch else np.where(drawn > 0, policy.more(seen), 0)
        if not extra.any():
            return seen
        drawn = drawn + extra


@pytest.mark.parametrize("policy", RULES, ids=repr)
@given(data=st.data())
def test_contract(policy, data):
    """Within ``k_max``; decisions ignore what was not drawn and the order of prompts; kept is drawn; advantages are finite."""
    n = data.draw(st.integers(1, 6))
    seed = data.draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    truth = rng.random((n, policy.k_max)) < rng.random((n, 1))
    ids = rng.permutation(50)[:n].astype(np.uint64)
    end = drive(policy, truth, ids, seed)
    assert (end.drawn <= policy.k_max).all()
    kept = policy.keep(end)
    assert kept.dtype == bool and not (kept & ~end.live).any()
    advantages = policy.advantages(end)
    if advantages is not None:
        assert np.isfinite(advantages).all() and not advantages[~kept].any()
    pad = ((0, 0), (0, 3))
    wider = Outcomes(ids, np.pad(end.passes, pad), end.drawn, np.pad(end.codes, pad, constant_values=-2), step=seed)
    assert (policy.keep(wider)[:, : end.width] == kept).all() and not policy.keep(wider)[:, end.width :].any()


@pytest.mark.parametrize("policy", RULES, ids=repr)
def test_a_checkpoint_restores_every_decision(policy):
    """Two runs of one seed agree, and a run restored in the middle (through JSON) goes on as if never stopped."""
    import copy

    blank = copy.deepcopy(policy)

    def steps(rule: RolloutPolicy, some: range) -> list[object]:
        log = []
        for step in some:
            rng = np.random.default_rng(step)
            ids = rng.permutation(8)[:5].astype(np.uint64)
            end = drive(rule, rng.random((5, rule.k_max)) < (ids[:, None] + 0.5) / 8, ids, step)
            own = rule.advantages(end)
            log.append((end.drawn.tolist(), rule.keep(end).tolist(), None if own is None else own.tolist()))
            rule.update(end)
            log.append(dict(rule.metrics()))
        return log

    one, two, three = (copy.deepcopy(blank) for _ in range(3))
    whole = steps(one, range(12))
    assert steps(two, range(12)) == whole
    first = steps(three, range(6))
    state = json.loads(json.dumps(three.state_dict()))
    resumed = copy.deepcopy(blank)
    resumed.load_state_dict(state)
    assert first + steps(resumed, range(6, 12)) == whole
    if state:
        with pytest.raises(ValueError, match=r"^state: got that of Other"):
            resumed.load_state_dict(state | {"policy": "Other"})


# ---------------------------------------------------------------------------------------------------------------- DAPO


def test_dapo_draws_what_is_missing_and_no_more():
    rule = DynamicSampling(2, prompts=2, max_batches=3)
    ids = np.arange(6, dtype=np.uint64)
    assert rule.first(ids, 0).tolist() == [2, 2, 0, 0, 0, 0]
    # One of two has variance: one more is wanted, half of the prompts deliver, so two are sampled.
    state = table("10", "11", "", "", "", "")
    assert rule.more(state).tolist() == [0, 0, 2, 2, 0, 0]
    assert not rule.more(table("10", "11", "10", "00", "", "")).any()
    assert rule.keep(table("10", "11", "10", "00", "", "")).any(1).tolist() == [True, False, True, False, False, False]


def test_dapo_degrades_instead_of_crashing_on_hard_data():
    """The released trainer raises when its generation batches are used up."""
    rule = DynamicSampling(2, prompts=2, max_batches=2)
    truth = np.zeros((4, 2), bool)
    end = drive(rule, truth, np.arange(4, dtype=np.uint64), 0)
    assert end.drawn.tolist() == [2, 2, 2, 2]
    with pytest.warns(UserWarning, match="0 of 2 groups have variance after 4 prompts"):
        rule.update(end)
    assert rule.metrics()["exhausted"] == 1.0


def test_dapo_carries_the_surplus_over():
    """The released trainer throws surplus groups away; here they train and lower the next target."""
    rule = DynamicSampling(2, prompts=2, max_batches=4)
    first = table("10", "00", "01", "10", "", "", "", "")
    assert rule.keep(first).any(1).sum() == 3
    rule.update(first)
    assert rule.carried == 1 and rule.target == 1
    assert rule.first(np.arange(8, dtype=np.uint64), 1).tolist() == [2, 0, 0, 0, 0, 0, 0, 0]


# ---------------------------------------------------------------------------------------------------------------- AERO


def test_aero_worked_example():
    rule = AERO(8, n_extra=2, n_max=16)
    assert rule.more(table("00000000", "00000001", "11111111")).tolist() == [2, 0, 0]
    assert rule.more(table("0000000001", "0000000000", "0" * 16)).tolist() == [0, 2, 0]
    hard = table("10000001", "11110000", "11111111", "0" * 16)
    assert rule.keep(hard).sum(1).tolist() == [4, 8, 4, 4]  # 2 successes and ceil(1 x 2) failures; u = 1/2 keeps all; flat keep four
    kept = rule.keep(hard)
    assert (kept[0] & hard.passes[0]).sum() == 2
    advantages = rule.advantages(hard)
    assert advantages[0][kept[0] & hard.passes[0]] == pytest.approx(0.5 / ((4 * 0.25 / 3) ** 0.5 + 1e-4))
    posterior = (8 + 1) / (8 + 2)
    assert advantages[2][kept[2]] == pytest.approx((1 - posterior) / (posterior * (1 - posterior)) ** 0.5)
    assert advantages[3][kept[3]] == pytest.approx(-(((1 / 18) / (17 / 18)) ** 0.5))


def test_aero_posterior_advantage_does_not_vanish():
    """A released version centres the constant reward of such a group again, so that it costs compute and teaches nothing."""
    rule, flat = AERO(4, n_max=4), table("1111", "0000")
    advantages = rule.advantages(flat)
    assert (advantages[0] > 0).all() and (advantages[1] < 0).all()


def test_aero_prior_and_kappa():
    rule = AERO(4, n_max=4, kappa=2.0, prior=(3.0, 1.0))
    assert rule.keep(table("1000")).sum() == 3
    mean = 3 / 8
    assert rule.advantages(table("0000"))[0] == pytest.approx([-mean / (mean * (1 - mean)) ** 0.5] * 4)


# ---------------------------------------------------------------------------------------------------------------- GDRO


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9), st.integers(0, 60))
def test_rounding_keeps_the_sum_and_the_range(x, total):
    out = round_to_sum(np.array(x), total, 2, 7)
    assert out.sum() == np.clip(total, 2 * len(x), 7 * len(x))
    assert out.min() >= 2 and out.max() <= 7


@given(st.lists(st.integers(1, 20), min_size=2, max_size=6), st.data())
def test_rounding_is_within_one_of_the_exact_shares(weights, data):
    """Where no bound binds, every budget is the exact share rounded down or up."""
    total = data.draw(st.integers(len(weights), 60))
    out = round_to_sum(np.array(weights, float), total, 0, 10**6)
    exact = np.array(weights) * total / sum(weights)
    assert (np.abs(out - exact) < 1 + 1e-6).all()


def test_the_square_root_rule_preserves_the_mean():
    """A released version divides by the sum of the bins' shares, which is one, and realises 2 to 4 responses whatever is asked for."""
    rule = SquareRootBudget(8, n_min=1, n_max=32)
    rule.update(table("00000000", "10101010", "11111110"))
    known = rule.first(np.arange(3, dtype=np.uint64), 1)
    assert known.sum() == 24
    sd = np.sqrt([1 / 10 * 9 / 10, 5 / 10 * 5 / 10, 8 / 10 * 2 / 10])
    assert known.tolist() == np.round(24 * sd / sd.sum()).astype(int).tolist()


def test_the_square_root_law_minimises_the_total_variance():
    """Neyman: among all budgets of one sum, ``v_x / n_x`` summed is least at the rule's (by enumeration, within rounding)."""
    v = np.array([0.09, 0.25, 0.16])

    def cost(b):
        return float((v / np.array(b)).sum())

    best = min((b for b in product(range(1, 22), repeat=3) if sum(b) == 24), key=cost)
    ours = round_to_sum(np.sqrt(v), 24, 1, 32)
    assert np.abs(np.array(best) - ours).max() <= 1 and cost(ours) <= cost(best) * 1.005


def test_bins_leave_only_beyond_the_hysteresis():
    bins = Bins((0.4, 0.75), window=10, hysteresis=0.15)
    for row in ("0", "0"):
        bins.see(table(row))
    assert bins.of(np.array([0], np.uint64)).tolist() == [0]
    bins.see(table("1"))
    bins.see(table("1"))  # mean 1/2: beyond .4, but not by .15
    assert bins.of(np.array([0], np.uint64)).tolist() == [0]
    bins.see(table("1"))  # 3/5
    assert bins.of(np.array([0], np.uint64)).tolist() == [1]


def test_unseen_prompts_are_in_the_hardest_bin():
    assert Bins((0.5,), 5, 0.0).of(np.array([7], np.uint64)).tolist() == [0]


def test_prompt_weights_average_to_one_over_bins():
    """The released weights sum to one, so the cap never binds and the gradient shrinks with the number of bins."""
    rule = PromptGDRO(2, edges=(0.5,), eta=1.0, gamma=0.0, beta=1.0)
    rule.update(table("11", "00", ids=[0, 1]))  # both in bin 0; prompt 0 then moves to bin 1
    rule.update(table("11", "00", ids=[0, 1]))
    w = rule.weights(np.array([0, 1], np.uint64))
    assert w.mean() == pytest.approx(1.0)
    assert w[1] / w[0] == pytest.approx(np.e)  # failure rates 1 and 0
    assert PromptGDRO(2, edges=(0.5,), eta=50.0, w_max=1.5).w_max == 1.5
    capped = PromptGDRO(2, edges=(0.5,), eta=50.0, gamma=0.0, beta=1.0, w_max=1.5)
    for _ in range(2):
        capped.update(table("11", "00", ids=[0, 1]))
    assert capped.weights(np.array([0, 1], np.uint64)).max() == 1.5


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_arms_are_the_most_probable_that_meet_the_budget(a, b, seed):
    rule = RolloutGDRO(4, n_min=2, n_max=7, edges=(0.5,))
    rng = np.random.default_rng(seed)
    rule._scores = {0: rng.normal(size=6).tolist(), 1: rng.normal(size=6).tolist()}
    got = rule.choose(Counter({0: a, 1: b}))

    def worth(x, y):
        return rule.log_probabilities(0)[x - 2] + rule.log_probabilities(1)[y - 2]

    pairs = list(product(range(2, 8), repeat=2))
    near = min(abs(a * x + b * y - 4 * (a + b)) for x, y in pairs)
    best = max(worth(x, y) for x, y in pairs if abs(a * x + b * y - 4 * (a + b)) == near)
    assert abs(a * got[0] + b * got[1] - 4 * (a + b)) == near
    assert worth(got[0], got[1]) == pytest.approx(best)


def test_rollout_gdro_worked_update():
    rule = RolloutGDRO(4, n_min=2, n_max=6, edges=(0.5,), rate=0.05)
    assert rule.log_probabilities(0) == pytest.approx([log(1 / 5)] * 5)
    rule.mu = 0.1
    rule.update(table("11100", "00000"))
    assert rule._scores[0] == pytest.approx([0, 0, 0, 0.7 - 0.1 * (5 - 4), 0])
    assert rule.mu == pytest.approx(0.1 + 0.05)


# --------------------------------------------------------------------------------------------------------------- GRESO


def test_greso_worked_example():
    rule = GRESO(4)
    ids = np.array([0, 1, 2], np.uint64)
    assert rule.skip_probability(ids).tolist() == [0, 0, 0]
    rule.update(table("1111", "0000", "1100"))
    assert rule.p == [0.5, 0.5]  # nothing came back yet: nothing adapts
    assert rule.skip_probability(ids) == pytest.approx([0.5, 0.5, 0])
    rule.update(table("1111", "0000", "1100"))
    # Observed shares of uninformative groups: easy 1/3 >= 1/12 and hard 1/3 >= 1/6.
    assert rule.p == pytest.approx([0.49, 0.49])
    assert rule.skip_probability(ids) == pytest.approx([1 - 0.49**2, 1 - 0.49**2, 0])
    rule.update(table("1110", "0000", "1100"))
    assert rule.p == pytest.approx([0.50, 0.48])
    assert rule.skip_probability(ids) == pytest.approx([0, 1 - 0.48**3, 0])


def test_greso_skips_come_back():
    """In a released version a skipped prompt never returns."""
    rule = GRESO(4)
    for _ in range(60):
        rule.update(table("0000"))
    assert rule.skip_probability(np.array([0], np.uint64)) == pytest.approx([0.99])
    asked = [int(rule.first(np.array([0], np.uint64), step)[0]) for step in range(2000)]
    assert 5 <= sum(k > 0 for k in asked) <= 40  # binomial(2000, .01): outside with probability < 1e-3


def test_greso_has_no_effect_in_the_first_epoch():
    rule = GRESO(4)
    for step in range(5):
        ids = np.arange(8 * step, 8 * step + 8, dtype=np.uint64)
        assert (rule.first(ids, step) == 4).all()
        rule.update(table(*["0000"] * 8, ids=ids.tolist(), step=step))
    assert rule.p == [0.5, 0.5]


def test_greso_profile_is_checkpointed_under_stable_ids():
    """A released version re-hashes ids with a per-process salt, so that its profile is always empty."""
    rule, other = GRESO(4), GRESO(4)
    rule.update(table("1111", ids=[2**63 + 5]))
    other.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    assert other.skip_probability(np.array([2**63 + 5], np.uint64)) == pytest.approx([0.5])


# ------------------------------------------------------------------------------------------------------- Reinforce-Ada


def test_reinforce_ada_seq_worked_example():
    rule = ReinforceAdaSeq(4, per_round=8, rounds=4)
    assert rule.more(table("11000000", "10000000", "11111110", "00000000")).tolist() == [0, 8, 8, 8]
    assert not rule.more(table("0" * 32)).any()
    focused = ReinforceAdaSeq(4, per_round=8, rounds=4, exit="positive_focused")
    assert focused.more(table("10000000", "00000000")).tolist() == [0, 8]
    end = table("11000000", "1" + "0" * 31, "1" * 32)
    kept = rule.keep(end)
    assert kept.sum(1).tolist() == [4, 4, 4]
    assert (kept & end.passes).sum(1).tolist() == [2, 1, 4]  # a shortage is filled from the other class


def test_reinforce_ada_seq_baseline_is_global():
    """The baseline is the rate over all drawn responses, not over the kept ones (which is one half by construction)."""
    rule, end = ReinforceAdaSeq(2, per_round=4, rounds=1), table("1000")
    advantages, kept = rule.advantages(end)[0], rule.keep(end)[0]
    assert sorted(advantages[kept].tolist()) == [-0.25, 0.75]
    logp = ReinforceAdaSeq(2, per_round=4, rounds=1, log_objective=True)
    assert sorted(logp.advantages(end)[0][kept].tolist()) == [-1.0, 3.0]
    assert not logp.advantages(table("0000")).any()


def test_reinforce_ada_est_worked_example():
    rule = ReinforceAdaEst(8, n_min=2, n_max=32, decay=0.5, eps=0.01, prior=(0.5, 0.5))
    rule.update(table("1111", "0000"))
    rule.update(table("1100", "0000"))
    assert rule.rate(np.array([0, 1], np.uint64)) == pytest.approx([(0.5 * 4 + 2 + 0.5) / (6 + 1), 0.5 / 7])
    wish = 1 / np.sqrt(np.array([4.5 / 7, 0.5 / 7]) + 0.01)
    got = rule.first(np.array([0, 1], np.uint64), 2)
    assert got.sum() == 16 and np.abs(got - 16 * wish / wish.sum()).max() < 1
    assert rule.advantages(table("1100"))[0] == pytest.approx(np.array([0.5, 0.5, -0.5, -0.5]) / np.sqrt(0.51))


def test_reinforce_ada_est_keeps_its_mean():
    """A released version does not renormalise: its mean budget drifts with the success rates."""
    rule = ReinforceAdaEst(8)
    rule.update(table(*["1" * 8] * 6, *["0" * 8] * 2))
    assert rule.first(np.arange(8, dtype=np.uint64), 1).sum() == 64


# --------------------------------------------------------------------------------------------- Pilot-Commit, Knapsack, unanimity


def test_pilot_commit_worked_example():
    rule = PilotCommit(8, 8, train=8)
    assert rule.more(table("00000000", "10000000", "11111100", "11111110")).tolist() == [0, 8, 8, 0]
    end = table("1" + "0" * 15, "10000000", "1" * 8)
    assert rule.keep(end).sum(1).tolist() == [8, 0, 0]
    assert (rule.keep(end) & end.passes).sum(1).tolist() == [1, 0, 0]
    rule.update(end)
    assert rule.first(end.prompt_ids, 1).tolist() == [8, 8, 0]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=1, max_size=3), st.integers(2, 5))
def test_knapsack_is_optimal(history, mean_k):
    """Against enumeration of all budgets of that total."""
    rule = Knapsack(mean_k, n_min=2, n_max=9)
    rows = ["1" * min(c, n) + "0" * (n - min(c, n)) for c, n in history]
    rule.update(table(*rows))
    got = rule.first(np.arange(len(rows), dtype=np.uint64), 1)
    p = [(r.count("1") + 1) / (len(r) + 2) for r in rows]

    def worth(budget):
        return sum((1 - q**n - (1 - q) ** n) * q * (1 - q) ** 2 for q, n in zip(p, budget, strict=True))

    best = max(worth(b) for b in product(range(2, 10), repeat=len(rows)) if sum(b) == mean_k * len(rows))
    assert got.sum() == mean_k * len(rows)
    assert worth(got) == pytest.approx(best, rel=1e-9)


def test_unanimity_worked_example():
    rule = Unanimity((2, 4))
    o = Outcomes(
        np.arange(4, dtype=np.uint64), np.zeros((4, 4), bool), np.array([2, 2, 4, 2]),
        np.array([[3, 3, -2, -2], [3, 4, -2, -2], [1, 2, 3, 4], [-1, -1, -2, -2]]),
    )  # fmt: skip
    assert rule.more(o).tolist() == [0, 2, 0, 2]
    with pytest.raises(ValueError, match=r"^codes: got None; need answer codes"):
        rule.more(Outcomes(np.arange(1, dtype=np.uint64), np.zeros((1, 2), bool)))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: DynamicSampling(1, prompts=2), "n"),
        (lambda: DynamicSampling(2, prompts=0), "prompts"),
        (lambda: AERO(8, n_max=4), "n_max"),
        (lambda: AERO(prior=(0, 1)), "prior"),
        (lambda: GRESO(8, target=1.5), "target"),
        (lambda: ReinforceAdaSeq(3), "n"),
        (lambda: ReinforceAdaSeq(4, exit="soon"), "exit"),
        (lambda: ReinforceAdaSeq(64), "rounds"),
        (lambda: ReinforceAdaEst(1), "mean_k"),
        (lambda: ReinforceAdaEst(eps=0), "eps"),
        (lambda: PromptGDRO(edges=(0.5, 0.4)), "edges"),
        (lambda: RolloutGDRO(4, n_max=2), "n_max"),
        (lambda: SquareRootBudget(1), "mean_k"),
        (lambda: PilotCommit(lower=0.8, upper=0.2), "upper"),
        (lambda: Knapsack(8, n_max=4), "n_max"),
        (lambda: Unanimity((4, 2)), "grid"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, name):
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
        make()
