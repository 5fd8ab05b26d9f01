"""The claims ledger: every statement of both papers as a check that runs, with a verdict that follows from what it finds."""

from . import (
    a_split,
    a_thresholds,
    e_sets,
    g_budgets,
    h_efficiency,
    i_signal,
    l_shift,
    l_tables,
    m_carm,
    m_tables,
    n_sampling,
    s_beyond,
)
from .ledger import LEDGER, Claim, Evidence, Result, run

#: One module per group of entries; importing them fills the ledger.
MODULES = (
    a_split, a_thresholds, e_sets, g_budgets, h_efficiency, i_signal, l_shift, l_tables, m_carm, m_tables, n_sampling, s_beyond,
)  # fmt: skip

__all__ = ["LEDGER", "MODULES", "Claim", "Evidence", "Result", "run"]
