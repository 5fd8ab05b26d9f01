"""Batches of log-probabilities for the torch adapter, with an oracle that sees one response at a time."""

import math

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from carm_core import CARM, OPSM, TRM, GeoMean, IcePop, MeanExpAbs, NoMask, SeqMIS, SeqTIS, TokenMIS, TokenTIS, TRMMean, log_ratio

RULES = [
    NoMask(),
    CARM(1.02),
    GeoMean(1.02),
    TRM(0.05),
    TRMMean(0.001),
    MeanExpAbs(1.02),
    OPSM(0.01),
    SeqMIS(3.0, 0.5),
    SeqTIS(2.0),
    IcePop(),
    TokenTIS(),
    TokenMIS(3.0, 0.25),
    CARM(1.02, conditioning="negative"),
    GeoMean(1.02, conditioning="negative"),
]
few = settings(max_examples=12, deadline=None)
# off every threshold, so that rounding cannot decide, and multiples of 1/1024, so that float32 holds differences exactly
values = st.sampled_from([x / 1024 for x in (0, 3, -4, 13, 112, -276, 2560, -4096, 61440)])
POISON = [0.0, math.nan, math.inf, -math.inf, -1e10, torch.finfo(torch.float32).min]


@st.composite
def padded_batches(draw, square=False, min_rows=1):
    """(rows, current, rollout, mask, advantages): live tokens anywhere in a row, garbage at the others, non-zero integers as marks."""
    n = draw(st.integers(min_rows, 5))
    rows = draw(st.lists(st.lists(values, max_size=n if square else 7), min_size=n, max_size=n))
    width = n if square else max(map(len, rows)) + draw(st.integers(0, 3))
    base = -2.0
    current = torch.full((n, width), draw(st.sampled_from(POISON)))
    rollout = torch.full((n, width), draw(st.sampled_from(POISON)))
    mask = torch.zeros(n, width, dtype=torch.long)
    for i, row in enumerate(rows):
        at = sorted(draw(st.permutations(range(width)))[: len(row)])
        current[i, at] = base + torch.tensor(row)
        rollout[i, at] = base
        mask[i, at] = draw(st.sampled_from([1, 2, -1, 7]))
    advantages = draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=n, max_size=n))
    return rows, current, rollout, mask, torch.tensor(advantages)


def alone(rule, row, advantage):
    """(keep, weights) of one response on its own tokens, in float64 NumPy."""
    z = np.array([row], dtype=float).reshape(1, len(row))
    ones, a = np.ones(z.shape), np.array([float(advantage)])
    z = log_ratio(z, np.zeros(z.shape), ones).z
    return bool(rule.keep(z, ones, a)[0]), rule.weights(z, ones, a)[0]
