"""Response masks with certificates: which responses may move the policy?"""

from .certificates import (
    Certificate,
    carm_bound,
    finite_T_bound,
    max_violations,
    one_sided_bounds,
    severity_bound,
    signed_mean_bound,
)
from .diagnostics import MaskReport, PairedDecisions, mask_report, paired_decisions, rejection_curve
from .importance import IcePop, SeqMIS, SeqTIS, TokenMIS, TokenTIS
from .logratio import LogRatio, log_ratio
from .rows import Rows
from .rules import CARM, OPSM, TRM, GeoMean, MeanExpAbs, NoMask, Rule, TRMMean
from .scores import (
    Scores,
    carm_score,
    geomean_score,
    max_k2,
    mean_exp_abs,
    mean_k1,
    mean_k2,
    mean_k3,
    response_scores,
    signed_mean,
)
from .surrogate import clipped_surrogate, masked_loss
from .thresholds import TauChoice, calibrated_tau, tau_for_certificate, tau_for_reject_rate
from .witnesses import equality_response, geomean_witness

__all__ = [
    "CARM",
    "OPSM",
    "TRM",
    "Certificate",
    "GeoMean",
    "IcePop",
    "LogRatio",
    "MaskReport",
    "MeanExpAbs",
    "NoMask",
    "PairedDecisions",
    "Rows",
    "Rule",
    "Scores",
    "SeqMIS",
    "SeqTIS",
    "TRMMean",
    "TauChoice",
    "TokenMIS",
    "TokenTIS",
    "calibrated_tau",
    "carm_bound",
    "carm_score",
    "clipped_surrogate",
    "equality_response",
    "finite_T_bound",
    "geomean_score",
    "geomean_witness",
    "log_ratio",
    "mask_report",
    "masked_loss",
    "max_k2",
    "max_violations",
    "mean_exp_abs",
    "mean_k1",
    "mean_k2",
    "mean_k3",
    "one_sided_bounds",
    "paired_decisions",
    "rejection_curve",
    "response_scores",
    "severity_bound",
    "signed_mean",
    "signed_mean_bound",
    "tau_for_certificate",
    "tau_for_reject_rate",
]
