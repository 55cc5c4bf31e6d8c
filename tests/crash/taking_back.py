"""A run that does two things outside, one of them in a run it starts, and fails; a person lets them be taken back.

It is killed again and again.

The outside recognises no keys here: whatever is sent twice is there twice.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from stepseven import Fatal, Layer, Outcome, Question, Run, step, workflow
from stepseven.model import QuestionKind, RunStatus
from stepseven.runtime.edge import Edge
from tests.crash.subject import World, is_there, talk

RUN_ID = "acme-trip"
#: what the outside is to have seen in the end, whatever happened on the way
SEEN = {("room", "r-1"): 1, ("car", "c-1"): 1, ("car-back", "c-1"): 1, ("room-back", "r-1"): 1}


def act(kind: str, ref: str) -> None:
    """One effect."""
    talk("POST", f"/effect/{kind}", {"ref": ref})


@step(effect="write", key="ref")
async def room(ref: str) -> dict[str, str]:
    """The receiver can be asked."""
    act("room", ref)
    return {"room": ref}


@room.probe
async def find_room(ref: str) -> dict[str, str] | None:
    """Ask it."""
    return {"room": ref} if is_there("room", ref) else None


@room.undo
async def give_room_back(receipt: dict[str, str]) -> None:
    """In the loop."""
    act("room-back", receipt["room"])


@step(effect="write", key="ref")
def car(ref: str) -> str:
    """Only a person can look."""
    act("car", ref)
    return ref


@car.undo
def give_car_back(number: str) -> str:
    """In a thread."""
    act("car-back", number)
    return number


@workflow
async def stay(run: Run) -> dict[str, str]:
    """The room, in a run of its own that is done."""
    return await room("r-1")


@workflow
async def trip(run: Run) -> None:
    """Both, and then it rains."""
    await run.start(stay())
    await car("c-1")
    raise Fatal("it rains")


def decide(question: Question) -> Any:
    """What a careful person answers. Anything that should not have been asked ends the process."""
    if question.kind is QuestionKind.UNDO:
        return "undo"
    if question.kind is QuestionKind.POISON:
        return "again"
    _, undo, name = (question.step or "").rpartition("undo.")
    kind, ref = f"{name}-back" if undo else name, f"{name[0]}-1"
    if question.kind is QuestionKind.UNKNOWN_OUTCOME:
        receipt = {"room": {"room": "r-1"}, "room-back": None}.get(kind, ref)
        return {"choice": "happened", "receipt": receipt} if is_there(kind, ref) else "not_happened"
    raise SystemExit(f"this should not have been asked: {question}")


async def to_its_end(layer: Layer, outcome: Outcome[Any]) -> Outcome[Any]:
    """Answer what a run asks until it has ended; what it asks then is answered, too."""
    while True:
        for question in outcome.questions:
            await layer.answer(question.id, decide(question), by="ann")
        if outcome.status.ended:
            return outcome
        outcome = await layer.resume(outcome.run_id, wait=None if outcome.questions else 60)


async def drive(state: str, edge: Edge | None) -> Any:
    """Both runs to their end; what the second says."""
    async with Layer(f"sqlite:///{state}/s.db", edge=edge) as layer:
        first = await to_its_end(layer, await layer.run(trip(), client="acme", run_id=RUN_ID))
        if first.status is not RunStatus.FAILED:
            raise SystemExit(f"it is {first.status}")
        second = await to_its_end(layer, await layer.resume(f"{RUN_ID}-undo"))
        return {"value": second.result(), "runs": len(await layer.runs()), "open": len(await layer.questions())}


def main(state: str, url: str, how: str = "resume", edge: Edge | None = None) -> int:
    """Drive, and say how it stands."""
    del how
    World.url = url
    print(json.dumps(asyncio.run(drive(state, edge))), flush=True)  # noqa: T201 - the interface
    return 0
