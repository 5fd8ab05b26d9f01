"""S: beyond both papers: signal stopping, cheap and streaming calibration, joint thresholds, risk control, calibrated masks."""

from __future__ import annotations

import warnings
from collections import Counter
from fractions import Fraction
from itertools import product
from math import inf, prod

import numpy as np

from carm_core import CARM, calibrated_tau, carm_bound, carm_score, signed_mean, signed_mean_bound
from conformal_core import (
    ConformalBudget,
    FirstSuccess,
    Outcomes,
    SignalBudget,
    StreamWindow,
    UntilMixed,
    adaptive_level,
    calibrate_thresholds,
    calibration_rollout,
    k_mix,
    max_rank,
    replay,
)

from .e_sets import tables
from .g_budgets import matrices
from .laws import groups
from .ledger import CLOSED, ENUMERATED, EXTRA, FALSE, HOLDS, SIMULATED, Evidence, Figure, claim, search, shrunk, together
from .m_carm import BANDS, ones, outside, random_responses

F = Fraction
K = 4
PATHS = list(product((False, True), repeat=K))


def blind(passes: np.ndarray, drawn: np.ndarray | None = None) -> Outcomes:
    """Outcomes of which only the first ``drawn`` are seen; cells beyond hold the opposite verdict."""
    ids = np.arange(len(passes), dtype=np.uint64)
    if drawn is None:
        return Outcomes(ids, passes)
    return Outcomes(ids, np.where(np.arange(passes.shape[1]) < drawn[:, None], passes, ~passes), drawn=drawn)


def clock(calibration: np.ndarray, d: Fraction) -> SignalBudget:
    policy = SignalBudget(range(1, K + 1), delta=d, calibration="offline", n_calibration=100)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "n_?(calibration)?: got")
        policy.calibrate(blind(calibration))
    return policy


@claim(
    "S1", "signal stopping", "P(a prompt that would have become mixed by K_max is cut off) <= delta.", HOLDS,
    guard="test_signal_stopping.py::test_probability_of_losing_a_group_is_at_most_delta",
)  # fmt: skip
def s1(effort: int) -> Evidence:
    table = blind(np.array(PATHS))
    mixed = k_mix(table.passes)
    scores = np.where(mixed > 0, mixed - 1, 0)
    example = {int(s): np.array(PATHS)[scores == s][0] for s in np.unique(scores)}
    lost = {}
    for n, d in ((3, F(1, 4)), (3, F(1, 2)), (1, F(3, 5)), (4, F(1, 5))):
        for calibration in product(example, repeat=n):
            if list(calibration) == sorted(calibration):
                drawn = replay(clock(np.array([example[s] for s in calibration]), d), table).drawn
                lost[d, n, calibration] = drawn < mixed

    def cases():
        for rates in ({F(1, 3): F(1)}, {F(0): F(1, 4), F(1, 2): F(1, 2), F(9, 10): F(1, 4)}, {F(1, 10): F(1)}, {F(1, 2): F(1)}):
            law = [sum(w * p ** sum(path) * (1 - p) ** (K - sum(path)) for p, w in rates.items()) for path in PATHS]
            mass = Counter()
            for s, w in zip(scores, law, strict=True):
                mass[int(s)] += w
            for n, d in ((1, F(3, 5)), (3, F(1, 4)), (3, F(1, 2)), (4, F(1, 5))):
                total = sum(
                    prod(mass[s] for s in c) * sum(w for w, gone in zip(law, lost[d, n, tuple(sorted(c))], strict=True) if gone)
                    for c in product(example, repeat=n)
                )
                yield f"pass rates {[str(p) for p in rates]}, n = {n}, delta = {d}: {total}", total <= d

    return Evidence(search(cases()))


