"""Statements on the wire: several in one round trip, and rows as SQLite gives them.

This talks to libpq through ``psycopg.pq`` instead of through cursors: a statement costs 55 µs of CPU instead of 140, and a
transaction of four a third. The connection is the driver's own, and can be used through the driver between two calls.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from stepseven.store._pg_connect import Connection
from stepseven.store._pg_trouble import Silent
from stepseven.store.base import Row, Values

_INT8 = 20
_KEPT = 400  # different statements that are prepared on one connection; there are fewer in this project
_LOOK_S = 1.0
_PLACE = re.compile(r"%(?:\((\w+)\)s|(s)|(%))")


class Told:
    """What the server answered to one statement."""

    __slots__ = ("columns", "done", "values", "written")

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.values: list[tuple[Any, ...]] = []  #: the rows, without the names of the columns
        self.written = 0  #: rows written, or given
        self.done = b""  #: the server's word for it: ``COMMIT``, ``INSERT 0 1``

    @property
    def rows(self) -> list[Row]:
        """The rows by the names of their columns."""
        columns = self.columns
        return [dict(zip(columns, values, strict=True)) for values in self.values]


class _Known:
    """A statement as the server wants it: ``$1`` for the first value."""

    __slots__ = ("count", "names", "prepared", "shape", "text")

    def __init__(self, statement: str) -> None:
        self.names: list[str] | None = None  #: values by name, in the server's order; ``None``: they come in that order
        self.prepared: dict[tuple[int, ...], bytes] = {}  #: by the types of its values
        self.shape: _Shape | None = None  #: its columns, once it was answered
        order: list[str] = []
        count = 0

        def place(found: re.Match[str]) -> str:
            nonlocal count
            if found[3]:
                return "%"
            if found[2]:
                count += 1
                return f"${count}"
            if found[1] not in order:
                order.append(found[1])
            return f"${order.index(found[1]) + 1}"

        self.text = _PLACE.sub(place, statement).encode()
        self.count = count or len(order)
        if order:
            self.names = order

    def values(self, params: Values) -> tuple[list[bytes | None], tuple[int, ...]]:
        """The values as the server reads them, and their types."""
        given: Any = params
        if type(params) is dict or isinstance(params, Mapping):  # that it is a mapping takes as long to find out as three values
            given = () if self.names is None else [params[name] for name in self.names]
        texts: list[bytes | None] = []
        types: list[int] = []
        for value in given:
            if type(value) is str:
                texts.append(_text(value))
                types.append(0)  # of whatever type it has where it stands
            elif value is None:
                texts.append(None)
                types.append(0)
            elif isinstance(value, int):
                texts.append(b"%d" % value)
                types.append(_INT8)
            else:
                raise psycopg.ProgrammingError(f"a value of type {type(value).__name__} cannot be stored")
        if len(texts) != self.count:
            raise psycopg.ProgrammingError(f"{self.count} values were expected, {len(texts)} given")
        return texts, tuple(types)


def _text(value: str) -> bytes:
    if "\0" in value:
        raise psycopg.DataError("text with NUL (0x00) cannot be stored: it has to be escaped before")
    return value.encode()


def _bool(value: bytes) -> int:
    return 1 if value == b"t" else 0


#: By the server's type numbers: bool, int8, int2, int4, oid, xid, numeric (a sum of int8 is one, and whole). All else is text.
_LOADERS: dict[int, Callable[[bytes], Any]] = {16: _bool, 20: int, 21: int, 23: int, 26: int, 28: int, 1700: int}


#: What the driver's own readers, which take whole rows at a time, give as ours do: whole numbers and texts.
_PLAIN = frozenset({18, 19, 20, 21, 23, 25, 26, 114, 1042, 1043, 3802})
_FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_MANY = 30  # rows: for fewer, getting the driver's readers ready costs more than they save


class _Shape:
    """The columns of an answer: their names, how to read each, and whether the driver's own readers do the same."""

    __slots__ = ("loaders", "names", "plain")

    def __init__(self, result: pq.abc.PGresult) -> None:
        columns = range(result.nfields)
        self.names = [(result.fname(i) or b"").decode() for i in columns]
        self.loaders = [(i, _LOADERS.get(result.ftype(i), bytes.decode)) for i in columns]
        self.plain = all(result.ftype(i) in _PLAIN for i in columns)


