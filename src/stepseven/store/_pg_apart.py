"""A connection of its own for whoever reads for long, such as a prune."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import psycopg

from stepseven.errors import StoreUnavailable
from stepseven.store._pg_connect import Connection
from stepseven.store._pg_trouble import gone
from stepseven.store._pg_wire import Wire
from stepseven.store.base import Tx

if TYPE_CHECKING:
    from stepseven.store._pg_desk import Desk

T = TypeVar("T")
CANCEL_S = 5.0


class Apart:
    """Reads a store beside its other connections. For one thread at a time; ``interrupt`` from another."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lock = threading.Lock()  # of `_reading`: a cancellation must not reach the statement after the one it was meant for
        self._reading: Connection | None = None
        self._interrupted = False

    def read_now(self, unit: Callable[[Tx], T]) -> T:
        """Run *unit* on a snapshot."""
        read = self._desk.read(unit, statement_ms=0)

        def attempt(wire: Wire) -> T:
            wire.connection.silence_s = None  # it may take long; the operating system watches the network
            with self._lock:
                self._reading = wire.connection
            try:
                return read(wire)
            finally:
                with self._lock:
                    self._reading = None
                wire.connection.restore()

        self._interrupted = False
        try:
            return self._desk.patiently(attempt, again=lambda error: gone(error) and not self._interrupted)
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.QueryCanceled) and self._interrupted:
                raise StoreUnavailable(self._desk.server.url, "the reading was broken off") from error
            raise self._desk.server.explain(error) from error

    def interrupt(self) -> None:
        """Break off the statement under way."""
        with self._lock:
            if self._reading is None:
                return
            self._interrupted = True
            with suppress(psycopg.Error):  # it cannot be reached: then its statement fails by itself
                self._reading.cancel_safe(timeout=CANCEL_S)

    def close(self) -> None:
        """Nothing is held between two reads. Idempotent."""
