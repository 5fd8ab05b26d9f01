"""Every statement that holds, and every claim of the C-GRPO paper that is true, repaired or refuted, has a test named after it here."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Ids: A split conformal, E the set, F false stops, G several budgets, H efficiency, I learning signal, J automatic delta, L shift and
#: printed numbers, N pass@k; S1-S7 the statements that hold.
CLAIMS = [
    f"{letter}{i}" for letter, last in (("A", 15), ("E", 4), ("F", 4), ("G", 8), ("H", 9), ("I", 5), ("J", 7)) for i in range(1, last + 1)
]
STATEMENTS = [f"S{i}" for i in range(1, 8)]
#: Claims that are another one's case.
SAME_AS = {
    "A8": "A14",  # thresholds that strictly fall as the model improves
    "F4": "F2",  # marginal, not given a stop
    "H7": "H6",  # nested stopping events
}
#: Of the numbers, those that state something beyond arithmetic on printed figures.
NUMBERS = ["L1", "L2", "L3", "N1"]


@lru_cache
def names() -> dict[str, set[str]]:
    """Ids by the tests whose names hold them: ``test_A2_and_G1_...`` names two, ``test_statement_5_...`` names S5."""
    found: dict[str, set[str]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                words = node.name.removeprefix("test_").split("_")
                head = [w for w in words if re.fullmatch(r"[A-Z]\d+", w)]
                if words[0] == "statement" and words[1].isdigit():
                    head.append(f"S{words[1]}")
                for claim in head:
                    found.setdefault(claim, set()).add(f"{path.name}::{node.name}")
    return found


@pytest.mark.parametrize("claim", [*CLAIMS, *STATEMENTS, *NUMBERS])
def test_has_a_test_named_after_it(claim: str) -> None:
    assert names().get(SAME_AS.get(claim, claim)), claim
