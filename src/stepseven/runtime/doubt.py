"""A write that was begun, and nobody knows whether it happened: find out, or ask. Never guess.

In this order: a late receipt, the probe, the other side's promise to honour the key, a person.

Longer than other files: the rules by which a send in doubt is found out about stand side by side.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import escalate, policy
from stepseven.decide.classify import Handling, Proof
from stepseven.errors import AlreadyDone, Conflict, NotYet, Superseded
from stepseven.keys import wire_key
from stepseven.model import EffectState, FailureKind, QuestionKind, RunStatus, to_micro
from stepseven.runtime import approving, asking, choices, clash, outages, trouble, writing
from stepseven.runtime.arguments import arguments_of
from stepseven.runtime.attempt import Attempt, loose
from stepseven.runtime.binding import call_bound
from stepseven.runtime.declared import WRITE_TIMEOUT_S, honoured_us
from stepseven.runtime.place import place
from stepseven.runtime.sending import Sent
from stepseven.runtime.waits import STEP_CODE
from stepseven.store.codec import free_text
from stepseven.transitions import effects, restoring, steps
from stepseven.transitions.effects import Claim, Intent
from stepseven.transitions.state import choice_of

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row, Tx

PROBE_TRIES = 3  # DESIGN §5.2: an erring probe is repeated twice
NOT_YET_US = 15 * 60 * 1_000_000  # how long "not yet" is believed before a person is asked
NOT_YET_PAUSE_US = 30_000_000  # between two looks, at most
BROKE_OFF = "the run broke off before an answer was kept"
_PASSING = (Handling.RETRYABLE, Handling.DEFERRAL)
RESTORED = "a backup was restored: it may have been done after that was made"
LOOKED_FIRST = "nothing was sent yet: it was looked whether somebody had done it by hand"


class _Nothing:
    """The probe looked, and it is not there."""


NOTHING = _Nothing()


@dataclass(slots=True)
class _Looking:
    """How often the probe was asked without an answer."""

    times: int = 0
    errors: int = 0


# -- what is known of a claim -------------------------------------------------------------------------------------------


async def standing_claim(ex: Execution, intent: Intent) -> Claim | None:
    """The claim an earlier execution left in doubt, if any."""

    def unit(tx: Tx) -> Claim | None:
        row = tx.one(tx.sql.effect, intent.where())
        if row is None or row["state"] not in ("claimed", "unknown") or row["run_no"] != ex.hold.run_no:
            return None
        return effects.look(tx, row["claim_id"])

    return await ex.store.read(unit)


def name_claim(row: dict[str, Any], held: Claim, *, deferred: bool) -> None:
    """Note in a try's row which send it was, and whether it was put off and not failed."""
    more = {"claim": f"{held.claim_id}:{held.tries}", "deferred": deferred, "doubtful": held.doubtful, "lost": held.lost}
    row["trace"] = json.dumps({**trouble.details_of(row), **more})


def _row_of(ex: Execution, call: Call, held: Claim) -> Row | None:
    """The row of the try that this claim's last send was."""
    name = f"{held.claim_id}:{held.tries}"
    return next((r for r in reversed(ex.attempts.get(call.key, ())) if trouble.details_of(r).get("claim") == name), None)


def proven(ex: Execution, call: Call, held: Claim) -> bool:
    """Whether it is on record that the last send did nothing, and only the probe is still to be asked."""
    row = _row_of(ex, call, held)
    if row is None or row["outcome"] == "unknown":
        return False
    details = trouble.details_of(row)
    return details.get("proof") not in (None, Proof.NONE.value) and not details.get("doubtful")


def last_approach(ex: Execution, call: Call) -> str | None:
    """How the last try went about it."""
    rows = [r for r in ex.attempts.get(call.key, ()) if r["outcome"] != "interrupted"]
    return rows[-1]["approach"] if rows else None


def young(call: Call, held: Claim, now_us: int) -> bool:
    """Whether the other side still recognises the claim's key, by its own promise (``idempotent=``)."""
    window_us = honoured_us(call.step.settings.idempotent)
    return window_us is None or now_us - held.claimed_us < window_us


