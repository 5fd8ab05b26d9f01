"""Five figures of the ledger, drawn from the library's own laws."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from carm_core import carm_score, geomean_score
from conformal_core import APS, ReleasedAPS, Score, conformal_quantile, conformal_rank, first_success_cdf

from .laws import GRID, aps_quantile, groups, rate

INK, RED, BLUE, GREY = "#1c1e21", "#c0392b", "#1f6fb2", "#8a9099"


def coverage_with_ties(ax: Any) -> None:
    """A3: first success, p ~ Beta(1.14, .86), delta = .12."""
    from scipy.stats import binom

    sizes, levels = np.arange(9, 201), Fraction("0.12")
    for k, colour in zip((2, 4, 8, 32), ("#b8cfe5", "#7fb0d8", BLUE, INK), strict=True):
        cdf = np.append([float(first_success_cdf(j, "1.14", "0.86")) for j in range(1, k)], 1.0)
        law = [binom.sf(conformal_rank(int(n), levels) - 1, n, cdf) for n in sizes]
        ax.plot(sizes, [float(np.diff(below, prepend=0.0) @ cdf) for below in law], color=colour, label=f"k = {k}")
    ax.fill_between(sizes, 0.88, 0.88 + 1 / (sizes + 1), color=RED, alpha=0.25, lw=0, label="both bounds of Theorem 2")
    ax.set(xlabel="calibration prompts n", ylabel="coverage", ylim=(0.86, 1.01))
    ax.legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1.0, 0.68))


def rising_thresholds(ax: Any) -> None:
    """A13: APS thresholds against the budget."""
    for p, d, colour in (("2/5", "7/10", RED), ("3/5", "12/25", BLUE), ("1", "3/25", INK)):
        q = [float(aps_quantile(Fraction(d), k, rate(p))) for k in GRID]
        ax.plot(GRID, q, "o-", color=colour, label=f"p = {p}, 1 - delta = {float(1 - Fraction(d)):.2g}")
    ax.set_xscale("log", base=2)
    ax.set(xticks=GRID, xticklabels=GRID, xlabel="budget k", ylabel="threshold q_k", ylim=(0, 1))
    ax.legend(frameon=False, fontsize=8)


def released_wrong_stops(ax: Any) -> None:
    """F1: half the prompts always right, half with one wrong answer of probability w; delta = .12, k = 2."""
    share = np.linspace(0, 1, 41)
    codes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    o = groups(codes)
    for score, name, colour in ((ReleasedAPS(), "released rule", RED), (APS(), "Eq. 8, no stop at q = 1", BLUE)):
        wrong = []
        for w in share:
            law = 0.5 * np.array([1.0, 0, 0, 0]) + 0.5 * np.array([(1 - w) ** 2, w * (1 - w), w * (1 - w), w**2])
            q = threshold(score, law, o)
            wrong.append(
                float(np.mean([law @ ((a := score.stop(o, 2, q, np.full(4, u)))[0] & (a[1] == 1)) for u in np.linspace(0.02, 0.98, 25)]))
            )
        ax.plot(share, wrong, color=colour, label=name)
    ax.axhline(0.12, color=GREY, lw=1, ls="--")
    ax.text(0.02, 0.13, "delta", color=GREY, fontsize=8)
    ax.set(xlabel="probability of the wrong answer", ylabel="P(stop at k = 2 and wrong)")
    ax.legend(frameon=False, fontsize=8)


def threshold(score: Score, law: np.ndarray, o: Any) -> float:
    """Limit threshold at delta = .12 over a fine grid of U."""
    u = (np.arange(400) + 0.5) / 400
    s = np.concatenate([score.gold_scores(o, (2,), np.full(4, x))[:, 0] for x in u])
    order = np.argsort(s, kind="stable")
    weight = np.cumsum(np.tile(law, 400)[order]) / 400
    return float(s[order][min(np.searchsorted(weight, 0.88 - 1e-12), len(s) - 1)])


def leak(ax: Any) -> None:
    """G5: a policy that keeps what it learnt from the calibration prompts and forgets the rest, recalibrated on the same prompts."""
    rng, steps, n, k = np.random.default_rng(0), np.array([0.95, 0.8, 0.6, 0.4, 0.2, 0.05]), 50, 8

    def scores(p: np.ndarray) -> np.ndarray:
        hits = rng.random((len(p), k)) < p[:, None]
        return APS().gold_scores(groups(np.where(hits, 0, 1)), (k,), rng.random(len(p)))[:, 0]

    for same, name, colour in ((False, "fresh calibration prompts", BLUE), (True, "the same prompts at every checkpoint", RED)):
        cover = []
        for p in steps:
            hits = []
            for _ in range(40):
                q = conformal_quantile(scores(np.full(n, steps[0] if same else p)), "0.12").value
                hits.append((scores(np.full(200, p)) <= q).mean())
            cover.append(np.mean(hits))
        ax.plot(range(len(steps)), cover, "o-", color=colour, label=name)
    ax.axhline(0.88, color=GREY, lw=1, ls="--")
    ax.set(xlabel="checkpoint", ylabel="coverage of a fresh prompt", ylim=(0, 1.03))
    ax.legend(frameon=False, fontsize=8, loc="lower left")


def cancellation(ax: Any) -> None:
    """M1: log-ratios a, -a, a, -a, ..."""
    size = np.linspace(0, 1.5, 60)
    z = size[:, None] * np.array([1.0, -1.0] * 4)
    ones = np.ones(z.shape)
    ax.plot(size, np.exp(carm_score(z, ones)), color=BLUE, label="CARM score")
    ax.plot(size, np.exp(geomean_score(z, ones)), color=RED, label="GeoMean score")
    ax.axvspan(-np.log(0.8), 1.5, color=GREY, alpha=0.15, lw=0)
    ax.text(0.55, 0.45, "every ratio outside [0.8, 1.28]", fontsize=8, color=INK)
    ax.set(xlabel="size of the log-ratios, nats", ylabel="score", ylim=(0, 4.6))
    ax.legend(frameon=False, fontsize=8, loc="upper left")


FIGURES = {
    "coverage": (
        coverage_with_ties,
        "Ties add coverage (A3, A5)",
        "First-success scores, pass rates Beta(1.14, .86), delta = .12. The red band is where "
        "Theorem 2 puts the coverage of untied scores; with ties it lies above at small k.",
    ),
    "thresholds": (
        rising_thresholds,
        "APS thresholds rise with the budget (A13)",
        "Limit thresholds for one pass rate and one wrong answer. The paper says q_k does not increase.",
    ),
    "released": (
        released_wrong_stops,
        "Wrong stops of the released rule (F1)",
        "Half the prompts always right, half with one wrong answer. At q = 1 the released rule stops on "
        "unanimity, which no calibration covers.",
    ),
    "leak": (
        leak,
        "Thresholds leak over checkpoints (G5)",
        "Policies that forget everything but the calibration prompts. Recalibrating on the same prompts sees "
        "nothing of it; fresh prompts do. APS, k = 8, n = 50, delta = .12.",
    ),
    "cancellation": (
        cancellation,
        "Log-ratios cancel (M1)",
        "A response with log-ratios a, -a, a, -a, ...: the geometric mean stays 1 however far every token drifts.",
    ),
}


def draw(folder: Path) -> list[dict[str, str]]:
    """PNG files in ``folder``; per figure its file, title, caption and base64 text."""
    import base64

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = []
    for name, (plot, title, caption) in FIGURES.items():
        figure, ax = plt.subplots(figsize=(5.6, 3.4), dpi=110)
        plot(ax)
        ax.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        path = folder / f"claims_{name}.png"
        figure.savefig(path, metadata={"Software": None})
        plt.close(figure)
        drawn.append({"file": path.name, "title": title, "caption": caption, "data": base64.b64encode(path.read_bytes()).decode()})
    return drawn
