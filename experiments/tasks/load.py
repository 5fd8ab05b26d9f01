"""Rows from the hub, a folder, a file, a Python package or a generator; examples out of them."""

from __future__ import annotations

import gzip
import importlib.util
import json
import pickle
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from experiments import checks
from experiments.sandbox import FunctionTests
from experiments.verifiers.code import pack_tests

from .registry import GYM, Task, task
from .rows import Example, NoTests
from .splits import distinct

__all__ = ["load"]

_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
#: The form of a hub id, ``owner/name`` or ``name``.
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
#: What reading or parsing data of another shape than expected raises.
_DATA_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    pickle.PickleError,
    zlib.error,
)
#: Rows of a generated task where no size is asked for.
_GENERATED_SIZE = 1000
#: A family is drawn from this many times the rows wanted, before it is said to have no more.
_MOST_DRAWS = 16


def load(name: str, source: str | Path | None = None, *, size: int | None = None, seed: int = 0) -> list[Example]:
    """The examples of a task, without duplicates (by content).

    A question that a data set answers in two ways has no gold answer: its rows are dropped, with a warning, as are repeated rows and
    those of which the parser says that they have no tests (`rows.NoTests`).

    Parameters
    ----------
    name : see `task`; ``reasoning_gym/FAMILY`` (settings behind it: ``?max_terms=2&max_digits=1``), ``additions`` and
        ``small_functions`` are generated.
    source : a hub id, a local folder or file (parquet, JSONL, gzipped JSONL or JSON in the public schema), "hub" for the task's own hub id;
        None takes the copy inside a Python package where there is one, else the hub.
    size, seed : for generated tasks, how many different questions and which; by default those among 1000 drawn, or all there are.

    Raises
    ------
    ValueError : an unknown task, a source without data, more questions than there are, or what cannot be read or does not fit the schema,
        with file and row.
    """
    chosen = task(name)
    if not chosen.hub:
        if source is not None:
            raise ValueError(f"source: got {str(source)!r} for {name}; need None; because its rows are generated")
        if size is not None:
            checks.whole("size", size, 1, f"it counts the examples of {name}")
        checks.seed("seed", seed)
        if name.startswith(GYM):
            return _gym(name.removeprefix(GYM), size, seed)
        return {"additions": _additions, "small_functions": _small_functions}[name](size, seed)
    if size is not None:
        raise ValueError(f"size: got {size} for {name}; need None; because it is a fixed data set: cut it with split")
    parse, path = chosen.parse, None if source in (None, "hub") else _path(str(source))
    if source is None and chosen.package is not None:
        records, parse = _package(chosen), chosen.package_parse or chosen.parse
    elif path is not None:
        records = _local(path, chosen)
    else:
        records = _hub(chosen, chosen.hub if source in (None, "hub") else str(source))
    examples = [_example(parse, record, f"{place}: row {i} of {name}") for place, i, record in records]
    kept = [e for e in examples if e is not None]
    if len(kept) < len(examples):
        warnings.warn(f"{name}: {len(examples) - len(kept)} of {len(examples)} rows have no tests and are dropped", stacklevel=2)
    return _unique(kept, name)


def _path(source: str) -> Path | None:
    """The local file or folder of that name, if there is one."""
    try:
        if not source.strip():
            raise ValueError("it is empty")
        path = Path(source).expanduser()
        if path.exists():
            return path
        if source.endswith(_SUFFIXES) or not _HUB_ID.fullmatch(source):
            raise ValueError("there is no such file or folder")
        return None
    except (OSError, RuntimeError, ValueError) as error:  # too long a name, a closed folder, a user without a home
        raise ValueError(f"source: got {source!r}; need a hub id, or a local folder or file; because {error}") from None


