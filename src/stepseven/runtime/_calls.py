"""What a call in the source calls: steps, the handle's own waits, functions that can be read, and what cannot be seen through.

Longer than other files: calling, awaiting, iterating and handing on are one recursion over the same values.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import types
from abc import ABC, abstractmethod
from dataclasses import field, replace
from typing import Any
from weakref import WeakKeyDictionary, ref

from stepseven._dataclass import dataclass
from stepseven.decide.plan import Coming
from stepseven.model import EffectKind
from stepseven.runtime import _tables as tables
from stepseven.runtime._notes import Mapped, Notes
from stepseven.runtime._source import Piece, piece_of
from stepseven.runtime._values import (
    FOREIGN,
    HANDLE,
    MEMBER,
    MISSING,
    MOST,
    OPAQUE,
    Asks,
    Bound,
    Child,
    Declared,
    Def,
    Group,
    Instance,
    Is,
    Lazy,
    Pending,
    Scope,
    Some,
    Value,
    attribute,
    fields_of,
    foreign,
    foreign_type,
    held_by,
    join,
    lift,
    plain_key,
    returned,
    typed,
    within,
)  # fmt: skip
from stepseven.runtime.binding import hints_of
from stepseven.runtime.calls import Call, Deferred
from stepseven.runtime.declared import Step, normal
from stepseven.runtime.procedure import Workflow, WorkflowCall


@dataclass(slots=True)
class Args:
    """The arguments of a call. *rest*: one of those that ``*`` or ``**`` bring."""

    positional: list[Value] = field(default_factory=list)
    named: dict[str, Value] = field(default_factory=dict)
    rest: Value | None = None

    def get(self, index: int, name: str) -> Value | None:
        """The argument at this place, or of this name."""
        found = self.positional[index] if index < len(self.positional) else self.named.get(name)
        return found if found is not None else self.rest

    def every(self) -> list[Value]:
        """All of them."""
        return [*self.positional, *self.named.values(), *(() if self.rest is None else (self.rest,))]


_WAITING = ("run.ask", "run.approve", "run.sleep", "run.wait_for", "run.start")
_inner: WeakKeyDictionary[Step[Any, Any], tuple[Coming, ...]] = WeakKeyDictionary()


class Calls(Notes, ABC):
    """Reads calls, and what becomes of what they give."""

    # -- calling --------------------------------------------------------------------------------------------------------

    def call(self, value: Value, args: Args, node: ast.AST) -> Value:
        """What a call of *value* gives; what it calls is noted."""
        self.spend()
        if isinstance(value, Some):
            with self.under(maybe=True):
                return join([self.call(one, args, node) for one in value.options])
        if isinstance(value, Asks):
            return self.asks(value.name, args, node)
        if isinstance(value, Bound):
            return self.call(value.target, Args([*value.args, *args.positional], {**value.kwargs, **args.named}, args.rest), node)
        if isinstance(value, Def):
            return self.function(value, args, node)
        if isinstance(value, Is):
            return self.call_object(value.obj, args, node)
        if isinstance(value, Declared):
            made = Coming(name=value.name, where=self.at(node), effect=value.effect)
            return self.pending(lambda: self.noted(made), ("declared", node))
        if isinstance(value, Instance):
            method = self.attr(value, "__call__", node)
            if isinstance(method, Bound):
                return self.call(method, args, node)
        if value is OPAQUE or value is HANDLE:
            self.unknown(node)
        self.hand_on(args.every(), node)
        return OPAQUE if value is OPAQUE or value is MEMBER else FOREIGN

    def noted(self, coming: Coming) -> Value:
        """Note it; what it gives is data."""
        self.add(coming)
        return FOREIGN

    def call_object(self, obj: Any, args: Args, node: ast.AST) -> Value:
        """What a call of this very object gives."""
        if isinstance(obj, Step):
            return self.step(obj, args, node)
        if isinstance(obj, Workflow):
            return Child(obj.name)
        special = tables.SPECIAL.get(id(obj))
        if special is not None:
            return special(self, args, node)
        if isinstance(obj, type):
            return self.construct(obj, args, node)
        if isinstance(obj, types.FunctionType):
            return self.real_function(obj, args, node)
        if isinstance(
            obj, types.BuiltinFunctionType | types.MethodWrapperType | types.WrapperDescriptorType | types.MethodDescriptorType
        ):
            self.hand_on(args.every(), node)
            return FOREIGN
        method = attribute(type(obj), "__call__")
        if isinstance(method, types.FunctionType) and not self._foreign(method):
            return self.call(Bound(Is(method), (Is(obj),)), args, node)
        return self.foreign_call(obj, args, node)

    def step(self, step: Step[Any, Any], args: Args, node: ast.AST) -> Value:
        """A call of a step. What its own code calls may come with it."""
        made = coming_of(step, self.at(node))

        def go() -> Value:
            inside = self.inside(step)
            self.add(replace(made, anew=any(map(may_wait, inside))))
            for inner in inside:
                self.add(inner)
            return typed(returned(step.fn), self.home)

        for value in args.every():  # in a generator among the arguments, and nowhere else
            if isinstance(value, Lazy):
                self.iterate(value, node)
        return self.pending(go, ("step", id(step), node))

    def inside(self, step: Step[Any, Any]) -> tuple[Coming, ...]:
        """The steps that a step's own code may call."""
        found = _inner.get(step)
        if found is None:
            _inner[step] = ()  # it may call itself
            reader = type(self)(self.home, in_step=True)
            with reader.under(maybe=True):
                for fn in (step.fn, *(a.fn for a in step.hooks.approaches)):
                    reader.begin_by_itself(lift(fn))
            found = _inner[step] = tuple(reader.out)
        return found

    def begin_by_itself(self, value: Value) -> None:
        """Read a function that somebody else calls, with whatever arguments."""
        node = ast.Pass(lineno=0)
        try:
            self.consume(self.call(value, Args(rest=FOREIGN), node), node)
        except Exception:  # noqa: BLE001 - too much to read; or what an object of the user's raises when it is looked at
            self.muted = False
            self.unknown(node)

    def real_function(self, fn: types.FunctionType, args: Args, node: ast.AST) -> Value:
        """A call of a function object: read, or another package's."""
        if self._foreign(fn):
            if fn.__name__ in tables.AWAITING and str(fn.__globals__.get("__name__")).partition(".")[0] in (
                "asyncio",
                "anyio",
                "trio",
            ):
                return self.awaiting(args, node)
            return self.foreign_call(fn, args, node)
        piece = piece_of(fn.__code__, fn.__globals__)
        if piece is None:
            self.unknown(node)
            self.hand_on(args.every(), node)
            return FOREIGN
        return self.function(defined(fn, piece), args, node)

    def _foreign(self, fn: types.FunctionType) -> bool:
        names = fn.__globals__  # and not its ``__module__``: a decorator may have copied that from what it wraps
        return foreign(fn.__code__.co_filename, names.get("__name__"), names, self.home)

    def foreign_call(self, obj: Any, args: Args, node: ast.AST) -> Value:
        """A call of another package's: it can call what it is given, and what it was made of."""
        module = str(getattr(obj, "__module__", "")).partition(".")[0]
        wrapped = attribute(obj, "__wrapped__")
        if wrapped is not MISSING and not isinstance(obj, type):
            with self.under(many=not inspect.isasyncgenfunction(wrapped) and not inspect.isgeneratorfunction(wrapped)):
                return self.call(lift(wrapped), args, node)
        if isinstance(obj, types.FunctionType):
            for cell in obj.__closure__ or ():
                self.hand_on([_content(cell)], node)
        else:
            self.hand_on_held(obj, node)
        if module not in tables.PURE_MODULES:
            self.hand_on(args.every(), node)
        return FOREIGN

    def construct(self, cls: type, args: Args, node: ast.AST) -> Value:
        """An instance of a class."""
        if foreign_type(cls, self.home):
            if not issubclass(cls, BaseException):
                self.hand_on(args.every(), node)
            return FOREIGN
        made = Instance(cls)
        init = attribute(cls, "__init__")
        if (
            isinstance(init, types.FunctionType)
            and not self._foreign(init)
            and piece_of(init.__code__, init.__globals__) is not None
        ):
            self.call(Bound(Is(init), (made,)), args, node)
        else:
            made.attrs.update(zip(fields_of(cls), args.positional, strict=False))
            made.attrs.update(args.named)
        return made

    def function(self, d: Def, args: Args, node: ast.AST) -> Value:
        """A call of a function in view: walked now, or when it is awaited or iterated over."""
        names = self.bind(d, args)
        what = (d.node, node, tuple((n, plain_key(v)) for n, v in names.items()))
        inner = d.node
        if isinstance(inner, ast.Lambda):
            return self.walk(d, names)
        if tables.is_generator(inner):
            return Lazy(lambda: self.walk(d, names), what, d, names)
        if isinstance(inner, ast.AsyncFunctionDef):
            return self.pending(lambda: self.walk(d, names), what)
        return self.walk(d, names)

    def bind(self, d: Def, args: Args) -> dict[str, Value]:
        """The arguments by the function's parameters."""
        node = d.node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return {}
        a, names, given = node.args, dict[str, Value](), list(args.positional)
        named = dict(args.named)
        for p in (*a.posonlyargs, *a.args, *a.kwonlyargs):
            if given and p not in a.kwonlyargs:
                value = given.pop(0)
            elif p.arg in named:
                value = named.pop(p.arg)
            else:
                default = d.defaults.get(p.arg)
                value = join([v for v in (args.rest, default) if v is not None]) if args.rest or default else OPAQUE
            names[p.arg] = self.declared(p.annotation, value, d)
        if a.vararg is not None:
            names[a.vararg.arg] = Group([*given, *(() if args.rest is None else (args.rest,))])
        if a.kwarg is not None:
            keys: list[Any] = list(named)
            names[a.kwarg.arg] = Group(
                [*named.values(), *(() if args.rest is None else (args.rest,))], keys if args.rest is None else None
            )
        return names

    def declared(self, annotation: ast.expr | None, value: Value, d: Def) -> Value:
        """A value, and where nothing is known of it what its annotation says."""
        if value is not OPAQUE or annotation is None:
            return value
        if d.of is not None and isinstance(annotation, ast.expr):
            name = next((p.arg for p in ast.walk(d.node) if isinstance(p, ast.arg) and p.annotation is annotation), "")
            hint = hints_of(d.of).get(name, MISSING)
            return OPAQUE if hint is MISSING else typed(hint, self.home)
        return value

    @abstractmethod
    def walk(self, d: Def, names: dict[str, Value]) -> Value:
        """Read a function's body; what it returns, or yields."""

    def asks(self, name: str, args: Args, node: ast.AST) -> Value:
        """A call of the run's handle."""
        if name == "map":
            fn, items = args.get(0, "step") or OPAQUE, args.get(1, "items") or OPAQUE
            item = self.iterate(items, node)
            self.mapped(fn, args.named.get("key", args.rest))

            def each() -> Value:
                with self.under(many=True):
                    return Group([self.consume(self.call(fn, Args([item]), node), node)])

            return self.pending(each, ("map", node, plain_key(fn)))
        if name not in tables.ASKS:
            return FOREIGN
        first = args.get(0, tables.ASKS[name])
        text = first.obj if isinstance(first, Is) and isinstance(first.obj, str) else tables.text_at(node, tables.ASKS[name])
        if name == "start":
            texts = [_started(v) for v in (first.options if isinstance(first, Some) else (first,))]
            text = " or ".join(texts) if all(texts) else None  # one that is not seen may be any
        made = Coming(name=f"run.{name}", where=self.at(node), text=text if name != "sleep" else None)
        about = args.named.get("about", FOREIGN) if name == "approve" else FOREIGN

        def go() -> Value:
            self.add(made)
            return about

        return self.pending(go, ("run", node))

    def mapped(self, fn: Value, key: Value | None) -> None:
        """Note what is mapped, and under which keys."""
        given = [] if key is None else key.options if isinstance(key, Some) else [key]
        for name in (_called(one) for one in (fn.options if isinstance(fn, Some) else (fn,))):
            texts = [_text(one, name) for one in given] or [name]
            self.maps.update((Mapped(name, text), None) for text in texts if not self.muted)

    # -- awaiting, iterating --------------------------------------------------------------------------------------------

    def consume(self, value: Value, node: ast.AST) -> Value:
        """Await a value; what that gives."""
        if isinstance(value, Pending):
            self.loose.pop(id(value), None)
            with self.under(many=value.many, maybe=value.maybe):
                return value.go()
        if isinstance(value, Some):
            with self.under(maybe=True):
                return join([self.consume(one, node) for one in value.options])
        if value is OPAQUE or value is MEMBER:
            self.unknown(node)
            return OPAQUE
        if isinstance(value, Instance):
            method = self.attr(value, "__await__", node)
            return self.iterate(self.call(method, Args(), node), node) if isinstance(method, Bound) else FOREIGN
        if isinstance(value, Is):
            return self._consume_object(value.obj, node)
        return value if value is FOREIGN else FOREIGN

    def _consume_object(self, obj: Any, node: ast.AST) -> Value:
        if isinstance(obj, Deferred):
            if obj._coro is None:  # noqa: SLF001 - whether it has begun; else it is awaited somewhere already
                self._deferred(obj, node)
            return OPAQUE
        if inspect.iscoroutine(obj):
            if inspect.getcoroutinestate(obj) == inspect.CORO_CREATED:
                frame = obj.cr_frame
                assert frame is not None  # it has not begun  # noqa: S101
                if obj.cr_code.co_qualname == "Step._outside.<locals>.run":  # a step that was called outside of a run
                    return self.consume(self.step(frame.f_locals["self"], Args(), node), node)
                return self.resume(frame, node)
            return OPAQUE
        if asyncio.isfuture(obj):
            return OPAQUE
        method = attribute(type(obj), "__await__")
        if isinstance(method, types.FunctionType) and not self._foreign(method):
            return self.iterate(self.call(Bound(Is(method), (Is(obj),)), Args(), node), node)
        return FOREIGN

    def _deferred(self, obj: Deferred[Any], node: ast.AST) -> None:
        """A call that was made, and begins when it is awaited."""
        if isinstance(obj, Call):
            self.consume(self.step(obj.step, Args(), node), node)
        elif obj.what.startswith("run."):
            self.add(Coming(name=obj.what.removesuffix("()"), where=self.at(node)))

    @abstractmethod
    def resume(self, frame: types.FrameType, node: ast.AST, lasti: int | None = None) -> Value:
        """Read on from where a frame stands."""

    @abstractmethod
    def after_yield(self, lazy: Lazy) -> None:
        """Read on after the first ``yield`` of a generator."""

    def awaiting(self, args: Args, node: ast.AST) -> Value:
        """``asyncio.gather`` and its kind: everything that is given is awaited, also in containers."""
        results = [self.consume_all(value, node) for value in args.every()]
        return Pending(lambda: results[0] if len(results) == 1 else Group(results), ("awaiting", node))

    def consume_all(self, value: Value, node: ast.AST) -> Value:
        """Await a value, or everything in it."""
        if isinstance(value, Group):
            return Group([self.consume_all(one, node) for one in value.items])
        if isinstance(value, Is) and held_by(value.obj) is not None:
            return self._consume_real(value.obj, node)
        if isinstance(value, Lazy):
            item = self.iterate(value, node)
            with self.under(many=True):
                return Group([self.consume(one, node) for one in (item.options if isinstance(item, Some) else (item,))])
        if isinstance(value, Some):
            with self.under(maybe=True):
                return join([self.consume_all(one, node) for one in value.options])
        return self.consume(value, node)

    def _consume_real(self, container: Any, node: ast.AST) -> Value:
        """Await everything in a real container; of many that are alike one, and that *many* times."""
        items = list(container.values() if isinstance(container, dict) else container)
        if len(items) <= MOST:
            return Group([self.consume(lift(one), node) for one in items])
        kinds = {id(one.step) if isinstance(one, Call) else getattr(one, "cr_code", None) or type(one): one for one in items}
        with self.under(many=True):
            if any(not isinstance(one, Call) and inspect.iscoroutine(one) for one in items):
                self.unknown(node)  # one code, and nobody looked at what each was called with
            return Group([self.consume(lift(one), node) for one in kinds.values()])

    def iterate(self, value: Value, node: ast.AST, *, wait: bool = False) -> Value:
        """One of the things a value gives when somebody iterates over it. *wait*: by ``async for``."""
        self.spend()
        if isinstance(value, Lazy):
            return value.go()
        if isinstance(value, Some):
            with self.under(maybe=True):
                return join([self.iterate(one, node, wait=wait) for one in value.options])
        if isinstance(value, Group):
            return FOREIGN if value.keys is not None else within(value)
        if isinstance(value, Is) and isinstance(value.obj, types.AsyncGeneratorType | types.GeneratorType):
            frame = value.obj.ag_frame if isinstance(value.obj, types.AsyncGeneratorType) else value.obj.gi_frame
            return FOREIGN if frame is None else self.resume(frame, node)
        if isinstance(value, Is) and isinstance(value.obj, dict):
            return within(Is(list(value.obj)))
        if isinstance(value, Instance | Is) and (found := self._iterator(value, node, wait=wait)) is not None:
            return found
        if value is OPAQUE or value is MEMBER:
            if wait:
                self.unknown(node)
            return OPAQUE
        return within(value)

    def _iterator(self, value: Instance | Is, node: ast.AST, *, wait: bool) -> Value | None:
        """One of the things that an object of a user's class gives."""
        cls = value.cls if isinstance(value, Instance) else type(value.obj)
        begin, following = ("__aiter__", "__anext__") if wait else ("__iter__", "__next__")
        if isinstance(value, Is) and held_by(value.obj) is not None:
            return None
        method = attribute(cls, begin)
        if not isinstance(method, types.FunctionType) or self._foreign(method):
            return None
        made = self.call(Bound(Is(method), (value,)), Args(), node)
        if isinstance(made, Lazy):
            return self.iterate(made, node, wait=wait)
        found = self.attr(made, following, node)
        if not isinstance(found, Bound):
            return OPAQUE if made is OPAQUE else FOREIGN
        item = self.call(found, Args(), node)
        return self.consume(item, node) if wait else item

    # -- handing on -----------------------------------------------------------------------------------------------------

    def hand_on(self, values: list[Value], node: ast.AST) -> None:
        """Somebody who cannot be seen gets these, and may call them as often as they like."""
        for value in values:
            if value is FOREIGN or value is OPAQUE or value is MEMBER:
                continue
            k = plain_key(value)
            if k == "data" or k in self.handing:
                continue
            self.handing.add(k)
            try:
                self._hand_on(value, node)
            finally:
                self.handing.discard(k)

    def _hand_on(self, value: Value, node: ast.AST) -> None:
        if value is HANDLE or isinstance(value, Asks):
            self.unknown(node)
        elif isinstance(value, Pending):
            with self.under(maybe=True):
                self.consume(value, node)
        elif isinstance(value, Lazy):
            with self.under(maybe=True):
                self.hand_on([self.iterate(value, node)], node)
        elif isinstance(value, Some | Group):
            self.hand_on(list(value.options if isinstance(value, Some) else value.items), node)
        elif isinstance(value, Def | Declared):
            self._may_call(value, node)
        elif isinstance(value, Bound):
            self.hand_on([*value.args, *value.kwargs.values()], node)
            self._may_call(value, node)
        elif isinstance(value, Instance):
            self.hand_on(list(value.attrs.values()), node)
            self._methods(value, value.cls, node)
        elif isinstance(value, Is):
            self._hand_on_object(value, node)

    def _hand_on_object(self, value: Is, node: ast.AST) -> None:
        obj = value.obj
        held = held_by(obj)
        if held is not None:
            self.hand_on(held, node)
        elif isinstance(obj, Step) or (isinstance(obj, types.FunctionType) and not self._foreign(obj)):
            self._may_call(value, node)
        elif isinstance(obj, Deferred) or inspect.iscoroutine(obj):
            with self.under(maybe=True):
                self.consume(value, node)
        elif not isinstance(obj, type | types.ModuleType | types.FunctionType | Workflow | WorkflowCall):
            self.hand_on_held(obj, node)
            if not foreign_type(type(obj), self.home):
                self._methods(value, type(obj), node)

    def hand_on_held(self, obj: Any, node: ast.AST) -> None:
        """What an object that cannot be seen through has as its attributes."""
        for held in list(getattr(obj, "__dict__", {}).values())[:MOST] if not isinstance(obj, type | types.ModuleType) else ():
            if isinstance(
                held,
                Step
                | types.FunctionType
                | types.MethodType
                | functools.partial
                | Deferred
                | types.CoroutineType
                | list
                | dict
                | tuple,
            ):
                self.hand_on([lift(held)], node)

    def _methods(self, value: Value, cls: type, node: ast.AST) -> None:
        """The methods that only somebody who waits can call."""
        for base in cls.__mro__:
            if base is object or foreign_type(base, self.home):
                continue
            for method in list(vars(base).values()):
                if isinstance(method, Step):
                    self.hand_on([Is(method)], node)
                elif inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                    self._may_call(Bound(Is(method), (value,)), node)

    def _may_call(self, value: Value, node: ast.AST) -> None:
        with self.under(many=True, maybe=True):
            made = self.call(value, Args(rest=FOREIGN), node)
            if isinstance(made, Lazy):
                self.iterate(made, node)
            else:
                self.consume(made, node) if isinstance(made, Pending) else self.hand_on([made], node)

    @abstractmethod
    def attr(self, value: Value, name: str, node: ast.AST) -> Value:
        """An attribute of a value."""


