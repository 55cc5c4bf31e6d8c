"""A write that may have been done before, with other values or under another key: the same, a second one, or stop?

A person decides.

Ways to get here: it was done before with other inputs; the probe found something else under our key; an earlier step gave another
result than last time, or the code changed, so that a new key may mean a thing that was done already (``rekeyed``).
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from stepseven.decide import escalate
from stepseven.errors import NotRecordable
from stepseven.model import ONCE, EffectState, QuestionKind
from stepseven.runtime import approving, asking, codechange, doubt, moved, reading, rekeyed, remembering, sending, writing
from stepseven.store.codec import free_text, guard
from stepseven.transitions import effects
from stepseven.transitions.effects import REFUSED_RESULT, Claim
from stepseven.transitions.offering import offer
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from stepseven.decide.escalate import Draft
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.runtime.rekeyed import At, Before
    from stepseven.store.base import Row, Tx
    from stepseven.transitions.effects import Intent


# -- the same key, other inputs -------------------------------------------------------------------------------------------


def _key(call: Call, held: Claim) -> str:
    return f"{call.key[1]}/{call.key[2]}/{held.claim_id}/{call.digest}"


def seconds_wanted(ex: Execution, call: Call) -> int:
    """Up to which generation a person wanted "a second one" for exactly these inputs."""
    prefix, suffix = f"{call.key[1]}/{call.key[2]}/", f"/{call.digest}"
    wanted = 0
    for (branch, kind, key), rows in ex.questions.items():
        if kind == QuestionKind.CONFLICT.value and branch == call.branch and key.startswith(prefix) and key.endswith(suffix):
            for row in rows:
                if row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "second":
                    wanted = max(wanted, int(json.loads(row["context"]).get("generation", 0)))
    return wanted


async def conflict(ex: Execution, call: Call, held: Claim) -> sending.Sent:
    """Done before with other inputs: the same thing, a second one, or stop?"""
    receipt = json.loads(held.receipt or "null")
    if isinstance(receipt, dict) and REFUSED_RESULT in receipt:
        receipt = None
    sent = held.approved or held.arguments
    first = json.loads(sent) if sent else None
    row = await _asked(ex, call, held, first, receipt, "both have one key, so they should be one thing")
    if row is None:
        return sending.Sent()
    if choice_of(json.loads(row["answer"])) == "second":
        return sending.Sent()  # the next claim is a new generation
    if held.receipt is None or held.receipt.startswith('{"' + REFUSED_RESULT):
        return sending.Sent(done=True, value=await writing.reuse(ex, call, held))
    return sending.Sent(done=True, value=await _keep_first(ex, call, held.receipt, row))


async def settled_other(ex: Execution, call: Call, held: Claim, found: Any) -> sending.Sent:
    """A claim with other inputs than this call's turned out to be done: keep its receipt, then it is a conflict."""
    typed = call.step.typed
    try:
        text = guard(typed.encode(typed.validate_python(found)), "receipt", secrets=call.step.settings.secrets)
    except Exception as refused:  # noqa: BLE001 - whatever is wrong with the value, it is there
        text = json.dumps({REFUSED_RESULT: free_text(str(refused), 300)})
    now = ex.now_us()

    def unit(tx: Tx) -> None:
        if effects.settle(tx, held, text, now):
            offer(tx, held.run_no, now)  # where the run that claimed it has ended already, it stands outside all the same

    await ex.store.write(unit, durable=True, client=ex.hold.client_id)
    return await conflict(ex, call, await doubt.as_it_stands(ex, held))


async def found_other(ex: Execution, call: Call, held: Claim, found: Any) -> sending.Sent:
    """The probe found something under our key that is not what we meant."""
    there = found if isinstance(found, dict) else {"found": str(found)}
    first = json.loads(guard(json.dumps(there, default=str), "found", secrets="mask"))
    row = await _asked(ex, call, held, first, None, "something else is there under the same key")
    if row is None:
        return sending.Sent(doubt=held)
    if choice_of(json.loads(row["answer"])) == "same":  # what is there is ours after all
        value = await writing.settled_by_hand(ex, call, held, found, row["answered_by"])
        return sending.Sent(done=True, value=value)
    now = ex.now_us()  # what is there is somebody else's: ours is still to be done, under a key of its own
    await ex.write(lambda tx: effects.mark(tx, held, EffectState.REFUSED, now), durable=True)
    return sending.Sent()


async def _asked(ex: Execution, call: Call, held: Claim, first: dict[str, Any] | None, receipt: Any, reason: str) -> Row | None:
    """The answered question; ``None`` if it was taken back. "stop" does not return."""
    row = asked_about(ex, call, held)
    if row is None:
        draft = escalate.conflict(
            asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call), first=first,
            now=json.loads(_wanted(ex, call)), receipt=receipt, reason=reason,
        )  # fmt: skip
        draft.context["generation"] = held.generation
        row = await asking.store(ex, QuestionKind.CONFLICT, _key(call, held), draft, branch=call.branch, step=call.key[1])
    return await _answered(ex, call, row)


