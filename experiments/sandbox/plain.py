"""Values as data: what may cross between a candidate program and its tests.

Only exact copies of built-in values are rebuilt on the other side, so a value cannot bring behaviour along (an ``__eq__`` that says
yes, say).  Anything else crosses as an opaque handle.  Standard library only: the file is copied into the sandbox.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

#: Containers that can change, by object: their numbers in order of appearance, and the containers themselves, to keep them alive.
Seen = dict[int, tuple[int, Any]]

_CHANGEABLE: dict[str, type[Any]] = {"list": list, "set": set, "deque": deque}
_FIXED: dict[str, type[Any]] = {"tuple": tuple, "frozenset": frozenset}


def encode(value: Any, handle: Callable[[Any], int], seen: Seen | None = None) -> Any:
    """``value`` as JSON; ``handle`` names an object that has no plain form; a container in ``seen`` crosses as its number, once only.

    >>> encode([1, (2.5, "x")], handle=id)
    ['list', [['int', '1'], ['tuple', [['float', '0x1.4000000000000p+1'], 'x']]]]
    >>> row = [0]
    >>> encode([row, row], handle=id, seen={})
    ['list', [['list', [['int', '0']]], ['ref', 1]]]
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", f"{int(value):x}"]
    if isinstance(value, float):
        return ["float", float(value).hex()]
    for name, kind in _FIXED.items():
        if isinstance(value, kind):
            return [name, [encode(item, handle, seen) for item in value]]
    if isinstance(value, (list, set, deque, dict)):
        if seen is not None:
            if id(value) in seen:
                return ["ref", seen[id(value)][0]]
            seen[id(value)] = (len(seen), value)
        if isinstance(value, dict):
            return ["dict", [[encode(k, handle, seen), encode(v, handle, seen)] for k, v in value.items()]]
        name = next(name for name, kind in _CHANGEABLE.items() if isinstance(value, kind))
        return [name, [encode(item, handle, seen) for item in value]]
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
    if (time := _encode_time(value)) is not None:
        return time
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):  # arrays cross as lists, scalars as numbers
        return encode(value.tolist(), handle, seen)
    return ["handle", handle(value)]


def _encode_time(value: Any) -> list[Any] | None:
    if type(value) is datetime.timedelta:
        return ["timedelta", [value.days, value.seconds, value.microseconds]]
    if type(value) is datetime.date:
        return ["date", [value.year, value.month, value.day]]
    if type(value) not in (datetime.datetime, datetime.time) or type(value.tzinfo) not in (type(None), datetime.timezone):
        return None
    clock = [value.hour, value.minute, value.second, value.microsecond]
    zone = None if value.tzinfo is None else _encode_time(value.tzinfo.utcoffset(None))
    if type(value) is datetime.time:
        return ["time", [clock, zone, value.fold]]
    return ["datetime", [[value.year, value.month, value.day, *clock], zone, value.fold]]


def _decode_time(tag: str, body: Any) -> Any:
    if tag in ("date", "timedelta"):
        return (datetime.date if tag == "date" else datetime.timedelta)(*map(int, body))
    parts, zone, fold = body
    offset = None if zone is None else datetime.timezone(_decode_time("timedelta", zone[1]))
    kind: Any = datetime.time if tag == "time" else datetime.datetime
    return kind(*map(int, parts), tzinfo=offset, fold=int(fold))


def decode(data: Any, handle: Callable[[int], Any], made: list[Any] | None = None) -> Any:
    """Inverse of `encode`; raises ``ValueError``, ``TypeError`` or the like for anything `encode` does not write.

    ``made`` lists the containers that numbers stand for and takes those that are met, in the same order as ``seen``.

    >>> decode(encode({"a": {1, 2}}, handle=id), handle=int)
    {'a': {1, 2}}
    """
    if data is None or isinstance(data, (bool, str)):
        return data
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[0], str)):
        raise ValueError("data: got something that is no encoded value; need a tag and a body; because only data may cross")
    tag, body = data
    if tag in _FIXED:
        return _FIXED[tag]([decode(item, handle, made) for item in body])
    if tag == "dict" or tag in _CHANGEABLE:
        value: Any = {} if tag == "dict" else _CHANGEABLE[tag]()
        if made is not None:
            made.append(value)
        if tag == "dict":
            value.update((decode(k, handle, made), decode(v, handle, made)) for k, v in body)
        else:
            (value.update if tag == "set" else value.extend)(decode(item, handle, made) for item in body)
        return value
    if tag == "ref":
        return (made or [])[range(len(made or []))[int(body)]] if int(body) >= 0 else _refuse(tag)
    if tag == "range":
        return range(*map(int, body))
    if tag == "complex":
        return complex(*map(float.fromhex, body))
    if tag in ("date", "time", "datetime", "timedelta"):
        return _decode_time(tag, body)
    scalars: dict[str, Callable[[Any], Any]] = {
        "int": lambda text: int(text, 16),
        "float": float.fromhex,
        "bytes": bytes.fromhex,
        "decimal": Decimal,
        "fraction": Fraction,
        "handle": lambda number: handle(int(number)),
    }
    return scalars[tag](body) if tag in scalars else _refuse(tag)


def _refuse(tag: str) -> Any:
    raise ValueError(f"data: got the tag {tag[:20]!r} or its body; need what encode writes; because only data may cross")


def contents(container: Any) -> list[Any]:
    """What a container holds, as a list that `refill` takes."""
    return [list(pair) for pair in container.items()] if isinstance(container, dict) else list(container)


def refill(container: Any, items: list[Any]) -> None:
    """Make ``container`` hold ``items`` instead."""
    container.clear()
    if isinstance(container, dict):
        container.update((k, v) for k, v in items)
    elif isinstance(container, set):
        container.update(items)
    else:
        container.extend(items)


def encode_error(error: BaseException, handle: Callable[[Any], int]) -> dict[str, Any]:
    """The built-in classes of an exception, nearest first, and its arguments."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    try:
        arguments = encode(list(error.args), handle)
    except Exception:  # arguments that say nothing of themselves
        arguments = ["list", []]
    return {"kinds": kinds, "arguments": arguments, "name": type(error).__name__}


def decode_error(data: Any, known: dict[str, type[Exception]], handle: Callable[[int], Any]) -> Exception:
    """The exception of the nearest class in ``known``, else ``RuntimeError``."""
    kind = next((known[name] for name in data["kinds"] if name in known), RuntimeError)
    arguments = decode(data["arguments"], handle)
    if kind is RuntimeError and "RuntimeError" not in data["kinds"]:
        return RuntimeError(f"{data['name']}: {arguments}"[:500])
    try:
        return kind(*arguments)
    except Exception:  # a class that wants other arguments
        return RuntimeError(f"{data['name']}: {arguments}"[:500])
