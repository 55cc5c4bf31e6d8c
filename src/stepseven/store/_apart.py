"""A connection of its own for whoever reads for long, such as a prune: nobody waits for its lock, and it for nobody's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from stepseven.store._trouble import explain
from stepseven.store.base import Tx

if TYPE_CHECKING:
    from stepseven.store.sqlite import SqliteStore

T = TypeVar("T")


class Apart:
    """Reads a store beside its own reader. For one thread at a time; of a store in memory it is that store's own."""

    def __init__(self, store: SqliteStore, tx: Callable[[sqlite3.Connection], Tx]) -> None:
        self._store = store
        self._connection = None if store.memory else store._connect()  # noqa: SLF001 - this file is a part of that one
        self._tx = None if self._connection is None else tx(self._connection)

    def read_now(self, unit: Callable[[Tx], T]) -> T:
        """Run *unit* on a snapshot."""
        if self._connection is None or self._tx is None:
            return self._store.read_now(unit)
        try:
            self._connection.execute("BEGIN")  # takes no lock yet, and a reader of this log waits for none
            return unit(self._tx)
        except sqlite3.Error as error:
            raise explain(self._store.url, self._store.path, error) from error
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def interrupt(self) -> None:
        """Break off the statement under way."""
        if self._connection is not None:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                self._connection.interrupt()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
