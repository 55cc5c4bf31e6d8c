"""Limits across runs: what a run's children cost counts against its ceilings, and a child may spend what its parents have left.

The ceiling is the parent's, and so is the question: asked once, whoever reached it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepseven._dataclass import dataclass
from stepseven.errors import Superseded
from stepseven.model import FailureKind, Limits, QuestionKind, RunStatus, WaitingFor
from stepseven.runtime import outline
from stepseven.runtime.procedure import Workflow, code_of
from stepseven.runtime.waits import DurableWait
from stepseven.transitions import family
from stepseven.transitions.questions import limit_unit
from stepseven.transitions.state import choice_of

if TYPE_CHECKING:
    from stepseven.runtime.calls import Call
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.services import Services
    from stepseven.store.base import Row, Tx

SHARED = ("usd", "tokens")  # ceilings that a run shares with what it starts; steps and seconds are each run's own


@dataclass(frozen=True, slots=True)
class Above:
    """A run that started this one, or the one that started it, with a ceiling that counts here."""

    no: int
    id: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Far:
    """The same when this process does not execute it: what it has spent as a family, and its questions about limits."""

    spent: tuple[int, int]
    asked: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Short:
    """A parent's ceiling that is in the way of a try."""

    above: Above
    what: str
    needs: float


def limits_of(workflow: Workflow[Any, Any] | None, services: Services, run: Row) -> Limits | None:
    """A run's ceilings. What the layer says of money and tokens holds for a run with all it starts: it is the top one's."""
    told = services.limits
    if told is not None and run["parent_no"] is not None:
        told = replace(told, **dict.fromkeys(SHARED))
    return outline.tighter(workflow.settings.limits if workflow is not None else None, told)


def came(ex: Execution) -> None:
    """An execution begins: what it spends is seen by those above it as it is spent."""
    ex.loop = asyncio.get_running_loop()
    ex.services.executions[ex.hold.run_no] = ex


def left(ex: Execution) -> None:
    """An execution is over: what it has spent stays with its parent, until that has its end on record."""
    ex.services.executions.pop(ex.hold.run_no, None)
    parent: Execution | None = ex.services.executions.get(ex.run["parent_no"] or 0)
    if parent is not None and ex.hold.run_no in parent.kin:
        more = below(ex, running=False)
        parent.kin[ex.hold.run_no] = (ex.uusd + more[0], ex.tokens + more[1])


def below(ex: Execution, *, running: bool = True) -> tuple[int, int]:
    """Micro-USD and tokens of the children that have no record yet; *running*: with what their tries have reserved."""
    uusd = tokens = 0
    for no, (stored_uusd, stored_tokens) in list(ex.kin.items()):
        child: Execution | None = ex.services.executions.get(no)
        if child is None:
            uusd, tokens = uusd + stored_uusd, tokens + stored_tokens
        else:
            more = below(child, running=running)
            uusd += child.uusd + (child.reserved.uusd if running else 0) + more[0]
            tokens += child.tokens + more[1]
    return uusd, tokens


async def parents(ex: Execution) -> tuple[Above, ...]:
    """The runs above this one that have a ceiling for all, nearest first."""

    def unit(tx: Tx) -> list[Row]:
        rows, no = [], ex.run["parent_no"]
        while no is not None:
            row = tx.one(tx.sql.run_by_no, {"no": no})
            if row is None:
                break
            rows.append(row)
            no = row["parent_no"]
        return rows

    found = []
    for row in await ex.store.read(unit) if ex.run["parent_no"] is not None else ():
        workflow = code_of(row)
        limits = limits_of(workflow, ex.services, row)
        if limits is not None and any(getattr(limits, what) is not None for what in SHARED):
            found.append(Above(row["no"], row["id"], limits))
    return tuple(found)


def near(ex: Execution, above: Above) -> Execution | None:
    """The execution of a parent, if it is in memory in this loop and may still write."""
    found: Execution | None = ex.services.executions.get(above.no)
    return found if found is not None and found.loop is ex.loop and found.unloading is None else None


async def far(ex: Execution) -> Mapping[int, Far]:
    """What the store knows of the parents that are not executed here."""
    missing = [above.no for above in ex.above if near(ex, above) is None]
    if not missing:
        return {}

    def unit(tx: Tx) -> dict[int, Far]:
        return {no: Far(family.spend(tx, no), tuple(_asked(tx, no))) for no in missing}

    return await ex.store.read(unit)


