"""Coverage on real responses: calibrate on one half of a model's prompts, count on the other, many times over; and under shift.

The numbers of one calibration scatter (sd about 2.8 points at n = 200 and 400 test prompts), so the mean over many random splits of
one table of responses is reported, with the spread of a single one beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import arithmetic
from .source import Source, Variant

__all__ = ["DELTA", "DOMAINS", "GRID", "RULES", "SOURCE"]

DELTA = "3/25"
GRID = (2, 4, 8, 16, 32)
RULES = ("per_budget", "bonferroni", "max_rank")
#: Domain of Table 6 -> digits of the additions that stand in for it.
DOMAINS = {"GSM8K": (1, 2, 3), "MATH-Algebra": (1, 2), "MATH-500": (2, 3), "GPQA-Diamond": (3,)}
SIZES = {
    "small": {"prompts": 1200, "splits": 200, "n_calibration": 200, "n_test": 400},
    "tiny": {"prompts": 60, "splits": 4, "n_calibration": 20, "n_test": 20},
}


def table(digits: tuple[int, ...], prompts: int, seed: int) -> Any:
    """``Outcomes`` of 32 responses of the embedded model to each of ``prompts`` prompts."""
    from conformal_core import Outcomes, encode_answers, prompt_ids

    from .. import models
    from ..evaluate import sample_texts

    model, tokenizer = models.load("embedded")
    rows = arithmetic.make_problems(prompts, seed, digits, pool="fresh")
    texts = sample_texts(model, tokenizer, [r["prompt"] for r in rows], GRID[-1], seed=seed)
    codes, gold = encode_answers([[arithmetic.extract_answer(t) for t in row] for row in texts], [r["answer"] for r in rows])
    assert gold is not None
    return Outcomes(prompt_ids([r["prompt"] for r in rows]), codes == gold[:, None], None, codes, gold)


def _covered(pool: Any, score: Any, calibration: np.ndarray, test: np.ndarray, rule: str, u: np.ndarray, target: Any = None) -> np.ndarray:
    """``(n_test, M)``: whether the gold answer is in the set, calibrated on ``pool`` and tested there or on ``target``."""
    from conformal_core import calibrate_thresholds

    scores = score.gold_scores(pool.take(calibration), GRID, u[calibration])
    thresholds = calibrate_thresholds(scores, GRID, DELTA, rule)
    tested = pool if target is None else target[0]
    coins = u if target is None else target[1]
    return score.gold_scores(tested.take(test), GRID, coins[test]) <= np.asarray(thresholds.q)


def run(variant: str, seed: int, scale: str, folder: Path) -> dict[str, Any]:
    """Coverage per budget and at all budgets together, one U per prompt or a fresh one per budget; or under shift."""
    from conformal_core import APS, uniforms

    s, score = SIZES[scale], APS()
    pool = table(DOMAINS["GSM8K"], s["prompts"], seed)
    u = uniforms(pool.prompt_ids, seed=seed, stream="coverage")
    rng = np.random.default_rng(seed)
    splits = [rng.permutation(pool.n) for _ in range(s["splits"])]
    cut, end = s["n_calibration"], s["n_calibration"] + s["n_test"]
    if variant == "joint":
        out: dict[str, Any] = {"pass1": float(pool.passes.mean())}
        for rule in RULES:
            hits = [_covered(pool, score, order[:cut], order[cut:end], rule, u) for order in splits]
            each = np.array([h.mean(0) for h in hits])
            out[rule] = {"per_budget": each.tolist(), "joint": [float(h.all(1).mean()) for h in hits]}
        return out
    target = table(DOMAINS[variant], s["prompts"], seed + 1)
    coins = uniforms(target.prompt_ids, seed=seed + 1, stream="coverage")
    order = [rng.permutation(target.n) for _ in splits]
    hits = [
        _covered(pool, score, a[:cut], (a[cut:end] if variant == "GSM8K" else b[: s["n_test"]]), "per_budget", u,
                 None if variant == "GSM8K" else (target, coins))
        for a, b in zip(splits, order, strict=True)
    ]  # fmt: skip
    return {
        "coverage": [float(h[:, -1].mean()) for h in hits],
        "tv": _tv(score, pool, u, target, coins),
        "pass1": float(target.passes.mean()),
    }


def _tv(score: Any, a: Any, ua: np.ndarray, b: Any, ub: np.ndarray) -> float:
    """Total variation between the laws of the score at ``K_max``, ten equal bins of [0, 1): a lower estimate of the true one."""
    laws = []
    for o, u in ((a, ua), (b, ub)):
        laws.append(
            np.histogram(score.gold_scores(o, GRID[-1:], u)[:, 0], np.append(np.linspace(0, 1, 11)[:-1], [1 - 1e-12, 1.001]))[0] / o.n
        )
    return float(np.abs(laws[0] - laws[1]).sum() / 2)


def settings(scale: str) -> dict[str, Any]:
    """Held equal over all variants."""
    return SIZES.get(scale, {"configurations": "as shipped"}) | {"delta": DELTA, "grid": list(GRID)}


_WHY = "the script of the coverage check is not in the paper; sample 32 responses of every calibration and test prompt of a trained model"
SOURCE = Source("coverage", {"joint": Variant(0.6, why=_WHY), **{d: Variant(0.7, why=_WHY) for d in DOMAINS}}, settings, run)
