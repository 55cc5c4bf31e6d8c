"""What waits for a store's writer thread, and how those who wait in an event loop hear of its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from stepseven.store.base import Tx, Values, Whose


class Queued:
    """What waits for the writer thread: a unit, or one inserting statement; and who waits for it (``ended``)."""

    __slots__ = ("client", "done", "durable", "error", "loop", "result", "sent", "statement", "unit", "values", "waiter")

    def __init__(
        self,
        durable: bool,  # noqa: FBT001
        unit: Callable[[Tx], Any] | None,
        statement: str = "",
        values: Values = (),
        client: Whose = None,
    ) -> None:
        self.durable = durable
        self.client = client
        self.unit = unit
        self.statement = statement
        self.values = values
        self.sent: list[Any] | None = None  #: what the unit asks for, once that was noted without executing it
        self.loop = asyncio.get_running_loop()
        self.waiter: asyncio.Future[None] | None = None
        self.done = False  #: as its loop knows it
        self.result: Any = None
        self.error: BaseException | None = None


def settle(batch: list[Queued]) -> None:
    """Tell those who wait in this loop. One who was cancelled meanwhile is told nothing; it was written all the same."""
    for queued in batch:
        queued.done = True
        if queued.waiter is not None and not queued.waiter.done():
            queued.waiter.set_result(None)


async def ended(queued: Queued) -> Any:
    """The result of a queued unit. Who is cancelled meanwhile hears of it after the commit: it cannot be called back.

    A future of one's own at a time, and none that is shielded: that would take the loop a turn more at each commit.
    """
    cancelled = False
    while not queued.done:
        queued.waiter = queued.loop.create_future()
        try:
            await queued.waiter
        except asyncio.CancelledError:
            cancelled = True
    if queued.error is not None:
        raise queued.error
    if cancelled:
        raise asyncio.CancelledError
    return queued.result


def refuse(queue: deque[Queued], why: BaseException) -> None:
    """Fail all that waits: nobody is there any more to write it. What each waits for is told once, whoever comes here first."""
    left: list[Queued] = []
    with contextlib.suppress(IndexError):  # another thread may empty it at the same time
        while True:
            left.append(queue.popleft())
    for queued in left:
        queued.error = queued.error or why
    tell(left)


def tell(batch: list[Queued]) -> None:
    """Wake each loop once: every wake-up of a loop from another thread is a system call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Queued]] = {}
    for queued in batch:
        by_loop.setdefault(queued.loop, []).append(queued)
    for loop, waiting in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, waiting)
