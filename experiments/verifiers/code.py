"""Programs: taken from a response, run against their tests in a sandbox."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.sandbox import FunctionTests, Job, ProgramTests, Runner, Sandbox

from .text import text_of

_OPEN = re.compile(r"([ \t]*)(`{3,}(?=[^`]*$)|~{3,})(.*)")
_LANGUAGE = re.compile(r"\{?[ \t]*\.?([\w+.-]+)(?![\w+.=-])")
_PYTHON = re.compile(r"i?py(?:thon)?[\d.]*", re.IGNORECASE)
_WITHIN_LINE = re.compile(r"`{3}[ \t]*(?:python|py)[\d.]*[ \t]*\n(.*?)(?:\n[ \t]*`{3}|\Z)", re.DOTALL | re.IGNORECASE)
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]+(?:\([^)]{0,200}\)|.*)\n?", re.MULTILINE)
_MOST_FENCES = 16


@dataclass(frozen=True)
class Block:
    """A fenced block: what it says it is, its text, and whether its end was seen."""

    language: str
    body: str
    closed: bool


def fenced_blocks(text: str) -> list[Block]:
    r"""The fenced blocks of a Markdown text that are Python, or do not say what they are.

    Fences are those of CommonMark, with what models write besides: attributes behind the language, a new block before the old one was
    closed, a fence inside a string of the program, which ends nothing.

    >>> fenced_blocks("~~~{.python}\nx = '''\n~~~\n'''\n~~~")
    [Block(language='python', body="x = '''\n~~~\n'''\n", closed=True)]
    """
    blocks: list[Block] = []
    lines: list[str] = []
    indent, fence, language, asked = 0, "", "", 0

    def end(*, closed: bool) -> None:
        body = "\n".join(lines) + "\n" * closed
        if not closed and body.rstrip().endswith(fence):
            body = body.rstrip().removesuffix(fence)
        if not language or _PYTHON.fullmatch(language):
            blocks.append(Block(language, body, closed))

    for line in text.replace("\r\n", "\n").split("\n"):
        mark = _OPEN.fullmatch(line)
        if fence and mark and asked < _MOST_FENCES:
            asked += 1
            if _inside_string("\n".join(lines)):
                mark = None
        info = mark[3].strip() if mark else ""
        named = _language(info)
        if mark and fence and mark[2].startswith(fence) and not info:
            end(closed=True)
            fence, lines, asked = "", [], 0
        elif mark and (not fence or (mark[2].startswith(fence) and _PYTHON.fullmatch(named))):
            if fence:
                end(closed=False)
            indent, fence, language, lines, asked = len(mark[1]), mark[2], named, [], 0
        elif fence:
            lines.append(line[min(indent, len(line) - len(line.lstrip(" \t"))) :])
    if fence:
        end(closed=False)
    return blocks


def _language(info: str) -> str:
    """The language that an info string names.  Other text behind a fence counts as one: it is not taken for Python."""
    word = _LANGUAGE.match(info)
    if word:
        return word[1]
    return "" if re.match(r"(?:\{?[ \t]*[\w-]+=|$)", info) else info


def _inside_string(source: str) -> bool:
    """Whether a triple-quoted string is open at the end of ``source``.  Tokens only: a parser may overflow on what nobody has read."""
    if "'''" not in source and '"""' not in source:
        return False
    try:
        for _ in tokenize.generate_tokens(io.StringIO(source).readline):
            pass
    except tokenize.TokenError as error:
        return "string" in str(error.args[0])
    except (SyntaxError, ValueError):
        return False
    return False


