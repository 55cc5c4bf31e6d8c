"""Waiting that outlives the process: what a run waits for, and when all of it is waiting.

A run leaves memory when every task it created is in a durable wait. Waits on the run's own tasks and on asyncio's locks,
events and queues count as inside the run. Anything else (a socket, ``asyncio.sleep``) is foreign: it keeps the run loaded.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

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


class Standing(StrEnum):
    """How a task of a run stands."""

    RUNNABLE = "runnable"
    DURABLE = "durable"
    INSIDE = "inside"
    FOREIGN = "foreign"


_HERE = PurePath(__file__).parent.parent
_BETWEEN = {"coroutine_wrapper", "async_generator_asend", "async_generator_athrow"}
_INSIDE_FILES = {"locks.py", "queues.py", "taskgroups.py"}


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
        children = getattr(future, "_children", None)  # asyncio.gather, which may hold others
        return children is not None and all(map(ours, children))

    stack = list(frames(task))
    if any(frame.f_code in STEP_CODE for frame in stack):
        return Standing.FOREIGN
    if ours(waiter) or _waits_inside(stack, ours):
        return Standing.INSIDE
    return Standing.INSIDE if any(map(_shields(waiter), tasks)) else Standing.FOREIGN


def _waits_inside(stack: list[FrameType], ours: Callable[[Any], bool]) -> bool:
    """Whether the innermost code is asyncio's own: a lock, a queue, a task group, or a wait for our tasks."""
    if not stack:
        return False
    frame = stack[-1]
    path = PurePath(frame.f_code.co_filename)
    if path.parent.name != "asyncio":
        return False
    if path.name in _INSIDE_FILES:
        return True
    waited = path.name == "tasks.py" and frame.f_code.co_name == "_wait" and frame.f_locals.get("timeout") is None
    return waited and all(map(ours, frame.f_locals.get("fs", ())))


def _shields(waiter: Any) -> Callable[[Any], bool]:
    """Whether a task is what ``asyncio.shield`` waits for behind *waiter*: it keeps the outer future in its callback only."""

    def found(task: Any) -> bool:
        callbacks = getattr(task, "_callbacks", None) or ()
        shields = [callback for callback, _ in callbacks if getattr(callback, "__qualname__", "").startswith("shield.")]
        return any(cell.cell_contents is waiter for callback in shields for cell in callback.__closure__ or ())

    return found


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
