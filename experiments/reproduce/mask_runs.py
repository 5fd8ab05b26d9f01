"""The runs behind CARM's tables and figures: every mask on responses that rounded weights sampled, up to eight updates ago."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import configs
from ..train import override
from .source import Source, Variant
from .training import Size, resized, train

__all__ = ["CARM_TAUS", "CONFIGS", "GEOMEAN_TAUS", "MASKS", "SOURCE"]

CARM_TAUS = (1.02, 1.025, 1.03, 1.04)
GEOMEAN_TAUS = (1.0025, 1.005, 1.01, 1.02, 1.03)
CONFIGS = {"4B": "carm/qwen3.5-4b-dapo_math", "9B": "carm/qwen3.5-9b-dapo_math", "code": "carm/qwen3.5-9b-taco"}
#: 32 prompts x 8 responses, 8 optimizer steps per generation, sampled by weights rounded to bfloat16.  At this learning rate CARM
#: rejects about half of the responses at 1.02, as in the paper.
SIZES = {"small": Size(240, 32, 8, 0, 2000, 400, 16, 7e-5), "tiny": Size(2, 4, 2, 0, 40, 10, 4, 1e-4)}
ACTOR = (0, "bfloat16")


@dataclass(frozen=True)
class MaskRule:
    """A mask as in the configuration, with its threshold."""

    rule: str
    tau: float | None = None
    conditioning: str = "both"

    @property
    def _signs(self) -> tuple[str, ...]:
        return () if self.conditioning == "both" else (f'mask.conditioning="{self.conditioning}"',)

    @property
    def sets(self) -> tuple[str, ...]:
        """Settings of the configuration."""
        return (f'mask.rule="{self.rule}"', *(() if self.tau is None else (f"mask.tau={self.tau}",)), "mask.sweep=[]", *self._signs)


MASKS = {
    "Null": MaskRule("none"),
    "IcePop": MaskRule("icepop", 5.0),
    "TRM": MaskRule("trm", 0.05),
    **{f"GeoMean {tau:g}": MaskRule("geomean", tau) for tau in GEOMEAN_TAUS},
    **{f"CARM {tau:g}": MaskRule("carm", tau) for tau in CARM_TAUS},
    "negative only": MaskRule("carm", 1.025, "negative"),
}


def _variant(name: str, mask: MaskRule, key: str) -> Variant:
    sets = "".join(f" --set '{s}'" for s in mask.sets)
    command = f"torchrun --nproc_per_node 8 -m experiments train --config {CONFIGS[key]}{sets} --seed {{seed}} --report paper --out {{out}}"
    small = key == "9B" and mask.rule != "icepop"
    return Variant(0.5, 3 if small else 0, (command,), 1 if key != "code" else 3)


def settings(scale: str) -> dict[str, Any]:
    """Held equal over all variants."""
    return vars(SIZES[scale]) | {"actor": list(ACTOR)} if scale in SIZES else {"configurations": "as shipped"}


def run(variant: str, seed: int, scale: str, folder: Path) -> dict[str, Any]:
    """Train one mask at a small scale."""
    key, name = variant.split("/")
    mask = MASKS[name]
    experiment = resized(override(configs.read(CONFIGS[key]), mask.sets), SIZES[scale])
    return train(experiment, folder, seed=seed, actor=ACTOR)


SOURCE = Source(
    "masks",
    {f"{key}/{name}": _variant(name, mask, key) for key in CONFIGS for name, mask in MASKS.items()},
    settings,
    run,
)
