"""Threads for ``def`` steps: as many as are asked for, reused, and never waited for at exit.

The event loop's own pool has few threads (a timed-out step that hangs takes one away for good) and joins them when the program
ends, so one hung request would keep a finished program alive.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

IDLE_S = 10.0  # an unused thread goes away after this

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]

_idle: deque[queue.SimpleQueue[_Job]] = deque()
_lock = threading.Lock()


def _in_child() -> None:
    """A forked process has none of its parent's threads: a job given to one would wait for ever."""
    _idle.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


def run_in_thread(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run *call* in a thread; the future of its result in the running loop. Cancelling the future does not stop the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    job = (call, loop, future)
    with _lock:
        inbox = _idle.pop() if _idle else None
    if inbox is None:
        inbox = queue.SimpleQueue()
        threading.Thread(target=_work, args=(inbox,), name="stepseven_step", daemon=True).start()
    inbox.put(job)
    return future


def _work(inbox: queue.SimpleQueue[_Job]) -> None:
    while True:
        try:
            call, loop, future = inbox.get(timeout=IDLE_S)
        except queue.Empty:
            with _lock:
                if inbox in _idle:
                    _idle.remove(inbox)
                    return
            continue  # a job was given to us in the last instant
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except SystemExit as told:  # a future that carries it would end the event loop
            error = RuntimeError(f"the code called sys.exit({told.code!r})")
        except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
            error = raised
        with _lock:
            _idle.append(inbox)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, future, result, error)
        del call, loop, future, result, error  # an idle thread keeps nothing alive


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError("the step raised StopIteration"))  # a future cannot carry it
    else:
        future.set_exception(error)


class Door:
    """Between a send and whoever gives it up: either its code began, or it never will."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begun = False
        self.shut = False

    def enter(self) -> bool:
        """The code is about to begin: may it?"""
        with self._lock:
            self.begun = not self.shut
            return self.begun

    def close(self) -> bool:
        """Give it up, or note its end. Whether the code had begun."""
        with self._lock:
            self.shut = True
            return self.begun
