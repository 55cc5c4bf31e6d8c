"""The other side: four small systems that keep count of everything they are asked, each a process of its own.

``python -m examples.renewal.outside tickets|billing|documents|crm --port 8701 --journal tickets.jsonl``

* **tickets** ``GET /tickets?client=``: the client's tickets of the quarter under way; ``POST /set {"quarter": "Q4"}``
  begins the next one.
* **billing** ``GET /billing/CLIENT``: 403 as long as the credentials are lapsed; ``POST /set {"lapsed": false}`` mends them.
* **documents** ``GET /contracts/CLIENT`` · ``POST /documents`` with ``Idempotency-Key`` (the same key again gives the first
  document, unless ``--ignore-keys``) · ``GET /documents?client=&quarter=`` · ``POST /sent`` and ``GET /sent?document=``: the
  mails a document went out with.
* **crm** ``GET /clients/CLIENT``: who to talk to there; ``POST /set {"contact": "Ben"}`` changes it. ``POST /letters {contact,
  document}``: a letter in the words this contact likes; it stands in for a model, and keeps nothing.

Every one: ``GET /count``: how often which request came, and what stands in the books. ``POST /fault {mode, method, times,
after, seconds}``: the next *times* requests (of *method*, if given) go wrong after *after* good ones: ``drop_reply`` (done,
nobody hears of it), ``hold`` (nothing is done). Either way the connection ends after *seconds*, without an answer.
"""

from __future__ import annotations

import argparse
import json
import threading
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlsplit

from .._served import CalmServer, json_body, told_to_stop

Answer = tuple[HTTPStatus, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What came in. *key*: the header Idempotency-Key."""

    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    key: str | None


_MODES = ("ok", "drop_reply", "hold")
_OPENED = {"Q1": 168, "Q2": 195, "Q3": 214, "Q4": 187}  # tickets of a quarter
_SUBJECTS = ("how to add a user", "report is empty", "export as PDF", "wrong time zone", "dark mode", "password forgotten")
_RISKS = ("export is slow", "login fails", "invoices came twice")
_RISKY = 35  # one ticket in so many is a risk
CONTRACT = {"amount": "48000.00", "currency": "EUR", "signed": "2025-11-02"}
BILLED = {"amount": "51600.00", "currency": "EUR"}


class Wrong(Exception):
    """The request is not one: *status* and the message are the answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class System(ABC):
    """One of the four. Thread-safe; with a *journal* file every request is a line in it, and is read again at the start."""

    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, journal: str | Path | None = None) -> None:
        self.lock = threading.RLock()
        self.set: dict[str, Any] = dict(self.settings)
        self.asked: Counter[str] = Counter()
        self._fault: dict[str, Any] = {"mode": "ok"}
        self._journal: Path | None = Path(journal) if journal is not None else None
        if self._journal is not None and self._journal.exists():
            for line in self._journal.read_text("utf-8").splitlines():
                self.note(**json.loads(line), again=True)

    def note(self, *, again: bool = False, **entry: Any) -> None:
        """Write down what was asked for, and what became of it."""
        self.asked[entry["asked"]] += 1
        if self._journal is not None and not again:
            with self._journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def count(self) -> dict[str, Any]:
        """How often which request came."""
        return {"asked": dict(sorted(self.asked.items()))}

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """What a request gets."""

    # -- what people turn -----------------------------------------------------------------------------------------------

    def change(self, body: dict[str, Any]) -> dict[str, Any]:
        """Set what is known by name and type."""
        for name, value in body.items():
            if type(self.set.get(name)) is not type(value):
                raise Wrong(HTTPStatus.BAD_REQUEST, f"set one of {', '.join(self.set) or 'nothing'}, each as it is now")
        self.set.update(body)
        return self.set

    def break_(self, body: dict[str, Any]) -> dict[str, Any]:
        """Make the next requests go wrong."""
        fault = {"mode": "ok", "method": "", "times": 1, "after": 0, "seconds": 60.0} | body
        counts = all(isinstance(fault[name], int) and fault[name] >= 0 for name in ("times", "after"))
        if fault["mode"] not in _MODES or not counts or not isinstance(fault["seconds"], int | float):
            raise Wrong(HTTPStatus.BAD_REQUEST, f"mode is one of {', '.join(_MODES)}; times, after and seconds are numbers")
        self._fault = fault
        return fault

    def trouble(self, method: str) -> tuple[str, float]:
        """What happens to the request that just came in, and for how many seconds."""
        fault = self._fault
        if fault["mode"] == "ok" or fault["times"] == 0 or fault["method"] not in {"", method}:
            return "ok", 0.0
        if fault["after"] > 0:
            fault["after"] -= 1
            return "ok", 0.0
        fault["times"] -= 1
        return str(fault["mode"]), float(fault["seconds"])


