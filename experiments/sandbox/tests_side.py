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
from typing import Any

_BOX = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _BOX)
plain, names = importlib.import_module("plain"), importlib.import_module("names")
sys.path.pop(0)

#: Marks exceptions that the program raised.
_THEIRS = "_raised_by_the_program"

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
            error = _PASSED_ON.get(name, RuntimeError)(f"{name}: {message}")
            setattr(error, _THEIRS, True)
            raise error
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
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(job["prelude"], "prelude.py", "exec"), space)
        tests = compile(job["tests"], "tests.py", "exec")
        wanted = {*names.entry_points(job["tests"], set(space), job["names"]), *job["names"]}
    except Exception as error:
        return {"unusable": _told(error)}
    space |= {name: Remote(link, {"name": name}) for name in wanted}
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


def _is_missing(error: ImportError) -> bool:
    return isinstance(error, ModuleNotFoundError) and bool(error.name) and importlib.util.find_spec(error.name.partition(".")[0]) is None


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # the text of an error may need the program, which may be gone
        return type(error).__name__


if __name__ == "__main__":
    main()
