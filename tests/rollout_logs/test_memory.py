"""Memory does not grow with the text of the logs: a few dozen bytes a response, whatever its length."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.rollout_logs import write_outcomes, write_tokens

PEAK = """
import sys
from rollout_logs import audit

def peak():  # ru_maxrss would count what the parent held when it started this program
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

base = peak()
report = audit(sys.argv[1], what=(sys.argv[2],), jobs=1)
units = report.budgets.waste.rollouts if report.budgets is not None else report.masks.tokens
print(units, base, peak())
"""


def peak(folder, what):
    out = subprocess.run([sys.executable, "-c", PEAK, str(folder), what], check=True, capture_output=True, text=True).stdout
    units, base, top = map(int, out.split())
    return units, (top - base) * 1024


@pytest.mark.slow
def test_responses_cost_a_few_dozen_bytes_each(tmp_path):
    found = []
    for n in (200_000, 1_000_000):
        folder = tmp_path / str(n)
        folder.mkdir()
        write_outcomes(folder, n, files=2)
        found.append(peak(folder, "budgets"))
    (small, low), (large, high) = found
    assert (small, large) == (200_000, 1_000_000)
    assert (high - low) / (large - small) < 100  # 10^7 responses stay below 1 GB


@pytest.mark.slow
def test_tokens_cost_nothing(tmp_path):
    found = []
    for n in (8_000_000, 24_000_000):
        folder = tmp_path / str(n)
        folder.mkdir()
        write_tokens(folder, n, files=2)
        found.append(peak(folder, "masks"))
    (small, low), (large, high) = found
    assert large > 2 * small
    assert high - low < (large - small)  # a byte a token is the allocator's noise; holding one column in single precision costs four


@pytest.mark.slow
def test_long_responses_cost_no_more_than_short_ones(tmp_path):
    found = []
    for length in (500, 16_000):
        folder = tmp_path / str(length)
        folder.mkdir()
        write_tokens(folder, 12_000_000, files=1, length=length)
        found.append(peak(folder, "masks")[1])
    assert found[1] < found[0] + (200 << 20)