class Wire:
    """One connection, in autocommit. For one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._known: dict[str, _Known] = {}
        self._count = 0
        self._poll: Any = None
        if hasattr(select, "poll"):  # not on Windows
            self._poll = select.poll()
            self._poll.register(connection.pgconn.socket, select.POLLIN)

    def send(self, statements: list[tuple[str, Values | None]]) -> list[Told]:
        """Execute all in one round trip. When one fails those after it are not executed.

        Raises:
            psycopg.Error: the failure of the first that failed.
        """
        talking = self.talk(statements)
        silence_s = self.connection.silence_s or float("inf")
        try:
            write, give_up = next(talking), time.monotonic() + silence_s
            while True:
                if self.ready(write=write):
                    write, give_up = next(talking), time.monotonic() + silence_s
                elif time.monotonic() > give_up:
                    talking.throw(Silent("no answer"))
        except StopIteration as done:
            answers: list[Told] = done.value
            return answers

    def talk(self, statements: list[tuple[str, Values | None]]) -> Generator[bool, None, list[Told]]:
        """``send``, for who waits in a way of their own.

        Yields:
            Whenever the other side has to be waited for: whether there is also something left to be sent. Go on when something
            came, or can be sent. To give up, throw an error in.
        """
        pgconn = self.connection.pgconn
        if pgconn.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError("the connection is closed")
        prepared: list[tuple[_Known, tuple[int, ...]]] = []
        plan: list[_Known | None] = []  # ``None``: the answer to a preparation
        ready = [
            (known, *known.values(() if params is None else params))
            for known, params in ((self._find(s), p) for s, p in statements)
        ]
        pgconn.enter_pipeline_mode()
        for (known, texts, types), (_, params) in zip(ready, statements, strict=True):
            if params is None or self.connection.pooled or len(self._known) > _KEPT:
                pgconn.send_query_params(known.text, texts, param_types=types)
            else:
                name = known.prepared.get(types)
                if name is None:
                    self._count += 1
                    name = known.prepared[types] = b"s%d" % self._count
                    pgconn.send_prepare(name, known.text, param_types=types)
                    prepared.append((known, types))
                    plan.append(None)
                pgconn.send_query_prepared(name, texts)
            plan.append(known)
        pgconn.pipeline_sync()
        try:
            return (yield from self._answers(plan))
        except psycopg.Error:
            for known, types in prepared:  # which of them the server still made is not known
                known.prepared.pop(types, None)
            raise
        finally:
            if pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
                pgconn.exit_pipeline_mode()

    def one(self, statement: str, params: Values) -> Row | None:
        """The first row of one statement, in a transaction of its own, or ``None``."""
        rows = self.send([(statement, params)])[0].rows
        return rows[0] if rows else None

    def fileno(self) -> int:
        """Its socket's number, for who waits in a way of their own."""
        return self.connection.pgconn.socket

    def alive(self) -> bool:
        """Take in what came unasked; ``False``: the connection has ended."""
        pgconn = self.connection.pgconn
        try:
            pgconn.consume_input()
        except psycopg.OperationalError:
            return False
        return pgconn.status == pq.ConnStatus.OK

    def idle(self) -> bool:
        """Whether it is in no transaction, and whole."""
        pgconn = self.connection.pgconn
        return pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status == pq.TransactionStatus.IDLE

    def leave(self, how: str) -> None:
        """End the transaction it is in, if it is in one, by *how*; close it if it does not obey."""
        pgconn = self.connection.pgconn
        if pgconn.status != pq.ConnStatus.OK or pgconn.transaction_status == pq.TransactionStatus.IDLE:
            return
        try:
            if pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                raise psycopg.OperationalError("in the middle of a statement")
            self.send([(how, None)])
        except psycopg.Error:  # whatever it was: the server takes the transaction back when the connection ends
            self.connection.close()

    def _find(self, statement: str) -> _Known:
        known = self._known.get(statement)
        if known is None:
            known = self._known[statement] = _Known(statement)
        return known

    def _answers(self, plan: list[_Known | None]) -> Generator[bool, None, list[Told]]:
        failure: psycopg.Error | None = None
        answers: list[Told] = []
        pgconn = self.connection.pgconn
        for known in plan:
            if pgconn.is_busy():
                yield from self._came()
            result = pgconn.get_result()
            if result is None:
                raise psycopg.OperationalError("the server answered less than it was asked for")
            if result.status not in _FINE:
                failure = failure or _failure(result)
            elif known is not None:
                answers.append(_told(known, result, self.connection))
            if pgconn.is_busy():
                yield from self._came()
            if pgconn.get_result() is not None:
                raise psycopg.OperationalError("the server answered more than it was asked for")
        if pgconn.is_busy():
            yield from self._came()
        pgconn.get_result()  # that of the sync
        if failure is not None:
            raise failure
        return answers

    def _came(self) -> Generator[bool, None, None]:
        """Wait for a whole result."""
        pgconn = self.connection.pgconn
        while pgconn.is_busy():
            yield bool(pgconn.flush())
            pgconn.consume_input()

    def ready(self, *, write: bool) -> bool:
        """Whether something came, or can be sent, within a second."""
        if self._poll is not None and not write:
            return bool(self._poll.poll(_LOOK_S * 1000))
        fileno = self.connection.pgconn.socket
        if self._poll is not None:
            both = select.poll()
            both.register(fileno, select.POLLIN | select.POLLOUT)
            return bool(both.poll(_LOOK_S * 1000))
        return any(map(bool, select.select([fileno], [fileno] if write else [], [], _LOOK_S)))


def _failure(result: pq.abc.PGresult) -> psycopg.Error | None:
    aborted = result.status == pq.ExecStatus.PIPELINE_ABORTED  # it was not executed, because an earlier one failed
    return None if aborted else psycopg.errors.error_from_result(result)


def _told(known: _Known, result: pq.abc.PGresult, connection: Connection) -> Told:
    told = Told()
    told.done = result.command_status or b""
    if result.status == pq.ExecStatus.TUPLES_OK:
        shape = known.shape
        if shape is None or len(shape.names) != result.nfields:
            shape = known.shape = _Shape(result)
        told.columns = shape.names
        told.written = result.ntuples
        if shape.plain and result.ntuples > _MANY:
            readers = Transformer(connection)
            readers.set_pgresult(result)
            told.values = readers.load_rows(0, result.ntuples, tuple)
        else:
            get = result.get_value
            told.values = [
                tuple([None if (value := get(row, i)) is None else load(value) for i, load in shape.loaders])
                for row in range(result.ntuples)
            ]
    else:
        told.written = result.command_tuples or 0
    return told