def asked_about(ex: Execution, call: Call, held: Claim) -> Row | None:
    """What was asked about *call* and a claim under its key: open, or answered."""
    return _standing(ex, call, _key(call, held))


def _standing(ex: Execution, call: Call, key: str) -> Row | None:
    rows = ex.questions.get((call.branch, QuestionKind.CONFLICT.value, key), [])
    return rows[-1] if rows and rows[-1]["status"] in ("open", "answered") else None


def _wanted(ex: Execution, call: Call) -> str:
    """What would be done now, as JSON: with what a person changed, where it is approved."""
    approved = approving.standing(ex, call) if approving.needed(call) else None
    return call.arguments() if approved is None else approved.arguments


async def _answered(ex: Execution, call: Call, row: Row) -> Row | None:
    row = await asking.answered(ex, call, row)
    if row["status"] != "answered":
        return None
    if choice_of(json.loads(row["answer"])) == "stop":
        doubt.stopped(ex, call, row)
        await ex.forever()
    return row


async def _keep_first(ex: Execution, call: Call, text: str, row: Row) -> Any:
    """The same thing: the first receipt is this call's result, too."""
    value = call.step.typed.decode(text)
    record = Record(
        id=ex.next_id(), branch=call.branch, name=call.key[1], key=call.key[2], generation=ex.generation(call.key),
        state="done", effect=call.step.settings.effect.value, inputs=call.digest, args=call.args(),
        summary=reading.summary_of(call, value), started_us=ex.now_us(), ended_us=ex.now_us(),
        why=f"the same thing, says {row['answered_by'] or 'a person'}: the first is kept",
    )  # fmt: skip
    await ex.append(record, durable=True, text=text, fact=remembering.fact_of(ex, call, text))
    return value


# -- another key, after something changed ---------------------------------------------------------------------------------

_OTHER_RESULT = "its key is another one now, because an earlier step gave another result than last time"


async def after_change(ex: Execution, call: Call, intent: Intent) -> sending.Sent | None:
    """A receipt of this step stands that nobody asked for, and something says that this may be the same thing: ask.

    An earlier step gave another result than last time; the code changed; or a person said that it had another name, and its key
    is another kind. What was said is obeyed from its row. ``None``: go on, nobody has to say anything.
    """
    if call.key in ex.records:
        return None
    row = said(ex, call) or await _ask_after_result(ex, call) or await _ask_after_code(ex, call, intent)
    if row is None:
        return None
    before = await about(ex, call, row)
    if row["status"] == "open" and before is not None and before.used:  # it was asked for since: then this is another one
        ex.remember_question(await ex.withdraw(row["id"]))
        return sending.Sent()
    answered = await _answered(ex, call, row)
    if answered is None:
        return sending.Sent()
    if before is not None and before.record is not None:
        before.record.used = True
    if choice_of(json.loads(answered["answer"])) != "same":
        return None
    return sending.Sent(done=True, value=await _same(ex, call, before, answered))


def said(ex: RunMemory, call: Call) -> Row | None:
    """The question whether a call is the same as what is on record under another key: open, or answered."""
    prefix = f"{call.key[1]}/{call.key[2]}/"
    found = None
    for (branch, kind, key), rows in ex.questions.items():
        mine = kind == QuestionKind.CONFLICT.value and branch == call.branch and key.startswith(prefix)
        if mine and rows[-1]["status"] in ("open", "answered"):
            at = rekeyed.replaced_by(rows[-1])
            found = rows[-1] if at is not None and key == rekeyed.question_key(call, at) else found
    return found


async def about(ex: Execution, call: Call, row: Row) -> Before | None:
    """What is on record of what such a question is about; ``None``: nothing any more."""
    claims = await ex.store.read(lambda tx: rekeyed.claims_of(ex, tx))
    return rekeyed.named(ex, call, rekeyed.replaced_by(row) or (call.branch, ""), claims)


async def asked_for(ex: Execution, call: Call) -> None:
    """The code asks for what is on record: whether another call is the same as that, nobody has to say any more."""
    for (_, kind, _), rows in list(ex.questions.items()):
        if kind == QuestionKind.CONFLICT.value and rows[-1]["status"] == "open":
            row = rows[-1]
            if rekeyed.replaced_by(row) == (call.branch, call.key[2]) and row["step"] in rekeyed.names_of(ex, call):
                ex.remember_question(await ex.withdraw(row["id"]))
                ex.wake_question(row["id"])


async def _same(ex: Execution, call: Call, before: Before | None, row: Row) -> Any:
    """It is the same thing, says a person: the first receipt is this call's result, too."""
    claim = None if before is None else before.claim
    text = None if before is None else rekeyed.receipt_of(ex, before)
    if text is None:
        text = json.dumps(json.loads(row["context"]).get("receipt"))
    held = None if claim is None else await ex.store.read(lambda tx: effects.look(tx, claim["claim_id"]))
    if held is not None and text.startswith('{"' + REFUSED_RESULT):
        return await writing.missing_receipt(ex, call, held, json.loads(text)[REFUSED_RESULT])
    try:
        return await _keep_first(ex, call, text, row)
    except NotRecordable as misfit:
        if held is None:
            raise
        return await writing.missing_receipt(ex, call, held, str(misfit))


