"""``python -m experiments train``: one training run from a configuration, on one GPU, several, or the CPU.

Several GPUs: ``torchrun --nproc_per_node 4 -m experiments train --config NAME``; the prompts of a step must divide by the processes.
Training, and the measurement of ``--report``, are shared out; the first process alone opens the sealed test and writes the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checks, configs
from .configs import Experiment
from .tasks import Example, SealedTest, Splits, load, split, task
from .tasks.prompts import columns
from .tasks.sealed import report_name

if TYPE_CHECKING:
    from conformal_core import RolloutPolicy

    from .evaluate import Measured

#: What a model that runs on two CPU cores can be asked, by kind of task; the rest of the configuration stays.
_SMALL_TASKS = {
    "math": "reasoning_gym/chain_sum?max_terms=2&max_digits=2",
    "choice": "reasoning_gym/chain_sum?max_terms=2&max_digits=2",
    "function": "small_functions",
    "program": "small_functions",
}
_SMALL_GRID = (2, 4, 8)
#: Record of who opened the sealed tests, in the folder of the results.
RECORD = "sealed-test.jsonl"


@dataclass(frozen=True)
class Verifier:
    """Reward function, and how a response's answer is read (None: only right or wrong is known)."""

    reward: Callable[..., list[float]]
    answer: Callable[[str], str | None] | None
    gold: Callable[[str], str | None]


def verifier(kind: str, runner: Any = None, max_tests: int | None = None) -> Verifier:
    """The verifier of a kind of task; ``runner`` is the `Runner` for code, by default a sandbox on this machine."""
    if kind == "plain":
        from . import arithmetic

        return Verifier(arithmetic.reward, arithmetic.extract_answer, arithmetic.extract_answer)
    from . import verifiers

    if kind == "math":
        return Verifier(verifiers.math_reward, verifiers.answer_code, verifiers.canonical)
    if kind == "choice":
        return Verifier(verifiers.choice_reward, verifiers.chosen, str)
    return Verifier(verifiers.CodeReward(runner, max_tests), None, lambda _: None)


def small(experiment: Experiment, model: str) -> Experiment:
    """The experiment at the scale of ``model`` "embedded" or "smollm2", on tasks that it sometimes solves.

    What changes: the task (generated), 40 calibration, 200 training and 40 test examples, budgets 2, 4, 8 (or one of 8), 4 prompts a
    step, short responses, and for the embedded model full-parameter updates at 1e-4.  The rest is the configuration's.
    """
    kind = task(experiment.data.task).kind
    embedded = model == "embedded"
    name = "additions" if embedded else _SMALL_TASKS[kind]
    data = configs.Data(name, n_calibration=40, n_train=200, n_test=40, seed=experiment.data.seed)
    grid = _SMALL_GRID if len(experiment.budget.grid) > 1 else (8,)
    mini = None if experiment.update.mini_batch is None else 2
    update = replace(experiment.update, prompts=4, mini_batch=mini, max_tokens=8 if embedded else 48, engine="transformers")
    lora = experiment.model.lora
    if embedded:
        update, lora = replace(update, learning_rate=1e-4), None
    evaluation = configs.Evaluation(samples=8, k=(1, 4, 8), temperature=experiment.evaluation.temperature)
    return replace(
        experiment,
        model=configs.Model(model, not embedded, lora),
        data=data,
        update=update,
        budget=replace(experiment.budget, grid=grid),
        evaluation=evaluation,
    )


