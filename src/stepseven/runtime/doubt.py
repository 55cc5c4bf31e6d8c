"""A write that was begun, and nobody knows whether it happened: find out, or ask. Never guess.

In this order: a late receipt, the probe, the other side's promise to honour the key, a person.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepseven.decide import escalate, policy
from stepseven.errors import Conflict, NotYet, Superseded
from stepseven.keys import wire_key
from stepseven.model import EffectState, FailureKind, QuestionKind, RunStatus
from stepseven.runtime import asking, reading, trouble, writing
from stepseven.runtime.attempt import Attempt
from stepseven.runtime.calls import Call
from stepseven.runtime.declared import call_bound, honoured_us
from stepseven.runtime.place import Place, place
from stepseven.transitions import effects
from stepseven.transitions.effects import Claim, Intent
from stepseven.transitions.state import Record, choice_of

if TYPE_CHECKING:
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.writing import Sent
    from stepseven.store.base import Row, Tx

PROBE_TRIES = 3  # DESIGN §5.2: an erring probe is repeated twice
NOT_YET_US = 15 * 60 * 1_000_000  # how long "not yet" is believed before a person is asked


class _Nothing:
    """The probe looked, and it is not there."""


_NOTHING = _Nothing()


async def standing_claim(ex: Execution, intent: Intent) -> Claim | None:
    """The claim an earlier execution left in doubt, if any."""

    def unit(tx: Tx) -> Claim | None:
        row = tx.one(tx.sql.effect, intent.where())
        if row is None or row["state"] not in ("claimed", "unknown") or row["run_no"] != ex.hold.run_no:
            return None
        return effects.look(tx, row["claim_id"])

    return await ex.store.read(unit)


async def resolve(ex: Execution, call: Call, intent: Intent, held: Claim, *, proven: bool) -> Sent:
    """Find out about a claim in doubt. ``done``: it had happened; else it is proven (or promised) that a repeat is safe."""
    held = await _dead_owner(ex, held)
    looks, errors = 0, 0
    while True:
        now = await ex.store.read(lambda tx: effects.look(tx, held.claim_id))
        held = now or held
        if held.state is EffectState.DONE:  # a late receipt
            return await _found_done(ex, call, intent, held)
        if held.state is EffectState.REFUSED:
            return writing.Sent(done=False)
        asked = _question(ex, call, held)
        if asked is not None:
            return await _by_person(ex, call, held, asked)
        if call.step.hooks.probe is None:
            return await _without_probe(ex, call, held)
        started_us = ex.now_us()
        safe_us = held.gate_until_us + round(call.step.settings.settle * 1e6)
        try:
            found = await _probe(ex, call, intent, held)
        except NotYet:
            if started_us > safe_us + NOT_YET_US:
                return await _ask(ex, call, intent, held, "the other side keeps saying that it cannot tell yet")
            looks += 1
            await ex.until(started_us + min(30_000_000, 1_000_000 * 2**looks), f"looking whether {call.step.name} is there")
            continue
        except Conflict as other:
            return await found_other(ex, call, held, other.found)
        except Superseded:
            raise
        except Exception as error:  # noqa: BLE001 - a look that fails proves nothing
            errors += 1
            if errors >= PROBE_TRIES:
                reason = trouble.verdict_of(ex, call, error).reason
                return await _ask(ex, call, intent, held, f"the look-up failed: {reason}")
            await ex.until(ex.now_us() + 500_000 * 2**errors, f"looking again whether {call.step.name} is there")
            continue
        if not isinstance(found, _Nothing):
            value = await writing.settled(ex, call, held, found, Attempt(), held.claimed_us, None)
            return writing.Sent(done=True, value=value)
        if proven or started_us >= safe_us:
            await _not_done(ex, held)
            return writing.Sent(done=False)
        await ex.until(safe_us, f"looking whether {call.step.name} is there")


async def _dead_owner(ex: Execution, held: Claim) -> Claim:
    """When the sender has ended nobody can send any more: keep that moment, durably, the first time it is known."""
    worker = ex.services.worker
    if held.owner is None or held.gate_until_us <= ex.now_us():
        return held

    def unit(tx: Tx) -> Claim | None:
        ours = held.owner == worker.id and held.claim_id not in worker.in_flight  # the store failed before it was settled
        if ours or held.owner in worker.dead_workers(tx):
            effects.lower_gate(tx, held, ex.now_us())
        return effects.look(tx, held.claim_id)

    return await ex.write(unit, durable=True) or held


async def _probe(ex: Execution, call: Call, intent: Intent, held: Claim) -> Any:
    """Look whether the effect is there, with the claim's own arguments."""
    probe = call.step.hooks.probe
    assert probe is not None  # noqa: S101 - asked only then
    bound = dict(call.bound)
    if held.inputs != call.digest and held.arguments is not None:
        bound.update(_decoded(call, held.arguments))
    key = wire_key(intent.scope_id, intent.name, intent.key, held.generation)
    inner = Place(ex, call.inner_branch() + "/probe", attempt=Attempt(key=key), item=call.place.item)
    token = place.set(inner)
    try:
        found = await call_bound(probe, bound)
    finally:
        place.reset(token)
    if call.step.typed.annotation in (None, type(None)):
        return None if found else _NOTHING
    return _NOTHING if found is None or found is False else found


