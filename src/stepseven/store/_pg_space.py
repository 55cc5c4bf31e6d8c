"""Space in a PostgreSQL database: our tables written anew."""

from __future__ import annotations

import time

from psycopg import sql

from stepseven.errors import StoreUnavailable
from stepseven.store._pg_connect import Connection

PATIENCE_S = 10.0  # how long somebody else may hold on to a table
_TABLES = """SELECT c.relname AS name, c.oid::bigint AS oid FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'stepseven' AND c.relkind = 'r' ORDER BY c.relname"""
_BYTES = """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) AS bytes FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'stepseven' AND c.relkind = 'r'"""
_FILE = "SELECT pg_catalog.pg_relation_filenode(CAST(%s AS oid)) AS file"
_LOCKED = "55P03"


def compacted(url: str, connection: Connection) -> int:
    """``VACUUM FULL`` of every table; the bytes given back.

    A table somebody uses is tried again, never waited for in line: whoever wants it after that would wait, too.

    Raises:
        StoreUnavailable: somebody held on to one for too long, or it is another role's.
    """
    notes: list[str] = []
    connection.add_notice_handler(note := lambda said: notes.append(said.sqlstate or ""))
    connection.silence_s = None  # as long as it takes
    try:
        before = _bytes(connection)
        for row in connection.execute(_TABLES, prepare=False).fetchall():
            _vacuum(url, connection, (row["name"], row["oid"]), notes)
        return max(0, before - _bytes(connection))
    finally:
        connection.remove_notice_handler(note)
        connection.restore()


def _vacuum(url: str, connection: Connection, which: tuple[str, int], notes: list[str]) -> None:
    """One table, by name and number. Done is what has got a new file: a role without the right is only warned, if at all."""
    table, before = which[0], _file(connection, which[1])
    give_up = time.monotonic() + PATIENCE_S
    statement = sql.SQL("VACUUM (FULL, SKIP_LOCKED) {}").format(sql.Identifier("stepseven", table))
    while True:
        notes.clear()
        connection.execute(statement, prepare=False)
        if _file(connection, which[1]) != before:
            return
        if notes and _LOCKED not in notes:
            raise StoreUnavailable(url, "only the owner of its tables can make them smaller: connect as that role")
        if time.monotonic() > give_up:
            raise StoreUnavailable(url, f"somebody uses table {table} all the time, so it was not made smaller: try again later")
        time.sleep(0.05)


def _file(connection: Connection, oid: int) -> int | None:
    row = connection.execute(_FILE, (oid,), prepare=False).fetchone()
    return None if row is None else row["file"]


def _bytes(connection: Connection) -> int:
    row = connection.execute(_BYTES, prepare=False).fetchone()
    assert row is not None, "one row"  # noqa: S101 - for the type checker
    return int(row["bytes"])
