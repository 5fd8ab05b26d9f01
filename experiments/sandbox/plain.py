"""Values as data: what may cross between a candidate program and its tests.

Only exact copies of built-in values are rebuilt on the other side, so a value cannot bring behaviour along (an ``__eq__`` that says
yes, say).  Anything else crosses as an opaque handle.  Standard library only: the file is copied into the sandbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


def encode(value: Any, handle: Callable[[Any], int]) -> Any:
    """``value`` as JSON; ``handle`` names an object that has no plain form.

    >>> encode([1, (2.5, "x")], handle=id)
    ['list', [['int', '1'], ['tuple', [['float', '0x1.4000000000000p+1'], 'x']]]]
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", f"{int(value):x}"]
    if isinstance(value, float):
        return ["float", float(value).hex()]
    for name, kind in (("list", list), ("tuple", tuple), ("set", set), ("frozenset", frozenset), ("deque", deque)):
        if isinstance(value, kind):
            return [name, [encode(item, handle) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[encode(k, handle), encode(v, handle)] for k, v in value.items()]]
    if isinstance(value, complex):
        return ["complex", [value.real.hex(), value.imag.hex()]]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, range):
        return ["range", [value.start, value.stop, value.step]]
    if isinstance(value, Decimal):
        return ["decimal", str(value)]
    if isinstance(value, Fraction):
        return ["fraction", str(value)]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):  # arrays cross as lists, scalars as numbers
        return encode(value.tolist(), handle)
    return ["handle", handle(value)]


def decode(data: Any, handle: Callable[[int], Any]) -> Any:
    """Inverse of `encode`; raises ``ValueError`` or ``TypeError`` for anything `encode` does not write.

    >>> decode(encode({"a": {1, 2}}, handle=id), handle=int)
    {'a': {1, 2}}
    """
    if data is None or isinstance(data, (bool, str)):
        return data
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[0], str)):
        raise ValueError("data: got something that is no encoded value; need a tag and a body; because only data may cross")
    tag, body = data
    if tag in _SEQUENCES:
        return _SEQUENCES[tag]([decode(item, handle) for item in body])
    if tag == "dict":
        return {decode(k, handle): decode(v, handle) for k, v in body}
    if tag == "range":
        return range(*map(int, body))
    if tag == "complex":
        return complex(*map(float.fromhex, body))
    scalars: dict[str, Callable[[Any], Any]] = {
        "int": lambda text: int(text, 16),
        "float": float.fromhex,
        "bytes": bytes.fromhex,
        "decimal": Decimal,
        "fraction": Fraction,
        "handle": lambda number: handle(int(number)),
    }
    if tag not in scalars:
        raise ValueError(f"data: got the tag {tag[:20]!r}; need one of {', '.join([*_SEQUENCES, *scalars])}; because only data may cross")
    return scalars[tag](body)
