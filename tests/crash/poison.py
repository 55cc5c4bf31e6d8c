"""A run whose paid step takes its process with it, until the outside was mended (an effect of kind ``mend``)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

from stepseven import Cost, Layer, Run, UnknownRun, step, workflow
from stepseven.runtime.edge import Edge
from tests.crash.subject import World, is_there, ran

RUN_ID = "acme-brittle"


@step
async def before(client: str) -> str:
    """Something free, once."""
    ran("before")
    return client


@step(cost=Cost(usd=0.01))
async def fragile(client: str) -> int:
    """Something paid that nobody survives."""
    ran("fragile")
    if not is_there("mend", "it"):
        os.kill(os.getpid(), signal.SIGKILL)
    return len(client)


@workflow
async def brittle(run: Run) -> int:
    """Free, then fatal."""
    return await fragile(await before(run.client_id))


async def drive(state: str, how: str, edge: Edge | None) -> dict[str, Any]:
    """Go on with the run as far as it gets; *how* ``again``: answer its questions so first."""
    async with Layer(f"sqlite:///{state}/s.db", edge=edge) as layer:
        if how == "again":
            for question in await layer.questions(run_id=RUN_ID):
                await layer.answer(question.id, "again", by="ann")
        try:
            outcome: Any = await layer.resume(RUN_ID)
        except UnknownRun:
            outcome = await layer.run(brittle(), client="acme", run_id=RUN_ID)
        asked = [[q.kind.value, q.text, [o.id for o in q.options]] for q in outcome.questions]
        return {"status": outcome.status.value, "value": outcome.value, "asked": asked}


def main(state: str, url: str, how: str = "resume", edge: Edge | None = None) -> int:
    """Go on and say how it stands."""
    World.url = url
    print(json.dumps(asyncio.run(drive(state, how, edge))), flush=True)  # noqa: T201 - the interface
    return 0
