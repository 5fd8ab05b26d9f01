"""Verifiers: what a response answered, and whether that is right."""

from .choice import choice_reward, chosen
from .code import CodeReward, extract_code
from .math import answer_code, canonical, extract_answer, math_reward, math_verify_reward

__all__ = [
    "CodeReward",
    "answer_code",
    "canonical",
    "choice_reward",
    "chosen",
    "extract_answer",
    "extract_code",
    "math_reward",
    "math_verify_reward",
]
