"""rollout-audit: throughput and memory on large logs, and the script that recorded the demo log.

python -m benchmarks.rollout_logs throughput --responses 10000000                # a line a size: rate, CPU seconds, peak memory
python -m benchmarks.rollout_logs throughput --tokens 20000000 --scales 1 2 4    # linear? CPU seconds tell, whatever else runs
python -m benchmarks.rollout_logs throughput --tokens 1000000000 --folder /big   # the full size; it says first how long that takes
python -m benchmarks.rollout_logs demo-log                            # trains the embedded model, writes adapters/rollout_logs/data
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

#: Adam's first step is proportional to the learning rate, so these shares of it are steps at 2e-6, 1e-5 and 3e-5.
SHARES = (0.01, 0.05, 0.15)
DATA = Path(__file__).resolve().parents[1] / "adapters" / "rollout_logs" / "data"


def write_outcomes(folder: Path, responses: int, files: int, group: int = 16, kind: str = "parquet") -> None:
    """Logs of ``responses`` rows with the columns of a verl dump, in ``files`` files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    per_file = responses // files
    for step in range(files):
        path = folder / f"{step}.{kind}"
        writer: Any = None
        for start in range(0, per_file, 1 << 18):
            n = min(1 << 18, per_file - start)
            prompt = (start + np.arange(n)) // group
            theta = rng.beta(0.5, 0.7, prompt[-1] - prompt[0] + 1)[prompt - prompt[0]]
            ok = rng.random(n) < theta
            answer = np.where(ok, 7, rng.integers(0, 5, n))
            table = pa.table(
                {
                    "input": pa.array([f"step {step} prompt {p}" for p in prompt]),
                    "output": pa.array([f"the answer is \\boxed{{{a}}}" for a in answer]),
                    "gts": pa.array(["7"] * n),
                    "score": ok.astype(np.float64),
                    "step": np.full(n, step),
                }
            )
            if kind == "jsonl":
                with open(path, "a", encoding="utf-8") as out:
                    out.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
                continue
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def write_tokens(folder: Path, tokens: int, files: int, length: int = 1000) -> None:
    """Token-level parquet files of about ``tokens`` tokens in responses of about ``length``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for f in range(files):
        left, writer = tokens // files, None
        while left > 0:
            sizes = rng.integers(length // 2, 3 * length // 2, min(2000, 1 + left // length))
            offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
            rollout = -rng.standard_exponential(int(sizes.sum()), np.float32)
            current = rollout + np.repeat(rng.choice([0.003, 0.02, 0.06], sizes.size), sizes).astype(np.float32) * rng.standard_normal(
                rollout.size, np.float32
            )
            columns = {
                "current_logprobs": pa.ListArray.from_arrays(offsets, pa.array(current)),
                "rollout_logprobs": pa.ListArray.from_arrays(offsets, pa.array(rollout)),
                "reward": pa.array((rng.random(sizes.size) < 0.5).astype(np.float64)),
                "advantage": pa.array(rng.standard_normal(sizes.size)),
            }
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(folder / f"{f}.parquet", table.schema)
            writer.write_table(table, row_group_size=2000)
            left -= int(sizes.sum())
        if writer is not None:
            writer.close()


MEASURE = """
import json, os, resource, sys, time

def peak():  # of this program alone: ru_maxrss also counts what its parent held when it was started
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

