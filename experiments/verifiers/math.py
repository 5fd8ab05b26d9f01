r"""Mathematical answers as codes: two answers are one iff their codes are equal.

Scores of prediction sets and of votes ask only which answers are equal, so equality must be an equivalence relation and the reward must
be the same relation: a response is right iff its code is the gold answer's.  Plain numbers are read here; everything else is parsed by
math-verify (Kydlicek) into SymPy and brought to a normal form.

Conventions, those of the MATH data: units, currency signs, percent and degree signs are dropped (``50\%`` is 50), ``x = 5`` is 5, a
tuple is ordered and a set is not.  ``(1,000)`` is a number, ``(1, 2)`` a pair.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import Any

from .text import last_boxed, text_of

_LONGEST = 300
_LARGEST_POWER = 10_000
_LARGEST_FACTORIAL = 1000
_LARGEST_EXPANSION = 24
_DIGITS = 20
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)?(?:\.\d+)?(?<=\d)\.?")
_PLAIN = re.compile(r"([-+]?)(\d*)(?:\.(\d+))?(?:[eE]([-+]?\d{1,3}))?")
_IN_TEXT = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?")
_STATED = re.compile(r"(?i:(?:final\s+)?answer(?:\s+is)?\s*[:=]?|####)\s*([^\n]+)")
_UNIT_WORDS = (
    "degrees?|percent|dollars?|cents?|inch(?:es)?|feet|foot|ft|miles?|units?|square|cubic|sq|cm|mm|km|meters?|metres?|grams?|kg|hours?|hrs?|"
    "minutes?|mins?|seconds?|secs?|days?|weeks?|months?|years?|mph|points?|people|apples?|students?|books?|ways?"
)
_UNITS = re.compile(rf"(?<=[\d}}\s)])\s*(?:{_UNIT_WORDS})\b(?:\s*(?:\^\s*\{{?[23]\}}?))?\.?", re.IGNORECASE)
_TEXT_UNIT = re.compile(r"(?<=[\d})\s])\s*\\(?:text|mathrm|mbox|textrm)\{[^{}]*\}(?:\s*\^\s*\{?[23]\}?)?\s*$")
_POWER = re.compile(r"(?:\^|\*\*)\s*(?:\{([^{}]*)\}|([-+]?\w+))")
_WORD = re.compile(r"(?<![A-Za-z])(?!(?:sqrt|sin|cos|tan|log|exp|cup|abs)(?![A-Za-z]))[A-Za-z]{3,}")
_DROPPED = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\:|(?<!\\)\\ |\\displaystyle|\\dots|\\$|\^\s*\{?\\circ\}?|\\%|%|°|\\\$|\$|€|£")


def extract_answer(text: str) -> str | None:
    r"""The answer as written: the last ``\boxed{}``, else what follows the last ``####`` or "answer is", else the last number.

    >>> extract_answer(r"thus \boxed{\frac12}."), extract_answer("5+1=6\n#### 6"), extract_answer("The answer is 42.")
    ('\\frac12', '6', '42')
    >>> extract_answer("it costs $1,200 today")
    '1,200'
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed or None
    stated = _STATED.findall(text)
    if stated:
        answer = stated[-1].strip().rstrip(".").strip("*` ")
        if canonical(answer) is not None and (len(answer.split()) <= 6 or "\\" in answer):
            return answer
    numbers = _IN_TEXT.findall(stated[-1] if stated and _IN_TEXT.search(stated[-1]) else text)
    return numbers[-1].replace("$", "").rstrip(",") if numbers else None


