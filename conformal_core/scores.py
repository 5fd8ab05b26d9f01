"""Every nonconformity score and what they count, under one name."""

from __future__ import annotations

from .aps import APS, MassAbove
from .counts import answer_counts
from .first_success import FirstSuccess
from .pass_rate import PassRate
from .released_aps import ReleasedAPS
from .score import Score
from .signal_score import k_mix, signal_score
from .singleton_laws import empty_probability, singleton_probability

__all__ = [
    "APS",
    "FirstSuccess",
    "MassAbove",
    "PassRate",
    "ReleasedAPS",
    "Score",
    "answer_counts",
    "empty_probability",
    "k_mix",
    "signal_score",
    "singleton_probability",
]
