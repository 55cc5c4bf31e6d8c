"""``why``: one sentence about a run: what it waits for, who may move it, what happens next."""

from __future__ import annotations

import json
from collections.abc import Container
from datetime import UTC, datetime

from stepseven.model import RunStatus
from stepseven.store.base import Row, Tx
from stepseven.transitions.runs import is_dead, known


def why(tx: Tx, run_id: str, now_us: int, dead: Container[str], foreign: str | None) -> str:
    """The sentence. *foreign*: file and line of an await stepseven does not know, in this process.

    Raises:
        UnknownRun: there is none with this id.
    """
    run = known(tx, run_id)
    asked = [
        q for q in tx.all(tx.sql.questions_of_run, {"run_no": run["no"]}) if q["status"] == "open" and q["folded_into"] is None
    ]
    status = RunStatus(run["status"])
    if status.ended:
        return _ended(run, status)
    if run["owner"] is not None and not is_dead(tx, run["owner"], now_us, dead):
        at = f", now in an await stepseven does not know ({foreign})" if foreign else ""
        also = f", and {_asks(asked)}" if asked else ""
        return f"Run {run_id} is {status.value}: worker {run['owner']} executes it{at}{also}."
    if run["owner"] is not None:
        return f"Run {run_id} was broken off when its worker died: `stepseven resume {run_id}` goes on at once."
    if asked:
        return f"Run {run_id} {_asks(asked)}; when that is answered it goes on{_next(run)}."
    if status is RunStatus.QUEUED:
        reason = f" ({run['reason']})" if run["reason"] else ""
        return f"Run {run_id} is ready{reason}: `stepseven resume {run_id}` goes on{_next(run)}."
    if run["wake_us"] is not None:
        return (
            f"Run {run_id} waits until {_time(run['wake_us'])} ({run['reason']}); then `stepseven resume {run_id}` "
            f"goes on{_next(run)}."
        )
    return (
        f"Run {run_id} is {status.value}: {run['reason'] or 'nothing is known about why'}; `stepseven resume {run_id}` goes on."
    )


def _ended(run: Row, status: RunStatus) -> str:
    at = _time(run["ended_us"])
    if status is RunStatus.DONE:
        return f"Run {run['id']} is done since {at}; nothing more happens."
    failure = json.loads(run["failure"])["reason"] if run["failure"] else run["reason"] or "no reason was kept"
    verb = "was cancelled" if status is RunStatus.CANCELLED else "failed"
    return f"Run {run['id']} {verb} at {at}: {failure}."


def _asks(asked: list[Row]) -> str:
    first = asked[0]
    text = first["text"].split("\n", 1)[0].rstrip(".")
    who = first["asked_of"] or "a person"
    more = f" (and {len(asked) - 1} more)" if len(asked) > 1 else ""
    return f"waits for {who} to answer {first['id']}: “{text}”{more}"


def _next(run: Row) -> str:
    return f" with {run['next_step']}" if run["next_step"] else ""


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
