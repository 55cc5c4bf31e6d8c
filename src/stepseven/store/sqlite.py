"""SQLite: one file, any number of processes.

One connection writes. A unit is committed inline when nothing else is under way, and through a writer thread that groups
whatever waits into one commit otherwise: alone, a hand-over to a thread costs more than the commit; in company, one fsync
serves all. Without ``durable`` a commit reaches the operating system at once (it survives ``kill -9``) and the disk within
0.2 s; with it the commit waits for the disk, and so makes everything before it safe.

``PRAGMA synchronous`` is set before BEGIN (inside a transaction it has no effect). Other processes are waited for by a
short random retry: SQLite's own busy handler backs off up to 100 ms and starves whoever came first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stepseven.errors import StoreUnavailable
from stepseven.store.base import Params, Row, Tx
from stepseven.store.dialect import SQLITE
from stepseven.store.migrate import migrate_sqlite
from stepseven.store.statements import Statements, statements

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
FLUSH_AFTER_S = 0.12  # DESIGN: the disk within 0.2 s
BATCH_UNITS = 256
BATCH_S = 0.005  # a batch takes no longer, so nobody waits long for the lock
CHECKPOINT_BYTES = 4 << 20
RESTART_BYTES = 64 << 20

_WHY = {
    5: "another process has kept it locked for {busy:.0f} s: close what else writes to it, then try again",
    6: "it is locked: close what else writes to it, then try again",
    8: "the file or its folder is read-only: make it writable for this user",
    10: "the disk reported an error while reading or writing it",
    11: "the file is damaged: restore a backup",
    13: "the disk is full: free some space, then try again; nothing was half-written",
    14: "the file cannot be opened: check that the folder exists and is writable",
    26: "the file is not a SQLite database: choose another file",
}


def explain(url: str, error: sqlite3.Error) -> StoreUnavailable:
    """The error of the driver as ours, by SQLite's result code."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    why = _WHY.get(code)
    return StoreUnavailable(url, why.format(busy=BUSY_TIMEOUT_S) if why else f"SQLite says: {error}")


def busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock, so that a retry is worth it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6)


class _Tx:
    """A transaction of one connection."""

    __slots__ = ("connection", "sql")

    def __init__(self, connection: sqlite3.Connection, sql: Statements) -> None:
        self.connection = connection
        self.sql = sql

    def one(self, statement: str, params: Params) -> Row | None:
        rows: list[Row] = self.connection.execute(statement, params).fetchall()
        return rows[0] if rows else None

    def all(self, statement: str, params: Params) -> list[Row]:
        return self.connection.execute(statement, params).fetchall()

    def run(self, statement: str, params: Params) -> int:
        cursor = self.connection.execute(statement, params)
        if cursor.description is not None:
            return len(cursor.fetchall())
        return cursor.rowcount


class _Queued:
    """A unit that waits for the writer thread, and who waits for it."""

    __slots__ = ("done", "durable", "error", "result", "unit")

    def __init__(self, unit: Callable[[Tx], Any], durable: bool, done: Callable[[_Queued], None]) -> None:  # noqa: FBT001
        self.unit = unit
        self.durable = durable
        self.done = done
        self.result: Any = None
        self.error: BaseException | None = None


