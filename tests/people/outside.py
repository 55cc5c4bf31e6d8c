"""Where messages arrive: a mail server and a web hook that count, and a sender in memory that says when it was asked."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepseven.testing import TestLayer
from stepseven.transitions import persons
from stepseven.transitions.persons import Said


@dataclass
class Memory:
    """A sender whose messages stay here. ``down``: why nothing goes out, while it does not."""

    now_us: Callable[[], int]
    down: str | None = None
    sent: list[tuple[int, str, str, str]] = field(default_factory=list)  # when, where, subject, body
    tries: int = 0

    def missing(self) -> str | None:
        return None

    def send(self, url: str, subject: str, body: str) -> str | None:
        self.tries += 1
        if self.down is None:
            self.sent.append((self.now_us(), url, subject, body))
        return self.down

    def rest(self) -> None: ...

    def close(self) -> None: ...


def knows(layer: TestLayer, id: str, **said: Any) -> None:
    """Somebody is there. Where they are reached: ``json://ID``."""
    said.setdefault("channels", (f"json://{id}",))
    now = layer.clock.now_us
    layer.store.write_now(lambda tx: persons.save(tx, Said(id=id, **said), now), durable=True, client=None)


class Hook:
    """A web hook. ``answers``: the status it gives; ``None``: it takes the message and never answers."""

    def __init__(self) -> None:
        self.answers: int | None = 200
        self.got: list[dict[str, Any]] = []
        self.closing = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.append(json.loads(body))
                if hook.answers is None:
                    hook.closing.wait(30)
                    return
                self.send_response(hook.answers)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"json://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


class _Mail(socketserver.StreamRequestHandler):
    """As little SMTP as a client needs."""

    def handle(self) -> None:
        self.say("220 sink")
        while line := self.rfile.readline().decode().strip():
            if line.upper().startswith("DATA"):
                self.say("354 go on")
                text = b""
                while not text.endswith(b"\r\n.\r\n"):
                    text += self.rfile.readline()
                self.server.got.append(text.decode())  # type: ignore[attr-defined]
            elif line.upper().startswith("QUIT"):
                self.say("221 bye")
                return
            self.say("250 ok")

    def say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def mail() -> Iterator[tuple[str, list[str]]]:
    """A mail server: its channel, and the mails as they came."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mail)
    server.daemon_threads, server.got = True, []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"mailto://127.0.0.1:{server.server_address[1]}?from=runs@example.com&to=ann@example.com", server.got  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@contextmanager
def hook() -> Iterator[Hook]:
    """A web hook for one test."""
    made = Hook()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def silent() -> Iterator[str]:
    """A server that accepts and says nothing: its mail channel."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"mailto://127.0.0.1:{server.getsockname()[1]}?from=runs@example.com&to=ann@example.com"
