"""Response masks with certificates: which responses may move the policy?"""

from .advantages import group_advantages
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
from .drift import Drift, prefix_drift
from .importance import IcePop, SeqMIS, SeqTIS, TokenMIS, TokenTIS
from .intervals import BestWorst, SamplingEstimate, bootstrap_best_worst, mean_interval, sampling_estimate
from .logratio import LogRatio, log_ratio
from .noise import NoiseFloor, noise_floor
from .rows import Rows
from .rules import CARM, OPSM, TRM, GeoMean, MeanExpAbs, NoMask, Rule, TRMMean
from .sampling import all_at_k, best_of_k, majority_at_k, majority_vote, pass_at_k, worst_of_k
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
from .surrogate import clipped_surrogate, masked_loss, sequence_log_ratio
from .sweep import SweepPoint, cancellation_share, threshold_sweep
from .thresholds import TauChoice, calibrated_tau, tau_for_certificate, tau_for_reject_rate
from .witnesses import equality_response, geomean_witness

__all__ = [
    "CARM",
    "OPSM",
    "TRM",
    "BestWorst",
    "Certificate",
    "Drift",
    "GeoMean",
    "IcePop",
    "LogRatio",
    "MaskReport",
    "MeanExpAbs",
    "NoMask",
    "NoiseFloor",
    "PairedDecisions",
    "Rows",
    "Rule",
    "SamplingEstimate",
    "Scores",
    "SeqMIS",
    "SeqTIS",
    "SweepPoint",
    "TRMMean",
    "TauChoice",
    "TokenMIS",
    "TokenTIS",
    "all_at_k",
    "best_of_k",
    "bootstrap_best_worst",
    "calibrated_tau",
    "cancellation_share",
    "carm_bound",
    "carm_score",
    "clipped_surrogate",
    "equality_response",
    "finite_T_bound",
    "geomean_score",
    "geomean_witness",
    "group_advantages",
    "log_ratio",
    "majority_at_k",
    "majority_vote",
    "mask_report",
    "masked_loss",
    "max_k2",
    "max_violations",
    "mean_exp_abs",
    "mean_interval",
    "mean_k1",
    "mean_k2",
    "mean_k3",
    "noise_floor",
    "one_sided_bounds",
    "paired_decisions",
    "pass_at_k",
    "prefix_drift",
    "rejection_curve",
    "response_scores",
    "sampling_estimate",
    "sequence_log_ratio",
    "severity_bound",
    "signed_mean",
    "signed_mean_bound",
    "tau_for_certificate",
    "tau_for_reject_rate",
    "threshold_sweep",
    "worst_of_k",
]
