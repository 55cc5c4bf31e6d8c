"""A process that does the same thing as others at the same instant, many times, and prints what it was told.

python -m tests.workers.racer INDEX COUNT ROUNDS MODE…
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from stepseven import AlreadyAnswered, Layer, Outcome, Run, RunConflict, UnknownRun, step, workflow
from tests.workers.world import at, meet, talk, who

WAIT_S = 100.0


@step(effect="write", key="ref", timeout=60)
def pay(ref: str) -> int:
    """The receiver can neither be asked nor does it honour keys: who sends it twice has done it twice."""
    return int(talk("POST", "/effect/pay", {"ref": ref, "by": who()})["n"])


@workflow
async def once(run: Run, ref: str) -> int:
    """One write."""
    await asyncio.to_thread(at, "body", run.id)
    return await pay(ref)


@workflow
async def asking(run: Run, ref: str) -> str:
    """One question, and a write after it."""
    said = await run.ask("Who was it?", type=str)
    await pay(ref)
    return said


def told(outcome: Outcome[Any]) -> dict[str, Any]:
    """What a caller got."""
    return {"status": outcome.status.value, "value": outcome.value}


class Racer:
    """One of them."""

    def __init__(self, layer: Layer, index: int, count: int) -> None:
        self.layer, self.index, self.count = layer, index, count

    async def meet(self, name: str) -> None:
        """Wait until all are here."""
        await asyncio.to_thread(meet, name, self.count)

    async def run(self, ref: str) -> Any:
        """All run it."""
        await self.meet(ref)
        return told(await self.layer.run(once(ref=ref), client="acme", run_id=ref, wait=WAIT_S))

    async def resume(self, ref: str) -> Any:
        """It was started; all resume it."""
        if self.index == 0:
            await self.layer.start(once(ref=ref), client="acme", run_id=ref)
        await self.meet(ref)
        return told(await self.layer.resume(ref, wait=WAIT_S))

    async def mixed(self, ref: str) -> Any:
        """Half of them run it, the others resume it: there may be nothing to resume yet."""
        await self.meet(ref)
        if self.index % 2 == 0:
            return told(await self.layer.run(once(ref=ref), client="acme", run_id=ref, wait=WAIT_S))
        return told(await self.layer.resume(ref, wait=WAIT_S))

    async def other(self, ref: str) -> Any:
        """All run it, each with other inputs."""
        await self.meet(ref)
        mine = f"{ref}.{self.index}"
        return told(await self.layer.run(once(ref=mine), client="acme", run_id=ref, wait=WAIT_S))

    async def start(self, ref: str) -> Any:
        """All start it, for a worker elsewhere; each gets the handle."""
        await self.meet(ref)
        info = await self.layer.start(once(ref=ref), client="acme", run_id=ref)
        assert info.run_id == ref
        return told(await self.layer.resume(ref, wait=WAIT_S))

    async def begin(self, ref: str) -> Any:
        """Half of them start it, for a worker elsewhere, the others run it themselves."""
        await self.meet(ref)
        if self.index % 2 == 0:
            await self.layer.start(once(ref=ref), client="acme", run_id=ref)
        return told(await self.layer.run(once(ref=ref), client="acme", run_id=ref, wait=WAIT_S))

    async def answer(self, ref: str) -> Any:
        """All answer one question, each otherwise."""
        if self.index == 0:
            await self.layer.start(asking(ref=ref), client="acme", run_id=ref)
        while True:
            questions = [] if self.index else await self.layer.questions(run_id=ref)
            if questions or self.index:
                break
            await asyncio.sleep(0.02)
        await self.meet(ref)
        (question,) = await self.layer.questions(run_id=ref, status="open") or await self.layer.questions(
            run_id=ref, status="answered"
        )
        answered: dict[str, Any] = {"won": True}
        try:
            await self.layer.answer(question.id, f"racer {self.index}", by=f"racer {self.index}")
        except AlreadyAnswered as late:
            answered = {"won": False, "by": late.by, "says": str(late)}
        return {**answered, **told(await self.layer.resume(ref, wait=WAIT_S))}


async def main(index: int, count: int, rounds: int, modes: list[str]) -> None:
    """Race."""
    async with Layer(os.environ["STEPSEVEN_URL"]) as layer:
        racer = Racer(layer, index, count)
        for mode in modes:
            how: Callable[[str], Awaitable[Any]] = getattr(racer, mode)
            for number in range(rounds):
                ref = f"{mode}-{number}"
                try:
                    result = await how(ref)
                except (RunConflict, UnknownRun) as error:
                    result = {"error": type(error).__name__, "says": str(error)}
                sys.stdout.write(json.dumps({"ref": ref, "racer": index, **result}) + "\n")
    sys.stdout.write("over\n")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
