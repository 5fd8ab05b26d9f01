"""The demo: one start model, six rollout rules, the same seconds each, off-policy with CARM on.

:func:`run` starts each rule ("arm") as a process of its own, two at a time, so that every arm trains next to one sibling
and on one thread; :func:`run_arm` is what such a process does.  Each arm leaves ``<arm>.json``; the report reads only those.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["Arm", "BadInput", "Settings", "arms", "run", "run_arm"]

#: Responses every arm aims at per generation step; prompts per step are this over the group size the arm is expected to draw.
RESPONSES_PER_UPDATE = 256
#: Mean k over K_max of the adaptive rules on the embedded model (measured in demo runs); sets their prompts per generation step.
EXPECTED_SHARE = {"released": 0.56, "cgrpo": 0.62, "signal": 0.44}
#: Probability-ratio band of the certificate: the clip range of GRPO with clip-higher.
BAND = (0.8, 1.28)


class BadInput(ValueError):
    """An option that cannot work; the message is the one line the user sees."""


@dataclass(frozen=True)
class Settings:
    """Everything an arm needs to know; written as ``settings.json`` next to the results."""

    model: str = "embedded"
    seconds: float = 30.0
    out: str = "runs/demo"
    jobs: int = 2
    seed: int = 0
    grid: tuple[int, ...] = (2, 4, 8, 16, 32)
    n_calibration: int = 100
    recalibrate_every: int = 50
    delta: str = "0.1"
    tau: float = 1.02
    num_iterations: int = 2
    learning_rate: float = 5e-5
    warmup_steps: int = 5
    responses: int = RESPONSES_PER_UPDATE
    train_prompts: int = 2000
    eval_prompts: int = 400
    eval_samples: int = 16
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise :class:`BadInput` for options that cannot work, before any model is loaded or process started."""
        grid = self.grid
        if not grid or any(b <= a for a, b in pairwise(grid)) or grid[0] < 1:
            raise BadInput(f"grid: got {','.join(map(str, grid)) or 'nothing'}; need ascending integers >= 1; because a budget only grows")
        if grid[-1] < 2:
            raise BadInput(f"grid: got K_max {grid[-1]}; need at least 2; because a group of one response has no reward variance")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise BadInput(f"seconds: got {self.seconds:g}; need more than 0; because every arm trains for that long")
        try:
            delta = Fraction(self.delta)
        except (ValueError, ZeroDivisionError):
            raise BadInput(f"delta: got {self.delta}; need a number such as 0.1; because it is a miscoverage level") from None
        if not 0 < delta < 1:
            raise BadInput(f"delta: got {self.delta}; need 0 < delta < 1; because it is a miscoverage level")
        need = max(math.ceil(1 / delta) - 1, 2)
        if self.n_calibration < need:
            raise BadInput(
                f"n-calibration: got {self.n_calibration}; need at least {need} at delta {self.delta}; "
                "because with fewer prompts every threshold is infinite and nothing ever stops"
            )
        if not (math.isfinite(self.tau) and self.tau >= 1):
            raise BadInput(
                f"tau: got {self.tau:g}; need tau >= 1; because it is a ratio: 1.02 lets log-probabilities drift by 2% on average"
            )
        for name in ("num_iterations", "recalibrate_every", "responses", "train_prompts", "eval_prompts", "eval_samples"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name.replace('_', '-')}: got {getattr(self, name)}; need at least 1; because it counts")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise BadInput(f"lr: got {self.learning_rate:g}; need a number above 0; because it scales every update")
        if not 0 <= self.seed < 2**32:
            raise BadInput(f"seed: got {self.seed}; need 0 <= seed < 2**32; because it seeds NumPy and torch")
        if self.jobs < 1:
            raise BadInput(f"jobs: got {self.jobs}; need at least 1; because it counts arms that run at the same time")

    @classmethod
    def load(cls, path: Path) -> Settings:
        raw = json.loads(path.read_text())
        return cls(**{**raw, "grid": tuple(raw["grid"])})


@dataclass(frozen=True)
class Arm:
    """One rollout rule of the comparison, and how many prompts it gets per generation step."""

    key: str
    label: str
    kind: str
    k: int
    prompts: int

    def policy(self, s: Settings) -> Any:
        """The rollout policy object that decides in this arm."""
        from conformal_core import ConformalBudget, FixedBudget, SignalBudget, released_cgrpo

        if self.kind == "fixed":
            return FixedBudget(self.k)
        calibration = {"n_calibration": s.n_calibration, "recalibrate_every": s.recalibrate_every, "seed": s.seed}
        if self.kind == "released":
            return released_cgrpo(grid=s.grid, **calibration)
        if self.kind == "cgrpo":
            return ConformalBudget(s.grid, delta=s.delta, multiplicity="risk_control", **calibration)
        return SignalBudget(grid=signal_grid(s.grid), delta=s.delta, seed=s.seed)


