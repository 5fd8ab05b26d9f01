"""How thresholds move over the run: windows of steps, each calibrated by itself."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_core import (
    APS,
    FirstSuccess,
    SignalBudget,
    calibrate_thresholds,
    min_calibration_size,
    replay,
    risk_control,
    uniforms,
)

from .groups import Groups
from .replays import Share

__all__ = ["Window", "windows_of"]


@dataclass(frozen=True)
class Window:
    """Groups of consecutive steps: thresholds calibrated on them, and how the first window's signal clock errs on them."""

    first_step: int
    last_step: int
    groups: int
    pass_rate: float
    no_signal: float
    thresholds: Mapping[str, float]
    lost_by_first_clock: Share | None


def windows_of(
    groups: Groups, fits: NDArray[np.int64], width: int, grid: tuple[int, ...], delta: str, count: int, max_groups: int, seed: int
) -> tuple[Window, ...]:
    """Thresholds over the run: each window of steps calibrated by itself."""
    need = max(2 * min_calibration_size(delta), 20)
    steps = np.unique(groups.step[fits])
    count = min(count, steps.size, fits.size // need)
    if count < 2:
        return ()
    found: list[Window] = []
    first: SignalBudget | None = None
    ordered = fits[np.argsort(groups.step[fits], kind="stable")]
    bounds = np.searchsorted(groups.step[ordered], steps[[i * steps.size // count for i in range(count)]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for a, b in zip(bounds, [*bounds[1:], ordered.size], strict=True):
            rows = ordered[a:b][: max(max_groups // count, need)]
            table = groups.outcomes(rows, width)
            clock = SignalBudget(grid, delta=delta, calibration="offline", n_calibration=max(table.n, min_calibration_size(delta)))
            clock.calibrate(table)
            shown: dict[str, float] = {"signal f": float(clock.metrics()["f"])}
            if table.codes is not None:
                shown["lambda"] = float(risk_control(table, grid, delta).lam)
            u = uniforms(table.prompt_ids, seed=seed, stream="aps")
            score = APS() if table.codes is not None else FirstSuccess()
            q = calibrate_thresholds(score.gold_scores(table, grid, u), grid, delta)
            shown |= {f"q_{k}": float(x) for k, x in zip(grid, q.q, strict=True)}
            lost: Share | None = None
            if first is not None:
                report = replay(first, table)
                lost = (report.lost_groups / report.n, *report.intervals["lost_groups"])
            first = first or clock
            found.append(
                Window(
                    first_step=int(groups.step[rows[0]]),
                    last_step=int(groups.step[rows[-1]]),
                    groups=int(rows.size),
                    pass_rate=float(table.passes.mean()),
                    no_signal=float((~groups.signal[rows]).mean()),
                    thresholds=shown,
                    lost_by_first_clock=lost,
                )
            )
    return tuple(found)
