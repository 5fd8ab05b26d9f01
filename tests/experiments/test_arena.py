"""The arena: what is held equal, resuming, and numbers of the report against a hand computation."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from conformal_core import Outcomes
from experiments.__main__ import main as cli
from experiments.arena import report, rules, schedule
from experiments.arena.run import Recorder, main, masking, prompts_per_step
from experiments.arena.settings import TUNING_SEED, Run, Settings


def line(rule, seed, counts, lr=1e-4, tuning=False, regime="many", validation=0.5, mask="none"):
    totals = dict.fromkeys(("generated", "calibration", "prompts", "optimizer_steps", "groups_with_variance", "masked", "masked_of"), 0)
    totals |= {"generated": 100, "calibration": 25, "prompts": 20, "optimizer_steps": 10, "groups_with_variance": 15, "audit": {}}
    totals |= {f"seconds_{p}": 1.0 for p in ("generate", "train", "calibrate", "reward", "other", "total")}
    return {
        "run": {"regime": regime, "rule": rule, "mask": mask, "seed": seed, "lr": lr, "tuning": tuning},
        "policy": rule,
        "prompts_per_step": 4,
        "validation": validation,
        "totals": totals,
        "mass": 50.0,
        "distinct_prompts": 20,
        "metrics": {},
        "curves": [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.6}],
        "test_counts": counts,
    }


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rules": ("fixed-3",)}, "rules"),
        ({"rules": ("fixed-4", "fixed-4")}, "rules"),
        ({"masks": ("nothing",)}, "masks"),
        ({"regimes": ("lots",)}, "regimes"),
        ({"by": "steps"}, "by"),
        ({"scale_rewards": "std"}, "scale_rewards"),
        ({"amount": 0}, "amount"),
        ({"lrs": (0.0,)}, "lrs"),
        ({"seeds": (TUNING_SEED,)}, "seeds"),
        ({"tune_share": 0}, "tune_share"),
        ({"pool": 0}, "pool"),
        ({"actor_delay": -1}, "actor_delay"),
        ({"actor_dtype": "int8"}, "actor_dtype"),
    ],
)
def test_bad_settings_are_named(change, name):
    with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
        Settings(**change).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rules", "nope"], r"^error: rules: got 'nope'; need some of fixed-2, "),
        (["--seeds", "a,b"], r"^error: seeds: got 'a,b'; need numbers such as 1,2,3"),
        (["--masks", "all", "--amount", "-1"], r"^error: amount: got -1\.0; need a positive number"),
    ],
)
def test_an_option_that_cannot_work_is_one_line(options, message, capsys):
    assert cli(["compare", *options]) == 2
    assert re.match(message, capsys.readouterr().err)


@given(st.lists(st.tuples(st.integers(2, 8), st.integers(0, 255)), min_size=1, max_size=6))
def test_prompts_weigh_the_same(groups):
    """Up to one factor for the batch, a prompt's rows add up, over log-probabilities, to the leave-one-out gradient of its success rate."""
    drawn = np.array([n for n, _ in groups])
    bits = np.array([[b >> j & 1 for j in range(8)] for _, b in groups], bool) & (np.arange(8) < drawn[:, None])
    found = rules.PerPrompt((2, 4, 8), delta="0.3").advantages(Outcomes(np.arange(len(groups), dtype=np.uint64), bits, drawn))
    leave_one_out = [
        [Fraction(int(row[j]) * n - int(row[:n].sum()), n * (n - 1)) if j < n else Fraction(0) for j in range(8)]
        for row, n in zip(bits, drawn.tolist(), strict=True)
    ]
    wanted = np.array(leave_one_out, float)
    for row, n, mine in zip(bits, drawn.tolist(), leave_one_out, strict=True):
        for j in range(n):  # the reward less the mean of the others, over n
            assert mine[j] == (int(row[j]) - Fraction(int(row[:n].sum()) - int(row[j]), n - 1)) / n
    if wanted.any():
        np.testing.assert_allclose(found, wanted / np.sqrt(np.mean(wanted[wanted != 0] ** 2)), rtol=1e-12)
    else:
        assert not found.any()


@pytest.mark.parametrize("key", rules.MASKS)
def test_every_mask_is_one_the_trainer_takes(key, tmp_path):
    from conformal_trl import CGRPOConfig

    options = masking(rules.MASKS[key])
    config = CGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, num_generations=8, per_device_train_batch_size=8, **options)
    assert config.response_mask == rules.MASKS[key].rule


def test_every_rule_can_be_built():
    for rule in rules.BUDGETS.values():
        assert rule.make(8, 0).k_max >= 2


