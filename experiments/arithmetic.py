"""The embedded task: additions of one- to three-digit numbers, written ``a+b=``, with an exact verifier.

Imports neither torch nor datasets at module level, so command lines that only need problems or rewards start at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

Problem = dict[str, str]
Pool = Literal["any", "supervised", "fresh"]

_LEADING_INTEGER = re.compile(r"\s*(-?)([0-9]++)(?![.,][0-9])")


class Splits(NamedTuple):
    """Three lists of problems, disjoint by content."""

    calibration: list[Problem]
    eval: list[Problem]
    train: list[Problem]


def pool_of(prompt: str) -> Literal["supervised", "fresh"]:
    """The half of all additions that ``prompt`` belongs to, by a content hash.

    ``supervised``: may occur in the supervised training of the shipped model (`experiments.build_model`).
    ``fresh``: never occurs there, so accuracy on it is accuracy on unseen prompts.

    >>> pool_of("12+34=") in ("supervised", "fresh")
    True
    """
    return "fresh" if hashlib.blake2b(prompt.encode(), digest_size=1).digest()[0] & 1 else "supervised"


def bounds(digits: int) -> tuple[int, int]:
    """Half-open range of the operands with ``digits`` digits; 0 counts as a one-digit number.

    >>> bounds(1), bounds(3)
    ((0, 10), (100, 1000))
    """
    return (0 if digits == 1 else 10 ** (digits - 1), 10**digits)


def draw_pairs(rng: np.random.Generator, n: int, digits: Sequence[int] = (1, 2, 3), shares: Sequence[float] | None = None) -> np.ndarray:
    """``n`` operand pairs, shape (n, 2): each operand draws its number of digits (by ``shares``; None: uniform), then is uniform."""
    low, high = np.array([bounds(d) for d in digits]).T
    which = rng.choice(len(digits), size=(n, 2), p=shares)
    return rng.integers(low[which], high[which])


def make_problems(
    n: int, seed: int, digits: Sequence[int] = (1, 2, 3), exclude: Iterable[str | Problem] = (), *, pool: Pool = "any"
) -> list[Problem]:
    """``n`` distinct additions, a pure function of the arguments.

    Parameters
    ----------
    n : number of problems.
    seed : seed of the draw.
    digits : allowed numbers of digits of an operand; each operand draws its own, uniformly.
    exclude : prompts (or problems) that must not occur.
    pool : "any", or one half of all additions, see `pool_of`.

    Returns
    -------
    list of ``{"prompt": "a+b=", "answer": "c"}``, in the order of the draw. Repeats are dropped and drawn again, so long lists hold
    fewer of the (few) one-digit additions than short ones, and later entries fewer than early ones: shuffle before splitting by position.

    Raises
    ------
    ValueError : negative ``n``, digits outside 1..6 or repeated, or fewer than ``n`` such additions exist.

    >>> make_problems(2, seed=0, digits=(2,)) == make_problems(2, seed=0, digits=(2,))
    True
    """
    digits = tuple(digits)
    if n < 0:
        raise ValueError(f"n: got {n}; need an integer >= 0; because it counts problems")
    if not digits or len(set(digits)) < len(digits) or not all(1 <= d <= 6 for d in digits):
        raise ValueError(f"digits: got {digits}; need distinct numbers from 1 to 6; because each is the length of an operand")
    if pool not in ("any", "supervised", "fresh"):
        raise ValueError(f"pool: got {pool!r}; need 'any', 'supervised' or 'fresh'; because additions are split in these two halves")
    seen = {p if isinstance(p, str) else p["prompt"] for p in exclude}
    universe = sum(high - low for low, high in map(bounds, digits)) ** 2
    wanted = n + len(seen)
    if universe <= 1_000_000 and wanted > universe // 4:
        available = _available(digits, seen, pool)
        if n > available:
            raise ValueError(f"n: got {n}; need at most {available}; because no more distinct additions of this kind are left")
    elif universe > 1_000_000 and wanted > universe // 8:
        raise ValueError(f"n: got {n}; need n + excluded <= {universe // 8}; because {universe} additions are drawn by rejection")
    rng = np.random.default_rng(seed)
    problems: list[Problem] = []
    while len(problems) < n:
        for a, b in draw_pairs(rng, 2 * (n - len(problems)) + 16, digits).tolist():
            prompt = f"{a}+{b}="
            if prompt in seen or (pool != "any" and pool_of(prompt) != pool):
                continue
            seen.add(prompt)
            problems.append({"prompt": prompt, "answer": str(a + b)})
            if len(problems) == n:
                break
    return problems


def splits(
    seed: int, n_calibration: int, n_eval: int, n_train: int = 2000, *, digits: Sequence[int] = (1, 2, 3), pool: Pool = "fresh"
) -> Splits:
    """Calibration, evaluation and training problems, disjoint by content and exchangeable.

    All are drawn together and shuffled before they are cut, so that every problem is equally likely to land in each list: what the
    conformal guarantees assume. By default none of them occurred in the supervised training of the shipped model.

    >>> [len(part) for part in splits(0, 10, 20, 30)]
    [10, 20, 30]
    """
    for name, value in (("n_calibration", n_calibration), ("n_eval", n_eval), ("n_train", n_train)):
        if value < 0:
            raise ValueError(f"{name}: got {value}; need an integer >= 0; because it counts problems")
    problems = make_problems(n_calibration + n_eval + n_train, seed, digits, pool=pool)
    order = np.random.default_rng([seed, 1]).permutation(len(problems))
    shuffled = [problems[i] for i in order]
    cut = n_calibration + n_eval
    return Splits(shuffled[:n_calibration], shuffled[n_calibration:cut], shuffled[cut:])


def extract_answer(text: str) -> str | None:
    """The integer that ``text`` starts with, in canonical form (no leading zeros, no "-0"); None when there is none.

    Leading white space is skipped; text after the integer is ignored, except a decimal part or a thousands separator: "12.5" is no integer.

    >>> extract_answer(" 007 apples"), extract_answer("-0"), extract_answer("x7"), extract_answer("1.5")
    ('7', '0', None, None)
    """
    match = _LEADING_INTEGER.match(text)
    if match is None:
        return None
    value = match[2].lstrip("0")
    return match[1] + value if value else "0"


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1.0 where the completion's leading integer is the answer, else 0.0. TRL's reward-function signature.

    >>> reward(completions=["46", "4", "oops"], answer=["46", "46", "46"])
    [1.0, 0.0, 0.0]
    """
    return [float(extract_answer(text) == str(gold)) for text, gold in zip(completions, answer, strict=True)]


def few_shot(problems: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The same problems for a general language model: four worked additions, spaces, one line each.

    >>> few_shot([{"prompt": "7+8=", "answer": "15"}])[0]["prompt"].splitlines()[-1]
    '7 + 8 ='
    """
    shots = "3 + 4 = 7\n25 + 11 = 36\n9 + 6 = 15\n40 + 38 = 78\n"
    return [{**p, "prompt": shots + p["prompt"].replace("+", " + ").replace("=", " =")} for p in problems]


def to_dataset(problems: Sequence[Problem]) -> Dataset:
    """A `datasets.Dataset` with the columns ``prompt`` and ``answer``, in the given order."""
    from datasets import Dataset

    return Dataset.from_dict({key: [problem[key] for problem in problems] for key in ("prompt", "answer")})


def _available(digits: Sequence[int], seen: set[str], pool: Pool) -> int:
    operands = [a for d in digits for a in range(*bounds(d))]
    prompts = (f"{a}+{b}=" for a in operands for b in operands)
    return sum(prompt not in seen and (pool == "any" or pool_of(prompt) == pool) for prompt in prompts)
