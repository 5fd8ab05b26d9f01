"""Tables: numbers for programs, text for people, one definition for console, HTML, CSV and pandas."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from .replays import Share

__all__ = ["Table", "number", "percents", "share"]


@dataclass(frozen=True)
class Table:
    """A table: ``columns``, ``rows`` of numbers, ``shown`` rows of text under ``heads``, and which rows matter most (``main``)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    heads: tuple[str, ...]
    shown: tuple[tuple[str, ...], ...]
    main: tuple[int, ...]
    caption: str = ""

    def frame(self) -> Any:
        """As a ``pandas.DataFrame``."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(self.columns))

    def csv(self) -> str:
        """As CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return out.getvalue()


def percents(x: float | None) -> str:
    """A share in percent."""
    return "" if x is None else f"{100 * x:.1f}"


def share(x: Share | None) -> str:
    """A share in percent with its interval."""
    return "" if x is None else f"{100 * x[0]:.1f} [{100 * x[1]:.0f}, {100 * x[2]:.0f}]"


def number(x: float) -> str:
    """Four digits."""
    return "∞" if x == float("inf") else f"{x:.4g}"
