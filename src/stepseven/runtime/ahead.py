"""What is left of a run, read from its workflow's source: from the top, or from where its suspended code stands.

Nothing is run for it. What the source does not tell is listed as ``unknown``, never left out.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stepseven._dataclass import dataclass
from stepseven.decide.plan import UNKNOWN, Coming
from stepseven.decide.prices import CHILD
from stepseven.runtime import _standing as at_
from stepseven.runtime import known
from stepseven.runtime._blocks import Reader
from stepseven.runtime._calls import Args, coming_of, may_wait
from stepseven.runtime._names import merged
from stepseven.runtime._notes import BUDGET, Mapped
from stepseven.runtime._values import HANDLE, OPAQUE, foreign, lift, ours, typed
from stepseven.runtime.binding import call_plain, hints_of
from stepseven.runtime.calls import Call
from stepseven.runtime.procedure import Workflow
from stepseven.runtime.waits import frames, made_of

if TYPE_CHECKING:
    from stepseven.runtime.declared import Step

OR = " or "  # between the names of workflows, where one of several is started
_ALIKE = 32  # tasks at one place whose names stand for different things: more are not read one by one

Standing = tuple[FrameType, int]  # a frame, and the instruction it is at


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What is left of a run.

    Attributes:
        waited: steps whose calls are under way, in order.
        coming: what comes after that.
        calls: how many calls are under way.
    """

    waited: tuple[str, ...] = ()
    coming: tuple[Coming, ...] = ()
    calls: int = 0


_wholes: WeakKeyDictionary[Workflow[Any, Any], tuple[tuple[Coming, ...], tuple[Mapped, ...]]] = WeakKeyDictionary()


def whole(workflow: Workflow[Any, Any]) -> tuple[Coming, ...]:
    """Everything that a workflow may call, in the order of its source.

    What comes before its body (``client_record=``, ``requires=``) comes first. Calls of one helper made twice are listed
    twice; of a loop each call once, as ``many``.
    """
    return _read_whole(workflow)[0]


def maps(workflow: Workflow[Any, Any]) -> tuple[Mapped, ...]:
    """What a workflow maps over items, each once, in the order of its source."""
    return _read_whole(workflow)[1]


def steps_of(workflow: Workflow[Any, Any]) -> list[Step[Any, Any]]:
    """The steps that its source calls. What was read holds them weakly: an older version's are to go with it."""
    return [step for c in whole(workflow) if c.of is not None and (step := c.of()) is not None]


def steps_named(workflow: Workflow[Any, Any], name: str) -> list[Step[Any, Any]]:
    """The steps of that name that its source calls: several only where those of several modules have it."""
    return list(dict.fromkeys(step for step in steps_of(workflow) if step.name == name))


def step_named(workflow: Workflow[Any, Any], name: str) -> Step[Any, Any] | None:
    """The step of that name that a workflow means: the one its source calls, else as ``known.find`` finds it."""
    found = steps_named(workflow, name)
    return found[0] if len(found) == 1 else known.find(name, workflow.fn.__module__)


def starts(workflow: Workflow[Any, Any]) -> tuple[str, ...]:
    """The workflows whose runs it starts, each once; an empty name where that cannot be seen."""
    texts = (c.text or "" for c in whole(workflow) if c.name == CHILD)
    return tuple(dict.fromkeys(name for text in texts for name in text.split(OR)))


def _read_whole(workflow: Workflow[Any, Any]) -> tuple[tuple[Coming, ...], tuple[Mapped, ...]]:
    found = _wholes.get(workflow)
    if found is None:
        reader = Reader(_home(workflow))
        read_before(reader, workflow)
        read_body(reader, workflow)
        found = _wholes[workflow] = tuple(reader.out), tuple(reader.maps)
    return found


def after(tasks: Iterable[asyncio.Task[Any]], *, home: str | None = None) -> tuple[Coming, ...]:
    """What may come after where the code of a run's tasks is suspended, besides the calls that are under way.

    Args:
        tasks: of one run; in whatever order.
        home: the workflow's package; default: that of each task's outermost code.
    """
    return look(tasks, home=home).coming


def after_error(error: BaseException, *, home: str | None = None) -> Ahead:
    """What would have come after the code that raised."""
    chain: list[Standing] = []
    at: TracebackType | None = error.__traceback__
    while at is not None:
        chain.append((at.tb_frame, at.tb_lasti))
        at = at.tb_next
    return _look([chain], home)