def _decoded(call: Call, arguments: str) -> dict[str, Any]:
    """The arguments of a claim, as the step's parameters."""
    from stepseven.runtime.declared import hints_of  # noqa: PLC0415 - only when arguments changed
    from stepseven.store.codec import Typed  # noqa: PLC0415

    hints = hints_of(call.step.fn)
    plain = json.loads(arguments)
    return {
        name: Typed(hints.get(name, Any), where=name).decode(json.dumps(value, ensure_ascii=False))
        for name, value in plain.items()
        if name in call.bound
    }


async def _found_done(ex: Execution, call: Call, intent: Intent, held: Claim) -> Sent:
    if held.inputs != call.digest:
        return await conflict(ex, call, intent, held)
    return writing.Sent(done=True, value=await writing.reuse(ex, call, held))


async def _not_done(ex: Execution, held: Claim) -> None:
    """It is certain that it did not happen: another send is allowed."""
    await ex.write(lambda tx: effects.mark(tx, held, EffectState.REFUSED, ex.now_us()), durable=True)


async def _without_probe(ex: Execution, call: Call, held: Claim) -> Sent:
    """No way to look: the other side honours the key, or a person has to say."""
    o = call.step.settings
    window = honoured_us(o.idempotent)
    young = window is None or (window > 0 and ex.now_us() - held.claimed_us < window)
    failed = len([r for r in ex.attempts.get(call.key, ()) if r["outcome"] in ("failed", "unknown")])
    if young and failed < o.attempts and held.inputs == call.digest:
        return writing.Sent(done=False, repeat=held)  # not proven undone, but under the same key it cannot happen twice
    return await _ask(ex, call, None, held, "there is no way to look")


# -- people -----------------------------------------------------------------------------------------------------------


def _key(call: Call, held: Claim) -> str:
    return f"{call.step.name}/{call.key[2]}#{held.claim_id}:{held.tries}"


def _question(ex: Execution, call: Call, held: Claim) -> Row | None:
    rows = ex.questions.get((call.branch, QuestionKind.UNKNOWN_OUTCOME.value, _key(call, held)), [])
    if not rows or rows[-1]["status"] not in ("open", "answered"):
        return None
    if rows[-1]["status"] == "answered" and choice_of(json.loads(rows[-1]["answer"])) in ("again", "wait"):
        return None if rows[-1]["id"] in ex.looked_again else rows[-1]
    return rows[-1]


