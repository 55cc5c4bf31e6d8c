"""Limits: checked before a step, reserved for what it declares, asked about once when reached."""

from __future__ import annotations

import asyncio
import json
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.decide import escalate, incident
from stepseven.decide.plan import UNKNOWN
from stepseven.model import INTERNAL, FailureKind, Limits, QuestionKind, RunStatus, WaitingFor, to_micro
from stepseven.runtime import asking, kinship, outline
from stepseven.runtime.waits import DurableWait
from stepseven.transitions import family
from stepseven.transitions.questions import limit_unit
from stepseven.transitions.state import choice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row, Tx

DAY_US = 86_400_000_000
WHATS = tuple(f.name for f in fields(Limits))


class NoRoom(Exception):
    """Another run of the client was faster: everything is looked at again."""


@dataclass(slots=True)
class Reserved:
    """What the tries that run now have reserved, and who waits for it to be given back."""

    uusd: int = 0
    steps: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    today: tuple[int, int] | None = None  # day, and what this run had spent before it


async def reserve(ex: Execution, call: Call) -> int:
    """Make room for one try: returns what was reserved, in micro-USD. Waits while a ceiling is in the way.

    Nothing is awaited between the last check and the reservation: tries that start together never overshoot.
    """
    cost = call.step.settings.cost
    uusd = to_micro(cost.usd) if cost is not None else 0
    needs = {
        "usd": uusd / 1e6, "client_usd_per_day": uusd / 1e6, "steps": 1.0,
        "seconds": cost.seconds if cost is not None else 0.0, "tokens": 0.0,
    }  # fmt: skip
    limited = [what for what in WHATS if ex.limits is not None and getattr(ex.limits, what) is not None]
    while True:
        others = await _others_today(ex) if "client_usd_per_day" in limited else 0
        known = await kinship.far(ex) if ex.above else {}
        full = next((what for what in limited if not room(ex, what, needs[what], others)), None)
        lack = kinship.short(ex, known, needs) if full is None and ex.above else None
        if full is not None:
            await _wait(ex, call, full, needs[full], others)
        elif lack is not None:
            await kinship.wait(ex, call, lack)
        else:
            break
    ex.reserved.uusd += uusd
    ex.reserved.steps += 1
    try:
        for what in limited:
            await _withdraw(ex, what)  # there is room: nobody has to decide any more
    except BaseException:  # cancelled, too: the try will not run
        free(ex, uusd)
        raise
    return uusd


def free(ex: Execution, uusd: int) -> None:
    """The try ended: what it really cost is on record by now. Who waits for room looks again."""
    ex.reserved.uusd -= uusd
    ex.reserved.steps -= 1
    kinship.freed(ex)
    if ex.limits is None:
        return
    for row in filter(None, [_open(ex, what) for what in WHATS]):
        ex.wake_question(row["id"])


def ceiling(ex: Execution, what: str) -> float:
    """The ceiling in force: the declared one, or what a person raised it to."""
    assert ex.limits is not None  # noqa: S101 - asked only then
    value = float(getattr(ex.limits, what))
    for row in ex.questions.get(("", QuestionKind.LIMIT.value, what), []):
        answer = json.loads(row["answer"]) if row["status"] == "answered" else None
        if choice_of(answer) == "raise" and isinstance(answer, dict):
            value = max(value, float(answer.get(limit_unit(what), value)))
    return value


def used(ex: Execution, what: str, others_uusd: int, *, running: bool = True) -> float:
    """What is used of a limit, in its unit; *running*: with what the tries that run now have declared."""
    uusd, steps = (ex.reserved.uusd, ex.reserved.steps) if running else (0, 0)
    if what == "usd":
        return (ex.uusd + uusd + kinship.below(ex, running=running)[0]) / 1e6
    if what == "tokens":
        return float(ex.tokens + kinship.below(ex, running=running)[1])
    if what == "steps":
        return float(ex.steps_done + steps)
    if what == "seconds":
        return float(ex.run["executing_us"] + ex.executing_us()) / 1e6
    return (others_uusd + _mine_today(ex) + uusd) / 1e6


