"""What a workflow is: its function, its options, how its inputs are stored; and the ones this process knows."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from stepseven.errors import NotRecordable
from stepseven.model import Limits
from stepseven.runtime.binding import hints_of
from stepseven.runtime.declared import source_digest
from stepseven.runtime.loader import loader_of
from stepseven.store.codec import Typed, canonical

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}")

#: every workflow this process knows, by name: a run that was stored finds its code here, and only here
registry: dict[str, Workflow[Any, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowOptions:
    """What ``@workflow`` was told; the meaning of each field is in ``workflow``."""

    name: str
    limits: Limits | None = None
    client_record: Callable[..., Any] | None = None
    watch: tuple[str, ...] = ()
    on_drift: Literal["ask", "keep", "refresh"] = "ask"
    requires: tuple[str, ...] = ()
    to: str | None = None


class Workflow(Generic[P, R]):
    """A workflow. Calling it gives a bound call for ``layer.run``; nothing runs yet."""

    def __init__(self, fn: Callable[..., Coroutine[Any, Any, R]], options: WorkflowOptions) -> None:
        functools.update_wrapper(self, fn)
        if not inspect.iscoroutinefunction(fn):
            raise TypeError(f"workflow {options.name!r} must be `async def`: its steps may be plain functions")
        if not _NAME.fullmatch(options.name):
            raise ValueError(f"workflow name {options.name!r}: use letters, digits, '_', '.', '-'")
        self.fn = fn
        self.settings = options
        self.name = options.name
        self.loader = loader_of(options.name, options.client_record)
        _check_requires(options)
        self._signature = inspect.signature(fn)
        names = list(self._signature.parameters)
        if not names:
            raise TypeError(f"workflow {options.name!r} needs the run as its first parameter: async def f(run: Run, …)")
        for parameter in list(self._signature.parameters.values())[1:]:
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise TypeError(f"workflow {options.name!r}: {parameter}: inputs are stored by name, so each needs one")
        self.parameter_names = tuple(names[1:])
        registry[options.name] = self

    def parameters(self) -> tuple[tuple[str, ...], bool]:
        """The names of its inputs, and whether it takes any others (``**inputs``)."""
        rest = {n for n, p in self._signature.parameters.items() if p.kind is p.VAR_KEYWORD}
        return tuple(n for n in self.parameter_names if n not in rest), bool(rest)

    @functools.cached_property
    def typed(self) -> Typed:
        """How the value is stored and comes back."""
        return Typed(hints_of(self.fn).get("return", inspect.Parameter.empty), where=f"{self.name}()")

    @functools.cached_property
    def inputs_typed(self) -> dict[str, Typed]:
        """How each input is stored and comes back."""
        hints = hints_of(self.fn)
        return {n: Typed(hints.get(n, inspect.Parameter.empty), where=f"inputs.{n}") for n in self.parameter_names}

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the source of the module it stands in: somebody mended something."""
        module = sys.modules.get(self.fn.__module__)
        try:
            return source_digest(module) if module is not None else source_digest(self.fn)  # type: ignore[arg-type]
        except (OSError, TypeError):
            return source_digest(self.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowCall[R]:  # noqa: D102 - the class says it
        bound = self._signature.bind(None, *args, **kwargs)  # None stands for the run
        given = dict(list(bound.arguments.items())[1:])
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given.update(given.pop(name, {}))
        return WorkflowCall(self, given)

    def encode(self, given: dict[str, Any]) -> str:
        """Inputs as they are stored: as given (defaults are not inputs), names sorted.

        Raises:
            NotRecordable: an input cannot be stored, or is not of its parameter's type; names it.
        """
        parts = []
        for name in sorted(given):
            typed = self.inputs_typed.get(name)
            text = canonical(given[name], f"inputs.{name}") if typed is None else _input(typed, given[name])
            parts.append(f"{canonical(name)}:{text}")
        return "{" + ",".join(parts) + "}"

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def _check_requires(o: WorkflowOptions) -> None:
    """Refuse what cannot be the name of a fact, now and not when the first run starts."""
    from stepseven.runtime.facts import checked_key  # which stands above this module

    for i, name in enumerate(o.requires):
        try:
            checked_key(name)
        except ValueError as error:
            raise ValueError(f"workflow {o.name!r}: requires=: {error}") from error
        if name in o.requires[:i]:
            raise ValueError(f"workflow {o.name!r}: requires= names {name!r} twice")


def _input(typed: Typed, value: Any) -> str:
    """An input as text that its type can be rebuilt from: the value itself, or what JSON has for it (a date as text)."""
    try:
        return typed.encode(value)
    except NotRecordable:
        text = canonical(value, typed.where)
        typed.decode(text)
        return text


@dataclass(frozen=True, slots=True)
class WorkflowCall(Generic[R]):
    """A workflow with its inputs, ready for ``layer.run`` or ``layer.start``."""

    workflow: Workflow[Any, R]
    given: dict[str, Any]
