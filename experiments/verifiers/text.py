"""Reading responses: boxes, messages."""

from __future__ import annotations

from typing import Any


def text_of(completion: Any) -> str:
    """A completion as TRL gives it, a string or a list of messages, as a string."""
    return completion if isinstance(completion, str) else "".join(str(message["content"]) for message in completion)


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}`` (or ``\fbox``), braces balanced; None when there is none.

    >>> last_boxed(r"\boxed{1} then \boxed{\frac{1}{2}} and \boxed{")
    '\\frac{1}{2}'
    """
    for name in ("\\boxed", "\\fbox"):
        end = len(text)
        while (start := text.rfind(name, 0, end)) >= 0:
            content = _braced(text, start + len(name))
            if content is not None:
                return content
            end = start
    return None


def _braced(text: str, start: int) -> str | None:
    while start < len(text) and text[start] == " ":
        start += 1
    if start >= len(text) or text[start] != "{":
        return None
    depth, i = 0, start
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1 : i].strip()
        i += 1
    return None