def names(comings: Iterable[Coming]) -> list[str]:
    """The steps, in order, once each; ``unknown`` once, where something cannot be seen. Without the handle's own calls."""
    return list(dict.fromkeys(c.name for c in comings if not c.name.startswith("run.")))


def begins_anew(step: Step[Any, Any]) -> bool:
    """Whether a step's own code may wait for somebody: then it runs from its top once more after that."""
    return any(map(may_wait, inside(step)))


def inside(step: Step[Any, Any]) -> tuple[Coming, ...]:
    """What a step's own code may call."""
    return Reader(str(step.fn.__module__).partition(".")[0]).inside(step)


def look(tasks: Iterable[asyncio.Task[Any]], *, home: str | None = None) -> Ahead:
    """What is under way in a run's tasks, and what comes after. The task that asks may be one of them."""
    current = _current()
    return _look([_running() if task is current else _chain(frames(task)) for task in _in_order(tasks)], home)


# -- from the top ---------------------------------------------------------------------------------------------------------


def _home(workflow: Workflow[Any, Any]) -> str:
    return str(workflow.fn.__module__).partition(".")[0]


def read_before(reader: Reader, workflow: Workflow[Any, Any], *, loader: bool = True) -> None:
    """What comes before the body. *loader*: with the client's outside record."""
    code = getattr(workflow.fn, "__code__", None)
    where = f"{PurePath(code.co_filename).name}:{code.co_firstlineno}" if code is not None else workflow.name
    if workflow.loader is not None and loader:
        reader.add(coming_of(workflow.loader, where))
    for fact in workflow.settings.requires:
        reader.add(Coming(name="run.ask", where=where, maybe=True, text=fact))


def read_body(reader: Reader, workflow: Workflow[Any, Any]) -> None:
    """The body, from its first line on."""
    hints = hints_of(workflow.fn)
    inputs = {n: typed(hints[n], reader.home) if n in hints else OPAQUE for n in workflow.parameters()[0]}
    node = at_.nowhere(workflow.fn)
    reader.file = at_.file_of(workflow.fn)

    def read() -> None:
        reader.consume(reader.call(lift(workflow.fn), Args([HANDLE], inputs), node), node)

    _reading(reader, read, node)


def _reading(reader: Reader, read: Any, node: Any) -> None:
    """Read; what is too much of it is unknown. Calls that were made and not awaited in view are awaited somewhere else."""
    before = reader.file, reader.many, reader.maybe, reader.muted
    try:
        read()
        while reader.loose:
            _, pending = reader.loose.popitem()
            with reader.under(maybe=True):
                reader.consume(pending, node)
    except Exception:  # noqa: BLE001 - too much to read; or what an object of the user's raises when it is looked at
        reader.file, reader.many, reader.maybe, reader.muted = before
        reader.loose.clear()
        reader.unknown(node)


# -- from where the code stands -------------------------------------------------------------------------------------------


def _chain(standing: Iterable[FrameType]) -> list[Standing]:
    return [(frame, frame.f_lasti) for frame in standing]


def _look(chains: Iterable[list[Standing]], home: str | None) -> Ahead:
    found: dict[tuple[str, str], int] = {}
    coming: list[Coming] = []
    waited: dict[str, None] = {}
    calls = 0
    seen: dict[Any, set[Any]] = {}
    for chain in chains:
        under_way = list(_under_way(chain))
        waited.update(dict.fromkeys(call.step.name for call in under_way))
        calls += len(under_way)
        each = _of_chain(chain, home, seen)
        at_once: dict[tuple[str, str], int] = {}
        for one in each:
            at = (one.name, one.where)
            if at in found and one.name != UNKNOWN:
                old = coming[found[at]]
                coming[found[at]] = replace(old, many=True, maybe=old.maybe and one.maybe)
            elif at not in found:
                at_once.setdefault(at, len(coming))
                coming.append(one)
        found.update(at_once)
    return Ahead(waited=tuple(waited), coming=tuple(coming), calls=calls)


def _of_chain(chain: list[Standing], home: str | None, seen: dict[Any, set[Any]]) -> list[Coming]:
    """What comes after where one task stands. Of many that stand alike one is read, and counts as *many*."""
    place = tuple((id(f.f_code), lasti) for f, lasti in chain)
    known = seen.setdefault(place, set())
    alike = at_.of_chain([f for f, _ in chain])
    if alike in known or len(known) >= _ALIKE:
        kept = [c for (p, _), out in _kept(seen).items() if p == place for c in out]
        return kept if alike in known else [*kept, Coming(name=UNKNOWN, where=_where(chain))]
    known.add(alike)
    out = _read_chain(chain, home)
    _kept(seen)[place, alike] = out
    return out


