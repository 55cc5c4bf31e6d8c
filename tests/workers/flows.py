"""Workflows that worker processes execute. What they do outside is counted by ``tests.runs.outside``."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx

from stepseven import Run, attempt, step, workflow


@step(effect="write", key="n", timeout=12)
async def pay(url: str, n: str) -> int:
    """The effect."""
    async with httpx.AsyncClient(timeout=60) as client:
        headers = {"Idempotency-Key": attempt().idempotency_key}
        answer = await client.post(f"{url}/effect/pay", json=n, headers=headers)
        answer.raise_for_status()
        return int(answer.json()["n"])


@pay.probe
async def find(url: str, n: str) -> int | None:
    """Whether it is there."""
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.get(f"{url}/effect/pay", params={"key": attempt().idempotency_key})
        return int(answer.json()["n"]) if answer.status_code == httpx.codes.OK else None


@step
async def look(n: int) -> int:
    """A read."""
    return n


@step
async def held(folder: str, name: str) -> int:
    """Says by a file who executes it, and goes on when there is a file ``go``. The process that did."""
    place = Path(folder)
    (place / f"{name}.{os.getpid()}").touch()
    while not (place / "go").exists():
        await asyncio.sleep(0.005)
    return os.getpid()


@workflow
async def paid(run: Run, url: str, n: str) -> int:
    """Two reads and one write."""
    first = await look(1)
    second = await look(first + 1)
    assert second == first + 1
    return await pay(url, n)


@workflow
async def gated(run: Run, folder: str, name: str) -> int:
    """One read, then one that waits for the test."""
    await look(1)
    return await held(folder, name)


@workflow
async def asking(run: Run) -> str:
    """A question."""
    return str(await run.ask("Go on?", options=["yes", "no"]))


@workflow
async def sleeping(run: Run, seconds: float) -> int:
    """A timer that is long enough to be put away."""
    await run.sleep(seconds)
    return os.getpid()


@step
async def deadly(folder: str, beside: str) -> None:
    """Kills the process it runs in, as soon as another run is held in there, or the test says go."""
    place = Path(folder)
    while not (place / f"{beside}.{os.getpid()}").exists() and not (place / "go").exists():
        await asyncio.sleep(0.005)
    with (place / "deaths").open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)


@workflow
async def poison(run: Run, folder: str, beside: str) -> None:
    """Never gets anywhere."""
    await deadly(folder, beside)