def test_learning_rates_come_from_tuning_runs_only():
    s = Settings(rules=("fixed-4",), seeds=(0, 1), regimes=("many",), lrs=(1e-4, 2e-4))
    tuned = [line("fixed-4", TUNING_SEED, None, lr, True, validation=v) for lr, v in ((1e-4, 0.2), (2e-4, 0.3))]
    assert [r.lr for r in s.tuning()] == [1e-4, 2e-4] and all(r.seed == TUNING_SEED for r in s.tuning())
    assert [(r.seed, r.lr) for r in s.runs([*tuned, line("fixed-4", 0, [1], lr=1e-4, validation=0.9)])] == [(0, 2e-4), (1, 2e-4)]
    with pytest.raises(ValueError, match=r"^results: got 1 tuning runs of fixed-4; need 2"):
        s.runs(tuned[:1])


def test_one_learning_rate_needs_no_tuning():
    s = Settings(lrs=(1e-4,), seeds=(3,), rules=("fixed-2",), regimes=("few",))
    assert s.tuning() == [] and s.runs([]) == [Run("few", "fixed-2", "none", 3, 1e-4)]


def test_settings_survive_their_file(tmp_path):
    s = Settings(rules=("dapo",), seeds=(7,))
    s.save(tmp_path / "s.json")
    assert Settings.load(tmp_path / "s.json") == s


def test_a_line_cut_off_by_a_kill_is_run_again(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(line("fixed-4", 0, [1])) + "\n" + '{"run": {"reg')
    assert len(schedule.results(tmp_path)) == 1
    schedule._repair(path)
    assert path.read_text().count("\n") == 1 and path.read_text().endswith("\n")


def test_other_settings_do_not_mix_with_finished_runs(tmp_path):
    Settings(amount=1.0, out=str(tmp_path)).save(tmp_path / "settings.json")
    with pytest.raises(ValueError, match=r"^out: got .* with other amount; need a new folder"):
        schedule.compare(Settings(amount=2.0, out=str(tmp_path)))


def test_report_numbers_by_hand():
    s = Settings(rules=("fixed-4", "fixed-8", "aero"), seeds=(0, 1, 2), regimes=("many",), lrs=(1e-4,), eval_samples=4)
    counts = {"fixed-4": ([4, 2], [4, 0], [3, 1]), "fixed-8": ([1, 1], [0, 0], [2, 2]), "aero": ([4, 4], [2, 2], [4, 1])}
    results = [line(rule, seed, c) for rule, all_counts in counts.items() for seed, c in enumerate(all_counts)]
    rows = {r["rule"]: r for r in report.summary(s, results)}
    p4, aero = [6 / 8, 4 / 8, 4 / 8], [1.0, 4 / 8, 5 / 8]
    assert rows["fixed-4"]["best_fixed"] and not rows["fixed-8"]["best_fixed"]
    assert rows["fixed-4"]["pass1"] == pytest.approx(np.mean(p4))
    d = np.subtract(aero, p4)
    half = t.ppf(0.975, 2) * d.std(ddof=1) / sqrt(3)
    got = [rows["aero"][name] for name in ("diff", "diff_low", "diff_high")]
    assert got == pytest.approx([d.mean(), d.mean() - half, d.mean() + half])
    assert rows["aero"]["pass_k"] == 1.0
    assert rows["fixed-8"]["pass_k"] == pytest.approx(4 / 6)
    assert rows["aero"]["calibration_share"] == pytest.approx(25 / 125)
    assert rows["aero"]["signal"] == pytest.approx(15 / 125)
    assert rows["aero"]["mass"] == pytest.approx(50 / 125)
    assert rows["aero"]["mean_k"] == 5 and rows["aero"]["responses_per_update"] == 10
    assert "nothing" in report.verdict(list(rows.values()))


def test_pass_at_k_is_unbiased_by_enumeration():
    for n, c, k in ((4, 1, 2), (5, 3, 2), (6, 0, 6), (6, 6, 1)):
        subsets = comb(n, k)
        assert report.pass_at([c], n, k) == pytest.approx(1 - comb(n - c, k) / subsets)


