"""What both sides of the example are made of: JSON over HTTP on the loopback interface; a reply can be held back."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from email.message import Message

GIVE_UP_S = 60.0  # for a reply that nobody lets go


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Message
    body: Any


@dataclass(frozen=True, slots=True)
class Hold:
    """A reply that is held back: what was asked for is done (``came`` is set), and nobody hears of it until ``go`` is."""

    came: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


class JsonServer(ABC):
    """Serves while inside its ``with``, in threads of its own. What it does is said by :meth:`handle`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._idle = threading.Condition()
        self._busy = 0
        self._holds: dict[str, tuple[int, Hold]] = {}
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @abstractmethod
    def handle(self, request: Request) -> tuple[int, Any]:
        """Do what is asked; the status and the body of the reply. Called under :attr:`lock`."""

    def hold(self, path: str, nth: int = 1) -> Hold:
        """Hold back the reply to the *nth* request for *path* from now on."""
        with self.lock:
            self._holds[path] = (nth, held := Hold())
        return held

    def quiet(self) -> None:
        """Wait until everything that came in was dealt with, also what a dead process had sent."""
        with self._idle:
            if not self._idle.wait_for(lambda: self._busy == 0, timeout=GIVE_UP_S):
                raise TimeoutError("a request hangs")

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            for _, held in self._holds.values():
                held.go.set()
        self._server.shutdown()
        self._server.server_close()

    # -- for the server -------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> tuple[int, Any]:
        with self.lock:
            reply = self.handle(request)
            left, held = self._holds.get(request.path, (0, Hold()))
            if left:
                self._holds[request.path] = (left - 1, held)
        if left == 1:
            held.came.set()
            held.go.wait(GIVE_UP_S)
        return reply

    def busy(self, more: int) -> None:
        with self._idle:
            self._busy += more
            self._idle.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close() waits for requests in flight
    request_queue_size = 64

    def __init__(self, owner: JsonServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner

    def process_request(self, request: Any, client_address: Any) -> None:
        self.owner.busy(+1)  # here, in the thread that accepts: who comes later finds it counted
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.owner.busy(-1)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        content = self.rfile.read(length)
        if len(content) < length:  # whoever sent it died over it: half a request is none
            return
        try:
            body = json.loads(content)
        except ValueError as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": {"message": f"the body is no JSON: {error}"}})
            return
        self._reply(body)

    def _reply(self, body: Any) -> None:
        self._send(*self.server.owner.answer(Request(self.command, self.path, self.headers, body)))

    def _send(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        with suppress(ConnectionError):  # a client that died meanwhile is what this example is about
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """No line per request: the journal tells."""
