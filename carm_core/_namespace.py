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


def detached(x: Any) -> Any:
    """`x` without its autograd history; NumPy arrays as they are."""
    return x.detach() if hasattr(x, "detach") else x


def accumulator(x: Any) -> Any:
    """The dtype in which sums of `x` accumulate: float64, or that of `x` on a device without it."""
    xp = namespace(x)
    return x.dtype if xp is not np and x.device.type == "mps" else xp.float64


def narrow(x: Any, dtype: Any) -> Any:
    """`x` in the given dtype of its own library."""
    return x.astype(dtype) if isinstance(x, _NUMPY) else x.to(dtype)


def host(x: Any) -> Any:
    """`x` as a NumPy array on the host (bfloat16, which NumPy lacks, as float64)."""
    if not hasattr(x, "detach"):
        return np.asarray(x)
    x = x.detach().cpu()
    return (x.double() if x.dtype.is_floating_point else x).numpy()
