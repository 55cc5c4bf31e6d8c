"""A server that can be down, and workflows that need it: what worker processes do in an outage."""

from __future__ import annotations

import http.client
import os
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from stepseven import Run, attempt, step, workflow


class Api:
    """Counts requests, and the effects by their keys. While it is down it answers nothing but 502. A context manager."""

    def __init__(self) -> None:
        self.down = True
        self.requests: Counter[str] = Counter()  # while it was down, and up
        self.done: Counter[str] = Counter()
        self.hold = threading.Event()
        self.hold.set()
        self.held = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                api.requests["down" if api.down else "up"] += 1
                if not api.hold.is_set():
                    api.held.set()
                    api.hold.wait(30)
                if not api.down:
                    api.done[self.path.rsplit("/", 1)[-1]] += 1
                self.send_response(502 if api.down else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing is said."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> str:
        """Where it listens."""
        return str(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Refused(Exception):
    """What an HTTP library raises."""

    def __init__(self, status: int, url: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status
        self.url = url


def post(name: str) -> str:
    """One request."""
    port = int(os.environ["OUTAGE_PORT"])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", f"/{name}")
        status = connection.getresponse().status
    finally:
        connection.close()
    if status != http.HTTPStatus.OK:
        raise Refused(status, f"http://127.0.0.1:{port}/{name}")
    return name


@step
async def outage_read(n: int) -> str:
    """A read of the server that may be down; nothing declares which."""
    return post(f"read-{n}")


@step(effect="write", key="n", idempotent=True)
async def outage_write(n: int) -> str:
    """A write to it."""
    assert attempt().idempotency_key
    return post(f"write-{n}")


@workflow
async def outage_flow(run: Run, n: int) -> str:
    """A read and a write."""
    return await outage_read(n) + await outage_write(n)
