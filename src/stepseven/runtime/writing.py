"""A write step: claimed, sent, settled. Happens once, or stops and says that it cannot know.

The claim row is the begin and is on the disk before the step's code starts; the receipt and the record are one commit.
``sending`` makes one send, ``doubt`` finds out about one that nobody knows the end of, ``clash`` asks when two calls under
one key say different things. Here is the loop around them, and what becomes of a receipt.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepseven.decide import escalate, policy
from stepseven.errors import NotRecordable, StepsevenError, Superseded
from stepseven.model import EffectKind, QuestionKind
from stepseven.runtime import asking, choices, clash, doubt, reading, sending, trouble
from stepseven.runtime.attempt import Attempt
from stepseven.store.codec import free_text
from stepseven.transitions import effects, steps
from stepseven.transitions.effects import REFUSED_RESULT, Claim, Intent, Verdict

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.declared import Step
    from stepseven.runtime.execution import Execution
    from stepseven.transitions.state import Record

BY_HAND = choices.BY_HAND


class Unkept(Exception):
    """It was done and is settled, but what came back could not be kept."""


def refuse_irreversible(step: Step[Any, Any]) -> None:
    """Say at the call what this version cannot do.

    Raises:
        StepsevenError: the step is irreversible. Nothing was done.
    """
    if step.settings.effect is EffectKind.IRREVERSIBLE:
        raise StepsevenError(
            f"step {step.name!r} has effect='irreversible', and steps that are approved first come with a later release of "
            "stepseven: nothing was done; ask with run.ask() before a step with effect='write' until then"
        )


async def write(ex: Execution, call: Call) -> Any:
    """The result of a write step."""
    intent = intent_of(ex, call)
    lane = (intent.scope, intent.scope_id, intent.name, intent.key)
    while True:
        record = _record_of(ex, call)
        if record is not None:
            value = reading.value_of(ex, call, record)
            if value is not reading._MISSING:  # noqa: SLF001 - else its artifact is gone: the receipt is the same text
                record.used = True
                return value
        ex.check()
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


def _record_of(ex: Execution, call: Call) -> Record | None:
    """The record that answers the call: with these inputs, whatever the same key was used for since."""
    record = ex.records.get(call.key) or reading.renamed(ex, call)
    if record is None or record.inputs == call.digest or record.state != "done":
        return record
    older = (r for r in reversed(ex.older) if (r.branch, r.name, r.key) == call.key and r.state == "done")
    return next((r for r in older if r.inputs == call.digest), None)


def intent_of(ex: Execution, call: Call) -> Intent:
    """What the call wants to do outside, as it will be claimed."""
    o = call.step.settings
    key = call.key[2] if o.key is not None else "/".join(filter(None, (call.key[2], call.branch)))
    return Intent(
        scope=o.scope, scope_id=ex.hold.client_id if o.scope == "client" else ex.hold.root_id, name=o.effect_name or o.name,
        key=key, step=o.name, branch=call.branch, inputs=call.digest, arguments=call.arguments(),
        timeout_us=round((o.timeout_s or 0) * 1e6),
    )  # fmt: skip


async def _until_done(ex: Execution, call: Call, intent: Intent) -> Any:
    held: Claim | None = None  # a claim in doubt
    repeat: Claim | None = None  # one that may be sent again all the same
    proven = False
    if call.key in ex.attempts or asking.about_failure(ex, call):
        held = await doubt.standing_claim(ex, intent)
    while True:
        if held is not None:
            found = await doubt.resolve(ex, call, intent, held, proven=proven)
            if found.done:
                return found.value
            held, repeat, proven = found.doubt, found.repeat, False
            if held is not None:
                continue
        move = trouble.move_for(ex, call)
        again, repeat = repeat, None  # only at once: after a long wait the key may no longer be honoured
        if isinstance(move, policy.Try):
            await trouble.before(ex, call, move)
            sent = await _claim_and_send(ex, call, intent, move, again)
            if sent.done:
                return sent.value
            held, proven = sent.doubt, sent.proven
        elif isinstance(move, policy.Ask):
            if call.step.settings.on_failure == "raise":
                raise await choices.give_up(ex, call, trouble.last_reason(ex, call), trouble.last_kind(ex, call))
            await asking.failure(ex, call)
        elif isinstance(move, policy.Wait):
            await asking.wait_for(ex, call, move.question_id)
        elif isinstance(move, policy.Give):
            await choices.fatal(ex, call, move.reason)
        elif move.choice in ("value", "by_hand"):
            if await choices.fits(ex, call, move):
                return await receipt_by_hand(ex, call, intent, choices.given_by(move), f"by {move.by or 'a person'}")
        else:
            done, value = await choices.obey(ex, call, move)
            if done:
                return value


async def _claim_and_send(ex: Execution, call: Call, intent: Intent, move: policy.Try, repeat: Claim | None) -> Sent:
    """Claim (or send again under a claim in doubt), and do whatever the claim finds."""
    same = await conflict_after_change(ex, call)
    if same is not None:
        return same
    reserved = await ceilings.reserve(ex, call)
    try:
        claim_id = ex.edge.new_id("c")
        second = doubt.seconds_wanted(ex, call)

        def unit(tx: Any) -> Claim:
            now = effects.look(tx, repeat.claim_id) if repeat is not None else None
            if now is not None and repeat is not None and (now.tries, now.state) == (repeat.tries, repeat.state):
                return effects.retry(tx, ex.hold, intent, repeat, ex.now_us())
            dead = ex.services.worker.dead_workers(tx)
            return effects.claim(tx, ex.hold, intent, claim_id, ex.now_us(), proven_dead=dead, second=second)

        claim = await ex.write(unit, durable=True)
        if claim.verdict is Verdict.GO and _look_first(ex, call):
            return Sent(done=False, doubt=claim, proven=True)
        if claim.verdict is Verdict.GO:
            return await send(ex, call, intent, claim, move)
    finally:
        ceilings.free(ex, reserved)
    if claim.verdict is Verdict.REUSE:
        return Sent(done=True, value=await reuse(ex, call, claim))
    if claim.verdict is Verdict.BUSY:
        what = f"{call.step.name}: another run is doing the same thing"
        await ex.wait(DurableWait(kind=WaitingFor.EFFECT, what=what, until_us=ex.now_us() + BUSY_LOOK_US))
        return Sent(done=False)
    if claim.verdict is Verdict.CONFLICT:
        return await doubt.conflict(ex, call, intent, claim)
    return Sent(done=False, doubt=claim)


def _look_first(ex: Execution, call: Call) -> bool:
    """Whether a probe looks before the first send: after a long wait or in a recovery somebody may have done it by hand."""
    o = call.step.settings
    if call.step.hooks.probe is None or o.probe_first == "never" or call.key in ex.looked:
        return False
    if o.probe_first == "always" or ex.recovery:
        ex.looked.add(call.key)
        return True
    return False


async def send(ex: Execution, call: Call, intent: Intent, claim: Claim, move: policy.Try) -> Sent:
    """Run the step's code under its claim. Whoever cancels us waits until it has ended and is recorded."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(_send(ex, call, intent, claim, move))
    ex.tasks.discard(task)  # it is not the run's own code: nobody cancels it
    ex.sending.add(task)
    task.add_done_callback(ex.sending.discard)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except BaseException:  # noqa: BLE001 - raised below, from the task
            break
    if cancelled:
        if not task.cancelled():
            task.exception()
        raise asyncio.CancelledError
    return task.result()


