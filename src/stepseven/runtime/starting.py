"""What comes before a workflow's body: the client's outside record is read, and the facts it requires are known or asked for.

It runs where the body will run, and like it from the top after every resume; what was found or answered once stands on record.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from stepseven.decide._required import required
from stepseven.model import QuestionKind, RunStatus, WaitingFor
from stepseven.runtime import asking, facts, outline, refreshed, trouble
from stepseven.runtime.inquiry import pinned_fact
from stepseven.runtime.place import Place, place
from stepseven.runtime.waits import DurableWait
from stepseven.transitions.state import Record

if TYPE_CHECKING:
    from stepseven.runtime.declared import Step
    from stepseven.runtime.execution import Execution
    from stepseven.runtime.handle import Run
    from stepseven.store.base import Row

KEY = "run.start/"  # before the fact's name: no step has such a name, so that no step's question is taken for one of these


def body(ex: Execution, handle: Run) -> Coroutine[Any, Any, Any]:
    """The workflow's body, after what comes before it."""
    workflow = ex.workflow
    if workflow.loader is None and not workflow.settings.requires:
        return outline.body(workflow, handle, ex.run["inputs"])
    return _prepared(ex, handle)


async def _prepared(ex: Execution, handle: Run) -> Any:
    root = place.get()
    assert root is not None  # it is the body's own task  # noqa: S101
    if ex.workflow.loader is not None:
        await _load(ex, ex.workflow.loader, root)
    await _know(ex, root)
    return await outline.body(ex.workflow, handle, ex.run["inputs"])


# -- the outside record ---------------------------------------------------------------------------------------------------


async def _load(ex: Execution, load: Step[Any, Any], root: Place) -> None:
    """Read the record, as a step of its own. A client that is not there ends the run."""
    from stepseven.runtime.memory import Stop

    here = Place(ex, "", parent=None)  # calls that the body makes are counted apart: one like this finds the same record
    token = place.set(here)
    try:
        call: Any = load(ex.hold.client_id)
        value = await call
    finally:
        place.reset(token)
    root.learn_from(here)
    record = ex.records.get(call.key)
    if value is None and (record is None or record.state != "skipped"):
        ex.halt(Stop(RunStatus.FAILED, f"there is no client record for {ex.hold.client_id}", load.name))
        await ex.forever()
    ex.client_record = value


# -- the facts ------------------------------------------------------------------------------------------------------------


async def _know(ex: Execution, root: Place) -> None:
    """Pin what is known of the required facts, ask for the rest all at once, and wait until nothing is missing."""
    names = ex.workflow.settings.requires
    while True:
        missing = [name for name in names if not await _pinned(ex, root, name)]
        if not missing:
            return
        for name in missing:
            if _standing(ex, name) is None:
                await _ask(ex, name, tuple(other for other in missing if other != name))
        row = _standing(ex, missing[0])
        if row is not None and row["status"] == "open":
            await ex.wait(
                DurableWait(
                    kind=WaitingFor.PERSON, what=row["text"].split("\n", 1)[0], question_id=row["id"], fact=missing[0]
                )
            )  # fmt: skip
            ex.remember_question(await ex.question(row["id"]))


async def _pinned(ex: Execution, root: Place, name: str) -> bool:
    """Whether the fact is known to this run; if so, its code sees it from its first line on."""
    row = _standing(ex, name)
    if row is not None and row["status"] == "open":
        row = ex.remember_question(await ex.question(row["id"]))
        if row["status"] == "open" and facts.known(ex, name) is None:
            return False
        if row["status"] == "open":  # it became known, and whoever said it did not know of the question
            await trouble.withdraw(ex, (row["id"],))
    if row is not None and row["status"] == "answered" and ("", facts.FOUND, name) not in ex.records:
        await _keep_answer(ex, name, row)
    found = await pinned_fact(ex, root, name)
    if found is None:
        return False
    root.found_out(name, found)
    return True


def _standing(ex: Execution, name: str) -> Row | None:
    """The newest question for this fact, open or answered."""
    rows = ex.questions.get(("", QuestionKind.REQUIRED.value, KEY + name), [])
    stands = rows and rows[-1]["status"] in ("open", "answered") and not refreshed.overtaken(ex, rows[-1])
    return rows[-1] if stands else None


async def _keep_answer(ex: Execution, name: str, row: Row) -> None:
    """The answer is what this run knows, whatever becomes of the fact later."""
    pin = json.dumps({"value": json.loads(row["answer"]), "version": facts.version_answered(ex, row, name)}, ensure_ascii=False)
    now = ex.now_us()
    await ex.append(
        Record(id=ex.next_id(), branch="", name=facts.FOUND, key=name, generation=ex.generation(("", facts.FOUND, name)),
               state="done", result=pin, started_us=now, ended_us=now),
        durable=False,
    )  # fmt: skip


async def _ask(ex: Execution, name: str, also: tuple[str, ...]) -> None:
    await asking.store(
        ex, QuestionKind.REQUIRED, KEY + name, required(asking.situation(ex), fact=name, also=also),
        remember=json.dumps({"key": name}), about=None,
    )  # fmt: skip
