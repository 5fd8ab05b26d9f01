"""Prompt templates: the form of both papers (a system message, a request, the problem), in our words."""

from __future__ import annotations

from .registry import Task
from .rows import Example

__all__ = ["columns", "messages", "text"]

_SYSTEM = {
    "math": "You are a careful mathematician. You answer the user's question after thinking it through.",
    "choice": "You are an expert in the natural sciences. You answer the user's multiple-choice question after thinking it through.",
    "function": "You are an experienced Python programmer. You write complete, correct code.",
    "program": (
        "You are an experienced competitive programmer. You solve the user's problem in Python 3. You may first discuss the idea and "
        "its edge cases; you end with exactly one fenced Python block that holds a complete program. It reads standard input and "
        "writes standard output, unless starter code asks for a function or a class."
    ),
}
_REQUEST = {
    "math": "Work out the solution step by step and write the final answer inside \\boxed{{}}.\n\n{question}",
    "choice": "Reason step by step, then give the letter of the right option inside \\boxed{{}}.\n\n{question}",
    "function": "Write the Python code asked for below and return it in one fenced block.\n\n{question}",
    "program": (
        "Here is a programming problem.\n\n{question}\n{starter}\nReturn your solution in this form:\n```python\n# the whole program\n```"
    ),
}


def messages(task: Task, example: Example) -> list[dict[str, str]]:
    """System and user message of ``example``.

    >>> from experiments.tasks import task
    >>> messages(task("gsm8k"), Example("What is 2+2?", "4"))[1]["content"].splitlines()[-1]
    'What is 2+2?'
    """
    if task.kind == "plain":
        return [{"role": "user", "content": example.question}]
    starter = f"\nStart from this code:\n```python\n{example.starter.rstrip()}\n```\n" if example.starter else ""
    request = _REQUEST[task.kind].format(question=example.question, starter=starter)
    return [{"role": "system", "content": _SYSTEM[task.kind]}, {"role": "user", "content": request}]


def text(task: Task, example: Example) -> str:
    """The same as one string, for models without a chat template; a plain task is its question alone."""
    if task.kind == "plain":
        return example.question
    return "\n\n".join(m["content"] for m in messages(task, example)) + "\n\n"


def columns(task: Task, examples: list[Example], *, chat: bool) -> dict[str, list]:
    """Columns ``prompt`` and ``answer`` of a training data set."""
    prompts = [messages(task, e) if chat else text(task, e) for e in examples]
    return {"prompt": prompts, "answer": [e.answer for e in examples]}
