"""A read step: answered by its record, or run once and recorded.

``read`` is one coroutine for the untroubled case; everything about failures, costs and limits starts in ``trouble``.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from stepseven.errors import NotRecordable, Refused, StepFailed
from stepseven.model import INTERNAL, EffectKind
from stepseven.runtime import asking, ceilings, chosen, outages, remembering, trouble, verifying
from stepseven.runtime.attempt import Attempt
from stepseven.runtime.binding import call_bound, is_async, passed
from stepseven.runtime.calls import Call, changed_argument
from stepseven.runtime.place import Place, place
from stepseven.runtime.stepclock import StepClock
from stepseven.runtime.waits import STEP_CODE, Flight
from stepseven.store.artifacts import content_hash
from stepseven.store.codec import free_text, guard
from stepseven.transitions.forks import AGAIN
from stepseven.transitions.questions import REFUSED
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.transitions.state import RecordKey

_MISSING = object()
OTHER_RESULT = "and gave another result"  # on record: a later write with a new key may mean what was done already


class UnusableResult(Exception):
    """``check=`` rejected what a step returned."""


class ItemSkipped(BaseException):
    """A person skipped a step of a map's item: the item's result is ``None``, whatever its other code would do."""


async def read(ex: Execution, call: Call) -> Any:  # noqa: C901, PLR0912 - the untroubled case whole, in one coroutine
    """The result of a read step."""
    step = call.step
    o = step.settings
    key = as_named_before(ex, call) if o.renamed_from or ex.renamed else call.key
    while True:
        if key in ex.records:
            try:
                known = recorded(ex, call)
            except NotRecordable as changed:
                return await _unreadable(ex, call, changed)
            if known is not _MISSING:
                record = ex.records[key]
                if ex.recovery and verifying.suspect(ex, call, record) and not await verifying.holds(ex, call, record):
                    continue  # look again at what is on record
                return known
        await ex.may_begin(call)
        flight = ex.flights.get(key)
        if flight is None:
            break
        await ex.shared(flight)
    flight = ex.flights[key] = Flight()
    ex.store.enter()
    try:
        limited = ex.limits is not None or bool(ex.above)
        troubled = key in ex.attempts or (ex.down.open and outages.concerns(ex, call))
        if o.cost is not None or troubled or (limited and not room(ex)) or (ex.wishes and chosen.about(ex, call)):
            return await trouble.persist(ex, call)
        started_us = ex.now_us()
        attempt = Attempt(on_progress=progress_of(ex, call))
        ex.reserved.steps += 1
        try:
            value = await run_once(ex, call, step.fn, attempt)
            record, text, value = made(ex, call, value, attempt, started_us)
        except Exception as error:  # noqa: BLE001 - classified and recorded
            failed = error
        else:
            fact = None if o.remember is None else remembering.fact_of(ex, call, text)
            await ex.append(record, durable=record.usd is not None or fact is not None, text=text, fact=fact)
            return value
        finally:
            if limited:
                ceilings.free(ex, 0)
            else:
                ex.reserved.steps -= 1
        return await trouble.persist(ex, call, trouble.First(failed, attempt, started_us))
    finally:
        ex.store.leave()
        del ex.flights[key]
        flight.wake()


def room(ex: Execution) -> bool:
    """Whether no ceiling is near, so that a step without a declared cost need not look closer."""
    most = ex.limits
    if ex.above or ex.kin:  # other runs spend from the same
        return False
    return most is None or (
        not ex.questions  # a ceiling may be waited for, or raised
        and most.client_usd_per_day is None  # only the store knows
        and (most.steps is None or ex.steps_done + ex.reserved.steps < most.steps)
        and (most.usd is None or ex.uusd + ex.reserved.uusd < most.usd * 1e6)
        and (most.tokens is None or ex.tokens < most.tokens)
        and (most.seconds is None or ex.run["executing_us"] + ex.executing_us() < most.seconds * 1e6)
    )


async def _unreadable(ex: Execution, call: Call, changed: NotRecordable) -> Any:
    """The record is there, but its type has changed since: a failure of the step. The stored text stays as it is."""
    first = None if asking.about_failure(ex, call) else trouble.First(changed, Attempt(), ex.now_us())
    return await trouble.persist(ex, call, first)


def recorded(ex: Execution, call: Call) -> Any:
    """What is on record of the call, or ``_MISSING``.

    Raises:
        StepFailed: the step failed for good, and still has.
        NotRecordable: the stored result cannot be rebuilt; names the field.
    """
    record = ex.records.get(call.key)
    if record is None:
        return _MISSING
    o = call.step.settings
    if record.inputs != call.digest:
        if o.match == "order":
            invalidate(ex, record)
            return _MISSING
        if o.key is not None and record.inputs is not None:
            drop(ex, record)
            return _MISSING
    record.used = True
    if record.why is not None and record.generation == 1 and record.why.find(AGAIN) >= 0:
        ex.asked_again(record)
    return value_of(ex, call, record)


def drop(ex: RunMemory, record: Record, *, why: str | None = None) -> None:
    """A record no longer answers; the next one of its key is a new generation. *why*: in words, for that one."""
    key = (record.branch, record.name, record.key)
    if ex.records.get(key) is record:
        ex.stale[key] = record.generation
        if why is not None:
            ex.reasons[key] = why
        ex.retire(record)
        del ex.records[key]


def value_of(ex: Execution, call: Call, record: Record) -> Any:
    """A record's result as the step returns it.

    Raises:
        StepFailed: the step failed for good, and still has.
        NotRecordable: the stored result cannot be rebuilt; names the field.
    """
    if record.state == "failed" and record.why == REFUSED:
        raise Refused(record.name, record.summary or "refused")
    if record.state == "failed":
        raise StepFailed(record.name, record.summary or "it failed", kind=record.why or "fixable")
    if record.state == "skipped":
        skipped(call)
        return None
    text = ex.result_text(record)
    if text is None:  # the artifact is gone: the step that made it runs again
        drop(ex, record, why=verifying.LOST)
        return _MISSING
    return call.step.typed.decode(text)


def skipped(call: Call) -> None:
    """In a map's item, a skipped step ends the item; elsewhere it returns ``None``."""
    if call.place.item is not None:
        raise ItemSkipped


