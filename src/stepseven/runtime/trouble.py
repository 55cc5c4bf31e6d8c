"""What happens around a try that is not simple: limits and costs before it, failures and questions after it.

The rows of ``attempt`` and ``question`` are turned into one move by ``decide.policy``; here the moves are made.

Longer than other files: a try's way from its move to its row is read in one piece.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import policy
from stepseven.decide.classify import Handling, Verdict, classify
from stepseven.errors import AlreadyDone, Conflict, NotYet
from stepseven.model import AttemptOutcome, FailureKind, QuestionStatus, Secret, to_micro
from stepseven.runtime import asking, ceilings, choices, chosen, outages, reading, refusing, remembering, verifying
from stepseven.runtime.attempt import Attempt, Tried
from stepseven.runtime.calls import Call, nameable
from stepseven.store.codec import free_text
from stepseven.transitions import steps
from stepseven.transitions.state import choice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row


@dataclass(slots=True)
class First:
    """A first try that failed before anything was on record."""

    error: Exception
    attempt: Attempt
    started_us: int


async def persist(ex: Execution, call: Call, first: First | None = None) -> Any:  # noqa: C901 - one branch for each move
    """Bring a read step to its end: try, try differently, ask, obey."""
    if first is not None:
        await failed(ex, call, first.error, first.attempt, first.started_us, None)
    while True:
        move = await outages.instead(ex, call, move_for(ex, call))
        if move is None:
            continue
        if isinstance(move, policy.Try):
            await before(ex, call, move)
            done, value = await _try(ex, call, move)
            if done:
                return value
        elif isinstance(move, policy.Ask):
            if call.step.settings.on_failure == "raise":
                raise await choices.give_up(ex, call, last_reason(ex, call), last_kind(ex, call))
            await asking.failure(ex, call)
        elif isinstance(move, policy.Wait):
            await asking.wait_for(ex, call, move.question_id)
        elif isinstance(move, policy.Give):
            await choices.fatal(ex, call, move.reason)
        else:
            done, value = await choices.obey(ex, call, move)
            if done:
                return value


async def before(ex: Execution, call: Call, move: policy.Try) -> None:
    """What comes before a try: questions taken back, times waited for."""
    if move.withdraw:
        await withdraw(ex, move.withdraw)
        if call.place.item is not None:
            await call.place.item.mended(ex, move.withdraw)
    if not move.looks and move.wants_fact is None:
        await ex.until(move.not_before_us, f"the next try of {call.step.name}")
        return
    async with asking.aside(ex, call):  # a person said to wait, for nobody knows how long: others may have the place
        what = f"the next look whether {asking.resource_of(ex, call)} answers, by {call.step.name}"
        await ex.until(move.not_before_us, what if move.looks else f"the next try of {call.step.name}")
        if move.wants_fact is not None:
            await asking.wait_for_fact(ex, call.step.name, move.wants_fact)


async def _try(ex: Execution, call: Call, move: policy.Try) -> tuple[bool, Any]:
    """One try of a read step: (recorded?, its value). What it cost is on record before its room is given back."""
    while True:
        reserved = await ceilings.reserve(ex, call)
        try:
            return await _within(ex, call, move)
        except ceilings.NoRoom:
            continue
        finally:
            ceilings.free(ex, reserved)


async def _within(ex: Execution, call: Call, move: policy.Try) -> tuple[bool, Any]:
    """One try, for which there is room in the limits; none, if its resource is down and another run looks."""
    if not await outages.enter(ex, call, move.approach):
        return False, None
    try:
        return await _once(ex, call, move)
    finally:
        await outages.leave(ex, call)


async def _once(ex: Execution, call: Call, move: policy.Try) -> tuple[bool, Any]:
    started_us = ex.now_us()
    attempt = attempt_for(ex, call, move)
    begun = await _begin(ex, call, move) if call.step.settings.cost is not None or _paid_before(ex, call) else None
    ex.paying += begun is not None
    try:
        value = await reading.run_once(ex, call, function_for(call, move.approach), attempt)
        record, text, value = reading.made(ex, call, value, attempt, started_us, approach=move.approach)
    except Exception as error:  # noqa: BLE001 - classified and recorded
        failure = error
    except asyncio.CancelledError:
        await _interrupted(ex, call, begun, attempt)
        raise
    else:
        fact = remembering.fact_of(ex, call, text)
        durable = begun is not None or bool(record.usd) or fact is not None
        also = outages.closing(ex, call)
        await ex.append(record, durable=durable, begun=begun, text=text, fact=fact, also=also)
        outages.won(ex, call)
        return True, value
    finally:
        ex.paying -= begun is not None
    await failed(ex, call, failure, attempt, started_us, move.approach, begun=begun)
    return False, None


def _paid_before(ex: Execution, call: Call) -> bool:
    return any(row["usd"] for row in ex.attempts.get(call.key, ()))


async def _begin(ex: Execution, call: Call, move: policy.Try) -> dict[str, Any]:
    """Write down that money is about to be spent, before it is."""
    cost = call.step.settings.cost
    row = {
        "run_no": ex.hold.run_no, "branch": call.branch, "name": call.key[1], "key": call.key[2], "n": next_n(ex, call),
        "approach": move.approach, "inputs": call.digest, "source_digest": call.step.digest,
        "usd": to_micro(cost.usd) if cost is not None else None,
    }  # fmt: skip
    now, room = ex.now_us(), ceilings.last_look(ex)

    def unit(tx: Any) -> None:
        room(tx)
        steps.begin_attempt(tx, ex.hold, row, now)

    try:
        await ex.write(unit, durable=True)
    except asyncio.CancelledError:  # begun on record, and nothing ran: it cost nothing
        await _interrupted(ex, call, {**row, "usd": None}, Attempt())
        raise
    return row


async def _interrupted(ex: Execution, call: Call, begun: dict[str, Any] | None, attempt: Attempt) -> None:
    """The caller was cancelled in the middle of a paid try: say so, if the run still lives."""
    if begun is None or ex.unloading is not None:
        return
    row = blank_attempt(call, begun["n"], ex.now_us())
    usd = attempt.uusd if attempt.uusd is not None else begun["usd"]
    row.update(outcome=AttemptOutcome.INTERRUPTED.value, approach=begun["approach"], usd=usd, tokens=attempt.tokens)
    await asyncio.shield(record_attempt(ex, call, row))


def next_n(ex: Execution, call: Call) -> int:
    """The number of the next row in ``attempt``."""
    rows = ex.attempts.get(call.key)
    return rows[-1]["n"] + 1 if rows else 1


def blank_attempt(call: Call, n: int, started_us: int) -> dict[str, Any]:
    """A row of ``attempt`` with nothing to tell yet."""
    return {
        "branch": call.branch, "name": call.key[1], "key": call.key[2], "n": n, "approach": None, "outcome": None,
        "kind": None, "reason": None, "trace": None, "signature": None, "resource": None, "inputs": call.digest,
        "source_digest": call.step.digest, "identical": 0, "usd": None, "tokens": None, "started_us": started_us,
    }  # fmt: skip


def function_for(call: Call, approach: str | None) -> Callable[..., Any]:
    """The function of an approach; the step's own if the label is gone from the code."""
    return next((a.fn for a in call.step.hooks.approaches if a.label == approach), call.step.fn)