async def _ask(ex: Execution, call: Call, intent: Intent | None, held: Claim, why: str) -> Sent:
    intent = intent or writing.intent_of(ex, call)
    rows = ex.attempts.get(call.key, ())
    reason = str(rows[-1]["reason"]) if rows else "the run broke off before an answer was kept"
    draft = escalate.unknown_outcome(
        asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call),
        arguments=json.loads(held.arguments or "{}"), reason=reason, why_unknown=why,
        key=wire_key(intent.scope_id, intent.name, intent.key, held.generation), tries=held.tries,
    )  # fmt: skip
    failed = len([r for r in rows if r["outcome"] in ("failed", "unknown")])
    schema = call.step.typed.json_schema()
    details: dict[str, Any] = {
        "branch": call.branch, "step": call.step.name, "attempts": failed, "schema": json.dumps(schema) if schema else None,
        "signature": f"unknown outcome, {why.split(':', 1)[0]}, {rows[-1]['signature']}" if rows else None,
    }  # fmt: skip

    async def make(into: str | None) -> Row:
        return await asking.store(ex, QuestionKind.UNKNOWN_OUTCOME, _key(call, held), draft, folded_into=into, **details)

    # A look-up that failed may succeed later: in a map such questions are folded into one, whose "again" looks again.
    can_look = call.step.hooks.probe is not None
    row = await asking.in_map(ex, call, make) if can_look else await asking.answered(ex, call, await make(None))
    return await _by_person(ex, call, held, row)


async def _by_person(ex: Execution, call: Call, held: Claim, row: Row) -> Sent:
    """Do what the person found out."""
    row = await asking.answered(ex, call, row)
    answer = json.loads(row["answer"] or "null")
    choice = choice_of(answer)
    if choice == "stop":
        stopped(ex, call, row)
        await ex.forever()
    if choice == "skip":
        await trouble.obey(ex, call, policy.Obey(choice="skip", answer=answer, by=row["answered_by"]))
        return writing.Sent(done=True)
    if choice == "happened":
        value = call.step.typed.validate_python(answer["receipt"]) if answer["receipt"] is not None else None
        value = await writing.settled(ex, call, held, value, Attempt(), held.claimed_us, "by hand")
        return writing.Sent(done=True, value=value)
    now = await ex.store.read(lambda tx: effects.look(tx, held.claim_id))
    if now is not None and now.state is EffectState.DONE:  # a late receipt came while the person looked
        return writing.Sent(done=True, value=await writing.reuse(ex, call, now))
    if choice in ("again", "wait"):  # of the batch it was folded into: look again
        if choice == "wait" and isinstance(answer, dict) and isinstance(answer.get("until"), int):
            await ex.until(answer["until"], f"looking again whether {call.step.name} is there")
        ex.looked_again.add(row["id"])
        return writing.Sent(done=False, doubt=now or held)
    await _not_done(ex, held)
    return writing.Sent(done=False)


def stopped(ex: Execution, call: Call, row: Row) -> None:
    """A person said stop."""
    from stepseven.runtime.execution import Stop  # noqa: PLC0415 - it imports this module

    ex.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']}", call.step.name, FailureKind.FIXABLE))


# -- the same key, other inputs -------------------------------------------------------------------------------------------


def _conflict_key(call: Call, held: Claim) -> str:
    return f"{call.step.name}/{call.key[2]}/{held.claim_id}/{call.digest}"


def _conflicts(ex: Execution, call: Call) -> list[Row]:
    prefix = f"{call.step.name}/{call.key[2]}/"
    return [
        row
        for (branch, kind, key), rows in ex.questions.items()
        if kind == QuestionKind.CONFLICT.value and branch == call.branch and key.startswith(prefix)
        and key.endswith(f"/{call.digest}")
        for row in rows
    ]  # fmt: skip


def seconds_wanted(ex: Execution, call: Call) -> int:
    """Up to which generation a person wanted "a second one" for exactly these inputs."""
    wanted = 0
    for row in _conflicts(ex, call):
        if row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "second":
            wanted = max(wanted, int(json.loads(row["context"]).get("generation", 0)))
    return wanted