async def _others_today(ex: Execution) -> int:
    params = _today(ex)
    return await ex.store.read(lambda tx: _others(tx, params))


def _today(ex: Execution) -> dict[str, Any]:
    return {"client_id": ex.hold.client_id, "run_no": ex.hold.run_no, "since_us": ex.now_us() // DAY_US * DAY_US}


def _others(tx: Tx, params: dict[str, Any]) -> int:
    """What the client's other runs have spent today (UTC), in micro-USD; tries under way with what they declared."""
    row = tx.one(tx.sql.client_spend, params)
    return int(row["uusd"] or 0) if row is not None else 0


def last_look(ex: Execution) -> Callable[[Tx], None]:
    """For the transaction in which a paid try begins: whether another run has spent the rest of the day since ``reserve``.

    What it gives raises ``NoRoom``.
    """
    if ex.limits is None or ex.limits.client_usd_per_day is None:
        return lambda _: None
    what, params = "client_usd_per_day", _today(ex)
    left_uusd = round((ceiling(ex, what) - used(ex, what, 0)) * 1e6)  # this try is reserved already

    def check(tx: Tx) -> None:
        if _others(tx, params) > left_uusd:
            raise NoRoom

    return check


def _mine_today(ex: Execution) -> int:
    """What this run has spent today (UTC), in micro-USD. Not what it has started: those are runs of the client, too."""
    day = ex.now_us() // DAY_US
    if ex.reserved.today is None or ex.reserved.today[0] != day:
        since_us = day * DAY_US
        own = (r for r in (*ex.records.values(), *ex.older) if r.name != family.START)
        mine = sum(r.usd or 0 for r in own if (r.ended_us or 0) >= since_us)
        mine += sum(r["usd"] or 0 for rows in ex.attempts.values() for r in rows if r["started_us"] >= since_us)
        ex.reserved.today = (day, ex.uusd - ex.started_uusd - mine)
    return int(ex.uusd - ex.started_uusd - ex.reserved.today[1])


def room(ex: Execution, what: str, needs: float, others_uusd: int = 0, *, running: bool = True) -> bool:
    """Whether a try fits; while a question is open, whether the one it was asked for fits: all wait for the same."""
    row = _open(ex, what)
    if row is not None:
        needs = max(needs, json.loads(row["context"])["limit"]["next_cost"] or 0)
    top, so_far = ceiling(ex, what), used(ex, what, others_uusd, running=running)
    return so_far < top if needs == 0 else so_far + needs <= top + 1e-9


async def left(ex: Execution) -> dict[str, float]:
    """What is left of each limit, in its unit; without one that a person is being asked about."""
    found: dict[str, float] = {}
    for what in WHATS:
        if ex.limits is not None and getattr(ex.limits, what) is not None and _open(ex, what) is None:
            others = await _others_today(ex) if what == "client_usd_per_day" else 0
            found[what] = ceiling(ex, what) - used(ex, what, others)
    return found


async def so_far(ex: Execution) -> dict[str, float]:
    """What is used of each limit, in its unit."""
    limited = [what for what in WHATS if ex.limits is not None and getattr(ex.limits, what) is not None]
    return {what: used(ex, what, await _others_today(ex) if what == "client_usd_per_day" else 0) for what in limited}


def _open(ex: Execution, what: str) -> Row | None:
    rows = ex.questions.get(("", QuestionKind.LIMIT.value, what))
    return rows[-1] if rows and rows[-1]["status"] == "open" else None


async def _withdraw(ex: Execution, what: str) -> None:
    from stepseven.runtime import trouble

    row = _open(ex, what)
    if row is not None:
        await trouble.withdraw(ex, (row["id"],))
        ex.wake_question(row["id"])


async def _wait(ex: Execution, call: Call, what: str, needs: float, others_uusd: int) -> None:
    """Wait for a person, or for room: then everything is looked at again."""
    row = _open(ex, what)
    if row is None:
        await _stopped(ex, what)
        flight = ex.flights.get(("limit", what))
        if flight is not None:
            await ex.shared(flight)
            return
        inside = call.place.attempt is not None  # the step around it holds a reservation: it would wait for itself
        if not inside and ex.reserved.steps and room(ex, what, needs, others_uusd, running=False):
            await kinship.paused(ex, ex)
            return
        enough = _enough(ex, call, what, others_uusd)
        row = await _ask(ex, call.step.name, what, needs, used(ex, what, others_uusd), enough)
    until_us = (ex.now_us() // DAY_US + 1) * DAY_US if what == "client_usd_per_day" else None
    said = row["text"].split("\n", 1)[0]
    await ex.wait(DurableWait(kind=WaitingFor.PERSON, what=said, until_us=until_us, question_id=row["id"]))
    ex.remember_question(await ex.question(row["id"]))
    await _stopped(ex, what)


async def _stopped(ex: Execution, what: str) -> None:
    """Whether a person chose to stop here: then nothing follows."""
    rows = ex.questions.get(("", QuestionKind.LIMIT.value, what), [])
    if not rows or rows[-1]["status"] != "answered" or choice_of(json.loads(rows[-1]["answer"])) != "stop":
        return
    from stepseven.runtime.memory import Stop

    ex.halt(Stop(RunStatus.CANCELLED, f"stopped by {rows[-1]['answered_by']} at a limit", None, FailureKind.FIXABLE))
    await ex.forever()


async def stopped(ex: Execution) -> None:
    """Whether a person chose to stop at a ceiling of this run: then nothing follows."""
    for what in WHATS:
        await _stopped(ex, what)


def open_question(ex: Execution) -> Row | None:
    """What a person is asked about a ceiling of this run, if anything is."""
    return next(filter(None, (_open(ex, what) for what in WHATS)), None)


async def asked(ex: Execution, name: str, what: str, needs: float) -> Row:
    """The question about a ceiling that step *name* of a run below reached: asked now, unless it stands."""
    while True:
        rows = ex.questions.get(("", QuestionKind.LIMIT.value, what), [])
        if rows and (rows[-1]["status"] == "open" or choice_of(json.loads(rows[-1]["answer"] or "null")) == "stop"):
            return rows[-1]
        flight = ex.flights.get(("limit", what))
        if flight is None:
            return await _ask(ex, name, what, needs, used(ex, what, 0))
        await ex.shared(flight)


def _enough(ex: Execution, call: Call, what: str, others_uusd: int) -> float | None:
    """The least ceiling that lets this call and all that comes after it through, by what is declared; ``None``: not known.

    It counts every try of every call that the source has. Of loops, of what runs beside this call, in or around it, and of what
    declares nothing nobody knows before: ``plan`` tells, as far as earlier runs do.
    """
    if what not in ("usd", "client_usd_per_day", "steps") or call.place.attempt is not None or len(ex.tasks) > outline.FEW:
        return None
    left, o = outline.look(ex), call.step.settings
    steps = [c for c in left.coming if not c.name.startswith(INTERNAL) or c.name == family.START]
    if left.calls > 1 or any(c.many or c.anew or c.name in (UNKNOWN, family.START) for c in steps):
        return None
    if what == "steps":
        return used(ex, what, 0) + 1 + len(steps)
    costs = [(None if o.cost is None else o.cost.usd, o.attempts), *((c.cost_usd, c.tries) for c in steps)]
    if any(usd is None for usd, _ in costs):
        return None
    return used(ex, what, others_uusd) + sum((usd or 0) * tries for usd, tries in costs)


async def _ask(
    ex: Execution, name: str, what: str, needs: float, so_far: float, enough: float | None = None
) -> Row:  # fmt: skip
    from stepseven.runtime.waits import Flight

    flight = ex.flights[("limit", what)] = Flight()  # one question per run and limit: all branches wait for it
    try:
        draft = escalate.limit(
            asking.situation(ex, name), what=what, ceiling=ceiling(ex, what), used=so_far,
            next_step=name, next_cost=needs or None, enough=enough,
        )  # fmt: skip
        cause = incident.cause(QuestionKind.LIMIT, workflow=ex.workflow.name, step=what, signature=None, resource=None)
        return await asking.store(ex, QuestionKind.LIMIT, what, draft, step=name, cause=cause)
    finally:
        del ex.flights[("limit", what)]
        flight.wake()
