r"""A strict reader of mathematical answers: every token has a meaning here and is given it, or the answer is not read at all.

General LaTeX readers guess, which a reward must not: math-verify's reads ``2**10`` as 2, ``101_2`` as 101 and ``2(3)`` as a mixed number,
and takes exponential time for nested parentheses.  This one knows the notation of final answers (arithmetic, roots, elementary functions,
sets, intervals, tuples, matrices, relations), builds SymPy values, and refuses everything else with `Unreadable`.  Numbers stay rational,
so decimals are exact; no power, factorial or exponential is evaluated whose value would have more than some thousand digits.  Where
math-verify reads all of an answer, the tests compare the two.

Conventions: factors written side by side bind like a product written out (``1/2x`` is ``x/2``); a whole number before a fraction of whole
numbers is a mixed number; odd roots of negative numbers are real; ``i`` is the imaginary unit and ``e`` Euler's number; ``log`` has base
10; letters stand for real numbers and their case does not matter; a list without brackets is a set.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import sympy  # type: ignore[import-untyped]

from .text import PRODUCT

_TOKEN = re.compile(
    r"(\s*)(\d+(?:\.\d+)?|\.\d+|\\(?:begin|end)\{[A-Za-z]+\}|\\mathbb(?:\{[A-Z]\}|\s*[A-Z])|\\[A-Za-z]+|\\.|[A-Za-z]+|\S)", re.ASCII
)
_BITS = 14_000
_MAGNITUDE = 100_000
_ROOT_BITS = 2_000
_ANGLE_BITS = 4_000
_FACTORIAL = 1_000
_BINOMIAL = 10
_DEGREE = 24
_TERMS = 400
_VARIABLES = 4
_DEPTH = 60
_DIGITS = 20

_GREEK_LETTERS = """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega
Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell
"""
_GREEK = frozenset(_GREEK_LETTERS.split())
#: Two letters that are a word, not a product.
_TWO_LETTERS = "am an as at be by do go he if in is it me my no of on or pm so to up us we"
_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp")},
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in ("sin", "cos", "tan")},
    "ln": sympy.log,
    "log": sympy.log,
}
_INVERSE = {"sin": sympy.asin, "cos": sympy.acos, "tan": sympy.atan}
_WORDS = frozenset({"sqrt", "pi", *_FUNCTIONS})
_SHORT_WORDS = frozenset(_TWO_LETTERS.split())
_RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "<=", r"\leq": "<=", r"\ge": ">=", r"\geq": ">=", r"\ne": "!=", r"\neq": "!="}
_RELATIONS |= {r"\lt": "<", r"\gt": ">", r"\leqslant": "<=", r"\geqslant": ">="}
_SETS = {r"\cup": "union", r"\cap": "intersection", r"\setminus": "difference", r"\backslash": "difference"}
_OPEN = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", r"\lvert": r"\rvert"}
_CLOSE = frozenset(_OPEN.values())
_STYLES = frozenset({r"\mathbf", r"\mathrm", r"\mathit", r"\boldsymbol"})
_MATRICES = frozenset({"pmatrix", "bmatrix", "matrix", "Bmatrix"})


class Unreadable(ValueError):
    """The text is not an answer in the notation of this module, or its value is too large to write down."""


class Token(str):
    """A token and whether white space stands before it."""

    spaced: bool

    def __new__(cls, text: str, spaced: bool = False) -> Token:
        token = super().__new__(cls, text)
        token.spaced = spaced
        return token


def code(text: str) -> str | None:
    """The code of an answer, or None where it is not read.

    >>> code("0.3+0.6"), code("2(3)"), code("2 3"), code("1, 1/2"), code("(x+1)(x-1)") == code("x^2-1")
    ('9/10', '6', None, 'set:{1,1/2}', True)
    """
    try:
        return _list(tokens(text))
    except (Unreadable, RecursionError):
        return None


def tokens(text: str) -> list[Token]:
    """Numbers, commands, letters and signs; words other than names of functions are no mathematics."""
    found: list[Token] = []
    for space, token in _TOKEN.findall(text):
        if token[0].isalpha() and token.isascii():
            if token in _WORDS:
                found.append(Token("\\" + token, bool(space)))
            elif len(token) == 1 or (len(token) == 2 and token.islower() and token not in _SHORT_WORDS) or PRODUCT.fullmatch(token):
                found += [Token(token[0], bool(space)), *map(Token, token[1:])]
            else:
                raise Unreadable(f"answer: got the word {token!r}; need mathematics; because words are compared as text")
        elif token == "*" and found and found[-1] == "*" and not space:
            found[-1] = Token("**", found[-1].spaced)
        else:
            found.append(Token(token, bool(space)))
    return found


# Structures: lists, relations, sets, intervals, tuples, matrices.  Each is read into its code.


def _list(items: list[Token]) -> str:
    parts = [code for item in _split(items, {",", ";"}) for code in _item(item)]
    return parts[0] if len(parts) == 1 else _set(parts)


def _set(parts: list[str]) -> str:
    return f"set:{{{','.join(sorted(set(parts)))}}}"


def _item(item: list[Token]) -> list[str]:
    if r"\pm" in item:
        if item.count(Token(r"\pm")) > 1:
            raise Unreadable("answer: got two signs ±; need one; because which of the four are meant is not said")
        at = item.index(Token(r"\pm"))
        return [_relation([*item[:at], Token(sign), *item[at + 1 :]]) for sign in "+-"]
    return [_relation(item)]


def _relation(item: list[Token]) -> str:
    sides: list[list[Token]] = [[]]
    signs: list[str] = []
    depth = 0
    for token in item:
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0 and token in _RELATIONS:
            signs.append(_RELATIONS[token])
            sides.append([])
        else:
            sides[-1].append(token)
    codes = [_combination(side) for side in sides]
    if not signs:
        return codes[0]
    if len(signs) == 1 and signs[0] in ("=", "!="):
        return f"{signs[0]}:{'|'.join(sorted(codes))}"
    if all(sign.startswith(">") for sign in signs):
        codes, signs = codes[::-1], [sign.replace(">", "<") for sign in reversed(signs)]
    return "relation:" + codes[0] + "".join(f" {sign} {code}" for sign, code in zip(signs, codes[1:], strict=True))


def _combination(item: list[Token]) -> str:
    """Unions, intersections or differences, of one kind, of sets."""
    used = {_SETS[t] for t in item if t in _SETS}
    if not used:
        return _atom(item)
    if len(used) > 1:
        raise Unreadable("answer: got unions and intersections mixed; need one kind; because their order is not said")
    (kind,) = used
    parts = [_atom(part) for part in _split(item, set(_SETS))]
    if kind == "difference":
        return f"{kind}:{'|'.join(parts)}"
    return f"{kind}:{'|'.join(sorted(set(parts)))}"


def _atom(item: list[Token]) -> str:
    if not item:
        raise Unreadable("answer: got nothing where a value belongs")
    if len(item) == 1 and item[0] in (r"\mathbb{R}", r"\mathbb R", r"\mathbbR"):
        return "tuple:(-oo,oo)"
    if item in ([r"\emptyset"], [r"\varnothing"], [r"\{", r"\}"]):
        return _set([])
    if item[0].startswith(r"\begin"):
        return _matrix(item)
    if item[0] in ("(", "[", "{", r"\{") and _match(item, 0) == len(item) - 1:
        inside = item[1:-1]
        if item[0] == r"\{" or (item[0] == "{" and len(_split(inside, {","})) > 1):
            return _set([code for part in _split(inside, {","}) for code in _item(part)])
        parts = _split(inside, {",", ";"})
        if len(parts) > 1 and item[0] != "{":
            if (item[0], item[-1]) != ("(", ")") and len(parts) != 2:
                raise Unreadable("answer: got a bracketed list; need an interval of two ends or a tuple in parentheses")
            return f"tuple:{item[0]}{','.join(map(_combination, parts))}{item[-1]}"
    return _code_of_value(_value(item))


def _matrix(item: list[Token]) -> str:
    name = item[0].removeprefix(r"\begin{").removesuffix("}")
    if name not in _MATRICES or item[-1] != rf"\end{{{name}}}":
        raise Unreadable(f"answer: got {item[0]}; need one matrix")
    inside = item[1:-1]
    rows = _split(inside, {"\\\\"})
    if rows and not rows[-1]:
        rows.pop()
    cells = [[_code_of_value(_value(cell)) for cell in _split(row, {"&"})] for row in rows]
    if len({len(row) for row in cells}) != 1:
        raise Unreadable("answer: got rows of several lengths; need one length")
    return "matrix:" + ";".join(map(",".join, cells))


def _split(items: list[Token], separators: set[str]) -> list[list[Token]]:
    """``items`` cut at the separators outside all brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in items:
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0 and token in separators:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _match(items: list[Token], start: int) -> int:
    """Where the bracket at ``start`` is closed; ``(`` and ``[`` may close each other, as intervals do."""
    stack: list[str] = []
    for i in range(start, len(items)):
        token = items[i]
        if token in _OPEN:
            stack.append(token)
        elif token in _CLOSE:
            if not stack or (_OPEN[stack[-1]] != token and not (stack[-1] in "([" and token in ")]")):
                raise Unreadable(f"answer: got {token!r} where nothing is to close")
            stack.pop()
            if not stack:
                return i
    raise Unreadable(f"answer: got {items[start]!r} that nothing closes")