@claim(
    "S2", "early-stopped calibration", "Calibration that stops each group once its score is known gives the thresholds of full sampling.",
    HOLDS,
    guard="test_cheap_calibration.py::test_early_stopped_signal_calibration_equals_full_sampling",
)  # fmt: skip
def s2(effort: int) -> Evidence:
    def cases():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "n: got")
            for rows in product(PATHS, repeat=2):
                full = np.array([*rows, (True, False, False, True)])
                for convention in ("paper", "failure_above_success"):
                    score, grid = FirstSuccess(convention), (2, K)
                    drawn = replay(calibration_rollout(score, grid), blind(full)).drawn
                    s = [score.gold_scores(o, grid, np.zeros(3)) for o in (blind(full), blind(full, drawn))]
                    ok = np.array_equal(*s) and len({calibrate_thresholds(x, grid, "1/2").q for x in s}) == 1
                    yield f"first success, {full.astype(int).tolist()}", ok
        for rows in product(PATHS, repeat=1):
            full = np.array([*rows, (True, False, False, True), (False, False, True, False)])
            drawn = replay(UntilMixed(range(1, K + 1)), blind(full)).drawn
            a, b = (
                SignalBudget((2, K), delta="1/4", calibration="offline", n_calibration=9),
                SignalBudget((2, K), delta="1/4", calibration="offline", n_calibration=9),
            )
            a.calibrate(blind(full))
            b.calibrate(blind(full, drawn))
            yield f"signal, {full.astype(int).tolist()}", a.metrics() == b.metrics() and (drawn <= K).all()

    return Evidence(search(cases(), ENUMERATED))


@claim(
    "S3", "calibration on the training stream", "A window of past scores keeps level delta.", EXTRA, assumption="the policy does not drift",
    repaired="Under any drift an adaptive level keeps the average error within (1 + gamma)/(gamma T) of delta.",
    guard="test_over_time.py::test_adaptive_level_bounds_the_average_error_of_any_sequence",
)  # fmt: skip
def s3(effort: int) -> Evidence:
    still = [F(1, 2), F(1, 3), F(1, 6)]

    def missed(fresh, d, n):
        total = F(0)
        for scores in product(range(3), repeat=n):
            window = StreamWindow(d, n)
            for step, s in enumerate(scores):
                window.extend([float(s)], step)
            total += prod((still[s] for s in scores), start=F(1)) * sum((w for s, w in enumerate(fresh) if s > window.threshold), F(0))
        return total

    def cases(laws):
        for n, d in ((2, F(2, 5)), (4, F(2, 5)), (4, F(1, 5))):
            for fresh in laws:
                m = missed(fresh, d, n)
                yield (
                    f"scores move from {[str(w) for w in still]} to {[str(w) for w in fresh]}, n = {n}, delta = {d}: {float(m):.3f} missed",
                    m <= d,
                )

    def adaptive():
        for seed in range(30 * effort):
            rng, level, errors = np.random.default_rng(seed), adaptive_level("1/10", "1/5"), F(0)
            for t in range(60):
                scores, q = rng.normal(0.05 * t, 1, 20), level.threshold(rng.normal(0, 1, 40))
                share = F(0) if q == inf else F(int(sum(s > q or q == -inf for s in scores)), 20)
                errors += share
                level = level.after(share)
                if abs(errors / level.updates - F(1, 10)) > level.bound:
                    break
            yield f"seed {seed}", abs(errors / 60 - F(1, 10)) <= F(6, 5) / (F(1, 5) * 60) and t == 59

    drifting = [F(1, 6), F(1, 3), F(1, 2)]
    return Evidence(search(cases([still, drifting])), search(cases([still])), search(adaptive(), SIMULATED))


def leave_out(scores: np.ndarray, d: Fraction, corrected: bool) -> Fraction:
    hits = sum(bool((row <= max_rank(np.delete(scores, i, 0), d, corrected=corrected).q).all()) for i, row in enumerate(scores))
    return F(hits, len(scores))