def override(experiment: Experiment, settings: Sequence[str]) -> Experiment:
    """The experiment with ``SECTION.KEY=VALUE`` settings, values as in TOML, checked like a file.

    >>> override(configs.read("cgrpo/qwen2.5-7b-gsm8k"), ['budget.rule="fixed"', "budget.grid=[8]"]).budget.grid
    (8,)
    """
    table = _table(experiment)
    for setting in settings:
        key, sign, value = setting.partition("=")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):  # no TOML, a number of too many digits, too deep
            parsed = None
        if not sign or parsed is None:
            raise ValueError(f'set: got {setting!r}; need SECTION.KEY=VALUE such as budget.rule="fixed"; because values are read as TOML')
        *path, last = key.strip().split(".")
        place = table
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ValueError(f"set: got {key!r}; need a section before the dot; because {part!r} is a value")
        place[last] = parsed
    found, before = configs.parse(table), experiment.mask
    given = any(setting.partition("=")[0].strip() == "mask.tau" for setting in settings)
    if found.mask.rule not in ("none", before.rule) and before.tau is not None and not given:
        raise ValueError(
            f"mask.tau: got {before.tau} of mask.rule = {before.rule!r}; need a mask.tau beside mask.rule = {found.mask.rule!r}; because "
            "every rule has its threshold in its own units"
        )
    return found


def _table(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        items = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: _table(item) for name, item in items if item is not None}
    return list(value) if isinstance(value, tuple) else value


def examples(experiment: Experiment) -> Splits:
    """The three splits of the experiment's data."""
    d = experiment.data
    total = d.n_calibration + d.n_train + d.n_test
    generated = not task(d.task).hub
    rows = load(d.task, d.source, size=total, seed=d.seed) if generated else None
    return split(load(d.task, d.source) if rows is None else rows, d.n_calibration, d.n_train, d.n_test, d.seed)


def policy(experiment: Experiment, has_answers: bool) -> RolloutPolicy:
    """The rollout policy of ``experiment.budget``; without answers to compare, first success takes the place of APS."""
    from conformal_core import APS, ConformalBudget, FirstSuccess, FixedBudget, ReleasedAPS, SignalBudget

    b, seed, n = experiment.budget, experiment.data.seed, experiment.data.n_calibration
    if b.rule == "fixed":
        return FixedBudget(b.grid[-1])
    if b.rule == "signal":
        return SignalBudget(b.grid, delta="0.1" if b.delta == "auto" else b.delta, seed=seed)
    if b.rule in configs.BASELINES:
        from . import baselines

        return baselines.named(b.rule, b.grid, prompts=experiment.update.prompts, seed=seed)
    plain = ReleasedAPS() if b.rule == "released" else APS()
    return ConformalBudget(
        b.grid,
        score=plain if has_answers else FirstSuccess(),
        delta=b.delta,
        epsilon=b.epsilon,
        multiplicity=b.multiplicity,
        n_calibration=n,
        recalibrate_every=b.recalibrate_every,
        split=b.split and b.delta == "auto",
        seed=seed,
    )


def _rows(experiment: Experiment, world: int) -> int:
    """Rows that a process trains on in an optimizer step."""
    u, k = experiment.update, experiment.budget.grid[-1]
    if u.prompts % world or (u.mini_batch or u.prompts) * k % world:
        raise ValueError(
            f"update.prompts: got {u.prompts} on {world} processes; need a multiple of {world}; because a group lies on one process"
        )
    return (u.mini_batch or u.prompts) * k // world


