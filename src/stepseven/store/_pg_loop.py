"""What an event loop sends to the server by itself: no thread is woken for it, and the loop goes on while the server works.

To hand a commit to another thread and back costs about what the server's work on it costs. So what asks the server for
nothing before its commit (a record; a unit with nothing but ``later``) is sent from the loop that wants it written, together
with what other tasks of the loop want written in that moment, and the loop hears of the answer as of any other.

This is for what goes well. What goes wrong (a refusal, a lock that somebody holds, a broken connection) goes to the writer's
thread and is done there from its beginning, with all the patience that it needs: the statements recognise what was
committed although its answer was lost.

Longer than other files: a sender, its flight and their end are one path that is read from its top to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import psycopg

from stepseven.errors import StoreUnavailable
from stepseven.store._pg_desk import PATIENCE_S, Desk
from stepseven.store._pg_stack import close
from stepseven.store._pg_trouble import Silent, gone
from stepseven.store._pg_tx import Sent, Writing, lock_keys
from stepseven.store._pg_wire import Told, Wire
from stepseven.store._pg_writer import BATCH_RECORDS, BATCH_UNITS, SHORT_LOCK_MS, Writer
from stepseven.store._queue import Queued, settle, tell
from stepseven.store.base import Values
from stepseven.store.statements import Statements

_ALONE = 2  # a run counts once, and each of its step calls once: above that somebody else may join the commit
_LOOK_S = 0.02


class _Asks(BaseException):
    """A unit wants an answer before its commit."""


class _Noting:
    """A transaction on paper: what is to be sent with the commit."""

    def __init__(self, sql: Statements) -> None:
        self.sql = sql
        self.sent: list[Sent] = []

    def later(self, statement: str, params: Values) -> Sent:
        """To be sent with the commit."""
        self.sent.append(Sent(statement, params))
        return self.sent[-1]

    def one(self, _statement: str, _params: Values) -> NoReturn:
        """Not here: the loop would have to wait."""
        raise _Asks

    all = values = run = one


class Senders:
    """One for each event loop that writes to a store."""

    def __init__(self, desk: Desk, writer: Writer) -> None:
        self.under_way = 0  #: runs and step calls that may want something written soon
        self.desk = desk
        self.writer = writer
        self._closed = False
        self._lock = threading.Lock()
        self._senders: dict[asyncio.AbstractEventLoop, _Sender] = {}

    def take(self, queued: Queued) -> bool:
        """Send it; ``False``: it is for the writer's thread. In the loop's own thread."""
        if self._closed or self.desk.lately.due or self.writer.patient():
            return False
        sender = self._senders.get(queued.loop) or self._meet(queued.loop)
        if sender is None or (queued.unit is not None and not self._noted(queued)):
            return False
        sender.take(queued)
        return True

    def _noted(self, queued: Queued) -> bool:
        """Carry a unit out on paper. It has no effect but its statements: the thread may do it anew."""
        assert queued.unit is not None, "a unit"  # noqa: S101 - for the type checker
        tx: Any = _Noting(self.desk.sql)
        try:
            queued.result = queued.unit(tx)
        except _Asks:
            return False
        except Exception:  # noqa: BLE001 - what is wrong with it is found out, and told, by the thread
            return False
        queued.sent = tx.sent
        return bool(tx.sent)

    def _meet(self, loop: asyncio.AbstractEventLoop) -> _Sender | None:
        if getattr(type(loop), "add_reader", None) is asyncio.AbstractEventLoop.add_reader:
            return None  # one that cannot tell when something came, as on Windows
        with self._lock:
            for old in [old for old in self._senders if old.is_closed()]:
                self._senders.pop(old).forget()
            return self._senders.setdefault(loop, _Sender(self, loop))

    def close(self) -> None:
        """Wait for what is under way, from whatever thread. What was not sent yet goes to the writer."""
        self._closed = True
        with self._lock:
            senders = list(self._senders.values())
        for sender in senders:
            sender.close()

    def leave_to_parent(self) -> None:
        """In a forked process: what its parent has under way is the parent's affair."""
        _PARENTS.append(self._senders)


_PARENTS: list[Any] = []  # not even thrown away: that would talk on the parent's connections


