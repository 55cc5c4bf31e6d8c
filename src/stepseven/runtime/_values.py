"""What a name in a workflow's source stands for, as far as it can be known without running anything.

A value is either known whole (``Is``: this very object), known in part (a function of the source, an instance of a class), of no
interest (``FOREIGN``: another package's, or plain data: awaiting it runs no step), or unknown (``OPAQUE``: it may be anything).

Longer than other files: the kinds of value, and how each is told from the others, in one place.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from enum import Enum
from pathlib import PurePath
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.runtime._source import Function, Piece
from stepseven.runtime.binding import hints_of
from stepseven.runtime.declared import Step
from stepseven.runtime.procedure import Workflow

MOST = 32  # possibilities, or things in a container, that are told apart


class Value:
    """What an expression may give."""

    __slots__ = ()


class _Kind(Value):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


FOREIGN = _Kind("FOREIGN")
OPAQUE = _Kind("OPAQUE")
MEMBER = _Kind("MEMBER")  # an attribute of something OPAQUE: a call of it is an ordinary one, what it gives is OPAQUE
HANDLE = _Kind("HANDLE")  # the run's handle


@dataclass(frozen=True, slots=True, eq=False)
class Is(Value):
    """This very object. *sure*: it is data, and decides a condition."""

    obj: Any
    sure: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Asks(Value):
    """A method of the handle."""

    name: str


@dataclass(slots=True, eq=False)
class Scope:
    """The names of a function, and where others are looked up."""

    names: dict[str, Value]
    outer: Scope | None
    module: dict[str, Any]
    elsewhere: frozenset[str] = frozenset()  # names that are not this scope's own: ``global``, ``nonlocal``
    changing: frozenset[str] = frozenset()  # names that functions inside may assign at any time


@dataclass(frozen=True, slots=True, eq=False)
class Def(Value):
    """A function whose source is at hand."""

    piece: Piece
    scope: Scope
    defaults: dict[str, Value] = field(default_factory=dict)
    of: Any = None  # the function object, if there is one

    @property
    def node(self) -> Function:
        """Its tree."""
        return self.piece.node


@dataclass(frozen=True, slots=True, eq=False)
class Bound(Value):
    """A callable with some of its arguments: a method of an instance, a ``functools.partial``."""

    target: Value
    args: tuple[Value, ...]
    kwargs: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Instance(Value):
    """An instance, made in view or known by its type."""

    cls: type
    attrs: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Group(Value):
    """A container. *keys*: of a dict display, as far as they are constants."""

    items: list[Value]
    keys: list[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Some(Value):
    """One of these."""

    options: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pending(Value):
    """A call that begins when it is awaited. *go* says what it calls then, and gives what it returns."""

    go: Callable[[], Value]
    what: Any = None  # tells two apart
    many: bool = False
    maybe: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Lazy(Value):
    """A generator: its code runs when somebody iterates over it. *go* gives one of its items; *node*: its function, if any."""

    go: Callable[[], Value]
    what: Any = None
    body: Def | None = None
    args: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Declared(Value):
    """A step that the code being read declares itself."""

    name: str
    effect: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Super(Value):
    """``super()`` in a method of *cls*."""

    cls: type
    of: Value


@dataclass(frozen=True, slots=True, eq=False)
class Child(Value):
    """A workflow with its inputs, for ``run.start``."""

    name: str


# -- putting values together ----------------------------------------------------------------------------------------------

_DATA = (str, bytes, int, float, complex, bool, type(None), Enum, types.EllipsisType)


def key(value: Value) -> Any:  # noqa: PLR0911 - one case for each kind of value
    """Two values with one key are the same to whoever calls or awaits them."""
    if isinstance(value, Is):
        return ("data", value.obj if value.sure else None) if isinstance(value.obj, _DATA) else id(value.obj)
    if isinstance(value, Some):
        return ("some", frozenset(key(v) for v in value.options))
    if isinstance(value, Bound):
        return (
            "bound",
            key(value.target),
            tuple(key(v) for v in value.args),
            tuple((n, key(v)) for n, v in value.kwargs.items()),
        )
    if isinstance(value, Group):
        return ("group", frozenset(key(v) for v in value.items[:MOST]))
    if isinstance(value, Def):
        return ("def", id(value.node), frozenset((n, id(v)) for n, v in value.scope.names.items()))
    if isinstance(value, Asks | Child):
        return (type(value), value.name)
    if isinstance(value, Pending | Lazy):
        return (type(value), value.what)
    if isinstance(value, Declared):
        return ("declared", value.name)
    return id(value)


def plain_key(value: Value) -> Any:
    """As ``key``, and all data alike: for telling whether a function is called with something else to call."""
    if isinstance(value, Instance):  # with what it has by now; of others in it, which they are
        held = [(n, id(v) if isinstance(v, Instance) else plain_key(v)) for n, v in value.attrs.items()]
        return (id(value), tuple(held))
    return "data" if value is FOREIGN or (isinstance(value, Is) and isinstance(value.obj, _DATA)) else key(value)


def boring(value: Value) -> bool:
    """Whether nothing can be called or awaited through it that matters."""
    if isinstance(value, Group):
        return all(map(boring, value.items))
    return value is FOREIGN or (isinstance(value, Is) and isinstance(value.obj, _DATA))


def join(values: Iterable[Value]) -> Value:
    """One of *values*, whichever."""
    found: dict[Any, Value] = {}
    for value in values:
        for one in value.options if isinstance(value, Some) else (value,):
            found.setdefault(key(one), one)
    if len(found) > 1 and any(boring(v) for v in found.values()):
        found = {k: v for k, v in found.items() if not boring(v)}
        found["data"] = FOREIGN
    options = tuple(found.values())
    if len(options) > MOST:
        options = (*options[:MOST], OPAQUE)
    return options[0] if len(options) == 1 else Some(options) if options else FOREIGN


def within(value: Value) -> Value:
    """One of a container's things."""
    if isinstance(value, Group):
        return join(value.items) if value.items else FOREIGN
    if isinstance(value, Some):
        return join([within(v) for v in value.options])
    if isinstance(value, Is):
        found = held_by(value.obj)
        return FOREIGN if found is None else join(found) if found else FOREIGN
    return value if value in (FOREIGN, OPAQUE) else OPAQUE if value is MEMBER else FOREIGN


