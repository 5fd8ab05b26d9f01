"""Inside the sandbox of the tests: run them against a candidate that is reachable only by calls that carry data.

Copied in, never imported by the trainer.  Writes the verdict, one JSON object, on standard output.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import sys
from typing import Any

_BOX = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _BOX)
plain = importlib.import_module("plain")
sys.path.pop(0)

#: Exceptions a candidate may raise inside a test under their own name.  Those that steer loops or processes are not among them.
_PASSED_ON = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, (StopIteration, StopAsyncIteration, AttributeError, OSError, Warning, UnicodeError))
    and not issubclass(kind, BaseExceptionGroup)
}


class Lost(BaseException):
    """The candidate's process is gone or speaks nonsense; no test may catch this."""


class Link:
    """Requests and answers over two pipes; counts the calls that were answered."""

    def __init__(self, requests: Any, answers: Any) -> None:
        self.requests, self.answers = requests, answers
        self.answered = 0
        self.broken: str | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self.requests.write(json.dumps(request) + "\n")
            self.requests.flush()
            line = self.answers.readline(1 << 26)
            answer = json.loads(line)
            if not isinstance(answer, dict):
                raise ValueError("answer: no object")
            if "unloaded" in answer:
                raise ConnectionError(str(answer["unloaded"]))
        except (OSError, ValueError, RecursionError) as error:
            self.broken = f"the program ended, broke off or did not load: {error}"[:500]
            raise Lost(self.broken) from None
        self.answered += 1
        if "error" in answer:
            name, message = map(str, answer["error"])
            raise _PASSED_ON.get(name, RuntimeError)(f"{name}: {message}")
        return answer


class Remote:
    """A function, class or object that lives with the candidate.  Equality is identity here; nothing of it is believed but data."""

    def __init__(self, link: Link, where: dict[str, Any]) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_where", where)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        link = self._link
        sent = list(arguments)
        request = {"do": "call", "arguments": plain.encode(sent, _number), "keywords": plain.encode(keywords, _number)}
        answer = link.ask(request | self._where)
        self._copy_back(sent, answer.get("arguments"))
        return self._value(answer.get("value"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._value(self._link.ask({"do": "get", "attribute": name} | self._where).get("value"))

    def __iter__(self) -> Any:
        return iter(self._value(self._link.ask({"do": "iterate"} | self._where).get("value")))

    def __bool__(self) -> bool:
        raise TypeError("the program returned an object that is no plain value; it has no truth here")

    def _value(self, data: Any) -> Any:
        return plain.decode(data, lambda number: Remote(self._link, {"handle": number}))

    def _copy_back(self, sent: list[Any], data: Any) -> None:
        """What the call changed in place, for tests that look at their own list afterwards."""
        received = self._value(data)
        for mine, theirs in zip(sent, received if isinstance(received, list) else [], strict=False):
            if type(mine) is not type(theirs) or plain.encode(mine, id) == plain.encode(theirs, id):
                continue
            if isinstance(mine, list):
                mine[:] = theirs
            elif isinstance(mine, (dict, set)):
                mine.clear()
                mine.update(theirs)


def _number(value: Any) -> int:
    if isinstance(value, Remote) and "handle" in value._where:
        return int(value._where["handle"])
    raise TypeError(f"a test passed a {type(value).__name__}, which cannot cross as data")


def free_names(source: str, known: set[str]) -> set[str]:
    """Names that ``source`` reads and neither binds nor finds among ``known`` and the builtins."""
    tree = ast.parse(source)
    read, bound = set(), set(known) | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return read - bound


def main() -> None:
    verdict = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    sys.set_int_max_str_digits(0)
    with open(f"{_BOX}/tests", encoding="utf-8") as f:
        job = json.load(f)
    with open(3, "w", encoding="utf-8") as requests, open(4, encoding="utf-8") as answers:
        link = Link(requests, answers)
        space: dict[str, Any] = {"__name__": "tests"}
        message = ""
        try:
            exec(compile(job["prelude"], "prelude.py", "exec"), space)
            for name in {*free_names(job["tests"], set(space)), *job["names"]}:
                space[name] = Remote(link, {"name": name})
            exec(compile(job["tests"], "tests.py", "exec"), space)
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"[:500]
        if not message and link.broken:
            message = link.broken
        if not message and not link.answered:
            message = "the tests called nothing"
    result = json.dumps({"passed": not message, "message": message, "calls": link.answered})
    os.write(verdict, result.encode())
    os._exit(0)


if __name__ == "__main__":
    main()
