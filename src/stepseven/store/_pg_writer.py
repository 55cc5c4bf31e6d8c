"""What event loops hand over to be written: grouped into few commits by one thread, with a side lane for what has to wait.

The thread never waits long for somebody else's lock: a unit whose client is being written to elsewhere, for longer than that,
moves to a lane of its own, in order, and everybody else goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg

from stepseven.errors import StoreUnavailable
from stepseven.store._pg_desk import PATIENCE_S, Desk
from stepseven.store._pg_trouble import away, gone, passes
from stepseven.store._pg_tx import LOCK_MS, Restarted, Sent, Writing, lock_keys
from stepseven.store._pg_wire import Wire
from stepseven.store._queue import Queued, refuse, tell
from stepseven.store._thread import LateThread

BATCH_RECORDS = 256
BATCH_UNITS = 32  # a batch holds its clients' locks until its commit
SHORT_LOCK_MS = 250


class _Failed(Exception):
    """One of a batch failed: the others are done without it."""


class Writer:
    """The queue of one store, and its threads."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._queue: deque[Queued] = deque()
        self._wake = threading.Event()
        self._thread = LateThread(self._loop, "stepseven_writer")
        self._closing = False
        self._lanes = _Lanes(self._in_lane)

    def put(self, queued: Queued) -> None:
        """Hand it over.

        Raises:
            StoreUnavailable: the store was closed.
        """
        if self._closing:
            raise self.closed()
        self._queue.append(queued)
        if not self._thread.start() or (self._closing and not self._thread.alive):  # closed in this very moment
            refuse(self._queue, self.closed())
        self._wake.set()

    def patient(self) -> bool:
        """Whether somebody waits for a lock that is held elsewhere: nobody of the same client is to overtake them."""
        return self._lanes.busy()

    def closed(self) -> StoreUnavailable:
        """What a closed store says."""
        return StoreUnavailable(self._desk.server.url, "it was closed")

    def close(self) -> None:
        """Write what waits, end the threads."""
        self._closing = True
        self._wake.set()
        self._thread.join(2 * PATIENCE_S)
        self._lanes.close()
        if not self._thread.alive:
            refuse(self._queue, self.closed())

    def _loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                tell(self._write(self._next()))
            if self._closing:
                return

    def _next(self) -> list[Queued]:
        """What goes into the next commit, in order."""
        batch: list[Queued] = []
        units = 0
        while self._queue and len(batch) < BATCH_RECORDS and units < BATCH_UNITS:
            queued = self._queue.popleft()
            if self._lanes.take(queued):  # behind others of the same client
                continue
            batch.append(queued)
            units += queued.unit is not None
        return batch

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _write(self, batch: list[Queued]) -> list[Queued]:
        """Write it; those whose end is known afterwards."""
        if len(batch) > 1:
            try:
                self._desk.patiently(self._together(batch), again=gone)
            except StoreUnavailable as error:  # nobody knows whether it was committed
                return _all_failed(batch, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is one's own: each for itself, then
                if isinstance(error, psycopg.Error) and away(error):
                    return self._out(batch, error)
            else:
                return batch
        ended: list[Queued] = []
        for queued in batch:
            if self._lanes.take(queued):
                continue
            if self._alone(queued):
                ended.append(queued)
        return ended

    def _together(self, batch: list[Queued]) -> Callable[..., None]:
        keys = sorted({key for queued in batch for key in lock_keys(queued.client)})
        durable = any(queued.durable for queued in batch)

        def work(tx: Writing) -> list[tuple[Queued, Sent]]:
            later: list[tuple[Queued, Sent]] = []
            for queued in batch:
                queued.error = None
                if queued.unit is None:
                    later.append((queued, tx.later(queued.statement, queued.values)))
                else:
                    _carry_out(queued, tx)
            return later

        write = self._desk.transact(work, keys, durable=durable, lock_ms=SHORT_LOCK_MS)

        def attempt(wire: Wire) -> None:
            for queued, sent in write(wire):
                queued.result = sent.rows_written() == 1

        return attempt

    def _alone(self, queued: Queued, lock_ms: int = SHORT_LOCK_MS) -> bool:
        """Write one; ``False``: somebody holds its lock, it went to a lane."""
        patient = lock_ms > SHORT_LOCK_MS
        queued.error = None
        try:
            queued.result = self._desk.patiently(self._one(queued, lock_ms), again=passes if patient else gone)
        except psycopg.Error as error:
            if not patient and passes(error) and not away(error):
                self._lanes.open(queued)
                return False
            queued.error = self._desk.server.explain(error)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits; the thread has to live for the next one
            queued.error = error
        return True

    def _one(self, queued: Queued, lock_ms: int) -> Callable[..., Any]:
        if queued.unit is not None:
            return self._desk.transact(queued.unit, lock_keys(queued.client), durable=queued.durable, lock_ms=lock_ms)
        if not queued.durable and queued.statement in self._desk.free:
            return self._desk.append_free(queued.statement, queued.values)
        write = self._desk.transact(
            lambda tx: tx.later(queued.statement, queued.values), (), durable=queued.durable, lock_ms=lock_ms
        )
        return lambda wire: write(wire).rows_written() == 1

    def _out(self, batch: list[Queued], error: psycopg.Error) -> list[Queued]:
        """The server is not there. Whoever waited through it need not wait through the same again."""
        waiting = [self._queue.popleft() for _ in range(len(self._queue))]
        return _all_failed([*batch, *waiting], self._desk.server.explain(error))

    def _in_lane(self, queued: Queued) -> None:
        self._alone(queued, LOCK_MS)
        tell([queued])


def _carry_out(queued: Queued, tx: Writing) -> None:
    """One unit of a batch. One that fails before it wrote anything harms nobody."""
    assert queued.unit is not None, "a unit"  # noqa: S101 - for the type checker
    wrote, tx.wrote = tx.wrote, False
    try:
        queued.result = queued.unit(tx)
    except Restarted:
        raise
    except psycopg.Error as error:
        if gone(error):
            raise
        raise _Failed from error
    except BaseException as error:
        if tx.wrote:
            raise _Failed from error
        queued.error = error
    finally:
        tx.wrote = wrote or tx.wrote


def _all_failed(batch: list[Queued], error: StoreUnavailable) -> list[Queued]:
    for queued in batch:
        queued.error = error
    return batch


class _Lanes:
    """One thread for each client whose lock somebody else holds for long, while units wait for it."""

    def __init__(self, do: Callable[[Queued], None]) -> None:
        self._do = do
        self._lock = threading.Lock()
        self._lanes: dict[int, deque[Queued]] = {}
        self._threads: set[threading.Thread] = set()

    def busy(self) -> bool:
        """Whether there are any."""
        return bool(self._lanes)

    def take(self, queued: Queued) -> bool:
        """Put it behind others of its clients, where some wait."""
        if not self._lanes:
            return False
        with self._lock:
            for key in _lane(queued):
                if key in self._lanes:
                    self._lanes[key].append(queued)
                    return True
        return False

    def open(self, queued: Queued) -> None:
        """A lane for it."""
        if self.take(queued):
            return
        key = _lane(queued)[0]
        with self._lock:
            self._lanes[key] = deque([queued])
            thread = threading.Thread(target=self._run, args=(key,), name="stepseven_waiter", daemon=True)
            self._threads.add(thread)
            thread.start()  # under the lock: nobody joins one that is not started

    def _run(self, key: int) -> None:
        while True:
            self._do(self._lanes[key][0])
            with self._lock:  # it stays in the lane until it is done, so that nobody overtakes it
                self._lanes[key].popleft()
                if not self._lanes[key]:
                    del self._lanes[key]
                    self._threads.discard(threading.current_thread())
                    return

    def close(self) -> None:
        """Wait for what is in them."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(2 * PATIENCE_S)


def _lane(queued: Queued) -> list[int]:
    return lock_keys(queued.client) or [0]
