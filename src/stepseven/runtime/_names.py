"""Names over the branches and rounds of a workflow's source, and which of a function's names are its own."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from dataclasses import replace

from stepseven.decide.plan import Coming
from stepseven.runtime import _tables as tables
from stepseven.runtime._values import OPAQUE, Value, join, key


def joined(ends: Sequence[dict[str, Value]]) -> dict[str, Value]:
    """The names after one of several ways."""
    if len(ends) == 1:
        return ends[0]
    names = {name: None for end in ends for name in end}
    return {name: join([end[name] for end in ends if name in end]) for name in names}


def round_joined(before: dict[str, Value], after: dict[str, Value], *, give_up: bool) -> tuple[dict[str, Value], bool]:
    """The names before a loop's next round, and whether they stand for more than before the last one."""
    joined, changed = dict(after), False
    for name, value in before.items():
        now = after.get(name, value)
        if now is value:
            continue
        joined[name] = join([value, now])
        if key(joined[name]) != key(value):
            changed = True
            if give_up:
                joined[name] = OPAQUE
    return joined, changed


def merged(comings: Sequence[Coming]) -> list[Coming]:
    """One entry for each name and place: what comes to one place several times comes *many* times."""
    found: dict[tuple[str, str], Coming] = {}
    for one in comings:
        at = (one.name, one.where)
        other = found.get(at)
        found[at] = one if other is None else replace(other, many=True, maybe=other.maybe and one.maybe)
    return list(found.values())


@functools.lru_cache(maxsize=4096)
def scopes_of(node: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a function assigns elsewhere, and those of its own that functions inside it assign."""
    elsewhere: set[str] = set()
    changing: set[str] = set()
    for inner in tables.own(node):
        if isinstance(inner, ast.Global | ast.Nonlocal):
            elsewhere.update(inner.names)
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            for deeper in ast.walk(inner):
                if isinstance(deeper, ast.Nonlocal):
                    changing.update(deeper.names)
    return frozenset(elsewhere), frozenset(changing)
