"""Inside the candidate's sandbox: load the program, then answer calls until the tests hang up.  Copied in, never imported by the trainer.

Nothing here is secret and nothing here decides: tests, expected values and the verdict live in another sandbox.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from typing import Any

_BOX = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _BOX)
plain = importlib.import_module("plain")
sys.path.pop(0)
_LONGEST = 100_000


def serve(requests: Any, answers: Any) -> None:
    sys.setrecursionlimit(10_000)
    space: dict[str, Any] = {"__name__": "candidate", "__builtins__": __builtins__}
    failure: BaseException | None = None
    try:
        with open(f"{_BOX}/source", encoding="utf-8", errors="surrogatepass") as f:
            exec(compile(f.read(), "candidate.py", "exec"), space)
    except BaseException as error:
        failure = error
    objects: list[Any] = []

    def handle(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    for line in requests:
        try:
            if failure is not None:
                answer = {"unloaded": f"{type(failure).__name__}: {failure}"[:500]}
                answers.write(json.dumps(answer) + "\n")
                return
            request = json.loads(line)
            target = space[request["name"]] if "name" in request else objects[request["handle"]]
            answer = _answer(request, target, handle, objects)
        except BaseException as error:
            answer = {"error": [type(error).__name__, str(error)[:500]]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(request: dict[str, Any], target: Any, handle: Any, objects: list[Any]) -> dict[str, Any]:
    if request["do"] == "get":
        return {"value": plain.encode(getattr(target, request["attribute"]), handle)}
    if request["do"] == "iterate":
        return {"value": plain.encode(list(itertools.islice(target, _LONGEST)), handle)}
    arguments = plain.decode(request["arguments"], objects.__getitem__)
    keywords = plain.decode(request["keywords"], objects.__getitem__)
    value = plain.encode(target(*arguments, **keywords), handle)
    return {"value": value, "arguments": plain.encode(arguments, handle)}


if __name__ == "__main__":
    sys.set_int_max_str_digits(0)
    with open(3, encoding="utf-8") as _requests, open(4, "w", encoding="utf-8") as _answers:
        serve(_requests, _answers)
    os._exit(0)