def _kept(seen: dict[Any, Any]) -> dict[Any, list[Coming]]:
    kept: dict[Any, list[Coming]] = seen.setdefault("kept", {})
    return kept


def _where(chain: list[Standing]) -> str:
    users = [f for f, _ in chain if not ours(f.f_code.co_filename)]
    return f"{at_.file_of(users[-1])}:{users[-1].f_lineno}" if users else "?"


def _read_chain(chain: list[Standing], home: str | None) -> list[Coming]:
    """Innermost first: the rest of each function, and then of whoever called it."""
    outermost = next((f for f, _ in chain if not _between(f)), None)
    home = home or str(outermost.f_globals.get("__name__", "") if outermost is not None else "").partition(".")[0]
    reader = Reader(home)
    plain = [f.f_code is call_plain.__code__ for f, _ in chain]
    for i in range(len(chain) - 1, -1, -1):
        frame, lasti = chain[i]
        inner = chain[i + 1][0] if i + 1 < len(chain) else None
        node = at_.at(frame)
        reader.left, reader.in_step, reader.file = BUDGET, any(plain[:i]), at_.file_of(frame)
        if ours(frame.f_code.co_filename) and home != "stepseven":
            _reading(reader, lambda: _ours(reader, frame, lasti, inner, node), node)  # noqa: B023 - read at once
        else:
            reader.leaving = inner is not None and inner.f_code.co_name == "__aexit__"
            _reading(reader, lambda: reader.resume(frame, node, lasti), node)  # noqa: B023 - read at once
    return reader.out


def _between(frame: FrameType) -> bool:
    names_ = frame.f_globals
    return ours(frame.f_code.co_filename) or foreign(frame.f_code.co_filename, names_.get("__name__"), names_, "")


def _ours(reader: Reader, frame: FrameType, lasti: int, inner: FrameType | None, node: Any) -> None:
    """What one of our own frames is going to call of the user's code."""
    call = frame.f_locals.get("call")
    if isinstance(call, Call) and not (inner is not None and isinstance(inner.f_locals.get("call"), Call)):
        made = [replace(c, maybe=True) for c in reader.inside(call.step)]
        reader.out[:] = merged([*reader.out, *made]) if made else reader.out
    at_.add(reader, frame, lasti, inner, node)


def _under_way(chain: list[Standing]) -> Iterator[Call]:
    """The call of the workflow's own code that a task waits in."""
    for frame, _ in chain:
        if ours(frame.f_code.co_filename):
            call = frame.f_locals.get("call")
            if isinstance(call, Call):
                yield call
                return


# -- which tasks ----------------------------------------------------------------------------------------------------------


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None


def _running() -> list[Standing]:
    """The frames of the task that is running now, outermost first. It cannot be seen from outside."""
    found: list[Standing] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way to see them
    while frame is not None and not (frame.f_code.co_name == "_run" and frame.f_code.co_filename.endswith("events.py")):
        found.append((frame, frame.f_lasti))
        frame = frame.f_back
    return found[::-1]


def _in_order(tasks: Iterable[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Those that are waited for before those that wait for them; else as they were made."""
    left = dict.fromkeys(sorted((t for t in tasks if not t.done()), key=_number))
    ordered: list[asyncio.Task[Any]] = []
    visiting: set[Any] = set()

    def visit(future: Any) -> None:
        if future in visiting:
            return
        visiting.add(future)
        for inner in made_of(future):
            visit(inner)
        if isinstance(future, asyncio.Task) and future in left:
            for inner in _waited_by(future):
                visit(inner)
            ordered.append(future)

    for task in left:
        visit(task)
    return ordered


def _number(task: asyncio.Task[Any]) -> int:
    number = task.get_name().rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _waited_by(task: asyncio.Task[Any]) -> list[Any]:
    """The futures that a task waits for."""
    waiter = getattr(task, "_fut_waiter", None)
    found = [] if waiter is None else [waiter]
    last = None
    for last in frames(task):
        if last.f_code.co_name == "__aexit__":
            found += sorted(getattr(last.f_locals.get("self"), "_tasks", ()), key=_number)
    if last is not None and last.f_code.co_name == "_wait":
        found += sorted((t for t in last.f_locals.get("fs", ()) if isinstance(t, asyncio.Task)), key=_number)
    return found
