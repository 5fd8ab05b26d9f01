"""Arguments of trl-cgrpo 0.2.0, read as it meant them: a budget grid in the config becomes a rollout policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from conformal_core import APS, ConformalBudget, FirstSuccess
from conformal_core.thresholds import check_grid

__all__ = ["DEFAULT_GRID", "policy_from_config", "read_grid", "verifier_success"]

DEFAULT_GRID = (2, 4, 8, 16, 32)
_SCORES = ("aps", "first_success")


def read_grid(config: Any) -> None:
    """Resolve ``budget_grid``, ``delta`` and the sizes that follow from them, in place, before TRL checks its own fields."""
    if config.delta is not None and 0 < config.delta < 1:
        if config.miscoverage is not None:
            raise ValueError(
                f"delta: got {config.delta} beside miscoverage={config.miscoverage}; need one of the two; because delta below 1 is read as "
                "trl-cgrpo's name for miscoverage"
            )
        warnings.warn(
            f"delta: {config.delta} is read as miscoverage={config.miscoverage or config.delta}, its name here; TRL's delta is a clip "
            "bound above 1, and a value below 1 would stop every positive advantage from learning",
            FutureWarning,
            stacklevel=4,
        )
        config.miscoverage, config.delta = config.delta, None
        config.budget_grid = list(DEFAULT_GRID) if config.budget_grid is None else config.budget_grid
    if config.budget_grid is None:
        set_alone = [n for n in ("miscoverage", "num_calibration_samples") if getattr(config, n) is not None]
        if set_alone:
            raise ValueError(
                f"{set_alone[0]}: got {getattr(config, set_alone[0])} without budget_grid; need both; because they describe one policy "
                "(or pass a rollout_policy, which holds its own level)"
            )
        return
    if config.score not in _SCORES:
        raise ValueError(
            f"score: got {config.score!r}; need one of {', '.join(_SCORES)}; because 1 - pass rate after k draws is not the score that "
            "decides when to stop"
        )
    grid = list(check_grid(sorted(config.budget_grid)))
    config.budget_grid, k_max = grid, grid[-1]
    if config.num_generations == type(config).num_generations:
        config.num_generations = k_max
    if config.per_device_train_batch_size == type(config).per_device_train_batch_size:
        config.per_device_train_batch_size = max(32 // k_max, 1) * k_max


def policy_from_config(config: Any, calibration_dataset: Any) -> ConformalBudget | None:
    """The policy that ``budget_grid`` and its companions describe; ``None`` without a grid."""
    if config.budget_grid is None:
        return None
    have = 0 if calibration_dataset is None else len(calibration_dataset)
    n = have if config.num_calibration_samples is None else min(config.num_calibration_samples, have)
    if n < 1:
        raise ValueError("calibration_dataset: got no prompts; need some; because budget_grid describes a calibrated policy")
    return ConformalBudget(
        config.budget_grid,
        score=APS() if config.score == "aps" else FirstSuccess(),
        delta="auto" if config.miscoverage is None else config.miscoverage,
        multiplicity=config.multiplicity,
        epsilon=config.delta_margin,
        split=config.split_delta,
        n_calibration=n,
        recalibrate_every=config.recalibrate_every or 10**9,
        seed=config.seed,
    )


def verifier_success(verifier: Callable[..., Sequence[bool]]) -> Callable[[dict[str, Any], str], bool]:
    """``verifier(completions=[text], **example)`` as the question whether one response passes."""

    def passes(example: dict[str, Any], text: str) -> bool:
        verdict = verifier(completions=[text], **{k: v for k, v in example.items() if k != "prompt"})
        if len(verdict) != 1:
            raise ValueError(f"verifier: got {len(verdict)} results; need 1; because it was given one completion")
        return bool(verdict[0])

    return passes
