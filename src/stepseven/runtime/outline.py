"""What a workflow's code says about itself: its inputs, its ceilings, and which steps it still has ahead."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from stepseven.decide.plan import UNKNOWN
from stepseven.model import Limits, StepState
from stepseven.runtime import ahead as source
from stepseven.runtime.ahead import Ahead
from stepseven.runtime.binding import without_exit
from stepseven.runtime.procedure import Workflow
from stepseven.store.codec import from_canonical

if TYPE_CHECKING:
    from stepseven.runtime.handle import Run
    from stepseven.runtime.memory import RunMemory


def tighter(a: Limits | None, b: Limits | None) -> Limits | None:
    """The lower of two ceilings, each."""
    if a is None or b is None:
        return a or b
    both = {}
    for f in fields(Limits):
        values = [v for v in (getattr(a, f.name), getattr(b, f.name)) if v is not None]
        both[f.name] = min(values) if values else None
    return Limits(**both)


def decode_inputs(workflow: Workflow[Any, Any], text: str) -> dict[str, Any]:
    """Stored inputs as the workflow's parameters.

    Raises:
        NotRecordable: an input cannot be rebuilt as its parameter's type says today; names it.
    """
    inputs = {}
    for name, value in from_json(text).items():
        typed = workflow.inputs_typed.get(name)
        raw = to_json(value).decode()
        inputs[name] = typed.decode(raw) if typed is not None else from_canonical(raw)
    return inputs


async def body(workflow: Workflow[Any, Any], handle: Run, text: str) -> Any:
    """The workflow's code with its stored inputs; what cannot be rebuilt of them is a failure of the body."""
    return await without_exit(workflow.fn(handle, **decode_inputs(workflow, text)))


FEW = 32  # tasks of a run that are looked at whenever one of them asks; all of them are when it is put away


def ahead(ex: RunMemory) -> tuple[str | None, list[str]]:
    """The next step, and the steps that remain, in order. ``unknown`` is among them where something cannot be seen.

    Read from where the run's code stands, or stood when it was put away; where it never began, from the top, without what is
    on record. So it is also where very many tasks ask one after the other.
    """
    left = ex.left
    if left is None and ex.unloading is None and 0 < len(ex.tasks) <= FEW:
        left = look(ex)
    asked = [str(r["step"]) for rows in ex.questions.values() for r in rows if r["status"] == "open" and r["step"]]
    if left is None:
        remaining = _from_the_top(ex, asked)
    else:
        remaining = list(dict.fromkeys([*left.waited, *(n for n in asked if n in left.waited), *_coming(ex, left)]))
    first = next((name for name in remaining if name != UNKNOWN), None)
    return first, remaining


def look(ex: RunMemory) -> Ahead:
    """What is under way in the run's tasks, and what comes after."""
    return source.look(ex.tasks, home=str(ex.workflow.fn.__module__).partition(".")[0])


def see(ex: RunMemory) -> None:
    """The run is about to be put away: remember what is left of it, while its code still stands where it waits."""
    if ex.left is None and any(not task.done() for task in ex.tasks):
        ex.left = look(ex)


def see_failed(ex: RunMemory, error: BaseException) -> None:
    """The body raised: what would have come after that is left."""
    ex.left = source.after_error(error, home=str(ex.workflow.fn.__module__).partition(".")[0])


def _coming(ex: RunMemory, left: Ahead) -> list[str]:
    """What comes. Of a run that is stopped in the middle of meeting its records: without what these would answer."""
    if ex.stop is None:
        return source.names(left.coming)
    waiting = {r.name for r in ex.records.values() if not r.used and r.state == StepState.DONE}
    return source.names(c for c in left.coming if c.many or c.name not in waiting)


def _from_the_top(ex: RunMemory, asked: list[str]) -> list[str]:
    names = source.names(source.whole(ex.workflow))
    known = {r.name for r in ex.records.values()}
    tried = {name for (_, name, _), rows in ex.attempts.items() if rows and name not in known}
    remaining = [n for n in names if n not in known or n in asked]
    first = next((n for n in names if n in asked or n in tried), None)
    return remaining if first is None else list(dict.fromkeys([first, *remaining]))
