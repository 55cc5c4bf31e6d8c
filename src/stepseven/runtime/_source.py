"""The source of functions as trees, and where in it a suspended frame stands.

A file that changed after it was loaded says nothing about the code that runs: then there is no source here.
"""

from __future__ import annotations

import ast
import functools
import linecache
import opcode
from dataclasses import field
from pathlib import PurePath
from types import CodeType
from typing import Any

from stepseven._dataclass import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Span = tuple[int, int, int, int]  # first and last line, first and last column, as code objects say it

_NAMED = {
    ast.Lambda: "<lambda>", ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>", ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}  # fmt: skip
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FIRST = (ast.Await, ast.Yield, ast.YieldFrom, ast.Call)  # of several nodes of one extent: what can be suspended
_KEPT = 4096  # code objects whose source is remembered


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One function in its source.

    Attributes:
        node: its tree.
        file: the file's name, without the folders.
        parents: of each node inside it.
        spans: which nodes have an extent.
    """

    node: Function
    file: str
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    spans: dict[Span, list[ast.AST]] = field(default_factory=dict)

    def path(self, node: ast.AST) -> frozenset[ast.AST]:
        """*node* and everything around it."""
        found = [node]
        while (above := self.parents.get(found[-1])) is not None:
            found.append(above)
        return frozenset(found)


_pieces: dict[int, tuple[CodeType, Piece | None]] = {}
_files: dict[str, tuple[list[str], dict[tuple[str, int], list[Function]]]] = {}


def piece_of(code: CodeType, module: dict[str, Any] | None = None) -> Piece | None:
    """A function's source; ``None``: there is none, or it is not what runs.

    Args:
        code: of the function.
        module: its globals: some modules come from elsewhere than files.
    """
    kept = _pieces.get(id(code))
    if kept is not None:
        return kept[1]
    found = _find(code, module)
    if len(_pieces) >= _KEPT:
        _pieces.pop(next(iter(_pieces)))
    _pieces[id(code)] = (code, found)  # with the code itself: its id is not given to another one
    return found


def _find(code: CodeType, module: dict[str, Any] | None) -> Piece | None:
    lines = linecache.getlines(code.co_filename, module)
    if not lines:
        return None
    kept = _files.get(code.co_filename)
    if kept is None or kept[0] is not lines:
        kept = (lines, _functions("".join(lines)))
        _files[code.co_filename] = kept
    same = [node for node in kept[1].get((code.co_name, code.co_firstlineno), ()) if _is(code, node)]
    if not same:
        return None
    node = same[0] if len(same) == 1 else min(same, key=functools.partial(_misfit, code))
    return indexed(node, PurePath(code.co_filename).name)


def _functions(text: str) -> dict[tuple[str, int], list[Function]]:
    """Everything in a file that has a code object of its own, by name and first line."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[tuple[str, int], list[Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found.setdefault((node.name, first), []).append(node)
        elif isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            found.setdefault((_NAMED[type(node)], node.lineno), []).append(node)
    return found


def indexed(node: Function, file: str) -> Piece:
    """A function with what is needed to find a place in it."""
    made = Piece(node, file)
    todo: list[ast.AST] = [node]
    while todo:
        outer = todo.pop()
        for inner in ast.iter_child_nodes(outer):
            made.parents[inner] = outer
            if isinstance(inner, ast.expr | ast.stmt):
                made.spans.setdefault(_span(inner), []).append(inner)
            if not isinstance(inner, _OWN_SCOPE):
                todo.append(inner)
    return made


def _span(node: ast.expr | ast.stmt) -> Span:
    return (node.lineno, node.end_lineno or node.lineno, node.col_offset, node.end_col_offset or node.col_offset)


def _is(code: CodeType, node: Function) -> bool:
    """Whether *node* can be what *code* was made of: the same parameters, and no name that the code does not know."""
    if isinstance(node, _COMPREHENSIONS):
        return True
    named = [p.arg for p in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    if len(named) != code.co_argcount + code.co_kwonlyargcount:
        return False
    if any(
        n != of for n, of in zip(named, code.co_varnames, strict=False) if not n.startswith("__")
    ):  # in a class that is another
        return False
    known = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, "__debug__"}
    return all(name in known for name in _names(node))


def _names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    """The names that the function itself reads: not those of functions in it, of annotations, of code that is left out."""
    found: list[str] = []
    todo: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    while todo:
        node = todo.pop()
        left_out = isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Call | ast.Attribute)
        if left_out or isinstance(node, (*_OWN_SCOPE, *_COMPREHENSIONS, ast.BoolOp, ast.Assert)):
            continue  # the compiler leaves out what a constant decides
        if isinstance(node, ast.Name) and not node.id.startswith("__"):
            found.append(node.id)
        if isinstance(node, ast.AnnAssign):
            todo += [node.target, *([] if node.value is None else [node.value])]
        else:
            todo += list(ast.iter_child_nodes(node))
    return found


def _misfit(code: CodeType, node: Function) -> tuple[int, int]:
    """How badly the code's extent fits into the node's, and how much larger that is: of two lambdas in one line."""
    first, last, left, right = _span(node.body if isinstance(node, ast.Lambda) else node)
    outside = 0
    for line, _, column, end in code.co_positions():
        if line is None or column is None or end is None or (column, end) == (0, 0):
            continue
        outside += not ((first, left) <= (line, column) and (line, end) <= (last, right))
    return outside, (last - first) * 1000 + right - left


def standing(piece: Piece, code: CodeType, lasti: int) -> tuple[ast.AST | None, bool]:
    """Where in its source a frame stands.

    Returns:
        The node, and whether that is exactly what it waits in (or calls). Else it is the statement, known by its line only.
    """
    positions = _layout(code).positions
    line, last, left, right = positions[lasti // 2] if 0 <= lasti // 2 < len(positions) else (None, None, None, None)
    if line is not None and last is not None and left is not None and right is not None:
        nodes = piece.spans.get((line, last, left, right), [])
        best = next((n for kind in _FIRST for n in nodes if isinstance(n, kind)), None)
        if best is not None or nodes:
            exact = best if best is not None else nodes[-1]
            if not isinstance(exact, ast.stmt) or isinstance(exact, ast.AsyncWith | ast.AsyncFor | ast.For | ast.With):
                return exact, True
    if line is None:
        return None, False
    around = [
        n for nodes in piece.spans.values() for n in nodes if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return (max(around, key=lambda n: (n.lineno, -(n.end_lineno or 0))) if around else None), False


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Where the instructions of a code object come from, and how far it is where it has not begun."""

    code: CodeType
    positions: list[tuple[int | None, int | None, int | None, int | None]]
    begins: int


_RETURN_GENERATOR = opcode.opmap["RETURN_GENERATOR"]
_layouts: dict[int, _Layout] = {}


def _layout(code: CodeType) -> _Layout:
    kept = _layouts.get(id(code))
    if kept is None:
        if len(_layouts) >= _KEPT:
            _layouts.pop(next(iter(_layouts)))
        made = [i for i in range(0, min(len(code.co_code), 200), 2) if code.co_code[i] == _RETURN_GENERATOR]
        kept = _layouts[id(code)] = _Layout(code, list(code.co_positions()), made[0] + 2 if made else -1)
    return kept


def begun(code: CodeType, lasti: int) -> bool:
    """Whether a frame has run any of its function's own code. Making the coroutine is not that."""
    return lasti > _layout(code).begins
