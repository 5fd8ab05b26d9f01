"""Strategies and independent oracles for the carm_core tests: log-ratios, masks, and exact per-response statistics."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from carm_core import CARM, OPSM, TRM, GeoMean, IcePop, MeanExpAbs, NoMask, SeqMIS, SeqTIS, TRMMean

few = settings(max_examples=15, deadline=None)
some = settings(max_examples=40, deadline=None)
BANDS = [(0.8, 1.28), (0.5, 1.1), (0.9, 3.0), (0.8, 1.25)]
ALL_RULES = [
    NoMask(),
    CARM(1.02),
    GeoMean(1.02),
    TRM(0.05),
    TRMMean(0.001),
    MeanExpAbs(1.02),
    OPSM(0.01),
    SeqMIS(3.0),
    SeqTIS(2.0),
    IcePop(),
    CARM(1.02, conditioning="negative"),
    TRM(0.05, conditioning="negative"),
]

# a mixture of scales: engine noise, drift, and tokens far outside every band; plus exact repeats so that ties and cancellation occur
log_ratios = st.one_of(
    st.floats(-0.05, 0.05), st.floats(-2.0, 2.0), st.sampled_from([0.0, math.log(1.02), -math.log(1.02), 0.25, -0.25, 5.0, -5.0])
)
responses = st.lists(log_ratios, min_size=1, max_size=12)
taus = st.one_of(st.sampled_from([1.0, 1.02, 1.025, 1.03, 1.04]), st.floats(1.0, 4.0))


@st.composite
def batches(draw, max_rows=4, allow_empty=True):
    """(list of responses, z, mask): the responses written into a padded batch at random live positions, garbage elsewhere."""
    rows = draw(st.lists(st.lists(log_ratios, min_size=0 if allow_empty else 1, max_size=8), min_size=1, max_size=max_rows))
    width = max(map(len, rows)) + draw(st.integers(0, 3))
    garbage = draw(st.sampled_from([0.0, 7.0, math.nan, math.inf, -1e10]))
    z, mask = np.full((len(rows), width), garbage), np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        at = sorted(draw(st.permutations(range(width)))[: len(row)])
        z[i, at] = row
        mask[i, at] = 1
    return rows, z, mask


def exact_mean_abs(row):
    return sum((abs(Fraction(x)) for x in row), Fraction(0)) / max(len(row), 1)


def exact_mean(row):
    return sum((Fraction(x) for x in row), Fraction(0)) / max(len(row), 1)


def fractions_outside(row, band):
    """(p_minus, p_plus), strict, by comparing log-ratios with the log boundaries."""
    low, high = math.log(band[0]), math.log(band[1])
    return sum(x < low for x in row) / len(row), sum(x > high for x in row) / len(row)


def vectors(kind):
    path = Path(__file__).parents[1] / "data" / "vectors.json"
    return [c for c in json.loads(path.read_text())["cases"] if c["kind"] == kind]
