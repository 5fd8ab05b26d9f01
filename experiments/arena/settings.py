"""What is held equal, and the list of runs that follows from it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from .rules import budget, mask

__all__ = ["Run", "Settings"]

REGIMES = ("many", "few")
BUDGETS_BY = ("seconds", "cpu", "tokens", "prompts")
SCALES = ("group", "batch", "none")
#: Added to the seed of the runs that choose a learning rate, so that no seed of the comparison chose it.
TUNING_SEED = 10_000


@dataclass(frozen=True)
class Run:
    """One training: a budget rule, a mask rule, a regime, a seed and a learning rate."""

    regime: str
    rule: str
    mask: str
    seed: int
    lr: float
    tuning: bool = False

    @property
    def name(self) -> str:
        """Unique within a comparison; the name of its log."""
        return f"{'tune' if self.tuning else 'run'}.{self.regime}.{self.rule}.{self.mask}.lr{self.lr:g}.seed{self.seed}"


@dataclass(frozen=True)
class Settings:
    """A comparison.

    Parameters
    ----------
    rules, masks, seeds, regimes : tuples
        All combinations are run; regimes are ``"many"`` (fresh prompts at every step) and ``"few"`` (a pool of ``pool`` prompts, several
        epochs, with a hard tail).
    by, amount : str, float
        The budget of a run, calibration inside: ``"seconds"`` of wall-clock, ``"cpu"`` seconds of its process (on one thread the
        wall-clock of a free core, whatever else runs), ``"tokens"`` generated, or ``"prompts"``.
    responses : int
        Responses per update, the same for all: prompts per step are this over the mean responses per prompt at the start model.
    lrs : tuple of float
        Learning rates; each rule gets the one with the best validation accuracy in a run of ``tune_share`` of the budget, on a seed of
        its own.
    scale_rewards : str
        ``"group"``: centred rewards are divided by the group's standard deviation (TRL's default); ``"batch"``, ``"none"``.
    staleness : int
        Optimizer steps on one generation, each a pass over the whole of it (``num_iterations``).
    actor_delay : int
        The weights that sample are this many generations old.
    actor_dtype : str
        ``"bfloat16"``: the sampling weights are rounded, a stand-in for a foreign engine.
    """

    rules: tuple[str, ...] = ("fixed-4", "fixed-8", "fixed-32", "signal-4")
    masks: tuple[str, ...] = ("none",)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    regimes: tuple[str, ...] = REGIMES
    by: str = "seconds"
    amount: float = 45.0
    responses: int = 128
    lrs: tuple[float, ...] = (5e-5, 1e-4, 2e-4)
    tune_share: float = 0.5
    model: str = "embedded"
    pool: int = 200
    eval_prompts: int = 2000
    eval_samples: int = 8
    scale_rewards: str = "group"
    staleness: int = 1
    actor_delay: int = 0
    actor_dtype: str = "float32"
    out: str = "runs/compare"
    jobs: int = 2
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ``ValueError`` for anything that cannot work, before any model is loaded."""
        for key in self.rules:
            budget(key)
        for key in self.masks:
            mask(key)
        for name in ("rules", "masks", "seeds", "regimes", "lrs"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}: got {list(values)}; need at least one, none twice; because all combinations are run once")
        for regime in self.regimes:
            if regime not in REGIMES:
                raise ValueError(f"regimes: got {regime!r}; need some of {', '.join(REGIMES)}; because prompts are plenty or few")
        if self.by not in BUDGETS_BY:
            raise ValueError(f"by: got {self.by!r}; need one of {', '.join(BUDGETS_BY)}; because that is what is held equal")
        if self.scale_rewards not in SCALES:
            raise ValueError(
                f"scale_rewards: got {self.scale_rewards!r}; need one of {', '.join(SCALES)}; because advantages are divided by that"
            )
        if not (math.isfinite(self.amount) and self.amount > 0):
            raise ValueError(f"amount: got {self.amount!r}; need a positive number; because every run spends it")
        for lr in self.lrs:
            if not (math.isfinite(lr) and lr > 0):
                raise ValueError(f"lrs: got {lr!r}; need positive numbers; because they scale the updates")
        for seed in self.seeds:
            if not 0 <= seed < TUNING_SEED:
                raise ValueError(f"seeds: got {seed}; need 0 <= seed < {TUNING_SEED}; because larger ones choose learning rates")
        if not 0 < self.tune_share <= 1:
            raise ValueError(f"tune_share: got {self.tune_share!r}; need a share in (0, 1]; because tuning runs spend that much each")
        for name in ("responses", "pool", "eval_prompts", "eval_samples", "staleness", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}; need at least 1; because it counts")
        if self.actor_delay < 0:
            raise ValueError(f"actor_delay: got {self.actor_delay}; need at least 0; because it counts generations")
        if self.actor_dtype not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"actor_dtype: got {self.actor_dtype!r}; need float32, bfloat16 or float16; because weights are rounded to it")

    def tuning(self) -> list[Run]:
        """The runs that choose learning rates; none if there is one rate."""
        if len(self.lrs) == 1:
            return []
        seed = TUNING_SEED + self.seeds[0]
        return [Run(g, r, m, seed, lr, True) for g, r, m, lr in product(self.regimes, self.rules, self.masks, self.lrs)]

    def runs(self, results: list[dict[str, Any]]) -> list[Run]:
        """The runs of the comparison, with the learning rates that ``results`` of the tuning runs choose; seeds vary slowest, so that an
        interrupted comparison holds whole seeds."""
        out = []
        for seed, g, r, m in product(self.seeds, self.regimes, self.rules, self.masks):
            out.append(Run(g, r, m, seed, self.lr_of(g, r, m, results)))
        return out

    def lr_of(self, regime: str, rule: str, mask: str, results: list[dict[str, Any]]) -> float:
        """The rate with the best validation accuracy among the finished tuning runs."""
        if len(self.lrs) == 1:
            return self.lrs[0]
        tuned = [x for x in results if x["run"]["tuning"]]
        mine = [x for x in tuned if (x["run"]["regime"], x["run"]["rule"], x["run"]["mask"]) == (regime, rule, mask)]
        if len(mine) < len(self.lrs):
            raise ValueError(f"results: got {len(mine)} tuning runs of {rule}; need {len(self.lrs)}; because a rate is chosen among all")
        return float(max(mine, key=lambda x: x["validation"])["run"]["lr"])

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Settings:
        raw = json.loads(path.read_text())
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()})