async def _send(ex: Execution, call: Call, intent: Intent, claim: Claim, move: policy.Try) -> Sent:
    o = call.step.settings
    seconds = o.timeout_s or 0.0
    ends = ex.edge.monotonic() + seconds
    closed = False

    def lost() -> str | None:
        if ex.lost is not None:
            return ex.lost
        return "this attempt was given up" if closed else None

    attempt = trouble.attempt_for(
        ex, call, move, key=wire_key(intent.scope_id, intent.name, intent.key, claim.generation),
        gate=gate(ex.services, lost, ex.hold.run_id, lambda: ends),
    )  # fmt: skip
    started_us = ex.now_us()
    error: BaseException | None = None
    value: Any = None
    running: asyncio.Future[Any] | None = None
    try:
        ex.services.worker.in_flight.add(claim.claim_id)
        running = _start(ex, call, trouble.function_for(call, move.approach), attempt)
        running.add_done_callback(lambda _: ex.services.worker.in_flight.discard(claim.claim_id))
        value = await asyncio.wait_for(_end_of(running), seconds or None)
        reading.checked(call, value)
    except AlreadyDone as already:
        value = already.value
    except (TimeoutError, asyncio.CancelledError) as late:
        timed_out = ex.edge.monotonic() >= ends and not str(late)
        error = TimeoutError(f"no answer within {seconds:g} s") if timed_out else late
    except Exception as raised:  # noqa: BLE001 - classified and recorded
        error = raised
    closed = True
    if isinstance(error, Superseded):
        raise error
    if error is None:
        return Sent(done=True, value=await settled(ex, call, claim, value, attempt, started_us, move.approach))
    if running is not None and not running.done():  # a thread cannot be stopped: its receipt is kept when it comes
        _watch_late(ex, call, claim, running)
        return await _unsettled(ex, call, claim, move, attempt, started_us, error, still_running=True)
    return await _unsettled(ex, call, claim, move, attempt, started_us, error, still_running=False)


