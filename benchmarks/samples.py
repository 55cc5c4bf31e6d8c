"""What every row executes: typed results of about 1 KB, trivial steps around them, and the workflows that call these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, thread_time

from benchmarks.payload import Message, message, prose
from stepseven import Limits, Run, step, workflow


@dataclass(slots=True)
class Clock:
    """When things happened inside a workflow: written by the body, read by the row that started it."""

    laps: list[float] = field(default_factory=list)  #: seconds on the monotonic clock
    cpu: list[float] = field(default_factory=list)  #: seconds of processor that this thread had used by then
    bodies: list[float] = field(default_factory=list)  #: when the last timed step's body started and ended
    between: Callable[[], None] | None = None  #: called after each lap of ``reads``, before the next begins
    together: asyncio.Barrier | None = None  #: runs that are to take their first step at the same time
    began: Callable[[], None] | None = None  #: called when a run of ``held`` begins, or the step of ``lingers``
    linger: bool = False  #: the step of ``lingers`` does not end in this process
    arrived: Callable[[int], None] | None = None  #: called inside ``visible`` with its ``i``

    def lap(self) -> None:
        self.laps.append(perf_counter())
        self.cpu.append(thread_time())

    def clear(self) -> None:
        self.laps.clear()
        self.cpu.clear()


CLOCK = Clock()


@step
async def fetch(i: int) -> Message:
    return message(i)


@step
async def read_text(i: int) -> Message:
    return prose(i)


@step(effect="write", key="i")
async def post(i: int) -> Message:
    return message(i)


@step
async def visible(i: int) -> Message:
    """A read step that tells the outside when its code starts."""
    if CLOCK.arrived is not None:
        CLOCK.arrived(i)
    return message(i)


@step
async def timed_fetch(i: int) -> Message:
    CLOCK.bodies = [perf_counter(), perf_counter()]
    return message(i)


@step(effect="write", key="i")
async def timed_post(i: int) -> Message:
    CLOCK.bodies = [perf_counter(), perf_counter()]
    return message(i)


@workflow
async def reads(_run: Run, n: int, laps: int = 1) -> int:
    """*n* read steps one after another; the time before the first and after each *n*/*laps* of them."""
    if CLOCK.together is not None:
        await CLOCK.together.wait()
    CLOCK.lap()
    for lap in range(laps):
        for i in range(n * lap // laps, n * (lap + 1) // laps):
            await fetch(i)
        CLOCK.lap()
        if CLOCK.between is not None:
            CLOCK.between()
            CLOCK.lap()
    return n


@workflow
async def reads_text(_run: Run, n: int) -> int:
    CLOCK.lap()
    for i in range(n):
        await read_text(i)
    CLOCK.lap()
    return n


@workflow(limits=Limits(steps=10_000_000, usd=1000.0, seconds=86_400))
async def reads_limited(_run: Run, n: int) -> int:
    CLOCK.lap()
    for i in range(n):
        await fetch(i)
    CLOCK.lap()
    return n


@workflow
async def writes(_run: Run, n: int) -> int:
    if CLOCK.together is not None:
        await CLOCK.together.wait()
    CLOCK.lap()
    for i in range(n):
        await post(i)
    CLOCK.lap()
    return n


@workflow
async def stoppable(_run: Run, n: int) -> int:
    """*n* read steps, then steps that report when they start: the process is killed, or measured, there."""
    for i in range(n):
        await fetch(i)
    for i in range(n, n + 5):
        await visible(i)
    return n


@workflow
async def reads_then_asks(run: Run, n: int) -> str:
    """*n* read steps, then a person is asked: each resume replays them all."""
    for i in range(n):
        await fetch(i)
    return str(await run.ask("Go on?", options=["yes", "no"]))


@workflow
async def parked(run: Run, number: int) -> str:
    """Waits for a person, for ever."""
    return str(await run.ask(f"Go on with {number}?", options=["yes", "no"]))


@workflow
async def held(_run: Run) -> None:
    """Stays in memory, for ever."""
    if CLOCK.began is not None:
        CLOCK.began()
    await asyncio.Event().wait()


@step
async def lingering() -> int:
    if CLOCK.began is not None:
        CLOCK.began()
    if CLOCK.linger:
        await asyncio.Event().wait()
    return 1


@workflow
async def lingers(_run: Run, n: int) -> int:
    """*n* read steps, and one that takes as long as it is told."""
    for i in range(n):
        await fetch(i)
    return await lingering()


@workflow
async def contended(_run: Run, seconds: float) -> dict[str, list[float]]:
    """Reads and writes in turn for a while; returns how long the commits took, as seen from here.

    A read's commit: from the end of its code to the return. A write's claim: from the call to the start of its code; its
    receipt: from the end of its code to the return.
    """
    reads_s: list[float] = []
    claims_s: list[float] = []
    receipts_s: list[float] = []
    end = perf_counter() + seconds
    i = 0
    while perf_counter() < end:
        await timed_fetch(i)
        reads_s.append(perf_counter() - CLOCK.bodies[1])
        called = perf_counter()
        await timed_post(i)
        claims_s.append(CLOCK.bodies[0] - called)
        receipts_s.append(perf_counter() - CLOCK.bodies[1])
        i += 1
    return {"read": reads_s, "claim": claims_s, "receipt": receipts_s}
