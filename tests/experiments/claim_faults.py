"""Faults to plant in the implementation under the claims ledger: each returns nothing and is undone by pytest's monkeypatch."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

import conformal_core as cc
from conformal_core.outcomes import UNPARSABLE
from experiments.claims import printed

PACKAGES = ("conformal_core", "carm_core", "experiments.claims")


def everywhere(patch, original, new):
    """Put ``new`` in place of ``original`` in every module that holds it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    patch.setattr(module, attribute, new)


def rank(change):
    real = cc.conformal_rank
    return lambda patch: everywhere(patch, real, lambda n, delta: change(real(n, delta), n, delta))


def function(original, make):
    return lambda patch: everywhere(patch, original, make(original))


def method(owner, name, make):
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


def number(name, value):
    """A printed number (a top-level name of ``printed``) replaced."""
    return lambda patch: patch.setattr(printed, name, value)


def entry(name, key, column, value):
    """One cell of a printed table replaced."""

    def plant(patch):
        table = dict(getattr(printed, name))
        row = list(table[key]) if not isinstance(table[key], dict) else dict(table[key])
        row[column] = value
        table[key] = tuple(row) if isinstance(row, list) else row
        patch.setattr(printed, name, table)

    return plant


def strict_quantile(real):
    def worse(scores, delta):
        found = real(scores, delta)
        s = np.sort(np.asarray(scores, float))
        return replace(found, value=float(s[max(found.rank - 2, 0)])) if found.attainable else found

    return worse


def unattainable_is_the_largest(real):
    def worse(scores, delta):
        found = real(scores, delta)
        return found if found.attainable else replace(found, value=float(np.max(scores)))

    return worse


def failures_succeed(real):
    return lambda self, outcomes, grid, u: np.where(np.isposinf(s := real(self, outcomes, grid, u)), 1.0, s)


def stop_always(real):
    def worse(self, outcomes, k, q, u):
        n = outcomes.n
        return np.ones(n, bool), np.zeros(n, np.int64) if self.needs_answers else np.full(n, UNPARSABLE)

    return worse


def unsampled_gold_is_free(real):
    return lambda self, outcomes, grid, u: np.where((s := real(self, outcomes, grid, u)) >= 1, 0.0, s)


def mass_above_dropped(real):
    """The score of a sampled gold without G: u * phat only."""

    def worse(self, outcomes, grid, u):
        s = real(self, outcomes, grid, u)
        hits = np.stack([(outcomes.codes[:, :k] == outcomes.gold[:, None]).mean(axis=1) for k in grid], axis=1)
        return np.where(hits > 0, np.asarray(u)[:, None] * hits, s)

    return worse


def one_stops(real):
    """q >= 1 allowed to stop: unanimous prompts do."""

    def worse(self, outcomes, k, q, u):
        if q < 1:
            return real(self, outcomes, k, q, u)
        codes = outcomes.codes[:, :k]
        same = (codes == codes[:, :1]).all(axis=1)
        return same, np.where(same, codes[:, 0], UNPARSABLE)

    return worse


def level_ignored(real):
    """Bonferroni that forgets to divide."""
    return lambda scores, grid, delta, multiplicity="per_budget", *a, **k: real(
        scores, grid, delta, "per_budget" if multiplicity == "bonferroni" else multiplicity, *a, **k
    )


def joint_is_per_budget(real):
    return lambda scores, grid, delta, multiplicity="per_budget", *a, **k: real(
        scores, grid, delta, "bonferroni" if multiplicity == "max_score" else multiplicity, *a, **k
    )


def per_budget_is_wider(real):
    return lambda scores, grid, delta, multiplicity="per_budget", *a, **k: real(
        scores, grid, delta, "max_score" if multiplicity == "per_budget" else multiplicity, *a, **k
    )


def draws_one_less(real):
    return lambda self, outcomes: np.maximum(real(self, outcomes) - 1, 0)