# Values.


def _value(item: list[Token], depth: int = 0) -> sympy.Expr:
    if item and item[-1] == r"\infty" and (len(item) == 1 or (len(item) == 2 and item[0] in "+-")):
        return -sympy.oo if item[0] == "-" else sympy.oo
    reader = _Reader(item, depth)
    value = reader.sum()
    if reader.at < len(item):
        raise Unreadable(f"answer: got {item[reader.at]!r} after a value that was complete")
    return value


class _Reader:
    """Recursive descent over the tokens of one value."""

    def __init__(self, items: list[Token], depth: int) -> None:
        if depth > _DEPTH:
            raise Unreadable(f"answer: got brackets more than {_DEPTH} deep")
        self.items, self.at, self.depth = items, 0, depth

    @property
    def next(self) -> Token:
        return self.items[self.at] if self.at < len(self.items) else Token("")

    def take(self) -> Token:
        if self.at >= len(self.items):
            raise Unreadable("answer: got its end where a value belongs")
        self.at += 1
        return self.items[self.at - 1]

    def sum(self) -> sympy.Expr:
        sign = self.take() if self.next in ("+", "-") else "+"
        value = self.product() if sign == "+" else -self.product()
        while self.next in ("+", "-"):
            sign = self.take()
            term = self.product()
            value = _small(value + term if sign == "+" else value - term)
        return value

    def product(self) -> sympy.Expr:
        value, last = self.factor()
        divided = False
        while True:
            if self.next in ("*", r"\cdot", r"\times", "/", r"\div"):
                divided = self.take() in ("/", r"\div")
                negative = self.next == "-" and bool(self.take())
                factor, last = self.factor()
                factor = -factor if negative else factor
                value = _divide(value, factor) if divided else _small(value * factor)
                divided = divided and last != "number"
            elif self.begins_factor():
                if self.next[0].isdecimal() or self.next[0] == "." or last == "function" or divided:
                    raise Unreadable(
                        f"answer: got {self.next!r} beside a value; need a sign between them; because it can be read in two ways"
                    )
                factor, last = self.factor()
                value = _small(value * factor)
            else:
                return value

    def begins_factor(self) -> bool:
        token = self.next
        return bool(token) and (
            token[0].isalnum()
            or token[0] == "."
            or token in ("(", r"\lfloor", r"\lceil", r"\lvert", "|")
            or token in _STYLES
            or (token[0] == "\\" and (token[1:] in _GREEK or token[1:] in _FUNCTIONS or token[1:] in ("frac", "sqrt", "pi", "binom")))
        )

    def factor(self) -> tuple[sympy.Expr, str]:
        """A value with its powers and factorials, and what kind of token it ended with."""
        mixed = self.mixed()
        if mixed is not None:
            return mixed, "mixed"
        start = self.next
        if start[:1] == "\\" and start[1:] in _FUNCTIONS:
            value, open_ended = self.function()
            if open_ended:
                return value, "function"
            kind = "value"
        else:
            value, kind = self.atom(), "number" if start[:1].isdecimal() or start[:1] == "." else "value"
        if self.next == "!":
            self.take()
            value = _factorial(value)
        if self.next in ("^", "**"):
            self.take()
            value, kind = _power(value, self.exponent()), "value"
            if self.next in ("^", "**", "!"):
                raise Unreadable("answer: got two powers in a row; need braces; because they can be read in two ways")
        elif self.next == "!":
            raise Unreadable("answer: got a double factorial")
        return value, kind

    def mixed(self) -> sympy.Expr | None:
        r"""A whole number before ``\frac`` of whole numbers."""
        if not self.next.isdecimal() or self.at + 1 >= len(self.items) or self.items[self.at + 1] != r"\frac":
            return None
        start, whole = self.at, _number(self.take())
        self.take()
        parts = [self.argument_tokens(), self.argument_tokens()]
        if not all(len(part) == 1 and part[0].isdecimal() for part in parts) or self.next in ("^", "**", "!"):
            self.at = start
            return None
        return _small(whole + _divide(_number(parts[0][0]), _number(parts[1][0])))

    def argument_tokens(self) -> list[Token]:
        """What a command is applied to: a group in braces, or one token (of a number, its first digit)."""
        if self.next == "{":
            end = _match(self.items, self.at)
            inside = self.items[self.at + 1 : end]
            self.at = end + 1
            return inside
        token = self.take()
        if token.isdecimal() and len(token) > 1:
            self.items = [*self.items[: self.at - 1], Token(token[0]), Token(token[1:]), *self.items[self.at :]]
            return [Token(token[0])]
        if token.isalnum() or (token[:1] == "\\" and (token == r"\pi" or token[1:] in _GREEK)):
            return [token]
        raise Unreadable(f"answer: got {token!r} where braces belong")

    def argument(self) -> sympy.Expr:
        return _value(self.argument_tokens(), self.depth + 1)

    def exponent(self) -> sympy.Expr:
        sign = self.take() if self.next in ("-", "+") else "+"
        if self.next in ("(", "{"):
            value = self.group()
        elif self.next in (r"\frac", r"\sqrt", r"\pi") or self.next.isalnum() or self.next[:1] == "." or self.next[:1].isdecimal():
            value = self.atom()
        else:
            raise Unreadable(f"answer: got {self.next!r} as an exponent")
        return -value if sign == "-" else value

    def group(self) -> sympy.Expr:
        end = _match(self.items, self.at)
        if _OPEN[self.items[self.at]] != self.items[end]:
            raise Unreadable("answer: got brackets that do not match; need a value in parentheses")
        inside = self.items[self.at + 1 : end]
        self.at = end + 1
        return _value(inside, self.depth + 1)

    def atom(self) -> sympy.Expr:
        token = self.next
        if token in ("(", "{"):
            return self.group()
        if token in (r"\lfloor", r"\lceil", r"\lvert"):
            inside = self.group()
            return {r"\lfloor": sympy.floor, r"\lceil": sympy.ceiling, r"\lvert": sympy.Abs}[token](inside)
        self.take()
        if token == "|":
            if Token("|") not in self.items[self.at :]:
                raise Unreadable("answer: got one bar; need two")
            end = self.items.index(Token("|"), self.at)
            inside, self.at = self.items[self.at : end], end + 1
            return sympy.Abs(_value(inside, self.depth + 1))
        if token[:1].isdecimal() or token[:1] == ".":
            if self.next == "_":
                raise Unreadable("answer: got a number with a base; need a number; because bases are compared as text")
            return _number(token)
        if token in _STYLES and self.next == "{":
            return self.group()
        if token == r"\pi":
            return sympy.pi
        if token == r"\frac":
            top = self.argument()
            return _divide(top, self.argument())
        if token == r"\binom":
            top = self.argument()
            return _binomial(top, self.argument())
        if token == r"\sqrt":
            return self.root()
        if (len(token) == 1 and token.isascii() and token.isalpha()) or token[1:] in _GREEK:
            return self.letter(token)
        raise Unreadable(f"answer: got {token!r}; need a value")

    def root(self) -> sympy.Expr:
        degree = sympy.Integer(2)
        if self.next == "[":
            end = _match(self.items, self.at)
            if self.items[end] != "]":
                raise Unreadable("answer: got a root whose degree is not in brackets")
            degree, self.at = _value(self.items[self.at + 1 : end], self.depth + 1), end + 1
            if not degree.is_Integer or not 2 <= degree <= _FACTORIAL:
                raise Unreadable(f"answer: got a root of degree {degree}")
        if self.next == "(":
            radicand = self.group()
        elif self.next.isdecimal():
            radicand = _number(self.take())
        else:
            radicand = self.argument()
        return _power(radicand, 1 / degree)

    def letter(self, token: Token) -> sympy.Expr:
        name = token.lower() if len(token) == 1 else token[1:]
        if name in ("f", "g") and self.next == "(" and not self.next.spaced:
            raise Unreadable(f"answer: got {name}( ; need a value; because a function may be meant, not a product")
        if self.next == "_":
            self.take()
            subscript = "".join(self.argument_tokens())
            if not subscript.isalnum():
                raise Unreadable(f"answer: got the subscript {subscript!r}; need letters and digits")
            return sympy.Symbol(f"{name}_{subscript.lower()}", real=True)
        if name == "e":
            return sympy.E
        return sympy.I if name == "i" else sympy.Symbol(name, real=True)

    def function(self) -> tuple[sympy.Expr, bool]:
        """A function and its argument; also whether the argument had no brackets, so that nothing more can be put beside it."""
        name = self.take()[1:]
        base: sympy.Expr | None = sympy.Integer(10) if name == "log" else None
        if name == "log" and self.next == "_":
            self.take()
            base = self.argument()
        power = None
        apply = _FUNCTIONS[name]
        if self.next == "^":
            self.take()
            power = self.exponent()
            if power.is_Integer and power < 0:
                if power != -1 or name not in _INVERSE:
                    raise Unreadable(f"answer: got {name} to the power {power}; need a positive power; because the inverse may be meant")
                apply, power = _INVERSE[name], None
        open_ended = self.next not in ("(", "{")
        if open_ended:
            argument, last = self.factor()
            while self.begins_factor() and self.next not in ("(", "{") and self.next[1:] not in _FUNCTIONS:
                if self.next[0].isdecimal():
                    raise Unreadable("answer: got a number after the argument of a function")
                factor, last = self.factor()
                argument = _small(argument * factor)
            times = self.next in ("*", r"\cdot", r"\times") and "".join(self.items[self.at + 1 : self.at + 2])[1:] not in _FUNCTIONS
            if times or last == "function" or self.next in ("/", "(", "{", "!", r"\div"):
                raise Unreadable(f"answer: got {name} without brackets; need them; because where its argument ends can be read in two ways")
        else:
            argument = self.group()
        value = _apply(apply, argument) if base is None else _divide(_apply(apply, argument), _apply(apply, base))
        return (value if power is None else _power(value, power)), open_ended and self.next[1:] not in _FUNCTIONS


