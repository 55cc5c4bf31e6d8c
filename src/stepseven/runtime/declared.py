"""What a step is: its function, its options, its other ways, its probe; and how a call of it is bound."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable, Coroutine
from dataclasses import field, replace
from types import CodeType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from stepseven._dataclass import dataclass
from stepseven.errors import NoRun
from stepseven.keys import KeyPaths
from stepseven.model import INTERNAL, Cost, EffectKind
from stepseven.runtime import known
from stepseven.runtime.attempt import Attempt, loose
from stepseven.runtime.binding import Parameters, call_bound, hints_of
from stepseven.runtime.byname import Named, verify_of
from stepseven.runtime.place import place
from stepseven.runtime.takeback import Undo, undo_of
from stepseven.store.codec import Typed

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}")
WRITE_TIMEOUT_S = 30.0  # DESIGN §5.2: writes end after 30 s unless they say otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What ``@step`` was told; the meaning of each field is in ``step``."""

    name: str
    effect: EffectKind = EffectKind.READ
    key: str | Callable[..., Any] | None = None
    effect_name: str | None = None
    scope: Literal["run", "client"] = "run"
    match: Literal["inputs", "order"] = "inputs"
    ignore: tuple[str, ...] = ()
    renamed_from: tuple[str, ...] = ()
    attempts: int = 2
    timeout: float | None = None
    settle: float = 0
    idempotent: bool | str = False
    probe_first: Literal["resumed", "always", "never"] = "resumed"
    on_failure: Literal["ask", "raise"] = "ask"
    classify: Callable[[BaseException], Any] | None = None
    check: Callable[[Any], Any] | None = None
    cost: Cost | None = None
    resource: str | None = None
    subject: bool = False
    secrets: Literal["refuse", "mask"] = "refuse"
    summary: Callable[[Any], str] | None = None
    remember: str | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def writes(self) -> bool:
        """Whether the step changes something outside."""
        return self.effect is not EffectKind.READ

    @property
    def timeout_s(self) -> float | None:
        """Seconds one try may take; a write always has an end, because its claim needs one."""
        return self.timeout if self.timeout is not None else WRITE_TIMEOUT_S if self.writes else None


