"""Rows from the hub, a folder, a file, a Python package or a generator; examples out of them."""

from __future__ import annotations

import gzip
import importlib.util
import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.sandbox import FunctionTests
from experiments.verifiers.code import pack_tests

from .registry import GYM, Task, task
from .rows import Example

__all__ = ["load"]

_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")


def load(name: str, source: str | Path | None = None, *, size: int | None = None, seed: int = 0) -> list[Example]:
    """The examples of a task, duplicates (by content) dropped.

    Parameters
    ----------
    name : see `task`; ``reasoning_gym/FAMILY`` (settings behind it: ``?max_terms=2&max_digits=1``), ``additions`` and
        ``small_functions`` are generated.
    source : a hub id, a local folder or file (parquet, JSONL, gzipped JSONL or JSON in the public schema), "hub" for the task's own hub id;
        None takes the copy inside a Python package where there is one, else the hub.
    size, seed : for generated tasks, how many and which.

    Raises
    ------
    ValueError : an unknown task, a source without data, or a row that does not fit the schema, with its number.
    """
    chosen = task(name)
    if not chosen.hub:
        if source is not None:
            raise ValueError(f"source: got {str(source)!r} for {name}; need None; because its rows are generated")
        generate = {"additions": _additions, "small_functions": _small_functions}.get(name)
        rows = generate(size, seed) if generate else _gym(name.removeprefix(GYM), size, seed)
        return _unique(rows, name, generated=True)
    if size is not None:
        raise ValueError(f"size: got {size} for {name}; need None; because it is a fixed data set: cut it with split")
    parse = chosen.parse
    if source is None and chosen.package is not None:
        records, parse = _package(chosen), chosen.package_parse or chosen.parse
    elif source is not None and Path(source).expanduser().exists():
        records = _local(Path(source).expanduser(), chosen)
    else:
        records = _hub(chosen, chosen.hub if source in (None, "hub") else str(source))
    examples = []
    for i, record in enumerate(records):
        try:
            examples.append(parse(record))
        except KeyError as error:
            raise ValueError(
                f"row {i} of {name}: got columns {', '.join(record)}; need {error}; because that is the public schema"
            ) from None
        except ValueError as error:
            raise ValueError(f"row {i} of {name}: {error}") from None
    return _unique(examples, name)


def _unique(examples: Iterable[Example], name: str, *, generated: bool = False) -> list[Example]:
    rows = list(examples)
    found = list({e.key: e for e in reversed(rows)}.values())[::-1]
    if not found:
        raise ValueError(f"source: got no rows for {name}; need at least one; because there is nothing to ask")
    if len(found) < len(rows) and not generated:
        warnings.warn(f"{name}: {len(rows) - len(found)} of {len(rows)} rows repeat an earlier question and are dropped", stacklevel=3)
    return found


def _package(chosen: Task) -> Iterator[dict[str, Any]]:
    assert chosen.package is not None
    package, path = chosen.package
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"source: got none for {chosen.name}, and the package {package} is not installed; need `pip install 'conformal-carm[tasks]'`, "
            f"a file, or 'hub'; because its data come from there"
        )
    return _records(Path(next(iter(spec.submodule_search_locations))) / path)


def _local(path: Path, chosen: Task) -> Iterator[dict[str, Any]]:
    if path.is_file():
        files = [path]
    else:
        files = sorted(p for p in path.rglob("*") if p.name.endswith(_SUFFIXES) and any(piece in p.name for piece in chosen.pieces))
        files = files or sorted(p for p in path.rglob("*") if p.name.endswith(_SUFFIXES))
    if not files:
        raise ValueError(f"source: got {str(path)!r}; need a file or folder with {', '.join(_SUFFIXES)}; because rows are read from those")
    for file in files:
        yield from _records(file)


def _records(file: Path) -> Iterator[dict[str, Any]]:
    if file.name.endswith(".parquet"):
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(1000):
            yield from batch.to_pylist()
    elif file.name.endswith((".jsonl", ".jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") if file.name.endswith(".gz") else file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _object(line, f"{file.name}:{number}")
    elif file.name.endswith(".json"):
        yield from json.loads(file.read_text(encoding="utf-8"))
    else:
        raise ValueError(f"source: got {file.name!r}; need {', '.join(_SUFFIXES)}; because rows are read from those")


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: got no JSON ({error}); need one object per line; because the file is JSONL") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: got a {type(record).__name__}; need an object; because columns have names")
    return record


def _hub(chosen: Task, repository: str) -> Iterator[dict[str, Any]]:
    import datasets

    for piece in chosen.pieces:
        try:
            table = datasets.load_dataset(repository, chosen.config, split=piece)
        except Exception as error:  # the hub's own errors share no base class
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"source: got {repository!r} ({piece}); need a hub data set, or a local folder or file with its parquet or JSONL; "
                f"because the hub does not give it ({type(error).__name__}: {reason})"
            ) from None
        yield from table


def _gym_rows(family: str, query: str, size: int, seed: int) -> Any:
    import reasoning_gym

    settings = dict(part.split("=", 1) for part in query.split("&")) if query else {}
    try:
        return reasoning_gym.create_dataset(family, size=size, seed=seed, **{k: int(v) for k, v in settings.items()})
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"task: got {GYM}{family}?{query}; need its integer settings, NAME=N&...; because {error}") from None


def _additions(size: int | None, seed: int) -> list[Example]:
    from experiments import arithmetic

    return [Example(p["prompt"], p["answer"]) for p in arithmetic.make_problems(size or 1000, seed, pool="fresh")]


def _small_functions(size: int | None, seed: int) -> list[Example]:
    """One-line functions of one integer, for models too small for a benchmark; tests as in HumanEval."""
    forms = {"add": ("{} added to it", "+"), "subtract": ("{} subtracted from it", "-"), "times": ("its product with {}", "*")}
    made = []
    for verb, (words, sign) in forms.items():
        for c in range(2, 400):
            name = f"{verb}_{c}"
            prompt = f'def {name}(x):\n    """Return x with {words.format(c)}."""\n'.replace("with its", "as its")
            lines = [f"    assert candidate({x}) == {x} {sign} {c}" for x in (0, 7, -31, 1000)]
            tests = FunctionTests("def check(candidate):\n" + "\n".join(lines) + f"\ncheck({name})", (name,), prompt)
            made.append(Example(prompt, pack_tests(tests, prompt, name), prompt, name))
    if size is not None and size > len(made):
        raise ValueError(f"size: got {size} for small_functions; need at most {len(made)}; because there are no more")
    order = np.random.default_rng(seed).permutation(len(made))[: size or len(made)]
    return [made[i] for i in order]


def _gym(family: str, size: int | None, seed: int) -> Iterator[Example]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ValueError(
            f"task: got {GYM}{family}; need `pip install 'conformal-carm[tasks]'`; because reasoning_gym is not installed"
        ) from None
    family, _, query = family.partition("?")
    if family not in DATASETS:
        near = ", ".join(sorted(n for n in DATASETS if n[:4] == family[:4])) or "chain_sum, gsm_symbolic, basic_arithmetic"
        raise ValueError(
            f"task: got {GYM}{family}; need one of its {len(DATASETS)} families such as {near}; because reasoning_gym has no such"
        )
    for i, entry in enumerate(_gym_rows(family, query, size or 1000, seed)):
        if entry["answer"] is None:
            raise ValueError(f"task: got {GYM}{family}; need a family with one answer; because a scorer alone gives no answer to compare")
        yield Example(entry["question"].strip(), str(entry["answer"]), source_id=f"{family}-{seed}-{i}")