class Tickets(System):
    """So many tickets in each quarter, the same each time they are read."""

    settings: ClassVar[dict[str, Any]] = {"quarter": "Q3"}

    def answer(self, request: Request) -> Answer:
        client, quarter = request.query.get("client"), self.set["quarter"]
        if (request.method, request.path) != ("GET", "/tickets") or not client:
            raise Wrong(HTTPStatus.NOT_FOUND, f"there is no {request.path}")
        self.note(asked="tickets", client=client, quarter=quarter)
        return HTTPStatus.OK, [
            {"number": n, "client_id": client, "quarter": quarter, "subject": _subject(n), "risk": n % _RISKY == 0}
            for n in range(1, _OPENED.get(quarter, 200) + 1)
        ]


def _subject(n: int) -> str:
    names = _SUBJECTS if n % _RISKY else _RISKS
    return names[n % len(names)]


class BillingApi(System):
    """Refuses while the client's credentials are lapsed."""

    settings: ClassVar[dict[str, Any]] = {"lapsed": True}

    def answer(self, request: Request) -> Answer:
        start, _, client = request.path.rpartition("/")
        if (request.method, start) != ("GET", "/billing") or not client:
            raise Wrong(HTTPStatus.NOT_FOUND, f"there is no {request.path}")
        self.note(asked="refused" if self.set["lapsed"] else "billing", client=client)
        if self.set["lapsed"]:
            return HTTPStatus.FORBIDDEN, {"message": "the credentials lapsed with the old contract"}
        return HTTPStatus.OK, {"client_id": client, **BILLED}


class Crm(System):
    """Knows who to talk to at a client, and how."""

    settings: ClassVar[dict[str, Any]] = {"contact": "Ann", "mail": "ann@acme.example", "seats": 25}

    def answer(self, request: Request) -> Answer:
        start, _, client = request.path.rpartition("/")
        if (request.method, start) == ("GET", "/clients") and client:
            self.note(asked="client", client=client)
            return HTTPStatus.OK, {"client_id": client, **self.set}
        if (request.method, request.path) != ("POST", "/letters"):
            raise Wrong(HTTPStatus.NOT_FOUND, f"there is no {request.path}")
        contact, document = request.body.get("contact"), request.body.get("document")
        if not isinstance(contact, str) or not isinstance(document, str):
            raise Wrong(HTTPStatus.BAD_REQUEST, "contact and document are needed")
        self.note(asked="letter", contact=contact)
        return HTTPStatus.OK, {"body": f"Dear {contact}, here is your renewal proposal ({document})."}


class Documents(System):
    """Files proposals and mails them.

    ``count()``: documents, the quarters they are for, how many of those have several, and mails that went out.
    """

    _FIELDS: ClassVar[dict[str, tuple[str, ...]]] = {
        "filed": ("client_id", "quarter", "title", "text"), "mailed": ("document", "to", "body")
    }  # fmt: skip

    def __init__(self, journal: str | Path | None = None, *, ignore_keys: bool = False) -> None:
        self.filed: list[dict[str, Any]] = []
        self.mailed: list[dict[str, Any]] = []
        self._ignore_keys = ignore_keys
        super().__init__(journal)

    def note(self, *, again: bool = False, **entry: Any) -> None:
        super().note(again=again, **entry)
        for what, kept in (("filed", self.filed), ("mailed", self.mailed)):
            if what in entry:
                kept.append(entry[what])

    def count(self) -> dict[str, Any]:
        each = Counter((d["client_id"], d["quarter"]) for d in self.filed)
        twice = sum(1 for n in each.values() if n > 1)
        return {
            **super().count(), "documents": len(self.filed), "quarters": len(each), "twice": twice, "mails": len(self.mailed)
        }  # fmt: skip

    def answer(self, request: Request) -> Answer:
        start, _, client = request.path.rpartition("/")
        if (request.method, start) == ("GET", "/contracts") and client:
            self.note(asked="contract", client=client)
            return HTTPStatus.OK, {"client_id": client, **CONTRACT}
        if request.path not in {"/documents", "/sent"}:
            raise Wrong(HTTPStatus.NOT_FOUND, f"there is no {request.path}")
        if request.method == "POST":
            return self._keep("filed" if request.path == "/documents" else "mailed", request.body, request.key)
        if request.path == "/sent":
            document = request.query.get("document")
            self.note(asked="look", document=document)
            return HTTPStatus.OK, [m for m in self.mailed if document in {None, m["document"]}]
        client, quarter = request.query.get("client"), request.query.get("quarter")
        self.note(asked="look", client=client, quarter=quarter)
        return HTTPStatus.OK, [d for d in self.filed if client in {None, d["client_id"]} and quarter in {None, d["quarter"]}]

    def _keep(self, what: str, body: dict[str, Any], key: str | None) -> Answer:
        """File a document (``filed``) or send one (``mailed``)."""
        kept = self.filed if what == "filed" else self.mailed
        fields = {name: body.get(name) for name in self._FIELDS[what]}
        if not key or not all(isinstance(value, str) and value for value in fields.values()):
            needs = ", ".join(self._FIELDS[what])
            raise Wrong(HTTPStatus.BAD_REQUEST, f"{needs} and the header Idempotency-Key are needed")
        asked = {"filed": "file", "mailed": "send"}[what]
        before = next((row for row in kept if row["key"] == key), None)
        if before is not None and not self._ignore_keys:
            self.note(asked=asked, key=key)
            if any(before[name] != value for name, value in fields.items()):
                return HTTPStatus.UNPROCESSABLE_ENTITY, {"message": "this key was used for something else"}
            return HTTPStatus.OK, before
        made = {"id": f"{'D' if what == 'filed' else 'M'}{len(kept) + 1:03d}", "key": key, **fields}
        self.note(asked=asked, **{what: made})
        return HTTPStatus.CREATED, made


