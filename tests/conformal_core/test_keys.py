"""Keyed streams: pure, order-independent, uniform."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_core.keys import mix64, prompt_ids, uniforms

ids_lists = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)


@given(ids_lists, st.integers(-(2**40), 2**40), st.integers(0, 10**6), st.text(max_size=8), st.randoms(use_true_random=False))
def test_a_number_depends_on_its_own_key_only(ids: list[int], seed: int, step: int, stream: str, random: object) -> None:
    array = np.array(ids, np.uint64)
    u = uniforms(array, seed=seed, step=step, stream=stream)
    assert u.dtype == np.float64 and ((u >= 0) & (u < 1)).all()
    order = list(range(len(ids)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert (uniforms(array[order], seed=seed, step=step, stream=stream) == u[order]).all()
    assert uniforms(array[-1], seed=seed, step=step, stream=stream) == u[-1]


@given(st.integers(0, 2**64 - 1))
def test_every_part_of_the_key_matters(one: int) -> None:
    base = dict(seed=1, step=2, stream="a")
    values = {
        float(uniforms(np.array([one], np.uint64), **{**base, **change})[0])  # type: ignore[arg-type]
        for change in ({}, {"seed": 2}, {"step": 1}, {"stream": "b"}, {"seed": 12, "step": 0}, {"seed": 2, "step": 1})
    }
    assert len(values) == 6


@pytest.mark.parametrize("ids", ["hashes", "range"])
def test_uniformity(ids: str) -> None:
    """Kolmogorov-Smirnov, exact law, of 5000 numbers; and no correlation between streams or with neighbours."""
    from scipy.stats import kstest

    keys = prompt_ids([f"prompt {i}" for i in range(5000)]) if ids == "hashes" else np.arange(5000, dtype=np.uint64)
    draws = [uniforms(keys, seed=0, step=s, stream=t) for s in (0, 1) for t in ("", "tie")]
    for u in draws:
        assert kstest(u, "uniform").pvalue > 1e-3
    c = np.corrcoef([*draws, np.roll(draws[0], 1)]) - np.eye(5)
    assert np.abs(c).max() < 4.5 / np.sqrt(5000)


def test_mix_is_injective_on_a_range() -> None:
    assert len(np.unique(mix64(np.arange(10**5, dtype=np.uint64)))) == 10**5


def test_frozen_values() -> None:
    """These numbers are part of the interface: changing them changes every recorded run."""
    assert prompt_ids(["", "a"]).tolist() == [13020603013274838756, 3405396810240292928]
    assert uniforms([0, 1, 2**63], seed=0).tolist() == [0.32884780684309256, 0.7660405223839367, 0.6764540102818295]


def test_ids_do_not_depend_on_the_process() -> None:
    code = "from conformal_core.keys import prompt_ids; print(int(prompt_ids(['x\\u00e9'])[0]))"
    got = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": s}, capture_output=True, text=True, check=True).stdout
        for s in ("1", "2")
    }
    assert got == {f"{int(prompt_ids(['xé'.encode()])[0])}\n"}


@pytest.mark.parametrize("bad", ["one string", [1], [None]])
def test_prompt_ids_refuse_what_they_cannot_hash(bad: object) -> None:
    with pytest.raises(ValueError, match=r"^texts: got "):
        prompt_ids(bad)  # type: ignore[arg-type]


def test_uniforms_refuse_floats() -> None:
    with pytest.raises(ValueError, match=r"^ids: got float64"):
        uniforms([0.5], seed=0)


@pytest.mark.parametrize("ids", [np.array([True]), np.array([1.0]), np.array([1, 2], dtype=object)])
def test_arrays_of_ids_are_of_integers(ids: np.ndarray) -> None:
    with pytest.raises(ValueError, match=f"ids: got {ids.dtype}; need integers"):
        uniforms(ids, seed=0)
