"""The budget rules that both papers compare with, as rollout policies that simulator and trainer run unchanged.

=====================  =====================================================================================================
``FixedBudget``        plain GRPO with the same group size everywhere (:mod:`conformal_core`)
``DynamicSampling``    DAPO: further prompts until enough groups have variance
``AERO``               screen, rescue, balance; posterior baseline for groups without variance
``PromptGDRO``         group-robust weights over difficulty bins
``RolloutGDRO``        group-robust budgets over difficulty bins, at a fixed mean
``SquareRootBudget``   budgets proportional to the standard deviation of the reward, at a fixed mean
``GRESO``              skip prompts that were uninformative the last times they were seen
``ReinforceAdaSeq``    rounds until balanced (or first positive), then a small balanced group
``ReinforceAdaEst``    budgets from a decayed memory of success rates
``PilotCommit``        a pilot, then a full group where the pilot's rate is intermediate
``Knapsack``           integer programme over the expected value of each budget
``Unanimity``          stop when all answers agree: a heuristic, no guarantee
``released_cgrpo``     the stop of the released C-GRPO code (:mod:`conformal_core`)
=====================  =====================================================================================================

``named`` builds any of them from a budget grid.

Success is a verdict (the reward is 0 or 1).  Each docstring gives the source, what it left open, and what was chosen.
"""

from conformal_core import FixedBudget, released_cgrpo

from .aero import AERO
from .dynamic_sampling import DynamicSampling
from .gdro import PromptGDRO, RolloutGDRO, SquareRootBudget
from .greso import GRESO
from .knapsack import Knapsack
from .names import named
from .pilot_commit import PilotCommit
from .reinforce_ada import ReinforceAdaEst, ReinforceAdaSeq
from .unanimity import Unanimity

__all__ = [
    "AERO",
    "GRESO",
    "DynamicSampling",
    "FixedBudget",
    "Knapsack",
    "PilotCommit",
    "PromptGDRO",
    "ReinforceAdaEst",
    "ReinforceAdaSeq",
    "RolloutGDRO",
    "SquareRootBudget",
    "Unanimity",
    "named",
    "released_cgrpo",
]