def _number(token: str) -> sympy.Rational:
    if len(token) > _BITS // 4:
        raise Unreadable(f"answer: got {len(token)} digits")
    if re.match(r"0\d", token):
        raise Unreadable(f"answer: got {token}; need no zeros in front; because it is a piece of a number with separators")
    value = Fraction(token)
    return sympy.Rational(value.numerator, value.denominator)


def _small(value: sympy.Expr) -> sympy.Expr:
    if value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        raise Unreadable("answer: got an undefined value")
    if value.is_Rational and value.p.bit_length() + value.q.bit_length() > _BITS:
        raise Unreadable("answer: got a number too long to write")
    return value


def _log2(value: sympy.Expr) -> float:
    """The size of a number: the logarithm of its absolute value, 0 of 0."""
    if value.is_Rational:
        return float(abs(value.p).bit_length() - value.q.bit_length()) if value else 0.0
    size = abs(value.evalf(15))
    return float(sympy.log(size, 2)) if size else 0.0


def _divide(top: sympy.Expr, bottom: sympy.Expr) -> sympy.Expr:
    if bottom == 0 or (bottom.is_number and not bottom.is_Rational and abs(bottom.evalf(30)) < 10**-_DIGITS):
        raise Unreadable("answer: got a division by zero")
    return _small(top / bottom)


