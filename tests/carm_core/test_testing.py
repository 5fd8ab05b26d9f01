"""The public checks pass on the rules of this package and fail on broken ones."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from carm_core import CARM, OPSM, TRM, GeoMean, MeanExpAbs, NoMask, TRMMean, carm_score, geomean_score, mean_k2, signed_mean
from carm_core.testing import (
    _batch,
    _just_kept,
    _searching,
    _spread,
    check_certificate,
    check_mask,
    check_mask_inclusion,
    check_sub_additivity,
)

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


# ---- what is searched, and what is said of it


def test_batches_written_out():
    rows = [[1.0], [2.0, 3.0]]
    for (z, mask), want, live in (
        (_batch(rows), [[1, 0], [2, 3]], [[1, 0], [1, 1]]),
        (_batch(rows, 5.0, 1), [[1, 5, 5], [2, 3, 5]], [[1, 0, 0], [1, 1, 0]]),
        (_spread(rows, 7.0), [[7, 1, 7, 7], [7, 2, 7, 3]], [[0, 1, 0, 0], [0, 1, 0, 1]]),
    ):
        assert (z.tolist(), mask.tolist()) == (want, live)


def test_the_largest_multiple_that_is_kept():
    row = [0.25, -0.5]

    def largest(rule):
        return _just_kept(lambda z, mask: rule.keep(z, mask, -np.ones(len(z))), row)

    assert largest(NoMask()) == pytest.approx([64 * (1 - 1e-9) * x for x in row], rel=1e-10)  # the search goes up to 64 times
    for tau in (1.02, 1.5, 30.0):
        kept = largest(CARM(tau))
        assert kept == pytest.approx([x * math.log(tau) / 0.375 for x in row], rel=2e-9)
        assert CARM(tau).keep(np.array([kept]), np.ones((1, 2))).all()
    assert largest(CARM(1.0)) == row  # no multiple but 0


def test_responses_just_past_an_edge_of_every_length_and_count_written_out():
    seen, rule = set(), CARM(1.02)

    def keep(z, mask):
        if len(z) == 1 and z.shape == mask.shape and mask.all():
            count = int((z[0] != 0).sum())
            if count and (z[0, :count] == z[0, 0]).all():
                seen.add((float(z[0, 0]), z.shape[1], count))
        return rule.keep(z, mask)

    check_certificate(keep, rule.certificate(), max_examples=1)
    edges = (math.log(0.8) - 1e-9, math.log(1.28) + 1e-9)
    lengths = [*range(1, 33), 64, 257, 1024]
    want = {(e, n, c) for e in edges for n in lengths for c in (1, 2, 3, 5, 8, n // 8, n // 2, n) if 0 < c <= n}
    assert {one for one in seen if one[0] in edges} == want


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (overwrites, "the mask writes into its arguments"),
        (
            lambda z, m: good(z, m) & (np.arange(len(z)) < 1),
            r"^\[\[.*\], \[.*\]\]: (the order of the responses matters|kept .* one by one)",
        ),
        (lambda z, m: good(z, m) & (len(z) > 1), r"^\[\[.*\], \[.*\]\]: kept \[True, True\] together, \[False, False\] one by one"),
        (lambda z, m: good(z, m) & ((m == 0).sum(axis=1) < 3), r"^\[\[.*\]\]: padding that holds 5.0 changes the decision"),
        (lambda z, m: good(z, m) & ~np.isnan(z).any(axis=1), r"^\[\[.*\]\]: padding that holds nan changes the decision"),
        (lambda z, m: good(z, m) & (m[:, 0] > 0), r"^\[\[.*\]\]: tokens between that do not count and hold 5.0 change it"),
        (lambda z, m: good(z, m) & ~np.isnan(z[:, 0]), r"^\[\[.*\]\]: tokens between that do not count and hold nan change it"),
        (lambda z, m: ~(abs(masked(z, m)).sum(axis=1) / m.sum(axis=1) > 0.02), r"^\[nan\]: kept although a live log-ratio is not finite"),
        (Tires(), "decided otherwise when asked again later"),
        (lambda z, m: good(z, m)[:, None], r"^the mask has shape \(1, 1\) for 1 responses; need \(1,\)"),
        (lambda z, m: np.bool_(False), r"^the mask has shape \(\) for 1 responses; need \(1,\)"),
        (lambda z, m: good(z, m) * 0.5, r"^the mask holds \[0\.5\]; need True or False"),
    ],
)
def test_the_one_thing_that_is_wrong_is_named(mask, words):
    with pytest.raises(AssertionError, match=words):
        check_mask(mask, max_examples=100)


@pytest.mark.parametrize(
    ("rule", "name", "value", "words"),
    [
        (CARM(1.3), "p_out", 0.5, "p_out"),
        (CARM(1.3), "p_minus", 0.5, "p_minus"),
        (CARM(1.3), "p_plus", 0.5, "p_plus"),
        (CARM(1.02), "p_out", CARM(1.02).certificate().p_out - 0.003, "p_out"),
        (TRM(0.05), "severity_minus", 0.05, "severity_minus"),
        (TRM(0.05), "severity_plus", 0.05, "severity_plus"),
        (TRMMean(0.001), "budget", 0.0009, "spend"),
        (CARM(1.02), "budget", math.log(1.018), "spend"),
        (CARM(1.02), "cost_plus", 1.5, "spend"),
        (CARM(1.02), "cost_minus", 1.5, "spend"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_a_certificate_is_held_to_every_field(rule, name, value, words):
    certificate = rule.certificate()
    check_certificate(rule, certificate, max_examples=50)
    with pytest.raises(AssertionError, match=f"accepted .*{words}"):
        check_certificate(rule, replace(certificate, **{name: value}), max_examples=300)


def test_a_mask_that_counts_tokens_and_not_how_far_they_are_spends_more_than_its_budget():
    low, high = -math.log(0.8), math.log(1.28)

    def counts_only(z, m):
        w = masked(z, m)
        cost = ((w < -low) * low + (w > high) * high).sum(axis=1) / m.sum(axis=1)
        return (cost <= math.log(1.02)) & np.isfinite(w).all(axis=1)

    with pytest.raises(AssertionError, match=r"are accepted and spend .* of 0\.0198\n"):
        check_certificate(counts_only, CARM(1.02).certificate(), max_examples=100)


@pytest.mark.parametrize("witness", [(0.5,), (1.0, 0.1), (1.0, -0.2), (1.0,)])
def test_a_witness_is_kept_and_wholly_outside(witness):
    certificate = GeoMean(1.005).certificate()
    check_certificate(GeoMean(1.005), replace(certificate, witness=(0.5, -0.5)), max_examples=10)
    with pytest.raises(AssertionError, match=r"^the witness \(.*\) is not an accepted response with every ratio outside"):
        check_certificate(GeoMean(1.005), replace(certificate, witness=witness), max_examples=10)


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (signed_mean, "scores .*; need at least 0"),
        (lambda z, m: abs(z).mean(axis=1), "with padding"),
        (lambda z, m: np.sqrt(carm_score(z, m)), r"\|c\| d\(z\)"),
        (lambda z, m: np.sqrt(abs(masked(z, m))).sum(axis=1) ** 2 / m.sum(axis=1), r"d\(y \+ z\) = .* above"),
        (lambda z, m: 1e-4 * carm_score(z, m), "log-ratios cancel"),
        (geomean_score, "cancel"),
    ],
)
def test_what_keeps_a_score_from_being_a_norm_is_named(score, words):
    with pytest.raises(AssertionError, match=words):
        check_sub_additivity(score)


def test_a_check_finds_the_same_counterexample_again():
    how = _searching(17)
    assert (how.max_examples, how.derandomize, how.database, how.deadline) == (17, True, None, None)
