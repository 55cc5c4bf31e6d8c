"""Connections to PostgreSQL: how they are made, and how long one may stay silent.

A connection keeps no state of its own, because behind a pooler the next transaction may run on another one: no ``SET``, no
session locks, no temporary tables, and prepared statements only where the server's own process is at the other end. That is
seen, not configured: a pooler makes up the process id that it names when a connection begins.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.rows import DictRow, dict_row
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import TextLoader

from stepseven.errors import StoreUnavailable
from stepseven.store._pg_trouble import Silent, explain
from stepseven.store._url import hide_password

SILENCE_S = 20.0  # what a server may take to answer one statement: more than the time-outs that it keeps itself
#: For a network that swallows everything: the operating system gives up after that. What the URL says goes before.
_NETWORK = {
    "connect_timeout": "5", "tcp_user_timeout": "10000", "keepalives": "1", "keepalives_idle": "5", "keepalives_interval": "2",
    "keepalives_count": "3", "client_encoding": "UTF8", "fallback_application_name": "stepseven",
}  # fmt: skip
_POOLER_PORT = "6543"  # Supabase's, in transaction mode
_LOOK = """SELECT pg_backend_pid() AS pid, CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint) AS started,
    CAST(extract(epoch FROM CAST(current_setting('wal_writer_delay') AS interval)) * 1000 AS bigint) AS lazy_ms"""


class _BoolDumper(Dumper):
    """``True`` is 1, as in SQLite."""

    oid = psycopg.adapters.types["int8"].oid

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


class _BoolLoader(Loader):
    def load(self, data: Buffer) -> int:
        return 1 if bytes(data) == b"t" else 0


class _WholeLoader(Loader):
    """A sum of bigints is numeric, and whole."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


def _adapters() -> AdaptersMap:
    """Values as SQLite gives and takes them: whole numbers of 64 bits, 0 and 1, text; JSON stays the text that it is."""
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(bool, _BoolDumper)
    adapters.register_loader("bool", _BoolLoader)
    adapters.register_loader("numeric", _WholeLoader)
    adapters.register_loader("json", TextLoader)
    adapters.register_loader("jsonb", TextLoader)
    return adapters


class _Adaptation:
    """The ``context`` of a connection: our adapters, and no other connection's."""

    def __init__(self) -> None:
        self.adapters = _adapters()
        self.connection = None


_CONTEXT: AdaptContext = _Adaptation()


class Connection(psycopg.Connection[DictRow]):
    """A connection that does not wait for an answer for ever."""

    silence_s: float | None = SILENCE_S
    pooled = True  #: until it is known
    started = 0  #: when the server was, in its microseconds, as it said when this was made; 0 once that was heard

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **named: Any) -> Any:
        """Wait for the driver's conversation *gen*, not longer than ``silence_s``."""
        return super().wait(gen if self.silence_s is None else _limited(gen, self.silence_s), *args, **named)

    def restore(self) -> None:
        """After somebody had all the time in the world."""
        self.silence_s = SILENCE_S


def _limited(gen: Generator[Any, Any, Any], patience_s: float) -> Generator[Any, Any, Any]:
    """*gen*, given up when the other side is silent for too long. It is asked anew every tenth of a second at least."""
    give_up = 0.0
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                give_up = 0.0
            elif not give_up:
                give_up = time.monotonic() + patience_s
            elif time.monotonic() > give_up:
                gen.close()
                raise Silent("no answer")
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value


class Server:
    """One database, by its URL.

    Raises:
        StoreUnavailable: the URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        self.url = hide_password(url)
        try:
            given = conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise StoreUnavailable(
                self.url, "this is no URL of PostgreSQL; it looks like postgresql://user:password@host:5432/database"
            ) from error
        self._named = conninfo.make_conninfo("", **{**_NETWORK, **given})
        self._known_pooler = str(given.get("port")) == _POOLER_PORT or "pooler" in str(given.get("host") or "")
        self.pooled = self._known_pooler  #: whether a pooler stands in between, as the last connection found out
        self.started = 0  #: when the server was started, as last heard, in its microseconds
        self.lazy_s = 0.6  #: what the server may lose of commits that did not wait for its disk

    def connect(self) -> Connection:
        """A new connection, in autocommit.

        Raises:
            psycopg.Error: it cannot be made, now.
        """
        connection = Connection.connect(self._named, autocommit=True, row_factory=dict_row, context=_CONTEXT)
        try:
            row = connection.execute(_LOOK, prepare=False).fetchone()
        except BaseException:
            connection.close()
            raise
        assert row is not None, "one row, whatever is there"  # noqa: S101 - for the type checker
        connection.pooled = self._known_pooler or row["pid"] != connection.info.backend_pid
        if connection.pooled:
            connection.prepare_threshold = None
        connection.started = row["started"]
        self.pooled = connection.pooled
        self.lazy_s = max(self.lazy_s, 3 * row["lazy_ms"] / 1000)
        return connection

    def explain(self, error: psycopg.Error) -> StoreUnavailable:
        """The error of the driver as ours."""
        return explain(self.url, error)
