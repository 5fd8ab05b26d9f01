r"""Mathematical answers as codes: two answers are one iff their codes are equal.

Scores of prediction sets and of votes ask only which answers are equal, so equality must be an equivalence relation and the reward must
be the same relation: a response is right iff its code is the gold answer's.  Plain numbers are read here; everything else is read whole
or not at all by `experiments.verifiers.symbolic`, in a process under a budget (`experiments.verifiers.worker`), and brought to a normal
form by SymPy.  What is not read is compared as text.

Conventions, those of the MATH data: units, currency signs, percent and degree signs are dropped (``50\%`` is 50), ``x = 5`` is 5, a
tuple is ordered and a set is not.  ``(1,000)`` is a number, ``(1, 2)`` a pair.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from fractions import Fraction
from typing import Any

from .text import PRODUCT, last_boxed, text_of
from .worker import code_within_budget, verdict_within_budget

_LONGEST = 1000
_TAIL = 1000
_TEXT = "text:"
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)?(?:\.\d+)?(?<=\d)\.?")
_PLAIN = re.compile(r"([-+]?)(\d*)(?:\.(\d+))?(?:[eE]([-+]?\d{1,3}))?")
_IN_TEXT = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?")

_MARKER = re.compile(r"\banswer\b|####", re.IGNORECASE)
_VERB = re.compile(r"[*_`\s]*(?:[^.\n:=$\\\d]{0,80}?\b(?:is|are|was|be|becomes|equals)\b|[:=])?[*_`\s:=]*", re.IGNORECASE)
_ADVERB = re.compile(
    r"(?:approximately|about|roughly|around|exactly|simply|just|only|therefore|thus|then|indeed|probably|equal to|given by)[\s:,]+",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"[.;,]?\s+(?:since|because|as|so|for|which|where|when|by|with|after|due|but|not|if)\b"
    r"|[.;!?](?=\s|$)|\s+\(|,\s+(?=[A-Za-z]{2})|\n"
)
_FORMULA = re.compile(r"(?:\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\])")

_UNIT = (
    r"degrees?|percent|dollars?|cents?|inch(?:es)?|in|feet|foot|ft|yards?|yd|miles?|mi|units?|cm|mm|km|dm|nm|meters?|metres?|centimeters?|"
    r"kilometers?|grams?|kg|mg|kilograms?|pounds?|lbs?|ounces?|oz|tons?|lit(?:er|re)s?|ml|gallons?|hours?|hrs?|minutes?|mins?|seconds?|secs?|days?|"
    r"weeks?|months?|years?|mph|points?|people|apples?|students?|books?|ways?|radians?|USD|Hz|volts?|watts?|joules?|newtons?"
)
_UNITS = re.compile(
    rf"(?<=[\d}})\s])\s*(?:(?:square|cubic|sq\.?|cu\.?)\s*)?(?:{_UNIT})(?:\s*(?:/|per)\s*(?:{_UNIT}|s|h|min|sec))?(?![A-Za-z])(?:\s*\^\s*\{{?[23]\}}?)?\.?$",
    re.IGNORECASE,
)
_SPEED = re.compile(r"(?<=[\d\s])\s*(?:k?m/(?:s|h|hr|min))(?:\^\{?2\}?)?$")
_TEXT_UNIT = re.compile(r"(?<=[A-Za-z0-9})\]!|.])\s*\\(?:text|mathrm|mbox|textrm|textit)\s*\{([^{}]*)\}((?:\s*\^\s*\{?[23]\}?)?)\s*$")
_NOUNS = re.compile(r"([-+]?\d[\d.,/]*)\s+([A-Za-z]+(?: [A-Za-z]+){0,2})")
_PHRASE = re.compile(r"[~\s]*([A-Za-z]+\.?(?:(?: |/|-|\^\{?[23]\}?|~)+[A-Za-z]+\.?){0,3})(?:\^\{?[23]\}?)?[~\s]*")
#: Words that change what stands before them; a noun phrase without them is a unit.
_WORDS = """
not no never and or nor but to than then more less least most fewer greater above below over under up plus minus times divided multiplied is
are was be if when for from of on at by with without as so since because where which either neither both all any some none wrong incorrect
invalid false true right correct even odd prime am pm oclock noon mod modulo base power squared cubed root factorial remainder zero one two
three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty ninety dozen hundred thousand million
billion trillion half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths eighth eighths tenth tenths hundredth
hundredths thousandth thousandths approximately about infinity pi i e x y z n st nd rd th choose sin cos tan cot sec csc sinh cosh tanh log
exp sqrt max min gcd lcm abs alpha beta gamma delta epsilon theta lambda sigma omega phi psi rho tau
"""
_MEANING = frozenset(_WORDS.split())

_SYMBOLS = {
    **dict.fromkeys("−–﹣", "-"),
    **dict.fromkeys("·⋅∙•", r"\cdot "),
    "×": r"\times ",
    "÷": r"\div ",
    "±": r"\pm ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}",
    "π": r"\pi ",
    "√": r"\sqrt ",
    "∛": r"\sqrt[3]",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
}
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPT = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_SAME = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\lbrace": r"\{", r"\rbrace": r"\}", r"\vert": "|", r"\rvert": "|"}
_SAME |= {r"\lvert": "|", r"\displaystyle": "", r"\left": "", r"\right": "", r"\big": "", r"\Big": "", r"\bigl": "", r"\bigr": ""}
_COMMAND = re.compile(r"\\[A-Za-z]+")
_THIN = re.compile(r"(\\\\)|\\[,;:> ]|~")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_TRIGONOMETRY = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_ASSIGNED = re.compile(r"(?:[A-Za-z]{1,2}|\\[a-z]+)(?:_\{?\w{1,3}\}?|_?\d)?(?:\([a-z]\))?\s*(?:=|\\in(?![a-z]))\s*(?=\S)(?!.*=)")


def extract_answer(text: str) -> str | None:
    r"""The answer as written: the last ``\boxed{}``, else what follows the last ``####`` or "answer is", else the last number.

    >>> extract_answer(r"thus \boxed{\frac12}."), extract_answer("5+1=6\n#### 6"), extract_answer("The answer is 42.")
    ('\\frac12', '6', '42')
    >>> extract_answer("it costs $1,200 today"), extract_answer("The answer is 5, since 2+3=5.")
    ('1,200', '5')
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed or None
    stated = _stated(text)
    if stated is not None:
        answer = _answer_of(stated)
        if answer is not None:
            return answer
    numbers = _numbers(text)
    return numbers[-1] if numbers else None


