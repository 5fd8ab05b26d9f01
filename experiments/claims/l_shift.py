"""L: distribution shift (C-GRPO, Theorem 14, Appendix F, Table 6)."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb

from conformal_core import conformal_rank, total_variation, tv_shift_bound

from . import printed as P
from .ledger import FALSE, HOLDS, PRINTED, Evidence, Figure, claim, search

F = Fraction


def shifted_coverage(p: list[Fraction], q: list[Fraction], n: int, d: Fraction) -> Fraction:
    """P(S <= S_(L)) for n calibration scores of law p and a new one of law q, both on the same ordered values."""
    rank = conformal_rank(n, d)
    if rank > n:
        return F(1)
    total = cdf = below = new = F(0)
    for a, b in zip(p, q, strict=True):
        cdf, new = cdf + a, new + b
        reached = sum((comb(n, i) * cdf**i * (1 - cdf) ** (n - i) for i in range(rank, n + 1)), F(0))
        total += new * (reached - below)
        below = reached
    return total


@claim(
    "L1", "Theorem 14, Eq. 19", "Coverage under shift is at least 1 - delta - d_TV - 1/(n + 1).", HOLDS,
    repaired="1 - delta - d_TV holds already and is attained.",
    guard="test_efficiency_and_auto_delta.py::test_L1_the_bound_without_the_extra_term_is_attained",
)  # fmt: skip
def l1(effort: int) -> Evidence:
    laws = [[F(w, sum(v)) for w in v] for v in product(range(4), repeat=3) if sum(v)]
    cases = [
        (p, q, n, d, shifted_coverage(p, q, n, d), tv_shift_bound(d, total_variation(p, q)))
        for p, q in product(laws[::2], laws[1::3])
        for n, d in ((1, F(1, 2)), (4, F(1, 5)), (4, F(2, 5)))
    ]
    stated = search((f"{p} -> {q}, n = {n}, delta = {d}", c >= b - F(1, n + 1)) for p, q, n, d, c, b in cases)
    before = [F(1, 10)] * 10
    after = [F(1, 10)] * 5 + [F(0)] * 3 + [F(1, 10), F(4, 10)]
    return Evidence(
        stated,
        None,
        search(((p, q, n, d), c >= b) for p, q, n, d, c, b in cases),
        (
            Figure("coverage where it is attained", sum(after[:8], F(0)), "1/2"),
            Figure("bound there", tv_shift_bound("0.2", total_variation(before, after)), "1/2"),
        ),
    )


@claim("L2", "Table 6", "Lower bounds and margins follow from delta, d_TV and n.", HOLDS)
def l2(effort: int) -> Evidence:
    def cases():
        for name, (tv, bound, seen, margin) in P.SHIFT.items():
            exact = 100 * (tv_shift_bound("0.12", tv) - F(1, 201))
            yield f"{name}: bound {float(exact):.2f}, printed {bound}", abs(exact - F(bound)) <= F(1, 20)
            yield f"{name}: margin {seen} - {bound}, printed {margin}", F(seen) - F(bound) == F(margin)

    return Evidence(search(cases(), PRINTED))


@claim(
    "L3", "Table 6", "A distance estimated from features of the prompts tests the bound.", FALSE,
    repaired="Only the distance of the score laws (or of the prompts) does.",
    guard="test_efficiency_and_auto_delta.py::test_L3_a_distance_between_features_bounds_nothing",
)  # fmt: skip
def l3(effort: int) -> Evidence:
    """Prompts are (feature, covered or not); the feature keeps its law while covered prompts are exchanged for others."""

    def cases(see_prompts):
        for j in range(5):
            before = [F(1, 2), F(1, 2), F(0), F(0)]
            after = [F(4 - j, 8), F(4 - j, 8), F(j, 8), F(j, 8)]
            features = [[v[0] + v[2], v[1] + v[3]] for v in (before, after)]
            tv = total_variation(before, after) if see_prompts else total_variation(*features)
            yield (
                f"share {F(j, 4)} of the prompts exchanged: distance {tv}, coverage {1 - F(j, 4)}",
                1 - F(j, 4) >= tv_shift_bound("0.1", tv),
            )

    return Evidence(search(cases(False)), None, search(cases(True)))
