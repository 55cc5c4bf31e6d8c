"""Answers that are brought to whoever asked over HTTP, for hours if need be.

A question with a ``callback`` that is no longer open is itself what has to be brought: nothing more has to be written when it is
answered, so that nothing can be forgotten. Its tries are a row in ``delivery``.
"""

from __future__ import annotations

from stepseven._dataclass import dataclass
from stepseven.store.base import Row, Tx
from stepseven.store.codec import free_text

FIRST_US = 10_000_000  #: after the first failed try; then twice as long each time
LONGEST_US = 3_600_000_000
GIVEN_UP_US = 24 * 3_600_000_000  #: for so long it is tried
TRY_US = 60_000_000  #: a try that has no end by then has died with its server
CALLBACK = "callback"  #: ``delivery.purpose``


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One answer to be brought: where, what, and which try it is."""

    id: str
    url: str
    question: Row
    tries: int
    since_us: int


def take(tx: Tx, now_us: int, *, most: int = 20) -> list[Errand]:
    """What is due, now in our hands: nobody else brings it meanwhile."""
    taken = []
    for due in tx.all(tx.sql.due_callbacks, {"now": now_us, "limit": most}):
        id_ = f"cb_{due['id']}"
        row = {"id": id_, "question_id": due["id"], "run_no": due["run_no"], "channel": free_text(due["callback"], 300)}
        tx.run(tx.sql.insert_callback, {**row, "now": now_us})
        if tx.run(tx.sql.claim_callback, {"id": id_, "until_us": now_us + TRY_US, "now": now_us}) != 1:
            continue
        question = tx.one(tx.sql.question, {"id": due["id"]})
        if question is not None:
            taken.append(Errand(id=id_, url=due["callback"], question=question, tries=(due["tries"] or 0) + 1,
                                since_us=due["created_us"] or now_us))  # fmt: skip
    return taken


def brought(tx: Tx, errand: Errand, now_us: int) -> None:
    """It is there."""
    tx.run(tx.sql.end_callback, {"id": errand.id, "state": "delivered", "reason": None, "delivered_us": now_us})
    tx.run(tx.sql.drop_callback, {"id": errand.question["id"]})


def failed(tx: Tx, errand: Errand, why: str, now_us: int, *, final: bool = False) -> None:
    """It did not get there: later, or never."""
    reason = free_text(why, 300)
    if final or now_us - errand.since_us > GIVEN_UP_US:
        tx.run(tx.sql.end_callback, {"id": errand.id, "state": "dead", "reason": reason, "delivered_us": None})
        tx.run(tx.sql.drop_callback, {"id": errand.question["id"]})
        return
    pause_us = min(LONGEST_US, FIRST_US * 2 ** min(errand.tries - 1, 20))
    tx.run(tx.sql.put_off_callback, {"id": errand.id, "until_us": now_us + pause_us, "reason": reason})
