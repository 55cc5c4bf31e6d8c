"""Sending in a child process: a server that accepts and never answers is ended with it, and holds up no worker."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from typing import Protocol

from stepseven.store.redact import MASK, mask

TIMEOUT_S = 30.0  #: for one message on one channel, from the first byte to the last
_START_S = 30.0  # the child may take so long to begin: it loads a large library
_GRACE_S = 2.0  # the child ends itself; if even that hangs, it is killed
_IDLE_S = 60.0  # a child with nothing to do gives its memory back
_SECRET = 5  # characters: shorter pieces of a URL are words


class Sender(Protocol):
    """How messages go out. From one thread."""

    def missing(self) -> str | None:
        """What is missing for sending at all, one sentence; ``None``: nothing."""
        ...

    def send(self, url: str, subject: str, body: str) -> str | None:
        """Send one message over one Apprise URL; ``None``, or why it did not go out, without credentials."""
        ...

    def rest(self) -> None:
        """There is nothing to send at the moment."""
        ...

    def close(self) -> None:
        """End whatever is under way. From any thread, idempotent."""
        ...


class AppriseSender:
    """Apprise, in a child process.

    Args:
        timeout_s: how long one message may take.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._used = time.monotonic()
        self._closed = False
        self._sending = threading.Lock()

    def missing(self) -> str | None:
        """As of the protocol."""
        if importlib.util.find_spec("apprise") is None:
            return "apprise is not installed: pip install 'stepseven[server]'"
        return None

    def send(self, url: str, subject: str, body: str) -> str | None:
        """As of the protocol. The child reads the URL from a pipe: no credential is in its arguments."""
        line = json.dumps({"url": url, "subject": subject, "body": body, "seconds": self._timeout_s}) + "\n"
        with self._sending:
            if self._closed:
                return "the postman was stopped"
            told = self._exchange(line.encode())
            self._used = time.monotonic()
            if told.endswith(b"\n"):
                reason = json.loads(told)["reason"]
                return None if reason is None else without(str(reason), url)
            self._end()
        if self._closed:
            return "the postman was stopped; whether it went out is not known"
        return f"no answer within {self._timeout_s:.0f} s"

    def _exchange(self, line: bytes) -> bytes:
        """Say one line to the child; what it answered, a whole line unless it broke off."""
        limit_s = self._timeout_s + _GRACE_S + (0.0 if self._alive() else _START_S)
        child = self._started()
        assert child.stdin is not None  # noqa: S101 - a pipe, see below
        try:
            child.stdin.write(line)
            child.stdin.flush()
        except BrokenPipeError:
            return b""
        return _answer(child, limit_s)

    def _alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or not self._alive():
            self._end()
            command = [sys.executable, "-m", "stepseven.people._sender"]
            # A session of its own: Ctrl-C in a terminal stops the worker, which lets a message under way go out first.
            self._child = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        return self._child

    def rest(self) -> None:
        """As of the protocol."""
        if self._child is not None and time.monotonic() - self._used > _IDLE_S:
            self._end()

    def close(self) -> None:
        """As of the protocol."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()  # whoever waits for it goes on
        with self._sending:
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        child.wait()


def _answer(child: subprocess.Popen[bytes], limit_s: float) -> bytes:
    """A whole line, or what there was of it when its time was over."""
    assert child.stdout is not None  # noqa: S101 - a pipe
    end_s, told = time.monotonic() + limit_s, b""
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ)
        while not told.endswith(b"\n"):
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not ready.select(left_s):
                return told
            more = os.read(child.stdout.fileno(), 65536)
            if not more:
                return told
            told += more
    return told


def without(text: str, url: str) -> str:
    """*text* in which nothing of *url* stands that could be a credential."""
    for piece in sorted(set(re.split(r"[/:@?&=,;\s]+", url)), key=len, reverse=True):
        if len(piece) >= _SECRET:
            text = text.replace(piece, MASK)
    return mask(text)