# -- finding out --------------------------------------------------------------------------------------------------------


async def resolve(ex: Execution, call: Call, intent: Intent, held: Claim, *, proven: bool) -> Sent:
    """Find out about a claim in doubt.

    Args:
        ex: the run.
        call: the call it is about.
        intent: what that call wants.
        held: the claim.
        proven: it is certain that nothing happened; a probe is asked all the same, where there is one.

    Returns:
        ``done``: it had happened. ``promise``: a repeat under the same key is safe. Else it did not happen.
    """
    if not proven:
        held = await _seen(ex, call, held)
    looking = _Looking()
    while True:
        held = await as_it_stands(ex, held)
        if held.state is EffectState.DONE:  # a late receipt
            return await _found_done(ex, call, intent, held)
        if held.state is EffectState.REFUSED:
            return Sent()
        asked = question_of(ex, call, held)
        try:
            if asked is not None:
                sent, looking = await _by_person(ex, call, intent, held, asked), _Looking()
            elif call.step.hooks.probe is None:
                sent = await _without_probe(ex, call, intent, held)
            else:
                sent = await _look(ex, call, intent, held, looking, proven=proven)
        except asking.NotAsked:  # another run of the client asks: it is waited for, as for any claim that somebody holds
            return Sent()
        if sent is not None:
            return sent


async def as_it_stands(ex: Execution, held: Claim) -> Claim:
    """The claim as it is in the store now."""
    now = await ex.store.read(lambda tx: effects.look(tx, held.claim_id))
    return held if now is None else now


async def _look(  # noqa: C901, PLR0911 - whatever is found
    ex: Execution, call: Call, intent: Intent, held: Claim, looking: _Looking, *, proven: bool
) -> Sent | None:
    """Ask the probe once. ``None``: it is not known yet."""
    if not await _may_look(ex, call, intent, held):
        return None
    started_us, trial = ex.now_us(), call.trial
    safe_us = held.gate_until_us + round(call.step.settings.settle * 1e6)
    left_us = await ex.store.read(partial(_could_send_us, ex, call, held))
    if left_us is not None:
        safe_us = started_us + left_us if left_us else min(safe_us, started_us)
    try:
        found = await _probed(ex, call, intent, held)
    except NotYet:
        looking.times += 1
        if started_us > safe_us + NOT_YET_US:
            await _ask(ex, call, intent, held, "the other side keeps saying that it cannot tell yet")
        else:
            pause_us = min(NOT_YET_PAUSE_US, 1_000_000 * 2**looking.times)
            await ex.until(started_us + pause_us, f"looking whether {call.step.name} is there")
        return None
    except Conflict as other:
        if not ex.settling:
            return await clash.found_other(ex, call, held, other.found)
        await _ask(ex, call, intent, held, "something else is there under the same key")
        return None
    except Exception as error:  # noqa: BLE001 - a look that fails proves nothing
        if trial is not None:  # it was known to be down
            return None
        looking.errors += 1
        return await _look_failed(ex, call, intent, held, error, None if proven else looking.errors)
    if not isinstance(found, _Nothing):
        return await _there(ex, call, intent, held, found)
    if proven or started_us >= safe_us:
        ex.looked.add(call.key)
        return await _not_done(ex, call, held)
    await ex.until(safe_us, f"looking whether {call.step.name} is there")
    return None


async def _may_look(ex: Execution, call: Call, intent: Intent, held: Claim) -> bool:
    """Whether the probe may be asked now; if not, that was waited for, or a person was asked instead."""
    try:
        return await outages.may_look(ex, call, last_approach(ex, call))
    except outages.TooLong as silence:
        await _ask(ex, call, intent, held, str(silence))
        return False


