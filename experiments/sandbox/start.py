"""What a program finds different from an interpreter of its own, set before it starts.  Standard library only: copied into the sandbox."""

from __future__ import annotations

import _thread
import resource
import sys
from typing import Any


def prepare() -> None:
    """Integers of any length as text; stacks of threads that fit the memory: programs ask for hundreds of megabytes to recurse deeply."""
    sys.set_int_max_str_digits(0)
    room = resource.getrlimit(resource.RLIMIT_AS)[0] // 8 & -4096
    given = _thread.stack_size

    def stack_size(*size: Any) -> int:
        return given(min(size[0], room)) if len(size) == 1 and isinstance(size[0], int) and size[0] > 0 else given(*size)

    for module in (_thread, sys.modules.get("threading")):
        if module is not None:
            module.stack_size = stack_size  # type: ignore[attr-defined]
