"""Functions of the language and its library that matter to who reads a workflow: what they call, await and give."""

from __future__ import annotations

import ast
import asyncio
import builtins
import functools
import importlib
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepseven.runtime._values import FOREIGN, OPAQUE, Bound, Group, Is, Lazy, Pending, Value, join, within
from stepseven.runtime.declared import Step

if TYPE_CHECKING:
    from stepseven.runtime._calls import Args, Calls

#: the handle's calls that wait, and the parameter that is shown of each
ASKS = {"ask": "text", "approve": "text", "sleep": "duration", "wait_for": "fact", "start": "child"}
#: what awaits, or makes a task of, everything it is given
AWAITING = frozenset(
    {"gather", "create_task", "ensure_future", "wait", "wait_for", "shield", "as_completed", "run_coroutine_threadsafe"}
)
#: what never calls or awaits what it is given
PURE_MODULES = frozenset({"inspect", "typing", "logging", "json", "warnings", "pprint", "copy", "dataclasses"})
_PURE = (
    print, isinstance, issubclass, len, id, repr, str, type, hasattr, callable, hash, format, bool, int, float, bytes, dir,
    object, range, abs, round, divmod, pow, ord, chr, open, input, delattr, asyncio.iscoroutine, asyncio.isfuture,
    asyncio.iscoroutinefunction,
)  # fmt: skip
_CONTAINERS = (
    list,
    tuple,
    set,
    frozenset,
    sorted,
    reversed,
    iter,
    deque,
    aiter,
    itertools.chain,
    itertools.cycle,
    itertools.islice,
)

Special = Callable[["Calls", "Args", ast.AST], Value]


def is_generator(node: ast.AST) -> bool:
    """Whether a function yields."""
    found = _generators.get(id(node))
    if found is None or found[0] is not node:
        if len(_generators) > 4096:  # noqa: PLR2004 - functions
            _generators.clear()
        found = _generators[id(node)] = (node, any(isinstance(n, ast.Yield | ast.YieldFrom) for n in own(node)))
    return found[1]


_generators: dict[int, tuple[ast.AST, bool]] = {}


def own(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function, without those of functions and classes inside it."""
    found: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += list(ast.iter_child_nodes(node))
    return found


def text_at(node: ast.AST, name: str) -> str | None:
    """The text that a call is given as its first argument, where it stands in the source."""
    if not isinstance(node, ast.Call):
        return None
    first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == name), None)
    return None if first is None else constant(first)


def constant(node: ast.expr) -> str | None:
    """A text that stands in the source; what is put into it as it is written there."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(v.value) if isinstance(v, ast.Constant) else "{" + ast.unparse(v.value) + "}"
            for v in node.values
            if isinstance(v, ast.Constant | ast.FormattedValue)
        ]
        return "".join(parts)
    return None


# -- calls ----------------------------------------------------------------------------------------------------------------


def _nothing(reader: Calls, args: Args, node: ast.AST) -> Value:
    del reader, args, node
    return FOREIGN


def _await_all(reader: Calls, args: Args, node: ast.AST) -> Value:
    return reader.awaiting(args, node)


def _first_alone(reader: Calls, args: Args, node: ast.AST) -> Value:
    """``wait``, ``wait_for``, ``shield`` …: the first argument is awaited."""
    first = args.get(0, "fs") or args.get(0, "aw") or args.get(0, "coro") or FOREIGN
    result = reader.consume_all(first, node)
    return Pending(lambda: result, ("awaiting", node))


def _as_completed(reader: Calls, args: Args, node: ast.AST) -> Value:
    reader.consume_all(args.get(0, "fs") or FOREIGN, node)
    return FOREIGN


def _contained(reader: Calls, args: Args, node: ast.AST) -> Value:
    found = [reader.iterate(value, node) for value in args.positional]
    key = args.named.get("key")
    if key is not None:
        reader.hand_on([key], node)
    return Group([*found, *([within(args.rest)] if args.rest is not None else [])])


def _zip(reader: Calls, args: Args, node: ast.AST) -> Value:
    return Group([Group([reader.iterate(value, node) for value in args.positional])])


def _enumerate(reader: Calls, args: Args, node: ast.AST) -> Value:
    return Group([Group([FOREIGN, reader.iterate(args.get(0, "iterable") or OPAQUE, node)])])


