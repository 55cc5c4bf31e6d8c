"""What a workflow is: its function, its options, how its inputs are stored; and the ones this process knows."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from stepseven._dataclass import dataclass
from stepseven.errors import AmbiguousWorkflow, NotRecordable
from stepseven.model import Limits
from stepseven.runtime.binding import hints_of
from stepseven.runtime.declared import source_digest
from stepseven.runtime.loader import loader_of
from stepseven.store.codec import Typed, canonical

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}")

_ON_DRIFT = ("ask", "keep", "refresh")
#: the workflows this process knows, by name: of each the one that was defined last
registry: dict[str, Workflow[Any, Any]] = {}
#: and those of the same name in other modules, while anybody has them: module → workflow
_namesakes: defaultdict[str, weakref.WeakValueDictionary[str, Workflow[Any, Any]]] = defaultdict(weakref.WeakValueDictionary)


def workflows() -> list[Workflow[Any, Any]]:
    """Every workflow this process knows; of one name there may be several, in several modules."""
    found = {id(w): w for w in registry.values()}
    return list((found | {id(w): w for named in list(_namesakes.values()) for w in named.values()}).values())


def code_of(run: Mapping[str, Any]) -> Workflow[Any, Any] | None:
    """A stored run's code: the workflow of its name, and where several modules have one, that which it was executed with.

    Args:
        run: its row.

    Raises:
        AmbiguousWorkflow: several modules have another one each, and the run was executed with none of them as they are now.
    """
    name = run["workflow"]
    newest = registry.get(name)
    if newest is None:
        return None
    others = [w for module, w in _namesakes[name].items() if module != newest.fn.__module__]
    if not others or newest.digest == run["source_digest"]:
        return newest
    same = next((w for w in others if w.digest == run["source_digest"]), None)
    if same is None and any(w.digest != newest.digest for w in others):
        raise AmbiguousWorkflow(name, run["id"], sorted({w.fn.__module__ for w in (newest, *others)}))
    return same or newest


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
        if options.on_drift not in _ON_DRIFT:
            known = ", ".join(map(repr, _ON_DRIFT))
            raise ValueError(f"workflow {options.name!r}: on_drift={options.on_drift!r}: one of {known}")
        self._signature = inspect.signature(fn)
        names = list(self._signature.parameters)
        if not names:
            raise TypeError(f"workflow {options.name!r} needs the run as its first parameter: async def f(run: Run, …)")
        for parameter in list(self._signature.parameters.values())[1:]:
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise TypeError(f"workflow {options.name!r}: {parameter}: inputs are stored by name, so each needs one")
        self.parameter_names = tuple(names[1:])
        registry[options.name] = self
        _namesakes[options.name][fn.__module__] = self

    def parameters(self) -> tuple[tuple[str, ...], bool]:
        """The names of its inputs, and whether it takes any others (``**inputs``)."""
        rest = {n for n, p in self._signature.parameters.items() if p.kind is p.VAR_KEYWORD}
        return tuple(n for n in self.parameter_names if n not in rest), bool(rest)

    def required(self) -> tuple[str, ...]:
        """The names of its inputs that have no default."""
        rest = self._signature.parameters.values()
        return tuple(p.name for p in list(rest)[1:] if p.default is p.empty and p.kind is not p.VAR_KEYWORD)

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