@claim(
    "S4", "joint thresholds by ranks",
    "The L-th smallest of the prompts' largest ranks gives thresholds that hold at all budgets together.", FALSE,
    repaired="One rank higher does: each prompt's rank among the others is short by at most one.",
    guard="tests/conformal_core/test_simultaneous.py::test_max_rank_without_the_plus_one_falls_short",
)  # fmt: skip
def s4(effort: int) -> Evidence:
    from hypothesis import strategies as st

    scores = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=6)
    levels = st.sampled_from([F(1, 4), F(1, 3), F(1, 2)])

    def covers(corrected):
        return lambda case: leave_out(np.array(case[0], float), case[1], corrected) >= 1 - case[1]

    stated, repaired = (shrunk(st.tuples(scores, levels), covers(c), 200 * effort) for c in (False, True))
    cases = matrices(60 * effort, 3)
    wide = search(((s.tolist(), d), leave_out(s, d, True) >= 1 - d) for s in cases for d in (F(1, 4), F(1, 3), F(1, 2)))
    return Evidence(stated, None, together(wide, repaired))


@claim(
    "S5", "risk control of the stop", "P(stopped on a wrong answer, at whatever budget) <= delta.", HOLDS,
    guard="tests/conformal_core/test_risk_control.py::test_risk_is_bounded_for_every_exchangeable_law",
)  # fmt: skip
def s5(effort: int) -> Evidence:
    rng = np.random.default_rng(3)
    cases = list(tables(((3, 2), (4, 2)))) + [rng.integers(0, 2 + i % 2, (3 + i % 8, 4)) for i in range(60 * effort)]

    def wrong(codes, d):
        o, grid, count = groups(codes), (1, 2, 4)[: 2 + (codes.shape[1] == 4)], 0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "n: got")
            for i in range(o.n):
                policy = ConformalBudget(grid, delta=d, multiplicity="risk_control", n_calibration=100)
                policy.calibrate(o.take(np.delete(np.arange(o.n), i)))
                count += policy.audit(o.take(np.array([i])))["false_stop"][0]
        return F(count, o.n)

    return Evidence(
        search(
            ((f"answers {c.tolist()}, delta = {d}: {w}", w <= d) for c in cases for d in (F(1, 3), F(1, 2)) for w in [wrong(c, d)]),
            ENUMERATED,
        )
    )


@claim(
    "S6",
    "sharper certificate of CARM",
    "Knowing d and g of a batch, the certified share outside is never above Proposition 3's.",
    HOLDS,
    guard="test_carm.py::test_signed_mean_bound_is_tight",
)
def s6(effort: int) -> Evidence:
    def cases():
        for z, band in product(random_responses(effort), BANDS):
            d, g = float(carm_score(z, ones(z))[0]), float(signed_mean(z, ones(z))[0])
            minus, plus, _ = outside(z, band)
            sharp = float(signed_mean_bound(d, g, band))
            yield f"z = {z[0].tolist()}, band {band}", minus + plus - 1e-12 <= sharp <= carm_bound(float(np.exp(d)), band) + 1e-9

    return Evidence(
        search(cases(), CLOSED),
        figures=(Figure("both masks, tau 1.02 and 1.005, percent", 100 * carm_bound(1.02, geomean_tau=1.005), "8.56"),),
    )


@claim(
    "S7", "calibrated tau", "A response known to be on-policy is rejected with probability at most delta.", HOLDS,
    guard="tests/carm_core/test_carm_certificates.py::test_calibrated_tau_rejects_a_share_of_at_most_delta_over_all_exchanges",
)  # fmt: skip
def s7(effort: int) -> Evidence:
    def cases():
        for seed, n, d in product(range(5 * effort), (4, 9, 19), (F(1, 10), F(1, 5), F(1, 2))):
            rng = np.random.default_rng(seed)
            z = rng.normal(0, 0.01, (n + 1, 6)) if seed else 0.01 + 1e-5 * rng.permutation(n + 1)[:, None] * np.ones(6)
            scores = carm_score(z, ones(z))
            rejected = 0
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*got")
                for i in range(n + 1):
                    tau = calibrated_tau(np.delete(scores, i), d).tau
                    rejected += int(tau < inf and not CARM(tau).keep(z[i : i + 1], ones(z[:1]))[0])
            yield f"seed {seed}, n = {n}, delta = {d}: {rejected} of {n + 1}", F(rejected, n + 1) <= d

    return Evidence(search(cases(), ENUMERATED))
