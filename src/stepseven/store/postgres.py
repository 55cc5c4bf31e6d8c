"""PostgreSQL: one database, any number of processes on any number of hosts.

What an event loop wants written is sent by the loop itself where everything goes in one trip (``_pg_loop.py``), else by a
thread that groups it (``_pg_writer.py``); what a thread wants written or read is done on a connection borrowed for it, so that
a heartbeat waits for nobody. Nothing on a connection outlives a transaction,
so a pooler may stand in between (``_pg_connect.py``). Units of one client hold its advisory lock, units with no client count
on single rows; a unit is executed again when the server took it back, and never when it may have been committed
(``_pg_desk.py``).

A commit that is not ``durable`` and wrote nothing but records does not wait for the server's disk: should the server lose it,
it is written again (``_pg_lately.py``). Every other commit waits.
"""

from __future__ import annotations

import asyncio
import os
import random
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg

from stepseven.errors import StoreUnavailable
from stepseven.store._pg_apart import Apart
from stepseven.store._pg_connect import Server
from stepseven.store._pg_desk import Desk
from stepseven.store._pg_loop import Senders
from stepseven.store._pg_migrate import migrate_postgres
from stepseven.store._pg_space import compacted
from stepseven.store._pg_stack import Stack
from stepseven.store._pg_trouble import gone
from stepseven.store._pg_tx import lock_keys
from stepseven.store._pg_wire import Wire
from stepseven.store._pg_writer import Writer
from stepseven.store._queue import Queued, ended
from stepseven.store.base import Tx, Values, Whose
from stepseven.store.dialect import POSTGRES
from stepseven.store.statements import statements

T = TypeVar("T")

READERS = 4
OPENING_S = 2.0  # a server that is just starting is waited for; a wrong URL is told soon


class PostgresStore:
    """A store in the schema ``stepseven`` of a PostgreSQL database.

    Args:
        url: as libpq takes it: ``postgresql://user:password@host:port/database?sslmode=…``.
        always_durable: every commit waits for the server's disk.
        upgrade: bring an older schema to this version.
        chance: draws from [0, 1), to spread those who try again.

    Raises:
        StoreUnavailable: it cannot be reached or used; the sentence says what to do. The password is in no message.
        SchemaMismatch: another version's schema is there.
    """

    def __init__(
        self, url: str, *, always_durable: bool = False, upgrade: bool = False, chance: Callable[[], float] = random.random
    ) -> None:
        self.server = Server(url)
        self.url = self.server.url
        self.sql = statements(POSTGRES)
        self._always = always_durable
        self._stack = Stack(self.server)
        self._desk = Desk(self.server, self._stack, self.sql, chance)
        self._begin()
        try:
            self._desk.patiently(
                lambda wire: migrate_postgres(wire.connection, self.url, upgrade=upgrade, chance=chance),
                again=gone,
                patience_s=OPENING_S,
            )
        except BaseException as error:
            self._stack.close()
            if isinstance(error, psycopg.Error):
                raise self.server.explain(error) from error
            raise
        _open.add(self)

    def _begin(self) -> None:
        self._writer = Writer(self._desk)
        self._senders = Senders(self._desk, self._writer)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="stepseven_reader")
        self._closing = False

    def _after_fork(self) -> None:
        """In a forked process: the threads are not there, and the connections are the parent's."""
        self._senders.leave_to_parent()
        self._desk.after_fork()
        self._begin()

    @property
    def pooled(self) -> bool:
        """Whether a pooler stands between: seen, not configured."""
        return self.server.pooled

    def _check(self) -> None:
        if self._closing:
            raise StoreUnavailable(self.url, "it was closed")

    def _call(self, attempt: Callable[[Wire], T]) -> T:
        try:
            return self._desk.patiently(attempt)
        except psycopg.Error as error:
            raise self.server.explain(error) from error

    # -- writing ------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """One more step call is under way."""
        self._senders.under_way += 1

    def leave(self) -> None:
        """The counterpart of ``enter``."""
        self._senders.under_way -= 1

    def append_now(self, statement: str, values: Values, *, durable: bool) -> bool | None:  # noqa: ARG002
        """Never: an event loop does not wait for the network."""
        self._check()
        return None

    async def append(self, statement: str, values: Values, *, durable: bool) -> bool:
        """From this loop, or through the writer's thread."""
        queued = Queued(durable or self._always, None, statement, values)
        if not self._senders.take(queued):
            self._writer.put(queued)
        return bool(await ended(queued))

    async def write(self, unit: Callable[[Tx], T], *, durable: bool, client: Whose, asks: bool = True) -> T:
        """Through the writer's thread; from this loop where *unit* asks for nothing before its commit."""
        queued = Queued(durable or self._always, unit, client=client)
        if asks or not self._senders.take(queued):
            self._writer.put(queued)
        result: T = await ended(queued)
        return result

    def write_now(self, unit: Callable[[Tx], T], *, durable: bool, client: Whose) -> T:
        """In this thread, on a connection of its own: only a unit of the same client is waited for."""
        self._check()
        return self._call(self._desk.transact(unit, lock_keys(client), durable=durable or self._always))

    def erase(self, unit: Callable[[Tx], T], *, client: Whose) -> T:
        """``write_now``, durable. What it deletes stays in the files until ``compact``, and in the server's log for longer."""
        return self.write_now(unit, durable=True, client=client)

    def compact(self) -> int:
        """Write every table anew without what it no longer holds; the bytes given back.

        The server's log, its backups and its replicas keep older copies for as long as they are set to.
        """
        self._check()
        return self._call(lambda wire: compacted(self.url, wire.connection))

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(self, unit: Callable[[Tx], T]) -> T:
        """The same as ``read_now``, in another thread."""
        self._check()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read_now, unit)

    def read_now(self, unit: Callable[[Tx], T]) -> T:
        """Run *unit* on a snapshot, in this thread."""
        self._check()
        return self._call(self._desk.read(unit))

    def reader(self) -> Apart:
        """A connection of its own, for whoever reads for long."""
        self._check()
        return Apart(self._desk)

    def close(self) -> None:
        """Commit what waits, close. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._senders.close()
        self._writer.close()
        self._readers.shutdown(wait=False)
        self._stack.close()


_open: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _in_child() -> None:
    for store in list(_open):
        store._after_fork()  # noqa: SLF001 - this file's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
