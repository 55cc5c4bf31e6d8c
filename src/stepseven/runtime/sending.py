"""One send of a write: claimed, run under its time-out, recorded whatever becomes of it.

It runs in a task of its own. Whoever cancels the caller waits until the send has ended and is on record. A thread cannot be
stopped: when its time is up it is given up, may not pass the gate any more, and its receipt is kept if it comes late.

Longer than other files: the way of one send, from its claim to what became of it, is read in one piece.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import policy
from stepseven.decide.classify import Proof
from stepseven.errors import AlreadyDone, Retryable, StepsevenError, Superseded
from stepseven.keys import wire_key
from stepseven.model import EffectState, WaitingFor
from stepseven.runtime import approving, asking, ceilings, clash, doubt, outages, reading, trouble, writing
from stepseven.runtime.binding import is_async, start_plain
from stepseven.runtime.declared import WRITE_TIMEOUT_S
from stepseven.runtime.place import Place, place
from stepseven.runtime.services import SHORT_WAIT_US, gate
from stepseven.runtime.threads import Door
from stepseven.runtime.waits import DurableWait
from stepseven.store.codec import guard
from stepseven.transitions import effects
from stepseven.transitions.effects import REFUSED_RESULT, Claim, Intent, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from stepseven.runtime.attempt import Attempt
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.transitions.state import Hold

GRACE_S = 5.0  # how long cancelled code may take to end before it counts as still running
LATE = 0.25  # of a send's time that may be gone when it begins
ANEW = 3  # times that a claim is made anew because of that; a store that slow, and a time that short, are not made for each other
BUSY_LOOK_US = 1_000_000
BUSY_PARK_US = 60_000_000  # after half a minute of looking the run leaves memory between looks


@dataclass(slots=True)
class Sent:
    """What became of one send.

    ``done``: here is the value. Else ``doubt`` is a claim nobody knows the outcome of (``proven``: nothing happened for
    certain, only the probe is still to be asked), and ``promise`` one that may be sent again under its key.
    """

    done: bool = False
    value: Any = None
    doubt: Claim | None = None
    proven: bool = False
    promise: Claim | None = None


@dataclass(slots=True)
class Caller:
    """Whether anybody still waits for a piece of work, and how it hears of its end."""

    gone: bool = False
    waiter: asyncio.Future[None] | None = None

    def wake(self, _: object = None) -> None:
        """It is over."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


@dataclass(slots=True)
class Send:
    """One send under way."""

    ex: Execution
    call: Call
    intent: Intent
    claim: Claim
    move: policy.Try
    door: Door
    seconds: float
    started_us: int
    inner: Place  # where the step's code stands
    bound: dict[str, Any]  # what it is called with: the call's arguments, as a person may have edited them


# -- the claim ----------------------------------------------------------------------------------------------------------


async def claim_and_send(  # noqa: PLR0911 - whatever the claim finds
    ex: Execution, call: Call, intent: Intent, move: policy.Try, promise: Claim | None
) -> Sent:
    """Claim, and do whatever the claim finds."""
    same = await clash.after_change(ex, call, intent)
    if same is not None:
        return same
    approved = await approving.word(ex, call) if approving.needed(call) else None
    if approved is not None:
        intent = replace(intent, approved=approved.arguments)
    reserved = await ceilings.reserve(ex, call)
    try:
        if not await outages.enter(ex, call, move.approach):  # another run looks: nothing is claimed, nor touched
            return Sent(doubt=promise)
        found = await _uninterrupted(ex, lambda caller: _claim_then_send(ex, call, intent, move, promise, caller, approved))
    finally:
        ceilings.free(ex, reserved)
        await outages.leave(ex, call)
    if isinstance(found, Sent):
        return found
    if found.verdict is Verdict.PROPOSE:
        await approving.propose(ex, call)
        return Sent()
    if found.verdict is Verdict.REUSE and approved is not None and approved.edited and found.run_no != ex.hold.run_no:
        return await clash.conflict(ex, call, found)  # a person wanted it otherwise than another run has done it
    if found.verdict is Verdict.REUSE:
        return Sent(done=True, value=await writing.reuse(ex, call, found))
    if found.verdict is Verdict.BUSY:
        await busy(ex, call)
        return Sent()
    if found.verdict is Verdict.CONFLICT:
        return await clash.conflict(ex, call, found)
    return Sent(doubt=found)