def extract_code(text: str, prompt: str = "", entry_point: str | Sequence[str] = "") -> str:
    r"""The program of a response: its last fenced Python block, else the text itself.

    A block that defines ``entry_point`` (or one of several) goes before one that does not, such as an example of its use; a block that
    is closed before one that is not; a block that is called Python before one without a name.  A body that continues ``prompt``
    (a function head) and does not define ``entry_point`` anew is put behind it; one that does is put behind everything else in ``prompt``.

    >>> extract_code("Sure:\n```python\ndef f(): return 1\n```\nDone.")
    'def f(): return 1\n'
    >>> extract_code("    return 1\n", prompt="def f():\n", entry_point="f")
    'def f():\n    return 1\n'
    >>> extract_code("def f(): return g()", prompt="def g(): return 2\ndef f():\n    'Two.'\n", entry_point="f")
    'def g(): return 2\ndef f(): return g()'
    """
    names = [entry_point] if isinstance(entry_point, str) else list(entry_point)
    blocks = fenced_blocks(text)
    if blocks:
        code = max(enumerate(blocks), key=lambda ib: (_defines(ib[1].body, names), ib[1].closed, bool(ib[1].language), ib[0]))[1].body
    else:
        within = _WITHIN_LINE.findall(text)
        code = within[-1] if within else text
    if not prompt:
        return code
    return _join(_without(prompt, names) if _defines(code, names) else prompt, code)


def _defines(code: str, names: Sequence[str]) -> bool:
    among = "|".join(re.escape(name) for name in names if name)
    head = rf"^[ \t]*(?:(?:async[ \t]+)?(?:def|class)[ \t]+(?:{among})\b|(?:{among})[ \t]*(?::[^=\n]+)?=(?!=))"
    return bool(among) and re.search(head, code, re.MULTILINE) is not None


def _join(before: str, code: str) -> str:
    """``code`` behind ``before``; imports from ``__future__`` come first, as Python wants them."""
    if not before or not _FUTURE.search(code):
        return before + code
    return "".join(line.rstrip("\n") + "\n" for line in _FUTURE.findall(code)) + before + _FUTURE.sub("\n", code)


def _without(prompt: str, names: Sequence[str]) -> str:
    """The statements of ``prompt`` but the definitions of ``names``."""
    body = None
    for unfinished in ("    pass\n", ""):
        with contextlib.suppress(SyntaxError):
            body = ast.parse(prompt + unfinished).body
    lines = prompt.splitlines()
    if body is None:
        return "".join(f"{line}\n" for line in lines if re.match(r"(?:from\s+\S+\s+)?import\s", line))
    kept: set[int] = set()
    for node in body:
        if getattr(node, "name", None) not in names:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            kept.update(range(first - 1, min(node.end_lineno or first, len(lines))))
    return "".join(f"{lines[i]}\n" for i in sorted(kept))


def pack_tests(tests: FunctionTests | ProgramTests, prompt: str = "", entry_point: str = "") -> str:
    """Tests as one string, the ``answer`` column of a code task."""
    if isinstance(tests, ProgramTests):
        return json.dumps({"cases": tests.cases})
    return json.dumps({"tests": tests.tests, "names": tests.names, "prelude": tests.prelude, "prompt": prompt, "entry_point": entry_point})


def job_of(completion: Any, answer: str) -> Job:
    """The program of a response with the tests of `pack_tests`."""
    spec = json.loads(answer)
    if "cases" in spec:
        return Job(extract_code(text_of(completion)), ProgramTests(tuple((i, o) for i, o in spec["cases"])))
    source = extract_code(text_of(completion), spec["prompt"], spec["entry_point"] or spec["names"])
    return Job(source, FunctionTests(spec["tests"], tuple(spec["names"]), spec["prelude"]))


class CodeReward:
    """Reward function for code: 1.0 where the program of the response passes its tests.

    Parameters
    ----------
    runner : a `Sandbox` or another `Runner`; default ``Sandbox()``, which refuses to exist where programs cannot be isolated.
    max_tests : run at most so many cases of a program's tests.
    """

    def __init__(self, runner: Runner | None = None, max_tests: int | None = None) -> None:
        if max_tests is not None and max_tests < 1:
            raise ValueError(f"max_tests: got {max_tests}; need at least 1; because a program without tests is never right")
        self.runner = Sandbox() if runner is None else runner
        self.max_tests = max_tests
        self.__name__ = "code_reward"

    def __call__(self, completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
        jobs = [job_of(c, a) for c, a in zip(completions, answer, strict=True)]
        jobs = [Job(j.source, ProgramTests(j.tests.cases[: self.max_tests])) if isinstance(j.tests, ProgramTests) else j for j in jobs]
        return [float(v.passed) for v in self.runner.check_all(jobs)]
