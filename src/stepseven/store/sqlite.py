"""SQLite: one file, any number of processes.

One connection writes. A unit is committed inline when nothing else is under way, and through a writer thread that groups
whatever waits into one commit otherwise: alone, a hand-over to a thread costs more than the commit; in company, one fsync
serves all. Without ``durable`` a commit reaches the operating system at once (it survives ``kill -9``) and the disk within
0.2 s; with it the commit waits for the disk, and so makes everything before it safe.

``PRAGMA synchronous`` is set before BEGIN (inside a transaction it has no effect). Other processes are waited for by a
short random retry: SQLite's own busy handler backs off up to 100 ms and starves whoever came first. What happens to the
log after a commit is ``_disk.py``'s part.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from stepseven.errors import StoreUnavailable
from stepseven.store._apart import Apart
from stepseven.store._disk import Disk
from stepseven.store._queue import Queued, ended, refuse, tell
from stepseven.store._space import compacted, erased
from stepseven.store._thread import LateThread
from stepseven.store._trouble import busy, cannot_open, explain
from stepseven.store.base import Row, Tx, Values, Whose
from stepseven.store.dialect import SQLITE
from stepseven.store.migrate import check_sqlite, migrate_sqlite
from stepseven.store.statements import Statements, statements

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
BATCH_UNITS = 256
BATCH_S = 0.005  # a batch takes no longer, so nobody waits long for the lock
LOG_BYTES = 16 << 20  # what the log is cut back to when it starts again, should it have grown beyond


class _Tx:
    """A transaction of one connection."""

    __slots__ = ("connection", "sql")

    def __init__(self, connection: sqlite3.Connection, sql: Statements) -> None:
        self.connection = connection
        self.sql = sql

    def one(self, statement: str, params: Values) -> Row | None:
        rows: list[Row] = self.connection.execute(statement, params).fetchall()
        return rows[0] if rows else None

    def all(self, statement: str, params: Values) -> list[Row]:
        return self.connection.execute(statement, params).fetchall()

    def values(self, statement: str, params: Values) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.row_factory = None
        return cursor.execute(statement, params).fetchall()

    def run(self, statement: str, params: Values) -> int:
        cursor = self.connection.execute(statement, params)
        if cursor.description is not None:
            return len(cursor.fetchall())
        return cursor.rowcount

    def later(self, statement: str, params: Values) -> _Done:
        return _Done(self.connection.execute(statement, params).rowcount)  # nothing is far away


class _Done:
    """A statement that was to be executed later, and was at once."""

    __slots__ = ("_written",)

    def __init__(self, written: int) -> None:
        self._written = written

    def rows_written(self) -> int:
        return self._written


class SqliteStore:
    """A store in one SQLite file (``sqlite:///path``) or in memory (``sqlite:///:memory:``)."""

    def __init__(
        self,
        url: str,
        path: str,
        *,
        always_durable: bool = False,
        upgrade: bool = False,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._chance = chance
        self.url = url
        self.path = path
        self._upgrade = upgrade
        self.memory = path == ":memory:"
        self.sql = statements(SQLITE)
        self._always = always_durable
        self._lock = threading.Lock()
        self._read_lock = self._lock if self.memory else threading.Lock()
        self._queue: deque[Queued] = deque()
        self._wake = threading.Event()
        self._thread = LateThread(self._write_loop, "stepseven_writer")
        self._disk = None if self.memory else Disk(path, self._lock)
        self._closing = False
        self._under_way = 0
        self._full: bool | None = None
        self._writer = self._connect()
        try:
            migrate_sqlite(self._writer, url, self._retry, upgrade=upgrade)
            self._reader = self._writer if self.memory else self._connect()
        except sqlite3.Error as error:
            self._writer.close()
            raise explain(url, path, error) from error
        except BaseException:
            self._writer.close()
            raise
        self._tx = _Tx(self._writer, self.sql)
        self._read_tx = _Tx(self._reader, self.sql)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        why = None if self.memory else cannot_open(self.path)
        if why is not None:
            raise StoreUnavailable(self.url, why)
        connection = None
        try:
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            connection.row_factory = sqlite3.Row
            if not self.memory:
                self._prepare(connection)
            connection.execute("PRAGMA foreign_keys=ON")
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):  # it quotes the damage, which need not be text
                raise explain(self.url, self.path, error, opening=True) from error
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Look first, then switch to the write-ahead log: a file that is not ours stays as it is."""
        self._retry(lambda: check_sqlite(connection, self.url, upgrade=self._upgrade))
        mode = self._retry(lambda: connection.execute("PRAGMA journal_mode=WAL").fetchone()[0])
        if mode != "wal":
            raise StoreUnavailable(self.url, "its file system has no shared memory for several processes: use a local disk")
        connection.execute("PRAGMA wal_autocheckpoint=0")  # the disk thread does it, off the path of a step
        connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")

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
                time.sleep(pause * (0.5 + self._chance()))  # spreads waiters, decides nothing
                pause = min(pause * 1.5, 0.0012)  # a longer pause loses the race again and again: measured with 8 processes

    # -- writing ------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """One more step call is under way."""
        self._under_way += 1

    def leave(self) -> None:
        """The counterpart of ``enter``."""
        self._under_way -= 1

    def _set_sync(self, durable: bool) -> None:  # noqa: FBT001
        if self._disk is not None and self._disk.error is not None:
            raise StoreUnavailable(self.url, f"the disk failed to save what was written ({self._disk.error}): start again")
        full = durable or self._always
        if self._full is not full:
            self._writer.execute("PRAGMA synchronous=FULL" if full else "PRAGMA synchronous=NORMAL")
            self._full = full

    def _wrote(self, units: int) -> None:
        if self._disk is not None:
            self._disk.wrote(units, safe=self._full is True)

    def _inline(self, durable: bool) -> bool:  # noqa: FBT001
        """Whether to commit in the caller's own thread; takes the lock if so."""
        # A run counts once, and each of its step calls once: above two, somebody else may join the commit.
        if self._queue or (self._under_way > 2 and (durable or self._always)):  # noqa: PLR2004
            return False
        return self._lock.acquire(blocking=False)

    def append_now(self, statement: str, values: Values, *, durable: bool) -> bool | None:
        """In this thread, unless somebody else writes or waits."""
        if not self._inline(durable):
            return None
        try:
            self._set_sync(durable)
            written = self._writer.execute(statement, values).rowcount == 1
            self._wrote(1)
        except sqlite3.Error as error:
            if busy(error):
                return None
            raise explain(self.url, self.path, error) from error
        finally:
            self._lock.release()
        return written

    async def append(self, statement: str, values: Values, *, durable: bool) -> bool:
        """Through the writer thread."""
        return bool(await ended(self._enqueue(Queued(durable, None, statement, values))))

    async def write(self, unit: Callable[[Tx], T], *, durable: bool, client: Whose, asks: bool = True) -> T:  # noqa: ARG002 - one writer at a time
        """In this thread when nobody else is about to write, else through the writer thread."""
        if self._inline(durable):
            try:
                started = self._begin_once(durable)
                if started:
                    return self._finish_alone(unit)
            finally:
                self._lock.release()
        result: T = await ended(self._enqueue(Queued(durable, unit)))
        return result

    def write_now(self, unit: Callable[[Tx], T], *, durable: bool, client: Whose) -> T:  # noqa: ARG002
        """In this thread, waiting for its turn."""
        with self._lock:
            try:
                self._set_sync(durable)
                self._retry(lambda: self._writer.execute("BEGIN IMMEDIATE"))
            except sqlite3.Error as error:
                raise explain(self.url, self.path, error) from error
            return self._finish_alone(unit)

    def erase(self, unit: Callable[[Tx], T], *, client: Whose) -> T:  # noqa: ARG002
        """``write_now``, with what it deletes overwritten in the file; ``compact`` removes the copies in the log."""
        with self._lock:
            return erased(self, unit)

    def compact(self) -> int:
        """Give unused space back to the disk, and empty the log. Everybody else waits meanwhile."""
        with self._lock, contextlib.nullcontext() if self.memory else self._read_lock:
            return compacted(self)

    def _begin_once(self, durable: bool) -> bool:  # noqa: FBT001
        try:
            self._set_sync(durable)
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if busy(error):
                return False
            raise explain(self.url, self.path, error) from error
        return True

    def _finish_alone(self, unit: Callable[[Tx], T]) -> T:
        try:
            result = unit(self._tx)
            self._writer.execute("COMMIT")
        except BaseException as error:
            self._rollback()
            if isinstance(error, sqlite3.Error):
                raise explain(self.url, self.path, error) from error
            raise
        self._wrote(1)
        return result

    def _rollback(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    # -- the writer thread --------------------------------------------------------------------------------------------

    def _enqueue(self, queued: Queued) -> Queued:
        if self._closing:
            raise self._closed()
        self._queue.append(queued)
        if not self._thread.start() or (self._closing and not self._thread.alive):  # closed in this very moment
            refuse(self._queue, self._closed())
        self._wake.set()
        return queued

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(self.url, "it was closed")

    def _write_loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                with self._lock:
                    batch = self._commit_batch()
                tell(batch)
            if self._closing:
                return

    def _commit_batch(self) -> list[Queued]:
        batch: list[Queued] = []
        waiting = len(self._queue)
        durable = any(queued.durable for queued in list(self._queue)[:BATCH_UNITS])
        try:
            self._set_sync(durable)
            self._retry(lambda: self._writer.execute("BEGIN IMMEDIATE"))
            stop = time.monotonic() + BATCH_S
            while self._queue and len(batch) < BATCH_UNITS and time.monotonic() < stop:
                if self._queue[0].durable and not durable:
                    break  # it came after the barrier was decided: the next batch is its own
                batch.append(self._queue.popleft())
                self._execute(batch[-1])
            self._writer.execute("COMMIT")
            self._wrote(len(batch))
        except Exception as error:  # noqa: BLE001 - handed to whoever waits; the thread has to live for the next batch
            self._rollback()
            # Nothing could begin: whoever waited through it need not wait through the same again.
            batch = batch or [self._queue.popleft() for _ in range(waiting)]
            why = explain(self.url, self.path, error) if isinstance(error, sqlite3.Error) else error
            for queued in batch:
                queued.error = queued.error or why
        return batch

    def _execute(self, queued: Queued) -> None:
        """Execute one of a batch so that its failure hurts nobody else's part of it.

        Raises:
            sqlite3.Error: SQLite rolled the whole batch back (a full disk): all of it failed.
        """
        if queued.unit is not None:
            self._writer.execute("SAVEPOINT unit")
        try:
            if queued.unit is not None:
                queued.result = queued.unit(self._tx)
            else:
                queued.result = self._writer.execute(queued.statement, queued.values).rowcount == 1
        except BaseException as error:
            queued.error = explain(self.url, self.path, error) if isinstance(error, sqlite3.Error) else error
            if not self._writer.in_transaction:
                raise sqlite3.OperationalError(f"the transaction is gone: {error}") from error
            if queued.unit is not None:
                self._writer.execute("ROLLBACK TO unit")
        if queued.unit is not None:
            self._writer.execute("RELEASE unit")

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(self, unit: Callable[[Tx], T]) -> T:
        """The same as ``read_now``: local reads take microseconds."""
        return self.read_now(unit)

    def read_now(self, unit: Callable[[Tx], T]) -> T:
        """Run *unit* on a snapshot, in this thread: local reads are faster than a hand-over to another one."""
        with self._read_lock:
            try:
                return self._retry(lambda: self._read_once(unit))
            except sqlite3.Error as error:
                raise explain(self.url, self.path, error) from error

    def reader(self) -> Apart:
        """A connection of its own; statements on it hold neither lock."""
        return Apart(self, lambda connection: _Tx(connection, self.sql))

    def _read_once(self, unit: Callable[[Tx], T]) -> T:
        self._reader.execute("BEGIN")
        try:
            return unit(self._read_tx)
        finally:
            if self._reader.in_transaction:
                self._reader.execute("ROLLBACK")

    def close(self) -> None:
        """Commit what waits, bring it to the disk, close. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(BUSY_TIMEOUT_S)
        if not self._thread.alive:
            refuse(self._queue, self._closed())
        if self._disk is not None:
            self._disk.close(BUSY_TIMEOUT_S)
        with self._lock:
            if not self.memory:
                with contextlib.suppress(sqlite3.OperationalError):  # another process reads: it will do it
                    self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
                self._reader.close()
            self._writer.close()