async def _uninterrupted(ex: Execution, work: Callable[[Caller], Coroutine[Any, Any, Any]]) -> Any:
    """Do *work* in a task that nobody cancels; a cancelled caller waits for its end, and is cancelled then."""
    caller, loop = Caller(), asyncio.get_running_loop()

    async def whole() -> Any:
        try:
            return await work(caller)
        finally:
            caller.wake()  # as its last act: by a callback of its own the caller would hear of it a turn later

    task = loop.create_task(whole())
    ex.tasks.discard(task)  # it is not the run's own code
    ex.sending.add(task)
    task.add_done_callback(ex.sending.discard)
    task.add_done_callback(caller.wake)  # one that was cancelled before it began has no last act
    while not task.done():
        caller.waiter = loop.create_future()
        try:
            await caller.waiter
        except asyncio.CancelledError:
            caller.gone = True
    if caller.gone:
        if not task.cancelled():
            task.exception()  # whoever wanted to know is gone; it is on record
        raise asyncio.CancelledError
    return task.result()


async def _awake(ex: Execution) -> None:
    """After a standstill, ours or the store's: the gate would stop what begins before the next beat, so beat now."""
    worker = ex.services.worker
    if not worker.may_act(ex.hold.run_no, ex.hold.fence):
        await asyncio.to_thread(worker.beat, early=True)


class _Made:
    """When a claim was made: from then on its time runs, in the eyes of whoever looks for what it did."""

    def __init__(self, ex: Execution) -> None:
        self._edge = ex.edge
        self._at = ex.edge.since_boot()

    def now_us(self) -> int:
        """It is being made now."""
        self._at = self._edge.since_boot()
        return self._edge.now_us()

    def until(self, seconds: float) -> float:
        """When *seconds* from then are over, as the edge's ``since_boot`` tells it."""
        return self._at + seconds

    def late(self, seconds: float) -> bool:
        """Whether so much of its time is gone that the send would be stopped half-way."""
        return self._edge.since_boot() - self._at > seconds * LATE


async def _claim_then_send(  # noqa: PLR0913, PLR0917 - what is claimed, and all that was decided about it
    ex: Execution,
    call: Call,
    intent: Intent,
    move: policy.Try,
    promise: Claim | None,
    caller: Caller,
    approved: approving.Approved | None,
) -> Sent | Claim:
    claim_id, second, looking = ex.edge.new_id("c"), clash.seconds_wanted(ex, call), looks_first(ex, call)
    wanted, made = replace(intent, unsent=True) if looking else intent, _Made(ex)

    def unit(tx: Any) -> Claim:
        now = made.now_us()
        again = promise if promise is not None and doubt.young(call, promise, now) else None
        dead = ex.services.worker.dead_workers(tx)
        return effects.claim(tx, ex.hold, wanted, claim_id, now, proven_dead=dead, second=second, promise=again)

    await _awake(ex)
    claim: Claim | None = None
    if intent.scope == "run" and not intent.proposed and promise is None and not second and call.key not in ex.attempts:
        anew, written = await ex.write(
            lambda tx: effects.claim_new(tx, ex.hold, wanted, claim_id, made.now_us()), durable=True, asks=False
        )
        claim = anew if written.rows_written() == 1 else None
    if claim is None:
        claim = await ex.write(unit, durable=True)
    if claim.verdict is not Verdict.GO:
        return claim
    if caller.gone or ex.unloading is not None:  # nothing was sent, and nobody wants it any more
        state = EffectState.REFUSED if promise is None else EffectState.UNKNOWN
        now = ex.now_us()
        await ex.store.write(
            lambda tx: effects.mark(tx, claim, state, now, gate_until_us=now), durable=True, client=ex.hold.client_id
        )
        return Sent()
    await _awake(ex)  # the store may have been away until the claim
    if looking:
        ex.looked.add(call.key)
        return Sent(doubt=claim, proven=True)
    if promise is not None:
        move = replace(move, approach=doubt.last_approach(ex, call))  # a promise is about what was sent
    ours = claim
    for _ in range(ANEW):
        if not made.late(call.step.settings.timeout_s or WRITE_TIMEOUT_S):
            break  # else the store took its time: what is claimed anew has all of its own
        ours = await ex.write(functools.partial(_anew, ex.hold, wanted, ours, made), durable=True)
    return await _send(ex, call, intent, ours, move, approved, made)


def _anew(hold: Hold, wanted: Intent, claim: Claim, made: _Made, tx: Any) -> Claim:
    return replace(effects.retry(tx, hold, wanted, claim, made.now_us()), doubtful=claim.doubtful)  # nothing was sent under it


