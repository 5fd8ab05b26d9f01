"""Response masks with certificates: which responses may move the policy?"""

from .certificates import (
    Certificate,
    carm_bound,
    finite_T_bound,
    geomean_witness,
    max_violations,
    severity_bound,
    signed_mean_bound,
)
from .logratio import LogRatio, log_ratio
from .rules import CARM, OPSM, TRM, GeoMean, IcePop, MeanExpAbs, NoMask, Rule, SeqMIS, SeqTIS, TRMMean
from .scores import (
    Scores,
    carm_score,
    geomean_score,
    max_k2,
    mean_exp_abs,
    mean_k1,
    mean_k2,
    mean_k3,
    scores,
    signed_mean,
)
from .surrogate import clipped_surrogate, masked_loss

__all__ = [
    "CARM",
    "OPSM",
    "TRM",
    "Certificate",
    "GeoMean",
    "IcePop",
    "LogRatio",
    "MeanExpAbs",
    "NoMask",
    "Rule",
    "Scores",
    "SeqMIS",
    "SeqTIS",
    "TRMMean",
    "carm_bound",
    "carm_score",
    "clipped_surrogate",
    "finite_T_bound",
    "geomean_score",
    "geomean_witness",
    "log_ratio",
    "masked_loss",
    "max_k2",
    "max_violations",
    "mean_exp_abs",
    "mean_k1",
    "mean_k2",
    "mean_k3",
    "scores",
    "severity_bound",
    "signed_mean",
    "signed_mean_bound",
]
