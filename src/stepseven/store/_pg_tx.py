"""Transactions on PostgreSQL. What needs no answer of its own travels with what does: round trips are what costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import psycopg

from stepseven.store._pg_wire import Told, Wire
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
_LOCKING_HEADS = {durable: f"{head}, pg_advisory_xact_lock(%s)" for durable, head in _HEADS.items()}  # last: within the limits
_MAKE_SAFE = f"SELECT set_config('synchronous_commit', {_SAFE}, true)"
_LOCK = "SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS key"  # in the given order: no two wait crosswise
_READ_LIMITS = f"SELECT {_LIMITS}"


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


@lru_cache(1000)
def _lock_key(client_id: str) -> int:
    digest = blake2b(f"stepseven/client/{client_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class Sent:
    """A statement that is sent with the next one that needs an answer, which is in *told* afterwards."""

    __slots__ = ("params", "statement", "told")

    def __init__(self, statement: str, params: Values | None) -> None:
        self.statement = statement
        self.params = params
        self.told: Told | None = None

    def rows_written(self) -> int:
        """How many, once it was sent."""
        return 0 if self.told is None else self.told.written


class _Sending:
    """What both kinds of transaction share."""

    def __init__(self, wire: Wire, sql: Statements) -> None:
        self.sql = sql
        self._wire = wire
        self._waiting: list[Sent] = []
        self._under_way: list[Sent] = []

    def one(self, statement: str, params: Values) -> Row | None:
        """First row, or ``None``."""
        rows = self._execute(statement, params).rows
        return rows[0] if rows else None

    def all(self, statement: str, params: Values) -> list[Row]:
        """Every row."""
        return self._execute(statement, params).rows

    def values(self, statement: str, params: Values) -> list[tuple[Any, ...]]:
        """Every row as its bare values, in the order of the columns."""
        return self._execute(statement, params).values

    def run(self, statement: str, params: Values) -> int:
        """Execute; the number of rows written."""
        return self._execute(statement, params).written

    def later(self, statement: str, params: Values) -> Sent:
        """Execute with the next one, or with the commit."""
        return self._wait(statement, params)

    def _execute(self, statement: str, params: Values) -> Told:
        return self._flush(Sent(statement, params))

    def _flush(self, last: Sent) -> Told:
        return self._arrived(self._wire.send(self._leaving(last)))

    def _leaving(self, last: Sent) -> list[tuple[str, Values | None]]:
        """All that waits, and *last*: what is sent now."""
        self._under_way, self._waiting = [*self._waiting, last], []
        return [(sent.statement, sent.params) for sent in self._under_way]

    def _arrived(self, answers: list[Told]) -> Told:
        for sent, told in zip(self._under_way, answers, strict=True):
            sent.told = told
        return answers[-1]

    def _wait(self, statement: str, params: Values | None = None) -> Sent:
        sent = Sent(statement, params)
        self._waiting.append(sent)
        return sent


class Reading(_Sending):
    """A transaction that reads one snapshot."""

    def __init__(self, wire: Wire, sql: Statements, *, statement_ms: int = STATEMENT_MS) -> None:
        super().__init__(wire, sql)
        self._wait("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._wait(_READ_LIMITS, (str(LOCK_MS), str(statement_ms), "0"))

    def end(self) -> None:
        """End it. By COMMIT: after a ROLLBACK the driver would prepare all its statements anew."""
        self._wire.leave("COMMIT")


class Writing(_Sending):
    """A transaction that writes, of one unit or of several.

    Args:
        wire: in no transaction.
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
        wire: Wire,
        sql: Statements,
        records: frozenset[str],
        *,
        keys: Sequence[int],
        durable: bool,
        lock_ms: int,
        started: int,
    ) -> None:
        super().__init__(wire, sql)
        self.appended: list[tuple[str, Values]] = []  #: what a commit that does not wait may lose
        self.wrote = False  #: whether a statement was sent that may have changed something
        self.started: int | None = None  #: when the server says that it was started, once this has begun
        self.xid: str | None = None  #: the server's number of this transaction, once it has begun
        self.committing = False
        self.durable = durable
        self._started = started
        self._records = records
        self._wait("BEGIN ISOLATION LEVEL READ COMMITTED")
        limits = (str(lock_ms), str(STATEMENT_MS), str(IDLE_MS))
        if len(keys) == 1:  # by far the most frequent: a statement less
            self._head = self._wait(_LOCKING_HEADS[durable], (*limits, keys[0]))
        else:
            self._head = self._wait(_HEADS[durable], limits)
            if keys:
                self._wait(_LOCK, ("{" + ",".join(map(str, keys)) + "}",))
        self._begun = len(self._waiting)

    def _execute(self, statement: str, params: Values) -> Told:
        self._note(statement, params)
        return super()._execute(statement, params)

    def _arrived(self, answers: list[Told]) -> Told:
        told = super()._arrived(answers)
        if self.xid is None and self._head.told is not None:
            head = self._head.told.rows[0]
            self.xid, self.started = head["xid"], head["started"]
            if head["started"] != self._started and not self.committing:
                raise Restarted(head["started"])
        return told

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
        return self.carry(Sent(statement, params))

    def carry(self, sent: Sent) -> Sent:
        """Execute what was noted elsewhere, with the commit."""
        self._note(sent.statement, sent.params or ())
        self._waiting.append(sent)
        return sent

    def commit(self) -> None:
        """Commit. After a failure of the connection ``committing`` says whether it may have happened.

        Raises:
            psycopg.Error: it failed, or may have.
        """
        if self.xid is None and len(self._waiting) == self._begun:
            self._waiting.clear()  # nothing was asked for: the server need not know
            return
        self.committed(self._wire.send(self.departing()))

    def departing(self) -> list[tuple[str, Values | None]]:
        """All that is still to be sent, with the commit: for who sends it in a way of their own, and gives the answers here."""
        self.committing = True
        return self._leaving(Sent("COMMIT", None))

    def committed(self, answers: list[Told]) -> None:
        """What the server said to all that was ``departing``.

        Raises:
            psycopg.Error: it was not committed.
        """
        if self._arrived(answers).done != b"COMMIT":  # what a failed transaction answers
            raise psycopg.errors.InFailedSqlTransaction("rolled back instead of committed")

    def rollback(self) -> None:
        """Undo it, as far as the connection allows; a broken one has undone it already."""
        self._waiting.clear()
        self._wire.leave("ROLLBACK")
