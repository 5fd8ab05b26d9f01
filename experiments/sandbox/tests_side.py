"""Inside the sandbox of the tests: run them against a candidate that is reachable only by calls that carry data.

Copied in, never imported by the trainer.  Writes the verdict, one JSON object, on standard output.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator
from typing import Any, NoReturn

_BOX = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _BOX)
plain, names = importlib.import_module("plain"), importlib.import_module("names")
sys.path.pop(0)

#: Marks exceptions that the program raised.
_THEIRS = "_raised_by_the_program"

#: Exceptions a program may raise inside a test under the nearest of these names.  Those that steer loops are not among them, nor those
#: that cannot be made from a text.
_PASSED_ON: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, (StopIteration, StopAsyncIteration, UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError))
    and not issubclass(kind, BaseExceptionGroup)
}
_NONSENSE = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, MemoryError)
_MOST_AT_ONCE = 1024


class Lost(BaseException):
    """The program's process is gone or speaks nonsense; no test may catch this."""


class Link:
    """Requests and answers over two pipes; counts the calls that were answered."""

    def __init__(self, requests: Any, answers: Any) -> None:
        self.requests, self.answers = requests, answers
        self.answered = 0
        self.changes = 0
        self.broken: str | None = None
        self.space: dict[str, Any] = {}
        self.named: dict[str, Remote] = {}
        self.remotes: dict[int, Remote] = {}
        self.functions: list[Any] = []

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer to a request; meanwhile the program may call functions that the tests gave to it."""
        self.changes += request["do"] in ("call", "set")
        while True:
            try:
                self._send(request)
                answer = json.loads(self.answers.readline(1 << 26))
                if "unloaded" in answer:
                    raise ConnectionError(str(answer["unloaded"]))
                if "callback" in answer:
                    function = self.function(int(answer["callback"]))
                    arguments, keywords = plain.decode(answer["arguments"], self.find)
                    keywords = dict(keywords)
                error = plain.decode_error(answer["error"], _PASSED_ON, self.find) if "error" in answer else None
            except _NONSENSE as problem:
                self.lose(problem)
            if "callback" not in answer:
                break
            request = self._call(function, arguments, keywords)
        self.answered += 1
        if error is not None:
            setattr(error, _THEIRS, True)
            raise error
        return answer

    def _call(self, function: Any, arguments: Any, keywords: Any) -> dict[str, Any]:
        try:
            return {"value": plain.encode(function(*arguments, **keywords), self.number)}
        except Exception as error:
            return {"error": plain.encode_error(error, self.number)}

    def _send(self, request: dict[str, Any]) -> None:
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()

    def lose(self, problem: object) -> NoReturn:
        self.broken = f"the program ended, broke off or did not load: {problem}"[:500]
        raise Lost(self.broken) from None

    def decode(self, data: Any, made: list[Any] | None = None) -> Any:
        try:
            return plain.decode(data, self.find, made)
        except _NONSENSE as problem:
            self.lose(problem)

    def find(self, number: int) -> Any:
        """What a number from the program stands for: an object of it, or a function that it was given."""
        if number < 0:
            return self.function(number)
        if number not in self.remotes:
            self.remotes[number] = Remote(self, {"handle": number})
        return self.remotes[number]

    def function(self, number: int) -> Any:
        if not -len(self.functions) <= number < 0:
            raise ValueError("function: got one that the program was not given; need one of those; because it may call no other")
        return self.functions[-1 - number]

    def number(self, value: Any) -> int:
        """The number under which the program finds ``value``: an object of its own, or a function that the tests themselves define."""
        if isinstance(value, Remote):
            where = _part(value, "where")
            if "handle" in where:
                return int(where["handle"])
            return int(_part(self.decode(self.ask({"do": "hold"} | where)["value"]), "where")["handle"])
        if isinstance(value, types.FunctionType) and value.__globals__ is self.space:
            known = [i for i, function in enumerate(self.functions) if function is value]
            if not known:
                self.functions.append(value)
            return -1 - (known[0] if known else len(self.functions) - 1)
        raise TypeError(f"a test passed a {type(value).__name__}, which cannot cross as data")


class Remote:
    """A function, class or object that lives with the program.  Equality is identity here; nothing of it is believed but data."""

    def __init__(self, link: Link, where: dict[str, Any]) -> None:
        object.__setattr__(self, "__parts", {"link": link, "where": where, "stream": None})

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        link = _part(self, "link")
        seen: dict[int, tuple[int, Any]] = {}
        request = {"do": "call", "arguments": plain.encode([list(arguments), keywords], link.number, seen)}
        answer = link.ask(request | _part(self, "where"))
        containers = [container for _, container in seen.values()]
        received = link.decode(answer.get("value"), list(containers))
        try:
            value, changed = received
            changed = [(containers[range(len(containers))[i]], list(items)) for i, items in changed if i >= 0]
            for container, items in changed:
                plain.refill(container, items)
        except _NONSENSE as problem:
            link.lose(problem)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        link = _part(self, "link")
        return link.decode(link.ask({"do": "get", "attribute": name} | _part(self, "where")).get("value"))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        link = _part(self, "link")
        link.ask({"do": "set", "attribute": name, "value": plain.encode(value, link.number)} | _part(self, "where"))

    def __iter__(self) -> Any:
        return iter(_stream(self))

    def __next__(self) -> Any:
        stream = _stream(self)
        if not stream.once:
            raise TypeError("the program returned an object that is no iterator")
        return next(iter(stream))

    def __bool__(self) -> bool:
        raise TypeError("the program returned an object that is no plain value; it has no truth here")


def _part(remote: Remote, name: str) -> Any:
    return object.__getattribute__(remote, "__parts")[name]


class _Stream:
    """The items of an object of the program, fetched as they are asked for.

    An iterator gives each item once and ends once.  Anything else gives the same items every time until the program is called again:
    otherwise an object could show one list to one assertion and another to the next.
    """

    def __init__(self, remote: Remote) -> None:
        self.link = _part(remote, "link")
        answer = self.link.ask({"do": "iterate"} | _part(remote, "where"))
        self.source = self.link.decode(answer.get("value"))
        if not isinstance(self.source, Remote):
            self.link.lose("an iterator that is none")
        self.once = answer.get("itself") is True
        self.made_at = self.link.changes
        self.items: list[Any] = []
        self.used, self.done, self.count = 0, False, 1

    def __iter__(self) -> Iterator[Any]:
        position = 0
        while True:
            if self.once:
                position = self.used
            if position >= len(self.items):
                if self.done:
                    return
                self._fetch()
                continue
            position += 1
            self.used = max(self.used, position)
            yield self.items[position - 1]

    def _fetch(self) -> None:
        answer = self.link.ask({"do": "next", "count": self.count} | _part(self.source, "where"))
        items = self.link.decode(answer.get("value"))
        self.done = answer.get("done") is True
        if not isinstance(items, list) or not (items or self.done):
            self.link.lose("no items")
        self.items += items
        self.count = min(2 * self.count, _MOST_AT_ONCE)


def _stream(remote: Remote) -> _Stream:
    parts: dict[str, Any] = object.__getattribute__(remote, "__parts")
    known: _Stream | None = parts["stream"]
    if known is None or not (known.once or known.made_at == parts["link"].changes):
        known = parts["stream"] = _Stream(remote)
    return known


def main() -> None:
    verdict = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    sys.set_int_max_str_digits(0)
    with open(f"{_BOX}/tests", encoding="utf-8", errors="surrogatepass") as f:
        job = json.load(f)
    link = Link(os.fdopen(3, "w", encoding="utf-8"), os.fdopen(4, encoding="utf-8"))
    result = _run(job, link)
    os.write(verdict, json.dumps({**result, "calls": link.answered}).encode())
    os._exit(0)  # closing the pipe to a program that is gone would raise


def _run(job: dict[str, Any], link: Link) -> dict[str, Any]:
    """``passed`` and ``message``, or ``unusable``: why no program at all can pass, which is no verdict."""
    space = link.space = {"__name__": "tests"}
    try:
        prelude, tests = compile(job["prelude"], "prelude.py", "exec"), compile(job["tests"], "tests.py", "exec")
        _bind(link, names.free_names(job["prelude"]))
        exec(prelude, space)
        own = set(space) - set(link.named)
        _bind(link, {*names.entry_points(job["tests"], own, job["names"]), *job["names"]})
    except BaseException as error:
        return {"passed": False, "message": _told(error)} if link.answered or link.broken else {"unusable": _told(error)}
    try:
        exec(tests, space)
    except ImportError as error:
        if not hasattr(error, _THEIRS) and (not link.answered or _is_missing(error)):
            return {"unusable": _told(error)}
        return {"passed": False, "message": _told(error)}
    except BaseException as error:
        return {"passed": False, "message": _told(error)}
    message = link.broken or ("" if link.answered else "the tests called nothing")
    return {"passed": not message, "message": message}


def _bind(link: Link, wanted: set[str]) -> None:
    link.named |= {name: Remote(link, {"name": name}) for name in wanted - set(link.named)}
    link.space |= {name: link.named[name] for name in wanted}


def _is_missing(error: ImportError) -> bool:
    return isinstance(error, ModuleNotFoundError) and importlib.util.find_spec((error.name or "os").partition(".")[0]) is None


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # the text of an error may need the program, which may be gone
        return type(error).__name__


if __name__ == "__main__":
    main()
