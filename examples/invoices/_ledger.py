"""The books of the accounting API: postings in an append-only file, and the fault that is set at the moment."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from decimal import Decimal, InvalidOperation
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from io import BufferedRandom

_FIELDS = ("supplier", "number", "kind", "amount", "currency")
_KINDS = ("invoice", "credit_note")
_MODES = ("drop_reply", "accept_later", "rate_limit", "forbid", "down", "error")
_SECONDS = {"drop_reply": 60.0, "accept_later": 2.0, "rate_limit": 1.0}


class Invalid(Exception):
    """The request is not one: 400."""


class Taken(Exception):
    """Nothing was posted, because this key was used before; *status* and *body* are the answer."""

    def __init__(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        super().__init__(str(body))
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: *mode* for the next *times* requests (``None``: all), after *after* were let through.

    *seconds*: how long a dropped reply keeps its connection, how much later an accepted posting is made, or what
    ``Retry-After`` says.
    """

    mode: str
    times: int | None = None
    after: int = 0
    seconds: float = 0.0


class Ledger:
    """Thread-safe. With a *path* every change is on the disk before it is confirmed, and is read again at the start."""

    def __init__(self, path: str | Path | None = None) -> None:
        self._lock = threading.RLock()
        self._postings: list[dict[str, Any]] = []
        self._by_key: dict[str, dict[str, Any]] = {}
        self._accepted: dict[str, dict[str, Any]] = {}
        self._timers: list[threading.Timer] = []
        self._fault: Fault | None = None
        self._requests = 0
        self._closed = False
        self._path = Path(path) if path is not None else None
        self._file = None if self._path is None else self._open(self._path)
        for waiting in list(self._accepted.values()):
            self._later(waiting)

    # -- postings -----------------------------------------------------------------------------------------------------

    def post(self, key: str | None, body: dict[str, Any]) -> str:
        """Put *body* into the books.

        Returns:
            The posting's id.

        Raises:
            Invalid: no key, or a field is missing or wrong.
            Taken: the key was used before.
        """
        with self._lock:
            key, posting = self._new(key, body)
            return self._book(key, posting)

    def accept(self, key: str | None, body: dict[str, Any], seconds: float) -> None:
        """Promise to post it in *seconds*, also over a restart. Raises as :meth:`post` does."""
        with self._lock:
            key, posting = self._new(key, body)
            waiting = {"accepted": key, "due": time.time() + seconds, "posting": posting}
            self._append(waiting)
            self._accepted[key] = waiting
            self._later(waiting)

    def find(self, supplier: str | None, number: str | None) -> list[dict[str, Any]]:
        """The postings of a supplier and number; ``None`` = any."""
        with self._lock:
            return [p for p in self._postings if supplier in {None, p["supplier"]} and number in {None, p["number"]}]

    def count(self) -> dict[str, int]:
        """``postings``, ``documents`` (supplier and number), ``twice`` (documents with several postings), and ``requests``:
        how many postings were asked for since the start, whatever became of them."""
        with self._lock:
            each = Counter((p["supplier"], p["number"]) for p in self._postings)
            twice = sum(1 for n in each.values() if n > 1)
            return {"postings": len(self._postings), "documents": len(each), "twice": twice, "requests": self._requests}

    def close(self) -> None:
        """Let go of the file. Accepted postings that are not due yet wait for the next start."""
        with self._lock:
            self._closed = True
            for timer in self._timers:
                timer.cancel()
            if self._file is not None:
                self._file.close()

    # -- faults -------------------------------------------------------------------------------------------------------

    def set_fault(self, body: dict[str, Any]) -> dict[str, Any]:
        """Make what comes go wrong; ``{"mode": "ok"}`` ends it. Returns what is set now. Raises ``Invalid``."""
        mode = body.get("mode")
        if mode != "ok" and mode not in _MODES:
            raise Invalid(f"mode must be one of {', '.join(('ok', *_MODES))}")
        times, after, seconds = body.get("times"), body.get("after", 0), body.get("seconds", _SECONDS.get(str(mode), 0.0))
        if not (times is None or _is_count(times)) or not _is_count(after):
            raise Invalid("times and after must be whole numbers from 0")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
            raise Invalid("seconds must be a number from 0")
        fault = None if mode == "ok" else Fault(str(mode), times, after, float(seconds))
        with self._lock:
            self._fault = fault
        return {"mode": "ok"} if fault is None else asdict(fault)

    def next_fault(self, *, posting: bool) -> Fault | None:
        """What happens to the request that just came in. Only ``down`` concerns a look-up (*posting* false) too."""
        with self._lock:
            self._requests += posting
            fault = self._fault
            if fault is None or fault.times == 0 or not (posting or fault.mode == "down"):
                return None
            if fault.after > 0:
                self._fault = replace(fault, after=fault.after - 1)
                return None
            if fault.times is not None:
                self._fault = replace(fault, times=fault.times - 1)
            return fault

    # -- inside -------------------------------------------------------------------------------------------------------

    def _new(self, key: str | None, body: dict[str, Any]) -> tuple[str, dict[str, str]]:
        if not key:
            raise Invalid("the header Idempotency-Key is missing")
        posting = _posting(body)
        booked, accepted = self._by_key.get(key), self._accepted.get(key)
        before = booked or (accepted and accepted["posting"])
        if not before:
            return key, posting
        if any(before[field] != posting[field] for field in _FIELDS):
            raise Taken(HTTPStatus.UNPROCESSABLE_ENTITY, {"message": "this key was used for another posting"})
        if booked is None:
            raise Taken(HTTPStatus.ACCEPTED, {"message": "accepted before, will be posted later"})
        raise Taken(HTTPStatus.CONFLICT, {"message": "posted before", "id": booked["id"]})

    def _book(self, key: str, posting: dict[str, str]) -> str:
        booked = {"id": f"P{len(self._postings) + 1:05d}", "key": key, **posting}
        self._append(booked)
        self._remember(booked)
        return str(booked["id"])

    def _remember(self, line: dict[str, Any]) -> None:
        if "accepted" in line:
            self._accepted[line["accepted"]] = line
            return
        self._postings.append(line)
        self._by_key[line["key"]] = line
        self._accepted.pop(line["key"], None)

    def _later(self, waiting: dict[str, Any]) -> None:
        timer = threading.Timer(max(0.0, waiting["due"] - time.time()), self._due, [waiting])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _due(self, waiting: dict[str, Any]) -> None:
        with self._lock:
            if not self._closed and waiting["accepted"] in self._accepted:
                self._book(waiting["accepted"], waiting["posting"])

    def _append(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _open(self, path: Path) -> BufferedRandom:
        """Read what is there; a last line without its end was never confirmed to anyone and is cut off."""
        file = path.open("a+b")
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].splitlines():
            self._remember(json.loads(line))
        file.truncate(whole)
        return file


def _posting(body: dict[str, Any]) -> dict[str, str]:
    """The fields of a posting as text, the amount in one spelling."""
    fields = {name: str(body[name]) for name in _FIELDS if isinstance(body.get(name), str | int | float)}
    missing = [name for name in _FIELDS if not fields.get(name)]
    if missing:
        raise Invalid(f"{', '.join(missing)} must be given, as text or a number")
    if fields["kind"] not in _KINDS:
        raise Invalid(f"kind must be one of {', '.join(_KINDS)}")
    try:
        amount = Decimal(fields["amount"])
        cents = amount.quantize(Decimal("0.01"))
    except InvalidOperation as error:
        raise Invalid("amount must be a number of at most 26 digits, or a text with one") from error
    if not amount.is_finite():
        raise Invalid("amount must be finite")
    return {**fields, "amount": str(cents if cents == amount else amount.normalize())}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
