"""A read step: answered by its record, or run once and recorded.

``read`` is one coroutine for the untroubled case; everything about failures, costs and limits starts in ``trouble``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from stepseven.errors import StepFailed
from stepseven.model import EffectKind
from stepseven.runtime import trouble
from stepseven.runtime.attempt import Attempt
from stepseven.runtime.calls import Call, changed_argument
from stepseven.runtime.declared import call_plain
from stepseven.runtime.place import Place, place
from stepseven.store.codec import free_text, guard
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepseven.runtime.execution import Execution

_MISSING = object()


class UnusableResult(Exception):
    """``check=`` rejected what a step returned."""


class ItemSkipped(BaseException):
    """A person skipped a step of a map's item: the item's result is ``None``, whatever its other code would do."""


async def read(ex: Execution, call: Call) -> Any:
    """The result of a read step."""
    from stepseven.runtime.execution import Flight  # noqa: PLC0415 - it imports this module

    while True:
        known = recorded(ex, call)
        if known is not _MISSING:
            return known
        ex.check()
        flight = ex.flights.get(call.key)
        if flight is None:
            break
        await ex.shared(flight)
    flight = ex.flights[call.key] = Flight()
    ex.store.enter()
    try:
        o = call.step.settings
        if o.cost is not None or ex.limits is not None or call.key in ex.attempts:
            return await trouble.persist(ex, call)
        started_us = ex.now_us()
        attempt = Attempt(on_progress=progress_of(ex, call))
        try:
            value = await run_once(ex, call, call.step.fn, attempt)
            record, text, value = made(ex, call, value, attempt, started_us)
        except Exception as error:  # noqa: BLE001 - classified and recorded
            failed = error
        else:
            await ex.append(record, durable=record.usd is not None, text=text)
            return value
        return await trouble.persist(ex, call, trouble.First(failed, attempt, started_us))
    finally:
        ex.store.leave()
        del ex.flights[call.key]
        flight.wake()


def recorded(ex: Execution, call: Call) -> Any:
    """What is on record of the call, or ``_MISSING``."""
    record = ex.records.get(call.key)
    if record is None:
        record = renamed(ex, call)
        if record is None:
            return _MISSING
    o = call.step.settings
    if o.match == "order" and record.inputs != call.digest:
        invalidate(ex, record)
        return _MISSING
    if o.key is not None and record.inputs is not None and record.inputs != call.digest:
        ex.stale[call.key] = record.generation
        del ex.records[call.key]
        return _MISSING
    ex.mark_used(record)
    return value_of(ex, call, record)


def value_of(ex: Execution, call: Call, record: Record) -> Any:
    """A record's result as the step returns it.

    Raises:
        StepFailed: the step failed for good, and still has.
        NotRecordable: the stored result cannot be rebuilt; names the field.
    """
    if record.state == "failed":
        raise StepFailed(record.name, record.summary or "it failed", kind=record.why or "fixable")
    if record.state == "skipped":
        skipped(call)
        return None
    text = ex.result_text(record)
    if text is None:  # the artifact is gone: the step that made it runs again
        ex.stale[call.key] = record.generation
        del ex.records[call.key]
        return _MISSING
    return call.step.typed.decode(text)


def skipped(call: Call) -> None:
    """In a map's item, a skipped step ends the item; elsewhere it returns ``None``."""
    if call.place.item is not None:
        raise ItemSkipped


def renamed(ex: Execution, call: Call) -> Record | None:
    """The call's record under one of the step's earlier names."""
    for name in call.step.settings.renamed_from:
        record = ex.records.get((call.branch, name, call.key[2]))
        if record is not None:
            return record
    return None


def invalidate(ex: Execution, record: Record) -> None:
    """The nth model turn was asked something else: it and everything read later in its branch no longer answers."""
    for key, other in list(ex.records.items()):
        if other.branch == record.branch and other.id >= record.id and other.effect is None and not other.name.startswith("run."):
            ex.stale[key] = other.generation
            ex.older.append(other)
            del ex.records[key]


def progress_of(ex: Execution, call: Call) -> Callable[[str], None] | None:
    """How a step's progress reaches whoever watches."""
    if not ex.services.watchers:
        return None
    return lambda text: ex.services.tell(ex.hold.run_id, "progress", name=call.step.name, text=free_text(text, 300))


async def run_once(ex: Execution, call: Call, fn: Callable[..., Any], attempt: Attempt) -> Any:
    """Run a step's function once, in its own place, within its time."""
    inner = Place(ex, call.inner_branch(), attempt=attempt, item=call.place.item)
    token = place.set(inner)
    try:
        timeout = call.step.settings.timeout
        if timeout is None:
            return await call_plain(fn, (), call.bound)
        try:
            async with asyncio.timeout(timeout):
                return await call_plain(fn, (), call.bound)
        except TimeoutError as late:
            raise TimeoutError(f"no result within {timeout:g} s") from late
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


def made(
    ex: Execution, call: Call, value: Any, attempt: Attempt, started_us: int, *, approach: str | None = None
) -> tuple[Record, str, Any]:
    """A record of what a step returned, its text, and the value the caller gets: decoded from the text.

    Raises:
        UnusableResult, NotRecordable, TooLarge, SecretFound: the result is refused.
    """
    step, o = call.step, call.step.settings
    checked(call, value)
    text, back = step.typed.roundtrip(value)
    kept = guard(text, f"{step.name}()", secrets=o.secrets)
    if kept is not text and kept != text:
        back = step.typed.decode(kept)
    cost = o.cost
    uusd = attempt.uusd if attempt.uusd is not None else (round(cost.usd * 1e6) if cost is not None else None)
    record = Record(
        id=ex.next_id(), branch=call.branch, name=step.name, key=call.key[2], generation=ex.generation(call.key), state="done",
        effect=None if o.effect is EffectKind.READ else o.effect.value,
        inputs=None if call.key[2].startswith(call.digest) else call.digest, args=call.args(),
        summary=summary_of(call, back), approach=approach, why=why_again(ex, call, kept), usd=uusd, tokens=attempt.tokens,
        started_us=started_us, ended_us=ex.now_us(),
    )  # fmt: skip
    return record, kept, back


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
    if not ex.resumed:
        return None
    old = ex.unused_like(call.key)
    if call.key in ex.stale:
        ex.diverged.add(call.branch)
        return "ran again: its result was no longer valid"
    if old is None or old.effect is not None:
        return None
    old.used = True
    if old.result != text:
        ex.diverged.add(call.branch)
    why = changed_argument(old, call)
    return f"ran again: {why}" if why is not None else None


__all__ = ["UnusableResult", "made", "read", "recorded", "run_once", "value_of"]
