"""What the frames of a run's tasks say besides where they are: what stepseven is about to call, and which tasks are alike."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from pathlib import PurePath
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from stepseven.runtime._source import begun
from stepseven.runtime._values import Is, Value, held_by, lift, ours, plain_key
from stepseven.runtime.calls import Call, Deferred
from stepseven.runtime.declared import Step

if TYPE_CHECKING:
    from stepseven.runtime._blocks import Reader

_DEPTH = 3  # how far attributes of attributes are told apart
_CALLABLE = (Step, types.FunctionType, types.MethodType, functools.partial, Deferred, types.CoroutineType, type, types.ModuleType)

Handler = Callable[["Reader", FrameType, int, FrameType | None, ast.AST], None]


def nowhere(fn: Any) -> ast.AST:
    """A node that stands at a function's first line."""
    return ast.Pass(lineno=getattr(getattr(fn, "__code__", None), "co_firstlineno", 0))


def at(frame: FrameType) -> ast.AST:
    """A node that stands where a frame is."""
    return ast.Pass(lineno=frame.f_lineno or 0)


def file_of(of: Any) -> str:
    """The name of the file a function or a frame belongs to, without the folders."""
    code = getattr(of, "f_code", None) or getattr(of, "__code__", None)
    return _name(code.co_filename) if code is not None else "?"


@functools.lru_cache(maxsize=4096)
def _name(file: str) -> str:
    return PurePath(file).name


# -- tasks that stand alike -----------------------------------------------------------------------------------------------


def of_chain(frames: Sequence[FrameType]) -> Any:
    """Two chains at one place with the same of these have the same ahead: their names stand for the same, but for data."""
    told = []
    for frame in frames:
        names = frame.f_locals
        if ours(frame.f_code.co_filename):
            call = names.get("call")
            told.append(id(call.step) if isinstance(call, Call) else _of_map(names.get("self")))
        else:
            told.append(tuple((n, _alike(lift(v), _DEPTH)) for n, v in names.items()))
    return tuple(told)


def _of_map(obj: Any) -> Any:
    return (id(obj), obj.started) if type(obj).__name__ == "MapRun" else None


def _alike(value: Value, depth: int) -> Any:
    """As ``plain_key``, and objects of one class that hold nothing to call alike."""
    if not isinstance(value, Is):
        return plain_key(value)
    obj = value.obj
    if isinstance(obj, _CALLABLE) or inspect.isasyncgen(obj) or inspect.isgenerator(obj):
        return id(obj)
    held = held_by(obj)
    if held is not None:
        return frozenset(_alike(v, depth - 1) for v in held) if depth else id(obj)
    kept = getattr(obj, "__dict__", None)
    if not kept:
        return plain_key(value) if plain_key(value) == "data" else type(obj)
    return (type(obj), tuple((n, _alike(lift(v), depth - 1)) for n, v in kept.items())) if depth else id(obj)


# -- our own frames -------------------------------------------------------------------------------------------------------


def add(reader: Reader, frame: FrameType, lasti: int, inner: FrameType | None, node: ast.AST) -> None:
    """Note what a frame of stepseven's own code is about to call of the user's.

    Args:
        reader: takes the notes.
        frame: one of ours.
        lasti: the instruction it is at.
        inner: the frame that it waits for.
        node: where that is noted.
    """
    handler = _handlers().get(frame.f_code)
    if handler is not None:
        handler(reader, frame, lasti, inner, node)


@functools.cache
def _handlers() -> dict[CodeType, Handler]:
    from stepseven.runtime import mapping, outline, place, starting  # which stand above this module

    return {
        place._ending.__code__: _task,  # noqa: SLF001 - its frames are what is looked at
        mapping.MapRun._item.__code__: _item,  # noqa: SLF001 - the same
        mapping.MapRun.run.__code__: _further_items,
        starting._prepared.__code__: _preparing,  # noqa: SLF001 - the same
        outline.body.__code__: _body,
    }


def _task(reader: Reader, frame: FrameType, lasti: int, inner: FrameType | None, node: ast.AST) -> None:
    """A task that has not begun."""
    if inner is None and not begun(frame.f_code, lasti):
        reader.consume(lift(frame.f_locals["coro"]), node)


def _item(reader: Reader, frame: FrameType, lasti: int, inner: FrameType | None, node: ast.AST) -> None:
    """An item of a map that has not begun."""
    if inner is None and not begun(frame.f_code, lasti):
        _call_for_item(reader, frame.f_locals["self"], [frame.f_locals["self"].items[frame.f_locals["index"]]], node)


def _further_items(reader: Reader, frame: FrameType, lasti: int, inner: FrameType | None, node: ast.AST) -> None:
    """The items of a map that wait for their turn."""
    del lasti, inner
    running = frame.f_locals["self"]
    left = running.items[running.started :]
    if left:
        with reader.under(many=len(left) > 1):
            _call_for_item(reader, running, left, node)


def _call_for_item(reader: Reader, running: Any, items: list[Any], node: ast.AST) -> None:
    from stepseven.runtime._calls import Args

    reader.consume(reader.call(lift(running.fn), Args([reader.iterate(Is(items), node)]), node), node)


def _preparing(reader: Reader, frame: FrameType, lasti: int, inner: FrameType | None, node: ast.AST) -> None:
    """What comes before the body is not over yet."""
    from stepseven.runtime import ahead

    del node
    name = None if inner is None else inner.f_code.co_name
    if name == "body":
        return
    workflow = frame.f_locals["ex"].workflow
    if not begun(frame.f_code, lasti):
        ahead.read_before(reader, workflow, loader=True)
    elif name == "_load":
        ahead.read_before(reader, workflow, loader=False)
    ahead.read_body(reader, workflow)


def _body(reader: Reader, frame: FrameType, lasti: int, inner: FrameType | None, node: ast.AST) -> None:
    """The body has not begun."""
    from stepseven.runtime import ahead

    del node
    if inner is None and not begun(frame.f_code, lasti):
        ahead.read_body(reader, frame.f_locals["workflow"])
