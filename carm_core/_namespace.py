"""Which array library do these arrays belong to? NumPy, or torch where the caller already imported it."""

import sys
from typing import Any

import numpy as np

_NUMPY = (np.ndarray, np.generic)


def namespace(*arrays: Any) -> Any:
    """The module (``numpy`` or ``torch``) that all `arrays` belong to; TypeError for a mixture or anything else. Never imports torch."""
    torch = sys.modules.get("torch")
    if torch is not None and all(isinstance(a, torch.Tensor) for a in arrays):
        return torch
    if all(isinstance(a, _NUMPY) for a in arrays):
        return np
    kinds = ", ".join(type(a).__name__ for a in arrays)
    raise TypeError(f"arrays: got {kinds}; need all NumPy arrays or all torch tensors; because dtype and device follow the input")


def upcast(x: Any) -> Any:
    """float64 in NumPy; in torch the input's float dtype, but never narrower than float32."""
    if isinstance(x, _NUMPY):
        return np.asarray(x, dtype=np.float64)
    torch = namespace(x)
    return x.to(torch.promote_types(x.dtype, torch.float32))
