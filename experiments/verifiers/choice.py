"""Multiple choice: the letter a response settles on."""

from __future__ import annotations

import re
from typing import Any

from .text import last_boxed, text_of

_LETTER = r"\(?\s*\**([A-Z])\**\s*\)?(?![A-Za-z'])"
_STATED = re.compile(rf"(?i:answer|choice|option)(?i:\s+(?:is|are))?\s*[:=]?\s*\**\s*{_LETTER}")
_ALONE = re.compile(r"^[\s*(#]*([A-Z])[\s*).]*$")


def chosen(text: str, options: int = 4) -> str | None:
    r"""The chosen letter, or None: the last ``\boxed{}``, else the last "answer is X" or "Answer: X", else a last line of one letter.

    A letter beyond the ``options`` first of the alphabet, or a box with more than one letter, is no choice.

    >>> chosen(r"so \boxed{\text{B}}"), chosen("The answer is (C)."), chosen("Because ...\nD"), chosen("Answer: E")
    ('B', 'C', 'D', None)
    """
    boxed = last_boxed(text)
    if boxed is not None:
        match = _ALONE.match(re.sub(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}", r"\1", boxed))
        letter = match[1] if match else None
    elif stated := _STATED.findall(text):
        letter = stated[-1]
    else:
        lines = text.strip().splitlines()
        match = _ALONE.match(lines[-1]) if lines else None
        letter = match[1] if match else None
    return letter if letter is not None and ord(letter) - ord("A") < options else None


def choice_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1.0 where the chosen letter is the answer.  TRL's reward-function signature; completions are strings or lists of messages.

    >>> choice_reward(["Answer: A", "Answer: B"], answer=["A", "A"])
    [1.0, 0.0]
    """
    return [float(chosen(text_of(c)) == gold) for c, gold in zip(completions, answer, strict=True)]