def _example(parse: Callable[[Mapping[str, Any]], Example], record: Any, where: str) -> Example | None:
    """The example of a row, None if it has no tests; whatever is wrong with it is said with its place."""
    if not isinstance(record, Mapping):
        raise ValueError(f"{where}: got a {type(record).__name__}; need an object; because columns have names")
    try:
        return _checked(parse(record))
    except NoTests:
        return None
    except KeyError as error:
        columns = ", ".join(map(str, record))
        raise ValueError(f"{where}: got columns {columns}; need {error}; because that is the public schema") from error
    except _DATA_ERRORS as error:
        _refuse(where, error, "values of the public schema's types and forms")


def _checked(example: Example) -> Example:
    for name in ("question", "answer"):
        text = getattr(example, name)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name}: got {text!r}; need a text that is not empty; because it is asked or compared with")
    "".join((example.question, example.answer, example.starter, example.source_id)).encode()  # tokenizers refuse half a surrogate pair
    return example


def _refuse(where: str, error: Exception, need: str) -> NoReturn:
    """``ValueError`` with the place before an error that says what is needed, and around one that does not."""
    text = " ".join(str(error).split())[:500]
    if not re.search(r": got .*; need .*; because ", text):
        text = f"got {type(error).__name__} ({text}); need {need}; because it cannot be read otherwise"
    raise ValueError(f"{where}: {text}") from error


def _unique(rows: list[Example], name: str) -> list[Example]:
    kept, disputed = distinct(rows)
    if disputed:
        key, answers = next(iter(disputed.items()))
        question = next(e.question for e in rows if e.key == key)
        warnings.warn(
            f"{name}: {len(disputed)} questions have several answers and are dropped, such as {question[:60]!r} with "
            f"{answers[0][:20]!r} and {answers[1][:20]!r}",
            stacklevel=3,
        )
    repeated = sum(e.key in kept for e in rows) - len(kept)
    if repeated:
        warnings.warn(f"{name}: {repeated} of {len(rows)} rows repeat an earlier question and are dropped", stacklevel=3)
    if not kept:
        raise ValueError(f"source: got no rows for {name}; need at least one; because there is nothing to ask")
    return list(kept.values())


#: Where a row is from, its number there, and the row.
_Records = Iterator[tuple[str, int, Any]]


def _package(chosen: Task) -> _Records:
    assert chosen.package is not None
    package, path = chosen.package
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"source: got none for {chosen.name}, and the package {package} is not installed; need `pip install 'conformal-carm[tasks]'`, "
            f"a file, or 'hub'; because its data come from there"
        )
    return _records(Path(next(iter(spec.submodule_search_locations))) / path)


def _local(path: Path, chosen: Task) -> _Records:
    if path.is_file():
        files = [path]
    else:
        found = sorted(p for p in path.rglob("*") if p.name.endswith(_SUFFIXES) and p.is_file())
        files = [p for p in found if any(piece in p.name for piece in chosen.pieces)] or found
    if not files:
        raise ValueError(f"source: got {str(path)!r}; need a file or folder with {', '.join(_SUFFIXES)}; because rows are read from those")
    for file in files:
        yield from _records(file)


def _records(file: Path) -> _Records:
    read = next((read for suffix, read in _READERS.items() if file.name.endswith(suffix)), None)
    if read is None:
        raise ValueError(f"source: got {file.name!r}; need {', '.join(_SUFFIXES)}; because rows are read from those")
    number = -1
    try:
        for number, record in enumerate(read(file)):
            yield file.name, number, record
    except (OSError, *_DATA_ERRORS) as error:
        if str(error).startswith(f"{file.name}:"):
            raise
        _refuse(f"{file.name}: row {number + 1}", error, "a whole file in the format of its name")