@functools.lru_cache(maxsize=100_000)
def canonical(answer: str) -> str | None:
    r"""The code of an answer as written, or None when nothing is there.

    Exact for rational numbers; other real numbers are compared to 20 digits; sets, intervals and tuples entry by entry; expressions with
    variables by SymPy's normal form, which is not complete: unequal codes of equal expressions are possible, equal codes of unequal ones
    only beyond 20 digits.  What cannot be parsed is compared as text without white space and case.  Powers and factorials so large that
    evaluating them would never end are compared as text too.

    >>> [canonical(a) for a in ("1/2", "0.5", r"\frac{1}{2}", r"\dfrac12", ".50", r"2^{-1}")]
    ['1/2', '1/2', '1/2', '1/2', '1/2', '1/2']
    >>> canonical(r"\{2, 1\}") == canonical(r"\{1,2\}"), canonical("(2, 1)") == canonical("(1, 2)"), canonical("1,000"), canonical(" ")
    (True, False, '1000', None)
    """
    text = _clean(answer)
    if not text:
        return None
    value = _number(text)
    if value is not None:
        return str(value)
    if len(text) <= _LONGEST and not _WORD.search(re.sub(r"\\(?:begin|end)\{[a-z]+\}|\\[A-Za-z]+", " ", text)) and not _explosive(text):
        code = _parsed(text)
        if code is not None:
            return code
    return "text:" + re.sub(r"[\s{}]|\\text|\\mathrm", "", text).lower()


def answer_code(text: str) -> str | None:
    """The code of a whole response: ``canonical(extract_answer(text))``; ``answer_fn`` of the trainer."""
    answer = extract_answer(text_of(text))
    return None if answer is None else canonical(answer)


def math_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    r"""1.0 where the response's code is the gold answer's.  TRL's reward-function signature.

    >>> math_reward([r"\boxed{0.5}", "#### 2"], answer=["1/2", "1/2"])
    [1.0, 0.0]
    """
    codes = [answer_code(text_of(c)) for c in completions]
    return [float(code is not None and code == canonical(gold)) for code, gold in zip(codes, answer, strict=True)]


