"""Calibrated rollout budgets and response masks inside TRL's ``GRPOTrainer``.

Tested TRL range: 1.16.x.  Another version is refused at import, because the trainer overrides named hooks whose contents
changed between minor releases of TRL.
"""

from importlib.metadata import version as _version

TRL_RANGE = ("1.16", "1.17")


def _check_trl(installed: str) -> None:
    release = tuple(int(part) for part in installed.split(".")[:2])
    low, high = (tuple(int(part) for part in bound.split(".")) for bound in TRL_RANGE)
    if not low <= release < high:
        raise ImportError(
            f"trl: got {installed}; need >={TRL_RANGE[0]},<{TRL_RANGE[1]}; because the hooks this trainer overrides differ elsewhere"
        )


_check_trl(_version("trl"))

from .config import CGRPOConfig  # noqa: E402  (the version check comes first on purpose)
from .ledger import Ledger  # noqa: E402
from .trainer import CGRPOTrainer  # noqa: E402

__all__ = ["TRL_RANGE", "CGRPOConfig", "CGRPOTrainer", "Ledger"]