def arguments(experiment: Experiment, out: Path, max_steps: int | None, *, cpu: bool, world: int, seed: int) -> dict[str, Any]:
    """Arguments of ``CGRPOConfig``.

    A rollout batch is ``prompts`` groups of ``K_max``; an optimizer step takes ``mini_batch`` of them, in micro-batches on every process.
    """
    u, k = experiment.update, experiment.budget.grid[-1]
    rows = _rows(experiment, world)
    micro = math.gcd(u.micro_batch, rows)
    preset = dict(objective="cgrpo", degenerate_tokens=5, kl_on_pruned=u.beta > 0, adam_beta2=0.95, weight_decay=0.01, max_grad_norm=0.5)
    if experiment.model.id in ("embedded", "smollm2"):
        preset["degenerate_tokens"] = 0  # answers of one number are right, however short
    mask = {} if experiment.mask.rule == "none" else {"response_mask": experiment.mask.rule, "response_mask_threshold": experiment.mask.tau}
    if experiment.mask.conditioning != "both":
        mask["response_mask_conditioning"] = experiment.mask.conditioning
    if experiment.mask.rule == "icepop":
        mask["old_logps"] = "recompute"
    return dict(
        output_dir=str(out / "trainer"),
        max_steps=u.steps if max_steps is None else max_steps,
        learning_rate=u.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=u.warmup,
        beta=u.beta,
        epsilon=u.clip[0],
        epsilon_high=u.clip[1],
        max_completion_length=u.max_tokens,
        temperature=u.temperature,
        num_generations=k,
        generation_batch_size=u.prompts * k,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // micro,
        use_vllm=u.engine == "vllm",
        use_cpu=cpu,
        bf16=not cpu,
        gradient_checkpointing=not cpu,
        save_strategy="no" if cpu else "steps",
        save_steps=100,
        logging_steps=1,
        report_to="none",
        disable_tqdm=cpu,
        calibration_progress=not cpu,
        seed=seed,
        **(preset if u.objective == "cgrpo" else {}),
        **mask,
    )


def train(
    experiment: Experiment,
    out: Path,
    *,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
    report: str | None = None,
    runner: Any = None,
) -> dict[str, Any]:
    """Train, write ``run.json`` under ``out``, and return its contents.

    ``report`` opens the sealed tests once under that name after training, the data set's own test split and the further tasks of
    ``evaluation``, and measures the trained model on them.  Whether it may is looked up before training, and what training gave is
    written before the first test is opened.

    Under torchrun every process returns the same; prompts of the measurement are shared out, so that their responses depend on the
    number of processes.

    Raises
    ------
    ValueError : for what cannot work, before torch is imported; only where someone else opens the test during training, after it.
    """
    _check_run(max_steps, max_seconds, seed)
    name = None if report is None else report_name(report)
    kind = task(experiment.data.task).kind
    check = verifier(kind, runner, experiment.data.max_tests)  # refuses before anything is loaded where code cannot be isolated
    rule = policy(experiment, check.answer is not None)
    world, main_process = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("RANK", "0") == "0"
    _rows(experiment, world)

    from . import models

    models.check(experiment.model.id)
    parts = examples(experiment)
    sealed = {} if name is None else {n: SealedTest(rows, out / RECORD) for n, rows in _tests(experiment, parts).items()}
    if main_process:
        _check_folder(out)
        for test in sealed.values():
            test.check(name or "")

    import torch
    import transformers

    from conformal_trl import CGRPOConfig, CGRPOTrainer

    cpu = not torch.cuda.is_available()
    named = experiment.model.id in ("embedded", "smollm2")
    options = arguments(experiment, out, max_steps, cpu=cpu, world=world, seed=seed)
    if not named:
        options["model_init_kwargs"] = {"dtype": "float32" if cpu else "bfloat16"}
    config = CGRPOConfig(**options, max_seconds=max_seconds)
    transformers.set_seed(seed)
    model, tokenizer = models.load(experiment.model.id) if named else (experiment.model.id, None)
    trainer = CGRPOTrainer(
        model=model,
        reward_funcs=check.reward,
        args=config,
        train_dataset=_dataset(experiment, parts.train, check),
        calibration_dataset=_dataset(experiment, parts.calibration, check) if experiment.budget.rule in ("conformal", "released") else None,
        processing_class=tokenizer,
        rollout_policy=rule,
        answer_fn=check.answer,
        gold_column=None if check.answer is None else "gold",
        peft_config=_lora(experiment.model.lora),
    )
    if name is not None and (trainer.is_fsdp_enabled or transformers.integrations.deepspeed.is_deepspeed_zero3_enabled()):
        raise ValueError(
            f"report: got {name!r} under FSDP or ZeRO-3; need a run without; because every process measures with the whole model on its own"
        )
    trainer.train()
    result: dict[str, Any] = {
        "experiment": _table(experiment),
        "seed": seed,
        "policy": repr(rule),
        "steps": trainer.state.global_step,
        "sizes": {name: len(part) for name, part in parts._asdict().items()},
        "totals": trainer.ledger.totals(),
        "log": trainer.state.log_history,
    }
    main_process = trainer.accelerator.is_main_process
    if main_process:
        _write(result, out)
    for tested, test in sealed.items():
        opened = _opened(test, name or "", main_process)
        cap = experiment.data.max_tests if tested.startswith("taco") else None
        judge = check if tested == experiment.data.task else verifier(task(tested).kind, runner, cap)
        measured = measure(trainer.model, trainer.processing_class, experiment, tested, opened, judge, seed=seed + 1)
        result.setdefault("test", {})[tested] = json.loads(measured.to_json())
        if main_process:
            _write(result, out)
    return result


