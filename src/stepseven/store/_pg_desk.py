"""Units of work carried out on PostgreSQL, with all that may go wrong: again where nothing happened, never where it did."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg

from stepseven.errors import StoreUnavailable
from stepseven.store._pg_connect import Server
from stepseven.store._pg_lately import Lately
from stepseven.store._pg_stack import Stack, close
from stepseven.store._pg_trouble import CRASHED, code, gone, passes, refused_for_now
from stepseven.store._pg_tx import LOCK_MS, STATEMENT_MS, Reading, Restarted, Writing
from stepseven.store._pg_wire import Wire
from stepseven.store.base import Row, Tx, Values
from stepseven.store.statements import Statements

T = TypeVar("T")

PATIENCE_S = 30.0
_PAUSE_S = 0.01  # after the first failure; doubled up to
_PAUSE_MOST_S = 0.5

_OUTCOME = """SELECT pg_xact_status(CAST(%s AS xid8)) AS status,
    CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint) AS started"""
#: After a crash the server may give a transaction's number again, of which its log knew nothing: the checkpoint with which it
#: began anew says from where on it counts.
_COUNTS_FROM = "SELECT next_xid FROM pg_control_checkpoint()"


class Desk:
    """Executes what the store is asked for; from any thread.

    Args:
        server: where to.
        stack: its connections.
        sql: the statements.
        chance: draws from [0, 1), to spread those who try again.
    """

    def __init__(self, server: Server, stack: Stack, sql: Statements, chance: Callable[[], float]) -> None:
        self.server = server
        self.sql = sql
        self.lately = Lately()
        self.free = {sql.append_step: sql.append_step_free, sql.append_read: sql.append_read_free}
        self._records = frozenset(self.free)
        self._stack = stack
        self._chance = chance
        self._resending = threading.RLock()

    def after_fork(self) -> None:
        """In the child: what its parent has not finished is the parent's affair."""
        self._stack.leave_to_parent()
        self.lately = Lately()
        self._resending = threading.RLock()

    # -- patience -----------------------------------------------------------------------------------------------------

    def patiently(
        self, attempt: Callable[[Wire], T], *, again: Callable[[psycopg.Error], bool] = passes, patience_s: float | None = None
    ) -> T:
        """Carry out *attempt* on a connection; repeat it after a failure after which nothing has happened.

        Raises:
            psycopg.Error: it fails with what does not pass, or for too long.
            Exception: what *attempt* raises; nothing was written.
        """
        give_up = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
        pause = _PAUSE_S
        while True:
            wire: Wire | None = None
            try:
                wire = self._stack.take()
                self._meet(wire)
                return attempt(wire)
            except Restarted as news:
                self._heard(news.started)
            except psycopg.Error as error:
                worth = refused_for_now(error) if wire is None else again(error)
                if wire is not None and gone(error):
                    self.lost(wire)
                if not worth or time.monotonic() > give_up:
                    raise
                time.sleep(pause * (0.5 + self._chance()))
                pause = min(2 * pause, _PAUSE_MOST_S)
            finally:
                if wire is not None:
                    self._stack.give(wire)

    def spare(self) -> Wire | None:
        """A connection that is at hand, for who cannot wait for one; it is given back by ``give``, or is ``lost``."""
        wire = self._stack.spare()
        if wire is None:
            return None
        told, wire.connection.started = wire.connection.started, 0
        if told:
            self._heard(told)
        if self.lately.due:  # what was lost goes first, and that takes its time
            self._stack.give(wire)
            return None
        return wire

    def give(self, wire: Wire) -> None:
        """It is not needed any more."""
        self._stack.give(wire)

    def lost(self, wire: Wire) -> None:
        """It broke: the server was away, or is."""
        close(wire)
        self._stack.drop()
        self.lately.lost()

    def _meet(self, wire: Wire) -> None:
        """Before anything else: what the server may have lost."""
        told, wire.connection.started = wire.connection.started, 0
        if told:  # once: what a pooler lends may outlive the server it was told of
            self._heard(told)
        if self.lately.due:
            self._send_again(wire)

    def _heard(self, started: int) -> None:
        """When the server was started, as it said just now."""
        if started != self.server.started:
            self.server.started = started
            self.lately.lost()

    def _send_again(self, wire: Wire) -> None:
        with self._resending:
            if self.lately.due:  # else another thread has done it
                appended, losses = self.lately.all()
                if appended:
                    self._append_all(wire, appended)
                self.lately.sent_again(len(appended), losses)

    def _append_all(self, wire: Wire, appended: Sequence[tuple[str, Values]]) -> None:
        tx = self.writing(wire, (), durable=True)
        for statement, values in appended:
            tx.later(statement, values)
        try:
            self._commit(tx, wire)
        except psycopg.Error as error:
            tx.rollback()
            if not isinstance(error, psycopg.IntegrityError | psycopg.DataError):  # a full disk, a lock: they are not forgotten
                raise
            if len(appended) > 1:  # which one it was is not known
                for one in appended:
                    self._append_all(wire, [one])
            # One that cannot be written any more: its run is not there. Whoever works on it will be told.

    # -- transactions -------------------------------------------------------------------------------------------------

    def writing(self, wire: Wire, keys: Sequence[int], *, durable: bool, lock_ms: int = LOCK_MS) -> Writing:
        """A transaction. Once committed it is ``noted``."""
        return Writing(wire, self.sql, self._records, keys=keys, durable=durable, lock_ms=lock_ms, started=self.server.started)

    def transact(
        self, work: Callable[[Writing], T], keys: Sequence[int], *, durable: bool, lock_ms: int = LOCK_MS
    ) -> Callable[[Wire], T]:
        """An attempt (``patiently``) at *work* in one transaction, committed."""

        def attempt(wire: Wire) -> T:
            tx = self.writing(wire, keys, durable=durable, lock_ms=lock_ms)
            try:
                result = work(tx)
                self._commit(tx, wire)
            except BaseException:
                tx.rollback()
                raise
            return result

        return attempt

    def _commit(self, tx: Writing, wire: Wire) -> None:
        began = time.monotonic()
        try:
            tx.commit()
        except psycopg.Error as error:
            if not (tx.committing and gone(error) and self._happened(tx, wire, error)):
                raise
        self.noted(tx, began)

    def noted(self, tx: Writing, began: float) -> None:
        """*tx*, whose commit was *began* then (monotonic), is committed."""
        if not tx.durable:
            self.lately.keep(tx.appended, lazy_s=self.server.lazy_s)
        if tx.started is not None:  # heard with the commit only, perhaps: what was lost before goes next
            self._heard(tx.started)
        if tx.durable:
            self.lately.safe(began)

    def _happened(self, tx: Writing, wire: Wire, error: psycopg.Error) -> bool:
        """Whether a commit whose answer was lost took place.

        Raises:
            StoreUnavailable: it cannot be found out.
        """
        if tx.xid is None or tx.started is None:
            return False  # records alone: they are recognised by their rows, and written again
        self.lost(wire)
        try:
            return self._ask_for(tx.xid, tx.started, crashed=code(error) == CRASHED)
        except psycopg.Error as unknown:
            raise self.server.explain(unknown) from error

    def _ask_for(self, xid: str, seen: int, *, crashed: bool) -> bool:
        give_up = time.monotonic() + PATIENCE_S

        def look(wire: Wire) -> str | None:
            try:
                row = wire.one(_OUTCOME, (xid,))
            except psycopg.errors.InvalidParameterValue:  # the server never got that far: it lost it with all that came after
                return "aborted"
            status = None if row is None else row["status"]
            restarted = crashed or row is None or row["started"] != seen
            return "aborted" if status == "committed" and restarted and self._reused(wire, xid) else status

        while True:
            status = self.patiently(look)
            if status != "in progress":
                return status == "committed"
            if time.monotonic() > give_up:
                raise StoreUnavailable(self.server.url, "a commit takes too long there: look at pg_stat_activity, then try again")
            time.sleep(0.05)

    def _reused(self, wire: Wire, xid: str) -> bool:
        """Whether a restarted server counts from *xid* or lower: then whoever has that number now is somebody else."""
        row = wire.one(_COUNTS_FROM, ())
        assert row is not None, "one row"  # noqa: S101 - for the type checker
        epoch, _, number = row["next_xid"].partition(":")
        return (int(epoch) << 32 | int(number)) <= int(xid)

    # -- what the store offers ----------------------------------------------------------------------------------------

    def append_free(self, statement: str, values: Values) -> Callable[[Wire], bool]:
        """An attempt at one record whose commit need not wait for the disk: one statement, one round trip."""

        def attempt(wire: Wire) -> bool:
            row = wire.one(self.free[statement], values)
            if row is None:
                return False
            self.noted_free(statement, values, row)
            if self.lately.due:
                self._send_again(wire)
            return True

        return attempt

    def noted_free(self, statement: str, values: Values, row: Row) -> None:
        """One of the ``free`` statements, asked with *statement*'s values, is committed; *row* is what it gave."""
        self.lately.keep([(statement, values)], lazy_s=self.server.lazy_s)
        self._heard(row["started"])

    def noted_alone(self, row: Row, began: float) -> None:
        """A statement that waited for the disk, and whose commit was *began* then, wrote; *row* is what it gave."""
        self._heard(row["started"])
        self.lately.safe(began)

    def read(self, unit: Callable[[Tx], T], *, statement_ms: int = STATEMENT_MS) -> Callable[[Wire], T]:
        """An attempt at *unit* on a snapshot."""

        def attempt(wire: Wire) -> T:
            tx = Reading(wire, self.sql, statement_ms=statement_ms)
            try:
                return unit(tx)
            finally:
                tx.end()

        return attempt
