"""Which names in the source of tests stand for the program's objects.  Standard library only: copied into the sandbox of the tests."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection


def free_names(source: str) -> set[str]:
    """Names that ``source`` reads and that neither it nor Python binds."""
    read, bound = _names(ast.parse(source))
    return read - bound - set(dir(builtins))


def entry_points(source: str, known: Collection[str] = (), wanted: Collection[str] = ()) -> set[str]:
    """Names in ``source`` that the program under test has to supply.

    Those of ``wanted`` that it reads, and those that neither it, nor ``known``, nor Python binds.  Without either, the function that all
    its assertions call first, whatever else bears that name: a task may well ask for ``sum``.

    >>> sorted(entry_points("assert area(2) == len(shape)"))
    ['area', 'shape']
    >>> entry_points("assert sum(10, 15) == 6"), entry_points("assert set(sum(3)) == {2}", wanted=["sum"])
    ({'sum'}, {'sum'})
    """
    tree = ast.parse(source)
    read, bound = _names(tree)
    found = (read & set(wanted)) | (read - bound - set(known) - set(dir(builtins)))
    return found or _called_first(tree) - bound


def _names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Names that are read, and names that are bound."""
    read: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
    return read, bound


def _called_first(tree: ast.AST) -> set[str]:
    """The function whose call comes first in every assertion, if it is one and the same."""
    found: set[str | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            test = node.test
            while not isinstance(test, ast.Call):
                if isinstance(test, ast.BoolOp):
                    test = test.values[0]
                elif isinstance(test, ast.Compare):
                    test = test.left
                elif isinstance(test, ast.UnaryOp):
                    test = test.operand
                else:
                    break
            found.add(test.func.id if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) else None)
    return {name for name in found if name} if len(found) == 1 else set()
