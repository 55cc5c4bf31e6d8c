"""The shop's support desk: cases, orders, refunds, mails. It keeps its own count; a key it has seen does nothing twice.

* ``GET /cases/ID``, ``/orders/ID``; ``/parcels/ID`` and ``/tracking/ID`` fail always: the carrier is down.
* ``POST /refunds {case, order_id, cents}``, ``POST /mails {case, to, text}`` with ``Idempotency-Key``: 201 with an ``id``.
  The same key again: 200 with the first ``id``, or 422 when the body is another one.
* ``GET /refunds``, ``GET /mails``: what was done, each with its key.
"""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from typing import Any

from ._server import JsonServer, Request

CUSTOMER = "ann@example.com"
CASES = {
    name: {"id": name, "sender": CUSTOMER, "text": f"It never came. Please refund order {order}. Ann"}
    for name, order in (("case-17", "A-7"), ("case-18", "A-8"))
}
ORDERS = {name: {"id": name, "customer": CUSTOMER, "paid_cents": 1999} for name in ("A-7", "A-8")}
_SUBJECT = {"refunds": "order_id", "mails": "case"}


class Desk(JsonServer):
    """``done``: what was done, in order. ``asked``: how often each path was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[dict[str, Any]] = []
        self.asked: Counter[str] = Counter()

    def counts(self, case: str) -> dict[str, int]:
        """How many refunds and mails a case has."""
        with self.lock:
            each = Counter(entry["what"] for entry in self.done if entry["body"]["case"] == case)
        return {what: each[what] for what in _SUBJECT}

    def twice(self) -> int:
        """How many orders were refunded, or cases written to, more than once."""
        with self.lock:
            each = Counter((entry["what"], entry["body"][_SUBJECT[entry["what"]]]) for entry in self.done)
        return sum(times > 1 for times in each.values())

    def forget(self) -> None:
        """Nothing done, nothing asked for."""
        with self.lock:
            self.done.clear()
            self.asked.clear()

    def handle(self, request: Request) -> tuple[int, Any]:
        self.asked[f"{request.method} {request.path}"] += 1
        _, what, *rest = request.path.split("/")
        if request.method == "POST" and what in _SUBJECT:
            return self._do(what, request.headers.get("Idempotency-Key"), request.body)
        if what in _SUBJECT:
            return HTTPStatus.OK, [entry for entry in self.done if entry["what"] == what]
        if what in {"parcels", "tracking"}:
            return HTTPStatus.BAD_GATEWAY, {"message": "the carrier does not answer"}
        found = {"cases": CASES, "orders": ORDERS}.get(what, {}).get(rest[0] if rest else "")
        return (HTTPStatus.NOT_FOUND, {"message": f"there is no {request.path}"}) if found is None else (HTTPStatus.OK, found)

    def _do(self, what: str, key: str | None, body: dict[str, Any]) -> tuple[int, Any]:
        if not key:
            return HTTPStatus.BAD_REQUEST, {"message": "the header Idempotency-Key is missing"}
        before = next((entry for entry in self.done if entry["key"] == key), None)
        if before is None:
            before = {"id": f"{what[0].upper()}-{len(self.done) + 1}", "what": what, "key": key, "body": body}
            self.done.append(before)
            return HTTPStatus.CREATED, {"id": before["id"]}
        if before["body"] != body:
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"message": "this key was used for something else"}
        return HTTPStatus.OK, {"id": before["id"]}
