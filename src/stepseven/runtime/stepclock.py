"""A step's time-out counts while its code runs, and stands still while a call in it waits for people or other runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from stepseven.runtime.place import place


class StepClock:
    """What is left of a step's time. Calls in its code stop it; the clock of a step around stands still with it."""

    __slots__ = ("_around", "_left_s", "_limit", "_over", "_stopped")

    def __init__(self, limit: asyncio.Timeout, around: StepClock | None) -> None:
        self._limit = limit
        self._around = around
        self._stopped = 0  # by how many of the step's tasks
        self._left_s = 0.0
        self._over = False

    def stop(self) -> None:
        """A call in the step begins to wait."""
        self._stopped += 1
        when = self._limit.when()
        if self._stopped == 1 and self._counts() and when is not None:
            self._left_s = when - asyncio.get_running_loop().time()
            self._limit.reschedule(None)
        if self._around is not None:
            self._around.stop()

    def go_on(self) -> None:
        """It no longer waits."""
        self._stopped -= 1
        if self._stopped == 0 and self._counts() and self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left_s)
        if self._around is not None:
            self._around.go_on()

    def end(self) -> None:
        """The step's code has ended; a task it left behind may still wait."""
        self._over = True

    def _counts(self) -> bool:
        return not self._over and not self._limit.expired()


@contextmanager
def stopped() -> Iterator[None]:
    """While this lasts, no time of the steps around runs."""
    here = place.get()
    clock = here.clock if here is not None else None
    if clock is None:
        yield
        return
    clock.stop()
    try:
        yield
    finally:
        clock.go_on()
