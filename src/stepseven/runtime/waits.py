"""Waiting that outlives the process: what a run waits for, and when all of it is waiting.

A run leaves memory when every task it created is in a durable wait. Waits on the run's own tasks and on asyncio's locks,
events and queues count as inside the run. Anything else (a socket, ``asyncio.sleep``) is foreign: it keeps the run loaded.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.model import WaitingFor
from stepseven.transitions.children import Seen

TICK_S = 0.1


@dataclass(slots=True, kw_only=True)
class DurableWait:
    """Something the store knows about, too. ``until_us``: when a timer ends it."""

    kind: WaitingFor
    what: str
    until_us: int | None = None
    question_id: str | None = None
    child: Seen | None = None  # a run that this one started
    fact: str | None = None  # it ends when this is known about the client
    resource: str | None = None  # it ends when this answers again, or is to be tried


class Standing(StrEnum):
    """How a task of a run stands."""

    RUNNABLE = "runnable"
    DURABLE = "durable"
    INSIDE = "inside"
    FOREIGN = "foreign"


_HERE = PurePath(__file__).parent.parent
_BETWEEN = {"coroutine_wrapper", "async_generator_asend", "async_generator_athrow"}
_INSIDE_FILES = {"locks.py", "queues.py", "taskgroups.py"}
_SHIELD = "shield.<locals>._outer_done_callback"


#: The code objects under which a step's own code runs: what it waits for is never inside the run.
STEP_CODE: set[CodeType] = set()


class Flight:
    """A call in flight, and who else wants its record."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """The call ended: the others look again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


def standing(
    task: asyncio.Task[Any], tasks: Collection[asyncio.Future[Any]], durable: Collection[Any], inside: Collection[Any]
) -> Standing:
    """Whether *task* could go on now, and if not, what it waits for."""
    waiter = getattr(task, "_fut_waiter", None)
    if waiter is None or waiter.done():
        return Standing.RUNNABLE
    if waiter in durable:
        return Standing.DURABLE
    if waiter in inside:
        return Standing.INSIDE

    def ours(future: Any) -> bool:
        if future.done() or future in tasks or future in durable or future in inside:
            return True
        parts = made_of(future)
        return bool(parts) and all(map(ours, parts))

    stack = list(frames(task))
    if any(frame.f_code in STEP_CODE for frame in stack):
        return Standing.FOREIGN
    if _ending(waiter):
        return Standing.RUNNABLE
    if ours(waiter):
        return Standing.INSIDE
    return _in_asyncio(stack, ours)


def _in_asyncio(stack: list[FrameType], ours: Callable[[Any], bool]) -> Standing:
    """How a task stands whose innermost code is asyncio's own: a lock, a queue, a task group, or a wait for our tasks."""
    if not stack:
        return Standing.FOREIGN
    frame = stack[-1]
    path = PurePath(frame.f_code.co_filename)
    if path.parent.name != "asyncio":
        return Standing.FOREIGN
    if path.name in _INSIDE_FILES:
        return Standing.INSIDE
    if path.name != "tasks.py" or frame.f_code.co_name != "_wait" or frame.f_locals.get("timeout") is not None:
        return Standing.FOREIGN
    waited: Collection[Any] = frame.f_locals.get("fs", ())
    if _enough(waited, frame.f_locals.get("return_when")):
        return Standing.RUNNABLE
    return Standing.INSIDE if all(map(ours, waited)) else Standing.FOREIGN


def _enough(waited: Collection[Any], return_when: object) -> bool:
    """Whether an ``asyncio.wait`` for these has what it waits for. It is told by a callback, so that it still waits."""
    if return_when == asyncio.FIRST_COMPLETED:
        return any(map(_ending, waited))
    if return_when == asyncio.FIRST_EXCEPTION and any(f.done() and not f.cancelled() and f.exception() for f in waited):
        return True
    return all(map(_ending, waited))


def _ending(future: Any) -> bool:
    """Whether a future has ended, or is made of others that all have: then it ends in the next turns of the loop."""
    if future.done():
        return True
    parts = made_of(future)
    return bool(parts) and all(map(_ending, parts))


def made_of(future: Any) -> Collection[Any]:
    """What ``asyncio.gather`` or ``asyncio.shield`` made *future* of. A shield keeps it in a callback only."""
    children: Collection[Any] | None = getattr(future, "_children", None)
    if children is not None:
        return children
    shields = (c for c, _ in getattr(future, "_callbacks", None) or () if getattr(c, "__qualname__", "") == _SHIELD)
    return [held for c in shields for cell in c.__closure__ or () if asyncio.isfuture(held := cell.cell_contents)]


class Lull:
    """Whether everything that waits goes on waiting.

    What has ended tells those who wait for it by callbacks, one turn of the loop after the other (a task, the gather it is
    in, the gather that is in …), and not all of these can be seen. So what waits now must still wait for the same a few
    turns later; a chain of wakings under way has come to some task by then.
    """

    TURNS = 16  # more than anybody nests

    def __init__(self, tasks: Collection[asyncio.Task[Any]], then: Callable[[], None]) -> None:
        self._seen = _waiters(tasks)
        self._then = then
        self._turn(self.TURNS)

    def _turn(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)
        else:
            self._then()

    def held(self, tasks: Collection[asyncio.Task[Any]]) -> bool:
        """Whether each of them still waits for the same as at the beginning."""
        return _waiters(tasks) == self._seen


def _waiters(tasks: Collection[asyncio.Task[Any]]) -> dict[asyncio.Task[Any], Any]:
    return {task: getattr(task, "_fut_waiter", None) for task in tasks}


def frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """The frames in which *task* is suspended, outermost first."""
    coro: Any = task.get_coro()
    while coro is not None:
        for name in ("cr_frame", "gi_frame", "ag_frame"):
            frame = getattr(coro, name, None)
            if frame is not None:
                yield frame
        coro = _awaited(coro)


def _awaited(coro: Any) -> Any:
    """What a coroutine is suspended in. ``__await__`` and ``__anext__`` put an object between that shows it to nobody else."""
    found = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
    if type(found).__name__ in _BETWEEN:
        return next((o for o in gc.get_referents(found) if hasattr(o, "cr_frame") or hasattr(o, "ag_frame")), None)
    return found


def foreign_place(task: asyncio.Task[Any]) -> str | None:
    """File and line of the user's code that waits for something stepseven does not know."""
    found = None
    for frame in frames(task):
        path = PurePath(frame.f_code.co_filename)
        if path.parent.name != "asyncio" and not path.is_relative_to(_HERE):
            found = f"{path.name}:{frame.f_lineno}"
    return found
