"""Every loss through verl's own `ppo_loss` against loops of Python floats that share no code with it."""

from tests.carm_verl.build import AGG_MODES, policy_loss  # isort: skip (skips the module where verl is absent)

import math
import random
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils
from verl.utils.metric import Metric, reduce_metrics
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from carm_verl import LOSSES, MaskedPolicyLoss

THRESHOLDS: dict[str, tuple[float | None, ...]] = {
    "carm": (1.02, 1.1), "carm_negative": (1.02,), "geomean": (1.005, 1.02), "trm": (0.001, 0.05), "opsm": (0.002,), "no_mask": (None,),
}  # fmt: skip
Rows = list[list[float]]


def kept(mode: str, z: list[float], advantages: list[float], threshold: Any) -> bool:
    """The rule on one response, from its definition in the papers."""
    if not all(map(math.isfinite, z)):
        return False
    z, n = [max(-20.0, min(20.0, x)) for x in z], len(z)
    negative = sum(advantages) < 0
    match mode:
        case "carm":
            return sum(map(abs, z)) / n <= math.log(threshold)
        case "carm_negative":
            return not negative or sum(map(abs, z)) / n <= math.log(threshold)
        case "geomean":
            return abs(sum(z) / n) <= math.log(threshold)
        case "trm":
            return max(x * x / 2 for x in z) <= threshold
        case "opsm":
            return not (negative and -sum(z) / n > threshold)
    return True


def surrogate(z: float, a: float, low: float, high: float, c: float) -> float:
    """One token of the clipped loss with dual clip."""
    r = math.exp(max(-20.0, min(20.0, z)))
    loss = max(-a * r, -a * max(1 - low, min(1 + high, r)))
    return min(loss, -a * c) if a < 0 else loss


def expected_loss(
    tokens: list[tuple[bool, list[float]]], agg: str, normalize: str, counts: dict[str, Any], scale: int | None, width: int
) -> float:
    """`tokens`: per response (kept, loss of each live token)."""
    live = [(keep, losses) for keep, losses in tokens if losses]
    sequence = agg.startswith("seq")
    weight = [1 if sequence else len(losses) for _, losses in live]
    mine, left = sum(weight), sum(w for w, (keep, _) in zip(weight, live, strict=True) if keep)
    total = sum(sum(losses) / (len(losses) if agg == "seq-mean-token-mean" else 1) for keep, losses in live if keep)
    given = counts["global_batch_size" if sequence else "batch_num_tokens"]
    denominator = 1 if agg == "token-sum" else max(mine if given is None else given, 1)
    if agg == "seq-mean-token-sum-norm":
        denominator *= scale or width
    return total / denominator * counts["dp_size"] * (mine / max(left, 1) if normalize == "retained" else 1)


