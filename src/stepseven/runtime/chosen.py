"""What was chosen when the run was resumed, obeyed: from the rows of its recoveries, so that a crash in between changes nothing.

A choice about a step is like an answer a person gave to each of its calls that is not on record, before anybody was asked. It has
its place among the questions about the call, and ``decide.policy`` makes one move of them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import drift, policy
from stepseven.errors import NotRecordable
from stepseven.model import INTERNAL, QuestionStatus
from stepseven.runtime import known
from stepseven.runtime.calls import inner_branch
from stepseven.transitions import recoveries
from stepseven.transitions.questions import REFUSED
from stepseven.transitions.recoveries import AS_WRITTEN, Chosen, Drift
from stepseven.transitions.state import choice_of, outwards

if TYPE_CHECKING:
    from stepseven.decide.plan import Coming, Drifted
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.state import Record, RecordKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The newest choice about one step.

    Attributes:
        choice: ``approach:LABEL`` (without a label: as written), ``value`` or ``skip``.
        given: the value, as JSON text.
        chosen: with what else it was chosen, and when.
        id, at_us: of its recovery.
    """

    choice: str
    given: str | None = None
    chosen: Chosen
    id: str
    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfDrift:
    """What was chosen about what had moved by then, and was not compared since.

    Attributes:
        choice: ``keep`` or ``refresh``.
        until_us: when; what moved after that is not meant. ``None``: just now, it is about all that is found.
        record: it is about the client's record, too. Nobody knows when that moved.
    """

    choice: Drift
    until_us: int | None = None
    record: bool = True

    def covers(self, one: Drifted) -> bool:
        """Whether this was said about it."""
        if drift.in_record(one):
            return self.record
        return self.until_us is None or (one.at_us or 0) <= self.until_us


def of_drift(rows: Sequence[Row], *, broke_off: bool) -> OfDrift | None:
    """What was chosen about what moved: by the recovery under way, or by one that ended before that was compared.

    *broke_off*: the last execution did not come to its end, so the choice may be an older one.
    """
    for row in reversed(rows):
        choice = recoveries.chosen_of(row).drift
        if choice is None:
            continue
        if row["ended_us"] is None:
            since = broke_off and row["id"] != recoveries.SUPPOSED
            return OfDrift(choice=choice, until_us=row["created_us"] if since else None)
        due = recoveries.DRIFT_DUE in json.loads(row["result"] or "{}")
        return OfDrift(choice=choice, until_us=row["created_us"], record=False) if due else None
    return None


def wishes(rows: Iterable[Row]) -> dict[str, Wish]:
    """The newest choice about each step. One that only wants it made anew ends an older one."""
    found: dict[str, Wish] = {}
    for row in rows:
        chosen = recoveries.chosen_of(row)
        for name in chosen.rerun:
            found.pop(name, None)
        for name, label in chosen.approach.items():
            choice = "approach:" if label == AS_WRITTEN else f"approach:{label}"
            found[name] = Wish(choice=choice, chosen=chosen, id=row["id"], at_us=row["created_us"])
        for name, text in chosen.skip.items():
            choice = "skip" if text == "null" else "value"
            found[name] = Wish(choice=choice, given=text, chosen=chosen, id=row["id"], at_us=row["created_us"])
    return found


def about(ex: RunMemory, call: Call) -> Wish | None:
    """The choice about a call that no record answers; ``None``: there is none, or it has had its record already."""
    if not ex.wishes:
        return None
    names = {call.key[1], call.step.name, *ex.names_before(call.step)}
    found = max((ex.wishes[name] for name in names if name in ex.wishes), key=lambda wish: wish.at_us, default=None)
    if found is None or (call.key in ex.stale and _newest(ex, call.key) > found.chosen.as_of_seq):
        return None
    return found


def pending(ex: RunMemory) -> dict[str, Wish]:
    """Of the choices what steps give, or that they are skipped, those that nothing on record tells of yet."""
    found = {name: wish for name, wish in ex.wishes.items() if wish.choice in ("skip", "value")}
    for record in (*ex.records.values(), *ex.older) if found else ():
        if record.name in found and record.seq > found[record.name].chosen.as_of_seq:
            del found[record.name]
    return found


def foreseen(ex: RunMemory, coming: Coming) -> Coming:
    """A call that the source has, with what a person has chosen about it before it was reached."""
    waiting = pending(ex) if ex.wishes else {}
    step = known.find(coming.name, ex.workflow.fn.__module__) if waiting else None
    if step is None:
        return coming
    names = {step.name, *ex.names_before(step)}
    wish = max((wish for name, wish in waiting.items() if name in names), key=lambda wish: wish.at_us, default=None)
    newest = max((wish for name, wish in ex.wishes.items() if name in names), key=lambda wish: wish.at_us, default=None)
    if wish is None or wish is not newest:
        return coming
    by = wish.chosen.by or "a person"
    if wish.choice == "skip":
        return replace(coming, given=f"skipped, as {by} chose")
    try:
        step.typed.decode(wish.given or "null")
    except NotRecordable:  # the type has changed since: it is asked for anew
        return coming
    return replace(coming, given=f"given by {by}")


