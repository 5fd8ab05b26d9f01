"""Inside the candidate's sandbox: load the program, then answer calls until the tests hang up.  Copied in, never imported by the trainer.

Nothing here is secret and nothing here decides: tests, expected values and the verdict live in another sandbox.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from typing import Any

_BOX = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _BOX)
plain = importlib.import_module("plain")
sys.path.pop(0)


class Served:
    """The program and the objects of it that the tests hold."""

    def __init__(self, requests: Any, answers: Any) -> None:
        self.requests, self.answers = requests, answers
        self.module = types.ModuleType("candidate")
        self.module.__file__ = f"{_BOX}/source"
        sys.modules["candidate"] = self.module
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.failures: dict[int, BaseException] = {}

    def load(self) -> str | None:
        """Run the program; why it did not load, or None."""
        try:
            with open(self.module.__file__ or "", encoding="utf-8", errors="surrogatepass") as f:
                exec(compile(f.read(), self.module.__file__ or "", "exec"), self.module.__dict__)
        except BaseException as error:
            return f"{type(error).__name__}: {error}"[:500]
        return None

    def handle(self, value: Any) -> int:
        if isinstance(value, Callback):
            return value.number
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def find(self, number: int) -> Any:
        return self.objects[number] if number >= 0 else Callback(self, number)

    def send(self, answer: dict[str, Any]) -> None:
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def answer(self, line: str) -> None:
        try:
            answer = self.respond(json.loads(line))
        except BaseException as error:
            answer = {"error": plain.encode_error(error, self.handle)}
        self.send(answer)

    def respond(self, request: dict[str, Any]) -> dict[str, Any]:
        if "name" in request:
            if request["name"] not in self.module.__dict__:
                return {"unloaded": f"the program does not define {request['name']}"}
            target = self.module.__dict__[request["name"]]
        else:
            target = self.objects[request["handle"]]
        if request["do"] == "call":
            return self.call(target, request["arguments"])
        if request["do"] == "set":
            setattr(target, request["attribute"], plain.decode(request["value"], self.find))
            return {}
        if request["do"] == "iterate":
            iterator = iter(target)
            return {"value": ["handle", self.handle(iterator)], "itself": iterator is target}
        if request["do"] == "next":
            return self.next(target, request["handle"], request["count"])
        value = getattr(target, request["attribute"]) if request["do"] == "get" else target
        return {"value": ["handle", self.handle(target)] if value is target else plain.encode(value, self.handle)}

    def call(self, target: Any, data: Any) -> dict[str, Any]:
        made: list[Any] = []
        arguments, keywords = plain.decode(data, self.find, made)
        known = {id(container): (i, container) for i, container in enumerate(made)}
        before = [plain.encode(plain.contents(container), id, dict(known)) for container in made]
        value = target(*arguments, **keywords)
        after = [plain.encode(plain.contents(container), id, dict(known)) for container in made]
        changed = [[i, plain.contents(made[i])] for i in range(len(before)) if before[i] != after[i]]
        return {"value": plain.encode([value, changed], self.handle, known)}

    def next(self, iterator: Any, number: int, count: int) -> dict[str, Any]:
        if number in self.failures:
            raise self.failures.pop(number)
        items: list[Any] = []
        done = False
        while len(items) < count and not done:
            try:
                items.append(next(iterator))
            except StopIteration:
                done = True
            except BaseException as error:
                if not items:
                    raise
                self.failures[number] = error  # raised when the items before it are used up
                break
        return {"value": plain.encode(items, self.handle), "done": done}


class Callback:
    """A function of the tests that the program was given."""

    def __init__(self, served: Served, number: int) -> None:
        self.served, self.number = served, number

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        served = self.served
        served.send({"callback": self.number, "arguments": plain.encode([list(arguments), keywords], served.handle)})
        for line in served.requests:
            reply = json.loads(line)
            if "do" in reply:  # the function calls the program in turn
                served.answer(line)
            elif "error" in reply:
                raise plain.decode_error(reply["error"], vars(importlib.import_module("builtins")), served.find)
            else:
                return plain.decode(reply["value"], served.find)
        raise SystemExit


def serve(requests: Any, answers: Any) -> None:
    sys.setrecursionlimit(10_000)
    served = Served(requests, answers)
    failure = served.load()
    for line in requests:
        if failure is not None:
            served.send({"unloaded": failure})
            return
        served.answer(line)


if __name__ == "__main__":
    with open(3, encoding="utf-8") as _requests, open(4, "w", encoding="utf-8") as _answers:
        serve(_requests, _answers)
    os._exit(0)