def looks_first(ex: Execution, call: Call) -> bool:
    """Whether a probe looks before the first send: after a long wait or in a recovery somebody may have done it by hand."""
    o = call.step.settings
    if call.step.hooks.probe is None or o.probe_first == "never" or call.key in ex.looked:
        return False
    return o.probe_first == "always" or ex.recovery


async def busy(ex: Execution, call: Call) -> None:
    """Another run is doing the same thing: look again every second, later every minute."""
    first_us = ex.busy_since.setdefault(call.key, ex.now_us())
    pause_us = BUSY_LOOK_US if ex.now_us() - first_us < SHORT_WAIT_US else BUSY_PARK_US
    what = f"{call.step.name}: another run is doing the same thing"
    async with asking.aside(ex, call):
        await ex.wait(DurableWait(kind=WaitingFor.EFFECT, what=what, until_us=ex.now_us() + pause_us))


# -- the send -----------------------------------------------------------------------------------------------------------


async def _send(  # noqa: PLR0913, PLR0917 - as above
    ex: Execution, call: Call, intent: Intent, claim: Claim, move: policy.Try, approved: approving.Approved | None, made: _Made
) -> Sent:
    """Run the step's code once, and write down what became of it."""
    seconds, bound = call.step.settings.timeout_s or WRITE_TIMEOUT_S, call.bound if approved is None else approved.bound
    here = place.get() or call.place
    inner = Place(ex, call.inner_branch(), item=call.place.item, facts=here.facts)
    inner.clock, inner.writing = here.clock, call.step.name
    send = Send(ex, call, intent, claim, move, Door(), seconds, ex.now_us(), inner, bound)
    ends = made.until(seconds)  # whoever looks for it counts from the claim, too

    def lost() -> str | None:
        return ex.lost or ("this attempt was given up, or has ended" if send.door.shut else None)

    attempt = trouble.attempt_for(
        ex, call, move, key=wire_key(intent.scope_id, intent.name, intent.key, claim.generation),
        gate=gate(ex.services, lost, ex.hold, lambda: ends),
    )  # fmt: skip
    send.inner.attempt = attempt
    value: Any = None
    error: BaseException | None = None
    running: asyncio.Future[Any] | None = None
    cut: BaseException | None = None
    try:
        running = _start(send)
    except Exception as raised:  # noqa: BLE001 - classified and recorded
        error = raised
    else:
        running, cut = await _ended(send, running)
        value, error = _outcome(send, running)
    send.door.close()
    if error is None:
        try:
            reading.checked(call, value)
        except Exception as rejected:  # noqa: BLE001 - the author's own check: whatever it raises rejects the result
            error = rejected
    if error is None:
        try:
            done = await writing.settled(
                ex, call, claim, value, attempt=attempt, started_us=send.started_us, approach=move.approach,
                why=None if approved is None else approved.told,
            )  # fmt: skip
        except writing.Unkept:  # it is settled; a person is asked for the value, by the caller and not in here
            return Sent(doubt=claim)
        return Sent(done=True, value=done)
    alive = running is not None and not running.done() and send.door.begun
    sent = await _unsettled(send, attempt, error, still_running=alive)
    if cut is not None:
        raise cut
    if not isinstance(error, Exception | asyncio.CancelledError):
        raise error
    return sent


def _start(send: Send) -> asyncio.Future[Any]:
    """Start the step's code: as a task, or in a thread."""
    fn = trouble.function_for(send.call, send.move.approach)
    watched = _watched_task(send, fn) if is_async(fn) else _watched_thread(send, fn)
    in_flight, claim_id = send.ex.services.worker.in_flight, send.claim.claim_id
    token = place.set(send.inner)
    try:
        running = start_plain(watched, send.bound)
    finally:
        place.reset(token)
    in_flight.add(claim_id)
    running.add_done_callback(lambda _: in_flight.discard(claim_id))
    return running