def worker_batch(old: Rows, advantages: Rows, mask: list[list[int]], counts: dict[str, Any]) -> TensorDict:
    """What verl's engine hands to `ppo_loss`: jagged, tool tokens with mask 0, empty responses included."""

    def jagged(rows: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return tensordict_utils.nested_tensor_from_tensor_list([torch.tensor(row, dtype=dtype) for row in rows])

    data = TensorDict(
        {
            "prompts": jagged([[1, 1]] * len(old), torch.int64), "responses": jagged([[1] * len(row) for row in old], torch.int64),
            "response_mask": jagged(mask, torch.int64), "old_log_probs": jagged(old), "advantages": jagged(advantages),
        },
        batch_size=len(old),
    )  # fmt: skip
    tensordict_utils.assign_non_tensor(data, **counts)
    return data


@pytest.mark.parametrize("mode", LOSSES)
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
@pytest.mark.parametrize("agg", AGG_MODES)
def test_every_loss_is_its_definition(mode: str, normalize: str, agg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip bands, dual clip, counts given or not, ranks, tool tokens, empty responses, per-token advantages, values that are not finite."""
    if agg == "token-sum" and normalize == "retained":
        return
    rng = random.Random(f"{mode} {normalize} {agg}")
    monkeypatch.setitem(POLICY_LOSS_REGISTRY, mode, MaskedPolicyLoss(mode))
    pad = torch.zeros(1, dtype=torch.float64)
    for _ in range(8):
        threshold, scale = rng.choice(THRESHOLDS[mode]), rng.choice([None, 11])
        low, high = rng.choice([(0.2, 0.2), (0.2, 0.28), (0.003, 0.004)])
        c, dp = rng.choice([3.0, 1.5, 1.01]), rng.choice([1, 2, 4])
        counts = {"dp_size": dp, "batch_num_tokens": rng.choice([37, 500]), "global_batch_size": rng.choice([6, 64])}
        if dp == 1:
            counts |= {key: None for key in ("batch_num_tokens", "global_batch_size") if rng.random() < 0.5}
        lengths = [rng.choice([0, 1, 2, 5, 9]) for _ in range(rng.randint(1, 5))] + [3]
        spread = [rng.choice([0.0, 0.01, 0.05, 1.0, 30.0]) for _ in lengths]
        old = [[-3 * rng.random() for _ in range(n)] for n in lengths]
        new = [[x + rng.gauss(0, s) for x in row] for row, s in zip(old, spread, strict=True)]
        advantages = [[a + rng.choice([0, 0.1]) * rng.random() for _ in row] for row in old for a in [rng.choice([0.0, rng.gauss(0, 1)])]]
        mask = [[int(rng.random() > 0.2) for _ in row] for row in old]
        if rng.random() < 0.3:
            rng.choice([old, new])[-1][1] = rng.choice([math.nan, math.inf, -math.inf])
        section = policy_loss(
            mode, {"loss_agg_mode": agg}, normalize=normalize, inert_after=0,
            **({LOSSES[mode].threshold: threshold} if threshold else {}),
        )  # fmt: skip
        config = ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=section, loss_agg_mode=agg, clip_ratio_c=c,
            clip_ratio_low=low, clip_ratio_high=high, loss_scale_factor=scale,
        )  # fmt: skip
        leaves = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in new]
        flat = torch.cat([torch.cat([pad, leaf, pad]) for leaf in leaves])
        loss, metrics = ppo_loss(config, {"log_probs": flat}, worker_batch(old, advantages, mask, counts))
        loss.backward()

        tokens = []
        for o, n, a, m in zip(old, new, advantages, mask, strict=True):
            live = [(y - x, b) for x, y, b, on in zip(o, n, a, m, strict=True) if on]
            keep = not live or kept(mode, [z for z, _ in live], [b for _, b in live], threshold)
            tokens.append((keep, [surrogate(z, b, low, high, c) if keep else 0.0 for z, b in live]))
        expected = expected_loss(tokens, agg, normalize, counts, scale, max(lengths))
        assert loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)
        rejected = sum(not keep for keep, _ in tokens)
        assert metrics["actor/carm/rejected"].aggregate() == rejected
        assert metrics["actor/carm/rejected_tokens"].aggregate() == sum(len(losses) for keep, losses in tokens if not keep)
        assert metrics["actor/carm/responses"].aggregate() == sum(bool(losses) for _, losses in tokens)
        assert all(math.isfinite(value.aggregate()) for value in metrics.values())
        for (keep, _), leaf, m in zip(tokens, leaves, mask, strict=True):
            assert bool(torch.isfinite(leaf.grad).all())
            assert bool((leaf.grad[~torch.tensor(m, dtype=torch.bool)] == 0).all())
            assert keep or not leaf.grad.any()


def step_metrics(mini_batches: list[list[list[int]]]) -> dict[str, float]:
    """Metrics of a step as verl's `train_mini_batch` and trainer reduce them; `mini_batches[b][rank]` lists micro-batches by rejected rows
    of 4 responses.
    """
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss("carm"))
    reduced: dict[str, list[float]] = {}
    for ranks in mini_batches:
        found: list[dict[str, Metric]] = []
        for micro_batches in ranks:
            mine: dict[str, Metric] = {}
            for rejected in micro_batches:
                rows = [[-1.0 + (0.5 if i < rejected else 0.001)] * 3 for i in range(4)]
                flat = torch.tensor([[0.0, *row, 0.0] for row in rows], dtype=torch.float64, requires_grad=True).flatten()
                counts = {"dp_size": len(ranks), "batch_num_tokens": 12, "global_batch_size": 4}
                data = worker_batch([[-1.0] * 3] * 4, [[1.0] * 3] * 4, [[1] * 3] * 4, counts)
                _, metrics = ppo_loss(config, {"log_probs": flat}, data)
                for key, value in metrics.items():
                    mine.setdefault(key, value.init_list()).append(value)
            found.append(mine)
        for key in found[0]:
            reduced.setdefault(key, []).append(Metric.aggregate_dp([mine[key] for mine in found]))
    return reduce_metrics(reduced)


def test_counts_divide_to_the_share_of_the_step() -> None:
    """Two mini-batches of two micro-batches on two ranks: 10 of 32 responses are rejected, all counted before rejection."""
    step = step_metrics([[[4, 0], [1, 0]], [[2, 0], [3, 0]]])
    assert step["actor/carm/rejected"] / step["actor/carm/responses"] == pytest.approx(10 / 32)
    assert step["actor/carm/rejected_tokens"] / step["actor/carm/tokens"] == pytest.approx(10 / 32)
    assert step["actor/carm/rejected_positive"] == step["actor/carm/rejected"]
    assert step["actor/carm/d_max"] == pytest.approx((0.5 + 0.001) / 2)


def test_a_mini_batch_of_fewer_micro_batches_weighs_more_in_a_step() -> None:
    """What the documentation says of dynamic batch sizes: 4 of 4 and 0 of 12 are 4 of 16, and verl's mean of means is one half."""
    step = step_metrics([[[4]], [[0, 0, 0]]])
    assert step["actor/carm/rejected"] / step["actor/carm/responses"] == pytest.approx(1 / 2)
