"""What every row executes: results of about 1 KB, trivial steps around them, and the workflows that call these."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from stepseven import Run, step, workflow

SIZE = 1024  # bytes of one result as JSON; 70 of them are names and small values
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,-"
_POOL = "".join(random.Random(7).choices(_ALPHABET, k=400_000))


@dataclass(frozen=True, slots=True)
class Message:
    """A typed result, the shape of a model's turn: different for each ``i``, hardly compressible."""

    i: int
    role: str
    tokens: int
    ok: bool
    content: str


def message(i: int, size: int = SIZE) -> Message:
    body = max(size - 70, 8)
    at = (i * 7919) % (len(_POOL) - body)
    return Message(i=i, role="assistant", tokens=123, ok=True, content=_POOL[at : at + body])


@step
async def fetch(i: int) -> Message:
    return message(i)


@step(effect="write", key="i")
async def post(i: int) -> Message:
    return message(i)


@dataclass(slots=True)
class Clock:
    """When things happened inside a workflow: written by the body, read by the row that started it."""

    laps: list[float] = field(default_factory=list)  #: seconds on the monotonic clock
    arrived: Callable[[int], None] | None = None  #: called inside ``visible`` with its ``i``


CLOCK = Clock()


@step
async def visible(i: int) -> Message:
    """A read step that tells the outside when its code starts."""
    if CLOCK.arrived is not None:
        CLOCK.arrived(i)
    return message(i)


@workflow
async def reads(run: Run, n: int, laps: int = 1) -> int:
    """*n* read steps one after another; a lap time before the first and after each *n*/*laps* of them."""
    CLOCK.laps.append(perf_counter())
    for lap in range(laps):
        for i in range(n * lap // laps, n * (lap + 1) // laps):
            await fetch(i)
        CLOCK.laps.append(perf_counter())
    return n


@workflow
async def writes(run: Run, n: int) -> int:
    CLOCK.laps.append(perf_counter())
    for i in range(n):
        await post(i)
    CLOCK.laps.append(perf_counter())
    return n


@workflow
async def stoppable(run: Run, n: int) -> int:
    """*n* read steps after which one more starts that reports; the process is killed or measured there."""
    for i in range(n):
        await fetch(i)
    for i in range(n, n + 5):
        await visible(i)
    return n


@workflow
async def parked(run: Run, number: int) -> str:
    """Waits for a person, for ever."""
    return str(await run.ask(f"Go on with {number}?", options=["yes", "no"]))


@workflow
async def nothing(run: Run) -> int:
    """The smallest run: what a run costs besides its steps."""
    await asyncio.sleep(0)
    return 0