def _start(ex: Execution, call: Call, fn: Callable[..., Any], attempt: Attempt) -> asyncio.Future[Any]:
    """Start the step's code: as a task, or in a thread."""
    inner = Place(ex, call.inner_branch(), attempt=attempt, item=call.place.item)
    token = place.set(inner)
    try:
        return start_plain(fn, call.bound)
    finally:
        place.reset(token)


async def _end_of(running: asyncio.Future[Any]) -> Any:
    """Wait for the code's end; a coroutine is cancelled with us, a thread goes on."""
    if isinstance(running, asyncio.Task):
        return await running
    return await asyncio.shield(running)


def _watch_late(ex: Execution, call: Call, claim: Claim, running: asyncio.Future[Any]) -> None:
    """A timed-out thread still runs. If it succeeds after all, that did happen: keep the receipt, whatever the fence."""
    worker, store, edge = ex.services.worker, ex.store, ex.edge
    worker.zombies += 1
    typed, secrets = call.step.typed, call.step.settings.secrets

    def ended(future: asyncio.Future[Any]) -> None:
        worker.zombies -= 1
        if future.cancelled() or future.exception() is not None:
            return
        try:
            text = guard(typed.encode(future.result()), "receipt", secrets=secrets)
        except StepsevenError:
            text = json.dumps({REFUSED_RESULT: "a late result that could not be kept"})
        now = edge.now_us()
        with suppress(StepsevenError):  # the store is away: the probe or the question will tell
            store.write_now(lambda tx: questions.late_receipt(tx, claim, text, edge.new_id("q"), now), durable=True)

    running.add_done_callback(ended)


async def settled(
    ex: Execution, call: Call, claim: Claim, value: Any, attempt: Attempt, started_us: int, approach: str | None
) -> Any:
    """Write the receipt and the record, in one commit. A result that is refused did happen all the same.

    Returns:
        The value as it is on record.
    """
    try:
        record, text, back = reading.made(ex, call, value, attempt, started_us, approach=approach)
    except (NotRecordable, TooLarge, SecretFound) as refused:
        receipt = json.dumps({REFUSED_RESULT: str(refused)})
        await ex.write(lambda tx: effects.settle(tx, claim.claim_id, receipt, ex.now_us()), durable=True)
        return await missing_receipt(ex, call, claim, str(refused))
    record.effect, record.inputs = call.step.settings.effect.value, call.digest
    artifact = ex.artifact_of(text)
    record.result, record.artifact = (text, None) if artifact is None else (None, artifact.hash)
    now = record.ended_us or ex.now_us()

    def unit(tx: Any) -> None:
        effects.settle(tx, claim.claim_id, text, now)

    def both(tx: Any) -> None:
        unit(tx)
        steps.append(tx, ex.hold, record, now_us=now, artifact=artifact)

    try:
        await ex.write(both, durable=True)
    except Superseded:
        await ex.store.write(unit, durable=True)  # not ours any more, but it did happen
        raise
    ex.keep(record)
    ex.services.tell(ex.hold.run_id, "step", name=record.name, branch=record.branch, summary=record.summary)
    return back


async def reuse(ex: Execution, call: Call, claim: Claim) -> Any:
    """The effect is there already: the first receipt is this call's result."""
    receipt = claim.receipt if claim.receipt is not None else "null"
    if receipt.startswith('{"' + REFUSED_RESULT):
        return await missing_receipt(ex, call, claim, json.loads(receipt)[REFUSED_RESULT])
    value = call.step.typed.decode(receipt)
    return await settled(ex, call, claim, value, Attempt(), ex.now_us(), None)