def _newest(ex: RunMemory, key: RecordKey) -> int:
    """The place of the newest record of a call that answers no more."""
    return max((r.seq for r in ex.older_of(key)), default=0)


def asked(ex: Execution, call: Call, rows: Sequence[Row], made: Sequence[policy.Asked]) -> tuple[policy.Asked, ...]:
    """The questions about a call, *rows* (as *made* for the policy), with what was chosen about it in its place among them."""
    from stepseven.runtime import trouble

    wish = about(ex, call)
    if wish is None:
        return tuple(made)
    since = wish.chosen.tried.get(call.key, 0)
    failed = [r for r in trouble.tries(ex, call) if r["n"] <= since and r["outcome"] in ("failed", "unknown")]
    as_asked = policy.Asked(
        id=wish.id, status=QuestionStatus.ANSWERED, attempts=len(failed), choice=wish.choice, answer=_answer(call, wish),
        by=wish.chosen.by, answered_us=wish.at_us,
    )  # fmt: skip
    at = next((i for i, row in enumerate(rows) if _after(row, as_asked)), len(rows))
    return (*made[:at], as_asked, *made[at:])


def _after(row: Row, wish: policy.Asked) -> bool:
    """Whether a question comes after a choice. That a send did not happen says nothing about how the next one goes about it."""
    if row["attempts"] != wish.attempts:
        return bool(row["attempts"] > wish.attempts)
    if row["kind"] == "unknown_outcome" and row["answer"] is not None and choice_of(json.loads(row["answer"])) == "not_happened":
        return False
    return bool(row["created_us"] > (wish.answered_us or 0))


def _answer(call: Call, wish: Wish) -> Any:
    """What was chosen as a person would have answered it; the value as its type, as long as it still fits that."""
    if wish.choice != "value":
        return wish.choice
    text = wish.given or "null"
    try:
        return {"choice": "value", "value": call.step.typed.decode(text)}
    except NotRecordable:  # the type has changed since: it is found not to fit when it is obeyed
        return {"choice": "value", "value": json.loads(text)}


# -- records that answer no more ------------------------------------------------------------------------------------------


def put_aside(ex: RunMemory) -> Iterator[tuple[Record, str]]:
    """The records that a choice wants made anew, and why: of reads, with all that they called, and what had failed for good."""
    for row in ex.recoveries:
        chosen = recoveries.chosen_of(row)
        old = [r for r in ex.records.values() if r.seq <= chosen.as_of_seq and not r.name.startswith(INTERNAL)]
        if chosen.rerun:
            again = with_inner(old, [r for r in old if r.effect is None and r.name in chosen.rerun])
            yield from ((record, f"{chosen.by or 'a person'} wants it made anew") for record in again)
        for record in old:
            gave_up = record.state == "failed" and record.why != REFUSED
            if gave_up and (record.name in chosen.approach or record.name in chosen.skip):
                yield record, "it had failed for good"


def with_inner(records: Sequence[Record], wanted: Sequence[Record]) -> Iterator[Record]:
    """Reads to be made anew: *wanted*, what they called, and what they were called by, or they would not be asked for."""
    if not wanted:
        return
    called = {inner_branch(r.branch, r.name, r.key) for r in wanted}
    homes = {branch for r in wanted for branch in outwards(r.branch)}
    again = {id(r) for r in wanted}
    for record in records:
        inside = any(branch in called for branch in outwards(record.branch))
        calls_it = inner_branch(record.branch, record.name, record.key) in homes
        if record.effect is None and (id(record) in again or inside or calls_it):
            yield record


# -- the end of a recovery ------------------------------------------------------------------------------------------------


def close(ex: RunMemory, tx: Tx) -> None:
    """The run parks or ends: so does its recovery, and says what came of it. In the same transaction."""
    row = recoveries.open_one(ex.recoveries)
    if row is None:
        return
    found = recoveries.account(
        row, (*ex.older, *ex.records.values()), asked=sum(map(len, ex.questions.values())), uusd=ex.uusd,
        executed_us=ex.executed_us(),
    )  # fmt: skip
    if ex.notes:
        found = {**found, "notes": list(ex.notes)}
    if recoveries.chosen_of(row).drift and not ex.drift_compared:  # it waits for something that comes first
        found = {**found, recoveries.DRIFT_DUE: True}
    recoveries.end(tx, row["id"], found, ex.now_us())