def test_report_files(tmp_path):
    s = Settings(rules=("fixed-4", "aero"), seeds=(0, 1), regimes=("many", "few"), lrs=(1e-4,), eval_samples=4, command="compare <b>")
    results = [line(r, seed, [4, 2], regime=g) | {"pool": 0.5} for r in s.rules for seed in s.seeds for g in s.regimes]
    report.write(s, results, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "compare &lt;b&gt;" in page and page.count("data:image/png") == 2
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 5
    assert (tmp_path / "table.md").read_text().splitlines()[0].startswith("| prompts | rule |")


def test_recorder_changes_no_decision_and_adds_up():
    policy = rules.budget("aero").make(4, 0)
    wrapped = Recorder(policy)
    rng = np.random.default_rng(0)
    o = Outcomes(np.arange(6, dtype=np.uint64), rng.random((6, 8)) < 0.3)
    assert (wrapped.more(o) == policy.more(o)).all() and (wrapped.keep(o) == policy.keep(o)).all()
    assert (wrapped.advantages(o) == policy.advantages(o)).all()
    wrapped.update(o)
    kept = policy.keep(o)
    c, n = (o.passes & kept).sum(1), kept.sum(1)
    assert wrapped.mass == pytest.approx(sum(a * (b - a) / b for a, b in zip(c.tolist(), n.tolist(), strict=True) if b))
    other = Recorder(rules.budget("aero").make(4, 0))
    other.load_state_dict(json.loads(json.dumps(wrapped.state_dict())))
    assert (other.mass, other.seen, other.visits) == (wrapped.mass, wrapped.seen, wrapped.visits)


def table(path, p=0.5):
    rng = np.random.default_rng(1)
    passes = rng.random((300, 32)) < p
    np.savez(path, ids=np.arange(300, dtype=np.uint64), passes=passes, codes=passes.astype(int), gold=np.ones(300, int))


def test_responses_per_update_are_held_equal(tmp_path):
    s = Settings(out=str(tmp_path), responses=128)
    table(tmp_path / "start.many.npz")
    for key, prompts in (("fixed-2", 64), ("fixed-32", 4), ("sqrt", 16), ("gdro-rollout", 32)):
        assert prompts_per_step(rules.budget(key), s, "many") == prompts
    # At a rate of one half nearly every group of eight has variance: dynamic sampling aims at all of 128 / 8.
    assert prompts_per_step(rules.budget("dapo"), s, "many") in (15, 16)
    table(tmp_path / "start.few.npz", 0.02)
    share = np.load(tmp_path / "start.few.npz")["passes"][:150, :8].any(1).mean()
    assert prompts_per_step(rules.budget("dapo"), s, "few") == max(1, round(16 * max(share, 0.25)))


@pytest.mark.slow
def test_a_short_comparison_end_to_end(tmp_path, capsys, monkeypatch):
    """Two rules, two regimes, one seed, tuning included; a second call runs nothing again."""
    s = Settings(
        rules=("fixed-4", "aero"), seeds=(0,), lrs=(5e-5, 1e-4), by="prompts", amount=256, responses=64, eval_prompts=20, eval_samples=2,
        pool=50, tune_share=0.25, out=str(tmp_path),
    )  # fmt: skip
    schedule.compare(s)
    lines = schedule.results(tmp_path)
    assert sum(r["run"]["tuning"] for r in lines) == 8 and sum(not r["run"]["tuning"] for r in lines) == 4
    for r in lines:
        assert r["totals"]["prompts"] >= 256 * (0.25 if r["run"]["tuning"] else 1)
    first = (tmp_path / "results.jsonl").read_bytes()
    schedule.compare(s)
    assert (tmp_path / "results.jsonl").read_bytes() == first
    assert "against the best fixed group" in capsys.readouterr().out


@pytest.mark.slow
def test_stale_and_rounded_actor_weights(tmp_path):
    """With delayed or rounded sampling weights the log-ratios are not zero, and the mask sees them."""
    base = {"rules": ("fixed-4",), "masks": ("carm-1.005",), "seeds": (0,), "lrs": (2e-4,), "by": "prompts", "amount": 128, "responses": 32}
    base |= {"eval_prompts": 5, "eval_samples": 1, "regimes": ("many",)}
    masked = {}
    for name, more in (("fresh", {}), ("stale", {"actor_delay": 2}), ("rounded", {"actor_dtype": "bfloat16"})):
        out = tmp_path / name
        out.mkdir()
        s = Settings(**base, **more, out=str(out))
        s.save(out / "settings.json")
        table(out / "start.many.npz")
        spec = {"regime": "many", "rule": "fixed-4", "mask": "carm-1.005", "seed": 0, "lr": 2e-4}
        main(json.dumps(spec | {"settings": str(out / "settings.json")}))
        totals = schedule.results(out)[0]["totals"]
        masked[name] = totals["masked"] / totals["masked_of"]
    assert masked["fresh"] == 0 < min(masked["stale"], masked["rounded"])


def test_dynamic_sampling_refills_inside_the_trainer(tmp_path, monkeypatch):
    """The trainer shows a rule across prompts the whole reserve: drawn prompts stop where enough groups have variance."""
    from experiments.arena import run as module

    s = Settings(rules=("dapo",), seeds=(0,), regimes=("many",), lrs=(1e-4,), by="prompts", amount=24, responses=64, out=str(tmp_path))
    table(tmp_path / "start.many.npz")
    monkeypatch.setattr(module, "VALIDATION", 10)
    s = Settings(**{**s.__dict__, "eval_prompts": 5, "eval_samples": 1})
    seen = []

    class Spy(Recorder):
        def update(self, outcomes):
            seen.append(outcomes)
            super().update(outcomes)

    monkeypatch.setattr(module, "Recorder", Spy)
    result = module.run(Run("many", "dapo", "none", 0, 1e-4), s)
    prompts = result["prompts_per_step"]
    assert seen and all(o.n == 4 * prompts and set(o.drawn.tolist()) <= {0, 8} for o in seen)
    for o in seen:
        begun = o.drawn > 0
        assert begun.sum() >= 1 and (begun[: begun.sum()]).all()  # in order, the rest waits
    assert result["totals"]["generated"] == sum(int(o.drawn.sum()) for o in seen)
