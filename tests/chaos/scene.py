"""Two workers and a person on one database, whose statements can lose a condition."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from stepseven.layer import open_store
from stepseven.store.base import Later, Row, Store, Tx, Values
from stepseven.store.statements import SEQ_BITS, Statements
from stepseven.transitions.state import Hold, Record
from tests.chaos.desk import NOW_US, Desk, Notes
from tests.chaos.history import MODELS, faults
from tests.servers.shared import servers

P = r"(?::{0}|%\({0}\)s|\?|%s)"  # a parameter, in the four ways it is written


def _is(column: str, name: str | None = None) -> str:
    return rf"(?<![\w.])(?:r\.)?{column} = {P.format(name or column)}"


FENCE, OWNER = _is("fence"), _is("owner")
NOBODYS = rf"coalesce\(owner, ''\) = {P.format('owner')}"
SEEN = rf"coalesce\(owner, ''\) = {P.format('seen_owner')}"
NOT_ENDED = r"status NOT IN \('done', 'failed', 'cancelled'\)"
PUT_AWAY = r"status IN \('running', 'waiting'\)"
LIVE = r"status IN \('queued', 'running', 'waiting'\)"
TRIES = _is("tries")
NOT_DONE = r"(?:\be\.)?state <> 'done'"
REFUSED = r"state = 'refused'(?! THEN)"
OPEN = r"status = 'open'"
WAITING = r"status = 'waiting'"


def speak(store: Any, sql: Statements) -> None:
    """Let a store use other statements: wherever it keeps them."""
    store.sql = sql
    for part in ("_tx", "_read_tx", "_desk"):
        if hasattr(store, part):
            getattr(store, part).sql = sql
    if hasattr(store, "_desk"):
        store._desk.free = {sql.append_step: sql.append_step_free, sql.append_read: sql.append_read_free}
        store._desk._records = frozenset(store._desk.free)


def weaken(store: Any, name: str, *conditions: str, by: str | None = None) -> None:
    """From now on these conditions of a statement are always met for a store; or *by* stands in their place."""
    text = getattr(store.sql, name)
    for condition in conditions:
        text, times = re.subn(condition, lambda found: f"({found[0]} OR 1 = 1)" if by is None else by, text)
        assert times, f"{name} has no condition {condition}"
    speak(store, replace(store.sql, **{name: text}))


class Stores:
    """Three stores on one database, which is wiped before each scene: a new database for each would take seconds."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stores = [open_store(url) for _ in range(3)]
        self._sql = self._stores[0].sql

    def scene(self) -> Scene:
        """A new scene, in an empty database, with all conditions in their places."""
        self._wipe()
        for store in self._stores:
            speak(store, self._sql)
        return Scene(self._stores)

    def _wipe(self) -> None:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection, connection:
                tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
                for name in {str(row[0]) for row in tables} - {"store"}:
                    connection.execute(f"DELETE FROM {name}")
            return
        import psycopg

        with psycopg.connect(self.url) as connection:
            connection.execute("SET LOCAL session_replication_role = replica")  # no foreign keys, no order
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'stepseven'")
            for name in {str(row[0]) for row in tables} - {"store"}:
                connection.execute(f"DELETE FROM stepseven.{name}")

    def close(self) -> None:
        for store in self._stores:
            store.close()


@contextmanager
def kept_database(name: str) -> Iterator[str]:
    """A PostgreSQL database for all tests of a file."""
    import psycopg

    own = f"chaos_{name}_{os.getpid()}"
    with psycopg.connect(servers().url(), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {own}")
        try:
            yield servers().url(own)
        finally:
            server.execute(f"DROP DATABASE {own} WITH (FORCE)")


class Scene:
    """Two workers and a person on one database, and what they were told."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.notes = Notes()
        self.stores = stores
        self.a, self.b, self.ann = (Desk(s, name, self.notes) for s, name in zip(self.stores, ("w_a", "w_b", "ann"), strict=True))
        self.no = self.a.admit("r1")["no"]
        self.wrong: list[str] = []

    def weaken(self, name: str, *conditions: str, by: str | None = None) -> None:
        """From now on these conditions of a statement are always met; or *by* stands in their place."""
        for store in self.stores:
            weaken(store, name, *conditions, by=by)

    def taken(self, desk: Desk | None = None) -> Hold:
        """A take that nobody disturbs."""
        hold = (desk or self.a).take((desk or self.a).see("r1"))
        assert hold is not None
        return hold

    def row(self) -> Row:
        return self.ann.see("r1").row

    def expect(self, what: Any, wanted: Any, told: str) -> None:
        """Something that history's words do not say."""
        if what != wanted:
            self.wrong.append(f"{told}: {what!r}, not {wanted!r}")

    def verdict(self) -> list[str]:
        for key in {op.thing.partition("/")[2] for op in self.notes.ops if op.thing.startswith("effect/")}:
            self.ann.look(key)
        for key in {op.thing.partition("/")[2] for op in self.notes.ops if op.thing.startswith("question/")}:
            self.ann.read(key)
        self.ann.load(self.no)
        return [*map(str, faults(MODELS, self.notes.ops)), *self.wrong]


def at_work(s: Scene) -> Hold:
    """A run in hand, in which a map has begun."""
    hold = s.taken()
    s.a.write(lambda tx: tx.run(*map_of(hold).insert(tx.sql, hold.values())))
    return hold


def map_of(hold: Hold) -> Record:
    """The map's record."""
    return Record(
        id=hold.run_no << SEQ_BITS | 1, branch="", name="run.map", key="m", generation=1, state="begun", result="0",
        started_us=NOW_US, ended_us=NOW_US,
    )  # fmt: skip


BLANK = ("approach", "kind", "reason", "trace", "signature", "resource", "inputs", "source_digest", "usd", "tokens")
FAILED_TRY: dict[str, Any] = {
    **dict.fromkeys(BLANK), "branch": "", "name": "look", "key": "k", "n": 1, "outcome": "failed", "identical": 0,
    "started_us": NOW_US,
}  # fmt: skip


class Stale:
    """A transaction whose first look at one thing is older than its beginning."""

    def __init__(self, tx: Tx, statement: str, seen: Row | None) -> None:
        self.sql = tx.sql
        self._tx = tx
        self._statement = statement
        self._seen: list[Row | None] = [seen]

    def one(self, statement: str, params: Values) -> Row | None:
        if statement == self._statement and self._seen:
            return self._seen.pop()
        return self._tx.one(statement, params)

    def all(self, statement: str, params: Values) -> list[Row]:
        return self._tx.all(statement, params)

    def values(self, statement: str, params: Values) -> Sequence[Sequence[Any]]:
        return self._tx.values(statement, params)

    def run(self, statement: str, params: Values) -> int:
        return self._tx.run(statement, params)

    def later(self, statement: str, params: Values) -> Later:
        return self._tx.later(statement, params)
