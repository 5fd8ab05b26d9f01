"""Two gloo processes together take the gradient of the global batch, however it is split."""

import math

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from torch_strategies import few, padded_batches

from carm_core import CARM
from carm_torch import global_denominator, keep_mask, masked_policy_loss

RULE = CARM(1.02)
CASES = [(n, a, g) for n in ("fixed", "retained") for a in ("token", "sequence") for g in ("averaged", "summed")]
SPLITS = [(0, 4), (4, 6)], [(0, 1), (1, 6)], [(0, 2), (2, 6)]


def batch():
    """Six responses of 1 to 6 tokens; 1 and 3 are off-policy, 5 is empty: ranks may hold nothing kept."""
    length = torch.tensor([6, 2, 5, 3, 1, 0])
    mask = (torch.arange(6)[None] < length[:, None]).long()
    rollout = -torch.ones(6, 6)
    shift = torch.tensor([0.01, 0.9, -0.012, 0.7, 0.0, 0.5])[:, None]
    return rollout + shift, rollout, mask, torch.tensor([1.0, -1.0, 0.5, 1.0, -2.0, 1.0])


def gradient(part, normalize, aggregate, denominator=None):
    """(loss, d loss / d w) of log pi = current + w on some rows."""
    current, rollout, mask, a = (x[part] for x in batch())
    w = torch.zeros((), requires_grad=True)
    loss, _ = masked_policy_loss(current + w, rollout, mask, a, RULE, normalize=normalize, aggregate=aggregate, denominator=denominator)
    loss.backward()
    return torch.stack([loss.detach(), w.grad])


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for split in SPLITS:
        part = slice(*split[rank])
        current, rollout, mask, _ = (x[part] for x in batch())
        for normalize, aggregate, gradients in CASES:
            keep = keep_mask(current, rollout, mask, RULE)
            count = global_denominator(mask, keep, normalize=normalize, aggregate=aggregate, gradients=gradients)
            total = gradient(part, normalize, aggregate, count)
            dist.all_reduce(total)
            torch.testing.assert_close(total / (2 if gradients == "averaged" else 1), gradient(slice(0, 6), normalize, aggregate))
    nothing = global_denominator(torch.ones(2, 3), torch.zeros(2, dtype=torch.bool))
    assert nothing.item() == 0.0
    dist.destroy_process_group()


def test_two_processes_give_the_loss_and_gradient_of_the_global_batch(tmp_path):
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)


@few
@given(padded_batches())
@pytest.mark.parametrize("normalize", ["fixed", "retained"])
@pytest.mark.parametrize("aggregate", ["token", "sequence"])
def test_without_a_process_group_it_is_the_local_count(normalize, aggregate, batch):
    _, current, rollout, mask, a = batch
    keep = keep_mask(current, rollout, mask, RULE)
    count = global_denominator(mask, keep, normalize=normalize, aggregate=aggregate)
    live = (mask != 0) & (keep[:, None] | (normalize == "fixed"))
    assert count.item() == (live.any(1).sum() if aggregate == "sequence" else live.sum()).item()
    options = dict(normalize=normalize, aggregate=aggregate)
    with_count, _ = masked_policy_loss(current, rollout, mask, a, RULE, denominator=count, **options)
    assert with_count.item() == pytest.approx(masked_policy_loss(current, rollout, mask, a, RULE, **options)[0].item(), rel=1e-6)


def test_defaults_and_errors():
    mask, keep = torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([True, False])
    assert global_denominator(mask, keep).item() == 2.0 and global_denominator(mask, keep).dtype == torch.float64
    for name in ("normalize", "aggregate", "gradients"):
        with pytest.raises(ValueError, match=rf"^{name}: got 'x'; need '\w+' or '\w+'; because it decides what is counted$"):
            global_denominator(mask, keep, **{name: "x"})
    with pytest.raises(ValueError, match=r"^keep: got shape \(3,\); need \(2,\); because a response is kept whole$"):
        global_denominator(mask, torch.ones(3))
    assert math.isfinite(gradient(slice(1, 2), "retained", "token")[0].item())
