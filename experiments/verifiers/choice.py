"""Multiple choice: the letter a response settles on."""

from __future__ import annotations

import re
from typing import Any

from .text import last_boxed, text_of

_TAIL = 200
_STYLE = r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|boldsymbol|mathit)\s?\{"
_OPEN = rf"(?:[$*_(\[<{{\s\"'`]|\\\(|{_STYLE})*"
_CLOSED = r"(?:[)\]>}$*_\"'`]|\\\))*"
_LETTER = re.compile(rf"({_OPEN})([A-Za-z])({_CLOSED})")
_MARKER = re.compile(r"\b(?:answer|choice|option)\b|\b(?:choose|pick|select|go with)\b", re.IGNORECASE)
_VERB = re.compile(r"[\s*_]{0,9}(?:[a-z' -]{0,60}?\b(?:is|are|be|was)\b|[:=])[\s*_:=]*")
_ADVERB = re.compile(
    r"(?:therefore|thus|hence|clearly|obviously|probably|likely|most|simply|then|option|choice|letter|indeed|the)\b[\s,:]*", re.IGNORECASE
)
_SEVERAL = re.compile(r"\s*(?:or|and|/|,|&)\s*(?:option\s|choice\s)?[(*\s]*[A-Z](?![A-Za-z'’])(?!\s+(?:is|are|was|would|can|does)\b)")
_DENIED = re.compile(r"\b(?:not|isn't|wrong|incorrect|false|excluded?|cannot)\b", re.IGNORECASE)
_AFTER = re.compile(r"\s+(?:because|since|as|for|which|due|with|by|so|but|and|is|from)\b")
_MENTION = re.compile(r"\b(?:[Oo]ption|[Cc]hoice)\s\(?\**([A-Z])(?![A-Za-z'’])")
_LABEL = re.compile(r"[\s*]*\(?([A-Z])(?:\)|\.|:)(?=\s)")
_ALONE = re.compile(r"[\s*(#$]*([A-Z])[\s*).$]*")


def chosen(text: str, options: int = 4) -> str | None:
    r"""The chosen letter, or None: of the last ``\boxed{}``, else of the last "answer is X" or "Answer: X", else of the last line.

    What else is said about options is no choice ("The answer is B. Option A is wrong."), nor are several letters ("A or B"), a word ("A
    good one") or a letter beyond the ``options`` first of the alphabet.

    >>> chosen(r"so \boxed{\text{B}}"), chosen("The answer is (C)."), chosen("Because ...\nD"), chosen("Answer: E")
    ('B', 'C', 'D', None)
    >>> chosen("The answer is B. Option A is wrong."), chosen("The answer is A or B")
    ('B', None)
    """
    boxed = last_boxed(text)
    letter = _in_box(boxed) if boxed is not None else _stated(text)
    return letter if letter is not None and ord(letter) - ord("A") < options else None


def _in_box(content: str) -> str | None:
    content = re.sub(rf"^(?:{_STYLE})?\s?(?:[Aa]nswer|[Oo]ption|[Cc]hoice)\s?:?\s?", "", content[:_TAIL].strip())
    match = _LETTER.match(content)
    if not match:
        return None
    rest = content[match.end() :]
    bracketed = re.search(r"[)}.:]", match[3] + rest[:1]) is not None
    if _SEVERAL.match(rest) or rest[:1].isalnum() or (rest.strip(" .}$") and not bracketed):
        return None
    return match[2].upper()


def _stated(text: str) -> str | None:
    text = text.rstrip()
    claimed = False
    for marker in reversed(list(_MARKER.finditer(text))):
        if _DENIED.search(text[max(0, marker.start() - 20) : marker.start()].rpartition(".")[2]):
            continue
        tail = text[marker.end() : marker.end() + _TAIL]
        verb = _VERB.match(tail)
        if verb is None and marker[0].lower() in ("answer", "choice", "option"):
            continue
        if verb is not None and _DENIED.search(verb[0]):
            continue
        claimed = claimed or marker[0].lower() == "answer"
        claim = tail[verb.end() if verb else 0 :].lstrip()
        while adverb := _ADVERB.match(claim):
            claim = claim[adverb.end() :]
        letter = _LETTER.match(claim)
        if letter is None:
            continue
        if _SEVERAL.match(claim, letter.end()):
            return None
        if _is_choice(letter, claim[letter.end() :]):
            return letter[2].upper()
    if claimed:
        return _of_last_line(text)
    mentions = {m[1] for m in _MENTION.finditer(text) if not _DENIED.search(text[m.end() : m.end() + 30].partition(".")[0])}
    return mentions.pop() if len(mentions) == 1 else _of_last_line(text)


def _is_choice(letter: re.Match[str], rest: str) -> bool:
    """Whether a letter stands for itself, not for the article or for the beginning of a word."""
    if rest[:1].isalnum() or rest[:1] in ("'", "’", "-") or (letter[3].endswith(("'", "’")) and rest[:1].isalpha()):
        return False
    if letter[1].strip() or letter[3]:
        return letter[2].isupper() or bool(re.search(r"[(\[<{$*]", letter[1]))
    if letter[2].islower():
        return not rest or rest[0] in "\n.)"
    return letter[2] not in "AI" or not re.match(r"\s+[a-z]", rest) or _AFTER.match(rest) is not None


def _of_last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    if not lines:
        return None
    match = _ALONE.fullmatch(lines[-1][:_TAIL]) if len(lines[-1]) < _TAIL else None
    if match is None and sum(_LABEL.match(line[:_TAIL]) is not None for line in lines) == 1:
        match = _LABEL.match(lines[-1][:_TAIL])
    return match[1] if match else None


def choice_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1.0 where the chosen letter is the answer.  TRL's reward-function signature; completions are strings or lists of messages.

    >>> choice_reward(["Answer: A", "Answer: B"], answer=["A", "A"])
    [1.0, 0.0]
    """
    return [float(chosen(text_of(c)) == gold) for c, gold in zip(completions, answer, strict=True)]
