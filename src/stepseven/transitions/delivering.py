"""Messages on their way: who may send one, and what became of the try. Two never send one message at the same time.

A try is on record before it is made, with the moment at which somebody else may try: whoever dies between sending and recording
lets it be sent once more. A message twice is a nuisance, a message never is a loss.
"""

from __future__ import annotations

from stepseven._dataclass import dataclass
from stepseven.decide.hours import next_open
from stepseven.decide.ladder import Purpose
from stepseven.store.base import Row, Tx
from stepseven.transitions import ladders, persons

LEAST_US, MOST_US = 30 * 1_000_000, 3600 * 1_000_000  #: between two tries: doubled each time
GIVE_UP_US = 24 * 3600 * 1_000_000  #: after the first try
LEASE_US = 10 * 60 * 1_000_000  #: how long a try may take: five channels of a minute each, and time to spare
_LATELY_US = {Purpose.REMIND: 6 * 3600 * 1_000_000}  # a reminder of the same day
_EVER_US = 3650 * 24 * 3600 * 1_000_000
_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A message that may be sent now, by whoever holds this.

    Attributes:
        delivery, person: rows.
        question: its row, if it is about one; run: the row of the run.
        others: how many more open questions of its incident it stands for.
    """

    delivery: Row
    person: Row
    question: Row | None
    run: Row
    others: int


def claim(tx: Tx, seen: Row, now_us: int) -> Try | None:
    """Begin a try of a message that was seen due; ``None``: it is not to be sent now, or somebody else does.

    What nobody needs any more is closed with the reason; what another message said already counts as said.
    """
    until_us = now_us + LEASE_US
    mine = {"id": seen["id"], "tries": seen["tries"], "next_us": seen["next_us"], "until_us": until_us}
    if not tx.run(tx.sql.claim_delivery, mine):
        return None
    row = tx.one(tx.sql.delivery, {"id": seen["id"]})
    person = None if row is None else tx.one(tx.sql.person, {"id": row["person_id"]})
    if row is None:
        return None
    question = tx.one(tx.sql.question, {"id": row["question_id"]}) if row["question_id"] is not None else None
    run = tx.one(tx.sql.run_by_no, {"no": row["run_no"]})
    why = _needless(tx, row, person, question, run)
    if why is not None or person is None or run is None:
        _end(tx, row, "dead", reason=f"not needed: {why}", now_us=now_us)
        return None
    opens_us = next_open(persons.person_of(person).hours, now_us)
    if opens_us > now_us:
        _postpone(tx, row, until_us=opens_us, reason=row["reason"], tries=seen["tries"])
        return None
    if question is not None and question["incident_id"] is not None and _said(tx, row, now_us, seen["tries"]):
        return None
    return Try(delivery=row, person=person, question=question, run=run, others=_others(tx, question, person))


def _needless(tx: Tx, row: Row, person: Row | None, question: Row | None, run: Row | None) -> str | None:
    """Why a message need not be sent any more."""
    if person is None or person["removed_us"] is not None:
        return f"{row['person_id']} was removed"
    if run is None or (row["question_id"] is not None and question is None):
        return "what it was about is forgotten"
    if question is None or row["purpose"] == Purpose.EXPIRED:
        return None
    if question["folded_into"] is not None:
        return f"{question['folded_into']} asks it together with others"
    if question["status"] != "open":
        return f"it is {question['status']}"
    standing = tx.one(tx.sql.ladder, {"id": question["id"]})
    if standing is not None and (standing["rung"], standing["person_id"]) != (row["rung"], row["person_id"]):
        return f"{standing['person_id']} is asked now"
    return None


def _said(tx: Tx, row: Row, now_us: int, tries: int) -> bool:
    """Whether another message of its incident says it, or is just about to."""
    lately_us = _LATELY_US.get(row["purpose"], _EVER_US)
    other = tx.one(tx.sql.told_of_incident, {"id": row["id"], "lately_us": lately_us})
    if other is None:
        return False
    if other["state"] == "delivered":
        _end(tx, row, "delivered", reason=f"told with {other['id']}", now_us=now_us)
    else:
        _postpone(tx, row, until_us=max(other["next_us"], now_us) + 1_000_000, reason=row["reason"], tries=tries)
    return True


def _others(tx: Tx, question: Row | None, person: Row) -> int:
    """How many more there are, of the clients that are theirs."""
    if question is None or question["incident_id"] is None:
        return 0
    theirs = persons.person_of(person).clients
    rows = tx.all(tx.sql.open_in_incident, {"incident_id": question["incident_id"]})
    return sum(row["id"] != question["id"] and (theirs is None or row["client_id"] in theirs) for row in rows)


def delivered(tx: Tx, done: Try, channel: str, now_us: int) -> None:
    """It went out. *channel*: the one that took it, as people see it. What was to be said with it, is."""
    _end(tx, done.delivery, "delivered", channel=channel, now_us=now_us)
    _with_it(tx, done, "delivered", f"told with {done.delivery['id']}", now_us)
    _look_again(tx, done, now_us)


def refused(tx: Tx, done: Try, reason: str, now_us: int) -> None:
    """It did not go out: again later, or, after a day of trying, never. *reason*: why, in words and without credentials."""
    row = done.delivery
    pause_us = min(LEAST_US * 2 ** min(row["tries"] - 1, 12), MOST_US)
    due_us = next_open(persons.person_of(done.person).hours, row["created_us"])
    if now_us - due_us < GIVE_UP_US:
        _postpone(tx, row, until_us=now_us + pause_us, reason=reason[:_CHARS], tries=row["tries"])
        return
    _end(tx, row, "dead", reason=reason[:_CHARS], now_us=now_us)
    _with_it(tx, done, "dead", reason[:_CHARS], now_us)
    _look_again(tx, done, now_us)


def _look_again(tx: Tx, done: Try, now_us: int) -> None:
    """What comes next counts from now: who was told just now is reminded later, who cannot be told hands over."""
    if done.question is not None and done.delivery["purpose"] != Purpose.EXPIRED:
        ladders.climb(tx, done.question["id"], now_us)


def _end(tx: Tx, row: Row, state: str, *, now_us: int, reason: str | None = None, channel: str | None = None) -> None:
    tx.run(tx.sql.end_delivery, {
        "id": row["id"], "state": state, "reason": reason, "channel": channel,
        "delivered_us": now_us if state == "delivered" else None,
    })  # fmt: skip


def _with_it(tx: Tx, done: Try, state: str, reason: str, now_us: int) -> None:
    if done.question is not None and done.question["incident_id"] is not None:
        tx.run(tx.sql.end_with_it, {
            "incident_id": done.question["incident_id"], "person_id": done.delivery["person_id"],
            "purpose": done.delivery["purpose"], "state": state, "reason": reason,
            "delivered_us": now_us if state == "delivered" else None,
        })  # fmt: skip


def _postpone(tx: Tx, row: Row, *, until_us: int, reason: str | None, tries: int) -> None:
    tx.run(
        tx.sql.postpone_delivery,
        {"id": row["id"], "until_us": until_us, "reason": reason, "tries": tries, "seen_tries": row["tries"]},
    )