def held_by(obj: Any) -> list[Value] | None:
    """The things in a real container that matter; ``None``: it is none."""
    if isinstance(obj, dict):
        obj = [*obj.values()]
    elif isinstance(obj, set | frozenset):
        obj = [*obj]
    elif not isinstance(obj, list | tuple):
        return None
    found: dict[Any, Value] = {}
    for one in obj:
        value = lift(one)
        if not boring(value):
            found.setdefault(key(value), value)
            if len(found) > MOST:
                return [*found.values(), OPAQUE]
    if len(found) < len(obj):
        found["data"] = FOREIGN
    return list(found.values())


# -- real objects ---------------------------------------------------------------------------------------------------------


def lift(obj: Any, *, sure: bool = False) -> Value:
    """A real object as a value. *sure*: it is a name of a suspended function, that nobody else changes."""
    if isinstance(obj, _DATA):
        return Is(obj, sure and not isinstance(obj, Enum))
    from stepseven.runtime.handle import Run  # which stands above this module

    if isinstance(obj, Run):
        return HANDLE
    if isinstance(obj, types.MethodType):
        return Asks(obj.__name__) if isinstance(obj.__self__, Run) else Bound(lift(obj.__func__), (lift(obj.__self__),))
    if isinstance(obj, functools.partial):
        return Bound(lift(obj.func), tuple(map(lift, obj.args)), {n: lift(v) for n, v in obj.keywords.items()})
    return Is(obj)


_OURS = PurePath(__file__).parent.parent
_mentions: dict[int, tuple[Any, bool]] = {}


@functools.lru_cache(maxsize=4096)
def ours(file: str) -> bool:
    """Whether a file is part of stepseven."""
    return PurePath(file).is_relative_to(_OURS)


@functools.cache
def _libraries() -> tuple[PurePath, ...]:
    import sysconfig  # reads a large table, for which few processes have a use

    paths = sysconfig.get_paths().items()
    return tuple({PurePath(p) for name, p in paths if name in ("stdlib", "platstdlib", "purelib", "platlib")})