def _stated(text: str) -> str | None:
    """What follows the last ``####`` or "answer is" behind which something stands."""
    text = text.rstrip()
    for marker in reversed(list(_MARKER.finditer(text))):
        tail = text[marker.end() : marker.end() + _TAIL]
        verb = _VERB.match(tail)
        assert verb is not None
        stated = tail[verb.end() :]
        said = marker[0] == "####" or bool(verb[0].strip("*_` \t\n")) or re.match(r"[\s*]*[-$\\\d(]", tail) is not None
        if stated and said and not re.match(r"not\b", stated):
            while adverb := _ADVERB.match(stated):
                stated = stated[adverb.end() :]
            return stated
    return None


def _answer_of(stated: str) -> str | None:
    """What was stated as an answer: its line, formula or first clause if that is a value; else its number; else its text."""
    line = stated.split("\n", 1)[0].rstrip(". ").strip("*` ")
    clause = _CLAUSE.search(stated)
    first = (stated[: clause.start()] if clause else stated).rstrip(". ").strip("*` ")
    formula = _FORMULA.match(stated)
    whole = formula is not None and not re.match(r"[\s,]*(?:and|or|[-+=$\\\d])", stated[formula.end() :])
    formulas = [next(part for part in formula.groups() if part)] if formula and whole else []
    for candidate in (line, *formulas, first):
        code = canonical(candidate)
        if code is not None and not code.startswith(_TEXT):
            return candidate
    numbers = _numbers(first)
    if len(numbers) == 1 or len(first.split()) > 6:
        return numbers[-1] if numbers else None
    return (line if len(line.split()) <= 6 or "\\" in line else first) or None


def _numbers(text: str) -> list[str]:
    return [number.replace("$", "").rstrip(",") for number in _IN_TEXT.findall(text)]


