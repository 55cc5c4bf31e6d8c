"""A run that starts two others: one writes, one asks and then writes. Killed again and again, it answers its own question."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from stepseven import Layer, Run, UnknownRun, workflow
from stepseven.model import QuestionKind, RunStatus
from stepseven.runtime.edge import Edge
from tests.crash.subject import World, book, charge, draft, ran, summarise

RUN_ID = "acme-close"


@workflow
async def paying(run: Run, points: int) -> str:
    """A child that pays for a draft and writes."""
    ran("paying")
    paid = await draft("due", points * 1000)
    return (await charge("c-1", paid.words)).ref


@workflow
async def booking(run: Run, number: str) -> str:
    """A child that asks and writes."""
    said = await run.ask(f"Book {number}?", options=["yes", "no"])
    return f"{said}: {(await book(number, 7)).ref}"


@workflow
async def closing(run: Run, points: int) -> dict[str, Any]:
    """The parent."""
    paid, booked = await asyncio.gather(run.start(paying(points=points)), run.start(booking(number="b-1")))
    return await summarise({"paid": paid, "booked": booked})


async def drive(state: str, how: str, edge: Edge | None) -> Any:
    """Go on to the end. *how* ``below``: what the question's own run needs is done there, and the parent only told."""
    async with Layer(f"sqlite:///{state}/s.db", edge=edge) as layer:
        while True:
            try:
                outcome: Any = await layer.resume(RUN_ID)
            except UnknownRun:
                outcome = await layer.run(closing(points=3), client="acme", run_id=RUN_ID)
            if outcome.status is not RunStatus.WAITING:
                return outcome.result()
            for question in outcome.questions:
                if question.kind is not QuestionKind.ASK:
                    raise SystemExit(f"this should not have been asked: {question}")
                await layer.answer(question.id, "yes", by="ann")
                if how == "below":
                    with suppress(UnknownRun):
                        await layer.resume(question.run_id)


async def abandon(state: str, edge: Edge | None) -> list[Any]:
    """Go on until the question is asked; then cancel the parent, and say how everything ended."""
    async with Layer(f"sqlite:///{state}/s.db", edge=edge) as layer:
        while True:
            try:
                outcome: Any = await layer.resume(RUN_ID)
            except UnknownRun:
                outcome = await layer.run(closing(points=3), client="acme", run_id=RUN_ID)
            if outcome.status.ended:
                return sorted([run.workflow, run.status.value] for run in await layer.runs())
            await layer.cancel(RUN_ID, reason="not this year", by="ann")


def cancelled(state: str, url: str, how: str = "resume", edge: Edge | None = None) -> int:
    """Cancel it half-way and print the ends."""
    del how
    World.url = url
    print(json.dumps(asyncio.run(abandon(state, edge))), flush=True)  # noqa: T201 - the interface
    return 0


def main(state: str, url: str, how: str = "resume", edge: Edge | None = None) -> int:
    """Run to the end and print the value."""
    World.url = url
    print(json.dumps(asyncio.run(drive(state, how, edge)), sort_keys=True), flush=True)  # noqa: T201 - the interface
    return 0