async def _ask_after_result(ex: Execution, call: Call) -> Row | None:
    """Ask where an earlier step gave another result, or where a renamed step has another kind of key."""
    found = unasked(ex, call)
    if found is None:
        return None
    old, reason = found
    draft = escalate.conflict(
        asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call),
        first=await ex.store.read(lambda tx: _first_arguments(tx, call, old)), now=json.loads(_wanted(ex, call)),
        receipt=json.loads(ex.result_text(old) or "null"), reason=reason,
    )  # fmt: skip
    return await _store(ex, call, draft, (old.branch, old.key))


async def _ask_after_code(ex: Execution, call: Call, intent: Intent) -> Row | None:
    """Ask where the code changed, and calls it under another key. One call after the other, each about another receipt."""
    if not rekeyed.worth_a_look(ex, call):
        return None
    lane = ("rekeyed", call.step.name)
    await ex.take_lane(lane)
    try:
        before = await _settled_before(ex, call, intent)
        return None if before is None else await _ask_about(ex, call, before)
    finally:
        ex.free_lane(lane)


async def _settled_before(ex: Execution, call: Call, intent: Intent) -> Before | None:
    """What was done under another key. What may have been is found out about first."""
    before = await rekeyed.find(ex, call, intent)
    while before is not None and before.doubt:
        await rekeyed.find_out(ex, before)
        found = await rekeyed.find(ex, call, intent)
        if found is not None and found.doubt and found.at == before.at:  # another run is finding out about it
            await sending.busy(ex, call)
        before = found
    return before


async def _ask_about(ex: Execution, call: Call, before: Before) -> Row:
    if bool(ex.codes) and await ex.store.read(partial(codechange.newer_lives, ex)):
        ex.release(f"a worker with newer code of {ex.workflow.name} lives, and takes it")
        await ex.forever()
    receipt = json.loads(rekeyed.receipt_of(ex, before) or "null")
    draft = escalate.other_key(
        asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call),
        keys=(before.key, call.key[2]), places=moved.places(before.branch, call.branch),
        first=before.arguments, now=json.loads(_wanted(ex, call)),
        receipt=None if isinstance(receipt, dict) and REFUSED_RESULT in receipt else receipt,
    )  # fmt: skip
    return await _store(ex, call, draft, before.at)


async def _store(ex: Execution, call: Call, draft: Draft, replaces: At) -> Row:
    draft.context["replaces"] = replaces[1]
    if replaces[0] != call.branch:
        draft.context["replaces_in"] = replaces[0]
    key = rekeyed.question_key(call, replaces)
    return await asking.store(ex, QuestionKind.CONFLICT, key, draft, branch=call.branch, step=call.key[1])


def unasked(ex: Execution, call: Call) -> tuple[Record, str] | None:
    """A receipt under another key that nobody asked for, and why it may be the same thing as *call*, in words."""
    if call.key in ex.records:
        return None
    old, reason = _unasked(ex, call, call.key[1]) if ex.other_before(call.branch) else None, _OTHER_RESULT
    for name in ex.renamed.get(call.step.name, ()) if old is None else ():
        found = _unasked(ex, call, name)
        if found is not None and (found.key == ONCE) != (call.key[2] == ONCE):
            old, reason = found, f"it was called {name} then, and its key was made in another way"
    return None if old is None or old.effect is None else (old, reason)


def _unasked(ex: Execution, call: Call, name: str) -> Record | None:
    """The oldest record of a step of that name in the call's branch that nobody asked for, and that was not replaced since."""
    key = (call.branch, name, call.key[2])
    old = ex.unused_like(key)
    while old is not None and _replaced(ex, call, old):
        old.used = True
        old = ex.unused_like(key)
    return old


def _replaced(ex: Execution, call: Call, old: Record) -> bool:
    """Whether it is on record what became of *old* instead: a person said so when another key was asked about."""
    at = old.branch, old.key
    for (branch, kind, key), rows in ex.questions.items():
        if kind == QuestionKind.CONFLICT.value and rows[-1]["status"] == "answered" and key.startswith(f"{call.key[1]}/"):
            mine = branch == call.branch and key == rekeyed.question_key(call, at)
            if rekeyed.replaced_by(rows[-1]) == at and not mine:
                return True
    return False


def _first_arguments(tx: Tx, call: Call, record: Record) -> dict[str, Any] | None:
    """What a recorded write was called with, for people."""
    for row in tx.all(tx.sql.effects, {"run_no": call.execution.hold.run_no}):
        if row["step"] in (record.name, call.step.name) and row["inputs"] == record.inputs and row["arguments"]:
            found: dict[str, Any] = json.loads(row["inputs_approved"] or row["arguments"])
            return found
    return None