def canonical(answer: str) -> str | None:
    r"""The code of an answer as written, or None when nothing is there.

    Exact for rational numbers; other real and complex numbers are compared to 20 digits; sets, intervals and tuples entry by entry;
    expressions with variables by SymPy's normal form, which is not complete: unequal codes of equal expressions are possible, equal codes
    of unequal ones only beyond 20 digits.  What is not wholly read, or outlasts the budget, is compared as text without case.

    >>> [canonical(a) for a in ("1/2", "0.5", r"\frac{1}{2}", r"\dfrac12", ".50", r"2^{-1}")]
    ['1/2', '1/2', '1/2', '1/2', '1/2', '1/2']
    >>> canonical(r"\{2, 1\}") == canonical(r"\{1,2\}"), canonical("(2, 1)") == canonical("(1, 2)"), canonical("1,000"), canonical(" ")
    (True, False, '1000', None)
    """
    if not isinstance(answer, str):
        raise ValueError(f"answer: got {answer!r} of type {type(answer).__name__}; need a string; because answers are compared as written")
    text = " ".join(answer.split())
    if len(text) > _LONGEST:
        return _as_text(text)
    return _code(text)


@functools.lru_cache(maxsize=100_000)
def _code(answer: str) -> str | None:
    text = _clean(answer)
    if not text:
        return None
    bare = _bare(text)
    value = _number(bare)
    if value is not None:
        return str(value)
    if text.isalpha() and len(text) > 2:
        return _as_text(text)
    return code_within_budget(bare) or _as_text(text)


