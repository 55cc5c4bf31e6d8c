"""An open question goes from person to person: what ``decide/ladder.py`` says is written down, each move one transaction.

A message is a row of ``delivery``, in the transaction of what it tells of: no question without its message, whoever dies when.
"""

from __future__ import annotations

import hashlib

from stepseven.decide import ladder
from stepseven.decide.hours import next_open
from stepseven.decide.ladder import Move, Person, Purpose, Standing, Told
from stepseven.store.base import Row, Tx
from stepseven.transitions import persons

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def begin(tx: Tx, question_id: str, now_us: int) -> None:
    """A question was asked: the first person is told, in the same transaction. Nothing, where there are no persons."""
    people = persons.everybody(tx)
    if people:
        _climb(tx, question_id, people, now_us)


def climb(tx: Tx, question_id: str, now_us: int) -> Move:
    """Do the next thing about an open question, if it is due. What is done already is not done again.

    Returns:
        What was done; of a question that is no longer open nothing.
    """
    return _climb(tx, question_id, persons.everybody(tx), now_us)


def _climb(tx: Tx, question_id: str, people: list[Person], now_us: int) -> Move:
    row = tx.one(tx.sql.ladder, {"id": question_id})
    if row is None or row["status"] != "open":
        return Move()
    if row["folded_into"] is not None:
        people = []
    told = tx.all(tx.sql.deliveries_of_question, {"question_id": question_id})
    move = ladder.climb(_standing(row, told), people, now_us)
    rung = row["rung"] + (move.purpose is Purpose.HAND_OVER)
    has_it = row["person_id"] if any(person.id == row["person_id"] for person in people) else None  # who is gone has nothing
    person_id = move.person.id if move.person is not None else has_it
    moved = tx.run(
        tx.sql.climb_ladder,
        {"id": question_id, "next_us": move.next_us, "rung": rung, "person_id": person_id, "seen_rung": row["rung"]},
    )
    if moved and move.purpose is not None and move.person is not None:
        n = sum(1 for t in told if t["purpose"] == move.purpose and t["rung"] == rung)
        tx.run(tx.sql.insert_delivery, {
            "id": delivery_id(question_id, move.purpose, rung, n), "question_id": question_id, "run_no": row["run_no"],
            "person_id": move.person.id, "purpose": move.purpose.value, "due_us": move.due_us, "rung": rung, "now": now_us,
        })  # fmt: skip
    return move


def _standing(row: Row, told: list[Row]) -> Standing:
    return Standing(
        client_id=row["client_id"], asked_of=row["asked_of"], deadline_us=row["deadline_us"], rung=row["rung"],
        person_id=row["person_id"],
        told=tuple(
            Told(
                person_id=t["person_id"], purpose=t["purpose"], rung=t["rung"], created_us=t["created_us"],
                delivered_us=t["delivered_us"], dead=t["state"] == "dead",
            )
            for t in told
            if t["purpose"] in (Purpose.ASK, Purpose.REMIND, Purpose.HAND_OVER)
        ),
    )  # fmt: skip


def expired(tx: Tx, question_id: str, now_us: int) -> None:
    """Nobody answered by the deadline: whoever had the question is told, once, that it is over."""
    row = tx.one(tx.sql.ladder, {"id": question_id})
    person = tx.one(tx.sql.person, {"id": row["person_id"]}) if row is not None and row["person_id"] is not None else None
    if row is None or person is None or person["removed_us"] is not None:
        return
    _tell(tx, {"run_no": row["run_no"], "id": question_id, "rung": row["rung"]}, Purpose.EXPIRED, person, now_us)


def failed(tx: Tx, run_no: int, now_us: int) -> None:
    """A run failed for good: who is asked first for its client is told. Not of what another run has started: that one tells."""
    people = persons.everybody(tx)
    run = tx.one(tx.sql.run_by_no, {"no": run_no}) if people else None
    if run is None or run["parent_no"] is not None:
        return
    standing = Standing(client_id=run["client_id"], asked_of=None, deadline_us=None, rung=0, person_id=None)
    move = ladder.climb(standing, people, now_us)
    person = None if move.person is None else tx.one(tx.sql.person, {"id": move.person.id})
    if person is not None:
        _tell(tx, {"run_no": run_no}, Purpose.FAILED, person, now_us)


def _tell(tx: Tx, about: Row, purpose: Purpose, person: Row, now_us: int) -> None:
    """*about*: ``run_no``, and of a question ``id`` and ``rung``."""
    question_id, rung = about.get("id"), about.get("rung", 0)
    tx.run(tx.sql.insert_delivery, {
        "id": delivery_id(question_id or f"run {about['run_no']}", purpose, rung, 0), "question_id": question_id,
        "run_no": about["run_no"], "person_id": person["id"], "purpose": purpose.value, "rung": rung, "now": now_us,
        "due_us": next_open(persons.person_of(person).hours, now_us),
    })  # fmt: skip


def delivery_id(of: str, purpose: str, rung: int, n: int) -> str:
    """The id of a message: always the same for the same message, so that it is never written twice. It is no secret."""
    bits = int.from_bytes(hashlib.blake2b(f"{of}|{purpose}|{rung}|{n}".encode(), digest_size=8).digest(), "big")
    return "d_" + "".join(_ALPHABET[bits >> shift & 31] for shift in range(0, 60, 5))
