"""npz and safetensors files of token-level arrays, read in slabs of rows: padded ``(B, T)`` or flat with ``lengths``/``cu_seqlens``."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["npz_batches", "npz_columns", "safetensors_batches", "safetensors_columns"]

_CELLS = 1 << 21
_OFFSETS = ("lengths", "cu_seqlens", "offsets", "seq_lens")
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}

Read = Callable[[str, int, int], Any]


def _slabs(shapes: dict[str, tuple[int, ...]], needed: Sequence[str], read: Read) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Row slabs of arrays that share their first axis; flat arrays are cut by the offsets."""
    mine = [name for name in needed if name in shapes]
    wide = [name for name in mine if len(shapes[name]) == 2]
    keys = [name for name in mine if name in _OFFSETS]
    if keys:
        ends = np.asarray(read(keys[0], 0, shapes[keys[0]][0])).astype(np.int64)
        starts_at_zero = ends.size > 0 and ends[0] == 0 and bool((np.diff(ends) >= 0).all())
        bounds = ends if starts_at_zero and keys[0] != "lengths" else np.concatenate([[0], np.cumsum(ends)])
        if (np.diff(bounds) < 0).any():
            raise ValueError(f"{keys[0]}: got a length of {int(np.diff(bounds).min())}; need 0 or more; because it counts tokens")
        n, total = bounds.size - 1, int(bounds[-1])
        flat = [name for name in mine if name not in keys and shapes[name][0] == total and len(shapes[name]) == 1]
        rows = [name for name in mine if name not in keys and name not in flat and shapes[name][0] == n]
        lost = [name for name in mine if name not in {*keys, *flat, *rows}]
        if lost:
            raise ValueError(f"{lost[0]}: got shape {shapes[lost[0]]}; need ({total},) tokens or ({n},) rows; because {keys[0]} says so")
        first = 0
        while first < n:
            last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + _CELLS, side="right")) - 1)
            low, high = int(bounds[first]), int(bounds[last])
            out: dict[str, Any] = {name: read(name, first, last) for name in rows} | {keys[0]: np.diff(bounds[first : last + 1])}
            cuts = bounds[first + 1 : last] - low
            for name in flat:
                out[name] = np.split(read(name, low, high), cuts)
            yield first + 1, last - first, out
            first = last
        return
    sizes = {shapes[name][0] for name in mine if shapes[name]}
    if len(sizes) > 1:
        raise ValueError(f"arrays: got {sorted(sizes)} rows; need one number of rows; because row i of each is response i")
    n = sizes.pop() if sizes else 0
    step = max(1, _CELLS // max([shapes[name][1] for name in wide], default=1))
    for first in range(0, n, step):
        last = min(first + step, n)
        yield first + 1, last - first, {name: read(name, first, last) for name in mine if shapes[name]}


def npz_columns(path: str) -> dict[str, Any]:
    """Names of the arrays of an npz file."""
    with zipfile.ZipFile(path) as archive:
        return {name.removesuffix(".npy"): None for name in archive.namelist() if name.endswith(".npy")}


class _Member:
    """One array of an npz archive, read forward (compressed or not) without holding it."""

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self.file = archive.open(name + ".npy")
        version = np.lib.format.read_magic(self.file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, fortran, self.dtype = reader(self.file)
        if fortran and len(self.shape) > 1:
            raise ValueError(f"{name}: got a Fortran-ordered array; need C order; because rows are streamed")
        if self.dtype.hasobject:
            raise ValueError(f"{name}: got an array of Python objects; need numbers; because pickled data is not read")
        self.at = 0

    def read(self, first: int, last: int) -> NDArray[Any]:
        if first != self.at:
            raise ValueError("npz: rows are read forward only")
        count = (last - first) * prod(self.shape[1:])
        raw = self.file.read(count * self.dtype.itemsize)
        if len(raw) != count * self.dtype.itemsize:
            raise ValueError("npz: the file is cut short")
        self.at = last
        return np.frombuffer(raw, self.dtype).reshape(last - first, *self.shape[1:])


def npz_batches(path: str, needed: Sequence[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Slabs ``(first row from 1, rows, {name: array})`` of an npz file."""
    with zipfile.ZipFile(path) as archive:
        present = {name.removesuffix(".npy") for name in archive.namelist()}
        members = {name: _Member(archive, name) for name in needed if name in present}
        yield from _slabs({name: m.shape for name, m in members.items()}, needed, lambda name, a, b: members[name].read(a, b))


def _header(path: str) -> tuple[dict[str, Any], int]:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 2 <= size <= 100 << 20:
            raise ValueError("safetensors: the header is damaged")
        header = json.loads(file.read(size))
    keys = {"dtype", "shape", "data_offsets"}
    if not isinstance(header, dict) or any(not isinstance(v, dict) or not keys <= set(v) for k, v in header.items() if k != "__metadata__"):
        raise ValueError("safetensors: the header is damaged")
    header.pop("__metadata__", None)
    return header, 8 + size


def safetensors_columns(path: str) -> dict[str, Any]:
    """Names of the tensors of a safetensors file."""
    return dict.fromkeys(_header(path)[0])


def safetensors_batches(path: str, needed: Sequence[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Slabs ``(first row from 1, rows, {name: array})`` of a safetensors file; bfloat16 is widened to float32."""
    header, base = _header(path)
    maps: dict[str, NDArray[Any]] = {}
    for name in needed:
        if name in header:
            spec = header[name]
            if spec["dtype"] not in _DTYPES:
                raise ValueError(
                    f"{name}: got dtype {spec['dtype']}; need one of {', '.join(_DTYPES)}; because others hold no log-probabilities"
                )
            offset, shape = base + spec["data_offsets"][0], tuple(spec["shape"])
            dtype = np.dtype(_DTYPES[spec["dtype"]])
            empty = prod(shape) == 0
            maps[name] = np.zeros(shape, dtype) if empty else np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)

    def read(name: str, first: int, last: int) -> NDArray[Any]:
        part = np.array(maps[name][first:last])
        if header[name]["dtype"] == "BF16":
            return (part.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return part

    yield from _slabs({name: m.shape for name, m in maps.items()}, needed, read)
