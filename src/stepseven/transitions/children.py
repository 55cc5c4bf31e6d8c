"""A run that another one starts: admitted under its parent's hold, watched, and stopped with it."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import replace

from stepseven._dataclass import dataclass
from stepseven.errors import Fatal, RunConflict
from stepseven.model import Question, RunStatus
from stepseven.store.base import Row, Tx
from stepseven.transitions import clients, family, runs
from stepseven.transitions.offering import goes_on
from stepseven.transitions.questions import REFUSED
from stepseven.transitions.runs import Admission
from stepseven.transitions.state import Hold, question_of

DEEPEST = 20  # runs started by runs started by runs …: more is a workflow that starts itself without an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A child as its parent saw it when it began to wait."""

    no: int
    status: str
    fence: int


def admit(tx: Tx, hold: Hold, admission: Admission, siblings: Sequence[str], now_us: int) -> Row:
    """Make sure the child exists. Nothing of it runs before that; its id follows from its parent and the call.

    Args:
        tx: the transaction.
        hold: the parent's.
        admission: the child, without parent and root.
        siblings: ids that the same call had before (in the run this one is a fork of, or before it was started anew): the
            child shares their receipts, so nothing is done twice.
        now_us: the time.

    Raises:
        Superseded: the parent is no longer ours.
        RunConflict: the id belongs to a run that is not this child.
        Fatal: the parents go too deep.
    """
    runs.guard(tx, hold)
    if tx.one(tx.sql.run_by_id, {"id": admission.run_id}) is None:
        deep = _depth(tx, hold.run_no)
        if deep >= DEEPEST:
            raise Fatal(
                f"run.start({admission.workflow}): {deep} runs deep already, each started by the one above it: a workflow that "
                "starts itself needs an end"
            )
    rows = [tx.one(tx.sql.run_by_id, {"id": each}) for each in siblings]
    root = next((row["root_no"] or row["no"] for row in rows if row is not None), None)
    row = runs.admit(tx, replace(admission, parent_no=hold.run_no, root_no=root), now_us)
    if row["parent_no"] != hold.run_no:
        raise RunConflict(admission.run_id, "another parent: it was not started by this run")
    goes_on(tx, row, now_us)
    return row


def rename(tx: Tx, hold: Hold, no: int, workflow: str, now_us: int) -> Row:
    """A child goes on under the name that its workflow has by now: whoever knows that name may take it.

    Args:
        tx: the transaction.
        hold: the parent's.
        no: of the child.
        workflow: the name.
        now_us: the time.

    Returns:
        The child's row as it is then.

    Raises:
        Superseded: the parent is no longer ours.
    """
    runs.guard(tx, hold)
    tx.run(tx.sql.rename_child, {"no": no, "parent_no": hold.run_no, "workflow": workflow, "now": now_us})
    row = tx.one(tx.sql.run_by_no, {"no": no})
    assert row is not None  # a run is never deleted while its parent lives  # noqa: S101
    return row


def _depth(tx: Tx, run_no: int) -> int:
    """How many runs are above and at *run_no*."""
    row, deep = tx.one(tx.sql.run_by_no, {"no": run_no}), 1
    while row is not None and row["parent_no"] is not None and deep < DEEPEST:
        row, deep = tx.one(tx.sql.run_by_no, {"no": row["parent_no"]}), deep + 1
    return deep


def spent(tx: Tx, run_no: int) -> tuple[Row, tuple[int, int]]:
    """A child's row, and what it has cost with everything below it: micro-USD, tokens."""
    row = tx.one(tx.sql.run_by_no, {"no": run_no})
    assert row is not None  # a run is never deleted while its parent lives  # noqa: S101
    return row, family.spend(tx, run_no)


def moved(tx: Tx, seen: Seen, now_us: int, dead: Container[str]) -> bool:
    """Whether a child that was waited for stands otherwise than it was seen, or could go on now."""
    row = tx.one(tx.sql.run_by_no, {"no": seen.no})
    return row is None or (row["status"], row["fence"]) != (seen.status, seen.fence) or stirs(tx, row, now_us, dead)


def stirs(tx: Tx, run: Row, now_us: int, dead: Container[str]) -> bool:
    """Whether a run that has not ended, or one below it, would go on if somebody drove it."""
    if clients.paused(tx, run["client_id"]) is not None:
        return False
    below = family.live_descendants(tx, run["no"])
    return any(_could_go_on(tx, row, now_us, dead) for row in (run, *below))


def _could_go_on(tx: Tx, row: Row, now_us: int, dead: Container[str]) -> bool:
    status = RunStatus(row["status"])
    if status is RunStatus.WAITING:
        return row["wake_us"] is not None and bool(row["wake_us"] <= now_us)
    if status is RunStatus.QUEUED:
        return True
    if row["owner"] is None:  # ending, and nobody finds out about its claims; not while a person is asked about them
        return not status.ended and row["open_questions"] == 0
    return not status.ended and runs.seems_dead(tx, row["owner"], now_us, dead)


def stop(tx: Tx, hold: Hold, reason: str, now_us: int, dead: Container[str]) -> list[Row]:
    """Ask every live child of a run to stop; those below them too.

    Returns:
        Everything below the run that has not ended yet.

    Raises:
        Superseded: the run is no longer ours.
    """
    runs.guard(tx, hold)
    for child in family.live(tx, hold.run_no):
        runs.request_cancel(tx, child["id"], reason, now_us, dead)
    return family.live_descendants(tx, hold.run_no)


def failure_of(row: Row) -> dict[str, str]:
    """Why a child did not end well, as its parent records it: status, kind, reason."""
    told = json.loads(row["failure"]) if row["failure"] else {}
    kind = "fatal" if row["status"] == RunStatus.FAILED and told.get("kind") == "fatal" else "fixable"
    if row["status"] == RunStatus.CANCELLED and told.get("refused"):
        kind = REFUSED
    reason = told.get("reason") or row["reason"] or "no reason was kept"
    if not reason.startswith("run "):  # else it tells of the run below in which it began
        reason = f"run {row['id']} {_verb(row)}: {reason}"
    return {"status": row["status"], "kind": kind, "reason": reason}


def _verb(row: Row) -> str:
    return "was cancelled" if row["status"] == RunStatus.CANCELLED else "failed"


def open_questions(tx: Tx, run_no: int) -> list[Question]:
    """What the runs below a run wait to be told, oldest first."""
    return [question_of(row, row["run_id"]) for row in tx.all(tx.sql.family_questions, {"run_no": run_no})]
