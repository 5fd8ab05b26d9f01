"""What the trainer costs beside stock TRL and trl-cgrpo 0.2.0: step time, memory, calibration.

    python -m benchmarks.trainer_cost steps         # G = 32, 16, 8; ours; trl-cgrpo 0.2.0
    python -m benchmarks.trainer_cost slope         # seconds against trained rows: slope and intercept
    python -m benchmarks.trainer_cost off           # every feature off, against stock TRL
    python -m benchmarks.trainer_cost memory        # peak memory at mean k 12.5 against G = 32
    python -m benchmarks.trainer_cost calibration   # share of calibration in all rollouts, and whether its bounds still hold

``--out FILE.csv`` replaces the rows of that command.  The model has 5M parameters, a batch 8 prompts, a response 48 tokens
(``calibration``: the embedded model and its task); one thread.  Times are medians over all steps but the first of each turn; variants
take turns for ``--seconds``, and every figure with a bar is a ratio within one run.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from benchmarks.step_time import BUDGETS, K_MAX, StepTimes, five_million, reward
from conformal_core import ConformalBudget, FixedBudget, Outcomes, RolloutPolicy, SignalBudget, StreamCalibrated, clopper_pearson, replay
from conformal_trl import CGRPOConfig, CGRPOTrainer
from experiments.arithmetic import extract_answer, make_problems, splits, to_dataset
from experiments.arithmetic import reward as correct
from experiments.models import load

ROOT = Path(__file__).resolve().parent.parent
FIELDS = ["command", "variant", "value", "unit", "ratio", "bar"]
GRID = (2, 4, 8, 16, 32)
PROMPTS, TOKENS = 8, 48
Build = Callable[[str], Any]


class Figure(NamedTuple):
    """A line of the table; ``ratio`` is what ``bar`` is about."""

    variant: str
    value: float
    unit: str
    ratio: float | None = None
    bar: str = ""


class Scripted(RolloutPolicy):
    """The i-th prompt of a batch gets ``budgets[i]`` responses, along ``grid``."""

    k_max = K_MAX

    def __init__(self, budgets: tuple[int, ...], grid: tuple[int, ...] = GRID) -> None:
        self.budgets, self.grid = budgets, np.array(grid)

    def first(self, prompt_ids, step):
        self.target = dict(zip(prompt_ids.tolist(), self.budgets, strict=True))
        return np.minimum(self.grid[0], [self.target[i] for i in prompt_ids.tolist()])

    def more(self, outcomes):
        targets = np.array([self.target[i] for i in outcomes.prompt_ids.tolist()])
        following = np.append(self.grid, K_MAX)[np.searchsorted(self.grid, outcomes.drawn, side="right")]
        return np.where(outcomes.drawn < targets, np.minimum(following, targets) - outcomes.drawn, 0)


# ------------------------------------------------------------------------------------------------------------------ trainers


def common(folder: str, group: int, steps: int) -> dict[str, Any]:
    return dict(
        output_dir=folder, use_cpu=not torch.cuda.is_available(), bf16=False, gradient_checkpointing=False, save_strategy="no",
        report_to="none", disable_tqdm=True, logging_steps=1000, per_device_train_batch_size=PROMPTS * group, num_generations=group,
        max_completion_length=TOKENS, max_steps=steps, learning_rate=1e-5, lr_scheduler_type="constant", seed=1,
        generation_kwargs={"min_new_tokens": TOKENS},
    )  # fmt: skip


def problems(steps: int) -> Dataset:
    return Dataset.from_list(make_problems(PROMPTS * (steps + 1), seed=5))


def stock(folder: str, steps: int, group: int = K_MAX) -> Any:
    config = GRPOConfig(**common(folder, group, steps))
    return GRPOTrainer(five_million(), reward, args=config, train_dataset=problems(steps), processing_class=load("embedded")[1])


def ours(folder: str, steps: int, policy: RolloutPolicy, prune: str = "none") -> Any:
    config = CGRPOConfig(**common(folder, policy.k_max, steps), prune=prune, rollout_batch_size=4096)
    return CGRPOTrainer(five_million(), reward, config, problems(steps), processing_class=load("embedded")[1], rollout_policy=policy)


def peer(folder: str, steps: int) -> Any:
    """trl-cgrpo's trainer with the scripted stops and no calibration: its rows, padding and grid of increments."""
    from trl_cgrpo import CGRPOConfig as PeerConfig
    from trl_cgrpo import CGRPOTrainer as PeerTrainer

    class ScriptedPeer(PeerTrainer):
        level, asked = 0, 0

        def _calibration_due(self):
            return False

        def _resolved(self, outcomes, k):
            self.asked = self.asked + 1 if k == self.level else 0  # asked of the prompts still drawing, in the order of the batch
            self.level = k
            return [b for b in BUDGETS if b >= k][self.asked] == k

    config, data = PeerConfig(**common(folder, K_MAX, steps), budget_grid=list(GRID)), problems(steps)
    return ScriptedPeer(
        five_million(), reward, args=config, train_dataset=data, processing_class=load("embedded")[1], calibration_dataset=data,
        answer_extractor=extract_answer,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------ clocks


def timed(build: Build) -> StepTimes:
    """The clock of one training run."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, times = build(folder), StepTimes()
        trainer.add_callback(times)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return times


def in_turns(builds: dict[str, Build], seconds: float) -> dict[str, list[StepTimes]]:
    """Clocks of as many rounds as fit in ``seconds``, at least one; the variants take turns, in both directions."""
    measured: dict[str, list[StepTimes]] = {name: [] for name in builds}
    began, longest, rounds = time.perf_counter(), 0.0, 0
    while not rounds or time.perf_counter() - began + longest < seconds:
        round_began = time.perf_counter()
        for name in list(builds)[:: -1 if rounds % 2 else 1]:
            measured[name].append(timed(builds[name]))
            progress(f"round {rounds + 1}  {name:36} {statistics.median(measured[name][-1].seconds):8.4f} s/step")
        longest, rounds = max(longest, time.perf_counter() - round_began), rounds + 1
    return measured


def median(clocks: list[StepTimes], which: str = "seconds") -> float:
    return statistics.median(x for clock in clocks for x in getattr(clock, which))


def progress(text: str) -> None:
    print(f"# {text}", flush=True)


# ------------------------------------------------------------------------------------------------------------------ commands


def steps_command(args: argparse.Namespace) -> Iterator[Figure]:
    """Seconds a step, over those of TRL at G = 32."""
    if not (args.peers / "trl_cgrpo").is_dir():
        sys.exit(
            f"peers: got {args.peers}; need trl-cgrpo there (pip install --no-deps --target {args.peers} trl-cgrpo==0.2.0); because ratios "
            "are taken in one run"
        )
    sys.path.append(str(args.peers))
    n = args.steps
    builds: dict[str, Build] = {f"TRL G={g}": lambda f, g=g: stock(f, n, g) for g in (32, 16, 8)}
    builds["ours, mean k 12.5"] = lambda f: ours(f, n, Scripted(BUDGETS))
    builds["ours, mean k 12.5, pruned"] = lambda f: ours(f, n, Scripted(BUDGETS), "zero_variance")
    builds["trl-cgrpo 0.2.0, mean k 12.5"] = lambda f: peer(f, n)
    measured = in_turns(builds, args.seconds)
    base = median(measured["TRL G=32"])
    for name, clocks in measured.items():
        yield Figure(name, median(clocks), "s/step", median(clocks) / base)


def slope_command(args: argparse.Namespace) -> Iterator[Figure]:
    """Fits seconds = intercept + slope * rows, relative errors alike; proportional is TRL's seconds a row at G = 32.

    Every response is drawn in one increment, as TRL draws; what a further increment costs is a figure of its own.
    """
    steps = {4: 2 * args.steps - 1, 8: args.steps + 1, 16: args.steps, 32: args.steps}
    builds: dict[str, Build] = {f"TRL {g}": lambda f, g=g: stock(f, steps[g], g) for g in steps}
    builds |= {f"ours {g}": lambda f, g=g: ours(f, steps[g], Scripted((g,) * PROMPTS, (g,))) for g in steps}
    builds["ours 8, increments 2-4-8"] = lambda f: ours(f, steps[8], Scripted((8,) * PROMPTS, (2, 4, 8)))
    measured = in_turns(builds, args.seconds)
    rows, fits = np.array([PROMPTS * g for g in steps]), {}
    for who in ("TRL", "ours"):
        seconds = np.array([median(measured[f"{who} {g}"]) for g in steps])
        fits[who] = np.polyfit(rows, seconds, 1, w=1 / seconds)
    proportional = median(measured["TRL 32"]) / (PROMPTS * 32)
    for who, (slope, _) in fits.items():
        yield Figure(f"{who}, slope over proportional", 1e3 * slope, "ms/row", slope / proportional, "0.85 to 1.15" * (who == "ours"))
    yield Figure("TRL, intercept", fits["TRL"][1], "s/step")
    yield Figure("ours, intercept over TRL's", fits["ours"][1], "s/step", fits["ours"][1] / fits["TRL"][1], "at most 1.1")
    more = (median(measured["ours 8, increments 2-4-8"]) - median(measured["ours 8"])) / 2
    yield Figure("ours, a further increment over TRL's step at G=32", more, "s", more / median(measured["TRL 32"]))


def off_command(args: argparse.Namespace) -> Iterator[Figure]:
    """A fixed budget, no pruning, no mask, at G = 16: what is constant weighs twice as much as at 32."""
    n, group = args.steps, 16
    measured = in_turns({"TRL": lambda f: stock(f, n, group), "ours": lambda f: ours(f, n, FixedBudget(group))}, args.seconds)
    for which, unit, bar in (("seconds", "s/step", "at most 1.01"), ("cpu_seconds", "CPU s/step", "")):
        trl, own = (median(measured[who], which) for who in ("TRL", "ours"))
        yield Figure(f"TRL G=16, {unit}", trl, unit)
        yield Figure(f"ours, features off, {unit}", own, unit, own / trl, bar)
    by_round = [median([own]) / median([trl]) for trl, own in zip(measured["TRL"], measured["ours"], strict=True)]
    yield Figure("ours, features off, lowest ratio of a round", len(by_round), "rounds", min(by_round))
    yield Figure("ours, features off, highest ratio of a round", len(by_round), "rounds", max(by_round))


def resident() -> dict[str, int]:
    """Resident bytes now and at their peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"VmRSS": peak, "VmHWM": peak}
    lines = (line.split() for line in status.read_text().splitlines())
    return {line[0][:-1]: 1024 * int(line[1]) for line in lines if line[0] in ("VmRSS:", "VmHWM:")}