class Server:
    """One system served over HTTP; as a context manager it serves while inside. *port*: 0 = a free one."""

    def __init__(self, system: System, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.system = system
        self._server = _Server((host, port), system)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """``http://HOST:PORT``, without a slash at the end."""
        return self._server.url

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving and let go of what is held back."""
        self._server.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(CalmServer):
    def __init__(self, address: tuple[str, int], system: System) -> None:
        super().__init__(address, _Handler)
        self.system = system


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0  # seconds without a byte
    disable_nagle_algorithm = True  # headers and body are two packets; the second must not wait for an acknowledgement

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        try:
            status, body = self._answer(method)
        except Wrong as error:
            status, body = error.status, {"message": str(error)}
        if status is not None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _answer(self, method: str) -> tuple[HTTPStatus | None, Any]:
        system, url = self.server.system, urlsplit(self.path)
        body = self._body() if method == "POST" else {}
        request = Request(
            method=method, path=unquote(url.path), body=body, key=self.headers.get("Idempotency-Key"),
            query={name: values[0] for name, values in parse_qs(url.query).items()},
        )  # fmt: skip
        with system.lock:
            if (method, url.path) == ("GET", "/count"):
                return HTTPStatus.OK, system.count()
            if (method, url.path) == ("POST", "/set"):
                return HTTPStatus.OK, system.change(body)
            if (method, url.path) == ("POST", "/fault"):
                return HTTPStatus.OK, system.break_(body)
            mode, seconds = system.trouble(method)
            if mode == "hold":
                system.note(asked="held")
                answer: tuple[HTTPStatus | None, Any] = (None, None)
            else:
                answer = system.answer(request)
        if mode == "ok":
            return answer
        self.server.stopping.wait(seconds)
        self.close_connection = True
        return None, None

    def _body(self) -> dict[str, Any]:
        try:
            return json_body(self)
        except ValueError as error:
            raise Wrong(HTTPStatus.BAD_REQUEST, str(error)) from error

    def log_message(self, format: str, *args: object) -> None:
        """No line per request: ``GET /count`` tells."""


def main() -> None:
    """Serve until SIGTERM or Ctrl-C. The first line printed is the URL."""
    parser = argparse.ArgumentParser(prog="python -m examples.renewal.outside", description="A system to try the renewal with.")
    parser.add_argument("system", choices=("tickets", "billing", "documents", "crm"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (the default): a free one")
    parser.add_argument("--journal", metavar="FILE", help="a line per request; what is filed is kept over a restart")
    parser.add_argument("--ignore-keys", action="store_true", help="documents: the same key again files a second one")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when stdin ends: whoever started this is gone")
    args = parser.parse_args()
    try:
        system = {
            "tickets": Tickets, "billing": BillingApi, "crm": Crm,
            "documents": lambda journal: Documents(journal, ignore_keys=args.ignore_keys),
        }[args.system](args.journal)  # fmt: skip
        server = Server(system, host=args.host, port=args.port)
    except OSError as error:
        parser.error(f"cannot serve at {args.host}:{args.port}: {error}")
    stop = told_to_stop(with_stdin=args.stop_with_stdin)
    with server:
        print(server.url, flush=True)
        stop.wait()


if __name__ == "__main__":
    main()
