"""The statistic, the stop on it and its whole path, against counting by hand; risk control on the margin."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal_core.lead import knobs, lead, margin_stop, stop_intervals
from conformal_core.outcomes import Outcomes
from conformal_core.risk_control import RiskControl, risk_control, wrong_stop_level

GRID = (1, 2, 4, 6)
TABLES = arrays(np.int64, st.tuples(st.integers(1, 9), st.just(6)), elements=st.integers(-1, 2))
STATISTICS = pytest.mark.parametrize("statistic", ["top_share", "margin"])


def outcomes(codes):
    return Outcomes(np.arange(len(codes), dtype=np.uint64), codes == 0, codes=codes, gold=np.zeros(len(codes), np.int64))


def by_hand(row, k, statistic):
    """(value, leading answer) among the first k; value 0 without a unique leader."""
    counts = [*Counter(c for c in row[:k] if c >= 0).most_common(), (None, 0), (None, 0)]
    (answer, first), (_, second) = counts[:2]
    if first == second:
        return Fraction(0), None
    return (Fraction(first, k) if statistic == "top_share" else Fraction((first - second) ** 2, k)), answer


def path_by_hand(row, lam, statistic):
    return next(((k, a) for k in GRID for v, a in [by_hand(row, k, statistic)] if v > lam), None)


@STATISTICS
@given(codes=TABLES)
def test_lead_counts(statistic, codes):
    for k in GRID:
        size, answer = lead(codes, k, statistic)
        for i, row in enumerate(codes.tolist()):
            value, best = by_hand(row, k, statistic)
            assert Fraction(int(size[i]), k) == value
            assert value == 0 or answer[i] == best


@STATISTICS
@settings(max_examples=30)
@given(codes=TABLES)
def test_path_and_stop_agree_at_every_knob(statistic, codes):
    path = list(stop_intervals(outcomes(codes), GRID, statistic))
    for lam in knobs(GRID, statistic):
        for i, row in enumerate(codes.tolist()):
            hand = path_by_hand(row, lam, statistic)
            on_path = [(p.k, int(p.answer[i])) for p in path if p.low[i] <= float(lam) < p.high[i]]
            stops = [(k, int(a[i])) for k in GRID for s, a in [margin_stop(outcomes(codes), k, lam, statistic)] if s[i]][:1]
            assert on_path == stops == ([] if hand is None else [hand])


@STATISTICS
def test_knobs_hold_every_value_and_the_first_never_stops(statistic):
    pairs = [(k, c, d) for k in GRID for c in range(k + 1) for d in range(k - c + 1)]
    values = {by_hand([0] * c + [1] * d + [-1] * (k - c - d), k, statistic)[0] for k, c, d in pairs}
    assert values <= set(knobs(GRID, statistic)) and max(values) == knobs(GRID, statistic)[0] == (1 if statistic == "top_share" else 6)
    assert not any(margin_stop(outcomes(np.zeros((1, 6), int)), k, knobs(GRID, statistic)[0], statistic)[0].any() for k in GRID)


@pytest.mark.filterwarnings("ignore:n. got:UserWarning")
@settings(max_examples=80)
@given(arrays(np.int64, st.tuples(st.integers(2, 11), st.just(6)), elements=st.integers(-1, 1)), st.sampled_from(["1/10", "1/4", "1/2"]))
def test_margin_risk_is_bounded_for_every_exchangeable_law(codes, delta):
    wrong = 0
    for i in range(len(codes)):
        rule = risk_control(outcomes(np.delete(codes, i, axis=0)), GRID, delta, "margin")
        assert RiskControl.from_json(json.loads(json.dumps(rule.to_json()))) == rule
        stop = path_by_hand(codes[i].tolist(), rule.lam, "margin")
        wrong += stop is not None and stop[1] != 0
    assert Fraction(wrong, len(codes)) <= Fraction(delta)


@given(TABLES)
def test_margin_level_is_the_envelope_of_the_loss(codes):
    grid = knobs(GRID, "margin")
    for row, level in zip(codes.tolist(), wrong_stop_level(outcomes(codes), GRID, "margin"), strict=True):
        wrong = [lam for lam in grid if (path_by_hand(row, lam, "margin") or (0, 0))[1] != 0]
        for lam in grid:
            assert (float(lam) < level) == any(w >= lam for w in wrong)


def test_unanimous_and_wrong_at_two_saturates_the_share_but_not_the_margin():
    """A fifth of the prompts give the same wrong answer twice and the right one afterwards; delta = .15."""
    codes = np.zeros((100, 32), np.int64)
    codes[:20, :2] = 1
    o = outcomes(codes)
    share, margin = (risk_control(o, (2, 4, 8, 16, 32), "0.15", s) for s in ("top_share", "margin"))
    assert share.lam == 1 and not any(margin_stop(o, k, share.lam)[0].any() for k in (2, 4, 8, 16, 32))
    assert margin.lam == 2 and margin_stop(o, 4, margin.lam, "margin")[0].sum() == 80


def test_refusals():
    o = outcomes(np.zeros((3, 6), np.int64))
    for call, name in (
        (lambda: lead(o.codes, 2, "best"), "statistic"),
        (lambda: margin_stop(o, 2, Fraction(-1, 9)), "lam"),
        (lambda: margin_stop(Outcomes(o.prompt_ids, o.passes), 2, Fraction(1)), "outcomes.codes"),
        (lambda: list(stop_intervals(o.prefix(3), GRID)), "outcomes.drawn"),
        (lambda: risk_control(o, GRID, "0.5", "best"), "statistic"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: got .*; need .*; because "):
            call()
