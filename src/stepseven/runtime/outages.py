"""A call whose resource is down: it goes another way, waits without burning an attempt, or is the one that looks.

The store decides (``transitions/circuits``). A circuit never touches what is claimed or in doubt: it only holds back what would
be sent, or looked for, now.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepseven.decide import _phrases as say
from stepseven.decide import circuit, policy
from stepseven.decide.circuit import Circuit, Pass, State
from stepseven.decide.classify import Handling
from stepseven.model import FailureKind, QuestionStatus, WaitingFor
from stepseven.runtime import asking
from stepseven.runtime.waits import DurableWait
from stepseven.store.codec import free_text
from stepseven.transitions import circuits
from stepseven.transitions.runs import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepseven.decide.classify import Verdict
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row, Tx

TRIAL_LOOK_US = 5_000_000  # whoever waits in this process while another run looks
ASK_SPREAD_S = 60  # runs that begin to ask after half an hour do not do so in the same second


def declared(call: Call, approach: str | None) -> str | None:
    """The resource that a step, or one of its approaches, says it needs."""
    if approach is None:
        return call.step.settings.resource
    return next((a.resource for a in call.step.hooks.approaches if a.label == approach), call.step.settings.resource)


def resource_of(ex: Execution, call: Call, approach: str | None) -> str | None:
    """Where a call goes, if that is known: it says so, or it or its like has failed there before."""
    said = declared(call, approach)
    if said is not None:
        return free_text(said, 300)
    rows = ex.attempts.get(call.key, ())
    met = next((r["resource"] for r in reversed(rows) if r["approach"] == approach and r["resource"]), None)
    return met or ex.down.where.get((ex.workflow.name, call.step.name, approach))


def concerns(ex: Execution, call: Call) -> bool:
    """Whether a call that was not tried yet goes to a resource that is believed to be down. Reads nothing."""
    return resource_of(ex, call, None) in ex.down.open


# -- before a try -------------------------------------------------------------------------------------------------------------


async def instead(ex: Execution, call: Call, move: policy.Move) -> policy.Move | None:
    """What to do instead of *move* while its resource is down. ``None``: it was waited for; look again."""
    if isinstance(move, policy.Try):
        return await _try(ex, call, move) if ex.down.open or move.looks else move
    if isinstance(move, policy.Ask):
        return await _ask(ex, call, move)
    if isinstance(move, policy.Wait) and ex.down.open:
        last = _last(ex, call)
        stands = None if last is None else await _standing(ex, last["resource"])
        if last is not None and stands is not None and stands.open:
            call.down = stands.name
            if _passes(ex, stands) is Pass.TRY:
                return _again(ex, call, last)
    return move


async def _try(ex: Execution, call: Call, move: policy.Try) -> policy.Move | None:
    name = resource_of(ex, call, move.approach)
    if name is None or (name not in ex.down.open and not move.looks):
        return move
    stands = await _standing(ex, name)
    if not stands.open:
        return replace(move, not_before_us=0) if move.looks and _back_since(stands, _last(ex, call)) else move
    if not _chosen(ex, call) and (other := _another_way(ex, call, move)) is not None:
        return replace(move, approach=other)
    if _passes(ex, stands) is Pass.TRY:
        return replace(move, not_before_us=0, looks=False) if move.looks else move
    if ex.now_us() >= _ask_us(ex, call, stands, looks=move.looks):
        call.down = name
        return policy.Ask()
    await _wait(ex, call, stands, looks=move.looks)
    return None


async def _ask(ex: Execution, call: Call, move: policy.Ask) -> policy.Move | None:
    """Its tries are used up. While it is known why, nobody is asked; when it is over, it is tried once more."""
    last = _last(ex, call)
    if last is None:
        return move
    stands = await _standing(ex, last["resource"])
    if not stands.open:
        return _again(ex, call, last) if _back_since(stands, last) else move
    call.down = stands.name
    if _passes(ex, stands) is Pass.TRY:
        return _again(ex, call, last)
    if ex.now_us() >= _ask_us(ex, call, stands):
        return move
    await _wait(ex, call, stands)
    return None


def _last(ex: Execution, call: Call) -> Row | None:
    """The newest try, if it failed at a resource in a way that goes away by itself."""
    from stepseven.runtime import trouble

    rows = [r for r in trouble.tries(ex, call) if r["outcome"] in ("failed", "deferred", "unknown")]
    if not rows or not rows[-1]["resource"] or rows[-1]["kind"] != FailureKind.RETRYABLE:
        return None
    return rows[-1]


def _again(ex: Execution, call: Call, last: Row) -> policy.Try:
    from stepseven.runtime import trouble

    n = len([r for r in trouble.tries(ex, call) if r["outcome"] in ("failed", "unknown")])
    return policy.Try(number=n + 1, approach=last["approach"], narrow=bool(trouble.details_of(last).get("narrow")))


def _back_since(stands: Circuit, last: Row | None) -> bool:
    """Whether a circuit has closed since the newest try."""
    return last is not None and stands.next_us is not None and stands.next_us > (last["ended_us"] or last["started_us"])


def _another_way(ex: Execution, call: Call, move: policy.Try) -> str | None:
    """An approach that a policy may choose by itself, that was not tried, and that needs another resource."""
    tried = {r["approach"] for r in ex.attempts.get(call.key, ()) if r["outcome"] in ("failed", "unknown")}
    ways = [a.label for a in call.step.hooks.approaches if not a.ask and a.label not in tried and a.label != move.approach]
    return next((way for way in ways if resource_of(ex, call, way) not in ex.down.open), None)


def _chosen(ex: Execution, call: Call) -> bool:
    """Whether a person has said how it is to be tried."""
    asked = asking.about_failure(ex, call)
    return bool(asked) and asked[-1]["status"] == QuestionStatus.ANSWERED


def _ask_us(ex: Execution, call: Call, stands: Circuit, *, looks: bool = False) -> int:
    """From when on a person is asked. *looks*: one has said to wait until it answers."""
    said = [q["answered_us"] or 0 for q in asking.about_failure(ex, call) if q["status"] == QuestionStatus.ANSWERED]
    decided_us = max(said, default=0)
    return decided_us + policy.LOOKS_LAST_US if looks else circuit.ask_us(stands, decided_us)


async def _standing(ex: Execution, name: str) -> Circuit:
    stands = await ex.store.read(partial(_read, name))
    ex.down.note(stands)
    return stands


def _read(name: str, tx: Tx) -> Circuit:
    return circuits.standing(tx, name)


def _passes(ex: Execution, stands: Circuit) -> Pass:
    held = (ex.hold.run_no, stands.name) in ex.down.held
    return circuit.passes(stands, ex.hold.run_no, ex.now_us(), held=held)


def passes_now(ex: Execution, stands: Circuit) -> bool:
    """Whether who waits in memory has something to do."""
    return _passes(ex, stands) is not Pass.WAIT


async def _wait(ex: Execution, call: Call, stands: Circuit, *, looks: bool = False) -> None:
    """Wait for the circuit: without a slot, without a lane, with nothing reserved."""
    until_us = circuit.look_us(stands)
    if stands.state is State.TRIAL:  # it will soon be known what that has found
        until_us = min(until_us, ex.now_us() + TRIAL_LOOK_US)
    if ex.brief and not ex.settling:  # a worker wakes one run for each look, and all when it answers again
        until_us = _ask_us(ex, call, stands, looks=looks) + ex.hold.run_no % ASK_SPREAD_S * 1_000_000
    async with asking.aside(ex, call):
        await ex.wait(
            DurableWait(kind=WaitingFor.CIRCUIT, what=told(stands), until_us=max(until_us, ex.now_us() + 1), resource=stands.name)
        )


def told(stands: Circuit) -> str:
    """What a run waits for, in words."""
    every = say.duration(circuit.every_us(stands.looks) / 1e6)
    return f"it waits until {stands.name} answers again; I look every {every}"


def silence(ex: Execution, call: Call) -> str:
    """What a question says of a resource that is down."""
    stands = ex.down.open.get(call.down or "")
    if stands is None or stands.opened_us is None:
        return ""
    return f"{stands.name} has not answered for {say.duration((ex.now_us() - stands.opened_us) / 1e6)}; I keep looking."


# -- the trial ------------------------------------------------------------------------------------------------------------------


async def enter(ex: Execution, call: Call, approach: str | None) -> bool:
    """Whether a try may begin now; as the trial, if the circuit is open. Whoever is told so says ``leave`` afterwards.

    Raises:
        Superseded: the run is no longer ours.
    """
    name = resource_of(ex, call, approach) if ex.down.open else None
    if name is None or name not in ex.down.open:
        return True
    mark, now = (ex.hold.run_no, name), ex.now_us()
    held = mark in ex.down.held

    def unit(tx: Tx) -> tuple[Pass, Circuit]:
        return circuits.enter(tx, ex.hold, name, now, held=held)

    ex.down.held.add(mark)  # no other call of this run takes ours for one that a crash left
    passes, stands = Pass.WAIT, None
    try:
        passes, stands = await ex.write(unit, durable=False)
    finally:
        if passes is not Pass.TRY and not held:
            ex.down.held.discard(mark)
    ex.down.note(stands)
    call.trial = name if passes is Pass.TRY else None
    return passes is not Pass.WAIT


async def leave(ex: Execution, call: Call) -> None:
    """The try is over. A trial that found out nothing is given back; a dying run leaves that to its lease."""
    name, call.trial = call.trial, None
    if name is None:
        return
    ex.down.held.discard((ex.hold.run_no, name))
    if ex.unloading is None and ex.lost is None and ex.broken is None:
        now = ex.now_us()
        ex.down.note(await ex.write(lambda tx: circuits.give_back(tx, ex.hold, name, now), durable=False))


def found(ex: Execution, call: Call, stands: Circuit | None) -> None:
    """What a try found is on record; if it was the trial, it is none any more."""
    if stands is not None:
        ex.down.note(stands)
    if call.trial is not None:
        ex.down.held.discard((ex.hold.run_no, call.trial))
        call.trial = None


def won(ex: Execution, call: Call) -> None:
    """A try has succeeded, and that is on record (with ``closing``)."""
    if call.trial is not None:
        found(ex, call, Circuit(name=call.trial, next_us=ex.now_us()))


def closing(ex: Execution, call: Call) -> Callable[[Tx], Circuit | None] | None:
    """What goes into the transaction that writes down that a trial has succeeded; ``None``: it is none."""
    name, now = call.trial, ex.now_us()
    return None if name is None else lambda tx: circuits.answers(tx, name, now)


async def answered(ex: Execution, call: Call) -> None:
    """A look found that the resource answers."""
    also = closing(ex, call)
    if also is not None:
        found(ex, call, await ex.write(also, durable=False))


async def silent(ex: Execution, call: Call) -> None:
    """A look found that it does not."""
    name, now, chance = call.trial, ex.now_us(), ex.edge.chance()
    if name is None:
        return

    def unit(tx: Tx) -> Circuit:
        guard(tx, ex.hold)
        return circuits.failed(tx, ex.hold, name, now, trial=True, chance=chance)[1]

    found(ex, call, await ex.write(unit, durable=False))


class TooLong(Exception):
    """A resource has been down for so long that a person is asked about what waits for it."""


async def may_look(ex: Execution, call: Call, approach: str | None) -> bool:
    """Whether a probe may be asked now. ``False``: it was waited for, ask again whether it may.

    Raises:
        TooLong: it was waited for long enough.
    """
    name = resource_of(ex, call, approach) if ex.down.open else None
    if name is None or name not in ex.down.open:
        return True
    stands = await _standing(ex, name)
    if stands.open and _passes(ex, stands) is Pass.WAIT:
        if ex.now_us() >= _ask_us(ex, call, stands):
            call.down = name
            raise TooLong(silence(ex, call))
        await _wait(ex, call, stands)
        return False
    return await enter(ex, call, approach)


# -- a failure ------------------------------------------------------------------------------------------------------------------


def counts(verdict: Verdict, error: BaseException) -> bool:
    """Whether a failure speaks against its resource: it goes away by itself, and is neither ours nor a "not now"."""
    ours = verdict.narrow or isinstance(error, asyncio.CancelledError) or verdict.signature.startswith("cancelled")
    return verdict.handling is Handling.RETRYABLE and not ours


def judge(
    tx: Tx, ex: Execution, row: dict[str, Any], trial: str | None, *, chance: float
) -> tuple[dict[str, Any], Circuit | None]:
    """What a failure means for its resource, in the transaction that writes it down: the row as it is to be stored.

    Raises:
        Superseded: the run is no longer ours.
    """
    details, now = json.loads(row["trace"]) if row["trace"] else {}, ex.now_us()
    against, name = bool(details.get("counts")), row["resource"]
    passing = row["kind"] == FailureKind.RETRYABLE and not details.get("narrow")
    if row["outcome"] not in ("failed", "deferred", "unknown") or (trial is None and not (against and name)):
        return row, None
    guard(tx, ex.hold)
    stands: Circuit | None = None
    before = False
    if trial is not None and not passing:  # whatever it says, it answers
        return row, circuits.answers(tx, trial, now)
    if trial is not None and trial != name:
        stands = circuits.failed(tx, ex.hold, trial, now, trial=True, chance=chance)[1]
    if name and (against or trial == name):
        before, known = circuits.failed(tx, ex.hold, name, now, trial=trial == name, chance=chance)
        stands = stands or known
    if not before:
        return row, stands
    outcome = "unknown" if row["outcome"] == "unknown" else "deferred"  # the latter as soon as it is known that nothing happened
    return {**row, "trace": json.dumps({**details, "circuit": True, "deferred": True}), "outcome": outcome}, stands
