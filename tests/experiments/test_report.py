"""The report from synthetic arms: every file is written, numbers are right, the page stands alone."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from experiments import demo, report


def synthetic(folder: Path, seconds: float = 30.0, steps: int = 60) -> Path:
    """Arm files as a demo would leave them, with the awkward cases: infinite thresholds, negative savings, an arm without audit."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    s = demo.Settings(seconds=seconds, out=str(folder), command="python -m experiments demo", versions={"python": "3.11"})
    (folder / "settings.json").write_text(json.dumps(asdict(s)))
    start = rng.beta(0.7, 0.6, 300)
    for i, arm in enumerate(demo.arms(s.grid)):
        history = []
        for step in range(steps):
            mean_k = (
                float(arm.k) if arm.kind == "fixed" else float({"released": 9, "cgrpo": 30, "signal": 14}[arm.kind] + rng.normal(0, 1.2))
            )
            done = step / steps
            metrics = {
                "fixed": {},
                "released": {f"q_{k}": 0.4 + 0.1 * j + 0.05 * (step // 20) for j, k in enumerate(s.grid)},
                "cgrpo": {"lambda": math.inf if step < 20 else 0.8},
                "signal": {"f": 32.0 if step < 10 else 16.0},
            }[arm.kind]
            calibration = 3200 if arm.kind in ("released", "cgrpo") and step % 20 == 0 else 0
            generated = round(mean_k * arm.prompts)
            history.append(
                {
                    "step": step,
                    "mean_k": mean_k,
                    "reward_mean": 0.5 + 0.1 * done,
                    "prompts": arm.prompts,
                    "generated": generated,
                    "calibration": calibration,
                    "policy": metrics,
                    "d_scores": [0.0] * 16 + list(rng.lognormal(-5.2, 0.9, 48)),
                    "clock": step * seconds / steps,
                }
            )
        generated = sum(h["generated"] for h in history)
        calibration = sum(h["calibration"] for h in history)
        trained = int(generated * 0.6)
        totals = {
            "prompts": arm.prompts * steps,
            "generated": generated,
            "kept": generated,
            "trained": trained,
            "calibration": calibration,
            "generated_tokens": 4 * generated + 2000 * i,
            "trained_tokens": 4 * trained,
            "calibration_tokens": 4 * calibration,
            "groups": arm.prompts * steps,
            "groups_with_variance": int(arm.prompts * steps * 0.6),
            "masked": 300,
            "masked_of": 9000,
            "optimizer_steps": 4 * steps,
            "seconds_generate": 0.3 * seconds,
            "seconds_reward": 0.02 * seconds,
            "seconds_train": 0.5 * seconds,
            "seconds_calibrate": 0.1 * seconds if calibration else 0.0,
            "seconds_other": 0.08 * seconds,
            "seconds_total": seconds,
            "audit": {
                "fixed": {},
                "released": {"false_stop": [90, 900]},
                "cgrpo": {"false_stop": [0, 900]},
                "signal": {"lost_group": [31, 700]},
            }[arm.kind],
        }
        final = np.clip(start + rng.normal(0.04 + 0.008 * i, 0.08, 300), 0, 1)
        result = {
            "arm": asdict(arm),
            "policy": f"{arm.kind}(...)",
            "tau": 1.02,
            "band": [0.8, 1.28],
            "certificate": 0.0887,
            "k_max": 32,
            "wall_seconds": seconds,
            "totals": totals,
            "history": history,
            "evaluation": {"samples": 8, "start": start.tolist(), "final": final.tolist()},
        }
        (folder / f"{arm.key}.json").write_text(json.dumps(demo._plain(result)))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = synthetic(tmp_path_factory.mktemp("demo"))
    report.write(report.load(folder), folder)
    return folder


def test_every_file_is_written(folder):
    for name in ("table.csv", "table.md", "report.html", *(f"{n}.png" for n, _, _ in report.FIGURES)):
        assert (folder / name).stat().st_size > 500, name


def test_page_is_self_contained_and_begins_with_words(folder):
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(report.FIGURES)
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert page.index("<p>The same start model") < page.index("<table")
    assert "rival to beat" in page


def test_arm_files_are_strict_json(folder):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    for arm in demo.arms():
        json.loads((folder / f"{arm.key}.json").read_text(), parse_constant=refuse)


def test_table_has_one_column_per_rule_and_numbers_add_up(folder):
    data = report.load(folder)
    for row in report.rows(data):
        assert len(row.cells) in (0, 6)
    with (folder / "table.csv").open() as f:
        rows = {r["rule"]: r for r in csv.DictReader(f)}
    released = rows["released"]
    generated, calibration, prompts = (float(released[k]) for k in ("generated_rollouts", "calibration_rollouts", "prompts"))
    assert float(released["savings_with_calibration"]) == pytest.approx(1 - (generated + calibration) / (32 * prompts))
    assert float(released["savings_without_calibration"]) == pytest.approx(1 - generated / (32 * prompts))
    assert float(rows["C-GRPO risk control"]["savings_with_calibration"]) < 0
    assert rows["fixed G=8"]["false_stop_count"] == ""
    assert float(rows["fixed G=8"]["mean_k"]) == 8


def test_false_stops_carry_exact_intervals(folder):
    pytest.importorskip("scipy")
    from scipy.stats import beta

    arm = next(a for a in report.load(folder).arms if a["arm"]["key"] == "released")
    x, n, low, high = report.audits(arm)["false_stop"]
    assert (x, n) == (90, 900)
    assert low == pytest.approx(beta.ppf(0.025, 90, 811), abs=1e-9)
    assert high == pytest.approx(beta.ppf(0.975, 91, 810), abs=1e-9)


def _with_finals(folder: Path, shift: dict[str, float]) -> report.Report:
    data = report.load(folder)
    noise = np.random.default_rng(0).normal(0, 0.05, 300)
    for a in data.arms:
        base = np.full(300, 0.5) + (noise if a["arm"]["key"] == "signal" else 0)
        a["evaluation"]["final"] = (base + shift.get(a["arm"]["key"], 0)).tolist()
    return data


def test_verdict_says_when_rules_cannot_be_told_apart(folder):
    noise = np.random.default_rng(0).normal(0, 0.05, 300).mean()
    tie = report.verdict(_with_finals(folder, {"signal": 0.001 - noise}))
    assert "best adaptive rule, signal" in tie
    assert "cannot be told apart" in tie


def test_verdict_names_the_fixed_group_when_it_wins(folder):
    won = report.verdict(_with_finals(folder, {"fixed-8": 0.1}))
    assert won.startswith("The highest pass@1 after the same seconds is fixed G=8's")
    assert "so fixed G=8 is ahead" in won


def test_mean_interval_covers_the_mean_at_its_level():
    rng = np.random.default_rng(1)
    hits = sum(low <= 0.3 <= high for _, low, high in (report.mean_interval(rng.random(200) < 0.3) for _ in range(2000)))
    assert 0.93 < hits / 2000 < 0.97


def test_nothing_in_a_figure_leaves_the_canvas_or_overlaps_the_legend(folder):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    data = report.load(folder)
    for name, draw, _ in report.FIGURES:
        fig = draw(data)
        canvas = FigureCanvasAgg(fig)
        canvas.draw()
        box = fig.bbox
        for ax in fig.axes:
            tight = ax.get_tightbbox(canvas.get_renderer())
            assert tight.x0 >= box.x0 - 1 and tight.x1 <= box.x1 + 1 and tight.y0 >= box.y0 - 1 and tight.y1 <= box.y1 + 1, name
            for legend in fig.legends:
                assert not legend.get_window_extent().overlaps(tight), name


def test_empty_folder_is_refused(tmp_path):
    with pytest.raises(demo.BadInput, match=r"settings\.json"):
        report.load(tmp_path)
