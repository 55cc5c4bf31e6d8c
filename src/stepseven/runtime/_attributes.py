"""Attributes in a workflow's source: of modules, classes and instances, without running code for them."""

from __future__ import annotations

import ast
import functools
import types
from typing import Any

from stepseven.runtime import _tables as tables
from stepseven.runtime._calls import Args, Calls
from stepseven.runtime._values import (
    FOREIGN,
    HANDLE,
    MEMBER,
    MISSING,
    OPAQUE,
    Asks,
    Bound,
    Instance,
    Is,
    Some,
    Super,
    Value,
    attribute,
    foreign,
    foreign_type,
    join,
    lift,
    typed,
)  # fmt: skip
from stepseven.runtime.binding import hints_of
from stepseven.runtime.declared import Step


class Attributes(Calls):
    """Reads attributes."""

    def attr(self, value: Value, name: str, node: ast.AST) -> Value:  # noqa: PLR0911 - one case for each kind of value
        """An attribute of a value."""
        if isinstance(value, Some):
            return join([self.attr(one, name, node) for one in value.options])
        if value is HANDLE:
            return Asks(name) if name == "map" or name in tables.ASKS else FOREIGN
        if value is OPAQUE or value is MEMBER:
            return MEMBER
        if isinstance(value, Super):
            cls = (
                value.of.cls if isinstance(value.of, Instance) else type(value.of.obj) if isinstance(value.of, Is) else value.cls
            )
            after = cls.__mro__[cls.__mro__.index(value.cls) + 1 :] if value.cls in cls.__mro__ else ()
            raw = next((vars(c)[name] for c in after if name in vars(c)), MISSING)
            return FOREIGN if raw is MISSING else self._stored(raw, value.of, cls, node)
        if isinstance(value, Instance):
            found = value.attrs.get(name)
            if found is not None:
                return found
            raw = attribute(value.cls, name)
            if raw is not MISSING and not isinstance(raw, types.MemberDescriptorType):
                return self._stored(raw, value, value.cls, node)
            hint = hints_of(value.cls).get(name, MISSING)
            return MEMBER if hint is MISSING else typed(hint, self.home)
        if isinstance(value, Is):
            return self._attr_of_object(value, name, node)
        return FOREIGN

    def _attr_of_object(self, value: Is, name: str, node: ast.AST) -> Value:  # noqa: PLR0911 - one case for each kind of object
        obj = value.obj
        if (id(obj), name) in self.overlay:
            return self.overlay[id(obj), name]
        if isinstance(obj, types.ModuleType):
            found = vars(obj).get(name, MISSING)
            known = foreign(getattr(obj, "__file__", None), obj.__name__, vars(obj), self.home)
            return lift(found) if found is not MISSING else FOREIGN if known else OPAQUE
        if isinstance(obj, type):
            raw = attribute(obj, name)
            return OPAQUE if raw is MISSING else self._stored(raw, None, obj, node)
        if isinstance(obj, Step):
            return Bound(Is(Step.options), (value,)) if name == "options" else lift(getattr(obj, name, None))
        kept = getattr(obj, "__dict__", None)
        if isinstance(kept, dict) and name in kept:
            return lift(kept[name])
        raw = attribute(type(obj), name)
        if raw is MISSING:
            return FOREIGN if foreign_type(type(obj), self.home) else MEMBER
        if isinstance(raw, types.MemberDescriptorType):
            try:
                return lift(raw.__get__(obj))
            except AttributeError:
                return MEMBER
        return self._stored(raw, value, type(obj), node)

    def _stored(self, raw: Any, of: Value | None, cls: type, node: ast.AST) -> Value:
        """What is stored in a class, as it is found through *of*, an instance."""
        if isinstance(raw, staticmethod):
            return lift(raw.__func__)
        if isinstance(raw, classmethod):
            return Bound(lift(raw.__func__), (Is(cls),))
        if isinstance(raw, types.FunctionType) and of is not None:
            return Bound(Is(raw), (of,))
        getter = (
            raw.fget
            if isinstance(raw, property)
            else getattr(raw, "func", None)
            if isinstance(raw, functools.cached_property)
            else None
        )
        if isinstance(getter, types.FunctionType) and of is not None:
            return FOREIGN if self._foreign(getter) else self.call(Bound(Is(getter), (of,)), Args(), node)
        return lift(raw) if not hasattr(type(raw), "__get__") or isinstance(raw, Step | types.FunctionType | type) else FOREIGN
