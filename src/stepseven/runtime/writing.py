"""A write step: claimed, sent, settled. Happens once, or stops and says that it cannot know.

The claim row is the begin and is on the disk before the step's code starts; the receipt and the record are one commit.
``sending`` makes one send, ``doubt`` finds out about one that nobody knows the end of, ``clash`` asks when two calls under
one key say different things. Here is the loop around them, and what becomes of a receipt.

Longer than other files: what is claimed, the loop, and the receipt are one path that is read from its top to its end.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepseven.decide import escalate, policy
from stepseven.errors import NotRecordable, StepsevenError, Superseded
from stepseven.model import QuestionKind, to_micro
from stepseven.runtime import (
    approving,
    asking,
    choices,
    clash,
    doubt,
    outages,
    reading,
    rekeyed,
    remembering,
    sending,
    trouble,
    verifying,
)
from stepseven.runtime.attempt import Attempt
from stepseven.runtime.choices import BY_HAND
from stepseven.store.codec import digest, free_text
from stepseven.transitions import effects, steps
from stepseven.transitions.effects import REFUSED_RESULT, Claim, Intent, Verdict
from stepseven.transitions.questions import REFUSED

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.transitions.state import Record


class Unkept(Exception):
    """It was done and is settled, but what came back could not be kept."""


async def write(ex: Execution, call: Call) -> Any:
    """The result of a write step."""
    reading.as_named_before(ex, call)
    intent = await as_claimed(ex, call)
    lane = (intent.scope, intent.scope_id, intent.name, intent.key)
    while True:
        record = record_of(ex, call)
        if record is not None:
            value = reading.value_of(ex, call, record)
            if value is not reading._MISSING:  # noqa: SLF001 - else its artifact is gone: the receipt is the same text
                if ex.questions and not record.used:
                    await clash.asked_for(ex, call)
                record.used = True
                if ex.recovery and verifying.suspect(ex, call, record):
                    await verifying.holds(ex, call, record)  # it does: what its receipt names, and is gone, is noted
                return value
        await ex.may_begin(call)
        flight = ex.flights.get(lane)
        if flight is None:
            break
        async with asking.aside(ex, call):
            await ex.shared(flight)
    await ex.take_lane(lane)
    call.lane = lane
    ex.store.enter()
    try:
        return await _until_done(ex, call, intent)
    finally:
        ex.store.leave()
        if call.lane is not None:
            ex.free_lane(lane)


def record_of(ex: Execution, call: Call) -> Record | None:
    """The record that answers the call: with these inputs, whatever the same key was used for since."""
    record = ex.records.get(call.key)
    if record is None or record.inputs == call.digest:
        return record
    if record.state != "done" and not is_refusal(record):
        return record
    older = (r for r in reversed(ex.older_of(call.key)) if r.inputs == call.digest)
    return next((r for r in older if r.state == "done" or is_refusal(r)), None)


def is_refusal(record: Record) -> bool:
    """Whether a person said no: that is about what was proposed then."""
    return record.state == "failed" and record.why == REFUSED


def intent_of(ex: Execution, call: Call) -> Intent:
    """What the call wants to do outside, as it will be claimed."""
    o = call.step.settings
    key = call.key[2] if o.key is not None else "/".join(filter(None, (call.key[2], call.branch)))
    return Intent(
        scope=o.scope, scope_id=ex.hold.client_id if o.scope == "client" else ex.hold.root_id, name=o.effect_name or o.name,
        key=key, step=o.name, branch=call.branch, inputs=call.digest, arguments=call.arguments(),
        timeout_us=round((o.timeout_s or 0) * 1e6), proposed=approving.needed(call), undo_module=call.step.undo_module,
        can_look=call.step.hooks.probe is not None,
    )  # fmt: skip


async def as_claimed(ex: Execution, call: Call) -> Intent:
    """What the call wants to do outside, under the name it is, or would be, claimed under: a rename is no second effect."""
    intent, step = intent_of(ex, call), call.step
    declared = step.settings.renamed_from if step.settings.effect_name is None else ()
    said = [name for name in ex.names_before(step) if name not in step.settings.renamed_from] if ex.renamed else []
    if not declared and not said:
        return intent
    if said and ex.claimed_as is None:  # once: from then on the run claims nothing under older names that are not known
        ex.claimed_as = await ex.store.read(lambda tx: {(c["step"], c["name"]): None for c in rekeyed.claims_of(ex, tx)})
    names = [*declared, *said, *(name for of, name in ex.claimed_as or () if of in said)]

    def unit(tx: Any) -> str:
        return next((n for n in names if tx.one(tx.sql.effect, {**intent.where(), "name": n}) is not None), intent.name)

    return replace(intent, name=await ex.store.read(unit))


async def _until_done(ex: Execution, call: Call, wanted: Intent) -> Any:  # noqa: C901 - one branch for each move
    held: Claim | None = None  # a claim in doubt
    intent = await rekeyed.begun(ex, call, wanted)
    if call.key in ex.attempts or asking.about_failure(ex, call):
        held = await doubt.standing_claim(ex, intent)
    proven = held is not None and doubt.proven(ex, call, held)
    while True:
        promise = None
        if held is not None:
            sent = await doubt.resolve(ex, call, intent, held, proven=proven)
            if sent.done:
                return sent.value
            promise = sent.promise
        if intent is not wanted and promise is None:
            intent = await rekeyed.begun(ex, call, wanted)
        move = await outages.instead(ex, call, trouble.move_for(ex, call))
        if move is None:
            held, proven = promise, False
            continue
        if isinstance(move, policy.Obey) and move.choice == "happened":  # the claim knows: it is looked at once more
            move = policy.Try(number=1)
        if isinstance(move, policy.Try):
            await trouble.before(ex, call, move)
            sent = await sending.claim_and_send(ex, call, intent, move, promise)
            if sent.done:
                return sent.value
            held, proven = sent.doubt, sent.proven
            continue
        held, proven = promise, False  # by the time a person has answered the promise may have run out
        done, value = await _otherwise(ex, call, intent, move)
        if done:
            return value


async def _otherwise(ex: Execution, call: Call, intent: Intent, move: policy.Move) -> tuple[bool, Any]:
    """Every move but a try: (is the step finished?, its value)."""
    if isinstance(move, policy.Ask):
        if call.step.settings.on_failure == "raise":
            raise await choices.give_up(ex, call, trouble.last_reason(ex, call), trouble.last_kind(ex, call))
        await asking.failure(ex, call)
    elif isinstance(move, policy.Wait):
        await asking.wait_for(ex, call, move.question_id)
    elif isinstance(move, policy.Give):
        await choices.fatal(ex, call, move.reason)
    elif isinstance(move, policy.Obey):
        if move.choice not in ("value", "by_hand"):
            return await choices.obey(ex, call, move)
        if await choices.fits(ex, call, move):
            return await _done_by_hand(ex, call, intent, move)
    return False, None


async def _done_by_hand(ex: Execution, call: Call, intent: Intent, move: policy.Obey) -> tuple[bool, Any]:
    """A person did it, or knows the result: that is the receipt, unless there is one by now."""
    given, by = call.step.typed.validate_python(choices.given_by(move)), move.by or "a person"
    record, text, back = reading.made(ex, call, given, Attempt(), ex.now_us(), approach=BY_HAND, judged=True)
    record.effect, record.inputs, record.usd = call.step.settings.effect.value, call.digest, None
    record.why = f"given by {by}"
    artifact, fact = ex.artifact_of(text), remembering.fact_of(ex, call, text, by)
    record.result, record.artifact = (text, None) if artifact is None else (None, artifact.hash)
    claim_id, told = ex.edge.new_id("c"), replace(intent, proposed=False)  # a person's own deed needs no other's word
    now = ex.now_us()

    def unit(tx: Any) -> Claim:  # all at once: a claim that stands alone after a crash would look like a send nobody saw end
        claim = effects.claim(tx, ex.hold, told, claim_id, now, proven_dead=ex.services.worker.dead_workers(tx))
        if claim.verdict in (Verdict.GO, Verdict.UNKNOWN):
            effects.settle(tx, claim, text, now)
            _inherit(tx, ex, call, claim)
            remembering.learn(tx, record, fact, now_us=now)
            steps.append(tx, ex.hold, record, now_us=now, artifact=artifact)
        elif claim.verdict is Verdict.REUSE and move.choice == "by_hand":
            effects.done_twice(tx, claim.claim_id, text, _twice_id(ex, claim), now)
        return claim

    claim: Claim = await ex.write(unit, durable=True, then=lambda c: _keep_settled(ex, record, c))
    if claim.verdict is Verdict.BUSY:
        await sending.busy(ex, call)
        return False, None
    if claim.verdict is Verdict.CONFLICT:
        sent = await clash.conflict(ex, call, claim)
        return sent.done, sent.value
    if claim.verdict is Verdict.REUSE:
        return True, await reuse(ex, call, claim)
    ex.tell_step(record)
    return True, back


def _keep_settled(ex: Execution, record: Record, claim: Claim) -> None:
    if claim.verdict in (Verdict.GO, Verdict.UNKNOWN):
        ex.keep(record)


def _twice_id(ex: Execution, claim: Claim) -> str:
    """The id of the question about this run's deed by hand beside the claim: the same after a crash."""
    return f"q_{digest(f'{claim.claim_id} by hand in {ex.hold.run_id}')}"