def as_named_before(ex: Execution, call: Call) -> RecordKey:
    """A renamed step goes on under the name that anything of this call is on record under: its answers, tries, questions."""
    branch, name, key = call.key
    names = (name, *ex.names_before(call.step))
    if len(names) > 1:
        known = [k for n in names if ex.knows(k := (branch, n, key))]
        answered = [k for k in known if k in ex.records]
        call.key = next(iter(answered or known), call.key)
        if not known:  # it never ended, but what it called itself may have
            inner = (n for n in names[1:] if call.inner_branch(n) in ex.branches_before())
            call.key = (branch, next(inner, name), key)
    return call.key


def invalidate(ex: Execution, record: Record) -> None:
    """The nth model turn was asked something else: it and everything read later in its branch no longer answers."""
    for other in list(ex.records.values()):
        later = other.branch == record.branch and other.id >= record.id
        if later and other.effect is None and not other.name.startswith(INTERNAL):  # pins hold nothing that was read
            drop(ex, other)


def progress_of(ex: Execution, call: Call) -> Callable[[str], None] | None:
    """How a step's progress reaches whoever watches."""
    if not ex.services.watchers:
        return None
    return lambda text: ex.services.tell(ex.hold.run_id, "progress", name=call.step.name, text=free_text(text, 300))


async def run_once(ex: Execution, call: Call, fn: Callable[..., Any], attempt: Attempt) -> Any:
    """Run a step's function once, in its own place, within its time. That stands still while a call in it waits for people."""
    here = place.get() or call.place
    inner = Place(ex, call.inner_branch(), attempt=attempt, item=call.place.item, facts=here.facts)
    inner.clock, inner.writing = here.clock, here.writing
    token = place.set(inner)
    try:
        timeout = call.step.settings.timeout
        if timeout is None:
            if is_async(fn):  # what nearly every step is: without the two coroutines of ``call_bound``
                args, kwargs = passed(fn, call.bound)
                return await fn(*args, **kwargs)
            return await call_bound(fn, call.bound)
        limit = asyncio.timeout(timeout)
        inner.clock = StepClock(limit, here.clock)
        try:
            async with limit:
                try:
                    return await call_bound(fn, call.bound)
                finally:
                    inner.clock.end()
        except TimeoutError:
            if not limit.expired():
                raise  # one of the step's own
            raise TimeoutError(f"no result within {timeout:g} s") from None  # the cancellation behind it is ours
    finally:
        place.reset(token)


