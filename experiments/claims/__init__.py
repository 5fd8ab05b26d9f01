"""The claims ledger: every statement of both papers as a check that runs, with a verdict that follows from what it finds."""

from .ledger import LEDGER, Claim, Evidence, Result, run

__all__ = ["LEDGER", "Claim", "Evidence", "Result", "run"]

from . import a_split, e_sets, g_budgets, h_efficiency, i_signal, l_numbers, m_carm, n_sampling, s_beyond  # noqa: E402