def _factorial(value: sympy.Expr) -> sympy.Expr:
    if value.is_number and not (value.is_Integer and 0 <= value <= _FACTORIAL):
        raise Unreadable(f"answer: got the factorial of {value}")
    return _small(sympy.factorial(value))


def _binomial(top: sympy.Expr, bottom: sympy.Expr) -> sympy.Expr:
    if not top.is_number and bottom.is_Integer and 0 <= bottom <= _BINOMIAL:
        return _small(sympy.ff(top, bottom) / sympy.factorial(bottom))
    whole = top.is_Integer and bottom.is_Integer
    if not whole or not 0 <= bottom <= top or top > _MAGNITUDE or min(bottom, top - bottom) > _FACTORIAL:
        raise Unreadable(f"answer: got the binomial coefficient of {top} and {bottom}")
    return _small(sympy.binomial(top, bottom))


def _power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if base == 0 and exponent.is_number and not exponent.is_positive:
        raise Unreadable("answer: got zero to a power that is not positive")
    if exponent.is_number and not base.is_number and _log2(exponent) > 17:
        raise Unreadable(f"answer: got the exponent {exponent.evalf(5)}")
    if base.is_number and exponent.is_number:
        limit = _BITS if base.is_Rational and exponent.is_Integer else _MAGNITUDE
        if _log2(exponent) > 60 or max(1.0, abs(_log2(base))) * float(abs(exponent.evalf(15))) > limit:
            raise Unreadable("answer: got a power too long to write")
        if base.is_Rational and exponent.is_Rational and not exponent.is_Integer:
            if base.p.bit_length() + base.q.bit_length() > _ROOT_BITS:
                raise Unreadable("answer: got a root of a number too long")
            if base < 0 and exponent.q % 2 == 1:
                return (-1) ** int(exponent.p) * (-base) ** exponent
    return _small(base**exponent)