def checked(call: Call, value: Any) -> None:
    """Let ``check=`` see the result.

    Raises:
        UnusableResult: it was rejected.
    """
    check = call.step.settings.check
    if check is None:
        return
    found = check(value)
    if found is False or isinstance(found, str):
        raise UnusableResult(f"unusable result: {found}" if found else "unusable result")


def made(  # noqa: PLR0913 - a record has that many sides
    ex: Execution,
    call: Call,
    value: Any,
    attempt: Attempt,
    started_us: int,
    *,
    approach: str | None = None,
    judged: bool = False,
) -> tuple[Record, str, Any]:
    """A record of what a step returned, its text, and the value the caller gets: decoded from the text.

    *judged*: ``check=`` has seen it, or is not asked: what a write did outside is there, whatever it thinks.

    Raises:
        UnusableResult, NotRecordable, TooLarge, SecretFound: the result is refused.
    """
    step, o = call.step, call.step.settings
    if o.check is not None and not judged:
        checked(call, value)
    text, back = step.typed.roundtrip(value)
    kept = guard(text, f"{step.name}()", secrets=o.secrets)
    if kept is not text and kept != text:
        back = step.typed.decode(kept)
    cost = o.cost
    uusd = attempt.uusd if attempt.uusd is not None else (round(cost.usd * 1e6) if cost is not None else None)
    record = Record(
        id=ex.next_id(), branch=call.branch, name=call.key[1], key=call.key[2], generation=ex.generation(call.key), state="done",
        effect=None if o.effect is EffectKind.READ else o.effect.value,
        inputs=None if call.key[2].startswith(call.digest) else call.digest, args=call.args(),
        summary=None if o.summary is None else summary_of(call, back), approach=approach,
        why=why_again(ex, call, kept) if ex.resumed else None, facts=facts_of(attempt), usd=uusd, tokens=attempt.tokens,
        started_us=started_us, ended_us=ex.now_us(),
    )  # fmt: skip
    return record, kept, back


def facts_of(attempt: Attempt) -> str | None:
    """Which facts a step's code read, as its record keeps it: ``{key: version}``, 0 for one that was not known."""
    return json.dumps({key: known.version for key, known in attempt.facts.items()}) if attempt.facts else None


def summary_of(call: Call, value: Any) -> str | None:
    """The step's one line for people. A summary that cannot be made is no failure of the step."""
    make = call.step.settings.summary
    if make is None:
        return None
    try:
        return free_text(str(make(value)), 300)
    except Exception as error:  # noqa: BLE001 - hooks never change an outcome
        return free_text(f"(no summary: {type(error).__name__}: {error})", 300)


def why_again(ex: Execution, call: Call, text: str) -> str | None:
    """Why a step runs although a record of it stands from an earlier execution; notes when its result differs."""
    stale = call.key in ex.stale
    old = next(reversed(ex.older_of(call.key)), None) if stale else ex.unused_like(call.key)
    invalid = ex.reasons.get(call.key, "its result was no longer valid") if stale else None
    if old is None or old.effect is not None:
        return f"{AGAIN}: {invalid}" if stale else None
    old.used = True
    other = (old.result != text) if old.artifact is None else (old.artifact != content_hash(text))
    if other:
        ex.diverged.add(call.branch)
    why = changed_argument(old, call) or invalid
    again = f"{AGAIN} {OTHER_RESULT}" if other else AGAIN
    return f"{again}: {why}" if why is not None else again if other else None


STEP_CODE.add(run_once.__code__)

__all__ = ["UnusableResult", "made", "read", "recorded", "run_once", "value_of"]
