"""Space in a SQLite file: deleted content overwritten, unused pages given back, the log emptied."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stepseven.errors import StoreUnavailable
from stepseven.store._trouble import explain
from stepseven.store.base import Tx

if TYPE_CHECKING:
    from stepseven.store.sqlite import SqliteStore

T = TypeVar("T")
PATIENCE_S = 10.0  # how long somebody else may read before the log is left as it is


def erased(store: SqliteStore, unit: Callable[[Tx], T]) -> T:
    """Run *unit* in a durable transaction that overwrites what it deletes. The caller holds the writer's lock."""
    try:
        store._set_sync(True)  # noqa: SLF001, FBT003 - this file is a part of that one
        store._writer.execute("PRAGMA secure_delete=ON")  # noqa: SLF001
        store._retry(lambda: store._writer.execute("BEGIN IMMEDIATE"))  # noqa: SLF001
    except sqlite3.Error as error:
        raise explain(store.url, store.path, error) from error
    try:
        return store._finish_alone(unit)  # noqa: SLF001
    finally:
        store._writer.execute("PRAGMA secure_delete=OFF")  # noqa: SLF001


def compacted(store: SqliteStore) -> int:
    """Write the file anew without what it no longer holds, and empty the log. The caller holds both locks.

    Only this leaves no copy behind: pages that were split or moved earlier keep theirs until the page is used again.
    """
    before = _bytes(store)
    try:
        store._set_sync(True)  # noqa: SLF001, FBT003
        store._retry(lambda: store._writer.execute("VACUUM"))  # noqa: SLF001
        if not store.memory:
            _empty_log(store)
    except sqlite3.Error as error:
        raise explain(store.url, store.path, error) from error
    return max(0, before - _bytes(store))


def _empty_log(store: SqliteStore) -> None:
    """Copy the log into the file and cut it to nothing, as soon as nobody reads from it."""
    give_up = time.monotonic() + PATIENCE_S
    while store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # noqa: SLF001
        if time.monotonic() > give_up:
            raise StoreUnavailable(store.url, "another process is reading it, so its log could not be emptied: try again later")
        time.sleep(0.02)


def _bytes(store: SqliteStore) -> int:
    files = [] if store.memory else [Path(store.path), Path(f"{store.path}-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
