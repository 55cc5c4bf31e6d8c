"""One call of a step: what identifies it, settled at the call and not at the await."""

from __future__ import annotations

import copy
import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote
from zlib import crc32

from pydantic_core import from_json, to_json

from stepseven.errors import KeyRequired, SecretFound, Superseded, TooLarge
from stepseven.keys import fitting
from stepseven.model import ONCE, EffectKind, Secret
from stepseven.runtime.arguments import decode_argument
from stepseven.runtime.binding import Spread
from stepseven.runtime.declared import Step
from stepseven.runtime.place import Place
from stepseven.store.codec import MAX_RESULT, canonical, digest, guard
from stepseven.store.redact import MASK, find_secret
from stepseven.transitions.state import Record, RecordKey

if TYPE_CHECKING:
    from stepseven.keys import KeyPaths
    from stepseven.runtime.execution import Execution

R = TypeVar("R")

_INT64 = 1 << 63
_UNCHANGING = frozenset({str, int, float, bool, bytes, type(None), Secret})  # no need to copy these
_PATIENCE = 5  # refusals in one task
_READABLE = 30  # characters of a key that may stand in a branch's name as they are


class Deferred(Coroutine[Any, Any, R]):
    """Something that was identified when it was called and starts when it is awaited (or made a task).

    Not a coroutine of its own: one that is still waiting for its turn when the run is put away would be reported as
    "never awaited" at every park. A forgotten ``await`` is still reported.
    """

    __slots__ = ("_coro", "execution", "what")

    def __init__(self, execution: Execution, what: str) -> None:
        self.execution = execution
        self.what = what
        self._coro: Coroutine[Any, Any, R] | None = None

    @abstractmethod
    def begin(self) -> Coroutine[Any, Any, R]:
        """The coroutine that does it."""

    def _started(self) -> Coroutine[Any, Any, R]:
        if self._coro is None:
            self._coro = self.begin()
        return self._coro

    def __await__(self) -> Generator[Any, Any, R]:
        if self._coro is not None:
            raise RuntimeError(f"{self.what} was awaited already: call it again, or make one task of it")
        return self._started().__await__()

    def send(self, value: Any) -> Any:
        """As of a coroutine: a task drives it by this."""
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:
        """As of a coroutine: a task drives it by this."""
        return self._started().throw(*error)

    def close(self) -> None:
        """As of a coroutine."""
        if self._coro is not None:
            self._coro.close()
        self._coro = self._coro or _nothing()

    @property
    def cr_frame(self) -> Any:
        """As of a coroutine: where it is suspended."""
        return getattr(self._coro, "cr_frame", None)

    @property
    def cr_await(self) -> Any:
        """As of a coroutine: what it waits for."""
        return getattr(self._coro, "cr_await", None)

    @property
    def __name__(self) -> str:
        return self.what

    def __del__(self) -> None:
        if self._coro is None and self.execution.unloading is None:
            warnings.warn(f"{self.what} was called and never awaited: it did not run", RuntimeWarning, stacklevel=2)


def _nothing() -> Any:
    """Stands for what was closed before it started."""
    return iter(())


class Later(Deferred[R]):
    """A call of the run's handle: identified, and started by *make* when it is awaited."""

    __slots__ = ("_make",)

    def __init__(self, execution: Execution, what: str, make: Callable[[], Coroutine[Any, Any, R]]) -> None:
        super().__init__(execution, what)
        self._make = make

    def begin(self) -> Coroutine[Any, Any, R]:
        """The coroutine that does it."""
        return self._make()


class Refusal(Deferred[Any]):
    """A durable call made after unloading began: nothing is written, whatever the code swallows."""

    __slots__ = ("place",)

    def __init__(self, here: Place, what: str) -> None:
        super().__init__(here.execution, what)
        self.place = here

    async def begin(self) -> Any:
        """Raise; code that swallows that again and again waits for ever, so that a loop around the call cannot spin."""
        ex = self.execution
        if self.place.refused >= _PATIENCE:
            await ex.forever()
        self.place.refused += 1
        raise Superseded(ex.hold.run_id, ex.unloading or "it is put away")