def _peak(which: str) -> int:
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        trainer = ours(folder, 2, Scripted(BUDGETS)) if which == "ours" else stock(folder, 2)
        trainer.remove_callback(PrinterCallback)
        if torch.cuda.is_available():
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            trainer.train()
            return torch.cuda.max_memory_allocated() - before
        before = resident()["VmRSS"]
        trainer.train()
        return resident()["VmHWM"] - before


def memory_command(args: argparse.Namespace) -> Iterator[Figure]:
    """Growth of peak memory in two steps, each variant in a process of its own: TRL at G = 32, ours at mean k 12.5."""
    peaks = {}
    for which, name in (("TRL", "TRL G=32"), ("ours", "ours, mean k 12.5")):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks[which] = pool.apply(_peak, (which,))
        progress(f"{name:20} {peaks[which] / 2**20:9.1f} MiB")
        bar = {"TRL": "", "ours": "at most 0.5"}[which]
        yield Figure(name, peaks[which] / 2**20, "MiB", peaks[which] / peaks["TRL"], bar)


class Case(NamedTuple):
    """A calibrated policy, the error event it bounds and by how much, and whether its calibration is meant to be cheap."""

    policy: RolloutPolicy
    event: str
    bound: float
    cheap: bool = True


def cases() -> dict[str, Case]:
    def conformal(**options: Any) -> ConformalBudget:
        return ConformalBudget(GRID, **({"delta": "0.1", "multiplicity": "risk_control", "n_calibration": 100} | options))

    signal, late = dict(grid=(8, 16, 24, 32), delta="0.1"), 10**6
    early = SignalBudget(**signal, calibration="offline", n_calibration=100, recalibrate_every=late, alarm="0.05")
    nested = conformal(multiplicity="per_budget", nested=("1", "1", "0.5", "0.25", "0.25"), recalibrate_every=late, alarm="0.05")
    return {
        "signal, stream": Case(SignalBudget(**signal, share="0.1"), "lost_group", 0.1),
        "C-GRPO, every 50 steps": Case(conformal(recalibrate_every=50), "false_stop", 0.1, cheap=False),
        "signal, stream, alarm": Case(SignalBudget(**signal, share="0.1", alarm="0.05"), "lost_group", 0.1 / 0.95),
        "C-GRPO, stream": Case(StreamCalibrated(conformal(), share="0.1"), "false_stop", 0.1),
        "signal, early-stopped, alarm": Case(early, "lost_group", 0.1 / 0.95),
        "C-GRPO, nested, alarm": Case(nested, "false_stop", len(GRID) * 0.1 / 0.95),  # delta at each budget, as trl-cgrpo has it
    }