def _parquet(file: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(1000):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:  # its classes share no other base
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _lines(file: Path) -> Iterator[Any]:
    with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _object(line, f"{file.name}:{number}")


def _listed(file: Path) -> Iterator[Any]:
    rows = _json(file.read_bytes())
    if not isinstance(rows, list):
        raise ValueError(f"{file.name}: got a {type(rows).__name__}; need a list of objects; because each is a row")
    yield from rows


_READERS = {".parquet": _parquet, ".jsonl": _lines, ".jsonl.gz": _lines, ".json": _listed}


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = _json(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: got no JSON ({error}); need one object per line; because the file is JSONL") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: got a {type(record).__name__}; need an object; because columns have names")
    return record


def _json(text: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not in JSON")

    return json.loads(text.decode("utf-8-sig"), parse_constant=refuse)


def _hub(chosen: Task, repository: str) -> _Records:
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
        for i, record in enumerate(table):
            yield f"{repository} ({piece})", i, record


def _additions(size: int | None, seed: int) -> list[Example]:
    from experiments import arithmetic

    return [
        Example(p["prompt"], p["answer"]) for p in arithmetic.make_problems(_GENERATED_SIZE if size is None else size, seed, pool="fresh")
    ]


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
    order = np.random.default_rng(seed).permutation(len(made))[:size]
    return [made[i] for i in order]


def _gym(family: str, size: int | None, seed: int) -> list[Example]:
    """``size`` different questions of a family, in the order of their draw; repeats are drawn again, from a list twice as long."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ValueError(
            f"task: got {GYM}{family}; need `pip install 'conformal-carm[tasks]'`; because reasoning_gym is not installed"
        ) from None
    name, _, query = family.partition("?")
    if name not in DATASETS:
        near = ", ".join(sorted(n for n in DATASETS if n[:4] == name[:4])) or "chain_sum, gsm_symbolic, basic_arithmetic"
        raise ValueError(
            f"task: got {GYM}{name}; need one of its {len(DATASETS)} families such as {near}; because reasoning_gym has no such"
        )
    settings = _settings(family, query)
    found: dict[str, Example] = {}
    wanted = _GENERATED_SIZE if size is None else size
    start, end = 0, wanted
    while True:
        for e in _drawn(family, name, settings, seed, start, end):
            known = found.setdefault(e.key, e)
            if known.question == e.question and known.answer != e.answer:
                raise ValueError(
                    f"task: got {GYM}{family}; need a family with one answer; because it answers {e.question[:60]!r} in two ways"
                )
            if len(found) == wanted:
                return list(found.values())
        if size is None:
            return list(found.values())
        if end >= _MOST_DRAWS * wanted:
            raise ValueError(f"size: got {size} for {GYM}{family}; need at most {len(found)}; because {end} draws gave no more questions")
        start, end = end, 2 * end


def _settings(family: str, query: str) -> dict[str, int]:
    settings: dict[str, int] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if not name.isidentifier() or not re.fullmatch(r"-?[0-9]{1,18}", value) or name in (*settings, "size", "seed"):
            raise ValueError(
                f"task: got {GYM}{family}; need its integer settings, NAME=N&..., each once; because {part!r} is none (size and seed are "
                "those of the configuration)"
            )
        settings[name] = int(value)
    return settings


def _drawn(family: str, name: str, settings: dict[str, int], seed: int, start: int, end: int) -> Iterator[Example]:
    """The examples of the draws ``start`` to ``end``."""
    import reasoning_gym

    i = start
    try:
        rows = reasoning_gym.create_dataset(name, size=end, seed=seed, **settings)
        for i in range(start, end):
            question, answer = rows[i]["question"].strip(), rows[i]["answer"]
            if answer is None:
                raise ValueError(
                    f"task: got {GYM}{family}; need a family with one answer; because a scorer alone gives no answer to compare"
                )
            yield _checked(Example(question, str(answer), source_id=f"{name}-{seed}-{i}"))
    except (RuntimeError, *_DATA_ERRORS) as error:
        if str(error).startswith("task: got "):
            raise
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ValueError(f"task: got {GYM}{family}; need integer settings that it can use; because draw {i} raises {reason}") from error
