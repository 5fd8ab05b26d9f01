"""Reading responses: boxes, messages."""

from __future__ import annotations

import re
from typing import Any

#: Three or four letters that are a product of variables, not a word.
PRODUCT = re.compile(r"[xyz]{3}|[abc]{3}|[abcd]{4}|[pqrs]{3,4}|[klmn]{3}|[rst]{3}|[uvw]{3}")
#: A box, an escaped character, a brace.
_SIGN = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])|\\(?!\\(?:boxed|fbox)(?![A-Za-z]))[\s\S]|[{}]")
_BARE = re.compile(r"\s*([-+]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?|[A-Za-z](?![A-Za-z]))")


def text_of(completion: Any) -> str:
    """A completion as TRL gives it, a string or a list of messages, as a string; empty where there is no content."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    return "".join(str(message["content"]) for message in completion if message.get("content") is not None)


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}`` or ``\fbox``, braces balanced; None when there is none.  One pass over the text.

    >>> last_boxed(r"\boxed{1} then \boxed{\frac{1}{2}} and \boxed{"), last_boxed(r"so \boxed 7")
    ('\\frac{1}{2}', '7')
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    open_braces: list[int | None] = []
    start, end = -1, -1
    box: int | None = None
    for sign in _SIGN.finditer(text):
        if sign[0] == "{":
            begins = sign.start() + 1
            open_braces.append(begins if box is not None and not text[box : sign.start()].strip() else None)
        elif sign[0] == "}" and open_braces:
            begun = open_braces.pop()
            if begun is not None and begun > start:
                start, end = begun, sign.start()
        is_box = sign[0] in ("\\boxed", "\\fbox")
        box = sign.end() if is_box else None
        bare = _BARE.match(text, sign.end()) if is_box else None
        if bare:
            start, end = bare.span(1)
    return text[start:end].strip() if start >= 0 else None
