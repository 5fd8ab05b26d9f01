"""The paper's mathematical reward in the signature verl's reward loop calls."""

from typing import Any

from verl.utils.reward_score.math_verify import compute_score


def math_verify_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    r"""1.0 where Math-Verify finds the \boxed answer of `solution_str` equal to `ground_truth`, else 0.0. Source: CARM, Appendix D.1."""
    return float(compute_score(solution_str, ground_truth))
