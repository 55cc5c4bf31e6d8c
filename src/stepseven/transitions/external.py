"""Runs that somebody outside executes: admitted, resumed by another executor, ended when what was announced is done.

Nobody here owns such a run; its owner is ``OUTSIDE``, whoever reports. Which execution may report is told by the fence: a
resume raises it, and what began before is superseded. Each function is one transaction's worth of work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stepseven._dataclass import dataclass
from stepseven.decide.escalate import Done, Situation
from stepseven.errors import RunConflict, Superseded
from stepseven.model import FailureKind, RunStatus, WaitingFor
from stepseven.store.base import Row, Tx
from stepseven.store.codec import free_text
from stepseven.transitions import questions, runs
from stepseven.transitions.runs import Admission, Ending
from stepseven.transitions.state import Hold, steps_range
from stepseven.transitions.tokens import Secret

EXECUTOR_US = 30 * 86_400_000_000  #: how long the token of an executor holds
OUTSIDE = "outside"  #: the owner of every run that is executed outside
_STOPPING = (RunStatus.CANCELLING.value, RunStatus.FAILING.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A run whose row this transaction holds, and the right to write it."""

    run: Row
    hold: Hold


def admit(tx: Tx, a: Admission, steps: Sequence[str], now_us: int) -> tuple[Row, bool]:
    """Make sure the run exists. *steps*: the names of what will be reported, in order, if that is known.

    Returns:
        The run; whether it is new.

    Raises:
        RunConflict: the id belongs to a run with another client, workflow, inputs or steps, or to one that workers execute.
    """
    before = tx.one(tx.sql.run_by_id, {"id": a.run_id})
    run = runs.admit(tx, a, now_us)
    if before is not None and not run["external"]:
        raise RunConflict(a.run_id, "a workflow that workers execute")
    names = list(dict.fromkeys(steps))
    if before is not None and names and names != _announced(run) and run["pruned_us"] is None:
        raise RunConflict(a.run_id, "other steps")
    if before is None:
        tx.run(
            tx.sql.begin_external,
            {"run_no": run["no"], "owner": OUTSIDE, "remaining": json.dumps(names, ensure_ascii=False) if names else None,
             "next_step": names[0] if names else None, "now": now_us},
        )  # fmt: skip
    return runs.known(tx, a.run_id), before is None


def hold(tx: Tx, run: Row, now_us: int) -> Held:
    """Hold the run's row: of two reports one comes after the other.

    Raises:
        Superseded: it has ended, or was resumed by somebody else, since *run* was read.
    """
    right = Hold(
        run_no=run["no"], run_id=run["id"], client_id=run["client_id"], root_id=run["id"], owner=OUTSIDE, fence=run["fence"]
    )
    if tx.run(tx.sql.hold_external, {**right.keys(), "now": now_us}) != 1:
        now = tx.one(tx.sql.run_by_no, {"no": run["no"]})
        raise Superseded(run["id"], _gone(now))
    fresh = tx.one(tx.sql.run_by_no, {"no": run["no"]})
    assert fresh is not None  # its row is held  # noqa: S101
    return Held(run=fresh, hold=right)


def _gone(run: Row | None) -> str:
    if run is not None and run["ended_us"] is not None:
        return f"it is {run['status']}"
    return "it was resumed, and another executor goes on with it"


def resume(tx: Tx, run: Row, reason: str, now_us: int) -> Row:
    """Let another executor go on: what began before may report no more. Claims in doubt stay in doubt until their time is up.

    Returns:
        The run as it is now; unchanged if it has ended or is ending.
    """
    raised = tx.one(
        tx.sql.resume_external, {"run_no": run["no"], "fence": run["fence"], "owner": OUTSIDE, "reason": reason, "now": now_us}
    )
    if raised is not None:
        tx.run(tx.sql.interrupt_attempts, {"run_no": run["no"], "now": now_us})
        tx.run(tx.sql.close_tickets, {"run_no": run["no"], "now": now_us})
    return runs.known(tx, run["id"])


