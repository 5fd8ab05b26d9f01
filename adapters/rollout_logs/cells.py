"""From cells to numbers: floats, hashes of texts and canonical answers; a cell that does not fit its column is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .readers import Batch, as_list, is_array
from .sources import Intake

__all__ = ["ANSWER_RULES", "as_floats", "as_hashes", "canonical", "choose_answer_rule", "extract_answer", "text_of"]

ANSWER_RULES = ("boxed", "hashes", "tag", "phrase", "last-number", "completion", "none")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_HASHES = re.compile(r"####\s*([^\n]+)")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_PHRASE = re.compile(r"answer\s*(?:is|:)\s*\**\s*([^\n.]+(?:\.\d+)?)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_TRUE = {"true": 1.0, "yes": 1.0, "pass": 1.0, "passed": 1.0, "correct": 1.0}
_FALSE = {"false": 0.0, "no": 0.0, "fail": 0.0, "failed": 0.0, "incorrect": 0.0, "wrong": 0.0}
_WORDS = _TRUE | _FALSE


def as_floats(batch: Batch, path: str, file: str, intake: Intake, *, missing: str | None = None) -> NDArray[np.float64]:
    """A column as floats, NaN where the cell is empty or no number (reported as such; empty ones as ``missing`` if given).

    A list of numbers counts as its sum: per-token rewards.
    """
    column = batch.get(path)
    if column is None:
        values = np.full(batch.n, np.nan)
    elif is_array(column) and (pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        wide = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
        values = np.asarray(wide.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    elif isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "fiub":
        values = column.astype(np.float64)
    else:
        values = np.full(batch.n, np.nan)
        for i, cell in enumerate(as_list(column)):
            number = _number(cell)
            if number is None:
                fields = f" (a struct: name a field, e.g. --map ROLE={path}.{next(iter(cell))})" if isinstance(cell, dict) and cell else ""
                intake.report(file, batch.row(i), path, f"no number{fields}", repr(str(cell)[:40]))
            else:
                values[i] = number
    endless = np.isinf(values)
    for i in np.flatnonzero(endless):
        intake.report(file, batch.row(int(i)), path, "not finite", f"{values[i]:g}")
    if endless.any():
        values = np.where(endless, np.nan, values)
    if missing is not None:
        for i in np.flatnonzero(np.isnan(values) & ~endless):
            cell = None if column is None else (column[int(i)].as_py() if is_array(column) else column[int(i)])
            if cell is None or cell == [] or (isinstance(cell, float) and cell != cell):
                intake.report(file, batch.row(int(i)), path, missing)
    return values


def _number(cell: Any) -> float | None:
    if cell is None:
        return float("nan")
    if isinstance(cell, (int, float, Decimal)):
        return _float(cell)
    if isinstance(cell, str):
        word = cell.strip().lower()
        if word in _WORDS:
            return _WORDS[word]
        try:
            return float(word)
        except ValueError:
            return None
    if isinstance(cell, list) and all(isinstance(x, (int, float)) for x in cell):
        return sum(map(_float, cell)) if cell else float("nan")
    return None


def _float(x: int | float | Decimal) -> float:
    try:
        return float(x)
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")


def text_of(cell: Any) -> str | None:
    """A prompt or completion as text: strings as they are, a conversation as ``role: content`` lines, the rest as JSON."""
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, list) and cell and all(isinstance(m, dict) and "content" in m for m in cell):
        return "\n".join(f"{m.get('role', '')}: {text_of(m['content'])}" for m in cell)
    return json.dumps(cell, ensure_ascii=False, sort_keys=True, default=str)


def completion_of(cell: Any) -> str | None:
    """A completion as the model wrote it: of a conversation, the contents without roles."""
    if isinstance(cell, list) and cell and all(isinstance(m, dict) and "content" in m for m in cell):
        return "\n".join(text_of(m["content"]) or "" for m in cell if m.get("role", "assistant") == "assistant")
    return text_of(cell)


def hash_text(text: str | None) -> int:
    """The id :func:`conformal_core.prompt_ids` gives a text; 0 stands for a missing one."""
    if text is None:
        return 0
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


def as_hashes(batch: Batch, path: str, reader: Callable[[Any], str | None] = text_of) -> NDArray[np.uint64]:
    """64-bit content hashes of a column; 0 where the cell is empty."""
    column = batch.get(path)
    if column is None:
        return np.zeros(batch.n, np.uint64)
    if is_array(column) and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_integer(column.type)):
        coded = pc.dictionary_encode(column, null_encoding="encode")
        table = np.array([hash_text(None if v is None else reader(v)) for v in coded.dictionary.to_pylist()], np.uint64)
        return table[coded.indices.to_numpy(zero_copy_only=False)]
    return np.array([hash_text(reader(cell)) for cell in as_list(column)], np.uint64)


def canonical(answer: Any) -> str | None:
    """An answer reduced so that equal answers are equal texts: ``" $1,000.0$. "`` and ``"1000"`` agree; None if nothing is left."""
    if answer is None:
        return None
    if isinstance(answer, (list, tuple)) and len(answer) == 1:
        answer = answer[0]
    text = text_of(answer) if not isinstance(answer, (int, float)) else repr(answer)
    if text is None:
        return None
    text = text.strip().rstrip(".").strip("$* ")
    for wrapper in ("\\text{", "\\mathrm{", "\\textbf{"):
        if text.startswith(wrapper) and text.endswith("}"):
            text = text[len(wrapper) : -1].strip()
    text = text.rstrip(".").strip().replace("\\!", "").replace("\\,", "").replace("\\%", "%").replace("\\$", "")
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    if re.fullmatch(r"[-+]?\d+(\.\d+)?", text):
        text = text.lstrip("+")
        if "." in text:
            text = text.rstrip("0").rstrip(".")
        sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
        digits = digits.lstrip("0") or "0"
        text = ("" if digits == "0" else sign) + ("0" + digits if digits.startswith(".") else digits)
    return " ".join(text.split()) or None


def extract_answer(completion: str | None, rule: str) -> str | None:
    """The canonical answer in a completion, or None (unparsable).

    >>> extract_answer(r"so \\boxed{\\frac{1}{2}}", "boxed"), extract_answer("... #### 1,000", "hashes"), extract_answer("dunno", "boxed")
    ('\\\\frac{1}{2}', '1000', None)
    """
    if completion is None or rule == "none":
        return None
    if rule == "completion":
        return canonical(completion)
    if rule == "boxed":
        return canonical(_last_boxed(completion))
    pattern = {"hashes": _HASHES, "tag": _TAG, "phrase": _PHRASE, "last-number": _NUMBER}[rule]
    found = pattern.findall(completion)
    return canonical(found[-1]) if found else None


def _last_boxed(text: str) -> str | None:
    openings = list(_BOXED.finditer(text))
    if not openings:
        return None
    start, depth = openings[-1].end(), 1
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[start:i]
    return None


def choose_answer_rule(completions: Sequence[str]) -> str:
    """The first rule that finds an answer in half of these completions; whole completions where they are short; else ``"none"``."""
    texts = [c for c in completions if c]
    if not texts:
        return "none"
    for rule in ("boxed", "hashes", "tag", "phrase"):
        if 2 * sum(extract_answer(c, rule) is not None for c in texts) >= len(texts):
            return rule
    if sum(map(len, texts)) <= 24 * len(texts):
        return "completion"
    return "none"


def as_answers(batch: Batch, path: str, rule: str | None) -> NDArray[np.uint64]:
    """Hashes of canonical answers, 0 = unparsable: from an answer column (``rule=None``) or by a rule from completions."""
    if rule is None:
        return as_hashes(batch, path, canonical)
    return as_hashes(batch, path, lambda cell: extract_answer(completion_of(cell), rule))


def gold_of(cell: Any) -> str | None:
    """A gold answer in the form of :func:`extract_answer`: what a solution boxes or marks with ####, else all of it."""
    if isinstance(cell, str):
        for rule in ("hashes", "boxed"):
            found = extract_answer(cell, rule)
            if found is not None:
                return found
    return canonical(cell)
