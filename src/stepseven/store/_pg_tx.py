"""Transactions on PostgreSQL. What needs no answer of its own travels with what does: round trips are what costs."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import psycopg
from psycopg import Cursor, Pipeline
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from stepseven.store._pg_connect import Connection
from stepseven.store._pg_trouble import gone
from stepseven.store.base import Row, Values, Whose
from stepseven.store.statements import Statements

STATEMENT_MS = 15_000  # no statement of a unit takes that long unless something is wrong
LOCK_MS = 5_000
IDLE_MS = 5_000  # a process that was frozen within a transaction holds everybody up no longer than that
#: What the server says counts, but not that nothing is safe.
_SAFE = "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END"
_LIMITS = """set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true),
    set_config('idle_in_transaction_session_timeout', %s, true)"""
_HEAD = f"""SELECT pg_current_xact_id()::text AS xid,
    CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint) AS started, {_LIMITS},
    set_config('synchronous_commit', """  # noqa: S608 - no value in it
_HEADS = {True: f"{_HEAD}{_SAFE}, true)", False: f"{_HEAD}'off', true)"}
_MAKE_SAFE = f"SELECT set_config('synchronous_commit', {_SAFE}, true)"
_LOCK = "SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS key"  # in the given order: no two wait crosswise
_READ_LIMITS = f"SELECT {_LIMITS}"
_PIPELINES = Pipeline.is_supported()


class Restarted(Exception):
    """The server was started again since we last heard of it: what it may have lost goes first."""

    def __init__(self, started: int) -> None:
        super().__init__("the server was started again")
        self.started = started


def lock_keys(client: Whose) -> list[int]:
    """The advisory locks of the clients a unit names, in the order in which everybody takes them."""
    if client is None:
        return []
    names = (client,) if isinstance(client, str) else client
    return sorted({_lock_key(name) for name in names})


def _lock_key(client_id: str) -> int:
    digest = blake2b(f"stepseven/client/{client_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class Sent:
    """A statement that is sent with the next one that needs an answer; *cursor* has the answer afterwards."""

    __slots__ = ("cursor", "params", "statement")

    def __init__(self, statement: str, params: Values | None) -> None:
        self.statement = statement
        self.params = params
        self.cursor: Cursor[DictRow] | None = None

    def rows_written(self) -> int:
        """How many, once it was sent."""
        return 0 if self.cursor is None else self.cursor.rowcount


def send(connection: Connection, waiting: list[Sent]) -> None:
    """Execute all of them in one round trip. When one fails those after it were not executed.

    Raises:
        psycopg.Error: the failure of the first that failed.
    """
    if len(waiting) == 1 or not _PIPELINES:
        for sent in waiting:
            sent.cursor = _execute(connection, sent)
        return
    failure: psycopg.Error | None = None
    try:
        with connection.pipeline():
            try:
                for sent in waiting:
                    sent.cursor = _execute(connection, sent)
            except psycopg.Error as error:  # within the block, so that the driver ends the pipeline in order
                failure = error
    except psycopg.Error as error:
        failure = failure or error
    if failure is not None:
        raise _first(failure)


def _execute(connection: Connection, sent: Sent) -> Cursor[DictRow]:
    """BEGIN and COMMIT are never prepared: there is nothing to plan, and what is seen on the wire can be read."""
    return connection.execute(sent.statement, sent.params, prepare=None if sent.params is not None else False)


def _first(error: psycopg.Error) -> psycopg.Error:
    """What really failed: those after it only say that they were left out."""
    found: BaseException | None = error
    while isinstance(found, psycopg.errors.PipelineAborted):
        found = found.__context__
    return found if isinstance(found, psycopg.Error) else error


class _Sending:
    """What both kinds of transaction share."""

    def __init__(self, connection: Connection, sql: Statements) -> None:
        self.sql = sql
        self._connection = connection
        self._waiting: list[Sent] = []

    def one(self, statement: str, params: Values) -> Row | None:
        """First row, or ``None``."""
        rows = self._execute(statement, params).fetchall()
        return rows[0] if rows else None

    def all(self, statement: str, params: Values) -> list[Row]:
        """Every row."""
        return list(self._execute(statement, params).fetchall())

    def run(self, statement: str, params: Values) -> int:
        """Execute; the number of rows written."""
        return self._execute(statement, params).rowcount

    def _execute(self, statement: str, params: Values) -> Cursor[DictRow]:
        return self._flush(Sent(statement, params))

    def _flush(self, last: Sent) -> Cursor[DictRow]:
        waiting, self._waiting = [*self._waiting, last], []
        send(self._connection, waiting)
        assert last.cursor is not None, "it was sent"  # noqa: S101 - for the type checker
        return last.cursor

    def _wait(self, statement: str, params: Values | None = None) -> Sent:
        sent = Sent(statement, params)
        self._waiting.append(sent)
        return sent


class Reading(_Sending):
    """A transaction that reads one snapshot."""

    def __init__(self, connection: Connection, sql: Statements, *, statement_ms: int = STATEMENT_MS) -> None:
        super().__init__(connection, sql)
        self._wait("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._wait(_READ_LIMITS, (str(LOCK_MS), str(statement_ms), "0"))

    def end(self) -> None:
        """End it. By COMMIT: after a ROLLBACK the driver would prepare all its statements anew."""
        end(self._connection, "COMMIT")


class Writing(_Sending):
    """A transaction that writes, of one unit or of several.

    Args:
        connection: in no transaction.
        sql: the statements.
        records: the statements that append a record.
        keys: the locks to hold (``lock_keys``). They are sent with the first statement, whose snapshot is then newer.
        durable: its commit waits for the disk. Without, it waits all the same if anything was written but appended records:
            those alone can be written again, should the server lose them.
        lock_ms: how long to wait for a lock, in milliseconds.
        started: when the server was started, as far as we know.
    """

    def __init__(  # noqa: PLR0913 - one object per transaction, made in one place
        self,
        connection: Connection,
        sql: Statements,
        records: frozenset[str],
        *,
        keys: Sequence[int],
        durable: bool,
        lock_ms: int,
        started: int,
    ) -> None:
        super().__init__(connection, sql)
        self.appended: list[tuple[str, Values]] = []  #: what a commit that does not wait may lose
        self.wrote = False  #: whether a statement was sent that may have changed something
        self.xid: str | None = None  #: the server's number of this transaction, once it has begun
        self.committing = False
        self.durable = durable
        self._started = started
        self._records = records
        self._wait("BEGIN ISOLATION LEVEL READ COMMITTED")
        self._head = self._wait(_HEADS[durable], (str(lock_ms), str(STATEMENT_MS), str(IDLE_MS)))
        if keys:
            self._wait(_LOCK, (list(keys),))
        self._begun = len(self._waiting)

    def _execute(self, statement: str, params: Values) -> Cursor[DictRow]:
        self._note(statement, params)
        return super()._execute(statement, params)

    def _flush(self, last: Sent) -> Cursor[DictRow]:
        cursor = super()._flush(last)
        if self.xid is None and self._head.cursor is not None:
            row = self._head.cursor.fetchone()
            assert row is not None, "one row"  # noqa: S101 - for the type checker
            self.xid = row["xid"]
            if row["started"] != self._started and not self.committing:
                raise Restarted(row["started"])
        return cursor

    def _note(self, statement: str, params: Values) -> None:
        if statement in self._records:
            self.appended.append((statement, params))
            self.wrote = True
        elif not statement.startswith("SELECT"):
            self.wrote = True
            if not self.durable:
                self.durable = True
                self._wait(_MAKE_SAFE)

    def later(self, statement: str, params: Values) -> Sent:
        """Execute with the commit."""
        self._note(statement, params)
        return self._wait(statement, params)

    def commit(self) -> None:
        """Commit. After a failure of the connection ``committing`` says whether it may have happened.

        Raises:
            psycopg.Error: it failed, or may have.
        """
        if self.xid is None and len(self._waiting) == self._begun:
            self._waiting.clear()  # nothing was asked for: the server need not know
            return
        self.committing = True
        cursor = self._flush(Sent("COMMIT", None))
        if cursor.statusmessage != "COMMIT":  # what a failed transaction answers
            raise psycopg.errors.InFailedSqlTransaction("rolled back instead of committed")

    def rollback(self) -> None:
        """Undo it, as far as the connection allows; a broken one has undone it already."""
        self._waiting.clear()
        end(self._connection, "ROLLBACK")


def end(connection: Connection, how: str) -> None:
    """Leave the transaction that *connection* is in, if it is in one; close it if it does not obey."""
    if connection.closed:
        return
    status = connection.info.transaction_status
    try:
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            connection.execute(how)
        elif status != TransactionStatus.IDLE:
            connection.close()
    except psycopg.Error as error:
        if not gone(error):
            raise
        connection.close()
