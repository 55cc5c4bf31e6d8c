"""The connections of one store: borrowed for a transaction each, a handful kept."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

from stepseven.store._pg_connect import Connection, Server

KEPT = 4

_PARENTS: list[list[Connection]] = []  # a forked process must not even close what its parent talks on


class Stack:
    """Connections nobody uses at the moment; the one used last is used next, so that a quiet store keeps one busy."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection:
        """One in no transaction; a new one if need be.

        Raises:
            psycopg.Error: it cannot be made, now.
        """
        with suppress(IndexError):
            return self._idle.pop()
        return self._server.connect()

    def give(self, connection: Connection) -> None:
        """Back on the stack. One that is in a transaction, or broken, is not used again."""
        if not connection.closed:
            with self._lock:
                if not self._closed and len(self._idle) < KEPT and connection.info.transaction_status == 0:
                    self._idle.append(connection)
                    return
            close(connection)

    def drop(self) -> None:
        """The server went away: whatever is kept here is of no use any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            close(connection)

    def close(self) -> None:
        """Close what is kept, and what comes back from now on."""
        self._closed = True
        self.drop()

    def leave_to_parent(self) -> None:
        """In a forked process: forget them."""
        _PARENTS.append(self._idle)
        self._idle = []
        self._lock = threading.Lock()


def close(connection: Connection) -> None:
    """Close it, in whatever state it is."""
    with suppress(psycopg.Error):
        connection.close()
