"""``run.start``: another workflow as a run of its own, whose end is a record of this one.

The process that executes the parent drives the child, too. A child that waits is put away as rows, and then its parent is:
what the child waits for is asked once, by the child. Its end wakes the parent, in the same transaction.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.errors import Refused, StepFailed, TooLarge
from stepseven.model import QuestionKind, RunStatus, WaitingFor
from stepseven.runtime import begun, ceilings
from stepseven.runtime.asking import BODY
from stepseven.runtime.place import place
from stepseven.runtime.procedure import Workflow, WorkflowCall, code_of
from stepseven.runtime.waits import DurableWait, Flight
from stepseven.store.codec import MAX_RESULT, digest, free_text, guard
from stepseven.transitions import children, family, runs
from stepseven.transitions.children import Seen
from stepseven.transitions.family import START
from stepseven.transitions.questions import REFUSED
from stepseven.transitions.runs import Admission
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import Stop
    from stepseven.runtime.place import Place
    from stepseven.store.base import Row, Tx

MAX_ID = 200  # characters of a run's id, as for ``Layer``
_MARK = 10  # characters of the digest that tells two children apart: 60 bits


@dataclass(frozen=True, slots=True)
class Started:
    """A call of ``run.start``: the workflow, its inputs as they are stored, and what names the call."""

    workflow: Workflow[Any, Any]
    inputs: str
    about: str  # digest of both: a record of another one does not answer
    name: str  # of the workflow; where it had another one, and was called by that, that one

    @property
    def base(self) -> str:
        """The key, unless the author gives one."""
        return f"{self.name}={self.about}"

    def under(self, name: str) -> Started:
        """The same call as it was made when the workflow had this name."""
        return replace(self, about=digest(f"{name}\0{self.inputs}"), name=name)


def started(child: Any) -> Started:
    """Check and encode what is to be started, at the call.

    Raises:
        TypeError: it is not a call of a workflow.
        NotRecordable, SecretFound, TooLarge: its inputs cannot be kept.
    """
    if not isinstance(child, WorkflowCall):
        raise TypeError(f"run.start needs a call of a workflow, such as renewal(quarter='Q3'), not {child!r}")
    text = guard(child.workflow.encode(child.given), "inputs", secrets="refuse")
    if len(text) > MAX_RESULT:
        raise TooLarge("inputs", len(text), MAX_RESULT)
    return Started(child.workflow, text, digest(f"{child.workflow.name}\0{text}"), child.workflow.name)


def child_id(parent_id: str, branch: str, key: str, call: Started, generation: int) -> str:
    """The id of the run that a call starts: the same after a crash, another one for another call, input or new start."""
    mark = digest("\0".join((parent_id, branch, key, call.about, str(generation))))[1:]
    tail = f".{call.name}-{''.join(c for c in mark if c.isalnum())[:_MARK].lower()}"
    return parent_id[: MAX_ID - len(tail)] + tail


async def start(ex: Execution, here: Place, key: str, call: Started) -> Any:
    """The child's value, whenever it has one.

    Raises:
        StepFailed: it failed, or was cancelled. The same on a resume; started anew when the workflow is tried again.
        Refused: a person refused what it proposed, and its code left it at that. The same on a resume.
    """
    name = (here.branch, START, key)
    while (record := _standing(ex, name, call)) is None:
        flight = ex.flights.get(name)
        if flight is not None:  # another task of the branch makes the same call: they share it
            await ex.shared(flight)
            continue
        flight = ex.flights[name] = Flight()
        try:
            await _to_its_end(ex, here, key, call)
        finally:
            del ex.flights[name]
            flight.wake()
    ex.mark_used(record)
    if record.state == "failed":
        told = json.loads(record.result or "{}")
        if told["kind"] == REFUSED:
            raise Refused(call.workflow.name, told["reason"])
        raise StepFailed(call.workflow.name, told["reason"], kind=told["kind"])
    return call.workflow.typed.decode(ex.result_text(record) or "null")


def _standing(ex: Execution, name: tuple[str, str, str], call: Started) -> Record | None:
    """The record that answers: not one of other inputs, nor a failure from before the workflow was tried again."""
    record = ex.records.get(name)
    if record is None or record.inputs != call.about:
        return None
    if record.state != "failed":
        return record if ex.result_text(record) is not None else None
    if record.why == REFUSED:  # a person said no: trying the workflow again asks nobody again
        return record
    tried_again = any(_again(row) and row["asked_seq"] >= record.seq for row in _about_body(ex))
    return None if tried_again else record


def _about_body(ex: Execution) -> list[Row]:
    return ex.questions.get(("", QuestionKind.FAILURE.value, BODY), [])


def _again(row: Row) -> bool:
    """Whether a question about the workflow's own failure was followed by another try: by an answer, or by mended code."""
    if row["status"] == "answered":
        return choice_of(json.loads(row["answer"])) == "again"
    return bool(row["status"] == "withdrawn")


