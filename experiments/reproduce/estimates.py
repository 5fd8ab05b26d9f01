"""From finished runs to numbers with intervals, in the units of the papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arena.report import interval
from .item import Estimate

__all__ = ["at", "coverage_mean", "difference", "fraction", "masked", "mean_k", "of", "over_runs", "pass1", "pass_at", "savings", "vote_at"]

Record = Mapping[str, Any]


def of(records: Sequence[Record], variant: str, source: str | None = None) -> list[Record]:
    """The finished runs of a variant, by seed."""
    mine = [r for r in records if r["variant"] == variant and source in (None, r["source"])]
    return sorted(mine, key=lambda r: r["seed"])


def over_runs(values: Sequence[float], unit: str = "%", scale: float = 100.0, what: str = "") -> Estimate:
    """Mean over runs with a 95% Student interval, none for a single run; of shares (``"%"``) the part of it between 0 and 100."""
    values = [scale * v for v in values if math.isfinite(v)]
    if not values:
        return Estimate(math.nan, how="not measured", unit=unit)
    mean, low, high = interval(values)
    how = f"95% Student, {len(values)} runs" if len(values) > 1 else "one run"
    if len(values) == 1:
        low = high = math.nan
    elif unit == "%":
        low, high = max(low, 0.0), min(high, 100.0)
    return Estimate(mean, low, high, f"{how}{what}", unit)


def at(record: Record, statistic: str, k: int) -> list[float]:
    """``[value, low, high]`` of a run's test, NaN where it has none."""
    return list(record.get("test", {}).get(statistic, {}).get(str(k), [math.nan] * 3))


def fraction(records: Sequence[Record], statistic: str, k: int) -> Estimate:
    """A share in percent: over runs, or for a single run over its test prompts."""
    values = [at(r, statistic, k) for r in records]
    if len(values) == 1 and all(math.isfinite(x) for x in values[0]):
        value, low, high = (100 * x for x in values[0])
        return Estimate(value, low, high, "one run; 95% Chernoff over prompts")
    return over_runs([v[0] for v in values])


def pass1(record: Record) -> float:
    """Share of right responses of one run; NaN where it has no test."""
    return float(at(record, "pass", 1)[0])


def pass_at(records: Sequence[Record], k: int) -> Estimate:
    """Unbiased pass@k."""
    return fraction(records, "pass", k)


def vote_at(records: Sequence[Record], k: int) -> Estimate:
    """The papers' p@k of mathematics: pass@1, and a majority vote of k > 1."""
    return pass_at(records, 1) if k == 1 else fraction(records, "majority", k)


def mean_k(records: Sequence[Record]) -> Estimate:
    """Responses per training prompt over the last tenth of the steps."""
    return over_runs([r.get("mean_k_end", math.nan) for r in records], "responses", 1.0)


def savings(records: Sequence[Record], full: int = 32) -> Estimate:
    """``1 - mean k / 32`` over the last tenth of the steps; calibration is not in it."""
    return over_runs([1 - r.get("mean_k_end", math.nan) / full for r in records])


def masked(records: Sequence[Record]) -> Estimate:
    """Share of the responses shown to the mask that it rejected, over all updates."""
    totals = [r.get("totals", {}) for r in records]
    return over_runs([t["masked"] / t["masked_of"] for t in totals if t.get("masked_of")])


def difference(a: Sequence[Record], b: Sequence[Record], value: Callable[[Record], float], unit: str = "points") -> Estimate:
    """Paired over the seeds that both have."""
    left, right = ({r["seed"]: value(r) for r in rs} for rs in (a, b))
    shared = sorted(set(left) & set(right))
    return over_runs([left[s] - right[s] for s in shared], unit, 100.0, ", paired")


def coverage_mean(values: Sequence[float], unit: str = "%") -> Estimate:
    """Mean over random splits of one table, with the central 95% of the single splits (not an interval of the mean)."""
    x = 100 * np.asarray(values, float)
    low, high = np.quantile(x, [0.025, 0.975])
    return Estimate(float(x.mean()), float(low), float(high), f"central 95% of {x.size} single calibrations", unit)