def _apply(function: Any, argument: sympy.Expr) -> sympy.Expr:
    if argument.is_number:
        grows = function in (sympy.exp, sympy.sinh, sympy.cosh, sympy.tanh) or not argument.is_real
        if _log2(argument) > (_MAGNITUDE if function is sympy.log else 16 if grows else _ANGLE_BITS):
            raise Unreadable(f"answer: got {function} of a number too large")
        if function is sympy.log and argument == 0:
            raise Unreadable("answer: got the logarithm of zero")
    return _small(function(argument))


# Codes of values.


def _code_of_value(value: sympy.Expr) -> str:
    if value.is_infinite:
        return str(value)
    if value.is_Rational:
        return str(Fraction(int(value.p), int(value.q)))
    if value.is_number:
        return _constant(value)
    return f"sympy:{sympy.srepr(_normal(value))}"


def _normal(value: sympy.Expr) -> sympy.Expr:
    """Expanded, cancelled and factored, where that stays small."""
    exponents = [n for p in value.atoms(sympy.Pow, sympy.exp) for n in p.exp.atoms(sympy.Rational)]
    degree = sum(max(int(abs(n.p)), int(n.q)) for n in exponents)
    if degree + len(value.free_symbols) > _DEGREE or len(value.free_symbols) > _VARIABLES or _terms(value) > _TERMS:
        return value
    return sympy.factor(sympy.cancel(sympy.together(sympy.expand(value))))


