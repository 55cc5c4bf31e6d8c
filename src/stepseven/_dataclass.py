"""``dataclass`` as in the standard library, whose methods are written when they are first asked for.

The standard library writes and compiles five methods for each class as it is declared: over a hundred classes that is half the
time that ``import stepseven`` takes, and few of them are ever made in one process. Here each method stands in its class as a
descriptor; whoever first looks it up has it written, by the standard library, and from then on it is the very same function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass  # for type checkers it is that one
else:

    def dataclass(cls: type | None = None, /, **how: bool) -> Any:
        """``dataclasses.dataclass``. What it cannot do later (other settings, own methods, inherited fields) it does at once."""
        return (lambda it: _declared(it, how)) if cls is None else _declared(cls, how)


__all__ = ["dataclass"]

_LATER = ("__init__", "__repr__", "__eq__", "__hash__")
_OWN = frozenset({*_LATER, "__setattr__", "__delattr__", "__getstate__", "__setstate__", "__post_init__"})
_SETTINGS = frozenset({"frozen", "slots", "kw_only", "eq"})
_WRITTEN_BY = {  # the setting that makes the standard library write a method
    "__init__": "init", "__repr__": "repr", "__eq__": "eq", "__hash__": "eq",
}  # fmt: skip


def _declared(cls: type, how: dict[str, bool]) -> type:
    inherits = any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:])
    if inherits or not how.keys() <= _SETTINGS or cls.__doc__ is None or not _OWN.isdisjoint(cls.__dict__):
        return dataclasses.dataclass(**how)(cls)
    frozen, compared = how.get("frozen", False), how.get("eq", True)
    made: Any = dataclasses.dataclass(
        cls, init=False, repr=False, eq=False, slots=how.get("slots", False), kw_only=how.get("kw_only", False)
    )
    told = made.__dataclass_params__
    told.init, told.repr, told.eq, told.frozen = True, True, compared, frozen
    for name in ("__init__", "__repr__", *(("__eq__",) if compared else ())):
        setattr(made, name, _Later(made, name))
    if compared:
        made.__hash__ = _Later(made, "__hash__") if frozen else None
    if frozen:
        made.__setattr__, made.__delattr__ = _guards(made)
        if how.get("slots", False):
            made.__getstate__, made.__setstate__ = _state, _set_state
    return made  # type: ignore[no-any-return]  # a class


class _Later:
    """A method that is not written yet."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: type, name: str) -> None:
        self.owner = owner
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        written = self.owner.__dict__[self.name]
        if written is self:  # two threads may write it at the same time: either is good
            written = _written(self.owner, self.name)
            setattr(self.owner, self.name, written)
        return written.__get__(instance, owner)


def _written(owner: Any, name: str) -> Callable[..., Any]:
    """The method as the standard library writes it for a class with the same fields."""
    field: Any = dataclasses.field
    parts = {
        f.name: field(
            default=f.default, default_factory=f.default_factory, init=f.init, repr=f.repr, hash=f.hash, compare=f.compare,
            kw_only=f.kw_only,
        )
        for f in dataclasses.fields(owner)
    }  # fmt: skip
    twin: Any = type(owner.__name__, (), {
        "__annotations__": {f.name: f.type for f in dataclasses.fields(owner)}, "__doc__": owner.__doc__,
        "__module__": owner.__module__, "__qualname__": owner.__qualname__, **parts,
    })  # fmt: skip
    settings = {**dict.fromkeys(("init", "repr", "eq"), False), _WRITTEN_BY[name]: True}
    dataclasses.dataclass(twin, match_args=False, frozen=owner.__dataclass_params__.frozen, **settings)
    return twin.__dict__[name]  # type: ignore[no-any-return]  # it is there: the settings say so


def _guards(cls: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """What a frozen class says to whoever changes it."""

    def refuse(self: Any, name: str, how: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot {how} field {name!r}")

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807 - it becomes one
        refuse(self, name, "assign to")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807 - it becomes one
        refuse(self, name, "delete")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _state(self: Any) -> list[Any]:
    """For ``copy`` and ``pickle``, which could not set the fields of what is frozen."""
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