def _mapped(reader: Calls, args: Args, node: ast.AST) -> Value:
    from stepseven.runtime._calls import Args as Given  # which stands above this module

    fn, rest = args.get(0, "function") or OPAQUE, args.positional[1:]

    def go() -> Value:
        with reader.under(many=True):
            return reader.call(fn, Given([reader.iterate(value, node) for value in rest]), node)

    return Lazy(go, ("map", node))


def _filtered(reader: Calls, args: Args, node: ast.AST) -> Value:
    reader.hand_on(args.positional[:1], node)
    return Group([reader.iterate(value, node) for value in args.positional[1:]])


def _dict(reader: Calls, args: Args, node: ast.AST) -> Value:
    given = [within(value) for value in args.positional]
    pairs = [v.items[-1] if isinstance(v, Group) and v.items else v for v in given]
    del reader, node
    keys: list[Any] | None = list(args.named) if not pairs and args.rest is None else None
    return Group([*args.named.values(), *pairs, *([args.rest] if args.rest is not None else [])], keys)


def _next(reader: Calls, args: Args, node: ast.AST) -> Value:
    found = reader.iterate(args.get(0, "iterator") or OPAQUE, node)
    return join([found, *args.positional[1:2]])


def _anext(reader: Calls, args: Args, node: ast.AST) -> Value:
    value = args.get(0, "iterator") or OPAQUE
    return reader.pending(lambda: reader.iterate(value, node, wait=True), ("anext", node))


def _getattr(reader: Calls, args: Args, node: ast.AST) -> Value:
    name = args.get(1, "name")
    if isinstance(name, Is) and isinstance(name.obj, str) and args.positional:
        return join([reader.attr(args.positional[0], name.obj, node), *args.positional[2:3]])
    return OPAQUE


def _setattr(reader: Calls, args: Args, node: ast.AST) -> Value:
    reader.hand_on(args.positional[2:3], node)
    return FOREIGN


def _partial(reader: Calls, args: Args, node: ast.AST) -> Value:
    del reader, node
    return Bound(args.positional[0], tuple(args.positional[1:]), args.named) if args.positional else OPAQUE


def _unseen(reader: Calls, args: Args, node: ast.AST) -> Value:
    del args
    reader.unknown(node)
    return OPAQUE


def _anything(reader: Calls, args: Args, node: ast.AST) -> Value:
    del reader, args, node
    return OPAQUE


def _globals(reader: Calls, args: Args, node: ast.AST) -> Value:
    del args, node
    return Is(reader.scope.module)


def _wraps(reader: Calls, args: Args, node: ast.AST) -> Value:
    del reader, args, node
    return Is(same)


def _same(reader: Calls, args: Args, node: ast.AST) -> Value:
    del reader, node
    return args.positional[0] if args.positional else FOREIGN


def same(fn: Any) -> Any:
    """What ``functools.wraps(…)`` is: it gives back what it gets."""
    return fn


def _options(reader: Calls, args: Args, node: ast.AST) -> Value:
    from stepseven.runtime._calls import with_options  # which stands above this module

    del reader, node
    step = args.positional[0] if args.positional else OPAQUE
    if not isinstance(step, Is) or not isinstance(step.obj, Step):
        return step
    return Is(with_options(step.obj, {n: v.obj for n, v in args.named.items() if isinstance(v, Is)}))


SPECIAL: dict[int, Special] = {
    **{id(f): _nothing for f in _PURE},
    **{id(f): _contained for f in _CONTAINERS},
    id(asyncio.gather): _await_all,
    **{id(f): _first_alone for f in (asyncio.create_task, asyncio.ensure_future, asyncio.wait, asyncio.wait_for, asyncio.shield)},
    id(asyncio.as_completed): _as_completed,
    id(zip): _zip,
    id(enumerate): _enumerate,
    id(map): _mapped,
    id(filter): _filtered,
    id(dict): _dict,
    id(next): _next,
    id(anext): _anext,
    id(getattr): _getattr,
    id(setattr): _setattr,
    id(functools.partial): _partial,
    id(functools.wraps): _wraps,
    id(same): _same,
    id(Step.options): _options,
    id(globals): _globals,
    id(vars): _anything,
    id(locals): _anything,
    id(builtins.exec): _unseen,
    id(builtins.eval): _unseen,
    id(builtins.__import__): _anything,
    id(importlib.import_module): _anything,
}