def executor(tx: Tx, run: Row, secret: Secret, *, parent_id: str | None, name: str, now_us: int) -> None:
    """From now on a run is reported by whoever has this token, or asked for it (*parent_id*); by nobody else."""
    tx.run(
        tx.sql.insert_executor,
        {"id": secret.id, "hash": secret.hash, "name": name, "scopes": json.dumps(["read", "report"]),
         "clients": json.dumps([run["client_id"]], ensure_ascii=False), "run_no": run["no"], "parent_id": parent_id,
         "expires_us": now_us + EXECUTOR_US, "now": now_us},
    )  # fmt: skip
    tx.run(tx.sql.note_executor, {"run_no": run["no"], "fence": run["fence"], "token_id": secret.id})


def may_report(tx: Tx, run: Row, token_id: str | None) -> bool:
    """Whether a token's owner may report about a run: since it was resumed only whoever goes on with it."""
    row = tx.one(tx.sql.executor_of, {"run_no": run["no"]})
    return row is None or (token_id is not None and token_id in (row["id"], row["parent_id"]))


def turn(tx: Tx, held: Held, now_us: int) -> Row:
    """Bring the run's own row up to date with what stands in the others: who is waited for, what is next, whether it is done.

    To be called last in every transaction that reported something.
    """
    run_no = held.hold.run_no
    run = tx.one(tx.sql.run_by_no, {"no": run_no})
    assert run is not None  # its row is held  # noqa: S101
    if run["ended_us"] is not None:
        return run
    if run["status"] in _STOPPING:
        return _ended_if_settled(tx, held, run, now_us)
    names = _announced(run)
    done = {row["name"] for row in tx.all(tx.sql.done_names, steps_range(run_no))} if names else set()
    left = [name for name in names if name not in done]
    tickets = tx.all(tx.sql.open_tickets, {"run_no": run_no})
    live = [t for t in tickets if t["lease_until_us"] > now_us]
    claims = tx.one(tx.sql.unsettled, {"run_no": run_no})
    settled = claims is None or claims["n"] == 0
    if names and not left and not tickets and settled and not run["open_questions"]:
        runs.end(tx, held.hold, Ending(status=RunStatus.DONE, value=_last_value(tx, run_no), reason="all steps are done"), now_us)
        return runs.known(tx, run["id"])
    status, waiting, reason = _standing(run, live, tickets)
    tx.run(
        tx.sql.turn_external,
        {**held.hold.keys(), "status": status, "waiting_for": waiting, "reason": reason, "now": now_us,
         "keeps": OUTSIDE if status == RunStatus.RUNNING.value else None,
         "next_step": left[0] if left else None, "remaining": run["remaining"]},
    )  # fmt: skip
    return runs.known(tx, run["id"])


def _standing(run: Row, live: list[Row], tickets: list[Row]) -> tuple[str, str | None, str | None]:
    """Status, what it waits for, and why, of a run that goes on."""
    if live:
        return RunStatus.RUNNING.value, None, None
    if run["open_questions"]:
        return RunStatus.WAITING.value, WaitingFor.PERSON.value, "an answer is awaited; then its executor begins the step again"
    if tickets:
        name = tickets[-1]["name"]
        why = f"{name} was begun, and its executor has not said how it ended: resume the run, or let it begin {name} again"
        return RunStatus.WAITING.value, WaitingFor.EVENT.value, why
    return RunStatus.RUNNING.value, None, None


def _announced(run: Row) -> list[str]:
    """The names of the steps that were announced when the run was made."""
    return [str(name) for name in json.loads(run["remaining"] or "[]")]


def _last_value(tx: Tx, run_no: int) -> str | None:
    """What the newest record holds: the run's value, where nobody says another."""
    row = tx.one(tx.sql.newest_id, steps_range(run_no))
    if row is None or row["id"] is None:
        return None
    records = tx.all(tx.sql.steps, {"low": row["id"], "high": row["id"]})
    return records[0]["result"] if records else None


