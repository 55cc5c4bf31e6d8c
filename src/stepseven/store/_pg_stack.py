"""The connections of one store: borrowed for a transaction each, a handful kept."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

from stepseven.store._pg_connect import Server
from stepseven.store._pg_wire import Wire

KEPT = 6  # four that read, the writer, the heartbeat: one that is made anew costs as much as fifty records

_PARENTS: list[list[Wire]] = []  # a forked process must not even close what its parent talks on


class Stack:
    """Connections nobody uses at the moment; the one used last is used next, so that a quiet store keeps one busy."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._idle: list[Wire] = []
        self._closed = False

    def take(self) -> Wire:
        """One in no transaction; a new one if need be.

        Raises:
            psycopg.Error: it cannot be made, now.
        """
        with suppress(IndexError):
            return self._idle.pop()
        return Wire(self._server.connect())

    def spare(self) -> Wire | None:
        """One that is at hand."""
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def give(self, wire: Wire) -> None:
        """Back on the stack. One that is in a transaction, or broken, is not used again."""
        if wire.idle():
            with self._lock:
                if not self._closed and len(self._idle) < KEPT:
                    self._idle.append(wire)
                    return
        close(wire)

    def drop(self) -> None:
        """The server went away: whatever is kept here is of no use any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            close(wire)

    def close(self) -> None:
        """Close what is kept, and what comes back from now on."""
        self._closed = True
        self.drop()

    def leave_to_parent(self) -> None:
        """In a forked process: forget them."""
        _PARENTS.append(self._idle)
        self._idle = []
        self._lock = threading.Lock()


def close(wire: Wire) -> None:
    """Close it, in whatever state it is."""
    with suppress(psycopg.Error):
        wire.connection.close()
