"""What the small servers of the examples share: an HTTP server that ends well, a JSON body, and how a process is told to stop."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from socket import socket

_LARGEST_BODY = 1_000_000


class CalmServer(ThreadingHTTPServer):
    """Waits for requests in flight when it is closed; ``stopping`` is for handlers that hold a reply back."""

    daemon_threads = False  # server_close() waits for requests in flight, so none finds a closed file
    request_queue_size = 128  # the default of 5 makes a burst wait for TCP's retransmission

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        """``http://HOST:PORT``, without a slash at the end."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """A client that hung up is no news; everything else is printed as usual."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def json_body(handler: BaseHTTPRequestHandler) -> dict[str, Any]:
    """The request's body.

    Raises:
        ValueError: it is no JSON object, or too long.
    """
    length = handler.headers.get("Content-Length", "")
    if not length.isdecimal() or int(length) > _LARGEST_BODY:
        raise ValueError(f"Content-Length must be given, up to {_LARGEST_BODY}")
    try:
        body = json.loads(handler.rfile.read(int(length)))
    except ValueError as error:
        raise ValueError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004 - it is the value that is wrong
    return body


def told_to_stop(*, with_stdin: bool) -> threading.Event:
    """Set at SIGTERM and Ctrl-C; *with_stdin*: also when stdin ends, because whoever started this process is gone."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def outlive_nobody() -> None:
        while os.read(0, 4096):
            pass
        stop.set()

    if with_stdin:
        threading.Thread(target=outlive_nobody, daemon=True).start()
    return stop
