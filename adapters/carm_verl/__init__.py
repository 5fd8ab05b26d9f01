"""CARM and its siblings as verl policy losses: `import carm_verl` registers them; ``+carm=default`` in the launch command configures and checks them."""

from .config import CARMPolicyLossConfig
from .loss import MaskedPolicyLoss
from .plugin import register
from .rules import LOSSES, build_rule

__all__ = ["LOSSES", "CARMPolicyLossConfig", "MaskedPolicyLoss", "build_rule", "register"]
