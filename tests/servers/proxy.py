"""A TCP line that breaks on demand, between us and a server."""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

CHUNK = 65536


@dataclass(slots=True, eq=False)
class _Pair:
    """One connection through the line."""

    near: socket.socket
    far: socket.socket
    tail: bytes = b""  #: the end of what was sent, in case the word looked for is split
    answer: bytes = b""  #: when the server has said this, which the client does not hear, the line is cut


class Proxy:
    """Forwards to ``127.0.0.1:upstream``. Use it as a context manager; connect to ``port``.

    ``cut("after", n=3)`` cuts the connection that sends the third COMMIT from now on, when the server has answered it: the
    client never hears that. ``cut("before")``: the server never gets it. ``freeze()``: nothing passes and nobody is told, new
    connections included, until ``heal()``. ``refuse()``: the server is away.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.cuts = 0  #: how often it was cut as ordered
        self.latency_s = 0.0  #: added to each packet, both ways
        self._order: tuple[Literal["before", "after"], bytes, int] | None = None
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._refuses = False
        self._pairs: set[_Pair] = set()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._server.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy_accept", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- orders ---------------------------------------------------------------------------------------------------------

    def cut(self, side: Literal["before", "after"], *, needle: bytes = b"COMMIT\0", n: int = 1) -> None:
        """Cut the connection that sends *needle* for the *n*-th time from now on; once.

        Args:
            side: ``after``: when the server has answered it (its answer holds the same word, as in ``COMMIT``, ``INSERT 0 1``).
            needle: the word, as it is on the wire (a statement that was prepared is not).
            n: counted over all connections.
        """
        with self._lock:
            self._order = (side, needle, n)

    def cut_all(self) -> None:
        """Cut every connection, at once and loudly."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._reset(pair)

    def freeze(self) -> None:
        """Let nothing pass; nobody is told."""
        self._open.clear()

    def heal(self) -> None:
        """Let everything pass again, first what was held back."""
        with self._lock:
            self._order = None
        self._refuses = False
        self._open.set()

    def refuse(self) -> None:
        """Cut every connection and take no new one."""
        self._refuses = True
        self.cut_all()

    def close(self) -> None:
        """Cut everything, for good."""
        self._closed = True
        self._open.set()
        self._server.close()
        self.cut_all()

    # -- the line -------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                if not select.select([self._server], [], [], 0.2)[0]:
                    continue
                near, _ = self._server.accept()
            except (OSError, ValueError):
                return
            self._open.wait()
            self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            if self._refuses or self._closed:
                raise ConnectionRefusedError
            far = socket.create_connection(("127.0.0.1", self.upstream), timeout=5)
        except OSError:
            _abort(near)
            return
        far.settimeout(None)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(near, far)
        with self._lock:
            self._pairs.add(pair)
        for pump in (self._upwards, self._downwards):
            threading.Thread(target=pump, args=(pair,), name="proxy_pump", daemon=True).start()

    def _upwards(self, pair: _Pair) -> None:
        while data := self._take(pair.near):
            side = self._ordered(pair, data)
            if side == "before":
                break
            if not _send(pair.far, data):
                break
        self._reset(pair)

    def _downwards(self, pair: _Pair) -> None:
        swallowed = b""
        while data := self._take(pair.far):
            if not pair.answer:
                if not _send(pair.near, data):
                    break
                continue
            swallowed += data
            if pair.answer in swallowed:
                break
        self._reset(pair)

    def _take(self, end: socket.socket) -> bytes:
        try:
            data = end.recv(CHUNK)
        except OSError:
            return b""
        if self.latency_s:
            threading.Event().wait(self.latency_s)
        self._open.wait()
        return data

    def _ordered(self, pair: _Pair, data: bytes) -> Literal["before", "after"] | None:
        """Whether it is this connection's turn to be cut, and on which side of the word."""
        with self._lock:
            if self._order is None or pair.answer:
                return None  # what follows a word that is to be answered goes through: in a pipeline it asks for the answer
            side, needle, n = self._order
            seen = pair.tail + data
            n -= seen.count(needle)
            pair.tail = seen[1 - len(needle) :]
            if n > 0:
                self._order = (side, needle, n)
                return None
            self._order = None
            self.cuts += 1
            if side == "after":
                pair.answer = needle
            return side

    def _reset(self, pair: _Pair) -> None:
        for end in (pair.near, pair.far):
            _abort(end)
        with self._lock:
            self._pairs.discard(pair)


def _send(end: socket.socket, data: bytes) -> bool:
    try:
        end.sendall(data)
    except OSError:
        return False
    return True


def _abort(end: socket.socket) -> None:
    """Close with a reset, as a crashed host or a firewall does."""
    with suppress(OSError):  # it may be gone already
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)  # wakes whoever reads it
    end.close()
