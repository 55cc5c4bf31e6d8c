"""Waiting that outlives the process: what a run waits for, and when all of it is waiting.

A run leaves memory when every task it created is in a durable wait. Waits on the run's own tasks and on asyncio's locks,
events and queues count as inside the run. Anything else (a socket, ``asyncio.sleep``) is foreign: it keeps the run loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from stepseven.model import WaitingFor

TICK_S = 0.1


@dataclass(slots=True, kw_only=True)
class DurableWait:
    """Something the store knows about, too. ``until_us``: when a timer ends it."""

    kind: WaitingFor
    what: str
    until_us: int | None = None
    question_id: str | None = None


class Standing(StrEnum):
    """How a task of a run stands."""

    RUNNABLE = "runnable"
    DURABLE = "durable"
    INSIDE = "inside"
    FOREIGN = "foreign"


_INSIDE_FILES = {"locks.py", "queues.py", "taskgroups.py"}


def standing(
    task: asyncio.Task[Any], tasks: Iterable[asyncio.Future[Any]], durable: Iterable[Any], inside: Iterable[Any]
) -> Standing:
    """Whether *task* could go on now, and if not, what it waits for."""
    waiter = getattr(task, "_fut_waiter", None)
    if waiter is None or waiter.done():
        return Standing.RUNNABLE
    if waiter in durable:
        return Standing.DURABLE
    if waiter in tasks or waiter in inside:
        return Standing.INSIDE
    children = getattr(waiter, "_children", None)  # asyncio.gather
    if children is not None and all(c.done() or c in tasks or c in durable or c in inside for c in children):
        return Standing.INSIDE
    frame = innermost(task)
    if frame is not None:
        path = PurePath(frame.f_code.co_filename)
        if path.parent.name == "asyncio":
            if path.name in _INSIDE_FILES:
                return Standing.INSIDE
            if path.name == "tasks.py" and frame.f_code.co_name == "_wait" and frame.f_locals.get("timeout") is None:
                waited = frame.f_locals.get("fs", ())
                if all(f.done() or f in tasks or f in durable or f in inside for f in waited):
                    return Standing.INSIDE
    return Standing.FOREIGN


def innermost(task: asyncio.Task[Any]) -> Any:
    """The frame in which *task* is suspended."""
    coro: Any = task.get_coro()
    frame = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None) or frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
    return frame


def foreign_place(task: asyncio.Task[Any]) -> str | None:
    """File and line of the user's code that waits for something stepseven does not know."""
    coro: Any = task.get_coro()
    found = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None and "stepseven" not in PurePath(frame.f_code.co_filename).parts[:-1]:
            path = PurePath(frame.f_code.co_filename)
            if path.parent.name != "asyncio":
                found = f"{path.name}:{frame.f_lineno}"
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return found
