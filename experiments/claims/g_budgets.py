"""G: several budgets and several checkpoints (C-GRPO, Theorem 5, Appendices A and B)."""

from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np

from conformal_core import APS, calibrate_thresholds, clopper_pearson, conformal_rank, disjoint_split, min_calibration_size
from conformal_core.keys import mix64, uniforms

from ..simulate import PRESETS
from .a_split import memorising
from .laws import GRID, groups
from .ledger import CLOSED, ENUMERATED, EXTRA, FALSE, HOLDS, SIMULATED, Evidence, Figure, claim, search, together

F = Fraction
M = len(GRID)


def joint_miss(scores: np.ndarray, grid: tuple[int, ...], d: Fraction, rule: str) -> Fraction:
    """P(some S_k > q_k) when each row is equally often the new prompt."""
    missed = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "n: got")
        for i in range(len(scores)):
            q = np.array(calibrate_thresholds(np.delete(scores, i, 0), grid, d, rule).q)
            missed += bool((scores[i] > q).any())
    return F(missed, len(scores))


def matrices(count: int, columns: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 2 + i % 12, (3 + i % 14, columns)).astype(float) for i in range(count)]


def spread(n: int, columns: int) -> np.ndarray:
    """Scores whose largest values lie in different rows for every budget: disjoint misses."""
    return np.column_stack([np.roll(np.arange(n), -j) for j in range(columns)]).astype(float)


@claim(
    "G1", "Theorem 5", "At level delta/M per budget the gold is in every C_k with probability 1 - delta, at any data-dependent budget.",
    HOLDS,
    assumption="+inf when L > n; q >= 1 never stops",
    guard="test_statements_that_hold.py::test_statement_3_wrong_commits_at_an_adaptive_budget",
)  # fmt: skip
def g1(effort: int) -> Evidence:
    cases = [*matrices(40 * effort, 3), spread(10, 3), spread(25, 3)]
    return Evidence(
        search(
            (f"scores {s.tolist()}, delta = {d}", joint_miss(s, (2, 4, 8), d, "bonferroni") <= d) for s in cases for d in (F(1, 5), F(3, 5))
        )
    )


@claim(
    "G2", "Theorem 5", "At level delta per budget the bound on a miss at some budget is M delta, and it is attained.", HOLDS,
    repaired="One U per prompt, shared over answers and budgets, keeps the misses together.",
    guard="test_sets_and_multiplicity.py::test_G2_level_delta_at_each_budget_misses_M_delta_in_the_limit",
)  # fmt: skip
def g2(effort: int) -> Evidence:
    stated = search(
        (f"{s.tolist()}", joint_miss(s, (2, 4, 8), F(1, 5), "per_budget") <= F(3, 5)) for s in [*matrices(40, 3), spread(10, 3)]
    )
    return Evidence(
        stated,
        figures=(
            Figure("disjoint misses, n = 9, M = 5, delta = 1/10", joint_miss(spread(10, 5), GRID, F(1, 10), "per_budget"), "1/2"),
            Figure("fresh U per budget, perfect policy, delta = .12, large n", 1 - (1 - F("0.12")) ** M, "0.472"),
        ),
    )


def perfect(fresh: bool) -> Fraction:
    """Union of misses for a policy that is always right (score = U), n = 200, delta = .12."""
    u = np.linspace(0.1, 0.9, 5)
    scores = APS().gold_scores(groups(np.zeros((5, 32), int)), GRID, u)
    comonotone = bool((scores == scores[:, :1]).all() and (scores[:, 0] == u).all())
    cover = F(conformal_rank(200, "0.12"), 201)
    return 1 - cover**M if fresh else (1 - cover if comonotone else F(1))


@claim(
    "G3", "Appendix B", "Misses at several budgets are strongly dependent, so the union bound is loose.", EXTRA,
    assumption="one U per prompt, shared over budgets",
    guard="test_sets_and_multiplicity.py::test_G2_level_delta_at_each_budget_misses_M_delta_in_the_limit",
)  # fmt: skip
def g3(effort: int) -> Evidence:
    def cases(kinds):
        for fresh in kinds:
            yield (
                f"{'fresh U per budget' if fresh else 'one U'}: {float(perfect(fresh)):.3f} of {float(F('0.6'))}",
                perfect(fresh) <= F("0.3"),
            )

    return Evidence(
        search(cases((False, True)), CLOSED), search(cases((False,)), CLOSED), figures=(Figure("union, fresh U", perfect(True), "0.47"),)
    )


def simulated_union(name: str, rule: str, trials: int) -> tuple[int, int]:
    """Fresh prompts missed at some budget, each with a calibration of its own: n = 200, delta = .12, one U, independent trials."""
    missed = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "n: got")
        for start in range(0, trials, 100):
            ids = mix64(np.arange(201 * start, 201 * min(start + 100, trials), dtype=np.uint64))
            scores = APS().gold_scores(PRESETS[name].table(ids), GRID, uniforms(ids, seed=0, stream="claims"))
            for block in scores.reshape(-1, 201, M):
                missed += bool((block[0] > np.array(calibrate_thresholds(block[1:], GRID, "0.12", rule).q)).any())
    return missed, trials


