"""What a configuration may say, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from experiments.tasks import task

__all__ = ["Budget", "Data", "Evaluation", "Experiment", "Lora", "Mask", "Model", "Update", "find", "names", "parse", "read"]

FOLDER = Path(__file__).parent
RULES = ("fixed", "conformal", "released", "signal")
#: The rules of `experiments.baselines`, by the names of `experiments.baselines.named`.
BASELINES = ("unanimity", "dapo", "aero", "gdro-prompt", "gdro-rollout", "sqrt", "greso", "ada-seq", "ada-est", "pilot", "knapsack")
MASKS = ("none", "carm", "geomean", "trm", "opsm", "icepop")
CONDITIONINGS = ("both", "negative")


def _need(name: str, ok: bool, got: Any, need: str, because: str) -> None:
    if not ok:
        raise ValueError(f"{name}: got {got!r}; need {need}; because {because}")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters: rank, scale ``alpha``, dropout, and the linear layers that get them."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")

    def __post_init__(self) -> None:
        _need("model.lora.rank", self.rank >= 1, self.rank, "an integer >= 1", "it is the rank of a matrix")
        _need("model.lora.dropout", 0 <= self.dropout < 1, self.dropout, "a number in [0, 1)", "it is a probability")


@dataclass(frozen=True)
class Model:
    """Start model: hub id or local folder; without ``lora`` all parameters train; ``chat`` uses its chat template."""

    id: str
    chat: bool = True
    lora: Lora | None = None


@dataclass(frozen=True)
class Data:
    """Task, where its rows come from (see `experiments.tasks.load`), and the sizes of the three disjoint splits."""

    task: str
    source: str | None = None
    n_calibration: int = 0
    n_train: int = 2000
    n_test: int = 0
    seed: int = 0
    max_tests: int | None = None

    def __post_init__(self) -> None:
        size = task(self.task).size
        total = self.n_calibration + self.n_train + self.n_test
        _need("data.n_train", self.n_train >= 1, self.n_train, "an integer >= 1", "there is nothing to train on")
        _need("data.n_calibration", self.n_calibration >= 0, self.n_calibration, "an integer >= 0", "it counts examples")
        _need("data.n_test", self.n_test >= 0, self.n_test, "an integer >= 0", "it counts examples")
        because = f"{self.task} has {size} examples and the splits share none"
        _need("data", size is None or total <= size, f"{total} examples in all", f"at most {size}", because)


@dataclass(frozen=True)
class Budget:
    """How many responses a prompt gets: ``fixed`` draws ``grid[-1]`` at once, the others stop along ``grid``.

    ``conformal`` calibrates every ``recalibrate_every`` steps (with ``split``, delta is chosen on one half and the thresholds on the
    other), ``released`` is the stop of the authors' code, ``signal`` stops when the group is mixed and calibrates on the training stream.
    The baselines take their sizes from the grid's ends, as `experiments.baselines.named` says.
    """

    rule: str = "fixed"
    grid: tuple[int, ...] = (2, 4, 8, 16, 32)
    delta: str = "auto"
    epsilon: str = "0.05"
    multiplicity: str = "per_budget"
    recalibrate_every: int = 50
    split: bool = True

    def __post_init__(self) -> None:
        known = (*RULES, *BASELINES)
        _need("budget.rule", self.rule in known, self.rule, f"one of {', '.join(known)}", "no other rule is wired to the trainer here")
        ascending = len(self.grid) > 0 and self.grid[0] >= 1 and all(a < b for a, b in zip(self.grid, self.grid[1:], strict=False))
        _need("budget.grid", ascending and self.grid[-1] >= 2, list(self.grid), "ascending integers up to at least 2", "it lists budgets")
        _need("budget.recalibrate_every", self.recalibrate_every >= 1, self.recalibrate_every, "an integer >= 1", "it counts steps")
        for name in ("delta", "epsilon"):
            text = getattr(self, name)
            if name == "delta" and text == "auto":
                continue
            try:
                ok = 0 < Fraction(text) < 1
            except (ValueError, ZeroDivisionError):
                ok = False
            _need(f"budget.{name}", ok, text, "a string such as '0.05'", "levels are exact numbers in (0, 1)")


@dataclass(frozen=True)
class Mask:
    """Response mask: rule, threshold in its own units, the signs of advantage it judges, and the thresholds of the paper's sweep."""

    rule: str = "none"
    tau: float | None = None
    sweep: tuple[float, ...] = ()
    conditioning: str = "both"

    def __post_init__(self) -> None:
        _need("mask.rule", self.rule in MASKS, self.rule, f"one of {', '.join(MASKS)}", "no other mask is in the papers")
        sign = self.conditioning
        _need("mask.conditioning", sign in CONDITIONINGS, sign, f"one of {', '.join(CONDITIONINGS)}", "an advantage has a sign")
        judged = sign == "both" or self.rule not in ("none", "icepop")
        _need("mask.conditioning", judged, sign, "'both'", f"mask.rule = '{self.rule}' judges no response by the sign of its advantage")
        for value in (*(() if self.tau is None else (self.tau,)), *self.sweep):
            if self.rule in ("carm", "geomean"):
                _need("mask.tau", math.isfinite(value) and value >= 1, value, "a ratio >= 1", "tau bounds exp(mean |log-ratio|)")


