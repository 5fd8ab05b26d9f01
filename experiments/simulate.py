"""``python -m experiments simulate``: run rollout policies, the very objects that train, on a simulated population of prompts."""

from __future__ import annotations

import argparse
import inspect
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformal_core import (
    APS,
    ConformalBudget,
    FirstSuccess,
    FixedBudget,
    MassAbove,
    ReleasedAPS,
    ReplayReport,
    RolloutPolicy,
    Score,
    SignalBudget,
    released_cgrpo,
    replay,
)
from conformal_core.early import UntilMixed

from . import baselines
from .populations import Model, Population, WrongAnswers

__all__ = ["POLICIES", "PRESETS", "Simulation", "make_policy", "simulate", "text_table"]

#: Populations by name: Beta law of the pass rate and law of wrong answers.
PRESETS: dict[str, Population] = {
    "weak": Population(0.6, 1.4),
    "mid": Population(1.14, 0.86),
    "strong": Population(4.0, 1.0),
    "bimodal": Population(0.4, 0.4),
    "four-options": Population(1.14, 0.86, WrongAnswers("uniform", 3)),
    "one-wrong": Population(1.14, 0.86, WrongAnswers("uniform", 1)),
    "consensus": Population(1.14, 0.86, unsolvable=0.25),
}

SCORES: dict[str, Callable[[], Score]] = {
    "aps": APS,
    "aps-inclusive": lambda: APS("inclusive"),
    "mass_above": MassAbove,
    "released": ReleasedAPS,
    "first_success": FirstSuccess,
}


#: Rollout policies by name; further ones are the classes of :mod:`experiments.baselines`, by class name.
POLICIES: dict[str, Callable[..., RolloutPolicy]] = {
    "fixed": FixedBudget,
    "conformal": ConformalBudget,
    "signal": SignalBudget,
    "released": released_cgrpo,
    "mixed": UntilMixed,
    "unanimity": baselines.Unanimity,
} | {name: getattr(baselines, name) for name in baselines.__all__ if name[0].isupper() and name not in ("FixedBudget", "Unanimity")}


def make_policy(spec: str, k_max: int = 32) -> RolloutPolicy:
    """A policy from ``NAME[,option=value,...]``; a grid is written ``2-4-8``, a score by name.

    Options are the arguments of the policy's class.  Where it takes a ``grid`` and none is given, that is 2, 4, 8, ... up to ``k_max``.

    Examples
    --------
    >>> make_policy("conformal,score=mass_above,delta=0.12,n_calibration=100")
    ConformalBudget((2, 4, 8, 16, 32), score=MassAbove(), delta='3/25', multiplicity='per_budget')
    """
    name, *pairs = (part.strip() for part in spec.split(","))
    if name not in POLICIES:
        raise ValueError(f"policy: got {name!r}; need one of {', '.join(POLICIES)}; because those are known by name")
    factory = POLICIES[name]
    known = inspect.signature(factory).parameters
    options: dict[str, Any] = {}
    if "grid" in known:
        options["grid"] = (*(2**j for j in range(1, k_max.bit_length()) if 2**j < k_max), k_max)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if [p.partition("=")[0] for p in pairs].count(key) > 1:
            raise ValueError(f"policy: got {key} twice in {spec!r}; need one value; because only one can count")
        if not equals or key not in known:
            raise ValueError(f"policy: got the option {pair!r}; need one of {', '.join(known)} as name=value; because {name} takes those")
        options[key] = _value(key, value)
    try:
        policy = factory(**options)
    except TypeError as error:
        raise ValueError(f"policy: got {spec!r}; need values that {name} takes; because {error}") from None
    if policy.k_max > k_max:
        raise ValueError(
            f"policy: got {spec!r}, which may draw {policy.k_max}; need at most {k_max}; because a simulated prompt has as many"
        )
    return policy