def _asked(tx: Tx, run_no: int) -> list[Row]:
    return [row for row in tx.all(tx.sql.questions_of_run, {"run_no": run_no}) if row["kind"] == QuestionKind.LIMIT.value]


def short(ex: Execution, known: Mapping[int, Far], needs: Mapping[str, float]) -> Short | None:
    """The nearest parent's ceiling that has no room for a try. Nothing is awaited: what is free now is taken now."""
    from stepseven.runtime import ceilings

    for above in ex.above:
        parent = near(ex, above)
        for what in SHARED:
            if getattr(above.limits, what) is None:
                continue
            if parent is not None:
                fits = parent.limits is None or ceilings.room(parent, what, needs[what])
            else:
                fits = above.no not in known or _room_far(ex, above, known[above.no], what, needs[what])
            if not fits:
                return Short(above, what, needs[what])
    return None


def _room_far(ex: Execution, above: Above, known: Far, what: str, needs: float) -> bool:
    top = float(getattr(above.limits, what))
    for row in known.asked:
        answer = json.loads(row["answer"]) if row["status"] == "answered" and row["key"] == what else None
        if choice_of(answer) == "raise" and isinstance(answer, dict):
            top = max(top, float(answer.get(limit_unit(what), top)))
    spent = (known.spent[0] + ex.reserved.uusd) / 1e6 if what == "usd" else float(known.spent[1])
    return spent < top if needs == 0 else spent + needs <= top + 1e-9


async def wait(ex: Execution, call: Call, lack: Short) -> None:
    """Wait until a try that runs now gives back what it did not need, or until a person has raised the parent's ceiling."""
    from stepseven.runtime import ceilings

    parent = near(ex, lack.above)
    inside = call.place.attempt is not None  # the step around it holds a reservation: it would wait for itself
    if parent is not None and not inside and ceilings.room(parent, lack.what, lack.needs, running=False):
        await paused(ex, parent)
        return
    row = await _question(ex, call, lack, parent)
    if row is not None and row["status"] == "open":
        said = row["text"].split("\n", 1)[0]
        await ex.wait(DurableWait(kind=WaitingFor.PERSON, what=said, question_id=row["id"]))
        row = await ex.question(row["id"])
        if (parent := near(ex, lack.above)) is not None:
            parent.remember_question(row)
        if row["status"] != "answered" or choice_of(json.loads(row["answer"])) != "stop":
            return
    if parent is not None and row is not None:  # the parent ends, and this run with it
        parent.halt(_stopped(row))
    told = f"run {lack.above.id}, which started it, has reached its limit: `stepseven resume {lack.above.id}` asks about it"
    await ex.wait(DurableWait(kind=WaitingFor.EVENT, what=told))


def _stopped(row: Row) -> Any:
    from stepseven.runtime.memory import Stop

    return Stop(RunStatus.CANCELLED, f"stopped by {row['answered_by']} at a limit", None, FailureKind.FIXABLE)


async def _question(ex: Execution, call: Call, lack: Short, parent: Execution | None) -> Row | None:
    """The parent's question about this ceiling: asked now if it is executed here, else as it stands."""
    from stepseven.runtime import ceilings

    if parent is None:
        rows = await ex.store.read(lambda tx: _asked(tx, lack.above.no))
        return next((row for row in reversed(rows) if row["key"] == lack.what and _counts(row)), None)
    try:
        return await ceilings.asked(parent, call.step.name, lack.what, lack.needs)
    except Superseded as signal:
        if signal.run_id != lack.above.id:
            raise
        return None  # it was taken over just now: whoever has it asks


def _counts(row: Row) -> bool:
    """Whether a question is still to be waited for, or was answered with an end."""
    return row["status"] == "open" or (row["status"] == "answered" and choice_of(json.loads(row["answer"])) == "stop")


def freed(ex: Execution) -> None:
    """A try ended: whoever waits for room in this run or above it looks again."""
    for run in (ex, *(p for above in ex.above if (p := near(ex, above)) is not None)):
        waiters, run.reserved.waiters = run.reserved.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


async def paused(ex: Execution, owner: Execution) -> None:
    """Wait until a try of *owner*'s family has ended. One of another run keeps this one loaded: nothing stored would wake it."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    owner.reserved.waiters.append(waiter)
    ex.inside.add(waiter)
    elsewhere = int(owner is not ex)
    ex.driving += elsewhere
    ex.look()
    try:
        await waiter
    finally:
        ex.driving -= elsewhere
        ex.inside.discard(waiter)