def occurred(case: Case, full: Outcomes) -> tuple[int, int]:
    """``(events, prompts)`` among full groups of fresh prompts under the thresholds in force, prompts that calibrate left out."""
    policy = case.policy.policy if isinstance(case.policy, StreamCalibrated) else case.policy
    if isinstance(policy, SignalBudget):
        full = full.take(np.flatnonzero(~policy.designated(full)))
    if not full.n:
        return 0, 0
    report = replay(policy, full, full.step)
    return report.lost_groups if case.event == "lost_group" else report.audit[case.event][0], report.n


class FreshPrompts(TrainerCallback):
    """Three times during training, full groups of prompts never seen: how often the event occurs under the thresholds of that moment."""

    def __init__(self, case: Case, fresh: list[dict[str, str]], steps: int) -> None:
        self.case, self.at = case, [steps * i // 3 for i in (1, 2, 3)]
        self.parts = np.array_split(np.arange(len(fresh)), 3)
        self.fresh, self.events, self.prompts = fresh, 0, 0

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in self.at:
            examples = [self.fresh[i] for i in self.parts[self.at.index(state.global_step)]]
            _, full = self.trainer.rollouts.roll_out(examples, FixedBudget(K_MAX), state.global_step, 4096)
            events, prompts = occurred(self.case, full)
            self.events, self.prompts = self.events + events, self.prompts + prompts


def _calibrated(job: tuple[str, int, float]) -> dict[str, Any]:
    name, steps, seconds = job
    quiet()
    case, (model, tokenizer) = cases()[name], load("embedded")
    data = splits(0, n_calibration=400, n_eval=600, n_train=PROMPTS * steps)
    with tempfile.TemporaryDirectory() as folder:
        settings = common(folder, K_MAX, steps) | {"max_completion_length": 8, "generation_kwargs": None, "learning_rate": 5e-5}
        trainer = CGRPOTrainer(
            model, correct, CGRPOConfig(**settings, calibration_progress=False, max_seconds=seconds, rollout_batch_size=4096),
            to_dataset(data.train), processing_class=tokenizer, rollout_policy=case.policy,
            calibration_dataset=to_dataset(data.calibration), answer_fn=extract_answer, gold_column="answer",
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        check = FreshPrompts(case, data.eval, steps)
        check.trainer = trainer
        trainer.add_callback(check)
        trainer.train()
    totals = trainer.ledger.totals()
    return {
        "name": name, "share": trainer.ledger.calibration_share, "steps": totals["optimizer_steps"], "fresh": (check.events, check.prompts),
        "training": tuple(totals["audit"].get(case.event, (0, 0))), "mean_k": totals["generated"] / totals["prompts"],
    }  # fmt: skip


def calibration_command(args: argparse.Namespace) -> Iterator[Figure]:
    """Share of calibration in all rollouts, and the calibrated event on fresh prompts and in training, each with an exact interval.

    The interval is Clopper-Pearson's, for one probability; what is counted is its average over thresholds that were calibrated, and a
    policy that moved, in the meantime.
    """
    names = list(cases())
    waves = -(-len(names) // 2)
    jobs = [(name, args.steps, args.seconds / waves - 20) for name in names]
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        for found in pool.imap(_calibrated, jobs):
            case, name = cases()[found["name"]], found["name"]
            progress(f"{name}: {found['steps']} steps")
            bar = "at most 0.05" if case.cheap else ""
            unit = f"of all rollouts, {found['steps']} steps, mean k {found['mean_k']:.1f}"
            yield Figure(f"{name}, calibration", found["share"], unit, found["share"], bar)
            for where in ("fresh", "training"):
                events, trials = found[where]
                if trials:
                    low, high = clopper_pearson(events, trials)
                    unit = f"of {trials} prompts ({events}), 95% {low:.4f} to {high:.4f}"
                    bound = f"at most {case.bound:.3f}" if where == "fresh" else ""
                    yield Figure(f"{name}, {case.event}, {where}", events / trials, unit, events / trials, bound)


# ------------------------------------------------------------------------------------------------------------------ table

#: steps a turn (calibration: in all) and seconds of each command.
COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], Iterator[Figure]], int, float]] = {
    "steps": (steps_command, 3, 185),
    "slope": (slope_command, 3, 170),
    "off": (off_command, 3, 170),
    "memory": (memory_command, 2, 60),
    "calibration": (calibration_command, 300, 460),
}


