"""Options that cannot work: exit 2, one line on stderr, no model library imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments import demo

ROOT = Path(__file__).parents[2]
BAD = {
    "model": (["--model", "no/such/model"], "no/such/model"),
    "grid order": (["--grid", "2,8,4"], "ascending"),
    "grid words": (["--grid", "two"], "integers"),
    "k_max": (["--grid", "1"], "at least 2"),
    "calibration": (["--n-calibration", "8"], "at least 9"),
    "calibration at a smaller delta": (["--n-calibration", "50", "--delta", "0.01"], "at least 99"),
    "seconds": (["--seconds", "0"], "more than 0"),
    "negative seconds, short": (["--seconds", "-3", "--short"], "more than 0"),
    "delta": (["--delta", "1.5"], "0 < delta < 1"),
    "tau": (["--tau", "0.02"], "tau >= 1"),
    "jobs": (["--jobs", "0"], "at least 1"),
    "iterations": (["--num-iterations", "0"], "num-iterations: got 0"),
    "recalibration": (["--recalibrate-every", "0"], "recalibrate-every: got 0"),
    "learning rate": (["--lr", "nan"], "lr: got nan"),
    "seed": (["--seed", "-1"], "0 <= seed"),
    "more problems than there are": (["--n-calibration", "1000000"], "distinct additions"),
}
GUARD = (
    "import sys, runpy; sys.argv = ['experiments'] + sys.argv[1:]\n"
    "try: runpy.run_module('experiments', run_name='__main__')\n"
    "except SystemExit as e: code = e.code\n"
    "print('torch' in sys.modules, 'transformers' in sys.modules); sys.exit(code)"
)


@pytest.mark.parametrize("case", BAD, ids=lambda c: c.replace(" ", "-"))
def test_one_clear_line_before_any_model_is_loaded(case, tmp_path):
    options, words = BAD[case]
    command = [sys.executable, "-c", GUARD, "demo", "--out", str(tmp_path / "out"), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "got" in done.stderr
    assert "need" in done.stderr
    assert done.stdout.split() == ["False", "False"]
    assert not (tmp_path / "out").exists()


def test_every_arm_aims_at_the_same_responses_per_update():
    table = demo.arms()
    assert [a.key for a in table] == ["fixed-4", "fixed-8", "fixed-32", "released", "cgrpo", "signal"]
    for arm in table:
        expected_k = arm.k * demo.EXPECTED_SHARE.get(arm.kind, 1)
        assert 0 <= 256 - arm.prompts * expected_k < expected_k  # the most prompts that fit


def test_every_arm_has_a_sibling_at_two_jobs():
    assert len(demo.arms()) % 2 == 0


@pytest.mark.slow
def test_short_run_of_one_arm_keeps_to_its_seconds(tmp_path):
    import json
    from dataclasses import asdict

    s = demo.Settings(seconds=3, out=str(tmp_path), n_calibration=10, train_prompts=200, eval_prompts=20, eval_samples=4)
    (tmp_path / "settings.json").write_text(json.dumps(asdict(s)))
    command = [sys.executable, "-m", "experiments", "demo-arm", "signal", str(tmp_path / "settings.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "signal.json").read_text())
    totals = result["totals"]
    assert totals["seconds_total"] >= 3
    longest = (
        max(b["clock"] - a["clock"] for a, b in zip(result["history"], result["history"][1:], strict=False))
        if totals["prompts"] > 16
        else 60
    )
    assert totals["seconds_total"] <= 3 + 3 * longest + 1
    assert totals["generated"] == sum(sum(h["drawn"]) for h in result["history"])
    assert totals["trained"] <= totals["kept"] <= totals["generated"]
    assert len(result["evaluation"]["final"]) == 20
