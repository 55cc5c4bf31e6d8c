"""The outside world as a process of its own, which counts what was done to it, on the disk.

``POST /do/NAME/REF`` does it; with an ``Idempotency-Key`` that was seen before it is not done again. ``GET /look/NAME/REF`` says
whether it was done (404: no), ``GET /counts`` how often each was, ``GET /total`` how many requests there were.
Some requests are slow, always the same ones, so that a villain finds somebody in their middle.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]


class Ledger:
    """What was done, a line each, on the disk before anybody is told."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.requests = 0
        self._keys: dict[tuple[str, str], int] = {}
        for line in path.read_text().splitlines():
            told = json.loads(line)
            self._count(told["what"], told["key"])

    def do(self, what: str, key: str | None) -> int:
        """Do it; the answer says how often it was done by then."""
        with self._lock:
            if key is not None and (what, key) in self._keys:
                return self._keys[what, key]
            os.write(self._file, (json.dumps({"what": what, "key": key, "at": time.time()}) + "\n").encode())
            os.fdatasync(self._file)
            return self._count(what, key)

    def _count(self, what: str, key: str | None) -> int:
        self.counts[what] += 1
        if key is not None:
            self._keys[what, key] = self.counts[what]
        return self.counts[what]


def serve(folder: Path) -> None:
    """Serve until the process that started us is gone: its end of our stdin closes then."""
    ledger = Ledger(folder / "ledger")

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            what = self.path.removeprefix("/look/")
            if self.path == "/counts":
                self._say(200, dict(ledger.counts))
            elif self.path == "/total":
                self._say(200, ledger.requests)
            else:
                found = ledger.counts.get(what)
                self._say(200 if found else 404, found)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            ledger.requests += 1
            what = self.path.removeprefix("/do/")
            slow = zlib.crc32(what.encode()) % 8
            before, after = (0.15 if slow == 0 else 0.0), (0.15 if slow == 1 else 0.0)
            time.sleep(before)
            done = ledger.do(what, self.headers.get("Idempotency-Key"))
            time.sleep(after)
            self._say(200, done)

        def _say(self, status: int, what: Any) -> None:
            body = json.dumps(what).encode()
            self.close_connection = True
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(body)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_: Any) -> None:
            """Clients that are killed in the middle are what this is about."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


class Outside:
    """The process, as the tests see it. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.counter", str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=20)

    def counts(self) -> Counter[str]:
        """How often each was done."""
        return Counter(ask(self.port, "GET", "/counts")[1])

    def total(self) -> int:
        """How many times something was asked for."""
        return int(ask(self.port, "GET", "/total")[1])


def ask(port: int, method: str, path: str, key: str | None = None) -> tuple[int, Any]:
    """One request: the status, and what was said."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(
            method, path, body=b"" if method == "POST" else None, headers={} if key is None else {"Idempotency-Key": key}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    serve(parser.parse_args().folder)