def _check_run(max_steps: int | None, max_seconds: float | None, seed: int) -> None:
    if max_steps is not None:
        checks.whole("max_steps", max_steps, 1, "it limits training")
    if max_seconds is not None and not 0 < max_seconds < math.inf:
        raise ValueError(f"max_seconds: got {max_seconds}; need a finite number > 0; because it limits training")
    checks.seed("seed", seed)


def _check_folder(out: Path) -> None:
    """Make the folder of the results, and a file in it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"out: got {str(out)!r}; need a folder that can be written to; because the results go there ({reason})") from None


def _write(result: dict[str, Any], out: Path) -> None:
    """``run.json``, whole or not at all."""
    part = out / "run.json.part"
    part.write_text(json.dumps(result, indent=1, default=str), encoding="utf-8")
    part.replace(out / "run.json")


def _opened(test: SealedTest, report: str, main_process: bool) -> list[Example]:
    """The examples on every process, of which the main one opens the test; its refusal is everyone's."""
    from accelerate.utils import broadcast_object_list

    verdict: list[Any] = [None]
    if main_process:
        try:
            verdict = [test.open(report)]
        except ValueError as error:
            verdict = [str(error)]
    (found,) = broadcast_object_list(verdict)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _tests(experiment: Experiment, parts: Splits) -> dict[str, list[Example]]:
    """Test examples by task, loaded before training so that a missing source costs nothing."""
    tests = {experiment.data.task: parts.test} if parts.test else {}
    tests |= {name: load(name) for name in experiment.evaluation.tasks}
    if not tests:
        raise ValueError("report: got a name; need data.n_test >= 1 or evaluation.tasks; because there is nothing to measure on")
    return tests


def measure(
    model: Any, tokenizer: Any, experiment: Experiment, name: str, rows: Sequence[Example], check: Verifier, seed: int = 0
) -> Measured:
    """`evaluate.statistics` of the model on ``rows`` of the task ``name``, sampled as the configuration says.

    Several processes take every so many-th row each, with seeds of their own, and all return the statistics of all rows.
    """
    import numpy as np
    from accelerate import PartialState
    from accelerate.utils import gather_object

    from conformal_core import encode_answers

    from .evaluate import sample_texts, statistics

    chosen, e, state, shared = task(name), experiment.evaluation, PartialState(), seed
    places = list(range(state.process_index, len(rows), state.num_processes))
    mine = [rows[i] for i in places]
    if state.process_index:
        seed = int(np.random.SeedSequence([seed, state.process_index]).generate_state(1)[0])
    prompts = columns(chosen, mine, chat=experiment.model.chat)["prompt"]
    if experiment.model.chat:
        prompts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    texts = sample_texts(
        model, tokenizer, prompts, e.samples, 64, seed, temperature=e.temperature, max_new_tokens=experiment.update.max_tokens,
        top_p=e.top_p, top_k=e.top_k,
    )  # fmt: skip
    flat = [text for group in texts for text in group]
    scores = check.reward(completions=flat, answer=[r.answer for r in mine for _ in range(e.samples)]) if mine else []
    passed = (np.asarray(scores, dtype=float) > 0).reshape(len(mine), e.samples).tolist()
    read = check.answer
    answers = [None if read is None else [read(text) for text in group] for group in texts]
    judged = sorted(gather_object(list(zip(places, passed, answers, strict=True))), key=lambda row: row[0])
    passes = np.array([row[1] for row in judged], dtype=bool)
    if read is None:
        return statistics(passes, e.k)
    codes, gold = encode_answers([row[2] for row in judged], [check.gold(r.answer) for r in rows])
    return statistics(passes, e.k, codes, gold, seed=shared)