class SqliteStore:
    """A store in one SQLite file (``sqlite:///path``) or in memory (``sqlite:///:memory:``)."""

    def __init__(self, url: str, path: str, *, always_durable: bool = False) -> None:
        self.url = url
        self.path = path
        self.memory = path == ":memory:"
        self.sql = statements(SQLITE)
        self._always = always_durable
        self._lock = threading.Lock()
        self._read_lock = self._lock if self.memory else threading.Lock()
        self._queue: deque[_Queued] = deque()
        self._wake = threading.Event()
        self._dirty = threading.Event()
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._under_way = 0
        self._full: bool | None = None
        self._writer = self._connect()
        try:
            migrate_sqlite(self._writer, url, self._retry)
        except sqlite3.Error as error:
            self._writer.close()
            raise explain(url, error) from error
        except BaseException:
            self._writer.close()
            raise
        self._tx = _Tx(self._writer, self.sql)
        self._reader = self._writer if self.memory else self._connect()
        self._read_tx = _Tx(self._reader, self.sql)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        if not self.memory and not Path(self.path).parent.is_dir():
            raise StoreUnavailable(self.url, f"the folder {Path(self.path).parent} does not exist: create it first")
        try:
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            connection.row_factory = sqlite3.Row
            if not self.memory:
                self._retry(lambda: connection.execute("PRAGMA journal_mode=WAL").fetchall())
                connection.execute("PRAGMA wal_autocheckpoint=0")  # the flusher does it, off the path of a step
            connection.execute("PRAGMA foreign_keys=ON")
        except sqlite3.Error as error:
            raise explain(self.url, error) from error
        return connection

    def _retry(self, call: Callable[[], T]) -> T:
        """Repeat *call* while another process holds the lock: short random waits, the same for everybody."""
        give_up = time.monotonic() + BUSY_TIMEOUT_S
        pause = 0.0003
        while True:
            try:
                return call()
            except sqlite3.Error as error:
                if not busy(error) or time.monotonic() > give_up:
                    raise
                time.sleep(pause * (0.5 + random.random()))  # noqa: S311 - spreads waiters, decides nothing
                pause = min(pause * 1.5, 0.004)

    # -- writing ------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        self._under_way += 1

    def leave(self) -> None:
        self._under_way -= 1

    def _set_sync(self, durable: bool) -> None:  # noqa: FBT001
        full = durable or self._always
        if self._full is not full:
            self._writer.execute("PRAGMA synchronous=FULL" if full else "PRAGMA synchronous=NORMAL")
            self._full = full

    def _written(self, durable: bool) -> None:  # noqa: FBT001
        if not (durable or self._always or self.memory) and not self._dirty.is_set():
            self._start_threads()
            self._dirty.set()

    def _inline(self, durable: bool) -> bool:  # noqa: FBT001
        """Whether to commit in the caller's own thread; takes the lock if so."""
        if self._queue or (self._under_way > 1 and (durable or self._always)):
            return False
        return self._lock.acquire(blocking=False)

    def append_now(self, params: Params, *, durable: bool) -> bool | None:
        if not self._inline(durable):
            return None
        try:
            self._set_sync(durable)
            written = self._writer.execute(self.sql.append_step, params).rowcount == 1
        except sqlite3.Error as error:
            if busy(error):
                return None
            raise explain(self.url, error) from error
        finally:
            self._lock.release()
        self._written(durable)
        return written

    async def write(self, unit: Callable[[Tx], T], *, durable: bool) -> T:
        if self._inline(durable):
            try:
                started = self._begin_once(durable)
                if started:
                    return self._finish_alone(unit, durable)
            finally:
                self._lock.release()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(queued: _Queued) -> None:
            if future.done():  # the waiter was cancelled; the unit was written all the same
                return
            if queued.error is not None:
                future.set_exception(queued.error)
            else:
                future.set_result(queued.result)

        def done(queued: _Queued) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, queued)

        self._enqueue(_Queued(unit, durable, done))
        return await future

    def write_now(self, unit: Callable[[Tx], T], *, durable: bool) -> T:
        with self._lock:
            try:
                self._set_sync(durable)
                self._retry(lambda: self._writer.execute("BEGIN IMMEDIATE"))
            except sqlite3.Error as error:
                raise explain(self.url, error) from error
            return self._finish_alone(unit, durable)

    def _begin_once(self, durable: bool) -> bool:  # noqa: FBT001
        try:
            self._set_sync(durable)
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if busy(error):
                return False
            raise explain(self.url, error) from error
        return True

    def _finish_alone(self, unit: Callable[[Tx], T], durable: bool) -> T:  # noqa: FBT001
        try:
            result = unit(self._tx)
            self._writer.execute("COMMIT")
        except BaseException as error:
            self._rollback()
            if isinstance(error, sqlite3.Error):
                raise explain(self.url, error) from error
            raise
        self._written(durable)
        return result

    def _rollback(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    # -- the writer thread --------------------------------------------------------------------------------------------

    def _enqueue(self, queued: _Queued) -> None:
        if self._closing:
            raise StoreUnavailable(self.url, "it was closed")
        self._queue.append(queued)
        self._start_threads()
        self._wake.set()

    def _start_threads(self) -> None:
        if not self._threads:
            jobs = [self._write_loop] if self.memory else [self._write_loop, self._flush_loop]
            self._threads = [threading.Thread(target=job, name=f"stepseven{job.__name__}", daemon=True) for job in jobs]
            for thread in self._threads:
                thread.start()

    def _write_loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                with self._lock:
                    batch = self._commit_batch()
                for queued in batch:
                    queued.done(queued)
            if self._closing:
                return

    def _commit_batch(self) -> list[_Queued]:
        batch: list[_Queued] = []
        durable = any(queued.durable for queued in list(self._queue)[:BATCH_UNITS])
        try:
            self._set_sync(durable)
            self._retry(lambda: self._writer.execute("BEGIN IMMEDIATE"))
            stop = time.monotonic() + BATCH_S
            while self._queue and len(batch) < BATCH_UNITS and time.monotonic() < stop:
                if self._queue[0].durable and not durable:
                    break  # it came after the barrier was decided: the next batch is its own
                batch.append(self._queue.popleft())
                self._run_in_savepoint(batch[-1])
            self._writer.execute("COMMIT")
            self._written(durable)
        except sqlite3.Error as error:
            self._rollback()
            batch = batch or [self._queue.popleft()]
            for queued in batch:
                queued.error = queued.error or explain(self.url, error)
        return batch

    def _run_in_savepoint(self, queued: _Queued) -> None:
        self._writer.execute("SAVEPOINT unit")
        try:
            queued.result = queued.unit(self._tx)
        except sqlite3.Error as error:
            if not self._writer.in_transaction:  # SQLite rolled the whole batch back (full disk): all of it failed
                raise
            self._writer.execute("ROLLBACK TO unit")
            queued.error = explain(self.url, error)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for this unit
            self._writer.execute("ROLLBACK TO unit")
            queued.error = error
        self._writer.execute("RELEASE unit")

    # -- the disk -----------------------------------------------------------------------------------------------------

    def _flush_loop(self) -> None:
        keeper = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            while True:
                self._dirty.wait()
                if not self._closing:
                    time.sleep(FLUSH_AFTER_S)
                self._dirty.clear()
                self._flush(keeper)
                if self._closing:
                    return
        finally:
            keeper.close()

    def _flush(self, keeper: sqlite3.Connection) -> None:
        """Bring the log to the disk; when it has grown, its pages to the file. What cannot be done now is done next time."""
        log = f"{self.path}-wal"
        try:
            fd = os.open(log, os.O_RDWR)
        except FileNotFoundError:
            return  # everything is in the file already
        try:
            os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        with contextlib.suppress(sqlite3.OperationalError):  # somebody reads or writes: the next flush tries again
            if size > RESTART_BYTES:
                with self._lock:
                    keeper.execute("PRAGMA wal_checkpoint(RESTART)")
            elif size > CHECKPOINT_BYTES:
                keeper.execute("PRAGMA wal_checkpoint(PASSIVE)")

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(self, unit: Callable[[Tx], T]) -> T:
        return self.read_now(unit)

    def read_now(self, unit: Callable[[Tx], T]) -> T:
        """Run *unit* on a snapshot, in this thread: local reads are faster than a hand-over to another one."""
        with self._read_lock:
            try:
                self._retry(lambda: self._reader.execute("BEGIN"))
                try:
                    return unit(self._read_tx)
                finally:
                    if self._reader.in_transaction:
                        self._reader.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise explain(self.url, error) from error

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._dirty.set()
        for thread in self._threads:
            thread.join(timeout=BUSY_TIMEOUT_S)
        with self._lock:
            if not self.memory:
                with contextlib.suppress(sqlite3.OperationalError):  # another process reads: it will do it
                    self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
                self._reader.close()
            self._writer.close()