# -- the receipt ----------------------------------------------------------------------------------------------------------


async def settled(  # noqa: PLR0913 - what is recorded of a send
    ex: Execution,
    call: Call,
    claim: Claim,
    value: Any,
    *,
    attempt: Attempt | None = None,
    started_us: int,
    approach: str | None = None,
    why: str | None = None,
    by: str | None = None,
) -> Any:
    """Write the receipt and the record, in one commit. A result that is refused did happen all the same.

    Args:
        ex: the run.
        call: the call it answers.
        claim: what was done.
        value: what came back.
        attempt: the try that did it; ``None`` when it was found, given or done before.
        started_us: when that began.
        approach: how it was done.
        why: where the value comes from, if not from the step's code.
        by: the person who gave it, if one did.

    Returns:
        The value as it is on record.

    Raises:
        Unkept: a send's result is refused. It is settled; what is missing is the value.
    """
    try:
        record, text, back = reading.made(ex, call, value, attempt or Attempt(), started_us, approach=approach, judged=True)
    except Exception as refused:  # whatever is wrong with the value, it is what came back
        told = free_text(str(refused) if isinstance(refused, StepsevenError) else f"{type(refused).__name__}: {refused}", 300)
        await _settled_without(ex, call, claim, told, attempt, _spent(call, claim, attempt, started_us, approach))
        if attempt is not None:
            raise Unkept from refused
        return await missing_receipt(ex, call, claim, told)
    record.effect, record.inputs = call.step.settings.effect.value, call.digest
    record.why = why or record.why
    if attempt is None:
        record.usd = None  # what it cost is in the row of the try that did it
    artifact = ex.artifact_of(text)
    record.result, record.artifact = (text, None) if artifact is None else (None, artifact.hash)
    now, fact, also = record.ended_us or ex.now_us(), remembering.fact_of(ex, call, text, by), outages.closing(ex, call)

    def both(tx: Any) -> None:
        _keep(tx, call, claim, text, attempt)
        remembering.learn(tx, record, fact, anew=claim.run_no == ex.hold.run_no, now_us=now)
        steps.append(tx, ex.hold, record, now_us=now, artifact=artifact)
        if also is not None:
            also(tx)

    try:
        plain = attempt is not None and claim.scope == "run" and fact is None and artifact is None and also is None
        if not plain or not await _settled_at_once(ex, claim, record, text):
            await ex.write(both, durable=True, then=lambda _: ex.keep(record))
        outages.won(ex, call)
    except Superseded:  # not ours any more, but it did happen
        spent = _spent(call, claim, attempt, started_us, approach)

        def late(tx: Any) -> None:
            effects.late_receipt(tx, claim, text, ex.edge.new_id("q"), now)
            if spent is not None:
                note_cost(tx, ex, claim, spent, now)

        await ex.store.write(late, durable=True, client=ex.hold.client_id)
        raise
    ex.tell_step(record)
    return back