async def conflict(ex: Execution, call: Call, intent: Intent, held: Claim) -> Sent:
    """Done before with other inputs: the same thing, a second one, or stop?"""
    del intent
    rows = ex.questions.get((call.branch, QuestionKind.CONFLICT.value, _conflict_key(call, held)), [])
    row = rows[-1] if rows and rows[-1]["status"] in ("open", "answered") else None
    if row is None:
        receipt = json.loads(held.receipt or "null")
        draft = escalate.conflict(
            asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call),
            first=json.loads(held.arguments) if held.arguments else None, now=json.loads(call.arguments()), receipt=receipt,
            reason="it has the same key",
        )  # fmt: skip
        draft.context["generation"] = held.generation
        row = await asking.store(
            ex, QuestionKind.CONFLICT, _conflict_key(call, held), draft, branch=call.branch, step=call.step.name
        )
    return await _after_conflict(ex, call, held, row)


async def found_other(ex: Execution, call: Call, held: Claim, found: Any) -> Sent:
    """The probe found something under our key that is not what we meant."""
    rows = ex.questions.get((call.branch, QuestionKind.CONFLICT.value, _conflict_key(call, held)), [])
    row = rows[-1] if rows and rows[-1]["status"] in ("open", "answered") else None
    if row is None:
        there = found if isinstance(found, dict) else {"found": str(found)}
        draft = escalate.conflict(
            asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call),
            first=json.loads(json.dumps(there, default=str)), now=json.loads(call.arguments()), receipt=None,
            reason="something else is there under the same key",
        )  # fmt: skip
        draft.context["generation"] = held.generation
        schema = call.step.typed.json_schema()
        row = await asking.store(
            ex, QuestionKind.CONFLICT, _conflict_key(call, held), draft, branch=call.branch, step=call.step.name,
            schema=json.dumps(schema) if schema else None,
        )  # fmt: skip
    return await _after_conflict(ex, call, held, row)


async def _after_conflict(ex: Execution, call: Call, held: Claim, row: Row) -> Sent:
    row = await asking.answered(ex, call, row)
    choice = choice_of(json.loads(row["answer"] or "null"))
    if choice == "stop":
        stopped(ex, call, row)
        await ex.forever()
    if choice == "second":
        if held.state is not EffectState.DONE:  # what is there is somebody else's: ours is still to be done
            await ex.write(lambda tx: effects.settle(tx, held.claim_id, "null", ex.now_us()), durable=True)
        return writing.Sent(done=False)
    now = await ex.store.read(lambda tx: effects.look(tx, held.claim_id)) or held
    receipt = now.receipt if now.state is EffectState.DONE and now.receipt is not None else "null"
    value = call.step.typed.decode(receipt) if receipt != "null" else None
    record, text = kept_first(ex, call, value, receipt, row["answered_by"])
    if now.state is not EffectState.DONE:
        await ex.write(lambda tx: effects.settle(tx, held.claim_id, receipt, ex.now_us()), durable=True)
    await ex.append(record, durable=True, text=text)
    return writing.Sent(done=True, value=value)


def kept_first(ex: Execution, call: Call, value: Any, text: str, by: str | None) -> tuple[Record, str]:
    """A record of "the same thing": the first receipt is this call's result, too."""
    record = Record(
        id=ex.next_id(), branch=call.branch, name=call.step.name, key=call.key[2], generation=ex.generation(call.key),
        state="done", effect=call.step.settings.effect.value, inputs=call.digest, args=call.args(),
        summary=reading.summary_of(call, value), why=f"the same thing, says {by or 'a person'}: the first is kept",
        started_us=ex.now_us(), ended_us=ex.now_us(),
    )  # fmt: skip
    return record, text


def arguments_of(tx: Tx, run_no: int, record: Record) -> dict[str, Any] | None:
    """What a recorded write was called with, for people."""
    for row in tx.all(tx.sql.effects, {"run_no": run_no}):
        if row["step"] == record.name and row["inputs"] == record.inputs and row["arguments"]:
            found: dict[str, Any] = json.loads(row["arguments"])
            return found
    return None