_IDEMPOTENT = re.compile(r"(\d+)\s*([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def honoured_us(idempotent: bool | str) -> int | None:  # noqa: FBT001
    """How long the other side honours an idempotency key, in microseconds; 0 = not at all, ``None`` = for ever."""
    if idempotent in (False, ""):
        return 0
    if idempotent in (True, "forever"):
        return None
    found = _IDEMPOTENT.fullmatch(str(idempotent))
    if not found:
        raise ValueError(f"idempotent={idempotent!r}: say False, 'forever', or a duration such as '24h'")
    return int(found[1]) * _UNIT_S[found[2]] * 1_000_000


def _check_types(o: StepOptions) -> None:
    cost: Any = o.cost
    if cost is not None and not isinstance(cost, Cost):
        raise TypeError(f"step {o.name!r}: cost={o.cost!r}: say Cost(usd=…)")
    numbers: tuple[tuple[Any, str], ...] = ((o.timeout, "timeout"), (o.settle, "settle"))
    for number, what in numbers:
        if number is not None and not isinstance(number, int | float):
            raise TypeError(f"step {o.name!r}: {what}={number!r}: seconds, as a number")
    hooks: tuple[tuple[Any, str], ...] = ((o.summary, "summary"), (o.check, "check"), (o.classify, "classify"))
    for hook, what in hooks:
        if hook is not None and not callable(hook):
            raise TypeError(f"step {o.name!r}: {what}={hook!r} cannot be called: give a function")
    if o.timeout == 0:
        raise ValueError(f"step {o.name!r}: timeout=0: no try could ever end in time")


def _check_fact(name: Any, where: str) -> None:
    """Refuse what cannot be the name of a fact."""
    from stepseven.runtime.facts import checked_key  # which stands above this module

    try:
        checked_key(name)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _check(o: StepOptions) -> None:  # noqa: C901 - a list of independent checks
    _check_types(o)
    if not _NAME.fullmatch(o.name) or o.name.startswith(INTERNAL):
        raise ValueError(f"step name {o.name!r}: use letters, digits, '_', '.', '-'; not beginning with 'run.' or 'client.'")
    for value, allowed, what in (
        (o.scope, ("run", "client"), "scope"),
        (o.match, ("inputs", "order"), "match"),
        (o.probe_first, ("resumed", "always", "never"), "probe_first"),
        (o.on_failure, ("ask", "raise"), "on_failure"),
        (o.secrets, ("refuse", "mask"), "secrets"),
    ):
        if value not in allowed:
            raise ValueError(f"step {o.name!r}: {what}={value!r} is not one of {', '.join(map(repr, allowed))}")
    if o.remember is not None:
        _check_fact(o.remember, f"step {o.name!r}: remember=")
    if o.attempts < 1:
        raise ValueError(f"step {o.name!r}: attempts={o.attempts}: at least 1")
    for number, what in ((o.timeout, "timeout"), (o.settle, "settle")):
        if number is not None and number < 0:
            raise ValueError(f"step {o.name!r}: {what}={number}: seconds cannot be negative")
    honoured_us(o.idempotent)
    if not o.writes and (o.scope == "client" or o.effect_name or o.idempotent):
        raise ValueError(f"step {o.name!r}: scope=, effect_name= and idempotent= belong to steps with effect='write'")
    if o.scope == "client" and o.key is None:
        raise ValueError(f"step {o.name!r}: scope='client' needs key=: over all runs an effect is known by its key only")
    if o.writes and o.match == "order":
        raise ValueError(f"step {o.name!r}: match='order' is for reads; a write is known by its key=")


@dataclass(frozen=True, slots=True)
class Approach:
    """Another way to do a step. ``ask``: only when a person chooses it."""

    label: str
    fn: Callable[..., Any]
    ask: bool = False
    resource: str | None = None


@dataclass(slots=True)
class Hooks:
    """What hangs on a step besides its function; shared by ``.options()`` copies."""

    approaches: list[Approach] = field(default_factory=list)
    probe: Callable[..., Any] | None = None
    undo: Undo | None = None
    verify: Named | None = None


def source_digest(fn: Callable[..., Any]) -> str:
    """What the function's source looks like, as a short digest: tells whether somebody mended it."""
    try:
        source = textwrap.dedent(inspect.getsource(fn)).encode()
    except (OSError, TypeError):  # typed at a prompt, or built: the byte code has to do
        code = getattr(fn, "__code__", None)
        source = _code_bytes(code) if code is not None else repr(fn).encode()
    return hashlib.blake2b(source, digest_size=8).hexdigest()


def _code_bytes(code: CodeType) -> bytes:
    """What a function does, as bytes that are the same in every process: the repr of inner code holds an address."""
    consts = [_code_bytes(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts]
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *consts])