class Call(Deferred[Any]):
    """A call of a step in a run."""

    __slots__ = ("bound", "digest", "down", "exact", "key", "lane", "place", "run", "step", "texts", "trial")

    def __init__(  # noqa: PLR0913, PLR0917 - made in one place, once per call: a dataclass in between costs more than it says
        self,
        step: Step[Any, Any],
        here: Place,
        key: RecordKey,
        inputs: str,
        bound: dict[str, Any],
        texts: dict[str, str],
        run: Callable[..., Any],
    ) -> None:
        self.execution = here.execution
        self.what = step.name
        self._coro = None
        self.step = step
        self.place = here
        self.key = key
        self.digest = inputs  # of its inputs
        self.exact = inputs  # the same, and of what was masked in them: what an approval belongs to
        self.bound = bound
        self.texts = texts  # argument -> canonical JSON
        self.run = run
        self.lane: tuple[str, ...] | None = None  # of a write: what no two calls of this run do at the same time
        self.down: str | None = None  # the resource that it waits for while a person is asked about it
        self.trial: str | None = None  # the resource that this call tries for all

    @property
    def branch(self) -> str:
        """The branch it was made in."""
        return self.key[0]

    def args(self) -> str:
        """A checksum per argument, as JSON: tells later which one changed, within one step and no more."""
        return "{" + ",".join([f'"{name}":"{crc32(text.encode()):08x}"' for name, text in self.texts.items()]) + "}"

    def arguments(self) -> str:
        """The arguments as JSON, for the person who has to decide."""
        return whole(self.texts)

    def inner_branch(self, name: str | None = None) -> str:
        """Where the calls go that the step's own code makes (under another *name* of the step)."""
        branch, mine, key = self.key
        return inner_branch(branch, name or mine, key)

    def begin(self) -> Coroutine[Any, Any, Any]:
        """The coroutine that answers it from its record, or runs it."""
        coro: Coroutine[Any, Any, Any] = self.run(self.execution, self)
        return coro


def inner_branch(branch: str, name: str, key: str) -> str:
    """Where the calls go that the code of this call of a step makes."""
    return join(branch, f"{name}[{key if len(key) <= _READABLE and '/' not in key else digest(key)}]")


def join(branch: str, name: str) -> str:
    """A branch within a branch."""
    return f"{branch}/{name}" if branch else name


def whole(texts: dict[str, str]) -> str:
    """Arguments as one JSON object, names sorted."""
    return "{" + ",".join([f'"{name}":{texts[name]}' for name in sorted(texts)]) + "}"


def text_of(value: Any, name: str) -> str:
    """An argument as canonical JSON; the commonest without the detour over a copy.

    Raises:
        NotRecordable: it has no such text; the path begins with *name*.
    """
    kind = type(value)
    if kind is str:
        if value.isascii():
            return encode_basestring(value)
    elif kind is int:
        if -_INT64 < value < _INT64:
            return repr(value)
    elif value is None:
        return "null"
    return canonical(value, name)


def identify(step: Step[Any, Any], here: Place, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]) -> Call:
    """Bind, encode and number a call; *run* will answer it.

    Raises:
        TypeError: the arguments do not fit the function.
        NotRecordable, SecretFound: an argument cannot or must not be recorded; names it.
        TooLarge: the arguments are over the size limit together.
        KeyRequired: a write without ``key=`` was called a second time in its branch.
        ValueError: the business key cannot be built from the arguments.
    """
    o = step.settings
    bound = step.parameters.bind(args, kwargs)
    recorded = step.parameters.recorded(bound)
    texts = {name: text_of(value, name) for name, value in recorded.items()}
    inputs_text, masked = whole(texts), False
    exact, exact_text = texts, inputs_text
    if len(inputs_text) > MAX_RESULT:
        raise TooLarge(f"{step.name}: its arguments", len(inputs_text), MAX_RESULT)
    if find_secret(inputs_text) is not None:
        texts, masked = _guarded(step, texts), True
        inputs_text = whole(texts)
    inputs = digest(inputs_text)
    if o.effect is not EffectKind.READ:
        bound = _kept(step, bound, exact)
        key = _key_text(step, step.key_paths, bound, masked=masked) if step.key_paths is not None else _once(step, here, inputs)
    elif o.match == "order":
        key = f"#{here.number(step.name)}"
    else:
        key = _key_text(step, step.key_paths, bound, masked=masked) if step.key_paths is not None else inputs
        n = here.number(f"{step.name}\0{key}")
        if n > 1:
            key = f"{key}~{n}"
    call = Call(step, here, (here.branch, step.name, key), inputs, bound, texts, run)
    if masked:
        call.exact = digest(f"{inputs}\0{exact_text}")
    return call