def _as_text(text: str) -> str:
    """Without case, text commands and white space that separates nothing."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf|mbox|textrm)(?![A-Za-z])", "", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    text = re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text)
    return _TEXT + text.lower()


def answer_code(text: str) -> str | None:
    """The code of a whole response: ``canonical(extract_answer(text))``; ``answer_fn`` of the trainer."""
    answer = extract_answer(text_of(text))
    return None if answer is None else canonical(answer)


def math_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    r"""1.0 where the response's code is the gold answer's.  TRL's reward-function signature.

    >>> math_reward([r"\boxed{0.5}", "#### 2"], answer=["1/2", "1/2"])
    [1.0, 0.0]
    """
    golds = [canonical(gold) for gold in answer]
    codes = [answer_code(text_of(c)) for c in completions]
    return [float(code is not None and code == gold) for code, gold in zip(codes, golds, strict=True)]


def math_verify_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    r"""1.0 where math-verify says so: the library's own reading and comparison, for figures comparable with those of others.

    It accepts answers of which it reads a part only (``101_2`` is 101 to it, ``2(3)`` is 5, ``1 000`` is 0); `math_reward` is the default.
    Same budget for each response; one that outlasts it is wrong.

    >>> math_verify_reward([r"\boxed{0.5}", "The answer is $2$."], answer=["1/2", "3"])
    [1.0, 0.0]
    """
    for gold in answer:
        if not isinstance(gold, str):
            raise ValueError(f"answer: got {gold!r} of type {type(gold).__name__}; need a string; because answers are compared as written")
    return [float(verdict_within_budget(gold, text_of(c))) for c, gold in zip(completions, answer, strict=True)]


def _clean(answer: str) -> str:
    """Without what surrounds an answer: delimiters of formulas, currency, percent and degree signs, ``\\text{}`` around all of it."""
    text = answer.strip()
    for opening, closing in (("**", "**"), ("`", "`"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) >= 2 * len(opening):
            text = text[len(opening) : -len(closing)].strip()
    text = _latex(text)
    if not _TRIGONOMETRY.search(text):
        text = re.sub(r"\^\s*\{?\\circ\}?|°|\\degree(?![a-z])|\^\s*\{\\degree\}", "", text)
    text = re.sub(r"\\?[$%€£]", "", text).strip().rstrip(" .,;\\")
    wrapped = re.fullmatch(r"\\(?:text|mathrm|textbf|mathbf|textrm|mbox)\s*\{([^{}]*)\}", text)
    return wrapped[1].strip() if wrapped else text


def _bare(text: str) -> str:
    """What is read of a cleaned answer: without its unit and the name of its variable, "and" and "or" as commas, thousands joined."""
    text = _without_units(text)
    text = re.sub(r"\\text\s*\{\s*(?:or|and)\s*\}|\s(?:or|and)\s", ", ", text)
    text = _ASSIGNED.sub("", text, count=1).strip() if _ASSIGNED.match(text) else text
    if "," in text and not re.search(r"[(\[]|\\\{|, ", text):
        joined = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
        text = text if "," in joined else joined
    return text


def _latex(text: str) -> str:
    """One writing for each sign: Unicode and synonyms as LaTeX, groups of three digits joined, thin spaces as spaces."""
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda m: f"^{{{unicodedata.normalize('NFKC', m[0]).replace('−', '-')}}}", text)
        text = _SUBSCRIPT.sub(lambda m: f"_{{{unicodedata.normalize('NFKC', m[0])}}}", text)
        text = "".join(_SYMBOLS.get(c) or _fraction_sign(c) for c in text)
        text = unicodedata.normalize("NFKC", text)
    text = _COMMAND.sub(lambda m: _SAME.get(m[0], m[0]), text).replace(r"\!", "").replace(r"\middle", "")
    text = re.sub(r"(?<=\d)(?:\{,\}|\\,|\\;|\\:|\\ |~)(?=\d{3}(?!\d))", "", text)
    text = _THIN.sub(lambda m: m[1] or " ", text)
    text = re.sub(r"[(\[] ?\\begin\{array\} ?\{[lcr| ]*\}(.*)\\end\{array\} ?[)\]]", r"\\begin{pmatrix}\1\\end{pmatrix}", text)
    if re.fullmatch(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?", text.strip()):
        text = text.replace(" ", "")
    return text.strip()


def _fraction_sign(sign: str) -> str:
    top, slash, bottom = unicodedata.normalize("NFKC", sign).partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}" if slash and top and bottom else sign


def _without_units(text: str) -> str:
    r"""Without a unit at the end: a known word, words in ``\text{}`` or words behind a number, unless they change the meaning."""
    match = _TEXT_UNIT.search(text)
    if match:
        phrase = _PHRASE.fullmatch(match[1])
        rest = text[: match.start()].strip()
        if not match[1].strip(" ~") or (phrase and _is_unit(phrase[1]) and "\\text" not in rest):
            return rest
    match = _NOUNS.fullmatch(text)
    if match and _is_unit(match[2]) and not any(len(word) < 3 or PRODUCT.fullmatch(word) for word in match[2].split()):
        return match[1]
    return _UNITS.sub("", _SPEED.sub("", text)).strip()


def _is_unit(phrase: str) -> bool:
    return not _MEANING & set(re.findall(r"[a-z]+", phrase.lower()))


def _number(text: str) -> Fraction | None:
    """Plain numbers, ``a/b``, LaTeX fractions of integers and mixed numbers; None for anything else."""
    compact = text.strip()
    match = re.fullmatch(r"(-?)\s*(\d+)?\s*\\frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(-?\d+)\s*\}|(\d))", compact)
    if match:
        sign, whole, *parts = match.groups()
        top, bottom = (int(next(p for p in pair if p is not None)) for pair in (parts[:2], parts[2:]))
        if bottom == 0 or (whole and (top < 0 or bottom < 0)):
            return None
        return (-1 if sign else 1) * (Fraction(int(whole or 0)) + Fraction(top, bottom))
    match = re.fullmatch(r"([-+]?\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}", compact)
    if match:
        whole, fixed, repeated = match.groups()
        nines = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(fixed))
        size = Fraction(f"{whole.lstrip('+-') or 0}.{fixed or 0}") + nines
        return -size if whole.startswith("-") else size
    match = re.fullmatch(r"([-+]?)\s*(?:(\d+)\s+)?(\d+)\s*/\s*(\d+)", compact)
    if match:
        sign, whole, numerator, denominator = match.groups()
        if int(denominator) == 0:
            return None
        return (-1 if sign == "-" else 1) * (Fraction(int(whole or 0)) + Fraction(int(numerator), int(denominator)))
    compact = re.sub(r"^\(([^(),]+|\d{1,3}(?:,\d{3})+)\)$", r"\1", compact)
    if not _NUMBER.fullmatch(compact) and not re.fullmatch(r"[-+]?\d+(?:\.\d+)?[eE][-+]?\d{1,3}", compact):
        return None
    match = _PLAIN.fullmatch(compact.replace(",", "").rstrip("."))
    if not match or not (match[2] or match[3]):
        return None
    return Fraction(match[0])