def save(path: Path, command: str, figures: list[Figure]) -> None:
    """Write the table at ``path`` with the rows of ``command`` replaced, in the order of the commands."""
    table: dict[str, list[list[str]]] = {name: [] for name in COMMANDS}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                table[row["command"]].append([row[field] for field in FIELDS])
    table[command] = [[command, f.variant, f"{f.value:.4f}", f.unit, "" if f.ratio is None else f"{f.ratio:.4f}", f.bar] for f in figures]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows(row for rows in table.values() for row in rows)


def quiet() -> None:
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = parser.add_subparsers(dest="command", required=True)
    for name, (_, steps, seconds) in COMMANDS.items():
        one = sub.add_parser(name)
        one.add_argument("--steps", type=int, default=steps)
        one.add_argument("--seconds", type=float, default=seconds, help="time to fill with rounds, at least one")
        one.add_argument("--out", type=Path, metavar="FILE.csv")
        one.add_argument("--peers", type=Path, default=ROOT / "build" / "peers", metavar="DIR", help="where trl-cgrpo was installed to")
    args = parser.parse_args(argv)
    quiet()
    figures = []
    for figure in COMMANDS[args.command][0](args):
        figures.append(figure)
        ratio = "" if figure.ratio is None else f"{figure.ratio:9.4f}"
        print(f"{figure.variant:52} {figure.value:10.4f} {figure.unit:40} {ratio:9}  {figure.bar}", flush=True)
    if args.out:
        save(args.out, args.command, figures)


if __name__ == "__main__":
    sys.exit(main())
