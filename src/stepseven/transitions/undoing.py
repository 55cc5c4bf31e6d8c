"""A person decided that what a run did is taken back: a run of its own is admitted, in the transaction of the answer."""

from __future__ import annotations

import itertools
import json

from stepseven.store.base import Row, Tx
from stepseven.store.codec import canonical
from stepseven.transitions.answering import BADLY, covered
from stepseven.transitions.offering import UNDO
from stepseven.transitions.runs import Admission, admit
from stepseven.transitions.state import choice_of


def decided(tx: Tx, question: Row, stored: str, now_us: int) -> str | None:
    """Do what a person chose. *stored*: the answer, as JSON. Taken back is what the question told of, and nothing else.

    Returns:
        The id of the run that takes it back: ``{run}-undo``, with a number where that is taken; ``None``: left as it is.
    """
    if choice_of(json.loads(stored)) != "undo":
        return None
    run_id = question["run_id"]
    names = itertools.chain([f"{run_id}-undo"], (f"{run_id}-undo-{n}" for n in itertools.count(2)))
    free = next(name for name in names if tx.one(tx.sql.run_by_id, {"id": name}) is None)
    run = admit(
        tx,
        Admission(
            run_id=free, client_id=question["client_id"], workflow=UNDO, source_digest=None, goal=f"take back what {run_id} did",
            inputs=canonical({"run_id": run_id}),
        ),
        now_us,
    )  # fmt: skip
    tx.run(tx.sql.inherit_epoch, {"run_no": run["no"], "of_no": question["run_no"]})
    for told in json.loads(question["context"])["stands"]:
        tx.run(tx.sql.decide_undo, {"undo_no": run["no"], "claim_id": told["claim"]})
    return free


def to_undo(tx: Tx, undo_no: int) -> list[Row]:
    """What a run is to take back, newest first. The same however often it is asked: the answer wrote it down."""
    return list(reversed(tx.all(tx.sql.to_undo, {"undo_no": undo_no})))


def taken_back(tx: Tx, run: Row) -> tuple[Row | None, int]:
    """The newest run that takes back what an ended run did (its no, id and status), and how many things were taken back."""
    undo: Row | None = None
    n = 0
    for each in covered(tx, run) if run["status"] in BADLY else [run]:
        found = tx.one(tx.sql.undo_run, {"run_no": each["no"]})
        if found is not None:
            undo = found if undo is None or found["no"] > undo["no"] else undo
            n += sum(e["undone_us"] is not None for e in tx.all(tx.sql.effects, {"run_no": each["no"]}))
    return undo, n