def _value(key: str, text: str) -> Any:
    if key == "score":
        if text not in SCORES:
            raise ValueError(f"score: got {text!r}; need one of {', '.join(SCORES)}; because those are known by name")
        return SCORES[text]()
    if key == "delta" or key == "epsilon" or key == "share":
        return text  # exact levels are written, not computed
    try:
        if "-" in text[1:]:
            return tuple(int(part) for part in text.split("-"))
        return {"true": True, "false": False}.get(text.lower()) if text.lower() in ("true", "false") else json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class Simulation:
    """One policy on one population: the replay, the model's skill after each step, and what it cost."""

    policy: str
    report: ReplayReport
    skill: tuple[float, ...]
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; of ``drawn`` the counts of each value, so that a million prompts stay a short file."""
        report = self.report.to_json()
        del report["drawn"]
        report["prompts_by_drawn"] = {str(k): c for k, c in sorted(Counter(self.report.drawn.tolist()).items())}
        return asdict(self) | {"report": report, "skill": list(self.skill), "metrics": {k: str(v) for k, v in self.metrics.items()}}


def simulate(
    policy: RolloutPolicy,
    population: Population,
    prompts: int,
    steps: int = 1,
    *,
    pool: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Run ``policy`` for ``steps`` steps of ``prompts // steps`` prompts each, with calibration, learning and audit as in training.

    Parameters
    ----------
    policy : RolloutPolicy
        Changed by the run.
    population : Population
        All policies run with one population see the same prompts, and the same responses while their models agree.
    prompts, steps : int
        Prompts in all, and optimizer steps.  Memory is that of one step.
    pool : int, optional
        Distinct prompts, seen again and again; by default none is seen twice.
    progress : callable, optional
        Called with the number of finished steps.

    Raises
    ------
    ValueError
        If there is not at least one prompt per step, or the policy asks for more than ``population.k_max`` responses.

    Examples
    --------
    >>> simulate(FixedBudget(4), Population(k_max=8), 100, 2).report.mean_k
    4.0
    """
    if steps < 1 or prompts < steps:
        raise ValueError(f"prompts, steps: got {prompts}, {steps}; need at least one prompt per step; because each step rolls some out")
    model, skill = Model(population), []

    def observe(outcomes: Any) -> None:
        model.observe(outcomes)
        skill.append(model.skill)
        if progress is not None:
            progress(len(skill))

    began = time.perf_counter()
    tables = model.tables(prompts // steps, steps, pool)
    report = replay(policy, tables, calibration=model.calibration, learn=True, observe=observe, k_max=population.k_max)
    return Simulation(repr(policy), report, tuple(skill), time.perf_counter() - began, dict(policy.metrics()))


def text_table(runs: list[tuple[str, Simulation]]) -> str:
    """One line per policy; shares of prompts, with the rival (a fixed group size of the same mean k) after the slash."""
    head = ["policy", "mean k", "saved", "with calib.", "wrong stops", "lost groups", "mixed groups / fixed", "push / fixed", "per 1000"]
    rows = [head]
    for name, run in runs:
        r = run.report
        cells = [name, f"{r.mean_k:.2f}", f"{r.savings:.1%}", f"{r.savings_with_calibration:.1%}"]
        for what in ("wrong_stops", "lost_groups"):
            low, high = r.intervals[what]
            cells.append(f"{getattr(r, what) / r.n:.4f} [{low:.4f}, {high:.4f}]")
        cells.append(f"{r.groups_with_variance / r.n:.3f} / {r.fixed_groups_with_variance / r.n:.3f}")
        cells.append(f"{r.gradient_mass:.3f} / {r.fixed_gradient_mass:.3f}")
        cells.append(f"{1000 * r.groups_with_variance / max(1, int(r.drawn.sum())):.1f}")
        rows.append(cells)
    widths = [max(len(row[j]) for row in rows) for j in range(len(head))]
    return "\n".join(
        "  ".join(c.ljust(w) if j == 0 else c.rjust(w) for j, (c, w) in enumerate(zip(row, widths, strict=True))) for row in rows
    )


def add_parser(sub: Any, formatter: Any) -> None:
    """The ``simulate`` sub-command."""
    c = sub.add_parser("simulate", help="run rollout policies on a simulated population of prompts", formatter_class=formatter)
    c.add_argument(
        "--policy",
        action="append",
        metavar="NAME[,OPTION=VALUE...]",
        help="repeatable; names: " + ", ".join(POLICIES) + "; e.g. conformal,score=mass_above,delta=0.12 (default: fixed, released, "
        "conformal, signal, mixed)",
    )
    c.add_argument("--population", default="mid", choices=sorted(PRESETS), help="starting point; the options below change it")
    c.add_argument("--beta", metavar="A,B", help="pass rates follow Beta(A, B)")
    c.add_argument("--wrong", metavar="KIND[,ANSWERS[,VALUE]]", help="uniform,3 | zipf,20,EXPONENT | dominant,5,SHARE")
    c.add_argument("--unsolvable", type=float, metavar="SHARE", help="share of prompts that are never solved and agree on a wrong answer")
    c.add_argument("--consensus", type=float, metavar="P", help="probability of that answer on them")
    c.add_argument("--drift", type=float, help="change of the logit of every pass rate per step")
    c.add_argument("--learning", type=float, help="change of the logit per unit of signal the policy's groups carry")
    c.add_argument("--k-max", type=int, help="responses per prompt")
    c.add_argument("--seed", type=int, help="seed of prompts and responses")
    c.add_argument("--prompts", type=int, default=20_000, help="prompts in all")
    c.add_argument("--steps", type=int, default=20, help="optimizer steps they are spread over")
    c.add_argument("--pool", type=int, metavar="N", help="distinct prompts, seen again and again (default: every prompt is new)")
    c.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")


def population(args: argparse.Namespace) -> Population:
    """The population the options describe; raises ``ValueError``."""
    fields = asdict(PRESETS[args.population]) | {"wrong": PRESETS[args.population].wrong}
    for name in ("unsolvable", "consensus", "drift", "learning", "k_max", "seed"):
        if getattr(args, name) is not None:
            fields[name] = getattr(args, name)
    if args.beta:
        try:
            a, b = (float(x) for x in args.beta.split(","))
        except ValueError:
            raise ValueError(f"beta: got {args.beta!r}; need two numbers A,B; because pass rates follow Beta(A, B)") from None
        fields |= {"a": a, "b": b}
    try:
        if args.wrong is not None:
            kind, answers, *value = (args.wrong if "," in args.wrong else f"{args.wrong},20").split(",")
            named = {"zipf": "exponent", "dominant": "share"}
            count, options = int(answers), {named[kind]: float(*value)} if value else {}
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"wrong: got {args.wrong!r}; need KIND,ANSWERS and one value for zipf or dominant; because that fixes the law"
        ) from None
    if args.wrong is not None:
        fields["wrong"] = WrongAnswers(kind, count, **options)
    return Population(**fields)


