"""Defaults are those of the paper and of the projects that the rules come from; results and rules cannot be changed."""

import inspect
import math
from dataclasses import is_dataclass

import numpy as np
import pytest

import carm_core
import carm_core.testing
from carm_core import (
    OPSM,
    TRM,
    IcePop,
    SeqMIS,
    SeqTIS,
    TokenMIS,
    TokenTIS,
    TRMMean,
    carm_bound,
    clipped_surrogate,
    equality_response,
    finite_T_bound,
    geomean_witness,
    group_advantages,
    log_ratio,
    majority_at_k,
    masked_loss,
    mean_interval,
    one_sided_bounds,
    sampling_estimate,
    severity_bound,
    signed_mean_bound,
    tau_for_certificate,
    threshold_sweep,
)

BAND = (0.8, 1.28)


def test_rules():
    assert TRM() == TRM(0.05) and TRMMean() == TRMMean(0.001)
    assert IcePop() == IcePop(0.5, 5.0, weighted=True)
    assert TokenTIS() == TokenTIS(2.0) and SeqTIS() == SeqTIS(2.0)
    assert TokenMIS() == TokenMIS(3.0, 0.0) and SeqMIS() == SeqMIS(3.0, 0.0)
    assert OPSM(0.1) == OPSM(0.1, conditioning="negative") and TRM() == TRM(conditioning="both")


def test_band():
    assert TRM().certificate() == TRM().certificate(BAND)
    assert carm_bound(1.02) == carm_bound(1.02, BAND, severity=0.0, geomean_tau=None)
    assert finite_T_bound(100, 1.02) == finite_T_bound(100, 1.02, BAND)
    assert signed_mean_bound(0.02, 0.01) == signed_mean_bound(0.02, 0.01, BAND)
    assert one_sided_bounds(0.02, 0.01) == one_sided_bounds(0.02, 0.01, BAND)
    assert severity_bound(0.01, 1.02) == severity_bound(0.01, 1.02, BAND)
    assert tau_for_certificate(0.1) == tau_for_certificate(0.1, BAND)
    assert geomean_witness() == geomean_witness(2, BAND, severity=0.0)
    assert equality_response(50, 1.02) == equality_response(50, 1.02, BAND, 4)
    z, ones = np.zeros((1, 1)), np.ones((1, 1))
    assert threshold_sweep(TRM, [0.05], z, ones) == threshold_sweep(TRM, [0.05], z, ones, None, rewards=None, band=BAND)


