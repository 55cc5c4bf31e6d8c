"""The record of the client that ``@workflow(client_record=…)`` reads outside, read once more: is it still as the run has it?"""

from __future__ import annotations

import asyncio
import contextvars
import json
from typing import TYPE_CHECKING, Any

from stepseven.decide import _phrases as say
from stepseven.decide import drift
from stepseven.runtime import reading
from stepseven.runtime.place import Place, place
from stepseven.store.codec import free_text, guard

if TYPE_CHECKING:
    from stepseven.decide.plan import Drifted
    from stepseven.runtime.calls import Call
    from stepseven.runtime.declared import Step
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.memory import RunMemory
    from stepseven.transitions.state import Record

PATIENCE_S = 10.0  # for a look; what the step itself may take counts where that is said


def call(ex: RunMemory, load: Step[Any, Any]) -> Call:
    """The call that read it when the run started."""
    token = place.set(Place(ex, ""))  # type: ignore[arg-type]  # whoever looks is an execution
    try:
        made: Any = load(ex.hold.client_id)
    finally:
        place.reset(token)
    made.close()  # it is only wanted to know what it is called
    reading.as_named_before(ex, made)  # type: ignore[arg-type]  # the same
    return made  # type: ignore[no-any-return]  # a step in a run gives a call


def loaded(ex: RunMemory, load: Step[Any, Any]) -> Record | None:
    """What the run has of it; ``None``: it never came to read it, or a person gave it up."""
    record = ex.records.get(call(ex, load).key)
    return record if record is not None and record.state == "done" else None


async def moved(ex: Execution) -> list[Drifted]:
    """The fields that are not as the run has them. ``ex.reread_record``: it as it is now; ``ex.unread_record``: why not."""
    load = ex.workflow.loader
    ex.reread_record = ex.unread_record = None
    record = None if load is None else loaded(ex, load)
    before = None if record is None else ex.result_text(record)
    if load is None or record is None or before is None:
        return []
    text = ex.reread_record = await _now(ex, load)
    if text is None:
        return []
    source = load.settings.resource or load.name
    watch = ex.workflow.settings.watch
    return drift.of_record(json.loads(before), json.loads(text), watch, source=source, at_us=ex.now_us())


async def _now(ex: Execution, load: Step[Any, Any]) -> str | None:
    """The record as it is outside now, as it would be kept; ``None``: it could not be read."""
    try:
        value = await _bare(ex, load)
        if value is None:
            return "null"
        made = call(ex, load)
        reading.checked(made, value)
        text, _ = load.typed.roundtrip(value)
        return guard(text, f"{load.name}()", secrets=load.settings.secrets)
    except Exception as error:  # noqa: BLE001 - whatever it is: it is told, and nothing is decided by it
        ex.unread_record = _why(ex, load, error)
        return None


def _why(ex: Execution, load: Step[Any, Any], error: Exception) -> str:
    reason = free_text(say.reason_of(f"{type(error).__name__}: {error}"), 300)
    client, what = say.possessive(say.who(ex.hold.client_id)), say.humanise(load.name)
    return f"I could not look whether {client} record is still as I have it (“{what}”: {reason})."


async def _bare(ex: Execution, load: Step[Any, Any]) -> Any:
    """Call the step's function as if no run were there: nothing of it is recorded, retried or counted."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    context.run(place.set, None)
    task = loop.create_task(context.run(load, ex.hold.client_id), context=context)
    over = [] if ex._over is None else [ex._over]  # noqa: SLF001 - it may be taken from us meanwhile
    try:
        await asyncio.wait({task, *over}, timeout=load.settings.timeout or PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.add_done_callback(_ended)
        task.cancel()


def _ended(task: asyncio.Task[Any]) -> None:
    """Whoever gave it up does not hear how it ended; nor does the log, which would take that for an oversight."""
    if not task.cancelled():
        task.exception()