def _kept(step: Step[Any, Any], bound: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """The arguments of a write as they are now: what is sent is what was recorded, claimed and approved, whoever changes them.

    Raises:
        NotRecordable: one cannot be copied; names it.
    """
    changing = [name for name in texts if type(bound[name]) not in _UNCHANGING]
    if not changing:
        return bound
    values = dict(bound)
    for name in changing:
        values[name] = as_now(bound[name], texts[name], name)
    return step.parameters.rebind(values) if isinstance(bound, Spread) else values


def as_now(value: Any, text: str, name: str) -> Any:
    """A copy of a value; where it cannot be copied (it holds a lock, a connection), one made anew from its canonical *text*.

    Raises:
        NotRecordable: neither; the path begins with *name*.
    """
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever its parts raise
        return decode_argument(type(value), json.loads(text), name)


def _key_text(step: Step[Any, Any], paths: KeyPaths, bound: dict[str, Any], *, masked: bool) -> str:
    """The business key; its digest where it holds a credential that the step has masked. *masked*: an argument was."""
    text = paths.text(bound)
    plain = unquote(text) if "%" in text else text
    what = find_secret(plain)
    if what is None and masked:  # some are recognised by their name only, as under "Authorization"
        parts = (unquote(part) for part in text.split("/"))
        named = (find_secret(to_json({path[-1]: part}).decode()) for path, part in zip(paths.paths, parts, strict=False))
        what = next(filter(None, named), None)
    if what is None:
        return fitting(text)
    if step.settings.secrets == "mask":
        return digest(text)
    raise SecretFound(f"{step.name}: key", what)


def nameable(text: str) -> str:
    """What names a record of the run's handle: a credential only by its digest, and so the end of a long one."""
    return fitting(text) if find_secret(text) is None else digest(text)


def _guarded(step: Step[Any, Any], texts: dict[str, str]) -> dict[str, str]:
    """Refuse the credential, with the way to it, or mask it. Together with its parameter's name a text may be one, too."""
    secrets = step.settings.secrets
    kept = {name: guard(text, f"{step.name}: {name}", secrets=secrets) for name, text in texts.items()}
    if guard(whole(kept), f"{step.name}: arguments", secrets=secrets) == whole(kept):
        return kept
    return {name: _masked(name, text) for name, text in kept.items()}


def _masked(name: str, text: str) -> str:
    found = from_json(guard(f'{{"{name}":{text}}}', name, secrets="mask"))
    return to_json(found[name] if isinstance(found, dict) else MASK).decode()


def _once(step: Step[Any, Any], here: Place, inputs: str) -> str:
    """The key of a write without one: it may be called once per branch (by several tasks, if they say the same)."""
    execution = here.execution
    seen = execution.unkeyed.setdefault((here.branch, step.name), inputs)
    if here.number(f"{step.name}\0once") > 1 or seen != inputs:
        raise KeyRequired(step.name, execution.hold.run_id)
    return ONCE


def changed_argument(old: Record, call: Call) -> str | None:
    """Which argument of *call* differs from those *old* was recorded with, in words."""
    if old.args is None:
        return None
    before, now = json.loads(old.args), json.loads(call.args())
    names = [name for name in now if before.get(name) != now[name]] + [name for name in before if name not in now]
    if not names:
        return None
    return f"argument {', '.join(names)} changed" if len(names) == 1 else f"arguments {', '.join(names)} changed"