@dataclass(frozen=True)
class Update:
    """Optimisation.  ``prompts`` are rolled out together; every optimizer step takes ``mini_batch`` of them (None: all).

    ``steps`` counts optimizer steps; ``micro_batch`` rows go through the model at once, on each process.
    """

    steps: int
    prompts: int
    mini_batch: int | None = None
    micro_batch: int = 8
    learning_rate: float = 2e-6
    objective: str = "trl"
    beta: float = 0.0
    clip: tuple[float, float] = (0.2, 0.2)
    max_tokens: int = 512
    temperature: float = 1.0
    warmup: int = 0
    engine: str = "transformers"

    def __post_init__(self) -> None:
        for name in ("steps", "prompts", "micro_batch", "max_tokens"):
            _need(f"update.{name}", getattr(self, name) >= 1, getattr(self, name), "an integer >= 1", "it counts")
        for name in ("learning_rate", "temperature"):
            value = getattr(self, name)
            _need(f"update.{name}", math.isfinite(value) and value > 0, value, "a number > 0", "it scales")
        _need("update.objective", self.objective in ("trl", "cgrpo"), self.objective, "'trl' or 'cgrpo'", "no other is implemented")
        _need("update.engine", self.engine in ("transformers", "vllm"), self.engine, "'transformers' or 'vllm'", "no other is implemented")
        _need("update.beta", self.beta >= 0, self.beta, "a number >= 0", "it weighs a divergence")
        whole = self.mini_batch is None or (self.mini_batch >= 1 and self.prompts % self.mini_batch == 0)
        _need("update.mini_batch", whole, self.mini_batch, f"a divisor of {self.prompts}", "a rollout batch is cut into equal parts")
        _need("update.clip", len(self.clip) == 2 and all(c > 0 for c in self.clip), list(self.clip), "two numbers > 0", "it bounds ratios")


@dataclass(frozen=True)
class Evaluation:
    """Sampling at evaluation: responses per problem, the k reported, decoding, and further tasks beside the test split."""

    samples: int = 32
    k: tuple[int, ...] = (1, 8, 16, 32)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _need("evaluation.samples", self.samples >= 1, self.samples, "an integer >= 1", "something must be sampled")
        _need("evaluation.k", all(1 <= k <= self.samples for k in self.k), list(self.k), f"integers in 1..{self.samples}", "k are drawn")
        for name in self.tasks:
            task(name)


@dataclass(frozen=True)
class Experiment:
    """One training run and its evaluation.

    Raises
    ------
    ValueError : in the part that is wrong, with the key as in the file; also where the parts disagree.
    """

    name: str
    paper: str
    model: Model
    data: Data
    update: Update
    budget: Budget = field(default_factory=Budget)
    mask: Mask = field(default_factory=Mask)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def __post_init__(self) -> None:
        calibrates = self.budget.rule in ("conformal", "released")
        n = self.data.n_calibration
        _need("data.n_calibration", n >= 1 or not calibrates, n, "an integer >= 1", f"budget.rule = '{self.budget.rule}' calibrates")
        short = self.data.n_train < self.update.prompts
        _need("data.n_train", not short, self.data.n_train, f"at least {self.update.prompts}", "every step draws that many prompts")


def names() -> list[str]:
    """Names of the shipped configurations, such as ``cgrpo/qwen2.5-7b-gsm8k``."""
    return sorted(str(p.relative_to(FOLDER).with_suffix("")) for p in FOLDER.glob("*/*.toml"))


def find(config: str | Path) -> Path:
    """The file of a shipped name, or the path itself."""
    path = Path(config).expanduser()
    for candidate in (path, FOLDER / f"{config}.toml"):
        if candidate.is_file():
            return candidate
    near = difflib.get_close_matches(str(config), names(), 3) or names()[:3]
    raise ValueError(f"config: got {str(config)!r}; need a TOML file or a name such as {', '.join(near)}; because there is no such file")


def read(config: str | Path) -> Experiment:
    """The configuration of a file or shipped name.

    >>> read("cgrpo/qwen2.5-7b-gsm8k").budget.grid
    (2, 4, 8, 16, 32)
    """
    path = find(config)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"config: got {str(path)!r}; need valid TOML; because {error}") from None
    return parse(table)


def parse(table: dict[str, Any]) -> Experiment:
    """A configuration from the tables of a TOML file; unknown keys and wrong types are refused by name.

    >>> parse({"name": "x", "paper": "none", "model": {"id": "m", "lorra": {}}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: model.lorra: got an unknown key; need one of id, chat, lora; because a misspelt setting would be ignored
    """
    return _build(Experiment, table, "")


def _build(kind: Any, table: dict[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise ValueError(
                f"{where}{key}: got an unknown key; need one of {', '.join(hints)}; because a misspelt setting would be ignored"
            )
    values = {key: _value(hints[key], value, f"{where}{key}") for key, value in table.items()}
    for f in dataclasses.fields(kind):
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and f.name not in table:
            raise ValueError(f"{where}{f.name}: got nothing; need a value; because it has no default")
    return kind(**values)


def _value(hint: Any, value: Any, name: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(o for o in options if o is not type(None))
    if dataclasses.is_dataclass(kind):
        if isinstance(value, dict):
            return _build(kind, value, f"{name}.")
    elif typing.get_origin(kind) is tuple:
        if isinstance(value, list):
            return tuple(_value(typing.get_args(kind)[0], item, name) for item in value)
    elif kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif type(value) is kind:
        return value
    shown = "a table" if dataclasses.is_dataclass(kind) else "a list" if typing.get_origin(kind) is tuple else f"a {kind.__name__}"
    raise ValueError(f"{name}: got {value!r}; need {shown}; because that is its type")
