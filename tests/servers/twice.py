"""Every unit of work is executed, undone, and executed again, as a store does whose first try was not committed.

``pytest --twice tests/runs``: whatever has an effect other than its statements shows itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stepseven.store.base import Tx
from stepseven.store.sqlite import SqliteStore

_WRITES = ("write_now", "erase", "write")


def install() -> None:
    """For all SQLite stores of this process, for good."""
    for name in _WRITES:
        setattr(SqliteStore, name, _method(getattr(SqliteStore, name)))


def on(store: Any) -> None:
    """For one SQLite store."""
    for name in _WRITES:
        setattr(store, name, _bound(getattr(store, name)))


def _method(write: Callable[..., Any]) -> Callable[..., Any]:
    def call(store: SqliteStore, unit: Callable[[Tx], Any], **how: Any) -> Any:
        return write(store, lambda tx: _undone_and_done(tx, unit), **how)

    return call


def _bound(write: Callable[..., Any]) -> Callable[..., Any]:
    def call(unit: Callable[[Tx], Any], **how: Any) -> Any:
        return write(lambda tx: _undone_and_done(tx, unit), **how)

    return call


def _undone_and_done(tx: Any, unit: Callable[[Tx], Any]) -> Any:
    tx.connection.execute("SAVEPOINT first_try")
    with suppress(BaseException):
        unit(tx)
    tx.connection.execute("ROLLBACK TO first_try")
    tx.connection.execute("RELEASE first_try")
    return unit(tx)
