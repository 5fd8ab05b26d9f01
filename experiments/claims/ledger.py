"""What a claim is, what counts as evidence for or against it, and how a verdict follows from the evidence.

A verdict is never written down: :attr:`Evidence.verdict` is a function of what a search found when it ran.  The verdict that is expected
stands beside it, and a claim *agrees* if both are the same, every recorded figure came out as recorded, and the repair has no exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

HOLDS = "holds"
EXTRA = "holds under an assumption"
FALSE = "false as stated"

EXACT = "exact enumeration in Fractions"
ENUMERATED = "exhaustive enumeration"
CLOSED = "closed form"
HYPOTHESIS = "search by Hypothesis"
SIMULATED = "simulation with an exact interval"
PRINTED = "arithmetic on the printed numbers"


@dataclass(frozen=True)
class Search:
    """How many cases of a statement were tried, how many contradict it, and the first of those in the order tried (small ones first)."""

    tried: int
    failed: int
    smallest: str | None
    method: str

    @property
    def clean(self) -> bool:
        return self.tried > 0 and self.failed == 0


def search(cases: Iterable[tuple[object, object]], method: str = EXACT) -> Search:
    """``cases`` yields (description, whether the statement holds there)."""
    tried = failed = 0
    smallest = None
    for case, ok in cases:
        tried += 1
        if not ok:
            failed += 1
            smallest = str(case) if smallest is None else smallest
    return Search(tried, failed, smallest, method)


class Refuted(Exception):
    """The statement fails on the case that is being tried."""


def shrunk(strategy: Any, holds: Callable[[Any], object], examples: int) -> Search:
    """Search by Hypothesis over ``strategy``; the counterexample is the smallest that shrinking reaches."""
    from hypothesis import HealthCheck, Phase, given, settings

    counts, smallest = {"tried": 0, "failed": 0}, None

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def attempt(case: Any) -> None:
        nonlocal smallest
        counts["tried"] += 1
        if not holds(case):
            counts["failed"] += 1
            smallest = str(case)
            raise Refuted(smallest)

    try:
        attempt()
    except Refuted as found:
        smallest = str(found)
    return Search(counts["tried"], counts["failed"], smallest, HYPOTHESIS)


def together(first: Search, second: Search) -> Search:
    """Both searches as one, their methods named."""
    return Search(
        first.tried + second.tried, first.failed + second.failed, first.smallest or second.smallest, f"{first.method}; {second.method}"
    )


@dataclass(frozen=True)
class Figure:
    """A number computed now beside the one on record; ``"27/32"`` and integers are compared exactly, decimals to their last digit."""

    name: str
    computed: float | Fraction | int
    recorded: str

    @property
    def agrees(self) -> bool:
        if "." not in self.recorded:
            return Fraction(self.computed) == Fraction(self.recorded)
        digits = len(self.recorded.rpartition(".")[2])
        return bool(abs(float(self.computed) - float(self.recorded)) <= 0.5 * 10.0**-digits * (1 + 1e-6))

    @property
    def shown(self) -> str:
        exact = isinstance(self.computed, (int, Fraction)) and ("." not in self.recorded)
        return str(self.computed) if exact else f"{float(self.computed):.6g}"


@dataclass(frozen=True)
class Evidence:
    """``stated``: the statement as in the paper; ``assuming``: the same on a smaller domain; ``repaired``: the statement in its place."""

    stated: Search
    assuming: Search | None = None
    repaired: Search | None = None
    figures: tuple[Figure, ...] = ()

    @property
    def verdict(self) -> str:
        if self.stated.clean:
            return HOLDS
        return EXTRA if self.assuming is not None and self.assuming.clean else FALSE

    @property
    def repair_holds(self) -> bool:
        return self.repaired is None or self.repaired.clean


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.  ``check(effort)`` runs the search: effort 1 is quick, larger ones try more cases of random searches."""

    id: str
    place: str
    says: str
    expected: str
    repaired: str
    assumption: str
    guard: str
    check: Callable[[int], Evidence]


@dataclass(frozen=True)
class Result:
    claim: Claim
    evidence: Evidence
    seconds: float

    @property
    def agrees(self) -> bool:
        e = self.evidence
        return e.verdict == self.claim.expected and e.repair_holds and all(f.agrees for f in e.figures)


#: Every claim by id, in the order of the ledger.
LEDGER: dict[str, Claim] = {}
#: Guard of claims without a test of their own elsewhere: the ledger entry itself, run as a test.
SELF = "tests/experiments/test_claims.py::test_the_verdict_is_the_expected_one"


def claim(
    id: str, place: str, says: str, expected: str, *, repaired: str = "", assumption: str = "", guard: str = SELF
) -> Callable[[Callable[[int], Evidence]], Callable[[int], Evidence]]:
    """Register the decorated ``check(effort) -> Evidence`` under ``id``."""

    def register(check: Callable[[int], Evidence]) -> Callable[[int], Evidence]:
        if id in LEDGER:
            raise ValueError(f"id: got {id} twice; need one entry per claim; because --claim names it")
        test = guard if guard.startswith("tests/") else f"tests/claims/{guard}"
        LEDGER[id] = Claim(id, place, says, expected, repaired, assumption, test, check)
        return check

    return register


def run(entry: Claim, effort: int = 1) -> Result:
    start = time.perf_counter()
    evidence = entry.check(effort)
    return Result(entry, evidence, time.perf_counter() - start)
