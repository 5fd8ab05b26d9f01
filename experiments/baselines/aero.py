"""AERO: screen every prompt, rescue the all-wrong ones, balance the hard ones, and give groups without variance a posterior baseline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformal_core import Outcomes, RolloutPolicy, uniforms

from .common import at_least, counts, grpo_advantages, within

__all__ = ["AERO"]


class AERO(RolloutPolicy):
    r"""Screening, rescue, rebalancing and a Bayesian baseline.

    With ``u = c / n`` after the ``n`` screening responses:

    * ``u <= rescue``: ``n_extra`` further responses at a time until the first success or ``n_max``;
    * ``u < 1/2``: all ``c`` successes stay and ``ceil(kappa c)`` failures, drawn at random;
    * otherwise everything stays;
    * a group that ends without variance keeps ``n_degenerate`` responses with advantage ``(r - u~) / sd``, where
      ``u~ = (c + a) / (n + a + b)`` and ``sd^2 = u~ (1 - u~)``, *not* centred again.

    Groups with variance get the GRPO advantage over what they keep.

    Parameters
    ----------
    n, n_extra, n_max : int
        Screening size, rescue increment, most responses of a rescued prompt.
    rescue : float
        Largest screening rate that is rescued.
    kappa : float
        Failures kept per success below a rate of one half.
    prior : (float, float)
        ``(a, b)`` of the Beta prior.
    n_degenerate : int
        Responses kept of a group without variance; 0 drops it.
    seed : int
        Key of the random choice of failures.

    Notes
    -----
    Source: AERO (arXiv 2602.14338); no official code.  Open there and chosen here: screening with 8 and rescue up to 16 (the values of the
    released C-GRPO comparison); the scale of the posterior advantage (the predictive standard deviation); no transfer of the saved budget
    between prompts.  The C-GRPO comparison's version replaces rewards by the constant ``u~``, which centring turns into zero advantages
    at full cost; here the advantage of such a group is not centred, so that it does not vanish.

    Examples
    --------
    >>> import numpy as np
    >>> rule = AERO(4, n_extra=2, n_max=8)
    >>> rule.more(Outcomes(np.arange(2, dtype=np.uint64), np.array([[0, 0, 0, 0], [0, 1, 0, 0]], bool)))
    array([2, 0])
    """

    def __init__(
        self,
        n: int = 8,
        *,
        n_extra: int = 2,
        n_max: int = 16,
        rescue: float = 0.0,
        kappa: float = 1.0,
        prior: tuple[float, float] = (1.0, 1.0),
        n_degenerate: int = 4,
        seed: int = 0,
    ) -> None:
        self.n = at_least("n", n, 2, "a rate is read off the screening responses")
        self.n_extra = at_least("n_extra", n_extra, 1, "a rescue draws something")
        self.k_max = at_least("n_max", n_max, self.n, "a rescue adds to the screening")
        self.rescue = within("rescue", rescue, 0, 0.5, "only hard prompts are rescued")
        self.kappa = within("kappa", kappa, 0, float("inf"), "it is a ratio of counts")
        if min(prior) <= 0:
            raise ValueError(f"prior: got {prior}; need two positive numbers; because they are pseudo-counts of a Beta prior")
        self.prior = (float(prior[0]), float(prior[1]))
        self.n_degenerate = at_least("n_degenerate", n_degenerate, 0, "it counts responses")
        self.seed = int(seed)

    def __repr__(self) -> str:
        return f"AERO({self.n}, n_extra={self.n_extra}, n_max={self.k_max})"

    def first(self, prompt_ids: NDArray[np.uint64], step: int) -> NDArray[np.int64]:
        return np.full(len(prompt_ids), self.n, np.int64)

    def more(self, outcomes: Outcomes) -> NDArray[np.int64]:
        screened = (outcomes.passes & outcomes.live)[:, : self.n].sum(1)
        later = (outcomes.passes & outcomes.live)[:, self.n :].any(1)
        rescued = (screened <= self.rescue * self.n) & ~later & (outcomes.drawn >= self.n)
        return np.where(rescued, np.clip(self.k_max - outcomes.drawn, 0, self.n_extra), 0).astype(np.int64)

    def keep(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        c, n = counts(outcomes)
        order = self._shuffled(outcomes)
        wrong = outcomes.live & ~outcomes.passes
        rank = np.where(wrong, order, np.inf).argsort(1, kind="stable").argsort(1, kind="stable")
        few = wrong & (rank < np.ceil(self.kappa * c)[:, None])
        hard = (c > 0) & (2 * c < n)
        flat = (c == 0) | (c == n)
        kept = np.where(hard[:, None], (outcomes.passes & outcomes.live) | few, outcomes.live)
        live_rank = np.where(outcomes.live, order, np.inf).argsort(1, kind="stable").argsort(1, kind="stable")
        return np.where(flat[:, None], outcomes.live & (live_rank < self.n_degenerate), kept)

    def _shuffled(self, outcomes: Outcomes) -> NDArray[np.float64]:
        """``(n, width)`` uniforms, one per prompt and column."""
        columns = [
            uniforms(outcomes.prompt_ids, seed=self.seed, step=outcomes.step, stream=f"aero/{j}") for j in range(max(outcomes.width, 1))
        ]
        return np.stack(columns, 1)[:, : outcomes.width]

    def advantages(self, outcomes: Outcomes) -> NDArray[np.float64]:
        c, n = counts(outcomes)
        kept = self.keep(outcomes)
        a, b = self.prior
        mean = ((c + a) / (n + a + b))[:, None]
        posterior = np.where(kept, (outcomes.passes - mean) / np.sqrt(mean * (1 - mean)), 0.0)
        flat = ((c == 0) | (c == n))[:, None]
        return np.where(flat, posterior, grpo_advantages(outcomes, kept))