async def _probed(ex: Execution, call: Call, intent: Intent, held: Claim) -> Any:
    """``probed``, which tells all that wait for the same resource whether it answers, if this is the look for them."""
    try:
        found = await probed(call, intent, held)
    except Exception as error:
        put_off = not isinstance(error, NotYet | Conflict) and trouble.verdict_of(ex, call, error).handling in _PASSING
        await (outages.silent(ex, call) if put_off else outages.answered(ex, call))
        raise
    else:
        await outages.answered(ex, call)
        return found
    finally:
        await outages.leave(ex, call)


def _could_send_us(ex: Execution, call: Call, held: Claim, tx: Tx) -> int | None:
    """For how long whoever made the claim could still send, and until that is to be seen; ``None``: its gate tells."""
    if held.state is EffectState.UNKNOWN:  # who sent it has said so at the send's end: it waits for nothing of ours
        return None
    o = call.step.settings
    span_us = round((o.timeout_s or WRITE_TIMEOUT_S) * 1e6)
    if held.tries == 1:  # its code may be another version of ours
        span_us = max(span_us, held.gate_until_us - held.claimed_us)
    return ex.services.worker.could_send_us(tx, held.owner, (held.claim_id, held.tries), span_us + round(o.settle * 1e6))


async def _look_failed(
    ex: Execution, call: Call, intent: Intent, held: Claim, error: Exception, errors: int | None
) -> Sent | None:
    """A look failed for the *errors*-th time; ``None``: it is proven without it, and the proof is enough."""
    if errors is None:
        return await _not_done(ex, call, held)
    if errors < PROBE_TRIES:
        await ex.until(ex.now_us() + 500_000 * 2**errors, f"looking again whether {call.step.name} is there")
    else:
        reason = free_text(trouble.verdict_of(ex, call, error).reason, 300)
        await _ask(ex, call, intent, held, f"the look-up failed: {reason}")
    return None


async def _seen(ex: Execution, call: Call, held: Claim) -> Claim:
    """A claim whose sender broke off: note that this try has no end; if the sender has ended, lower its gate, durably."""
    broke_off = held.state is EffectState.CLAIMED and _row_of(ex, call, held) is None
    worker, gated = ex.services.worker, held.owner is not None and held.gate_until_us > ex.now_us()
    if not (broke_off or gated):
        return held
    cost = call.step.settings.cost
    row = trouble.blank_attempt(call, trouble.next_n(ex, call), held.claimed_us)
    spent = None if cost is None or held.lost else to_micro(cost.usd)  # what a send that is forgotten has cost, nobody knows
    row.update(outcome="interrupted", reason=RESTORED if held.lost else BROKE_OFF, usd=spent)
    name_claim(row, held, deferred=False)
    now = ex.now_us()

    def unit(tx: Tx) -> tuple[Row | None, Claim | None]:
        ours = held.owner == worker.id and held.claim_id not in worker.in_flight  # the store failed before it was settled
        if gated and (ours or held.owner in worker.dead_workers(tx)):
            effects.lower_gate(tx, held, now)
        return steps.end_attempt(tx, ex.hold, row, now) if broke_off else None, effects.look(tx, held.claim_id)

    stored, fresh = await ex.write(unit, durable=True)
    if stored is not None:
        ex.attempts.setdefault(call.key, []).append(stored)
        ex.uusd += stored["usd"] or 0
    return fresh or held


async def probed(call: Call, intent: Intent, held: Claim) -> Any:
    """Look whether the effect is there, with the claim's own arguments.

    As outside a run: a step that the probe calls just looks, and leaves no record that would answer the next time.
    """
    probe = call.step.hooks.probe
    assert probe is not None  # noqa: S101 - asked only then
    bound = call.bound
    if held.inputs != call.digest and held.arguments is not None:
        bound = {**bound, **arguments_of(call.step, held.arguments)}
    if held.approved is not None:  # what was sent is what a person made of it; what they left alone is as it was called
        bound = {**bound, **arguments_of(call.step, _edits(held))}
    key = wire_key(intent.scope_id, intent.name, intent.key, held.generation)
    outside, inside = place.set(None), loose.set(Attempt(key=key))
    try:
        async with asyncio.timeout(call.step.settings.timeout_s or WRITE_TIMEOUT_S):
            found = await call_bound(probe, bound)
    except AlreadyDone as there:
        found = there.value
    except Superseded as signal:
        raise RuntimeError(f"the look-up was told that it may not go on: {signal.why}") from signal
    finally:
        loose.reset(inside)
        place.reset(outside)
    if call.step.typed.annotation in (None, type(None)):
        return None if found else NOTHING
    return NOTHING if found is None or found is False else found


