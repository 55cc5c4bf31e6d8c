"""How a function takes its arguments: bound to names for the record, and passed on when it is called."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import zip_longest
from typing import Any, get_type_hints

from stepseven.model import Secret
from stepseven.runtime.threads import run_in_thread


class Spread(dict[str, Any]):
    """The arguments of a function with ``*args``, ``**kwargs`` or ``/``: by name as recorded, and as they are passed on."""

    __slots__ = ("args", "kwargs")

    def __init__(self, arguments: inspect.BoundArguments) -> None:
        super().__init__(arguments.arguments)
        self.args: tuple[Any, ...] = arguments.args
        self.kwargs: dict[str, Any] = arguments.kwargs


class Parameters:
    """A function's parameters, bound fast and with defaults filled in."""

    __slots__ = ("_defaults", "_known", "_names", "_positional", "_signature", "ignore", "plain")

    def __init__(self, fn: Callable[..., Any], ignore: Sequence[str]) -> None:
        self._signature = inspect.signature(fn)
        parameters = self._signature.parameters.values()
        self.plain = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)
        self._names = tuple(p.name for p in parameters)
        self._known = frozenset(self._names)
        self._positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self.ignore = frozenset(ignore)
        unknown = self.ignore - self._known
        if unknown:
            raise ValueError(f"ignore= names {', '.join(sorted(unknown))}, which is no parameter of {fn.__name__}()")

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in order."""
        return self._names

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The call as name → value. A call that does not fit raises ``TypeError`` as Python would."""
        if self.plain and len(args) <= len(self._positional):
            bound = dict(zip(self._positional, args, strict=False))
            if not kwargs and len(bound) == len(self._names):
                return bound
            if not (kwargs.keys() & bound.keys()) and kwargs.keys() <= self._known:
                whole = {**self._defaults, **bound, **kwargs}
                if len(whole) == len(self._names):
                    return whole
        arguments = self._signature.bind(*args, **kwargs)  # raises the right TypeError; handles *args and **kwargs
        arguments.apply_defaults()
        return Spread(arguments)

    def rebind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, as they are passed on, of a function with ``*args``, ``**kwargs`` or ``/``."""
        arguments = self._signature.bind_partial()
        arguments.arguments.update({name: values[name] for name in self._names if name in values})
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL and name in arguments.arguments:
                arguments.arguments[name] = tuple(arguments.arguments[name])
        return Spread(arguments)

    def recorded(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The arguments that identify the call."""
        if not self.ignore:
            return bound
        return {name: value for name, value in bound.items() if name not in self.ignore}

    def check(self, fn: Callable[..., Any], what: str) -> None:
        """Refuse another way, or a probe, that cannot be called like the step: better now than after a crash.

        Raises:
            TypeError: *fn* does not take the step's parameters.
        """
        if self.plain:
            try:
                inspect.signature(fn).bind(**dict.fromkeys(self._names))
            except TypeError as misfit:
                raise TypeError(f"{what} must take the step's parameters ({', '.join(self._names)}): {misfit}") from misfit


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Resolved annotations; those that cannot be resolved (yet) are left out."""
    try:
        return get_type_hints(fn, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {name: hint for name, hint in getattr(fn, "__annotations__", {}).items() if not isinstance(hint, str)}


def parameter_types(fn: Callable[..., Any]) -> dict[str, Any]:
    """What the whole value of each annotated parameter is: of ``*args: str`` a list of texts, as it is recorded."""
    hints = hints_of(fn)
    for name, parameter in inspect.signature(fn).parameters.items():
        if name in hints and parameter.kind is parameter.VAR_POSITIONAL:
            hints[name] = list[hints[name]]  # type: ignore[valid-type]  # made at run time
        elif name in hints and parameter.kind is parameter.VAR_KEYWORD:
            hints[name] = dict[str, hints[name]]  # type: ignore[valid-type]  # the same
    return hints


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling *fn* gives a coroutine."""
    code = getattr(fn, "__code__", None)  # a shortcut: inspect takes five times as long
    return (code is not None and bool(code.co_flags & inspect.CO_COROUTINE)) or inspect.iscoroutinefunction(fn)


def passed(fn: Callable[..., Any], bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """A call's arguments as *fn* takes them, each ``Secret`` read from the environment, now that the step runs.

    A parameter annotated as ``Secret`` gets it whole.

    Raises:
        MissingSecret: the environment variable is not set here.
    """
    args, kwargs = (bound.args, bound.kwargs) if type(bound) is Spread else ((), bound)
    for value in bound.values():
        if type(value) is Secret:
            break
    else:
        return args, kwargs
    whole = {name for name, hint in hints_of(fn).items() if hint is Secret}
    names = list(bound)[: len(args)]
    return (
        tuple(_revealed(value, name in whole) for name, value in zip_longest(names, args)),
        {name: _revealed(value, name in whole) for name, value in kwargs.items()},
    )


def _revealed(value: Any, whole: bool) -> Any:  # noqa: FBT001
    return value.reveal() if type(value) is Secret and not whole else value


class ExitCalled(RuntimeError):
    """The code of a step or a workflow called ``sys.exit()``: a failure of that code, not the end of the program around it."""

    def __init__(self, code: object) -> None:
        super().__init__(f"the code called sys.exit({code!r})")
        self.code = code


async def without_exit(made: Coroutine[Any, Any, Any]) -> Any:
    """Await *made*; a ``sys.exit()`` in it is a failure like any other."""
    try:
        return await made
    except SystemExit as told:
        raise ExitCalled(told.code) from told


async def call_plain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call *fn*: a coroutine function here, any other in a thread with the same context."""
    try:
        if is_async(fn):
            return await fn(*args, **kwargs)
        context = contextvars.copy_context()
        made = await run_in_thread(functools.partial(context.run, fn, *args, **kwargs))
        return await made if inspect.isawaitable(made) else made
    except SystemExit as told:
        raise ExitCalled(told.code) from told


async def call_bound(fn: Callable[..., Any], bound: Mapping[str, Any]) -> Any:
    """Call *fn* with the arguments of a recorded call."""
    args, kwargs = passed(fn, bound)
    return await call_plain(fn, args, kwargs)


def start_plain(fn: Callable[..., Any], bound: Mapping[str, Any]) -> asyncio.Future[Any]:
    """Start *fn*: a coroutine function as a task (it can be cancelled), any other in a thread (it cannot)."""
    args, kwargs = passed(fn, bound)
    if is_async(fn):
        return asyncio.get_running_loop().create_task(without_exit(fn(*args, **kwargs)))
    context = contextvars.copy_context()
    return run_in_thread(functools.partial(context.run, fn, *args, **kwargs))
