"""The public checks pass on the rules of this package and fail on broken ones."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from carm_core import CARM, OPSM, TRM, GeoMean, MeanExpAbs, NoMask, TRMMean, carm_score, geomean_score, mean_k2, signed_mean
from carm_core.testing import check_certificate, check_mask, check_mask_inclusion, check_sub_additivity

RULES = [CARM(1.02), CARM(1.3), GeoMean(1.005), TRM(0.05), TRMMean(0.001), MeanExpAbs(1.02), NoMask(), OPSM(1e-3)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rules_pass(rule):
    check_mask(rule, max_examples=30)
    for band in ((0.8, 1.28), (0.5, 1.1)):
        check_certificate(rule, band=band, max_examples=100)


@dataclass(frozen=True)
class SignedMean(CARM):
    """Named CARM, compares the signed mean."""

    def accept(self, rows):
        return abs(rows.mean_of(lambda z: z)) <= math.log(self.tau)


@dataclass(frozen=True)
class HalfCost(CARM):
    """Certifies half of what it should."""

    def certificate(self, band=(0.8, 1.28)):
        sound = super().certificate(band)
        return replace(sound, p_out=sound.p_out / 2)


@dataclass(frozen=True)
class HalfBudget(CARM):
    def certificate(self, band=(0.8, 1.28)):
        return replace(super().certificate(band), budget=math.log(self.tau) / 2)


@dataclass(frozen=True)
class WrongWitness(GeoMean):
    def certificate(self, band=(0.8, 1.28)):
        return replace(super().certificate(band), witness=(1.0, -0.5))


@pytest.mark.parametrize("rule", [SignedMean(1.02), HalfCost(1.3), HalfBudget(1.3), WrongWitness(1.005)], ids=lambda r: type(r).__name__)
def test_a_certificate_that_promises_too_much_fails(rule):
    with pytest.raises(AssertionError, match="accepted"):
        check_certificate(rule, max_examples=200)


def masked(z, m):
    return np.where(m > 0, z, 0.0)


BROKEN = {
    "padding in the mean": lambda z, m: abs(masked(z, m)).mean(axis=1) <= 0.02,
    "multiplies by the mask": lambda z, m: (abs(z) * m).sum(axis=1) / m.sum(axis=1) <= 0.02,
    "share of the batch": lambda z, m: (d := abs(masked(z, m)).sum(axis=1) / m.sum(axis=1)) <= np.median(d),
    "first of the batch is kept": lambda z, m: np.arange(len(z)) == 0,
    "NaN passes": lambda z, m: ~(abs(masked(z, m)).sum(axis=1) / m.sum(axis=1) > 0.02),
    "infinity clipped away": lambda z, m: np.nan_to_num(abs(masked(z, m)), nan=9.0, posinf=0.0).sum(axis=1) / m.sum(axis=1) <= 0.02,
}


class Tires:
    """Keeps nothing after some calls."""

    calls = 0

    def __call__(self, z, m):
        self.calls += 1
        return good(z, m) & (self.calls < 300)


def good(z, m):
    return abs(masked(z, m)).sum(axis=1) / m.sum(axis=1) <= 0.02


def overwrites(z, m):
    z[m == 0] = 0.0
    return good(z, m)


def looks_for_nan_at_the_end(z, m):
    w = masked(z, m)
    last = w[np.arange(len(z)), m.sum(axis=1).astype(int) - 1]
    return np.isfinite(last) & (np.nan_to_num(abs(w), nan=0.0, posinf=0.0).sum(axis=1) / m.sum(axis=1) <= 0.02)


BROKEN |= {
    "state over calls": Tires(),
    "writes into its arguments": overwrites,
    "looks for NaN in the last token only": looks_for_nan_at_the_end,
    "live tokens come first": lambda z, m: np.array([abs(row[: int(n)]).mean() <= 0.02 for row, n in zip(z, m.sum(axis=1), strict=True)]),
    "a column": lambda z, m: good(z, m)[:, None],
    "a scalar": lambda z, m: np.bool_(False),
    "weights": lambda z, m: good(z, m) * 0.5,
}


@pytest.mark.parametrize(
    "mask",
    [good, lambda z, m: good(z, m).tolist(), lambda z, m: good(z, m.astype(bool)) * 1.0, lambda z, m: np.zeros(len(z), bool)],
    ids=["good", "a list", "zeros and ones", "nothing"],
)
def test_unusual_masks_pass(mask):
    check_mask(mask, max_examples=30)


@pytest.mark.parametrize(
    "mask",
    [
        lambda z, m: carm_score(z, m) <= 0.0202,  # log 1.02 = .0198
        lambda z, m: (m.sum(axis=1) > 500) | (carm_score(z, m) <= math.log(1.02)),
        lambda z, m: mean_k2(z, m) <= math.log(1.02),
    ],
    ids=["a little loose", "long responses pass", "the mean of squares"],
)
def test_a_mask_that_keeps_more_than_is_certified_fails(mask):
    with pytest.raises(AssertionError, match="accepted"):
        check_certificate(mask, CARM(1.02).certificate(), max_examples=100)


@pytest.mark.parametrize("name", BROKEN)
def test_a_mask_that_is_not_a_function_of_its_response_fails(name):
    with pytest.raises(AssertionError):
        check_mask(BROKEN[name], max_examples=100)


def test_inclusion_holds_one_way_only():
    check_mask_inclusion(CARM(1.02), GeoMean(1.02), max_examples=100)
    check_mask_inclusion(MeanExpAbs(1.02), CARM(1.02), max_examples=100)
    for inner, outer in ((GeoMean(1.02), CARM(1.02)), (CARM(1.0201), CARM(1.02)), (TRM(0.05), CARM(1.02)), (CARM(1.02), TRM(0.05))):
        with pytest.raises(AssertionError, match="not by the outer"):
            check_mask_inclusion(inner, outer)


def test_sub_additivity_tells_norms_from_the_rest():
    check_sub_additivity(carm_score, max_examples=100)
    check_sub_additivity(lambda z, m: np.sqrt((masked(z, m) ** 2).sum(axis=1) / m.sum(axis=1)))
    with pytest.raises(AssertionError, match="with padding"):
        check_sub_additivity(lambda z, m: abs(z).mean(axis=1))
    check_sub_additivity(geomean_score, cancels=True, max_examples=100)
    for score, cancels in ((geomean_score, False), (signed_mean, True), (mean_k2, False), (lambda z, m: np.sqrt(carm_score(z, m)), False)):
        with pytest.raises(AssertionError):
            check_sub_additivity(score, cancels=cancels)


def test_a_callable_needs_a_certificate():
    with pytest.raises(ValueError, match=r"^certificate: got None; need one"):
        check_certificate(lambda z, m: z[:, 0] < 0)
    check_certificate(lambda z, m: carm_score(z, m) <= math.log(1.02), CARM(1.02).certificate(), max_examples=100)
