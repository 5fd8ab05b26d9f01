"""Tables and figures again: what is declared, how runs are kept and resumed, and numbers against a hand computation."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from experiments import configs
from experiments.__main__ import main as cli
from experiments.claims import LEDGER
from experiments.reproduce import cgrpo_cost, estimates, schedule, source, write
from experiments.reproduce.catalogue import ITEMS, item
from experiments.reproduce.cli import reproduce
from experiments.reproduce.item import Estimate, lines
from experiments.reproduce.training import condense
from experiments.train import override

#: Tables, figures and ablations of both papers that hold measurements.
PLACES = {
    "C-GRPO": {
        *(f"Table {n}" for n in (1, 2, 3, 5, 6, 7, 10)),
        *(f"Figure {n}" for n in (2, 3, 4)),
        *(f"Appendix B ({x})" for x in "ABC"),
        "Section 5.5",
    },
    "CARM": {*(f"Table {n}" for n in (1, 2, 4, 5)), *(f"Figure {n}" for n in (1, 3, 4, 6, 9, 10, 11)), "Section 5.2"},
}


def record(variant, seed=0, pass1=0.5, mean_k=8.0, **more):
    test = {
        name: {str(k): [pass1, pass1 - 0.1, pass1 + 0.1] for k in (1, 2, 4, 8, 16, 32)} for name in ("pass", "majority", "best", "worst")
    }
    totals = {"generated": 1200 * mean_k, "calibration": 600, "prompts": 1200, "masked": 50, "masked_of": 100}
    totals |= {"seconds_total": 10.0, "seconds_calibrate": 1.0, "seconds_train": 4.0}
    curves = [{"step": i, "reward": 0.5, "rollouts/mean_k": mean_k, "entropy": 1.0, "grad_norm": 2.0} for i in range(1, 31)]
    base = {"variant": variant, "seed": seed, "test": test, "totals": totals, "curves": curves, "mean_k_end": mean_k, "delta0": 0.2}
    return {**base, "spent": np.cumsum([10] * 100).tolist(), "seconds": 6.0, **more}


def fake(run):
    """A result for any run, of the form its source gives."""
    if run.source == "coverage":
        each = [[1.0, 0.9, 0.9, 0.9, 0.9]] * 3
        return {"coverage": [0.9, 0.8], "tv": 0.1} | {
            r: {"per_budget": each, "joint": [0.8] * 3} for r in ("per_budget", "bonferroni", "max_rank")
        }
    if run.source == "responses":
        out = {"d": [0.02, 0.05], "geomean": [0.001, 0.05], "length": [4, 4], "pair": [0, 1, 1, 0]}
        rejected = {rule: [0.5] * 9 for rule in ("CARM", "GeoMean")}
        return {**out, "rejected": rejected, "chosen": {"z": [0.1, -0.1, 0.02], "tokens": ["a", "b", "c"], "geomean_only": True}}
    if run.variant == "start":
        return {"passes": [[1, 0, 1, 1]] * 40}
    return {k: v for k, v in record(run.variant, run.seed).items() if k not in ("variant", "seed")}


@pytest.fixture
def instant(monkeypatch):
    """Every source answers at once; the list of what was run."""
    ran = []

    def execute(run, folder):
        ran.append(run)
        source.append(folder, run, schedule.sources()[run.source].settings(run.scale), {**fake(run), "seconds": 1.0})

    monkeypatch.setattr(schedule, "execute", execute)
    return ran


def test_every_table_and_figure_is_declared():
    for paper, places in PLACES.items():
        have = " ".join(i.place + "," for i in ITEMS.values() if i.paper == paper)
        for place in places:
            assert re.search(re.escape(place) + r"\b|" + re.escape(place) + ",", have), (paper, place)
    assert all(i.id == name and i.id.startswith(("cgrpo-", "carm-")) for name, i in ITEMS.items())


@pytest.mark.parametrize("name", ITEMS)
def test_numbers_have_a_place_and_reasons_have_known_ids(name):
    i = ITEMS[name]
    assert i.numbers or any("image without numbers" in u.why for u in i.unmet)
    assert all(n.place and n.unit and math.isfinite(n.value) for n in i.numbers)
    assert len({n.name for n in i.numbers}) == len(i.numbers)
    assert i.unmet and all(u.what and u.why and set(u.claims) <= set(LEDGER) for u in i.unmet)
    assert i.needs and len(set(i.needs)) == len(i.needs) and i.small and i.measures


def test_all_small_runs_fit_in_an_hour_on_two_cores():
    runs = schedule.wanted({n: None for i in ITEMS.values() for n in i.needs}, "small")
    assert 0 < schedule.minutes(runs, 2) <= 55
    assert all(schedule.wanted(i.needs, "small") for i in ITEMS.values())


@pytest.mark.parametrize("name", ITEMS)
def test_paper_scale_commands_are_those_of_shipped_configurations(name, tmp_path):
    for run in schedule.wanted(ITEMS[name].needs, "paper"):
        (command,) = schedule.paper_command(run, tmp_path)
        config = re.search(r"--config (\S+)", command)[1]
        experiment = override(configs.read(config), re.findall(r"--set '([^']*)'", command))
        assert experiment.model.id and "{" not in re.sub(r"'[^']*'", "", command)
    for source_id, variant in ITEMS[name].needs:
        v = schedule.sources()[source_id].variants[variant]
        assert bool(v.paper) != bool(v.why)


def test_table_1_savings_follow_from_mean_k():
    """L4: every saving is 1 - k/32, rounded half to even."""
    table = {n.name: n.value for n in item("cgrpo-table3").numbers}
    for name, k in table.items():
        if name.endswith("mean k"):
            assert table[name.replace("mean k", "savings")] == round(100 * (1 - k / 32))


def test_carm_averages_follow_from_their_cells():
    """M13: the average column of Tables 1 and 2 is the mean of the four others, to rounding."""
    for name, width in (("carm-table1", 10), ("carm-table2", 5)):
        values = [n.value for n in item(name).numbers]
        rows = [values[i : i + 5] for i in range(0, len(values), 5)]
        assert len(rows) == width
        assert all(abs(sum(row[:4]) / 4 - row[4]) <= 0.0051 for row in rows)


def test_over_runs_is_student():
    e = estimates.over_runs([0.5, 0.6, 0.7])
    half = t.ppf(0.975, 2) * 10 / math.sqrt(3)
    assert (e.value, e.low, e.high) == pytest.approx((60, 60 - half, 60 + half))
    assert math.isnan(estimates.over_runs([0.5]).low) and math.isnan(estimates.over_runs([]).value)


def test_differences_are_paired_over_shared_seeds():
    a = [record("a", 0, 0.6), record("a", 1, 0.9), record("a", 2, 0.1)]
    b = [record("b", 1, 0.8), record("b", 0, 0.5)]
    e = estimates.difference(a, b, estimates.pass1)
    assert e.value == pytest.approx(10) and e.low == pytest.approx(10) and "2 runs" in e.how


def test_a_single_run_has_the_interval_over_its_prompts():
    e = estimates.pass_at([record("a")], 1)
    assert (e.value, e.low, e.high) == pytest.approx((50, 40, 60)) and "prompts" in e.how


def test_recovery_counts_the_steps_until_reward_is_back():
    curve = [{"step": s, "reward": 0.0 if 50 < s <= 53 else 1.0} for s in range(1, 101)]
    assert cgrpo_cost._recovery({"curves": curve}) == 8.0  # the five-step mean is free of the dip at step 58
    assert cgrpo_cost._dip({"curves": curve}) == pytest.approx(-0.6)


def test_a_run_of_the_train_command_is_read():
    def measured(p):
        names = ("pass", "all", "best", "worst")
        return {"statistics": [{"statistic": n, "k": 1, "value": p, "low": 0.0, "high": 1.0} for n in names], "majority": {}}

    log = [{"step": 1, "grad_norm": 1.0, "policy/delta": 0.3, "rollouts/mean_k": 4.0}, {"step": 2, "train_runtime": 1.0}]
    run = {"policy": "p", "totals": {"audit": {}, "masked": 0}, "log": log}
    tests = {"aime24": measured(0.1), "aime25": measured(0.2), "aime26": measured(0.6), "beyond_aime": measured(0.9)}
    out = condense({**run, "test": tests})
    assert out["delta0"] == 0.3 and out["mean_k_end"] == 4.0 and len(out["curves"]) == 1
    assert out["test"]["pass"]["1"][0] == pytest.approx(0.3) and out["tests"]["beyond_aime"]["best"]["1"] == [0.9, 0.0, 1.0]
    assert condense({**run, "test": {"gsm8k": measured(0.7)}})["test"]["pass"]["1"] == [0.7, 0.0, 1.0]


def test_the_markdown_puts_paper_ours_and_interval_side_by_side():
    i = item("cgrpo-figure3")
    i = replace(i, unmet=(i.unmet[1],))
    text = write.markdown(i, lines(i, {i.numbers[0].name: Estimate(0.5, 0.4, 0.6, "by hand", "ratio")}), "small", 3, 3)
    assert "| C-GRPO, mean k over that of G=32 | 0.3250 | 0.5000 | 0.4000 to 0.6000 | ratio | Section 5.3 | by hand |" in text
    assert "(H2, H8)." in text and "python -m experiments reproduce cgrpo-figure3`" in text and "3 of 3 runs:" in text
    assert "not run at this scale" in write.markdown(i, lines(i, {}), "small", 0, 3) and "(unfinished)" in write.markdown(
        i, (), "small", 0, 3
    )


def test_all_writes_every_item_once_and_a_second_call_runs_nothing(instant, tmp_path, capsys):
    assert cli(["reproduce", "all", "--scale", "small", "--out", str(tmp_path), "--jobs", "0"]) == 0
    assert len(instant) == len(set(instant))
    for name, i in ITEMS.items():
        folder = tmp_path / "small" / name
        assert (folder / "figure.png").stat().st_size > 5000 and f"{i.paper}, {i.place}" in (folder / "table.md").read_text()
        rows = list(csv.DictReader((folder / "table.csv").open()))
        assert [float(r["paper"]) for r in rows[: len(i.numbers)]] == pytest.approx([n.value for n in i.numbers], rel=1e-7)
        assert any(r["ours"] for r in rows)
    first = len(instant)
    assert cli(["reproduce", "all", "--out", str(tmp_path), "--jobs", "0"]) == 0
    assert len(instant) == first
    assert cli(["reproduce", "carm-table5", "--only-write", "--out", str(tmp_path), "--report", str(tmp_path / "docs")]) == 0
    assert (tmp_path / "docs" / "carm-table5" / "table.md").exists() and len(instant) == first
    capsys.readouterr()
    assert cli(["reproduce", "--list", "--out", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert all(re.search(rf"\d+\.\d min  {name} .*results, \d", listed) for name in ITEMS) and "all together" in listed


def test_an_interrupted_list_goes_on_where_it_was(instant, tmp_path, monkeypatch):
    runs = schedule.wanted(item("cgrpo-ablation-b").needs, "small")
    plain = schedule.execute

    def dies(run, folder):
        if len(instant) == 3:
            raise KeyboardInterrupt
        plain(run, folder)

    monkeypatch.setattr(schedule, "execute", dies)
    with pytest.raises(KeyboardInterrupt):
        reproduce([item("cgrpo-ablation-b")], tmp_path, "small", 0)
    file = source.path(tmp_path, "small", "cgrpo")
    whole = file.read_text()
    file.write_text(whole + '{"variant": "cut o')  # a kill in the middle of a line
    monkeypatch.setattr(schedule, "execute", plain)
    reproduce([item("cgrpo-ablation-b")], tmp_path, "small", 0)
    assert instant == runs and file.read_text().startswith(whole)
    assert [json.loads(x)["variant"] for x in file.read_text().splitlines()] == [r.variant for r in runs]


def test_seeds_come_one_after_the_other():
    seeds = [r.seed for r in schedule.wanted(item("cgrpo-table2").needs, "small")]
    assert seeds == sorted(seeds) and max(seeds) == 2


def test_results_of_other_settings_are_not_mixed(instant, tmp_path, capsys):
    run = schedule.Run("cgrpo", "Qwen/GSM8K", 0, "small")
    source.append(tmp_path, run, {**schedule.sources()["cgrpo"].settings("small"), "steps": 7}, fake(run))
    assert cli(["reproduce", "cgrpo-table7", "--out", str(tmp_path), "--jobs", "0"]) == 2
    assert re.match(r"error: out: got .* with other steps; need a new folder", capsys.readouterr().err)
    assert not instant


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["cgrpo-table9"], r"error: item: got 'cgrpo-table9'; need one of cgrpo-table1, .* or all; because "),
        ([], r"error: item: got nothing; need some of cgrpo-table1, "),
        (["all", "--scale", "huge"], r"error: scale: got 'huge'; need one of small, paper, tiny; because "),
        (["all", "--jobs", "-1"], r"error: jobs: got -1; need at least 0; because "),
        (["all", "--report", "/dev/null/x"], r"error: report: got /dev/null/x; need a folder that can be written; because "),
        (["all", "--out", "/dev/null/x"], r"error: out: got /dev/null/x; need a folder that can be written; because "),
    ],
)
def test_what_cannot_work_is_one_line(options, message, capsys):
    assert cli(["reproduce", *options]) == 2
    captured = capsys.readouterr().err
    assert re.match(message, captured) and captured.count("\n") == 1
    if "table9" in message:
        assert all(name in captured for name in ITEMS)


def test_paper_scale_needs_a_gpu(monkeypatch, tmp_path, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli(["reproduce", "cgrpo-table1", "--scale", "paper", "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.startswith("error: scale: got paper; need a CUDA device; because ")
    assert not (tmp_path / "x").exists()


def test_commands_are_printed_with_the_reason_where_there_is_none(capsys):
    assert cli(["reproduce", "cgrpo-table2", "carm-negative-only", "cgrpo-figure4", "--commands"]) == 0
    out = capsys.readouterr().out
    assert "# coverage/joint: " in out
    assert 'budget.rule="aero"' in out and 'mask.conditioning="negative"' in out
    assert out.count("torchrun") == len({x for x in out.splitlines() if x.startswith("torchrun")})


def test_a_command_that_fails_is_named(monkeypatch, tmp_path):
    plain = schedule.sources()["cgrpo"]
    broken = replace(plain, variants={**plain.variants, "released": replace(plain.variants["released"], paper=("false --out {out}",))})
    monkeypatch.setattr(schedule, "sources", lambda: {"cgrpo": broken})
    with pytest.raises(RuntimeError, match=r"run cgrpo\.released\.seed0 failed \(exit 1\): false --out "):
        schedule.execute(schedule.Run("cgrpo", "released", 0, "paper"), tmp_path)


def test_a_paper_run_is_read_from_its_command(monkeypatch, tmp_path):
    made = '{"policy": "p", "totals": {"masked": 0}, "log": [{"step": 1, "grad_norm": 1.0, "rollouts/mean_k": 4.0}]}'
    command = f"mkdir -p {{out}} && echo '{made.replace('{', '{{').replace('}', '}}')}' > {{out}}/run.json; true --out {{out}}"
    plain = schedule.sources()["cgrpo"]
    made_up = replace(plain, variants={**plain.variants, "released": replace(plain.variants["released"], paper=(command,))})
    monkeypatch.setattr(schedule, "sources", lambda: {"cgrpo": made_up})
    schedule.execute(schedule.Run("cgrpo", "released", 0, "paper"), tmp_path)
    assert source.finished(tmp_path, "paper", made_up)[0]["mean_k_end"] == 4.0


def test_an_interval_of_shares_stays_between_nothing_and_all():
    wide = estimates.over_runs([0.1, 0.6])
    assert (wide.low, wide.high) == (0.0, 100.0) and wide.value == pytest.approx(35)
    gain = estimates.over_runs([0.1, 0.6], "points")
    assert gain.low < 0 and gain.high > 100