class Step(Generic[P, R]):
    """A step. Calling it inside a run gives an awaitable of the recorded result."""

    def __init__(self, fn: Callable[P, Any], options: StepOptions, hooks: Hooks | None = None) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.settings = options
        self.name = options.name
        self.hooks = hooks or Hooks()
        self.parameters = Parameters(fn, options.ignore)
        self.key_paths = None if options.key is None else KeyPaths(options.key, options.name, self.parameters.names, hints_of(fn))

    @functools.cached_property
    def typed(self) -> Typed:
        """How results are stored and come back."""
        hints = hints_of(self.fn)
        return Typed(hints.get("return", inspect.Parameter.empty), where=f"{self.name}()")

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the source of the step and all its approaches."""
        return "".join(source_digest(fn) for fn in (self.fn, *(a.fn for a in self.hooks.approaches)))

    # ``object`` and not ``Any``: with ``Any`` mypy cannot tell the overloads of ``asyncio.gather`` apart.
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, object, R]:  # noqa: D102 - the class says it
        here = place.get()
        if here is None:
            return self._outside(args, kwargs)
        return here.execution.call(self, here, args, kwargs)

    def _outside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, R]:
        if self.settings.writes:
            raise NoRun(f"step {self.name!r} has effect={self.settings.effect.value!r} and")

        async def run() -> R:
            token = loose.set(Attempt())
            try:
                return await call_bound(self.fn, self.parameters.bind(args, kwargs))  # type: ignore[no-any-return]
            finally:
                loose.reset(token)

        return run()

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Step[P, R]: ...
    @overload
    def __get__(self: Step[Concatenate[Any, Q], T], instance: object, owner: type | None = None) -> Step[Q, T]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """A step that is a method gets its instance as first argument."""
        return self if instance is None else BoundStep(self, instance)

    def options(self, **same: Any) -> Step[P, R]:
        """The same step with other settings; takes what ``step`` takes. Its records stay the same if its name does."""
        made: Step[P, R] = Step(self.fn, replace(self.settings, **normal(same)), self.hooks)
        known.register(made)
        return made

    def approach(self, label: str, *, ask: bool = False, resource: str | None = None) -> Callable[[C], C]:
        """Register another way to do this step, with the same parameters. ``ask=True``: only when a person chooses it."""

        def register(fn: C) -> C:
            self.parameters.check(fn, f"approach {label!r} of step {self.name!r}")
            self.hooks.approaches[:] = [a for a in self.hooks.approaches if a.label != label]
            self.hooks.approaches.append(Approach(label, fn, ask, resource))
            self.__dict__.pop("digest", None)
            return fn

        return register

    def probe(self, fn: C) -> C:
        """Register a read-only look whether the effect is there: same parameters; the result, ``None`` (or bool) if not."""
        self.parameters.check(fn, f"the probe of step {self.name!r}")
        self.hooks.probe = fn
        return fn

    def undo(self, fn: C) -> C:
        """Register how the effect is taken back. Offered when a run ends failed or cancelled, never done by itself.

        It takes, by name, what the step was called with and ``receipt``: what the step returned. One parameter with a name
        of its own gets that, too. ``attempt().idempotency_key`` is the same over all tries to take this one back.

        Raises:
            TypeError: the step only reads, or *fn* takes something that is not there.
        """
        self.hooks.undo = undo_of(self, fn)
        return fn

    @property
    def undo_module(self) -> str | None:
        """Where the code is that takes the step's effect back; ``None``: nothing does."""
        return None if self.hooks.undo is None else str(self.fn.__module__)

    def verify(self, fn: C) -> C:
        """Register a look whether the recorded result still holds: in a recovery it is asked before the record answers.

        It takes, by name, what the step was called with and ``result``: what the step returned. One parameter with a name of its
        own gets that, too. It says ``False``, or why not as a text: then the step runs again, and only what depends on a
        difference after it. Anything else: the result holds. Where it raises or takes longer than the step's ``timeout`` (30 s
        without one), nobody can tell: the result is kept and that is noted. Steps that it calls just run, as outside a run.

        Raises:
            TypeError: the step writes (its ``.probe`` looks), or *fn* takes something that is not there.
        """
        self.hooks.verify = verify_of(self, fn)
        return fn


class BoundStep(Step[P, R]):
    """A step that is a method, taken from an instance."""

    def __init__(self, step: Step[Any, R], instance: object) -> None:
        self.__dict__.update(step.__dict__)
        self.fn = functools.partial(step.fn, instance)
        self._step = step
        self._instance = instance

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, object, R]:  # noqa: D102 - the class says it
        return self._step(self._instance, *args, **kwargs)

    def options(self, **same: Any) -> Step[P, R]:
        """The same step with other settings."""
        return BoundStep(self._step.options(**same), self._instance)


def normal(options: dict[str, Any]) -> dict[str, Any]:
    """Options as the decorator takes them, in the types ``StepOptions`` keeps."""
    if "effect" in options:
        if options["effect"] not in set(EffectKind):
            raise ValueError(f"effect={options['effect']!r}: one of {', '.join(map(repr, map(str, EffectKind)))}")
        options["effect"] = EffectKind(options["effect"])
    for name in ("ignore", "renamed_from"):
        if name in options:
            value = options[name]
            options[name] = (value,) if isinstance(value, str) else tuple(value)
    return options