def _dataset(experiment: Experiment, rows: Sequence[Example], check: Verifier) -> Any:
    from datasets import Dataset

    table = columns(task(experiment.data.task), list(rows), chat=experiment.model.chat)
    if check.answer is not None:
        table["gold"] = [check.gold(r.answer) for r in rows]
    return Dataset.from_dict(table)


def _lora(lora: configs.Lora | None) -> Any:
    if lora is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(lora.targets), task_type="CAUSAL_LM"
    )


def _runner(where: str) -> Any:
    from .sandbox import Sandbox, SandboxFusion

    return SandboxFusion(where, functions=Sandbox()) if "://" in where else Sandbox(isolation=where)


def add_parser(sub: Any, formatter: Any) -> None:
    """The ``train`` sub-command."""
    c = sub.add_parser("train", help="train from a configuration of the papers, or your own", formatter_class=formatter)
    c.add_argument("--config", metavar="NAME|FILE", help="a TOML file or a shipped name; --list shows those")
    c.add_argument("--list", action="store_true", help="print the shipped configurations and stop")
    c.add_argument("--model", metavar="embedded|smollm2|PATH", help="another start model; the first two also scale the run down to a CPU")
    c.add_argument("--max-steps", type=int, metavar="N", help="optimizer steps; default: the configuration's")
    c.add_argument("--max-seconds", type=float, metavar="S", help="stop after this wall-clock time, calibration included")
    c.add_argument("--seed", type=int, default=0, help="seed of training and sampling")
    c.add_argument("--out", metavar="DIR", help="folder of the results; default: runs/NAME")
    c.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="repeatable; e.g. budget.rule='\"fixed\"'")
    c.add_argument("--report", metavar="NAME", help="open the sealed test split after training, once under this name, and measure on it")
    c.add_argument(
        "--sandbox", default="namespaces", metavar="namespaces|unsafe|URL", help="where model-written code runs; URL of a SandboxFusion"
    )


def main(args: argparse.Namespace) -> None:
    """Run the ``train`` command; a ``ValueError`` is an option that cannot work."""
    if args.list:
        print("\n".join(configs.names()))
        return
    if args.config is None:
        raise ValueError("config: got nothing; need a TOML file or a shipped name; because it says what to train (--list shows the names)")
    experiment = configs.read(args.config)
    if args.model in ("embedded", "smollm2"):
        experiment = small(experiment, args.model)
    elif args.model is not None:
        experiment = replace(experiment, model=replace(experiment.model, id=args.model))
    experiment = override(experiment, args.set)
    runner = _runner(args.sandbox) if task(experiment.data.task).kind in ("function", "program") else None
    if args.out is not None and not args.out.strip():
        raise ValueError(f"out: got {args.out!r}; need a folder; because the results go there (default: runs/NAME)")
    out = Path(args.out or f"runs/{experiment.name}")
    result = train(
        experiment, out, max_steps=args.max_steps, max_seconds=args.max_seconds, seed=args.seed, report=args.report, runner=runner
    )
    from accelerate import PartialState

    PartialState().destroy_process_group()
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{result['steps']} steps, {result['totals']}\n{out / 'run.json'}")
