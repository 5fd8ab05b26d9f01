"""Sampling statistics: what does a prompt's set of n sampled responses say about k of them?

With replacement (the bootstrap's expectation, Eqs. 73 and 74 of the CARM paper) and without (the unbiased pass@k and all@k). All take c
correct of n sampled and work on whole arrays of prompts; a mean over prompts with an interval is `sampling_estimate`.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from ._checks import check_count


def _counts(c: Any, n: Any, k: Any, *, most: bool) -> tuple[Any, Any, int]:
    correct, drawn = np.broadcast_arrays(np.asarray(c), np.asarray(n))
    for name, value in (("c", correct), ("n", drawn)):
        if value.dtype.kind not in "iub":
            raise ValueError(f"{name}: got dtype {value.dtype}; need integers; because it counts responses")
    if not bool((drawn >= 1).all()):
        raise ValueError(f"n: got {drawn.min()}; need >= 1; because a share of no responses is undefined")
    if not bool(((correct >= 0) & (correct <= drawn)).all()):
        raise ValueError("c: got a count below 0 or above n; need 0 <= c <= n; because c of the n responses are correct")
    k = check_count("k", k, "that many responses are drawn")
    if most and drawn.size and k > drawn.min():
        raise ValueError(f"k: got {k}; need <= {drawn.min()}; because drawing without replacement cannot exceed n")
    return correct.astype(np.int64), drawn.astype(np.int64), k


def best_of_k(c: Any, n: Any, k: int) -> Any:
    """1 - (1 - c/n)^k: the chance that at least one of k responses drawn with replacement from the n is correct.

    The expectation of the bootstrap that Table 5 averages. Biased downwards for the policy's own pass@k; see `pass_at_k`.

    Args: c, n: integers or integer arrays (broadcast), 0 <= c <= n, n >= 1. k: integer >= 1. Returns: float64 of the broadcast shape.
    Raises: ValueError for counts or k out of range. Source: CARM, Eq. 73.

    >>> float(best_of_k(1, 16, 2)) == 31 / 256
    True
    """
    correct, drawn, k = _counts(c, n, k, most=False)
    return 1.0 - ((drawn - correct) / drawn) ** k


def worst_of_k(c: Any, n: Any, k: int) -> Any:
    """(c/n)^k: the chance that all of k responses drawn with replacement from the n are correct.

    Non-increasing in k, strictly so for 0 < c < n. Biased upwards for the policy's own; see `all_at_k`.

    Args: as `best_of_k`. Raises: ValueError for counts or k out of range. Source: CARM, Eq. 74.

    >>> float(worst_of_k(1, 16, 2)) == 1 / 256
    True
    """
    correct, drawn, k = _counts(c, n, k, most=False)
    return (correct / drawn) ** k


def _hypergeometric(chosen: Any, drawn: Any, k: int) -> Any:
    """C(chosen, k) / C(drawn, k), from exact integers, once per distinct pair."""
    pairs, where = np.unique(np.stack([chosen.ravel(), drawn.ravel()]), axis=1, return_inverse=True)
    table = [float(Fraction(math.comb(int(a), k), math.comb(int(b), k))) for a, b in pairs.T]
    return np.asarray(table, dtype=np.float64)[where.ravel()].reshape(chosen.shape)


def pass_at_k(c: Any, n: Any, k: int) -> Any:
    """1 - C(n - c, k) / C(n, k): unbiased for the chance that at least one of k fresh responses is correct.

    Args: as `best_of_k`, and k <= n. Raises: ValueError for counts or k out of range. Source: Chen et al. 2021 (arXiv 2107.03374), Eq. 1.

    >>> float(pass_at_k(2, 4, 2)) == 5 / 6
    True
    """
    correct, drawn, k = _counts(c, n, k, most=True)
    return 1.0 - _hypergeometric(drawn - correct, drawn, k)


def all_at_k(c: Any, n: Any, k: int) -> Any:
    """C(c, k) / C(n, k): unbiased for the chance that all of k fresh responses are correct (pass^k).

    Args: as `best_of_k`, and k <= n. Raises: ValueError for counts or k out of range. Source: Yao et al. 2024 (arXiv 2406.12045).

    >>> float(all_at_k(2, 4, 2)) == 1 / 6
    True
    """
    correct, drawn, k = _counts(c, n, k, most=True)
    return _hypergeometric(correct, drawn, k)


def majority_vote(codes: Any, gold: Any) -> Any:
    """Chance that the most frequent answer of each prompt is the gold one, ties broken at random: 1/(number tied) if gold is one.

    Args:
        codes: (P, n) integer answer codes; -1 (unparsable) casts no vote.
        gold: (P,) codes of the right answers, >= 0.

    Returns: (P,) float64; 0 for a prompt without any vote.
    Raises: ValueError for shapes that differ, codes that are not integers or a negative gold. Source: self-consistency (arXiv 2203.11171).

    >>> majority_vote(np.array([[0, 0, 1], [0, 1, -1], [-1, -1, -1]]), np.array([0, 1, 0])).tolist()
    [1.0, 0.5, 0.0]
    """
    votes, right = _votes(codes, gold)
    return np.array([_credit(_tally(row), int(g))[0] for row, g in zip(votes, right, strict=True)], dtype=np.float64)


def majority_at_k(codes: Any, gold: Any, k: int, *, replicates: int = 1000, seed: int = 0) -> Any:
    """Bootstrap mean of `majority_vote` over k responses drawn with replacement from the n of each prompt, (P,).

    Args:
        codes, gold: as `majority_vote`.
        k: responses a vote has, >= 1.
        replicates: bootstrap replicates; the Monte Carlo error of a prompt is at most 0.5 / sqrt(replicates).
        seed: of ``numpy.random.default_rng``.

    Raises: ValueError as `majority_vote`, and for k < 1 or replicates < 1. Source: CARM, Appendix G, with the majority as operator.

    >>> majority_at_k(np.array([[0, 0, 0]]), np.array([0]), 5).tolist()
    [1.0]
    """
    votes, right = _votes(codes, gold)
    k, replicates = (check_count(name, x, "that many draws are made") for name, x in (("k", k), ("replicates", replicates)))
    rng, means = np.random.default_rng(seed), []
    for row, g in zip(votes, right, strict=True):
        answers, counts = np.unique(row, return_counts=True)
        drawn = rng.multinomial(k, counts / row.size, size=replicates)
        means.append(float(np.mean(_credit((answers, drawn), int(g)))))
    return np.array(means, dtype=np.float64)


def _votes(codes: Any, gold: Any) -> tuple[Any, Any]:
    votes, right = np.asarray(codes), np.asarray(gold)
    if votes.ndim != 2 or votes.shape[1] < 1 or right.shape != votes.shape[:1]:
        raise ValueError(
            f"gold: got shapes {votes.shape} and {right.shape}; need (P, n) codes, n >= 1, and (P,) gold; because they pair up"
        )
    if votes.dtype.kind not in "iu" or right.dtype.kind not in "iu":
        raise ValueError(f"codes: got dtypes {votes.dtype} and {right.dtype}; need integers; because equal codes are equal answers")
    if bool((right < 0).any()):
        raise ValueError(f"gold: got {right.min()}; need >= 0; because an unparsable answer is no gold answer")
    return votes, right


def _tally(row: Any) -> tuple[Any, Any]:
    answers, counts = np.unique(row, return_counts=True)
    return answers, counts[None, :]


def _credit(tally: tuple[Any, Any], gold: int) -> Any:
    """Per row of counts: 1 / (number of answers tied for the most votes) if gold is one of them."""
    answers, counts = tally
    counts = np.where(answers < 0, 0, counts)
    tied = (counts == counts.max(axis=1, keepdims=True)) & (counts > 0)
    return (tied & (answers == gold)).any(axis=1) / np.maximum(tied.sum(axis=1), 1)
