"""The mutants of a module, made by cosmic-ray's operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = [
    "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt", "Is_IsNot", "IsNot_Is",
]  # fmt: skip
BINARY = [
    "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul",
    "BitAnd_BitOr", "BitOr_BitAnd", "BitXor_BitOr", "LShift_RShift", "RShift_LShift",
]  # fmt: skip
OPERATORS = (
    [f"core/ReplaceComparisonOperator_{pair}" for pair in COMPARISONS]
    + [f"core/ReplaceBinaryOperator_{pair}" for pair in BINARY]
    + [f"core/ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")]
    + [
        f"core/{name}"
        for name in (
            "NumberReplacer", "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
            "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "ExceptionReplacer",
        )
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed source; ``line`` is the first line that differs, ``span`` the lines of the statement it is in."""

    module: str
    operator: str
    line: int
    span: tuple[int, int]
    before: str
    after: str
    source: str


def essence(source: str) -> str:
    """The program without annotations, docstrings and the marks ``*`` and ``/`` between kinds of parameters (no operators)."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg):
                if argument is not None:
                    argument.annotation = None
            node.args.args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            node.args.defaults = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
            node.args.posonlyargs, node.args.kwonlyargs, node.args.kw_defaults = [], [], []
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(tree)


def spans(source: str) -> dict[int, tuple[int, int]]:
    """Line -> first and last line of the smallest statement around it, headers of compound statements without their bodies."""
    found: dict[int, tuple[int, int]] = {}
    for node in ast.walk(ast.parse(source)):  # breadth first: inner statements overwrite outer ones
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            for line in range(node.lineno, last + 1):
                found[line] = (node.lineno, last)
    return found


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of ``source`` once, but for those that change only annotations or docstrings."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    known, seen = set(operator_names()), {essence(source)}
    lines, around = source.splitlines(), spans(source)
    for name in OPERATORS:
        if name not in known:
            continue
        operator, occurrence = get_operator(name)(), 0
        while (mutated := mutate_code(source, operator, occurrence)) is not None:
            occurrence += 1
            try:
                what = essence(mutated)
            except SyntaxError:
                continue
            if what in seen:
                continue
            seen.add(what)
            changed = mutated.splitlines()
            at = next(i for i, (a, b) in enumerate(zip(lines, changed, strict=False)) if a != b)
            before, after = lines[at].strip(), changed[at].strip()
            yield Mutant(module, name.removeprefix("core/"), at + 1, around.get(at + 1, (at + 1, at + 1)), before, after, mutated)
