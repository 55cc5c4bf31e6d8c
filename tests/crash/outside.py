"""The outside world of the crash tests: a small server that counts, owned by the test, never by the code under test.

``POST /effect/KIND`` is an effect; with an ``Idempotency-Key`` that was seen before it is none, and gets the first answer.
``GET /effects`` lists them: what a probe looks at. ``GET /ran/NAME`` says that a step's code runs, ``GET /said/WHAT`` that
the run's code was told something it may rely on from then on. ``hold`` lets a request wait, so that a test can act meanwhile.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections import Counter
from typing import Any, Self


class Outside:
    """The server, and what it saw. Use it as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy = 0
        self._holds: dict[str, tuple[threading.Event, threading.Event]] = {}
        self.effects: list[dict[str, Any]] = []
        self.calls: list[str] = []  # every effect request by kind, repeats under one key too
        self.ran: Counter[str] = Counter()
        self.said: set[str] = set()
        self._keys: dict[tuple[str, str], dict[str, Any]] = {}
        self._server = _server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for _, go in self._holds.values():
            go.set()
        self._server.shutdown()
        self._server.server_close()

    # -- for the test ---------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything, for the next scenario."""
        with self._lock:
            self.effects, self.calls, self._keys, self._holds = [], [], {}, {}
            self.ran, self.said = Counter(), set()

    def counts(self) -> Counter[tuple[str, str]]:
        """How often each effect happened, by kind and reference."""
        with self._lock:
            return Counter((e["kind"], json.loads(e["body"])["ref"]) for e in self.effects)

    def forget(self, kind: str) -> None:
        """The time for which keys of *kind* are honoured is over."""
        with self._lock:
            self._keys = {key: answer for key, answer in self._keys.items() if key[0] != kind}

    def quiet(self) -> None:
        """Wait until every request sent so far was dealt with. What a dead process sent may still lie in a buffer."""
        host = self.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("GET", "/barrier")  # accepted after everything that came before it
        connection.getresponse().read()
        connection.close()
        with self._idle:
            assert self._idle.wait_for(lambda: self._busy == 0, timeout=10), "a request hangs"

    def hold(self, path: str) -> tuple[threading.Event, threading.Event]:
        """Let requests for *path* wait before they are dealt with: (set when one arrived, set it to let it go on)."""
        self._holds[path] = held = (threading.Event(), threading.Event())
        return held

    # -- for the server -------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        with self._idle:
            self._busy += 1

    def leave(self) -> None:
        with self._idle:
            self._busy -= 1
            self._idle.notify_all()

    def look(self, path: str) -> Any:
        """A GET."""
        self._wait(path)
        _, what, *rest = path.split("/", 2)
        with self._lock:
            if what == "ran":
                self.ran[rest[0]] += 1
            elif what == "said":
                self.said.add(rest[0])
            return self.effects if what == "effects" else {}

    def act(self, path: str, key: str | None, body: str) -> Any:
        """A POST."""
        self._wait(path)
        kind = path.rsplit("/", 1)[-1]
        with self._lock:
            self.calls.append(kind)
            if key is not None and (kind, key) in self._keys:
                return self._keys[kind, key]
            answer = {"n": len(self.effects) + 1}
            self.effects.append({"kind": kind, "key": key, "body": body})
            if key is not None:
                self._keys[kind, key] = answer
            return answer

    def _wait(self, path: str) -> None:
        held = self._holds.get(path)
        if held is not None:
            held[0].set()
            held[1].wait(60)


def _server(outside: Outside) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.timeout = 30

        def handle(self) -> None:
            outside.enter()
            try:
                super().handle()
            except OSError:
                pass  # the client was killed while we talked
            finally:
                outside.leave()

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send({} if self.path == "/barrier" else outside.look(self.path))

        def do_POST(self) -> None:
            want = int(self.headers["content-length"] or -1)
            raw = self.rfile.read(want) if want >= 0 else b""
            if len(raw) != want:  # half a request is no effect
                self.close_connection = True
                return
            self._send(outside.act(self.path, self.headers.get("Idempotency-Key"), raw.decode()))

        def _send(self, answer: Any) -> None:
            self.close_connection = True
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(body)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None:
            pass  # a client that was killed is what these tests are about

    return Server(("127.0.0.1", 0), Handler)
