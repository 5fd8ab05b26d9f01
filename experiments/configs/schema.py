"""What a configuration may say, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from conformal_core.stop_rules import RULES as MULTIPLICITIES
from experiments import checks
from experiments.tasks import task

__all__ = ["Budget", "Data", "Evaluation", "Experiment", "Lora", "Mask", "Model", "Update", "find", "names", "parse", "read"]

FOLDER = Path(__file__).parent
RULES = ("fixed", "conformal", "released", "signal")
#: The rules of `experiments.baselines`, by the names of `experiments.baselines.named`.
BASELINES = ("unanimity", "dapo", "aero", "gdro-prompt", "gdro-rollout", "sqrt", "greso", "ada-seq", "ada-est", "pilot", "knapsack")
MASKS = ("none", "carm", "geomean", "trm", "opsm", "icepop")
CONDITIONINGS = ("both", "negative")


#: What ``mask.tau`` must be, by rule; for "none" it waits for another rule.
_TAU = {
    "carm": (1.0, True, "a ratio >= 1", "tau bounds exp(mean |log-ratio|)"),
    "geomean": (1.0, True, "a ratio >= 1", "tau bounds exp(mean |log-ratio|)"),
    "icepop": (0.5, False, "a ratio > 0.5", "it is the upper end of a band from 0.5"),
    "trm": (0.0, False, "a number > 0", "it bounds a divergence in nats"),
    "opsm": (0.0, False, "a number > 0", "it bounds a drift in nats"),
    "none": (0.0, False, "a number > 0", "every rule's threshold is"),
}
#: A level as written: a decimal or a quotient, short enough to be computed exactly.
_LEVEL = re.compile(r"[0-9]{0,20}(\.[0-9]{0,40})?([eE]-?[0-9]{1,3})?|[0-9]{1,40}/[0-9]{1,40}")


def _need(name: str, ok: bool, got: Any, need: str, because: str) -> None:
    if not ok:
        raise ValueError(f"{name}: got {got!r}; need {need}; because {because}")


def _positive(name: str, value: float, because: str) -> None:
    _need(name, 0 < value < math.inf, value, "a finite number > 0", because)


def _names(name: str, values: tuple[str, ...], because: str) -> None:
    ok = len(set(values)) == len(values) and all(v.strip() for v in values)
    _need(name, ok, list(values), "names, none of them empty or twice", because)


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters: rank, scale ``alpha``, dropout, and the linear layers that get them."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")

    def __post_init__(self) -> None:
        checks.whole("model.lora.rank", self.rank, 1, "it is the rank of a matrix")
        checks.whole("model.lora.alpha", self.alpha, 1, "alpha / rank scales the adapters")
        _need("model.lora.dropout", 0 <= self.dropout < 1, self.dropout, "a number in [0, 1)", "it is a probability")
        _need("model.lora.targets", len(self.targets) > 0, [], "at least one name", "the layers of these names get adapters")
        _names("model.lora.targets", self.targets, "the layers of these names get adapters")


@dataclass(frozen=True)
class Model:
    """Start model: hub id or local folder; without ``lora`` all parameters train; ``chat`` uses its chat template."""

    id: str
    chat: bool = True
    lora: Lora | None = None

    def __post_init__(self) -> None:
        _need("model.id", bool(self.id.strip()), self.id, "a hub id or a folder", "something must be trained")


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
        _need("data.source", self.source is None or bool(self.source.strip()), self.source, "a hub id, folder or file", "rows come from it")
        checks.whole("data.n_train", self.n_train, 1, "there is nothing to train on")
        checks.whole("data.n_calibration", self.n_calibration, 0, "it counts examples")
        checks.whole("data.n_test", self.n_test, 0, "it counts examples")
        checks.seed("data.seed", self.seed)
        if self.max_tests is not None:
            checks.whole("data.max_tests", self.max_tests, 1, "a program without tests is never right")
        total = self.n_calibration + self.n_train + self.n_test
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
        checks.whole("budget.recalibrate_every", self.recalibrate_every, 1, "it counts steps")
        spent = ", ".join(MULTIPLICITIES)
        _need("budget.multiplicity", self.multiplicity in MULTIPLICITIES, self.multiplicity, f"one of {spent}", "delta is spent on one")
        for name in ("delta", "epsilon"):
            text = getattr(self, name)
            if name == "delta" and text == "auto":
                continue
            try:
                ok = bool(_LEVEL.fullmatch(text)) and 0 < Fraction(text) < 1
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
        bound, closed, need, because = _TAU[self.rule]
        for name, values in (("mask.tau", () if self.tau is None else (self.tau,)), ("mask.sweep", self.sweep)):
            for value in values:
                _need(name, bound < value < math.inf or (closed and value == bound), value, need, because)


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
            checks.whole(f"update.{name}", getattr(self, name), 1, "it counts")
        checks.whole("update.warmup", self.warmup, 0, "it counts steps")
        for name in ("learning_rate", "temperature"):
            _positive(f"update.{name}", getattr(self, name), "it scales")
        _need("update.objective", self.objective in ("trl", "cgrpo"), self.objective, "'trl' or 'cgrpo'", "no other is implemented")
        _need("update.engine", self.engine in ("transformers", "vllm"), self.engine, "'transformers' or 'vllm'", "no other is implemented")
        _need("update.beta", 0 <= self.beta < math.inf, self.beta, "a finite number >= 0", "it weighs a divergence")
        whole = self.mini_batch is None or (self.mini_batch >= 1 and self.prompts % self.mini_batch == 0)
        _need("update.mini_batch", whole, self.mini_batch, f"a divisor of {self.prompts}", "a rollout batch is cut into equal parts")
        bounds = len(self.clip) == 2 and all(0 < c < math.inf for c in self.clip)
        _need("update.clip", bounds, list(self.clip), "two finite numbers > 0", "it bounds ratios")


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
        checks.whole("evaluation.samples", self.samples, 1, "something must be sampled")
        drawn = len(self.k) > 0 and len(set(self.k)) == len(self.k) and all(1 <= k <= self.samples for k in self.k)
        _need("evaluation.k", drawn, list(self.k), f"integers in 1..{self.samples}, at least one and none twice", "k are drawn")
        _positive("evaluation.temperature", self.temperature, "logits are divided by it")
        _need("evaluation.top_p", 0 < self.top_p <= 1, self.top_p, "a number in (0, 1]", "the likeliest tokens of that mass are kept")
        checks.whole("evaluation.top_k", self.top_k, 0, "it counts tokens that are kept (0: all)")
        _names("evaluation.tasks", self.tasks, "each is measured once")
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
        plain = re.fullmatch(r"\w[\w.+-]*", self.name) is not None
        _need("name", plain, self.name, "letters, digits and any of .+_-", "the folder of the results is called so")
        calibrates = self.budget.rule in ("conformal", "released")
        n = self.data.n_calibration
        _need("data.n_calibration", n >= 1 or not calibrates, n, "an integer >= 1", f"budget.rule = '{self.budget.rule}' calibrates")
        short = self.data.n_train < self.update.prompts
        _need("data.n_train", not short, self.data.n_train, f"at least {self.update.prompts}", "every step draws that many prompts")
        again = self.data.task in self.evaluation.tasks
        _need(
            "evaluation.tasks",
            not again,
            list(self.evaluation.tasks),
            "tasks other than data.task",
            "all of its rows hold those trained on",
        )


def names() -> list[str]:
    """Names of the shipped configurations, such as ``cgrpo/qwen2.5-7b-gsm8k``."""
    return sorted(str(p.relative_to(FOLDER).with_suffix("")) for p in FOLDER.glob("*/*.toml"))


def find(config: str | Path) -> Path:
    """The file of a shipped name, or the path itself."""
    try:
        for candidate in (Path(config).expanduser(), FOLDER / f"{config}.toml"):
            if candidate.is_file():
                return candidate
    except (OSError, RuntimeError) as error:  # a name too long, a folder that may not be entered, a user without a home
        raise ValueError(f"config: got {str(config)!r}; need a TOML file or a shipped name; because {error}") from None
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
    except (OSError, ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number of too many digits, too deep
        raise ValueError(f"config: got {str(path)!r}; need valid TOML; because {error}") from None
    return parse(table)


def parse(table: dict[str, Any]) -> Experiment:
    """A configuration from the tables of a TOML file; unknown keys and wrong types are refused by name.

    >>> parse({"name": "x", "paper": "none", "model": {"id": "m", "lorra": {}}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: model.lorra: got an unknown key; need one of id, chat, lora; because a misspelt setting would be ignored
    """
    _integers(table, "")
    return _build(Experiment, table, "")


def _integers(value: Any, name: str) -> None:
    """Refuse integers that a TOML file may hold for Python, and nothing else can use; longer ones cannot even be shown."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _integers(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, int) and value.bit_length() > 63:
        raise ValueError(f"{name}: got an integer of {value.bit_length()} bits; need 63 at most; because TOML's integers are signed, of 64")


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