def _watched_task(send: Send, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        send.door.enter()
        value = await fn(*args, **kwargs)
        if send.door.shut:
            _keep_late(send, value)
        return value

    return watched


def _watched_thread(send: Send, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not send.door.enter():
            raise Superseded(send.ex.hold.run_id, "it was given up before it began")
        value = fn(*args, **kwargs)
        if send.door.shut and not inspect.isawaitable(value):
            _keep_late(send, value)
        return value

    return watched


async def _ended(send: Send, running: asyncio.Future[Any]) -> tuple[asyncio.Future[Any], BaseException | None]:
    """Wait for the code's end, or for the end of its time; and what this waiting itself was cut off by, if it was."""
    loop = asyncio.get_running_loop()
    give_up, cut = loop.time() + send.seconds, None
    try:
        await asyncio.wait({running}, timeout=send.seconds)
        if _gave_awaitable(running):  # a plain function that returns a coroutine
            running = _begin(send, running.result())
            await asyncio.wait({running}, timeout=max(0.0, give_up - loop.time()))
    except asyncio.CancelledError as signal:  # the loop itself is being closed
        cut = signal
    if not running.done():
        send.door.close()
        if isinstance(running, asyncio.Task):
            running.cancel()
            await asyncio.wait({running}, timeout=GRACE_S)
    return running, cut


def _gave_awaitable(running: asyncio.Future[Any]) -> bool:
    ended = running.done() and not running.cancelled() and running.exception() is None
    return ended and inspect.isawaitable(running.result())


def _begin(send: Send, made: Awaitable[Any]) -> asyncio.Future[Any]:
    async def result() -> Any:
        return await made

    token = place.set(send.inner)
    try:
        return asyncio.get_running_loop().create_task(result())
    finally:
        place.reset(token)


def _outcome(send: Send, running: asyncio.Future[Any]) -> tuple[Any, BaseException | None]:
    """What the code returned, or how it ended otherwise."""
    late = TimeoutError(f"no answer within {send.seconds:g} s")
    if not running.done():
        if not send.door.begun:
            return None, Retryable(f"it could not begin within {send.seconds:g} s")
        send.ex.services.worker.zombies += 1
        running.add_done_callback(functools.partial(_zombie_ended, send.ex))
        return None, late
    if running.cancelled():
        if not send.door.begun:
            return None, Retryable("it was cancelled before it began")
        return None, late if send.door.shut else asyncio.CancelledError()
    error = running.exception()
    if isinstance(error, AlreadyDone):
        return error.value, None
    if isinstance(error, Superseded):  # the gate was closed; whether the run is still ours shows when this is recorded
        return None, TimeoutError(error.why)
    return (running.result() if error is None else None), error


def _zombie_ended(ex: Execution, running: asyncio.Future[Any]) -> None:
    ex.services.worker.zombies -= 1
    if not running.cancelled():
        running.exception()  # its receipt was kept by itself, its failure tells nothing


def _keep_late(send: Send, value: Any) -> None:
    """Given up, and it succeeded all the same: that did happen. Keep the receipt, whatever the fence."""
    ex, step = send.ex, send.call.step
    try:
        text = guard(step.typed.encode(value), "receipt", secrets=step.settings.secrets)
    except Exception:  # noqa: BLE001 - whatever the value is, it happened
        text = json.dumps({REFUSED_RESULT: "a late result that could not be kept"})
    now, question_id = ex.now_us(), ex.edge.new_id("q")
    with suppress(StepsevenError):  # the store is away: the probe or the question will tell
        ex.store.write_now(
            lambda tx: effects.late_receipt(tx, send.claim, text, question_id, now), durable=True, client=ex.hold.client_id
        )


async def _unsettled(send: Send, attempt: Attempt, error: BaseException, *, still_running: bool) -> Sent:
    """The send ended in an exception: write down what is known, in one commit with the claim's new state."""
    ex, call, claim = send.ex, send.call, send.claim
    verdict = trouble.verdict_of(ex, call, error, send.move.approach)
    proven = verdict.proof is not Proof.NONE and not still_running
    settled = proven and not claim.doubtful  # of an earlier send under this claim it says nothing
    row = trouble.attempt_row(ex, call, verdict, attempt, send.started_us, send.move.approach, error)
    doubt.name_claim(row, claim, deferred=row["outcome"] == "deferred")
    if not proven:
        row["outcome"] = "unknown"
    # A proof is enough; but where one can look, one looks before any repeat.
    state = EffectState.REFUSED if settled and call.step.hooks.probe is None else EffectState.UNKNOWN
    now = ex.now_us()
    gate_us = None if still_running else now
    try:
        await trouble.record_attempt(ex, call, row, lambda tx: effects.mark(tx, claim, state, now, gate_until_us=gate_us))
    except Superseded:

        def late(tx: Any) -> None:
            if not still_running:  # whoever has the run now need not wait for us
                effects.lower_gate(tx, claim, now)
            if row["usd"] or row["tokens"]:
                writing.note_cost(tx, ex, claim, row, now)

        await ex.store.write(late, durable=True, client=ex.hold.client_id)
        raise
    if state is EffectState.REFUSED:
        return Sent()
    held = await ex.store.read(lambda tx: effects.look(tx, claim.claim_id))
    return Sent(doubt=held or claim, proven=settled)