STEP_CODE.add(probed.__code__)


def _edits(held: Claim) -> str:
    """The arguments that were approved otherwise than they had been proposed, as JSON."""
    proposed, approved = json.loads(held.arguments or "{}"), json.loads(held.approved or "{}")
    edited = {name: v for name, v in approved.items() if name not in proposed or proposed[name] != v}
    return json.dumps(edited, ensure_ascii=False)


async def _found_done(ex: Execution, call: Call, intent: Intent, held: Claim) -> Sent:
    if not effects.same_thing(held, intent, ex.hold):
        return await clash.conflict(ex, call, held)
    return Sent(done=True, value=await writing.reuse(ex, call, held))


async def _there(ex: Execution, call: Call, intent: Intent, held: Claim, found: Any) -> Sent:
    """The probe found it. What it was claimed with decides whether it is what this call wants."""
    if effects.same_thing(held, intent, ex.hold):
        return Sent(done=True, value=await writing.settled(ex, call, held, found, started_us=held.claimed_us))
    return await clash.settled_other(ex, call, held, found)


async def _not_done(ex: Execution, call: Call, held: Claim) -> Sent:
    """It is certain that it did not happen: another send is allowed. What was only put off does not count as a failure."""
    row = _put_off(ex, call, held)
    now = ex.now_us()

    def unit(tx: Tx) -> Row | None:
        effects.mark(tx, held, EffectState.REFUSED, now)
        return steps.end_attempt(tx, ex.hold, row, now) if row is not None else None

    _replace(ex, call, await ex.write(unit, durable=True))
    return Sent()


def _put_off(ex: Execution, call: Call, held: Claim) -> dict[str, Any] | None:
    row = _row_of(ex, call, held)
    if row is None or row["outcome"] != "unknown" or not trouble.details_of(row).get("deferred"):
        return None
    return {**row, "outcome": "deferred"}


def _replace(ex: Execution, call: Call, stored: Row | None) -> None:
    if stored is not None:
        rows = ex.attempts[call.key]
        rows[:] = [stored if r["n"] == stored["n"] else r for r in rows]


async def _without_probe(ex: Execution, call: Call, intent: Intent, held: Claim) -> Sent | None:
    """No way to look: the other side honours the key, or a person has to say."""
    failed = len([r for r in ex.attempts.get(call.key, ()) if r["outcome"] in ("failed", "unknown")])
    row = _put_off(ex, call, held)
    tries_left = failed - (row is not None) < call.step.settings.attempts
    same = held.inputs == call.digest and (held.approved is None or held.approved == _let_through(ex, call))
    if tries_left and same and young(call, held, ex.now_us()) and not ex.settling:
        if row is not None:
            _replace(ex, call, await ex.write(lambda tx: steps.end_attempt(tx, ex.hold, row, ex.now_us()), durable=True))
        return Sent(promise=held)
    await _ask(ex, call, intent, held, "there is no way to look")
    return None


def _let_through(ex: Execution, call: Call) -> str | None:
    """The arguments a person approved for this call: only the same ones may go out again under the same key."""
    approved = approving.standing(ex, call)
    return None if approved is None else approved.arguments


# -- people -----------------------------------------------------------------------------------------------------------


def _key(call: Call, held: Claim) -> str:
    return f"{call.key[1]}/{call.key[2]}#{held.claim_id}:{held.tries}"


def question_of(ex: Execution, call: Call, held: Claim) -> Row | None:
    """The question whether this claim's last send happened, open or answered."""
    rows = ex.questions.get((call.branch, QuestionKind.UNKNOWN_OUTCOME.value, _key(call, held)), [])
    if not rows or rows[-1]["status"] not in ("open", "answered") or rows[-1]["id"] in ex.looked_again:
        return None
    return rows[-1]