@claim("G4", "Appendix B", "Bonferroni over budgets is over-conservative.", HOLDS, repaired="Simultaneous calibration spends delta.")
def g4(effort: int) -> Evidence:
    def cases():
        for n in (60, 100, 200):
            s = np.column_stack([np.arange(n + 1.0)] * M)
            bonferroni, joint = (joint_miss(s, GRID, F("0.12"), rule) for rule in ("bonferroni", "max_score"))
            yield f"one U, n = {n}: {bonferroni} against {joint}", bonferroni <= F("0.12") / M and joint > 4 * bonferroni

    def simulated():
        for name in ("mid", "strong")[:effort]:
            for rule in ("bonferroni", "max_rank")[:effort]:
                missed, trials = simulated_union(name, rule, 300 * effort)
                low, high = clopper_pearson(missed, trials, "0.99")
                text = f"{name}, {rule}: {missed} of {trials} prompts missed at some budget ({low:.3f} to {high:.3f})"
                yield text, high < 0.06 if rule == "bonferroni" else low > 0.05 and high < 0.14

    return Evidence(
        together(search(cases(), ENUMERATED), search(simulated(), SIMULATED)),
        figures=(Figure("golds sampled that n = 200, delta = .12 needs", conformal_rank(200, F("0.12") / M), "197"),),
    )


@claim(
    "G5", "Theorem 5, last sentence", "Level delta/(M T_c) holds over checkpoints at once even though they share calibration prompts.",
    FALSE,
    repaired="It holds for a policy sequence independent of the calibration prompts, or fresh prompts per checkpoint.",
    guard="test_statements_that_hold.py::test_statement_7_only_for_a_policy_independent_of_the_calibration_prompts",
)  # fmt: skip
def g5(effort: int) -> Evidence:
    stated = search(
        (f"n = 1, delta = 1/2, {m} prompts: coverage {memorising(m, True)} after one checkpoint", memorising(m, True) >= F(1, 2))
        for m in (2, 3, 5, 50)
    )
    repaired = search((m, memorising(m, False) >= F(1, 2)) for m in (2, 3, 5, 50))
    return Evidence(stated, None, repaired, (Figure("coverage, 50 prompts", memorising(50, True), "1/50"),))


@claim(
    "G6", "Theorem 5", "Level delta/(M T_c) is usable with the paper's 200 (or 100) calibration prompts.", FALSE,
    repaired="It needs n >= M T_c / delta - 1 = 249.",
    guard="test_sets_and_multiplicity.py::test_G6_and_A1_checkpoints_need_that_many_prompts",
)  # fmt: skip
def g6(effort: int) -> Evidence:
    level, need = F("0.12") / 30, min_calibration_size("0.12", budgets=5, checkpoints=6)
    stated = search((f"n = {n}: rank {conformal_rank(n, level)}", conformal_rank(n, level) <= n) for n in (100, 200))
    repaired = search((n, (conformal_rank(n, level) <= n) == (n >= need)) for n in range(1, 400))
    return Evidence(stated, None, repaired, (Figure("prompts needed", need, "249"),))


@claim(
    "G7", "Appendix A", "delta_auto / M is stricter than a fixed delta of .05 and brings saturation back.", HOLDS,
    guard="test_sets_and_multiplicity.py::test_G7_auto_delta_over_five_budgets_is_stricter_than_a_fixed_one",
)  # fmt: skip
def g7(effort: int) -> Evidence:
    cases = ((d, conformal_rank(200, F(d) / M), conformal_rank(200, "0.05")) for d in ("0.05", "0.067", "0.12", "0.188"))
    return Evidence(search((f"delta = {d}: rank {a} against {b}", F(d) / M < F(1, 20) and a > b) for d, a, b in cases))


@claim(
    "G8", "Section 5.7", "The disjoint split and Theorem 5 restore exactness.", FALSE,
    repaired="They restore validity, for one checkpoint.",
    guard="test_sets_and_multiplicity.py::test_G8_split_and_bonferroni_are_valid_but_not_exact",
)  # fmt: skip
def g8(effort: int) -> Evidence:
    d = F("0.12")
    sizes = [len(disjoint_split(n, seed=0)[1]) for n in (100, 200, 400)]
    gaps = {n: 1 - joint_miss(np.column_stack([np.arange(n + 1.0)] * M), GRID, d, "bonferroni") - (1 - d) for n in sizes}
    stated = search(
        (f"{n} prompts in the second half, one U: coverage is {gap} above 1 - delta", gap <= F(1, n + 1)) for n, gap in gaps.items()
    )
    return Evidence(stated, None, search((n, gap >= 0) for n, gap in gaps.items()))
