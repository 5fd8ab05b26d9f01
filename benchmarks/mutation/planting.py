"""Puts a mutated source in place of a module: into its living functions, or under its name before it is imported."""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import sys
from types import CodeType, FunctionType

OPTIMIZED = 0x1  # flag of a function's code; bodies of modules and classes lack it
PARTS = (
    "co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_argcount", "co_kwonlyargcount",
    "co_posonlyargcount", "co_exceptiontable",
)  # fmt: skip

Living = dict[tuple[str, str, int], list[FunctionType]]


def living_functions(folder: str) -> Living:
    """The functions defined below ``folder``, by file, qualified name and first line."""
    found: Living = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(folder):
            code = thing.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(thing)
    return found


def differ(path: str, original: str, mutated: str) -> bool:
    """Whether the two compile to different programs."""
    return changed(*(compile(source, path, "exec", dont_inherit=True) for source in (original, mutated))) != []


def replacements(path: str, original: str, mutated: str, living: Living) -> list[tuple[FunctionType, CodeType]] | None:
    """Living functions with the code that the mutated source gives them; None if the change is not inside of functions alone."""
    changes = changed(*(compile(source, path, "exec", dont_inherit=True) for source in (original, mutated)))
    found = []
    for outer in changes or ():
        for depth, (old, new) in enumerate(nested(*outer)):
            functions = [f for f in living.get((path, old.co_qualname, old.co_firstlineno), ()) if same(f.__code__, old)]
            if (not functions and not depth) or new.co_freevars != old.co_freevars:
                return None
            found += [(function, new) for function in functions]
    return found or None


def nested(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]]:
    """A pair of codes that differ, and those inside of it that do: functions made by a call at import live on."""
    inner = {(code.co_qualname, code.co_firstlineno): code for code in new.co_consts if isinstance(code, CodeType)}
    found = [(old, new)]
    for code in old.co_consts:
        if isinstance(code, CodeType) and (other := inner.get((code.co_qualname, code.co_firstlineno))) and not same(code, other):
            found += nested(code, other)
    return found


def changed(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """Pairs of function codes that differ; None if the body of the module or of a class differs."""
    if not same(old, new, shallow=True):
        return None
    found = []
    for a, b in zip(old.co_consts, new.co_consts, strict=True):
        if isinstance(a, CodeType):
            if a.co_flags & OPTIMIZED:
                found += [] if same(a, b) else [(a, b)]
            elif (inner := changed(a, b)) is None:
                return None
            else:
                found += inner
    return found


def same(a: object, b: object, shallow: bool = False) -> bool:
    """Whether two codes (or constants) agree but for positions; shallow: but for the codes nested in them."""
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return (
            all(getattr(a, part) == getattr(b, part) for part in PARTS)
            and len(a.co_consts) == len(b.co_consts)
            and all(
                (shallow and isinstance(x, CodeType) and isinstance(y, CodeType)) or same(x, y)
                for x, y in zip(a.co_consts, b.co_consts, strict=True)
            )
        )
    return type(a) is type(b) and repr(a) == repr(b)


class Mutated(importlib.machinery.SourceFileLoader):
    """Loads given source under a module's name."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> object:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class Finder:
    """Finds one module in its mutated form, ahead of pytest's own finder, which would read the file from disk."""

    def __init__(self, name: str, path: str, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=Mutated(name, self.path, self.source))

    def pytest_sessionstart(self) -> None:
        sys.meta_path.insert(0, self)
