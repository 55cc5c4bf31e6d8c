"""A process that dies at its N-th write to the store, on one side of the commit. From outside: the store is wrapped."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from stepseven import Layer, StoreUnavailable
from tests.runs.tools import Crash, bury, hang_up, url
from tests.servers import databases

T = TypeVar("T")
L = TypeVar("L", bound=Layer)
NEVER = 1 << 30


class Death:
    """Counts writes and ends the process, so to say, at the chosen one: nothing is written any more."""

    def __init__(self, layer: Layer, at: int, side: str) -> None:
        self.left = at
        self.side = side
        self.dead = False
        store: Any = layer.store
        for name in ("write_now", "append_now"):
            setattr(store, name, self._sync(getattr(store, name)))
        for name in ("write", "append"):
            setattr(store, name, self._async(getattr(store, name)))

    def _due(self) -> bool:
        if self.dead:
            raise Crash
        self.left -= 1
        return self.left < 0

    def _end(self) -> None:
        self.dead = True
        raise Crash

    def _sync(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            if threading.current_thread().name == "stepseven_beat":  # comes when it comes: it neither counts nor dies
                if self.dead:
                    raise StoreUnavailable("", "the process is gone")
                return write(*args, **how)
            due = self._due()
            if due and self.side == "before":
                self._end()
            done = write(*args, **how)
            if due and done is not None:  # None: an append that has to queue is no write yet
                self._end()
            return done

        return call

    def _async(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **how: Any) -> Any:
            due = self._due()
            if due and self.side == "before":
                self._end()
            done = await write(*args, **how)
            if due:
                self._end()
            return done

        return call


def process(
    folder: Path, make: Callable[[], L], use: Callable[[L], Coroutine[Any, Any, T]], *, at: int = NEVER, side: str = "before"
) -> T | None:
    """Run *use* in a process (its own loop, and the layer that *make* gives) that dies at write number *at* (0 = the first).

    Returns:
        What *use* gave, if it came to its end before.
    """

    async def main() -> T | None:
        layer = make()
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # a process that is gone reports nothing
        if at < NEVER:
            Death(layer, at, side)
        try:
            return await use(layer)
        except Crash:
            return None
        finally:
            hang_up(layer)

    try:
        return asyncio.run(main())
    except Crash:
        return None
    finally:
        if databases.exists(folder):
            bury(folder)


def dying(path: Path, at: int, side: str, use: Callable[[Layer], Coroutine[Any, Any, T]]) -> T | None:
    """The same with an ordinary layer, and nothing of the process left in memory."""
    try:
        return process(path, lambda: Layer(url(path)), use, at=at, side=side)
    finally:
        gc.collect()


def living(path: Path, use: Callable[[Layer], Coroutine[Any, Any, T]]) -> T:
    """Run *use* in a process that lives to its end."""
    done = dying(path, NEVER, "before", use)
    assert done is not None
    return done


def every_death(
    folder: Path, use: Callable[[Layer], Coroutine[Any, Any, Any]], prepare: Callable[[Path], object] | None = None
) -> Iterator[Path]:
    """The state each death of *use* leaves: before its first write, before its second and so on.

    After a commit the state is the one before the next, so one side is enough; of the last write it is the end.

    Args:
        folder: where the stores go, each in a folder of its own.
        use: what is done until death.
        prepare: makes what was there before, and what the outside knows, anew.
    """
    for at in range(200):
        state = folder / f"write{at}"
        state.mkdir()
        if prepare is not None:
            prepare(state)
        ended = dying(state, at, "before", use)
        yield state
        databases.done(state)
        if ended is not None:
            return
    raise AssertionError("it never came to its end")