def attempt_for(ex: Execution, call: Call, move: policy.Try, **more: Any) -> Attempt:
    """What the step's code will see as ``attempt()``."""
    rows = [r for r in tries(ex, call) if r["outcome"] in ("failed", "unknown")]
    tried = tuple(
        Tried(number=i + 1, approach=r["approach"] or policy.AS_WRITTEN, reason=r["reason"] or "") for i, r in enumerate(rows)
    )
    supplied = asking.given(ex, call)
    made = Attempt(
        number=move.number, approach=move.approach or policy.AS_WRITTEN, narrow=move.narrow, failures=tried,
        given={name: one.value for name, one in supplied.items()}, on_progress=reading.progress_of(ex, call), **more,
    )  # fmt: skip
    made.facts.update({nameable(name): one for name, one in supplied.items() if one.version})  # what is made of it is built on it
    return made


def verdict_of(ex: Execution, call: Call, error: BaseException, approach: str | None = None) -> Verdict:
    """The error in our words. A ``classify=`` that itself fails is as good as none."""
    o = call.step.settings
    own = (o.classify,) if o.classify is not None else ()
    if isinstance(error, AlreadyDone | Conflict | NotYet):  # each has its place, and got here from another one
        error = RuntimeError(f"{type(error).__name__} was raised where it means nothing: {error}")
    told = partial(classify, error, now_us=ex.now_us(), subject=o.subject, step=o.name, resource=outages.declared(call, approach))
    try:
        verdict = told(overrides=(*own, *ex.services.classify))
        return replace(verdict, reason=free_text(str(error), 300)) if isinstance(error, reading.UnusableResult) else verdict
    except Exception as broken:  # noqa: BLE001 - the author's code decides about a failure; its own must not hide that one
        verdict = told()
        return replace(verdict, reason=f"{verdict.reason} (and classify= failed: {broken})"[:300])


_KINDS = {
    Handling.DEFERRAL: FailureKind.RETRYABLE,
    Handling.RETRYABLE: FailureKind.RETRYABLE,
    Handling.FIXABLE: FailureKind.FIXABLE,
    Handling.FATAL: FailureKind.FATAL,
}