def may_wait(coming: Coming) -> bool:
    """Whether the run may be put away at a call, until somebody answers or something happens."""
    return coming.name.startswith(_WAITING) or coming.effect == "irreversible" or coming.anew


def coming_of(step: Step[Any, Any], where: str) -> Coming:
    """A call of a step, with what is declared of it."""
    o = step.settings
    return Coming(
        name=step.name, where=where, effect=None if o.effect is EffectKind.READ else o.effect.value,
        cost_usd=None if o.cost is None else o.cost.usd, cost_seconds=None if o.cost is None else o.cost.seconds,
        tries=o.attempts, of=ref(step),
    )  # fmt: skip


def defined(fn: types.FunctionType, piece: Piece) -> Def:
    """A function object as a function in view: with what its closure holds."""
    names = {name: _content(cell) for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False)}
    positional = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    given = fn.__defaults__ or ()
    defaults = {n: lift(v) for n, v in zip(positional[len(positional) - len(given) :], given, strict=True)}
    defaults.update({n: lift(v) for n, v in (fn.__kwdefaults__ or {}).items()})
    return Def(piece, Scope(names, None, fn.__globals__), defaults, fn)


def _started(child: Value | None) -> str:
    """The name of a workflow that is started; empty where it cannot be seen."""
    if isinstance(child, Child):
        return child.name
    return str(child.obj.workflow.name) if isinstance(child, Is) and isinstance(child.obj, WorkflowCall) else ""


def _called(fn: Value) -> str:
    """The name of a function or a step as ``run.map`` takes it; empty where it cannot be seen."""
    if isinstance(fn, Bound):
        return _called(fn.target)
    if isinstance(fn, Declared):
        return fn.name
    if isinstance(fn, Def):
        return str(getattr(fn.node, "name", ""))
    if isinstance(fn, Is):
        return fn.obj.name if isinstance(fn.obj, Step) else str(getattr(fn.obj, "__name__", ""))
    return ""


def _text(key: Value, name: str) -> str:
    """A key that stands in the source; *name*: of what is mapped, which counts where none is given."""
    if isinstance(key, Is) and (key.obj is None or isinstance(key.obj, str)):
        return name if key.obj is None else key.obj
    return ""


def _content(cell: types.CellType) -> Value:
    try:
        return lift(cell.cell_contents)
    except ValueError:  # nothing is in it yet
        return OPAQUE


def with_options(step: Step[Any, Any], options: dict[str, Any]) -> Step[Any, Any]:
    """The same step with other settings, registered nowhere."""
    try:
        return Step(step.fn, replace(step.settings, **normal(options)), step.hooks)
    except (TypeError, ValueError):  # the code will find out itself
        return step
