"""Limits: checked before a step, reserved for what it declares, asked about once when reached."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

from stepseven.decide import escalate
from stepseven.model import FailureKind, Limits, QuestionKind, RunStatus, to_micro
from stepseven.runtime import asking
from stepseven.transitions.state import choice_of

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.store.base import Row

DAY_US = 86_400_000_000


async def reserve(ex: Execution, call: Call) -> int:
    """Make room for one try: returns what was reserved, in micro-USD. Waits for a person while a ceiling is in the way."""
    cost = call.step.settings.cost
    uusd = to_micro(cost.usd) if cost is not None else 0
    seconds = cost.seconds if cost is not None else 0.0
    if ex.limits is not None:
        for field in fields(Limits):
            if getattr(ex.limits, field.name) is not None:
                await _within(ex, call, field.name, uusd / 1e6, seconds)
    ex.reserved_uusd += uusd
    return uusd


def free(ex: Execution, uusd: int) -> None:
    """The try ended: what it really cost is on record by now."""
    ex.reserved_uusd -= uusd


def ceiling(ex: Execution, what: str) -> float:
    """The ceiling in force: the declared one, or what a person raised it to."""
    assert ex.limits is not None  # noqa: S101 - asked only then
    value = float(getattr(ex.limits, what))
    for row in ex.questions.get(("", QuestionKind.LIMIT.value, what), []):
        if row["status"] == "answered":
            answer = json.loads(row["answer"])
            if isinstance(answer, dict) and answer.get("choice") == "raise":
                value = max(value, float(answer.get(what.removeprefix("client_").removesuffix("_per_day"), value)))
    return value


async def used(ex: Execution, what: str) -> float:
    """What is used of a limit, in its unit; running tries with what they declared."""
    if what == "usd":
        return (ex.uusd + ex.reserved_uusd) / 1e6
    if what == "tokens":
        return float(ex.tokens)
    if what == "steps":
        return float(ex.steps_done)
    if what == "seconds":
        return (ex.run["executing_us"] + ex.executing_us()) / 1e6
    since = ex.now_us() // DAY_US * DAY_US
    row = await ex.store.read(lambda tx: tx.one(tx.sql.client_spend, {"client_id": ex.hold.client_id, "since_us": since}))
    spent = int(row["uusd"] or 0) if row is not None else 0
    return (spent + ex.reserved_uusd) / 1e6


async def _within(ex: Execution, call: Call, what: str, usd: float, seconds: float) -> None:
    needs = {"usd": usd, "client_usd_per_day": usd, "steps": 1.0, "seconds": seconds, "tokens": 0.0}[what]
    while True:
        top, so_far = ceiling(ex, what), await used(ex, what)
        full = so_far >= top if needs == 0 else so_far + needs > top + 1e-9
        if not full:
            return
        rows = ex.questions.get(("", QuestionKind.LIMIT.value, what), [])
        row = rows[-1] if rows and rows[-1]["status"] == "open" else None
        if row is None:
            flight = ex.flights.get(("limit", what))
            if flight is not None:
                await ex.shared(flight)
                continue
            row = await _ask(ex, call, what, top, so_far, needs)
        row = await ex.answered(row)
        if row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "stop":
            from stepseven.runtime.execution import Stop  # noqa: PLC0415 - it imports this module

            ex.halt(Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']} at a limit", None, FailureKind.FIXABLE))
            await ex.forever()


async def _ask(ex: Execution, call: Call, what: str, top: float, so_far: float, needs: float) -> Row:
    from stepseven.runtime.execution import Flight  # noqa: PLC0415 - it imports this module

    flight = ex.flights[("limit", what)] = Flight()  # one question per run and limit: all branches wait for it
    try:
        draft = escalate.limit(
            asking.situation(ex, call.step.name), what=what, ceiling=top, used=so_far, next_step=call.step.name,
            next_cost=needs or None,
        )  # fmt: skip
        return await asking.store(ex, QuestionKind.LIMIT, what, draft, step=call.step.name)
    finally:
        del ex.flights[("limit", what)]
        flight.wake()