def signal_grid(grid: tuple[int, ...]) -> tuple[int, ...]:
    """``signal`` first draws enough for a mixed group to be likely, then climbs in equal steps, so that its clock ``f`` is not rounded
    up to the next doubling: 8, 16, 24, ... up to K_max (the grid itself where K_max < 16)."""
    k_max = grid[-1]
    return grid if k_max < 16 else (*range(8, k_max, 8), k_max)


def arms(grid: tuple[int, ...] = (2, 4, 8, 16, 32), responses: int = RESPONSES_PER_UPDATE) -> list[Arm]:
    """The six rules, in the order they run: neighbours share a round of two processes.

    Prompts per generation step make prompts x expected k the same for all: k itself for fixed groups, ``EXPECTED_SHARE`` x K_max for
    the adaptive rules (they decide as they go; the report shows what they realised).
    """
    k_max = grid[-1]
    fixed = [k for k in (4, 8) if k < k_max] + [k_max]
    out = [Arm(f"fixed-{k}", f"fixed G={k}", "fixed", k, max(1, responses // k)) for k in fixed]
    labels = {"released": "released", "cgrpo": "C-GRPO risk control", "signal": "signal"}
    out += [Arm(key, labels[key], key, k_max, max(1, int(responses / (share * k_max)))) for key, share in EXPECTED_SHARE.items()]
    return out


# ------------------------------------------------------------------------------------------------------------ one arm


def problems(s: Settings) -> Any:
    """Calibration, evaluation and training problems; every calibration draws its prompts from four times as many."""
    from . import arithmetic

    sizes = {"n_calibration": 4 * s.n_calibration, "n_eval": s.eval_prompts, "n_train": s.train_prompts}
    if s.model == "embedded":
        return arithmetic.splits(s.seed, **sizes)
    lists = arithmetic.splits(s.seed, **sizes, digits=(1, 2))
    return lists._make(arithmetic.few_shot(rows) for rows in lists)


def run_arm(key: str, s: Settings) -> Path:
    """Train and evaluate one arm in this process; returns the path of its JSON."""
    arm = next(a for a in arms(s.grid, s.responses) if a.key == key)
    out = Path(s.out)
    _phase("load")
    import logging
    import warnings

    import torch
    import transformers

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")

    from carm_core import carm_bound
    from conformal_trl import CGRPOConfig, CGRPOTrainer

    from . import arithmetic, models
    from .evaluate import evaluate

    transformers.set_seed(s.seed)
    model, tokenizer = models.load(s.model)
    data = problems(s)
    if s.model != "embedded":  # an answer ends with its line; set on the model, so that TRL and evaluation agree on what ends a response
        newlines = [ids[0] for text in ("\n", "\n\n") if len(ids := tokenizer.encode(text, add_special_tokens=False)) == 1]
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, *newlines]

    _phase("evaluate the start model")
    start = evaluate(model, tokenizer, data.eval, samples=s.eval_samples, seed=s.seed + 1)

    policy = arm.policy(s)
    config = CGRPOConfig(
        output_dir=str(out / f"{arm.key}.trainer"),
        max_seconds=s.seconds,
        response_mask="carm",
        response_mask_threshold=s.tau,
        per_device_train_batch_size=arm.prompts * arm.k,
        num_generations=arm.k,
        num_iterations=s.num_iterations,
        gradient_accumulation_steps=1,
        learning_rate=s.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=s.warmup_steps,
        max_steps=1_000_000,
        max_completion_length=8,
        temperature=1.0,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        calibration_progress=False,
        logging_strategy="no",
        seed=s.seed,
    )
    trainer = CGRPOTrainer(
        model=model,
        reward_funcs=arithmetic.reward,
        args=config,
        train_dataset=arithmetic.to_dataset(data.train),
        calibration_dataset=arithmetic.to_dataset(data.calibration),
        processing_class=tokenizer,
        rollout_policy=policy,
        answer_fn=arithmetic.extract_answer,
        gold_column="answer",
    )
    _phase("train")
    begin = time.perf_counter()
    trainer.train()
    wall = time.perf_counter() - begin
    _phase("evaluate")
    final = evaluate(trainer.model, tokenizer, data.eval, samples=s.eval_samples, seed=s.seed + 1)

    result = {
        "arm": asdict(arm),
        "policy": repr(policy),
        "tau": s.tau,
        "band": list(BAND),
        "certificate": float(carm_bound(s.tau, BAND)),
        "k_max": s.grid[-1],
        "wall_seconds": wall,
        "totals": trainer.ledger.totals(),
        "history": trainer.ledger.history,
        "evaluation": {
            "samples": s.eval_samples,
            "start": [float(r) for r in start.mean(1)],
            "final": [float(r) for r in final.mean(1)],
        },
    }
    path = out / f"{arm.key}.json"
    path.write_text(json.dumps(_plain(result)))
    _phase("done")
    return path


def _phase(name: str) -> None:
    print(f"@phase {name}", flush=True)


def _plain(x: Any) -> Any:
    """JSON without NaN and Infinity: they become the strings ``"nan"`` and ``"inf"``, which ``float`` reads back."""
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    if hasattr(x, "tolist"):
        return _plain(x.tolist())
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    return str(x)


# ---------------------------------------------------------------------------------------------------------- all arms


def versions() -> dict[str, str]:
    """What ran: Python, the packages that matter, the number of processors."""
    from importlib.metadata import PackageNotFoundError, version

    out = {"python": platform.python_version(), "processors": str(os.cpu_count())}
    for name in ("torch", "transformers", "trl", "numpy"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "missing"
    return out


def run(s: Settings) -> Path:
    """Run all arms, write the report, print the table; returns the folder of the results."""
    from . import report

    out = Path(s.out)
    out.mkdir(parents=True, exist_ok=True)
    todo = arms(s.grid, s.responses)
    for arm in todo:
        (out / f"{arm.key}.json").unlink(missing_ok=True)
    settings = out / "settings.json"
    settings.write_text(json.dumps(asdict(s), indent=1))
    began = time.perf_counter()
    rounds = [todo[i : i + s.jobs] for i in range(0, len(todo), s.jobs)]
    print(
        f"{len(todo)} rules x {s.seconds:g} s of training, {s.jobs} at a time, model {s.model!r}: "
        f"about {_clock(len(rounds) * (s.seconds + 14))} in all",
        flush=True,
    )
    for i, batch in enumerate(rounds):
        _round(batch, s, settings, done=i, rounds=len(rounds))
    data = report.load(out)
    report.write(data, out)
    print()
    print(report.text_table(data))
    print()
    print(report.verdict(data))
    print(f"\nreport: {out / 'report.html'}   table: {out / 'table.csv'}, {out / 'table.md'}   ({_clock(time.perf_counter() - began)})")
    return out


def _round(batch: list[Arm], s: Settings, settings: Path, done: int, rounds: int) -> None:
    """Start the arms of one round together and wait for all, so that none trains alone on the machine."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if s.model in ("embedded", "smollm2"):
        env["HF_HUB_OFFLINE"] = "1"
    out = Path(s.out)
    procs = {}
    try:
        for arm in batch:
            log = (out / f"{arm.key}.log").open("w")
            command = [sys.executable, "-m", "experiments", "demo-arm", arm.key, str(settings)]
            procs[arm.key] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
            log.close()
        _watch(procs, batch, s, done, rounds)
        for arm in batch:
            if procs[arm.key].returncode:
                log_path = out / f"{arm.key}.log"
                tail = "\n".join(log_path.read_text().splitlines()[-15:])
                raise RuntimeError(f"arm {arm.key} failed (exit {procs[arm.key].returncode}); the end of {log_path}:\n{tail}")
    finally:
        for p in procs.values():
            if p.poll() is None:
                p.terminate()
                p.wait()


def _watch(procs: dict[str, subprocess.Popen[bytes]], batch: list[Arm], s: Settings, done: int, rounds: int) -> None:
    """Progress lines until every process of the round has ended (or one has failed): phase of each arm, and time left in all."""
    out, began, shown, last = Path(s.out), time.perf_counter(), "", -math.inf
    train_began: dict[str, float] = {}
    tty = sys.stderr.isatty()
    each = s.seconds + 14
    while True:
        codes = [p.poll() for p in procs.values()]
        now = time.perf_counter()
        parts = []
        for arm in batch:
            lines = [x for x in (out / f"{arm.key}.log").read_text(errors="replace").splitlines() if x.startswith("@phase ")]
            phase = lines[-1].removeprefix("@phase ") if lines else "start"
            if phase == "train":
                train_began.setdefault(arm.key, now)
                phase = f"train {min(now - train_began[arm.key], s.seconds):3.0f}/{s.seconds:g} s"
            parts.append(f"{arm.label}: {phase}")
        left = max(each - (now - began), 1) + (rounds - done - 1) * each
        line = f"[{done + 1}/{rounds}] " + " | ".join(parts) + f" | about {_clock(left)} left"
        if tty:
            print("\r" + line.ljust(len(shown)), end="", file=sys.stderr, flush=True)
        elif now - last >= 10:
            print(line, file=sys.stderr, flush=True)
            last = now
        shown = line
        if all(c is not None for c in codes) or any(codes):
            if tty:
                print(file=sys.stderr)
            return
        time.sleep(0.25)


def _clock(seconds: float) -> str:
    seconds = round(seconds)
    return f"{seconds // 60} min {seconds % 60:02d} s" if seconds >= 60 else f"{seconds} s"


def quoted(argv: list[str]) -> str:
    """The command as the report shows it."""
    return "python -m experiments " + " ".join(shlex.quote(a) for a in argv)