def main(args: argparse.Namespace) -> None:
    """Run the sub-command: progress on stderr, the table on stdout; ``ValueError`` before any work for an option that cannot work."""
    people = population(args)
    specs = args.policy or ["fixed", "released", "conformal", "signal", "mixed"]
    half = max(1, people.k_max // 2)
    specs = [f"fixed,k={half}" if spec == "fixed" else spec for spec in specs]
    made = [(spec, make_policy(spec, people.k_max)) for spec in specs]
    if args.json is not None:
        try:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.open("a").close()
        except OSError as error:
            raise ValueError(f"json: got {args.json}; need a file that can be written; because {error.strerror}") from None
    runs = []
    for spec, policy in made:
        runs.append((spec, simulate(policy, people, args.prompts, args.steps, pool=args.pool, progress=_progress(spec, args.steps))))
        print(file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(text_table(runs))
    print(f"\n{runs[0][1].report.n} prompts x {people.k_max} responses in {args.steps} steps; {people}; peak memory {peak:.0f} MB")
    for spec, run in runs:
        events = ", ".join(f"{event} {hits}/{trials}" for event, (hits, trials) in run.report.audit.items())
        print(f"{spec}: {run.seconds:.1f} s, skill {run.skill[-1]:+.3f}" + (f", {events}" if events else ""))
    if args.json is not None:
        data = {
            "population": asdict(people),
            "prompts": runs[0][1].report.n,
            "steps": args.steps,
            "peak_memory_mb": round(peak),
            "runs": [{"spec": spec} | run.to_json() for spec, run in runs],
        }
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _progress(spec: str, steps: int) -> Callable[[int], None]:
    live = sys.stderr.isatty()

    def show(done: int) -> None:
        if live or done == steps:
            print(f"\r{spec}: step {done} of {steps}", end="", file=sys.stderr, flush=True)

    return show