async def _ask(ex: Execution, call: Call, intent: Intent, held: Claim, why: str) -> None:
    """Ask a person whether it happened, and wait for the answer."""
    row = _row_of(ex, call, held)
    reason = str(row["reason"]) if row is not None else LOOKED_FIRST if call.key in ex.looked else BROKE_OFF
    sends = [r for r in ex.attempts.get(call.key, ()) if str(trouble.details_of(r).get("claim")).startswith(f"{held.claim_id}:")]
    draft = escalate.unknown_outcome(
        asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call),
        arguments=json.loads(held.approved or held.arguments or "{}"), reason=reason, why_unknown=why,
        key=wire_key(intent.scope_id, intent.name, intent.key, held.generation), tries=len(sends),
        lost=row is not None and bool(trouble.details_of(row).get("lost")),
    )  # fmt: skip
    failed = len([r for r in ex.attempts.get(call.key, ()) if r["outcome"] in ("failed", "unknown")])
    schema = call.step.typed.json_schema()
    signature = row["signature"] if row is not None else None
    details: dict[str, Any] = {
        "branch": call.branch, "step": call.key[1], "attempts": failed, "schema": json.dumps(schema) if schema else None,
        "signature": f"unknown outcome, {why.split(':', 1)[0]}, {signature}" if signature else None,
    }  # fmt: skip

    def another(tx: Tx) -> bool:
        row = tx.one(tx.sql.claim, {"claim_id": held.claim_id})
        return row is not None and held.run_no != ex.hold.run_no and effects.asked_by_another(tx, ex.hold, row)

    async def make(into: str | None) -> Row:
        key = _key(call, held)
        return await asking.store(ex, QuestionKind.UNKNOWN_OUTCOME, key, draft, folded_into=into, unless=another, **details)

    # A look-up that failed may succeed later: in a map such questions are folded into one, whose "again" looks again.
    if call.step.hooks.probe is not None:
        await asking.in_map(ex, call, make)
    else:
        await asking.answered(ex, call, await make(None))


async def _by_person(ex: Execution, call: Call, intent: Intent, held: Claim, row: Row) -> Sent | None:
    """Do what the person found out. ``None``: look again."""
    row = await asking.answered(ex, call, row)
    if row["status"] != "answered":  # taken back: a late receipt came
        return None
    answer = json.loads(row["answer"])
    choice = choice_of(answer)
    if choice == "stop":
        stopped(ex, call, row)
        if ex.settling:  # it stays unsettled: that was what the person chose
            return Sent()
        await ex.forever()
    if choice == "skip":
        await choices.obey(ex, call, policy.Obey(choice="skip", answer=answer, by=row["answered_by"]))
        return Sent(done=True)
    held = await as_it_stands(ex, held)
    if choice == "happened" and held.state is not EffectState.DONE:
        if not effects.same_thing(held, intent, ex.hold):
            return await clash.settled_other(ex, call, held, answer["receipt"])
        value = await writing.settled_by_hand(ex, call, held, answer["receipt"], row["answered_by"])
        return Sent(done=True, value=value)
    outdated = await ex.store.read(partial(restoring.from_before, row["answered_us"]))  # it may have been done since then
    if choice == "not_happened" and held.state is not EffectState.DONE and not outdated:  # else a late receipt came meanwhile
        return await _not_done(ex, call, held)
    if choice == "wait" and isinstance(answer, dict) and "until" in answer:
        until_us = answer["until"] if answer["until"] != policy.ANSWERS else row["answered_us"] + policy.LOOK_EVERY_US
        await ex.until(until_us, f"looking again whether {call.step.name} is there")
    ex.looked_again.add(row["id"])
    return None


def stopped(ex: Execution, call: Call, row: Row) -> None:
    """A person said stop."""
    from stepseven.runtime.memory import Stop

    ex.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']}", call.step.name, FailureKind.FIXABLE))