async def failed(  # noqa: PLR0913 - what is known of a try
    ex: Execution,
    call: Call,
    error: Exception,
    attempt: Attempt,
    started_us: int,
    approach: str | None,
    *,
    begun: dict[str, Any] | None = None,
) -> Verdict:
    """Write a failed try down, before anything else is done about it.

    Raises:
        Refused: a person refused what the step's code proposed. That is its end, and no failure.
    """
    if isinstance(refusing.only(error), refusing.Misplaced):  # the write step's code has to hear of it, and nobody else
        await _interrupted(ex, call, begun, attempt)
        raise error
    await refusing.let_out(ex, call, error, attempt, started_us, begun)
    verdict = verdict_of(ex, call, error, approach)
    row = attempt_row(ex, call, verdict, attempt, started_us, approach, error)
    if begun is not None:
        row["n"] = begun["n"]
    await record_attempt(ex, call, row)
    return verdict


def attempt_row(  # noqa: PLR0913, PLR0917 - what is known of a try
    ex: Execution,
    call: Call,
    verdict: Verdict,
    attempt: Attempt,
    started_us: int,
    approach: str | None,
    error: BaseException,
) -> dict[str, Any]:
    """A failed or deferred try as a row."""
    from stepseven.runtime.memory import failure_text

    o = call.step.settings
    put_off = verdict.handling is Handling.DEFERRAL
    silent = _still_silent(ex, call, verdict)
    deferred = silent or (put_off and _believed(ex, call, verdict, started_us))
    again = approach is None and attempt.number > 1 and not attempt.looked
    reason = verdict.reason if not verdict.narrow else f"{verdict.reason} (ask for less)"
    declared = to_micro(o.cost.usd) if o.cost is not None and not deferred else None  # "not now" was not served
    details = {
        "text": "" if silent else failure_text(error), "status": verdict.status, "narrow": verdict.narrow, "needs": verdict.needs,
        "retry_after_us": (verdict.retry_after_us or 0) if put_off and not deferred else verdict.retry_after_us,
        "ask": free_text(verdict.ask) if verdict.ask is not None else None, "proof": verdict.proof.value,
        "input": choices.blames_input(error, verdict.status), "ours": choices.certainly_input(error, verdict.status),
        "counts": outages.counts(verdict, error),
    }  # fmt: skip
    row = blank_attempt(call, next_n(ex, call), started_us)
    row.update(
        approach=approach, outcome="deferred" if deferred else "failed", kind=_KINDS[verdict.handling].value,
        reason=free_text(reason, 1000), trace=json.dumps(details), signature=free_text(_signature(call, verdict), 300),
        resource=outages.declared(call, approach) or verdict.resource, identical=int(again),
        usd=attempt.uusd if attempt.uusd is not None else declared, tokens=attempt.tokens,
    )  # fmt: skip
    return row


_NOT_LET_IN = (401, 402, 403)


def _signature(call: Call, verdict: Verdict) -> str:
    """What names the cause. Of a credential that was not taken: which one it was, as far as the call names it."""
    names = sorted({v.name for v in call.bound.values() if isinstance(v, Secret)}) if verdict.status in _NOT_LET_IN else []
    return f"{verdict.signature} with {', '.join(names)}" if names else verdict.signature


def _still_silent(ex: Execution, call: Call, verdict: Verdict) -> bool:
    """Whether this is what a person waits through until the resource answers."""
    asked = tuple(_asked(ex, q) for q in asking.about_failure(ex, call))
    past = tuple(_past(r) for r in tries(ex, call) if r["outcome"] is not None)
    signature = free_text(_signature(call, verdict), 300)
    return policy.still_silent(asked, past, signature=signature, ended_us=ex.now_us())


def _believed(ex: Execution, call: Call, verdict: Verdict, started_us: int) -> bool:
    """Whether this "not now" is believed, or is one too many and counts as a failure."""
    answered = [q["answered_us"] or 0 for q in asking.about_failure(ex, call) if q["status"] == QuestionStatus.ANSWERED]
    past = tuple(_past(r) for r in tries(ex, call) if r["outcome"] is not None)
    return policy.believed(
        past, since_us=max(answered, default=0), started_us=started_us, now_us=ex.now_us(),
        retry_after_us=verdict.retry_after_us,
    )  # fmt: skip