class _Sender:
    """What one event loop sends: one commit at a time, and all that waited meanwhile in the next. Used in the loop's thread.

    It keeps its connection, so that the loop need not be told anew at each commit where the answer comes from.
    """

    def __init__(self, senders: Senders, loop: asyncio.AbstractEventLoop) -> None:
        self._senders = senders
        self._desk = senders.desk
        self._loop = loop
        self._waiting: deque[Queued] = deque()
        self._about = False  # to send at the end of this turn of the loop
        self._wire: Wire | None = None
        self._fileno = -1
        self._flight: _Flight | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take(self, queued: Queued) -> None:
        """Send it: now if nobody else is about to write, else with what others of the loop want written."""
        self._waiting.append(queued)
        if self._flight is None and not self._about:
            self._set_out()

    def _set_out(self) -> None:
        if self._senders.under_way <= _ALONE:
            self._depart()
        else:  # after those whose turn it is now
            self._about = True
            self._loop.call_soon(self._depart, context=contextvars.Context())

    # -- one commit ---------------------------------------------------------------------------------------------------

    def _depart(self) -> None:
        self._about = False
        if self._flight is not None or not self._waiting:
            return
        wire = self._wire or self._connected()
        if wire is None:
            self._hand_over(self._rest())
        elif batch := self._next():
            self._flight = _Flight(self._desk, wire, batch)
            self._await_silence()
            self._go_on()

    def _connected(self) -> Wire | None:
        wire = self._desk.spare()
        if wire is not None:
            self._wire, self._fileno = wire, wire.fileno()
            _nobodys(lambda: self._loop.add_reader(self._fileno, self._go_on))
        return wire

    def _next(self) -> list[Queued]:
        batch: list[Queued] = []
        units = 0
        with contextlib.suppress(IndexError):  # somebody else may just be closing the store
            while len(batch) < BATCH_RECORDS and units < BATCH_UNITS:
                batch.append(self._waiting.popleft())
                units += batch[-1].unit is not None
        return batch

    def _rest(self) -> list[Queued]:
        rest: list[Queued] = []
        with contextlib.suppress(IndexError):
            while True:
                rest.append(self._waiting.popleft())
        return rest

    def _go_on(self, silent: Silent | None = None) -> None:
        """Something came, or can be sent; or nothing did for too long."""
        flight = self._flight
        if flight is None:
            self._look_at_idle()
            return
        try:
            pushing, push = flight.pushing, flight.go_on(silent)
        except BaseException as error:  # the thread does it anew, and tells what is wrong
            self._flight = None
            self._failed(flight, error)
            if not isinstance(error, Exception):
                raise
        else:
            if push is not pushing:
                self._watch_room(push)
            if not flight.ended:
                return
            self._flight = None
            settle(flight.batch)
        if self._waiting and not self._about:
            self._set_out()

    def _watch_room(self, push: bool) -> None:  # noqa: FBT001
        """Be told when more can be sent, or not any more."""
        if push:
            _nobodys(lambda: self._loop.add_writer(self._fileno, self._go_on))
        else:
            self._loop.remove_writer(self._fileno)

    def _look_at_idle(self) -> None:
        """Nothing was asked: the server, or a pooler, ends the connection, or says something by the way."""
        wire = self._wire
        if wire is not None and not wire.alive():
            self._part()
            close(wire)

    def _failed(self, flight: _Flight, error: BaseException) -> None:
        self._part()
        if isinstance(error, psycopg.Error) and gone(error):
            self._desk.lost(flight.wire)
        else:
            close(flight.wire)  # the server takes back what it is in the middle of: the loop does not wait for that
        self._hand_over(flight.batch)

    def _part(self) -> Wire | None:
        """Listen to the connection no more."""
        wire, self._wire = self._wire, None
        if wire is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fileno)
            self._loop.remove_writer(self._fileno)
        return wire

    def _hand_over(self, batch: list[Queued]) -> None:
        """Let the writer's thread do it, from its beginning."""
        for queued in batch:
            queued.result = queued.sent = None
            try:
                self._senders.writer.put(queued)
            except StoreUnavailable as closed:
                queued.error = closed
                tell([queued])

    # -- silence ------------------------------------------------------------------------------------------------------

    def _await_silence(self) -> None:
        if self._timer is None and self._wire is not None and self._wire.connection.silence_s is not None:
            self._timer = self._loop.call_later(
                self._wire.connection.silence_s, self._look_for_silence, context=contextvars.Context()
            )

    def _look_for_silence(self) -> None:
        """One timer for all commits: nearly all of them have ended long before it rings."""
        self._timer = None
        flight = self._flight
        if flight is None or (limit_s := flight.wire.connection.silence_s) is None:
            return
        left_s = limit_s - flight.since()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look_for_silence, context=contextvars.Context())
        else:
            self._go_on(Silent("no answer"))

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for what is under way. Where the loop runs in another thread that thread hears of it, else it is heard here."""
        self._hand_over(self._rest())
        give_up = time.monotonic() + PATIENCE_S
        elsewhere = self._loop.is_running() and _running() is not self._loop
        while (flight := self._flight) is not None:
            if elsewhere and self._loop.is_running() and time.monotonic() < give_up:
                time.sleep(_LOOK_S)
            elif flight.wire.ready(write=flight.pushing):
                self._go_on()
            elif time.monotonic() > give_up:
                self._go_on(Silent("no answer"))
        if elsewhere:
            with contextlib.suppress(RuntimeError):  # it is closed by now
                self._loop.call_soon_threadsafe(self._give_back)
        else:
            self._give_back()

    def _give_back(self) -> None:
        wire = self._part()
        if wire is not None:
            self._desk.give(wire)
        if self._timer is not None:
            self._timer.cancel()

    def forget(self) -> None:
        """The loop is closed: nobody waits there any more. What was sent is committed, if it came to that."""
        wire = self._part()
        if wire is not None:
            self._desk.give(wire)  # in the middle of something it is closed there


def _nobodys(tell: Callable[[], object]) -> None:
    """Tell the loop something in nobody's context: it keeps the context, and a run's would keep that run in memory."""
    contextvars.Context().run(tell)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Flight:
    """One commit under way: everything in one trip."""

    def __init__(self, desk: Desk, wire: Wire, batch: list[Queued]) -> None:
        self.wire = wire
        self.batch = batch
        self.pushing = False  #: something is left to be sent
        self.ended = False  #: committed, and everybody's result is known
        self._desk = desk
        self._began = time.monotonic()
        self._tx: Writing | None = None  # several statements
        self._talk: Generator[bool, None, list[Told]] | None = None

    def since(self) -> float:
        """For how many seconds it has been under way."""
        return time.monotonic() - self._began

    def go_on(self, silent: Silent | None = None) -> bool:
        """Send, or hear what came. Whether something is left to be sent.

        Raises:
            psycopg.Error: it was refused, or the connection is gone; so it is after *silent*.
        """
        if self._talk is None:
            self._talk = self.wire.talk(self._statements())
        try:
            self.pushing = next(self._talk) if silent is None else self._talk.throw(silent)
        except StopIteration as done:
            self._note(done.value)
            self.ended, self.pushing = True, False
        return self.pushing

    def _statements(self) -> list[tuple[str, Values | None]]:
        first = self.batch[0]
        if len(self.batch) == 1 and first.unit is None and not first.durable and first.statement in self._desk.free:
            return [(self._desk.free[first.statement], first.values)]
        alone = _alone(self._desk.sql, first) if len(self.batch) == 1 else None
        if alone is not None:
            return [alone]
        keys = sorted({key for queued in self.batch for key in lock_keys(queued.client)})
        durable = any(queued.durable for queued in self.batch)
        self._tx = self._desk.writing(self.wire, keys, durable=durable, lock_ms=SHORT_LOCK_MS)
        for queued in self.batch:
            if queued.unit is None:
                queued.sent = [Sent(queued.statement, queued.values)]
            for sent in queued.sent or ():
                self._tx.carry(sent)
        return self._tx.departing()

    def _note(self, answers: list[Told]) -> None:
        if self._tx is None:
            self._note_one(answers[0])
            return
        self._tx.committed(answers)
        self._desk.noted(self._tx, self._began)
        for queued in self.batch:
            if queued.unit is None:
                assert queued.sent is not None, "sent"  # noqa: S101 - for the type checker
                queued.result = queued.sent[0].rows_written() == 1

    def _note_one(self, told: Told) -> None:
        only = self.batch[0]
        if only.unit is None:
            only.result = bool(told.rows)
            if told.rows:
                self._desk.noted_free(only.statement, only.values, told.rows[0])
            return
        for sent in only.sent or ():
            sent.told = told
        if told.rows:
            self._desk.noted_alone(told.rows[0], self._began)


def _alone(sql: Statements, queued: Queued) -> tuple[str, Values] | None:
    """A unit whose statements there are also as one, which is a transaction of its own: three statements less for a claim."""
    sent, keys = queued.sent, lock_keys(queued.client)
    if not sent or not queued.durable or len(keys) != 1:
        return None
    if len(sent) == 1 and sent[0].statement == sql.claim_new:
        return sql.claim_new_alone, {**sent[0].params, "lock": keys[0]}
    if [each.statement for each in sent] == [sql.append_settled, sql.settle_recorded]:
        *columns, number, fence, owner, claim_id = sent[0].params
        receipt = sent[1].params
        return sql.append_settled_alone, (
            keys[0], receipt["receipt"], receipt["now"], claim_id, number, fence, owner, *columns
        )  # fmt: skip
    return None