def _terms(value: sympy.Expr) -> int:
    """At most so many terms when expanded."""
    if value.is_Add:
        return min(_TERMS + 1, sum(map(_terms, value.args)))
    if value.is_Mul:
        count = 1
        for factor in value.args:
            count = min(_TERMS + 1, count * _terms(factor))
        return count
    if value.is_Pow and value.exp.is_Integer:
        terms, power = _terms(value.base), int(abs(value.exp))
        return min(_TERMS + 1, int(sympy.binomial(terms + power - 1, power)) if terms > 1 else 1)
    return 1 + max(map(_terms, value.args), default=0) if value.args else 1


def _constant(value: sympy.Expr) -> str:
    number = value.evalf(2 * _DIGITS)
    if abs(number) < sympy.Float(10) ** (-_DIGITS):
        try:
            value.evalf(_DIGITS, strict=True)
        except sympy.PrecisionExhausted:  # no digit of it is certain: zero, written as a difference
            return "0"
        if number.is_real:
            return str(sympy.Float(number, _DIGITS))
    real, imaginary = (_decimal(part) for part in number.as_real_imag())
    return real if imaginary == "0" else f"{real}+{imaginary}i"


def _decimal(part: Any) -> str:
    if abs(part) < sympy.Float(10) ** (-_DIGITS):
        return "0"
    if abs(part) > sympy.Float(10) ** (2 * _DIGITS):
        return str(sympy.Float(part, _DIGITS))
    exact = Fraction(str(sympy.Float(part, 2 * _DIGITS)))
    near = exact.limit_denominator(10**6)
    rational = abs(near - exact) < Fraction(1, 10 ** (_DIGITS + 5)) * max(Fraction(1), abs(exact))
    return str(near) if rational else str(sympy.Float(part, _DIGITS))


def library_verdict(gold: str, response: str) -> bool:
    """``verify(parse(gold), parse(response))`` of math-verify, without its timers, which work in the main thread only."""
    from math_verify import parse, verify

    read = [parse(text, parsing_timeout=None) for text in (f"${gold}$", response)]
    return bool(verify(*read, timeout_seconds=None))