async def record_attempt(ex: Execution, call: Call, row: dict[str, Any], unit: Callable[[Any], Any] | None = None) -> None:
    """Store the row (with *unit* in the same transaction) and keep it in memory.

    Raises:
        StoreUnavailable: the store failed before, so that what the step raised may be only its echo.
    """
    if ex.broken is not None:
        raise ex.broken
    now, trial, chance = ex.now_us(), call.trial, ex.edge.chance()

    def write(tx: Any) -> tuple[Row, Any]:
        judged, stands = outages.judge(tx, ex, row, trial, chance=chance)
        stored = steps.end_attempt(tx, ex.hold, judged, now)
        if unit is not None:
            unit(tx)
        return stored, stands

    def noted(written: tuple[Row, Any]) -> None:
        stored, stands = written
        outages.found(ex, call, stands)
        if stored["resource"]:
            ex.down.met(ex.workflow.name, call.step.name, stored["approach"], stored["resource"])
        rows = ex.attempts.setdefault(call.key, [])
        rows[:] = [r for r in rows if r["n"] != row["n"]] + [stored]
        ex.uusd += row["usd"] or 0
        ex.tokens += row["tokens"] or 0

    await ex.write(write, durable=True, then=noted)
    ex.services.tell(ex.hold.run_id, "failed", name=row["name"], reason=row["reason"], outcome=row["outcome"])


# -- the move ---------------------------------------------------------------------------------------------------------


def details_of(row: Row) -> dict[str, Any]:
    """What was kept of a failed try besides its columns."""
    found = json.loads(row["trace"]) if row["trace"] else {}
    return found if isinstance(found, dict) else {}


def _past(row: Row) -> policy.Past:
    more = details_of(row)
    return policy.Past(
        n=row["n"], approach=row["approach"], outcome=AttemptOutcome(row["outcome"]),
        kind=FailureKind(row["kind"]) if row["kind"] else None, reason=row["reason"] or "", signature=row["signature"] or "",
        started_us=row["started_us"], ended_us=row["ended_us"] or row["started_us"], source_digest=row["source_digest"],
        retry_after_us=more.get("retry_after_us"), narrow=bool(more.get("narrow")), circuit=bool(more.get("circuit")),
    )  # fmt: skip


def tries(ex: Execution, call: Call) -> list[Row]:
    """The tries of this call. Of a read: those with these inputs only, where its key does not tell them apart."""
    rows = ex.attempts.get(call.key, [])
    if call.step.settings.writes:
        return rows
    rows = verifying.since(ex, call.key, rows)
    return [r for r in rows if r["inputs"] in (None, call.digest)]


def _asked(ex: Execution, row: Row) -> policy.Asked:
    answer = None if row["answer"] is None else json.loads(row["answer"])
    choice = choice_of(answer) if row["kind"] != "required" else "again"
    if row["kind"] == "unknown_outcome":
        choice = "again" if choice == "not_happened" else choice
    if (choice or "").startswith("rerun:"):
        name = (choice or "").removeprefix("rerun:")
        if not any(choices.older(r, row["branch"], name, row["asked_seq"]) for r in ex.records.values()):
            choice = "again"  # it was set aside, and has run again or is not called any more
    return policy.Asked(
        id=row["id"], status=QuestionStatus(row["status"]), attempts=row["attempts"], choice=choice, answer=answer,
        by=row["answered_by"], answered_us=row["answered_us"],
    )  # fmt: skip


def move_for(ex: Execution, call: Call) -> policy.Move:
    """What to do next with this call."""
    rows = [r for r in tries(ex, call) if r["outcome"] is not None]
    about = asking.about_failure(ex, call)
    asked = chosen.asked(ex, call, about, [_asked(ex, q) for q in about])
    if not rows and not asked:
        return policy.Try(number=1)
    o = call.step.settings
    trouble = policy.Trouble(
        past=tuple(_past(r) for r in rows), asked=asked,
        ways=tuple(policy.Way(label=a.label, ask=a.ask) for a in call.step.hooks.approaches), attempts=o.attempts,
        source_digest=call.step.digest, now_us=ex.now_us(), resumed=ex.resumed,
    )  # fmt: skip
    move = policy.next_move(trouble, chance=ex.edge.chance())
    if isinstance(move, policy.Ask) and asking.known_already(ex, call) is not None:
        return policy.Try(number=len(policy.failed_tries(trouble.past)) + 1)
    return move


def last_reason(ex: Execution, call: Call) -> str:
    """Why the newest try failed."""
    rows = tries(ex, call)
    return str(rows[-1]["reason"]) if rows else "it failed"


def last_kind(ex: Execution, call: Call) -> str:
    """The kind of the newest failure."""
    rows = tries(ex, call)
    return str(rows[-1]["kind"]) if rows else FailureKind.FIXABLE.value


async def withdraw(ex: Execution, question_ids: tuple[str, ...]) -> None:
    """Take questions back that are no longer needed."""
    for question_id in question_ids:
        ex.remember_question(await ex.withdraw(question_id))