async def _to_its_end(ex: Execution, here: Place, key: str, call: Started) -> None:
    """Make sure the child exists, see it through, and record its end."""
    generation = ex.generation((here.branch, START, key))
    row, why = await _admitted(ex, here, key, call, generation)
    row = await _ended(ex, here, call, row)
    ended, (uusd, tokens) = await ex.store.read(lambda tx: children.spent(tx, row["no"]))
    done = ended["status"] == RunStatus.DONE
    failure = None if done else children.failure_of(ended)
    text = (ended["value"] or "null") if failure is None else json.dumps(failure, ensure_ascii=False)
    other = _recorded(ex, row["id"])  # under another key: what it has cost is counted there
    if other is not None:
        uusd, tokens, text = 0, 0, ex.result_text(other) or text
    record = Record(
        id=ex.next_id(), branch=here.branch, name=START, key=key, generation=generation, state="done" if done else "failed",
        inputs=call.about, summary=row["id"], why=why if failure is None else failure["kind"], usd=uusd or None,
        tokens=tokens or None, started_us=ended["created_us"], ended_us=ex.now_us(),
    )  # fmt: skip
    await ex.append(record, durable=True, text=text)


def _recorded(ex: Execution, run_id: str) -> Record | None:
    return next((r for r in (*ex.records.values(), *ex.older) if r.name == START and r.summary == run_id), None)


async def _admitted(ex: Execution, here: Place, key: str, call: Started, generation: int) -> tuple[Row, str | None]:
    """The child's row: from now on it exists, whatever happens here. And why it is another run than the call's own."""
    parents = dict.fromkeys((ex.hold.root_id, ex.hold.run_id))

    def named(name: str) -> list[str]:
        """What this call has started so far, under that name of the workflow: last what it starts now."""
        made = call if name == call.name else call.under(name)
        at = key if name == call.name else key.replace(call.base, made.base, 1)
        return [child_id(p, here.branch, at, made, n) for p in parents for n in range(1, generation + 1)]

    *siblings, run_id = named(call.name)
    name = (here.branch, START, key)
    # The one that it was said to be, where that failed and the call is made again.
    siblings += [r.summary for r in (*ex.older_of(name), ex.records.get(name)) if r is not None and r.summary]
    row = await ex.store.read(lambda tx: tx.one(tx.sql.run_by_id, {"id": run_id}))
    first = None
    if row is None or row["parent_no"] != ex.hold.run_no:
        first = await begun.instead(ex, here, key, call, named)
        if first is not None and first.row["parent_no"] != ex.hold.run_no:  # of the run this one is a fork of
            siblings, first = [first.row["id"], *siblings], None
    row = row if first is None else first.row
    if first is None or not RunStatus(first.row["status"]).ended:
        await ex.will_start(call.workflow.name, branch=here.branch, key=key, row=row)
    row = await _standing_row(ex, call, run_id, row, siblings)
    ex.check()
    ex.started[row["id"]] = row["no"]
    if _recorded(ex, row["id"]) is None:
        ex.kin.setdefault(row["no"], (0, 0))
    await begun.asked_for(ex, row["id"])
    return row, None if first is None else first.why


async def _standing_row(ex: Execution, call: Started, run_id: str, row: Row | None, siblings: Sequence[str]) -> Row:
    """Make sure that it exists, and goes on under the name that its workflow has in the code of whoever starts it."""
    now = ex.now_us()
    if row is None or row["parent_no"] != ex.hold.run_no:
        admission = Admission(
            run_id=run_id, client_id=ex.hold.client_id, workflow=call.workflow.name, source_digest=call.workflow.digest,
            goal=ex.run["goal"], inputs=call.inputs,
        )  # fmt: skip
        return await ex.write(lambda tx: children.admit(tx, ex.hold, admission, siblings, now), durable=True)
    if row["workflow"] != call.workflow.name and not RunStatus(row["status"]).ended:
        no = row["no"]
        return await ex.write(lambda tx: children.rename(tx, ex.hold, no, call.workflow.name, now), durable=True)
    return row


async def _ended(ex: Execution, here: Place, call: Started, row: Row) -> Row:
    """Drive the child, and wait while it waits; its row when it has ended."""
    drive = row["status"] != "waiting" or row["waiting_for"] != WaitingFor.PERSON or ex.recovery or _due(ex, row)
    recovery = ex.recovery
    while not RunStatus(row["status"]).ended:
        if drive:
            row = await driven(ex, row, call.workflow, recovery=recovery)
            recovery = False
            ex.check()
            if RunStatus(row["status"]).ended:
                break
        await ceilings.stopped(ex)
        at_limit = ceilings.open_question(ex)
        await _waited(ex, here, row, at_limit)
        if at_limit is not None:
            ex.remember_question(await ex.question(at_limit["id"]))
        row, moves = await ex.store.read(partial(_now, ex, row["no"]))
        drive = moves or at_limit is not None
    return row