from rollout_logs import audit
import rollout_logs.figures
base, start = peak(), time.perf_counter()
report = audit(sys.argv[1], what=(sys.argv[2],), jobs=int(sys.argv[3]) or None)
seconds = time.perf_counter() - start
units = report.masks.tokens if report.masks is not None else report.budgets.waste.rollouts
cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([units, seconds, cpu, base, peak(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024]))
"""
#: Responses or tokens a CPU second, writing the logs included: for an estimate beforehand.
RATES = {"parquet": 300_000, "jsonl": 45_000, "tokens": 2_500_000}


def estimate(units: int, kind: str) -> float:
    """Minutes for ``units`` responses or tokens on one core."""
    return units / RATES[kind] / 60


def throughput(args: argparse.Namespace) -> None:
    """Write logs, audit them in a fresh process, print rows (tokens) per second and per CPU second, and the peak of its memory."""
    for scale in args.scales:
        units, kind = int((args.tokens or args.responses) * scale), "tokens" if args.tokens else args.kind
        print(
            f"{units:,} {'tokens' if args.tokens else args.kind + ' responses'}: about {estimate(units, kind):.1f} CPU minutes ...",
            flush=True,
        )
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            folder = Path(name)
            if args.tokens:
                write_tokens(folder, units, args.files, args.length)
            else:
                write_outcomes(folder, units, args.files, kind=args.kind)
            size = sum(p.stat().st_size for p in folder.iterdir())
            command = [sys.executable, "-c", MEASURE, name, "masks" if args.tokens else "budgets", str(args.jobs or 0)]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        units, seconds, cpu, base, own, child = json.loads(told.splitlines()[-1])
        what = "tokens" if args.tokens else args.kind + " responses"
        print(
            f"{what}: {units:,} in {seconds:.1f} s, {units / seconds:,.0f}/s; {cpu:.1f} CPU s, "
            f"{units / cpu:,.0f} per CPU s; {size / 2**20:,.0f} MiB on disk; peak {own:,.0f} MiB (imports {base:,.0f}), largest worker "
            f"{child:,.0f} MiB; {args.files} files, jobs {args.jobs or 'cores'}",
            flush=True,
        )


def demo_log(args: argparse.Namespace) -> None:
    """Train the embedded model for ``args.steps`` steps at a fixed G = 32, off-policy; keep TRL's table and 200 responses by token."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    import transformers

    from conformal_core import FixedBudget
    from conformal_trl import CGRPOConfig, CGRPOTrainer
    from experiments import arithmetic, models

    class _Snapshots(transformers.TrainerCallback):
        """Weights before the first optimizer step and after it."""

        def __init__(self, kept: list[Any]) -> None:
            self.kept = kept

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if len(self.kept) < 2:
                self.kept.append({name: value.detach().clone() for name, value in model.state_dict().items()})

    transformers.set_seed(0)
    model, tokenizer = models.load("embedded")
    data = arithmetic.splits(0, n_calibration=10, n_eval=10, n_train=20 * args.steps)
    with tempfile.TemporaryDirectory() as name:
        config = CGRPOConfig(
            output_dir=name,
            per_device_train_batch_size=16 * 32,
            num_generations=32,
            max_steps=args.steps,
            learning_rate=2e-4,
            max_completion_length=8,
            beta=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
            log_completions=True,
            num_completions_to_print=0,
            seed=0,
        )
        trainer = CGRPOTrainer(
            model=model,
            reward_funcs=arithmetic.reward,
            args=config,
            train_dataset=arithmetic.to_dataset(data.train),
            processing_class=tokenizer,
            rollout_policy=FixedBudget(32),
        )
        weights: list[Any] = []
        trainer.add_callback(_Snapshots(weights))
        trainer.train()
        tables = [pq.read_table(p) for p in sorted(Path(name, "completions").glob("*.parquet"))]
    DATA.mkdir(exist_ok=True)
    if not args.only_tokens:
        table = pa.concat_tables(tables).replace_schema_metadata(None)
        pq.write_table(table, DATA / "completions.parquet", compression="zstd", compression_level=19)

    length, each = 120, 20
    engine, _ = models.load("embedded")
    engine = engine.half().float().eval()  # an engine with weights in half precision
    trainer.model.eval()
    torch.manual_seed(0)
    rows = []
    with torch.no_grad():
        for problem in data.eval[:10]:
            prompt = tokenizer.encode(problem["prompt"], add_special_tokens=False)
            sequence = torch.tensor([prompt] * each)
            rollout = []
            for _ in range(length):  # the engine never stops, so that there is a drift to see
                logp = torch.log_softmax(engine(sequence).logits[:, -1].float(), -1)
                chances = logp.exp()
                chances[:, tokenizer.eos_token_id] = 0
                token = torch.multinomial(chances, 1)
                rollout.append(logp.gather(1, token))
                sequence = torch.cat([sequence, token], 1)
            drawn = sequence[:, len(prompt) :]
            logps = {}
            for share in (0.0, *SHARES):
                trainer.model.load_state_dict({name: w + share * (weights[1][name] - w) for name, w in weights[0].items()})
                logp = torch.log_softmax(trainer.model(sequence).logits[:, len(prompt) - 1 : -1].float(), -1)
                logps[share] = logp.gather(2, drawn[:, :, None])[:, :, 0]
            texts = [[tokenizer.decode([t]) for t in row] for row in drawn.tolist()]
            rewards = np.array(arithmetic.reward(["".join(text) for text in texts], [problem["answer"]] * each), np.float64)
            for k in range(each):
                rows.append(
                    {
                        "tokens": texts[k],
                        "rollout_logprobs": torch.cat(rollout, 1)[k].tolist(),
                        "old_logprobs": logps[0.0][k].tolist(),
                        "current_logprobs": logps[SHARES[k % len(SHARES)]][k].tolist(),
                        "reward": rewards[k],
                        "advantage": rewards[k] - rewards.mean(),
                    }
                )
    lists, text = pa.list_(pa.float32()), pa.list_(pa.string())
    columns = [(name, lists) for name in ("rollout_logprobs", "old_logprobs", "current_logprobs")]
    schema = pa.schema([("tokens", text), *columns, ("reward", pa.float64()), ("advantage", pa.float64())])
    pq.write_table(pa.Table.from_pylist(rows, schema), DATA / "tokens.parquet", compression="zstd", compression_level=19)
    for path in sorted(DATA.glob("*.parquet")):
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, {pq.read_metadata(path).num_rows:,} rows")


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    speed = commands.add_parser("throughput")
    speed.add_argument("--responses", type=int, default=10**7)
    speed.add_argument("--tokens", type=int, default=0)
    speed.add_argument("--files", type=int, default=10)
    speed.add_argument("--kind", choices=("parquet", "jsonl"), default="parquet")
    speed.add_argument("--jobs", type=int, default=None)
    speed.add_argument("--length", type=int, default=1000, help="mean tokens of a response")
    speed.add_argument("--scales", type=float, nargs="+", default=[1.0], help="multiples of the size, e.g. 0.25 0.5 1: is the cost linear?")
    speed.add_argument("--folder", default=None, help="where the logs are written (10^9 tokens take 8 GB)")
    speed.set_defaults(run=throughput)
    demo = commands.add_parser("demo-log")
    demo.add_argument("--steps", type=int, default=40)
    demo.add_argument("--only-tokens", action="store_true", help="leave the completions as they are; the tokens need two steps")
    demo.set_defaults(run=demo_log)
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "adapters"))
    main()
