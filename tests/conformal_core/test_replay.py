import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.laws import clopper_pearson
from conformal_core.outcomes import NOT_DRAWN, Outcomes
from conformal_core.policy import FixedBudget, RolloutPolicy
from conformal_core.replay import ReplayReport, replay


def table(n, width=8, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, 3, (n, width))
    return Outcomes(rng.integers(0, 2**63, n).astype(np.uint64), codes == 0, codes=codes, gold=np.zeros(n, np.int64))


class OneByOne(RolloutPolicy):
    """Draws until the first success; skips prompts with an odd id; notes what it was shown."""

    def __init__(self, k_max, greed=1):
        self.k_max, self.greed, self.seen = k_max, greed, []

    def first(self, prompt_ids, step):
        return (prompt_ids % np.uint64(2) == 0).astype(np.int64)

    def more(self, outcomes):
        self.seen.append(outcomes)
        return np.where(outcomes.passes.any(axis=1) | (outcomes.drawn >= self.k_max), 0, self.greed)

    def audit(self, outcomes):
        return {"unsolved": (int((~outcomes.passes.any(axis=1)).sum()), outcomes.n), "never_tried": (0, 0)}

    def keep(self, outcomes):
        return np.ones(outcomes.passes.shape, bool)  # replay counts no response that was not drawn


@given(st.integers(1, 30), st.integers(0, 99))
def test_draws_what_the_policy_would_have_drawn_alone(n, seed):
    full = table(n, seed=seed)
    policy = OneByOne(8)
    report = replay(policy, full, step=5)
    for i, row in enumerate(full.passes):
        alone = 0 if full.prompt_ids[i] % 2 else (int(row.argmax()) + 1 if row.any() else 8)
        assert report.drawn[i] == alone
    assert len(policy.seen) <= 8  # rounds, not prompts
    for shown in policy.seen:
        assert shown.step == 5
        assert (shown.codes[~shown.live] == NOT_DRAWN).all() and not shown.passes[~shown.live].any()
        assert (shown.drawn == shown.drawn[0]).all()  # a prompt that stopped is not asked about again
    assert report.mean_k == report.drawn.mean() and report.savings == 1 - report.mean_k / 8
    unsolved = sum(not row[:k].any() for row, k in zip(full.passes, report.drawn, strict=True))
    assert report.audit == {"unsolved": (unsolved, n), "never_tried": (0, 0)}
    assert report.intervals == {"unsolved": clopper_pearson(unsolved, n), "never_tried": (0, 1)}
    assert report.groups_with_variance == sum(0 < row[:k].sum() < k for row, k in zip(full.passes, report.drawn, strict=True))


def test_fixed_budget():
    report = replay(FixedBudget(4), table(20))
    assert report.drawn.tolist() == [4] * 20 and report.savings == 0 and report.audit == {}


def test_json_round_trip():
    report = replay(OneByOne(8), table(9))
    again = ReplayReport.from_json(json.loads(json.dumps(report.to_json())))
    np.testing.assert_array_equal(again.drawn, report.drawn)
    assert again.audit == report.audit and again.intervals == report.intervals and again.mean_k == report.mean_k


def test_refusals():
    for small in (table(3, width=4), table(0)):
        with pytest.raises(ValueError, match=r"^table: got .*; need 8 .*; because "):
            replay(FixedBudget(8), small)
    with pytest.raises(ValueError, match=r"^policy: got .*; need .*; because "):
        replay(OneByOne(7, greed=9), table(30, width=9))
