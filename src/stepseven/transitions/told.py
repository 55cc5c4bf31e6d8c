"""Who was told of what waits, in words: for ``why``, the inbox and the doctor. Changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime

from stepseven.store.base import Row, Tx


def of_question(tx: Tx, question_id: str) -> str | None:
    """A sentence about who was told of an open question, or will be; ``None``: there is nobody who could be."""
    row = tx.one(tx.sql.ladder, {"id": question_id})
    if row is None or row["status"] != "open":
        return None
    if row["person_id"] is None:
        known = tx.all(tx.sql.persons, {})
        return f"Nobody is told: no person is there for {row['client_id']}." if known else None
    person = tx.one(tx.sql.person, {"id": row["person_id"]})
    name = person["name"] if person is not None else row["person_id"]
    told = [
        d
        for d in tx.all(tx.sql.deliveries_of_question, {"question_id": question_id})
        if (d["rung"], d["person_id"]) == (row["rung"], row["person_id"])
    ]
    return _said(name, told)


def _said(name: str, told: list[Row]) -> str:
    out = [d for d in told if d["state"] == "delivered"]
    if out:
        times = "" if len(out) == 1 else f", {len(out)} times,"
        return f"{name} was told{times} at {_time(out[-1]['delivered_us'])}."
    last = told[-1] if told else None
    if last is not None and last["state"] == "pending" and last["reason"] is None:
        return f"{name} is told at {_time(last['next_us'])}."
    if last is not None and last["state"] == "pending":
        return f"{name} could not be told yet: {last['reason']}."
    return f"{name} could not be told" + (f": {last['reason']}." if last is not None and last["reason"] else ".")


def summary(found: Row) -> str:
    """How many messages went nowhere, and why, as one line. *found*: the row of ``untold``."""
    parts = []
    if found["nowhere"]:
        why = "" if found["persons"] else ": there are no persons (`stepseven person add`)"
        n = found["nowhere"]
        parts.append(f"{n:,} open {'question was' if n == 1 else 'questions were'} delivered nowhere{why}")
    if found["failing"]:
        parts.append(f"{_messages(found['failing'])} could not go out yet ({found['reason']})")
    if found["dead"]:
        parts.append(f"{_messages(found['dead'])} given up after a day of trying")
    if found["due"]:
        parts.append(f"{_messages(found['due'])} on the way")
    return "; ".join(parts) or "nothing is undelivered"


def _messages(n: int) -> str:
    return f"{n:,} {'message' if n == 1 else 'messages'}"


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