def finish(tx: Tx, held: Held, ending: Ending, now_us: int) -> Row:
    """End the run; while a claim is in doubt it is only *about* to end, and ends with that."""
    claims = tx.one(tx.sql.unsettled, {"run_no": held.hold.run_no})
    if claims is not None and claims["n"] and ending.status is not RunStatus.DONE:
        runs.ending(tx, held.hold, (ending.status, ending.reason or ending.status.value, ending.failure or "null"), now_us)
    else:
        tx.run(tx.sql.interrupt_attempts, {"run_no": held.hold.run_no, "now": now_us})
        tx.run(tx.sql.close_tickets, {"run_no": held.hold.run_no, "now": now_us})
        runs.end(tx, held.hold, ending, now_us)
    return runs.known(tx, held.hold.run_id)


def failed(step: str | None, reason: str) -> Ending:
    """A run that failed for good."""
    reason = free_text(reason, 1000)
    failure = json.dumps({"step": step, "kind": FailureKind.FATAL.value, "reason": reason}, ensure_ascii=False)
    return Ending(status=RunStatus.FAILED, failure=failure, reason=f"{step}: {reason}" if step else reason)


def _ended_if_settled(tx: Tx, held: Held, run: Row, now_us: int) -> Row:
    claims = tx.one(tx.sql.unsettled, {"run_no": run["no"]})
    if claims is None or claims["n"] == 0:
        bad = run["status"] == RunStatus.FAILING.value
        status = RunStatus.FAILED if bad else RunStatus.CANCELLED
        finish(tx, held, Ending(status=status, failure=run["failure"] if bad else None, reason=run["reason"]), now_us)
    return runs.known(tx, run["id"])


def sweep(tx: Tx, now_us: int, *, most: int = 200) -> int:
    """Say of runs whose executors fell silent that they wait, so that somebody sees it; close questions whose time is over.

    Returns:
        How many were looked at; as many as *most*: there may be more.
    """
    for row in tx.all(tx.sql.overdue_outside, {"now": now_us, "limit": most}):
        held = hold(tx, runs.known(tx, row["run_id"]), now_us)
        questions.expire(tx, held.hold, row["id"], now_us)
        turn(tx, held, now_us)
    late = {row["run_id"] for row in tx.all(tx.sql.late_tickets, {"now": now_us, "limit": most})}
    for run_id in sorted(late):
        run = runs.known(tx, run_id)
        if run["ended_us"] is None:
            turn(tx, hold(tx, run, now_us), now_us)
    return len(late)


# -- for people -----------------------------------------------------------------------------------------------------------


def situation(tx: Tx, run: Row, current: str | None = None) -> Situation:
    """The run as it stands, from its rows. *current*: the step that is being asked about; it is not "next"."""
    rows = tx.all(tx.sql.done_names, steps_range(run["no"]))
    done = tuple(Done(step=r["name"], summary=r["summary"], count=r["n"]) for r in rows if not r["name"].startswith("run."))
    names = {d.step for d in done}
    coming = tuple(name for name in _announced(run) if name not in names and name != current)
    spend = spent(tx, run["no"])
    inputs: Any = json.loads(run["inputs"])
    return Situation(
        client=run["client_id"], workflow=run["workflow"], goal=run["goal"],
        inputs=inputs if isinstance(inputs, dict) else {"inputs": inputs}, done=done, next_steps=coming,
        spent_usd=spend["uusd"] / 1e6, limit_usd=None, tokens=spend["tokens"],
    )  # fmt: skip


def spent(tx: Tx, run_no: int) -> Row:
    """What the run has cost: ``uusd`` in micro-USD, ``tokens``."""
    row = tx.one(tx.sql.spend, {"run_no": run_no, **steps_range(run_no)})
    assert row is not None  # an aggregate  # noqa: S101
    return row
