"""What one table or figure of a paper says, and how it is measured again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Estimate", "Item", "Line", "Number", "Unmet", "lines"]

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Number:
    """A number as printed: its name within the item, value, unit, and where in the paper it stands."""

    name: str
    value: float
    unit: str
    place: str


@dataclass(frozen=True)
class Unmet:
    """Numbers that cannot be met, why, and the ids under which the reason is proved or recomputed (empty: it is one of means)."""

    what: str
    why: str
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """A measured value with its interval; ``how`` says over what the interval is."""

    value: float
    low: float = math.nan
    high: float = math.nan
    how: str = ""
    unit: str = "%"


@dataclass(frozen=True)
class Line:
    """One line of a report: paper and ours side by side, either of which may be missing (NaN)."""

    name: str
    unit: str
    paper: float
    place: str
    ours: float
    low: float
    high: float
    how: str


@dataclass(frozen=True)
class Item:
    """A table, figure or ablation.

    Parameters
    ----------
    id, paper, place, title : str
        Name on the command line, "C-GRPO" or "CARM", where it is printed, and its subject.
    measures : str
        What is measured, in one sentence.
    numbers : tuple of Number
        Everything printed that is compared.
    small : str
        What stands in for the paper's model, data and length on this CPU.
    needs : tuple of (source, variant)
        Runs it reads; runs are shared between items.
    build : callable
        Finished runs to named estimates, the names those of ``numbers`` where there is one.
    draw : callable
        Finished runs and lines to a figure.
    unmet : tuple of Unmet
        What cannot be met.
    """

    id: str
    paper: str
    place: str
    title: str
    measures: str
    numbers: tuple[Number, ...]
    small: str
    needs: tuple[tuple[str, str], ...]
    build: Callable[[Records], dict[str, Estimate]]
    draw: Callable[[Records, Sequence[Line]], Figure]
    unmet: tuple[Unmet, ...] = field(default=())


def lines(item: Item, estimates: Mapping[str, Estimate]) -> tuple[Line, ...]:
    """The paper's numbers in their order, measured or not, then what was measured beyond them."""
    out = []
    for n in item.numbers:
        e = estimates.get(n.name, Estimate(math.nan, how="not run at this scale"))
        out.append(Line(n.name, n.unit, n.value, n.place, e.value, e.low, e.high, e.how))
    printed = {n.name for n in item.numbers}
    for name, e in estimates.items():
        if name not in printed:
            out.append(Line(name, e.unit, math.nan, "", e.value, e.low, e.high, e.how))
    return tuple(out)