async def missing_receipt(ex: Execution, call: Call, claim: Claim, why: str) -> Any:
    """It was done, but what came back could not be kept: ask for the value, do nothing again."""
    key = f"{claim.claim_id}/receipt"
    rows = ex.questions.get((call.branch, QuestionKind.REQUIRED.value, key), [])
    row = rows[-1] if rows else None
    if row is None:
        draft = escalate.failure(
            asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call), resource=None,
            tried=(), alternatives=(), effect=call.step.settings.effect, nothing_changed=False, needs="receipt",
            ask=f"It was done, but I could not keep what came back ({why}). What is the receipt?", result_type=None,
            usd=None, seconds=None,
        )  # fmt: skip
        schema = call.step.typed.json_schema()
        row = await asking.store(
            ex, QuestionKind.REQUIRED, key, draft, branch=call.branch, step=call.step.name,
            schema=json.dumps(schema) if schema else None,
        )  # fmt: skip
    row = await ex.answered(row)
    value = call.step.typed.validate_python(json.loads(row["answer"]))
    return await settled(ex, call, claim, value, Attempt(), ex.now_us(), "by hand")


async def receipt_by_hand(ex: Execution, call: Call, intent: Intent, given: Any, why: str) -> Any:
    """A person did it, or knows the result: that is the receipt."""
    value = call.step.typed.validate_python(given)
    claim_id = ex.edge.new_id("c")

    def unit(tx: Any) -> Claim:
        return effects.claim(tx, ex.hold, intent, claim_id, ex.now_us(), proven_dead=ex.services.worker.dead_workers(tx))

    claim = await ex.write(unit, durable=True)
    value = await settled(ex, call, claim, value, Attempt(), ex.now_us(), "by hand")
    ex.records[call.key].why = why
    return value


async def _unsettled(
    ex: Execution, call: Call, claim: Claim, move: policy.Try, attempt: Attempt, started_us: int, error: BaseException,
    *, still_running: bool,
) -> Sent:  # fmt: skip
    """The send ended in an exception: write down what is known, in one commit with the claim's new state."""
    verdict = trouble.verdict_of(ex, call, error)
    proven = verdict.proof is not Proof.NONE and not still_running
    row = trouble.attempt_row(ex, call, verdict, attempt, started_us, move.approach, error)
    if not proven:
        row["outcome"] = "unknown"
    probe = call.step.hooks.probe is not None
    state = EffectState.REFUSED if proven and not probe and not claim.doubtful else EffectState.UNKNOWN
    ended = None if still_running else ex.now_us()
    await trouble.record_attempt(
        ex, call, row, lambda tx: effects.mark(tx, claim, state, ex.now_us(), gate_until_us=ended)
    )  # fmt: skip
    if state is EffectState.REFUSED:
        return Sent(done=False)
    held = await ex.store.read(lambda tx: effects.look(tx, claim.claim_id))
    return Sent(done=False, doubt=held or claim, proven=proven and not claim.doubtful)


async def conflict_after_change(ex: Execution, call: Call) -> Sent | None:
    """An earlier step gave another result than last time, and a receipt of this step stands that nobody asked for: ask."""
    if call.branch not in ex.diverged or call.key in ex.records:
        return None
    old = ex.unused_like(call.key)
    if old is None or old.effect is None:
        return None
    key = f"{call.step.name}/{call.key[2]}/{old.key}"
    rows = ex.questions.get((call.branch, QuestionKind.CONFLICT.value, key), [])
    row = rows[-1] if rows else None
    if row is None:
        first = await ex.store.read(lambda tx: doubt.arguments_of(tx, ex.hold.run_no, old))
        receipt = json.loads(ex.result_text(old) or "null")
        draft = escalate.conflict(
            asking.situation(ex, call.step.name), step=call.step.name, subject=asking.subject_of(call), first=first,
            now=json.loads(call.arguments()), receipt=receipt, reason="an earlier step gave another result than last time",
        )  # fmt: skip
        row = await asking.store(ex, QuestionKind.CONFLICT, key, draft, branch=call.branch, step=call.step.name)
    row = await ex.answered(row)
    choice = choice_of(json.loads(row["answer"] or "null"))
    if choice == "stop":
        doubt.stopped(ex, call, row)
        await ex.forever()
    old.used = True
    if choice != "same":
        return None
    text = ex.result_text(old) or "null"
    value = call.step.typed.decode(text) if text != "null" else None
    record, text = doubt.kept_first(ex, call, value, text, row["answered_by"])
    await ex.append(record, durable=True, text=text)
    return Sent(done=True, value=value)