async def _settled_at_once(ex: Execution, claim: Claim, record: Record, text: str) -> bool:
    """Record and receipt, where nothing has to be looked at in between: in one trip to the server. Whether they are written."""

    def unit(tx: Any) -> Any:
        return effects.settle_with(tx, ex.hold, claim, record, text)

    def done(sent: Any) -> bool:
        return all(each.rows_written() == 1 for each in sent)

    return done(await ex.write(unit, durable=True, then=lambda sent: ex.keep(record) if done(sent) else None, asks=False))


async def _settled_without(
    ex: Execution, call: Call, claim: Claim, told: str, attempt: Attempt | None, spent: dict[str, Any] | None
) -> None:
    """Settle a claim whose receipt was refused: no record will tell what it has cost, so its try does."""

    def unit(tx: Any) -> Any:
        _keep(tx, call, claim, json.dumps({REFUSED_RESULT: told}), attempt)
        if spent is None:
            return None
        if tx.one(tx.sql.guard_run, ex.hold.keys()) is None:
            return note_cost(tx, ex, claim, spent, ex.now_us())
        row = {**spent, "n": trouble.next_n(ex, call), "outcome": "interrupted"}
        return steps.end_attempt(tx, ex.hold, row, ex.now_us())

    stored = await ex.store.write(unit, durable=True, client=ex.hold.client_id)
    if stored is not None:
        ex.attempts.setdefault(call.key, []).append(stored)
        ex.uusd, ex.tokens = ex.uusd + (stored["usd"] or 0), ex.tokens + (stored["tokens"] or 0)


