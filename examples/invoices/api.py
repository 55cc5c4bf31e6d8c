"""The accounting system on the other side: a real HTTP server in its own process that keeps count, and can misbehave.

``python -m examples.invoices.api --port 8765 --state postings.jsonl``

* ``POST /postings {supplier, number, kind, amount, currency}`` with ``Idempotency-Key``: 201 ``{id}``; the same key
  again: 409 ``{id}`` of the first posting, or 422 when the body is another one.
* ``GET /postings?supplier=&number=``: the list of those postings. ``GET /count``: what stands in the books.
* ``POST /fault {mode, times, after, seconds}``: the next *times* postings go wrong (all, without *times*), once *after*
  more were let through.
"""

from __future__ import annotations

import argparse
import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

from .._served import CalmServer, json_body, told_to_stop
from ._ledger import Fault, Invalid, Ledger, Taken

if TYPE_CHECKING:
    from pathlib import Path


class AccountingApi:
    """The server, for use inside another process too; as a context manager it serves while inside.

    Args:
        state: the file that keeps the postings over a restart; ``None``: they are gone with the object.
        port: 0 = a free one; :attr:`url` says which.
    """

    def __init__(self, state: str | Path | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.ledger = Ledger(state)
        self._server = _Server((host, port), self.ledger)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """``http://HOST:PORT``, without a slash at the end."""
        return self._server.url

    def start(self) -> Self:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving and let go of replies that are held back; what was accepted for later stays in the file."""
        self._server.stopping.set()
        if self._thread is not None:  # shutdown() waits for ever for a loop that never ran
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self.ledger.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(CalmServer):
    def __init__(self, address: tuple[str, int], ledger: Ledger) -> None:
        super().__init__(address, _Handler)
        self.ledger = ledger


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0  # seconds without a byte: a connection nobody uses does not hold up the end
    disable_nagle_algorithm = True  # headers and body are two packets; the second must not wait for an acknowledgement

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        ledger = self.server.ledger
        if url.path == "/count":
            self._reply(HTTPStatus.OK, ledger.count())
        elif url.path != "/postings":
            self._problem(HTTPStatus.NOT_FOUND, f"there is no {url.path}")
        elif (fault := ledger.next_fault(posting=False)) is None:
            self._reply(HTTPStatus.OK, ledger.find(query.get("supplier"), query.get("number")))
        else:
            self._misbehave(fault)

    def do_POST(self) -> None:
        try:
            body = self._body()
            if self.path == "/fault":
                self._reply(HTTPStatus.OK, self.server.ledger.set_fault(body))
            elif self.path == "/postings":
                self._posting(self.headers.get("Idempotency-Key"), body)
            else:
                self._problem(HTTPStatus.NOT_FOUND, f"there is no {self.path}")
        except Invalid as error:
            self._problem(HTTPStatus.BAD_REQUEST, str(error))

    def _posting(self, key: str | None, body: dict[str, Any]) -> None:
        ledger = self.server.ledger
        fault = ledger.next_fault(posting=True)
        if fault is not None and fault.mode not in {"drop_reply", "accept_later"}:
            self._misbehave(fault)
            return
        try:
            if fault is not None and fault.mode == "accept_later":
                ledger.accept(key, body, fault.seconds)
                self._reply(HTTPStatus.ACCEPTED, {"message": "accepted, will be posted later"})
                return
            posted = ledger.post(key, body)
        except Taken as taken:
            if fault is None or fault.mode != "drop_reply":
                self._reply(taken.status, taken.body)
                return
        else:
            if fault is None:
                self._reply(HTTPStatus.CREATED, {"id": posted})
                return
        self.server.stopping.wait(fault.seconds)  # in the books, and nobody hears of it: the connection just ends

    def _misbehave(self, fault: Fault) -> None:
        match fault.mode:
            case "rate_limit":
                after = {"Retry-After": str(max(1, round(fault.seconds)))}
                self._problem(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", after)
            case "forbid":
                self._problem(HTTPStatus.FORBIDDEN, "this account may not post")
            case "error":
                self._problem(HTTPStatus.INTERNAL_SERVER_ERROR, "nothing was posted")
            case _:  # down: the connection ends at once
                self.close_connection = True

    def _body(self) -> dict[str, Any]:
        try:
            return json_body(self)
        except ValueError as error:
            raise Invalid(str(error)) from error

    def _problem(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self._reply(status, {"message": message}, headers)

    def _reply(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """No line per request: ``GET /count`` tells."""


def main() -> None:
    """Serve until SIGTERM or Ctrl-C. The first line printed is the URL."""
    parser = argparse.ArgumentParser(prog="python -m examples.invoices.api", description="An accounting API to try with.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (the default): a free one")
    parser.add_argument("--state", metavar="FILE", help="keeps the postings over a restart")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when stdin ends: whoever started this is gone")
    args = parser.parse_args()
    try:
        api = AccountingApi(args.state, host=args.host, port=args.port)
    except OSError as error:
        parser.error(f"cannot serve at {args.host}:{args.port}: {error}")
    stop = told_to_stop(with_stdin=args.stop_with_stdin)
    with api:
        print(api.url, flush=True)
        stop.wait()


if __name__ == "__main__":
    main()