def test_clips():
    z, a = np.array([[-30.0, -0.3, 0.0, 0.26, 1.5, 30.0]]), np.array([-1.0])
    zero, ones, keep = np.zeros(z.shape), np.ones(z.shape), np.array([True])
    paper = dict(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    for signs in (a, -a):
        np.testing.assert_array_equal(clipped_surrogate(z, signs), clipped_surrogate(z, signs, **paper, guard=20.0))
        options = dict(normalize="fixed", denominator=None, weights=None, ratio="token", aggregate="token")
        assert masked_loss(z, signs, ones, keep) == masked_loss(z, signs, ones, keep, **options, **paper)
    np.testing.assert_array_equal(log_ratio(z, zero, ones).z, log_ratio(z, zero, ones, clip=20.0, nonfinite="reject").z)


def test_statistics():
    rewards = np.array([[0.0, 1.0, 1.0]])
    np.testing.assert_array_equal(group_advantages(rewards), group_advantages(rewards, scale="group", eps=0.0))
    codes, gold = np.array([[0, 1, 1, 2]]), np.array([1])
    assert majority_at_k(codes, gold, 2) == majority_at_k(codes, gold, 2, replicates=1000, seed=0)
    assert mean_interval([0.5, 1.0]) == mean_interval([0.5, 1.0], "1/20")
    assert sampling_estimate([1, 2], 4, 2) == sampling_estimate([1, 2], 4, 2, "pass", delta="1/20")


#: Default values other than None of every public callable, and of the methods of public classes.
DEFAULTS = {
    "CARM": {"conditioning": "both"},
    "Certificate": {"severity_minus": math.inf, "severity_plus": math.inf},
    "GeoMean": {"conditioning": "both"},
    "IcePop": {"alpha": 0.5, "beta": 5.0, "conditioning": "both", "weighted": True},
    "MeanExpAbs": {"conditioning": "both"},
    "NoMask": {"conditioning": "both"},
    "OPSM": {"conditioning": "negative"},
    "Rule": {"conditioning": "both"},
    "Rule.certificate": {"band": BAND},
    "SeqMIS": {"cap": 3.0, "conditioning": "both", "floor": 0.0},
    "SeqTIS": {"cap": 2.0, "conditioning": "both"},
    "TRM": {"conditioning": "both", "delta": 0.05},
    "TRMMean": {"conditioning": "both", "delta": 0.001},
    "TokenMIS": {"cap": 3.0, "conditioning": "both", "floor": 0.0},
    "TokenTIS": {"cap": 2.0, "conditioning": "both"},
    "bootstrap_best_worst": {"delta": "1/20", "replicates": 1000, "seed": 0},
    "carm_bound": {"band": BAND, "severity": 0.0},
    "clipped_surrogate": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, "guard": 20.0},
    "equality_response": {"band": BAND},
    "finite_T_bound": {"band": BAND},
    "geomean_witness": {"T": 2, "band": BAND, "severity": 0.0},
    "group_advantages": {"scale": "group", "eps": 0.0},
    "log_ratio": {"clip": 20.0, "nonfinite": "reject"},
    "majority_at_k": {"replicates": 1000, "seed": 0},
    "masked_loss": {
        "normalize": "fixed",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual_clip": 3.0,
        "ratio": "token",
        "aggregate": "token",
    },
    "max_violations": {"band": BAND},
    "mean_interval": {"delta": "1/20"},
    "noise_floor": {"taus": (1.02, 1.025, 1.03, 1.04)},
    "one_sided_bounds": {"band": BAND},
    "sampling_estimate": {"statistic": "pass", "delta": "1/20"},
    "severity_bound": {"band": BAND},
    "signed_mean_bound": {"band": BAND},
    "tau_for_certificate": {"band": BAND},
    "testing.check_certificate": {"band": BAND, "max_examples": 500},
    "testing.check_mask": {"max_examples": 200},
    "testing.check_mask_inclusion": {"max_examples": 500},
    "testing.check_sub_additivity": {"cancels": False, "max_examples": 300},
    "threshold_sweep": {"band": BAND},
}


def public_callables():
    """Name -> public function, class, or method of a public class."""
    modules = [("", carm_core, carm_core.__all__), ("testing.", carm_core.testing, carm_core.testing.__all__)]
    found = {prefix + name: getattr(module, name) for prefix, module, names in modules for name in names}
    found = {name: thing for name, thing in found.items() if inspect.isfunction(thing) or inspect.isclass(thing)}
    methods = {
        f"{name}.{own}": method
        for name, thing in found.items()
        if inspect.isclass(thing)
        for own, method in vars(thing).items()
        if inspect.isfunction(method) and not own.startswith("_")
    }
    return found | methods


def test_defaults_of_every_public_callable():
    signatures = {name: inspect.signature(thing).parameters.values() for name, thing in public_callables().items()}
    found = {name: {p.name: p.default for p in ps if p.default not in (p.empty, None)} for name, ps in signatures.items()}
    found = {name: defaults for name, defaults in found.items() if defaults}
    assert found == DEFAULTS
    for name, defaults in DEFAULTS.items():
        assert [type(found[name][key]) for key in defaults] == [type(value) for value in defaults.values()], name


@pytest.mark.parametrize("kind", [thing for thing in public_callables().values() if is_dataclass(thing)], ids=lambda kind: kind.__name__)
def test_results_and_rules_cannot_be_changed_and_compare_by_value(kind):
    assert kind.__dataclass_params__.frozen and kind.__dataclass_params__.eq