def _spent(call: Call, claim: Claim, attempt: Attempt | None, started_us: int, approach: str | None) -> dict[str, Any] | None:
    """A row for what a send has cost that leaves no record of its own; ``None``: nothing."""
    cost = call.step.settings.cost
    if attempt is None or (cost is None and attempt.uusd is None and attempt.tokens is None):
        return None
    row = trouble.blank_attempt(call, 0, started_us)
    declared = None if cost is None else to_micro(cost.usd)
    row.update(
        approach=approach, reason="it was done; this is what it has cost", tokens=attempt.tokens,
        usd=declared if attempt.uusd is None else attempt.uusd,
    )  # fmt: skip
    doubt.name_claim(row, claim, deferred=False)
    return row


def note_cost(tx: Any, ex: Execution, claim: Claim, row: dict[str, Any], now_us: int) -> None:
    """Write down what a send has cost, whoever owns its run by now."""
    steps.late_cost(tx, ex.hold.run_no, row, f"{claim.claim_id}:{claim.tries}", now_us)


def _keep(tx: Any, call: Call, claim: Claim, text: str, attempt: Attempt | None) -> None:
    """Write the receipt; if a send finds another one there, something was done twice."""
    ex = call.execution
    now = ex.now_us()
    if effects.settle(tx, claim, text, now):
        if attempt is None:
            _inherit(tx, ex, call, claim)
        return
    if attempt is not None:
        effects.done_twice(tx, claim.claim_id, text, ex.edge.new_id("q"), now)
    elif not text.startswith('{"' + REFUSED_RESULT):
        effects.fill(tx, claim.claim_id, text)


def _inherit(tx: Any, ex: Execution, call: Call, claim: Claim) -> None:
    """It was found out here that a claim had happened: if another run left it, it is ours now."""
    if claim.run_no != ex.hold.run_no:
        effects.inherit(tx, ex.hold, claim.claim_id, branch=call.branch, inputs=call.digest, now_us=ex.now_us())


async def settled_by_hand(ex: Execution, call: Call, claim: Claim, given: Any, by: str | None) -> Any:
    """A person says that it happened and what came back. If that does not fit, it happened all the same."""
    try:
        value = call.step.typed.validate_python(given)
    except NotRecordable as misfit:
        told = f"what was given does not fit: {misfit}"
        receipt = json.dumps({REFUSED_RESULT: told})
        await ex.store.write(lambda tx: _keep(tx, call, claim, receipt, None), durable=True, client=ex.hold.client_id)
        return await missing_receipt(ex, call, claim, told)
    why = f"given by {by or 'a person'}"
    return await settled(ex, call, claim, value, started_us=claim.claimed_us, approach=BY_HAND, why=why, by=by or "a person")


async def reuse(ex: Execution, call: Call, claim: Claim) -> Any:
    """The effect is there already: the first receipt is this call's result."""
    receipt = claim.receipt if claim.receipt is not None else "null"
    if receipt.startswith('{"' + REFUSED_RESULT):
        return await missing_receipt(ex, call, claim, json.loads(receipt)[REFUSED_RESULT])
    try:
        value = call.step.typed.decode(receipt)
    except NotRecordable as misfit:  # another step under the same effect name, or other code than then
        return await missing_receipt(ex, call, claim, str(misfit))
    return await settled(ex, call, claim, value, started_us=ex.now_us())


async def missing_receipt(ex: Execution, call: Call, claim: Claim, why: str) -> Any:
    """It was done, but what came back could not be kept: ask for the value, do nothing again."""
    while True:
        rows = ex.questions.get((call.branch, QuestionKind.REQUIRED.value, f"{claim.claim_id}/receipt"), [])
        row = rows[-1] if rows and rows[-1]["status"] in ("open", "answered") else None
        if row is not None and row["status"] == "answered":
            try:
                value = call.step.typed.validate_python(json.loads(row["answer"]))
                call.step.typed.roundtrip(value)
            except NotRecordable as misfit:
                why, row = f"what was given does not fit: {misfit}", None
            else:
                why = f"given by {row['answered_by'] or 'a person'}"
                by = row["answered_by"] or "a person"
                return await settled(ex, call, claim, value, started_us=ex.now_us(), approach=BY_HAND, why=why, by=by)
        await asking.answered(ex, call, row or await _ask_for_receipt(ex, call, claim, why))


async def _ask_for_receipt(ex: Execution, call: Call, claim: Claim, why: str) -> Any:
    draft = escalate.receipt(
        asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call), why=why
    )  # fmt: skip
    schema = call.step.typed.json_schema()
    return await asking.store(
        ex, QuestionKind.REQUIRED, f"{claim.claim_id}/receipt", draft, branch=call.branch, step=call.key[1],
        schema=json.dumps(schema) if schema else None,
    )  # fmt: skip