def _clean(answer: str) -> str:
    text = answer.strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) >= 2 * len(opening):
            text = text[len(opening) : -len(closing)]
    text = text.replace("−", "-").replace("–", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
    text = text.replace("{,}", ",").replace("\\lbrace", "\\{").replace("\\rbrace", "\\}").replace("π", "\\pi ").replace("√", "\\sqrt ")
    text = _DROPPED.sub("", text).rstrip(".").strip()
    text = _UNITS.sub("", _TEXT_UNIT.sub("", text)).strip()
    text = re.sub(r"^\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}$", r"\1", text)
    return re.sub(r"^[A-Za-z]\w?(?:\([a-z]\))?\s*(?:=|\\in(?![a-z]))\s*(?=\S)(?!.*=)", "", text).strip()


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
        sign, whole, top, bottom = match.groups()
        return None if int(bottom) == 0 else (-1 if sign == "-" else 1) * (Fraction(int(whole or 0)) + Fraction(int(top), int(bottom)))
    compact = re.sub(r"^\(([^(),]+|\d{1,3}(?:,\d{3})+)\)$", r"\1", compact)
    if not _NUMBER.fullmatch(compact) and not re.fullmatch(r"[-+]?\d+(?:\.\d+)?[eE][-+]?\d{1,3}", compact):
        return None
    match = _PLAIN.fullmatch(compact.replace(",", "").rstrip("."))
    if not match or not (match[2] or match[3]):
        return None
    return Fraction(match[0])


def _explosive(text: str) -> bool:
    """Whether evaluating ``text`` could take for ever: towers, large powers, factorials and binomials, sums and integrals."""
    if re.search(r"\\(?:sum|int|prod|lim|iint|oint)(?![a-z])|\d\s*:\s*\d", text):
        return True
    if "!" in text or "binom" in text or "choose" in text:
        return any(int(n) > _LARGEST_FACTORIAL for n in re.findall(r"\d+", text)) or "!!" in text or text.count("!") > 3 or ")!" in text
    for braced, bare in _POWER.findall(text):
        exponent = braced or bare
        if any(int(n) > _LARGEST_POWER for n in re.findall(r"\d+", exponent)) or "^" in exponent:
            return True
    return (
        len(_POWER.findall(text)) < text.count("^") or re.search(r"\^\s*(?:\{[^{}]*\}|\w+)\s*\^", text) is not None or text.count("^") > 8
    )


def _parsed(text: str) -> str | None:
    import logging

    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
    from sympy import Basic

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    text = re.sub(r"(?<![\\\w])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\sqrt\s*(\d)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\\\w])pi(?!\w)", r"\\pi ", text)
    configs = (LatexExtractionConfig(), ExprExtractionConfig())
    try:
        found = parse(f"${text}$", extraction_config=configs, parsing_timeout=None, fallback_mode="first_match")
        if not found or _bare(str(found[-1])) != _bare(text):
            return None  # only a part of the text was understood
        return _code(found[0]) if isinstance(found[0], Basic) else _matrix_code(found)
    except (ValueError, TypeError, AttributeError, NotImplementedError, ArithmeticError, RecursionError, KeyError, IndexError):
        return None


def _bare(text: str) -> str:
    return re.sub(r"[\s${}]|\\(?:left|right)", "", text)


def _matrix_code(found: list[Any]) -> str | None:
    from sympy import MatrixBase

    if not found or not isinstance(found[0], MatrixBase):
        return None
    return "matrix:" + ";".join(",".join(_code(entry) for entry in row) for row in found[0].tolist())


def _code(value: Any) -> str:
    import sympy

    if isinstance(value, (sympy.FiniteSet, sympy.Union)):
        name = "set" if isinstance(value, sympy.FiniteSet) else "union"
        return f"{name}:{{{','.join(sorted(map(_code, value.args)))}}}"
    if isinstance(value, sympy.Tuple):
        return f"tuple:({','.join(map(_code, value))})"
    if isinstance(value, sympy.Interval):
        return f"interval:{'(' if value.left_open else '['}{_code(value.start)},{_code(value.end)}{')' if value.right_open else ']'}"
    if isinstance(value, sympy.Rel):
        sides = sorted(map(_code, value.args)) if isinstance(value, (sympy.Eq, sympy.Ne)) else [_code(a) for a in value.canonical.args]
        return f"{type(value.canonical).__name__}:{'|'.join(sides)}"
    if not isinstance(value, sympy.Expr):
        return f"sympy:{sympy.srepr(value)}"
    value = value.doit().xreplace({f: sympy.Rational(str(f)) for f in value.atoms(sympy.Float)})
    if value.is_Rational:
        return str(Fraction(int(value.p), int(value.q)))
    if value.is_number:
        return _constant(value)
    degree = sum(int(abs(p.exp)) for p in value.atoms(sympy.Pow) if p.exp.is_Integer)
    if degree + len(value.free_symbols) <= _LARGEST_EXPANSION and len(value.free_symbols) <= 4:
        value = sympy.factor(sympy.cancel(sympy.together(sympy.expand(value))))
    return f"sympy:{sympy.srepr(value)}"


def _constant(value: Any) -> str:
    import sympy

    if value.has(sympy.zoo, sympy.nan):
        raise ValueError("answer: got an undefined number; need a value; because nothing equals it")
    if value.is_infinite:
        return str(value)
    real, imaginary = value.evalf(2 * _DIGITS).as_real_imag()
    parts = [_decimal(part) for part in (real, imaginary)]
    return parts[0] if parts[1] == "0" else f"{parts[0]}+{parts[1]}i"


def _decimal(part: Any) -> str:
    import sympy

    if abs(part) < sympy.Float(10) ** (-_DIGITS):
        return "0"
    exact = Fraction(str(sympy.Float(part, 2 * _DIGITS)))
    near = exact.limit_denominator(10**6)
    return str(near) if abs(near - exact) < Fraction(1, 10 ** (_DIGITS + 5)) * max(1, abs(exact)) else str(sympy.Float(part, _DIGITS))
