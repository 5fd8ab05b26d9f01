import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from carm_strategies import batches, some
from hypothesis import given
from hypothesis import strategies as st

import carm_core
from carm_core import CARM, mask_report, paired_decisions, rejection_curve


def test_all_lists_exactly_the_public_names():
    public = {n for n, v in vars(carm_core).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert set(carm_core.__all__) == public
    assert len(carm_core.__all__) == len(public)


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(carm_core.__path__)])
def test_doctests(name):
    result = doctest.testmod(importlib.import_module(f"carm_core.{name}"))
    assert result.failed == 0


def test_public_names_are_documented():
    assert [n for n in carm_core.__all__ if not (getattr(carm_core, n).__doc__ or "").strip()] == []


def test_importing_and_using_the_core_never_imports_torch_or_scipy():
    code = (
        "import sys, numpy as np, carm_core as c;"
        "c.CARM(1.02).keep(np.zeros((1, 1)), np.ones((1, 1))); c.calibrated_tau([0.1], '1/2');"
        "assert not {'torch', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@some
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=20))
def test_paired_decisions_count_every_nonempty_response_once(triples):
    a, b, empty = ([t[i] for t in triples] for i in range(3))
    got = paired_decisions(np.array(a, dtype=bool), np.array(b, dtype=bool), np.array(empty, dtype=bool))
    live = [(x, y) for x, y, e in triples if not e]
    counts = [live.count(p) for p in [(True, True), (True, False), (False, True), (False, False)]]
    assert [got.both, got.only_first, got.only_second, got.neither] == counts
    assert got.total == len(live)


@some
@given(batches(), st.lists(st.floats(1, 3), min_size=1, max_size=5))
def test_rejection_curve_equals_the_rule_at_every_tau(batch, taus):
    rows, z, mask = batch
    s = carm_core.response_scores(z, mask)
    got = rejection_curve(s.d, taus, s.empty)
    for share, tau in zip(got, taus, strict=True):
        rejected = (~CARM(tau).keep(z, mask) & ~s.empty).sum()
        assert share == pytest.approx(rejected / max(sum(map(bool, rows)), 1))
    order = np.argsort(taus)
    assert (np.diff(got[order]) <= 0).all()


@some
@given(batches(), st.data())
def test_mask_report_counts_before_rejection_and_never_divides_by_zero(batch, data):
    rows, z, mask = batch
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    report = mask_report(torch.tensor(z), torch.tensor(mask), torch.tensor(keep), torch.ones(len(rows)))
    live = [(len(r), k) for r, k in zip(rows, keep, strict=True) if r]
    dropped = [n for n, k in live if not k]
    assert report.responses == len(live) and report.tokens == sum(n for n, _ in live)
    assert report.rejected_fraction == pytest.approx(len(dropped) / max(len(live), 1))
    assert report.rejected_token_fraction == pytest.approx(sum(dropped) / max(report.tokens, 1))
    assert report.rejected_success_fraction == (1.0 if dropped else 0.0)
    assert report.nonfinite == 0


@pytest.mark.parametrize(
    ("z", "word"),
    [
        (np.zeros((2, 4)), "inert"),
        (np.full((2, 4), np.log(0.95)), "truncated sampling"),
        (np.array([[0.7, -0.7], [0.5, 0.9]]), "large shift"),
        (np.full((2, 4), np.nan), "every response is rejected"),
    ],
)
def test_mask_report_recognises_wrong_numbers(z, word):
    mask = np.ones(z.shape)
    found = mask_report(z, mask, CARM(1.02).keep(z, mask)).warnings
    assert any(word in w for w in found)


@pytest.mark.parametrize(
    ("z", "words"),
    [
        ([[-0.05, -0.05], [-0.06, -0.06]], ["constant negative"]),
        ([[-0.05, -0.0611]], ["constant negative"]),  # standard deviation just below a tenth of the mean
        ([[-0.05, -0.0612]], []),
        ([[-0.05, -0.05], [0.05, 0.05]], []),
        ([[-0.05, -0.05], [-0.01, -0.09]], []),
        ([[-0.05, -0.05], [0.0, 0.0]], ["constant negative"]),
        ([[0.125, -0.125], [0.101, 0.101]], ["large shift"]),
        ([[0.125, -0.125], [0.1, 0.1]], []),
        ([[0.0, 0.0], [0.0, 1e-9]], []),
        ([[0.0, 0.0], [np.nan, 1.0]], ["inert"]),
        ([[0.2, -0.2], [np.nan, 1.0]], ["large shift"]),
    ],
)
def test_mask_report_draws_the_line_where_it_says(z, words):
    z = np.array(z)
    found = mask_report(z, np.ones(z.shape), np.ones(len(z), dtype=bool)).warnings
    assert [w.split(" in ")[0].split(":")[0].removesuffix(" shift") for w in found] == [w.removesuffix(" shift") for w in words]


def test_mask_report_is_quiet_on_ordinary_noise():
    z = np.random.default_rng(0).normal(0, 0.01, (8, 50))
    mask = np.ones(z.shape)
    assert mask_report(z, mask, CARM(1.02).keep(z, mask)).warnings == ()


def test_diagnostic_argument_errors():
    with pytest.raises(ValueError, match="keep_second: got shape"):
        paired_decisions([True], [True, False])
    with pytest.raises(ValueError, match="taus: got"):
        rejection_curve([0.1], [0.9])
