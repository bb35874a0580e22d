"""Operators: mutants made from a module's syntax tree.

What lives here: what is changed and how, one function an operator. What must not: which modules
(the project's file says so), or running anything.

An operator changes text where the tree says that a thing stands, so that everything else, comments
and layout included, stays as it is. Left out is what no promise rests on: annotations, assertions,
messages of errors, logging, docstrings.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

from chaos.mutation.mutants import Mutant

Edit: TypeAlias = tuple[int, int, str]  # from, to, new text: offsets in the source
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_LOGGING: Final = frozenset({"log", "_log", "LOG", "say", "_say", "info", "warning", "debug"})
_BOUNDARIES: Final[Mapping[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
_EXTREMES: Final = {"min": "max", "max": "min"}


class _ModuleSource:
    """A module's text and tree, and where a node stands in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def _offset(self, line: int, column_bytes: int) -> int:
        before = self._lines[line - 1].encode()[:column_bytes]  # the tree counts bytes
        return self._starts[line - 1] + len(before.decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt), node
        assert node.end_lineno is not None, node
        assert node.end_col_offset is not None, node
        begin = self._offset(node.lineno, node.col_offset)
        return begin, self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.AST) -> str:
        begin, end = self.span(node)
        return self.text[begin:end]


def generate(file: str, text: str) -> list[Mutant]:
    """Return the mutants of a module, by place; each is another one."""
    source = _ModuleSource(text)
    found: list[Mutant] = []
    numbers: Counter[str] = Counter()
    seen: set[Edit] = set()
    for operator, edits in OPERATORS.items():
        for edit in edits(source):
            begin, end, new = edit
            if edit in seen or text[begin:end] == new:
                continue
            seen.add(edit)
            line = text.count("\n", 0, begin) + 1
            place = f"{file}:{line}:{operator}"
            numbers[place] += 1
            name = place if numbers[place] == 1 else f"{place}:{numbers[place]}"
            found.append(Mutant(name, file, begin, text[begin:end], new, operator))
    return sorted(found, key=lambda mutant: (mutant.at, mutant.name))


# --- what is left out ---------------------------------------------------------------------------


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, without what no promise rests on."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert | ast.Raise) or _is_logging(child):
            continue
        if isinstance(child, ast.arguments) or (
            isinstance(node, ast.AnnAssign | _Function)
            and child is getattr(node, "annotation", getattr(node, "returns", None))
        ):
            continue
        yield from _walk(child)


def _is_logging(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _LOGGING


def _functions(source: _ModuleSource) -> Iterator[_Function]:
    return (node for node in ast.walk(source.tree) if isinstance(node, _Function))


def _bodies(source: _ModuleSource) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements inside of functions."""
    for function in _functions(source):
        for node in _walk(function):
            for key in ("body", "orelse", "finalbody"):
                body = getattr(node, key, None)
                if isinstance(body, list) and not isinstance(node, ast.ClassDef):
                    if node is not function and isinstance(node, _Function):
                        continue  # a function of its own
                    yield [each for each in body if isinstance(each, ast.stmt)]


# --- the operators ------------------------------------------------------------------------------


def _negate_condition(source: _ModuleSource) -> Iterator[Edit]:
    for node in _walk(source.tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not _is_type_checking(node.test):
            yield *source.span(node.test), f"(not ({source.of(node.test)}))"


def _drop_condition(source: _ModuleSource) -> Iterator[Edit]:
    """Drop an operand of `and` and `or`, and a condition that stands alone."""
    for node in _walk(source.tree):
        if isinstance(node, ast.BoolOp):
            word = " and " if isinstance(node.op, ast.And) else " or "
            for left_out in node.values:
                kept = [f"({source.of(value)})" for value in node.values if value is not left_out]
                yield *source.span(node), f"({word.join(kept)})"
        elif (
            isinstance(node, ast.If)
            and not node.orelse
            and not isinstance(node.test, ast.BoolOp | ast.NamedExpr)
            and not _is_type_checking(node.test)
        ):
            yield *source.span(node.test), "True"


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name | ast.Constant)


def _off_by_one(source: _ModuleSource) -> Iterator[Edit]:
    """Move a boundary: `<` and `<=`, a `+ 1` or `- 1` that is left out, `min` and `max`."""
    for node in _walk(source.tree):
        if isinstance(node, ast.Compare):
            for left, op, right in zip(
                [node.left, *node.comparators], node.ops, node.comparators, strict=False
            ):
                words = _BOUNDARIES.get(type(op))
                begin, end = source.span(left)[1], source.span(right)[0]
                between = source.text[begin:end]
                if words is not None and between.count(words[0]) == 1:
                    yield begin, end, between.replace(*words)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            if isinstance(node.right, ast.Constant) and node.right.value == 1:
                yield *source.span(node), f"({source.of(node.left)})"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _EXTREMES
        ):
            yield *source.span(node.func), _EXTREMES[node.func.id]


def _drop_statement(source: _ModuleSource) -> Iterator[Edit]:
    """Leave out a call whose result nobody takes: a sync, a flush, an append."""
    for body in _bodies(source):
        for statement in body:
            is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            if is_call and not _is_logging(statement) and not _is_of_a_parent(statement):
                yield *source.span(statement), "pass"


def _is_of_a_parent(statement: ast.stmt) -> bool:
    return "super()" in ast.unparse(statement)


def _drop_reset(source: _ModuleSource) -> Iterator[Edit]:
    """Leave out that something which outlives the function is set, counted, deleted or cleared."""
    for function in _functions(source):
        if function.name == "__init__":
            continue
        for node in _walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets):
                    yield *source.span(node), "pass"
            elif isinstance(node, ast.Delete):
                yield *source.span(node), "pass"


def _swap_statements(source: _ModuleSource) -> Iterator[Edit]:
    """Let two statements that stand together change places."""
    simple = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete)
    for body in _bodies(source):
        for first, second in pairwise(body):
            if not isinstance(first, simple) or not isinstance(second, simple):
                continue
            if _is_docstring(first) or _is_logging(first) or _is_logging(second):
                continue
            if _locals_set(first) & _locals_used(second):
                continue  # that fails by itself
            (begin, middle), (after, end) = source.span(first), source.span(second)
            between = source.text[middle:after]
            yield begin, end, source.text[after:end] + between + source.text[begin:middle]


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _locals_set(statement: ast.stmt) -> set[str]:
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _locals_used(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _sibling_variable(source: _ModuleSource) -> Iterator[Edit]:
    """Take another parameter of the function, of the same type, where one is compared or passed."""
    for function in _functions(source):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        types = {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation}
        for node in _walk(function):
            if not isinstance(node, ast.Call | ast.Compare):
                continue
            for used in ast.iter_child_nodes(node):
                if not isinstance(used, ast.Name) or used.id not in types:
                    continue
                siblings = [
                    name
                    for name, kind in types.items()
                    if kind == types[used.id] and name != used.id
                ]
                if siblings:
                    yield *source.span(used), siblings[0]


OPERATORS: Final[Mapping[str, Callable[[_ModuleSource], Iterator[Edit]]]] = {
    "negate-condition": _negate_condition,
    "drop-condition": _drop_condition,
    "off-by-one": _off_by_one,
    "drop-statement": _drop_statement,
    "drop-reset": _drop_reset,
    "swap-statements": _swap_statements,
    "sibling-variable": _sibling_variable,
}
