"""CARM and its siblings as verl policy losses: importing registers them, ``+carm=default`` in a launch configures and checks them."""

import logging

try:
    from .config import CARMPolicyLossConfig
    from .loss import MaskedPolicyLoss
    from .plugin import register
    from .rules import LOSSES, build_rule
except Exception:
    logging.getLogger("carm_verl").exception("the losses of carm_verl are NOT registered (verl shows plug-in errors at DEBUG level only)")
    raise

__all__ = ["LOSSES", "CARMPolicyLossConfig", "MaskedPolicyLoss", "build_rule", "register"]