@functools.lru_cache(maxsize=4096)
def _in_library(file: str) -> bool:
    path = PurePath(file)
    return file.startswith("<frozen") or any(path.is_relative_to(p) for p in _libraries()) or "site-packages" in path.parts


def foreign(file: str | None, module: str | None, names: dict[str, Any], home: str) -> bool:
    """Whether code belongs to another package, which knows no step that is not given to it.

    Args:
        file: where it stands; ``None``: it is not written in Python.
        module: its module's name.
        names: that module's globals.
        home: the package of the workflow, which may be installed beside the others.
    """
    top = (module or "").partition(".")[0]
    if file is None:
        return top in sys.stdlib_module_names or not (top == home or _knows_us(names))
    if ours(file):
        return top != home
    return _in_library(file) and top not in {home} - sys.stdlib_module_names and not _knows_us(names)


def _knows_us(names: dict[str, Any]) -> bool:
    """Whether a module's globals have something of stepseven: then it may call steps of its own."""
    kept = _mentions.get(id(names))
    if kept is not None and kept[0] is names:
        return kept[1]
    found = any(
        isinstance(v, Step | Workflow)
        or str(getattr(v, "__module__", None) or getattr(v, "__name__", "")).partition(".")[0] == "stepseven"
        for v in list(names.values())
        if isinstance(v, Step | Workflow | types.ModuleType | type | types.FunctionType)
    )
    if len(_mentions) >= 1024:  # noqa: PLR2004 - modules
        _mentions.clear()
    _mentions[id(names)] = (names, found)
    return found


def foreign_type(cls: type, home: str) -> bool:
    """Whether a class belongs to another package."""
    module = sys.modules.get(cls.__module__)
    if module is None:
        return False
    return foreign(getattr(module, "__file__", None), cls.__module__, vars(module), home)


def attribute(obj: Any, name: str) -> Any:
    """An attribute as it is stored, without running code for it; ``MISSING``: there is none to be seen."""
    try:
        return inspect.getattr_static(obj, name)
    except (AttributeError, TypeError):
        return MISSING


MISSING = object()


# -- types ----------------------------------------------------------------------------------------------------------------


def returned(fn: Any) -> Any:
    """What a function says that it returns."""
    try:
        return hints_of(fn).get("return", MISSING)
    except Exception:  # noqa: BLE001 - whatever an annotation raises
        return MISSING


def typed(hint: Any, home: str) -> Value:
    """What is known of a value whose type was declared."""
    if hint is None or hint is type(None):
        return FOREIGN
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return typed(args[0], home)
    if origin in (typing.Union, types.UnionType):
        return join([typed(a, home) for a in args])
    if origin is typing.Literal:
        return FOREIGN
    if isinstance(origin, type):
        inner = [a for a in args if a is not Ellipsis]
        if issubclass(origin, list | tuple | set | frozenset | dict) and inner:
            return Group([typed(a, home) for a in (inner[-1:] if issubclass(origin, dict) else inner)])
        return OPAQUE if "Callable" in origin.__name__ or "Awaitable" in origin.__name__ else _of(origin, home)
    return _of(hint, home) if isinstance(hint, type) else OPAQUE


def _of(cls: type, home: str) -> Value:
    if cls is object:
        return OPAQUE
    if cls.__module__ == "builtins" and issubclass(cls, list | dict | tuple | set | frozenset):
        return Group([OPAQUE])
    from stepseven.runtime.handle import Run  # which stands above this module

    if issubclass(cls, Run):
        return HANDLE
    if foreign_type(cls, home) or issubclass(cls, Enum):
        return OPAQUE if cls.__module__ in ("typing", "types", "functools", "collections.abc") else FOREIGN
    return Instance(cls)


def fields_of(cls: type) -> Sequence[str]:
    """The names of a dataclass's (or NamedTuple's) fields, in order."""
    if dataclasses.is_dataclass(cls):
        return [f.name for f in dataclasses.fields(cls) if f.init]
    return getattr(cls, "_fields", ())
