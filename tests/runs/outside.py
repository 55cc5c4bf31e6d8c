"""The outside world of these tests: a small HTTP server with real effects that counts them. It is the judge, never our own log.

``POST /effect/NAME`` is an effect. With ``dedup`` an ``Idempotency-Key`` seen before gives the first answer and no effect.
``GET /effect/NAME?key=K`` is what a probe looks at: 200 with what is there, or 404. How the next requests are treated is a
list of moods, one per request; without one a request is simply served.
"""

from __future__ import annotations

import http.server
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, kw_only=True)
class Mood:
    """How one request is treated.

    Attributes:
        act: whether it has its effect.
        late: the effect happens when the test calls ``let_go()``, after the answer (a 202) or after the client gave up.
        hold: the answer waits until the test calls ``let_go()``.
        reset: the connection is cut instead of an answer.
        status: of the answer.
        headers: of the answer.
        text: the answer's body instead of the effect as JSON.
    """

    act: bool = True
    late: bool = False
    hold: bool = False
    reset: bool = False
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None


SERVE = Mood()
DROP = Mood(reset=True)


class Outside:
    """The server, and what it saw. A context manager.

    Args:
        dedup: whether a key that was seen before is no second effect.
    """

    def __init__(self, *, dedup: bool = False) -> None:
        self.dedup = dedup
        self.effects: list[dict[str, Any]] = []
        self.calls: list[tuple[str, str | None]] = []  # every POST: name, key
        self.looks: list[str | None] = []  # every look: the key
        self.moods: list[Mood] = []
        self.look_moods: list[Mood] = []
        self.on_arrival: Callable[[], object] | None = None
        self.lock = threading.Lock()
        self.arrived = threading.Event()
        self._go = threading.Event()
        self._answers: dict[str, dict[str, Any]] = {}
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._server.shutdown()
        self._server.server_close()

    # -- for the tests ----------------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Let held answers and late effects happen."""
        self._go.set()

    def counts(self) -> Counter[str]:
        """How often each effect happened, by name."""
        with self.lock:
            return Counter(e["name"] for e in self.effects)

    # -- for the handler --------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until the test lets go."""
        self._go.wait(timeout=30)

    def act(self, name: str, key: str | None, body: Any) -> dict[str, Any]:
        """Have the effect, unless the key was seen before."""
        with self.lock:
            if self.dedup and key is not None and key in self._answers:
                return self._answers[key]
            made = {"name": name, "key": key, "body": body, "n": len(self.effects) + 1}
            self.effects.append(made)
            if key is not None:
                self._answers[key] = made
            return made

    def find(self, name: str, key: str | None) -> dict[str, Any] | None:
        """What is there under a key."""
        with self.lock:
            return next((e for e in self.effects if e["name"] == name and e["key"] == key), None)

    def mood(self, moods: list[Mood]) -> Mood:
        """The next request's treatment."""
        with self.lock:
            return moods.pop(0) if moods else SERVE


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that went away is what many of these tests are about."""


def _handler(world: Outside) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"null")
            name, key = urlsplit(self.path).path.rsplit("/", 1)[-1], self.headers.get("Idempotency-Key")
            mood = world.mood(world.moods)
            with world.lock:
                world.calls.append((name, key))
            if world.on_arrival is not None:
                world.on_arrival()
            made = world.act(name, key, body) if mood.act and not mood.late else None
            world.arrived.set()
            if mood.hold:
                world.wait()
            with suppress(OSError):  # the client may have gone away meanwhile
                self._answer(mood, made)
            if mood.late:
                world.wait()
                world.act(name, key, body)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            key = parse_qs(parts.query).get("key", [None])[0]
            with world.lock:
                world.looks.append(key)
            mood = world.mood(world.look_moods)
            made = world.find(parts.path.rsplit("/", 1)[-1], key)
            self._answer(mood if made is not None or mood is not SERVE else Mood(status=404), made)

        def _answer(self, mood: Mood, made: dict[str, Any] | None) -> None:
            if mood.reset:
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
                self.connection.close()
                return
            text = (mood.text if mood.text is not None else json.dumps(made)).encode()
            self.send_response(mood.status)
            for header, value in {"content-type": "application/json", "content-length": str(len(text)), **mood.headers}.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(text)

    return Handler