def _due(ex: Execution, row: Row) -> bool:
    return row["wake_us"] is not None and bool(row["wake_us"] <= ex.now_us())


def _now(ex: Execution, no: int, tx: Tx) -> tuple[Row, bool]:
    """The child's row, and whether driving it would move it."""
    row = tx.one(tx.sql.run_by_no, {"no": no})
    assert row is not None  # a run is never deleted while its parent lives  # noqa: S101
    ended = RunStatus(row["status"]).ended
    return row, not ended and children.stirs(tx, row, ex.now_us(), ex.services.worker.dead_workers(tx))


async def driven(ex: Execution, row: Row, workflow: Workflow[Any, Any], *, recovery: bool) -> Row:
    """Let this process drive a run as far as it gets, while this execution stays in memory; its row then."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    context.run(place.set, None)  # what the child does is none of this run's tasks
    task = loop.create_task(ex.services.drive(row["id"], workflow, recovery), context=context)
    over: asyncio.Future[None] = loop.create_future()
    task.add_done_callback(lambda _: None if over.done() else over.set_result(None))
    ex.inside.add(over)
    ex.driving += 1
    try:
        await over
        return task.result()
    finally:
        ex.driving -= 1
        ex.inside.discard(over)
        if not task.cancel() and not task.cancelled():  # only our waiting for it: whoever drives it goes on
            task.exception()


async def _waited(ex: Execution, here: Place, row: Row, at_limit: Row | None) -> None:
    """Wait until the child stands otherwise, or a ceiling of ours. In a map the item's slot is free meanwhile."""
    person = row["status"] in ("waiting", "cancelling", "failing") and row["open_questions"] > 0
    below = person or row["waiting_for"] in (WaitingFor.PERSON, WaitingFor.CHILD)
    wait = DurableWait(kind=WaitingFor.CHILD, what=_what(row), until_us=None if below else row["wake_us"], child=_seen(row))
    if at_limit is not None:
        wait.kind, wait.what = WaitingFor.PERSON, at_limit["text"].split("\n", 1)[0]
        wait.question_id, wait.until_us = at_limit["id"], None
    async with AsyncExitStack() as stack:
        if here.item is not None:
            await stack.enter_async_context(here.item.aside())
        await ex.wait(wait)


def _seen(row: Row) -> Seen:
    return Seen(no=row["no"], status=row["status"], fence=row["fence"])


async def moved(ex: Execution) -> list[int]:
    """The children that are waited for and stand otherwise now, or could go on."""
    seen = [wait.child for wait in ex.waits.values() if wait.child is not None]
    if not seen:
        return []
    now, dead = ex.now_us(), ex.services.worker.dead_workers

    def unit(tx: Tx) -> tuple[list[int], dict[int, tuple[int, int]]]:
        elsewhere = [s.no for s in seen if s.no in ex.kin and s.no not in ex.services.executions]
        return [s.no for s in seen if children.moved(tx, s, now, dead(tx))], {no: family.spend(tx, no) for no in elsewhere}

    found, spent = await ex.store.read(unit)
    ex.kin.update({no: both for no, both in spent.items() if no in ex.kin and no not in ex.services.executions})
    return found


def _what(row: Row) -> str:
    """What the parent waits for, in plain words."""
    told = f"run {row['id']} of {row['workflow']}, which it started, "
    if row["owner"] is not None:
        return f"{told}is executed elsewhere"
    if row["status"] == "waiting":
        return free_text(f"{told}waits: {row['reason'] or row['waiting_for']}", 300)
    return free_text(f"{told}is {row['status']}: {row['reason'] or 'it has not begun'}", 300)


# -- the end of a parent --------------------------------------------------------------------------------------------------


async def stop_all(ex: Execution, reason: str, ending: Stop | None) -> list[DurableWait]:
    """A run is to end: so is everything it started that has not ended. It stays until they have.

    Returns:
        What is waited for where one cannot end yet: somebody has to find out whether its writes happened.
    """
    if not ex.kin or not await ex.store.read(lambda tx: family.live(tx, ex.hold.run_no)):
        return []
    now = ex.now_us()

    def unit(tx: Tx) -> list[Row]:
        if ending is not None:
            runs.ending(tx, ex.hold, (ending.status, ending.reason, ending.told()), now)
        return children.stop(tx, ex.hold, reason, now, ex.services.worker.dead_workers(tx))

    for row in await ex.write(unit, durable=True):
        ex.services.halt(row["id"], reason)
    left = await ex.store.read(lambda tx: family.live(tx, ex.hold.run_no))
    known = [(row, code_of(row)) for row in left]
    await asyncio.gather(*(driven(ex, row, code, recovery=False) for row, code in known if code is not None))
    rows = await ex.store.read(lambda tx: family.live(tx, ex.hold.run_no))
    return [DurableWait(kind=WaitingFor.CHILD, what=_what(row), child=_seen(row)) for row in rows]
