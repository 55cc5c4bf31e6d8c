"""Bringing a database to this version's schema: forward only, one starter at a time, anything unknown refused aloud."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from stepseven.errors import SchemaMismatch, StoreUnavailable

APPLICATION_ID = 0x53544537  # "STE7" in the file's header: tells a stepseven file from any other SQLite file


@cache
def migrations(database: str) -> list[tuple[int, str]]:
    """The released migrations of ``sqlite`` or ``postgres`` as (number, SQL), in order."""
    folder: Any = Path(__file__).parent / "migrations" / database
    if not folder.is_dir():  # installed as something else than files
        from importlib import resources  # takes its time

        folder = resources.files("stepseven.store") / "migrations" / database
    found = [(int(item.name[:4]), item.read_text("utf-8")) for item in folder.iterdir() if item.name.endswith(".sql")]
    return sorted(found)


def split(script: str) -> Iterator[str]:
    """The single statements of an SQL script."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def check_sqlite(connection: sqlite3.Connection, url: str, *, upgrade: bool = False) -> int:
    """Look whether the file is ours, and of this version. Changes nothing.

    Args:
        connection: to the file.
        url: what to call it in an error.
        upgrade: an older schema is welcome, too.

    Returns:
        Its schema: this version's, or 0 for an empty file; with *upgrade* perhaps an older one.

    Raises:
        SchemaMismatch: another version wrote it.
        StoreUnavailable: it is another program's database.
    """
    newest = migrations("sqlite")[-1][0]
    found = _version(connection, url)
    if upgrade and found < newest:
        return found
    if found not in (0, newest):
        raise mismatch(url, found, newest)
    return found


def mismatch(url: str, found: int, newest: int) -> SchemaMismatch:
    """The refusal of a schema that is not this version's."""
    advice = "back it up, then run `stepseven migrate`" if found < newest else "use the newer stepseven that wrote it"
    return SchemaMismatch(url, str(found), str(newest), advice=advice)


def migrate_sqlite(
    connection: sqlite3.Connection, url: str, retry: Callable[[Callable[[], Any]], Any], *, upgrade: bool = False
) -> None:
    """Create the schema in an empty file. The loser of a race finds the work done.

    Args:
        connection: to the file.
        url: what to call it in an error.
        retry: runs what may find the file locked.
        upgrade: bring an older file to this version, in one transaction. Only when it was asked for: what an older
            program still has open it could not read afterwards.

    Raises:
        SchemaMismatch, StoreUnavailable: as ``check_sqlite``; nothing was changed.
    """
    newest = migrations("sqlite")[-1][0]
    if retry(lambda: check_sqlite(connection, url, upgrade=upgrade)) == newest:
        return  # a read-only look costs nothing; only a file that needs work is locked
    retry(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        found = check_sqlite(connection, url, upgrade=upgrade)
        if found < newest:
            _apply(connection, [m for m in migrations("sqlite") if m[0] > found])
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, url: str) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise StoreUnavailable(url, "the file is another program's database: choose another file")
    return version


def _apply(connection: sqlite3.Connection, known: list[tuple[int, str]]) -> None:
    for _, script in known:
        for statement in split(script):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version={known[-1][0]}")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(
        "INSERT INTO store (one, schema_no, created_us) VALUES (1, ?, ?) ON CONFLICT (one) DO UPDATE SET schema_no = ?",
        (known[-1][0], time.time_ns() // 1000, known[-1][0]),
    )
