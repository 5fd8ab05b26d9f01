"""Programs: taken from a response, run against their tests in a sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from experiments.sandbox import FunctionTests, Job, ProgramTests, Runner, Sandbox

from .text import text_of

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[ \t]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_OPEN_FENCE = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*)\Z", re.DOTALL)


def extract_code(text: str, prompt: str = "", entry_point: str = "") -> str:
    r"""The program of a response: its last fenced Python block, else the text itself.

    A body that continues ``prompt`` (a function head) and does not define ``entry_point`` anew is put behind it.

    >>> extract_code("Sure:\n```python\ndef f(): return 1\n```\nDone.")
    'def f(): return 1\n'
    >>> extract_code("    return 1\n", prompt="def f():\n", entry_point="f")
    'def f():\n    return 1\n'
    """
    blocks = [body for language, body in _FENCE.findall(text) if language.lower() in ("", "python", "py", "python3")]
    if blocks:
        code = blocks[-1]
    else:
        unfinished = _OPEN_FENCE.search(text)
        code = unfinished[1] if unfinished else text
    if not prompt:
        return code
    if entry_point and re.search(rf"^\s*(?:async\s+)?(?:def|class)\s+{re.escape(entry_point)}\b", code, re.MULTILINE):
        return _imports(prompt) + code
    return prompt + code


def _imports(prompt: str) -> str:
    return "".join(f"{line}\n" for line in prompt.splitlines() if re.match(r"(?:from\s+\S+\s+)?import\s", line))


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
    source = extract_code(text_of(completion), spec["prompt"], spec["entry_point"])
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
