"""A workflow whose process is killed or frozen from outside. Run as a program it drives one run and prints what it sees."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from stepseven import Layer, Run, attempt, step, workflow

PAUSE = "MORTAL_PAUSE"  # a file: the step's code says "begun" and waits until it exists, before it reads its key
TIMEOUT_S = 11.0


def say(line: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait_for(file: str) -> None:
    """Until the test has made *file*."""
    while not Path(file).exists():
        time.sleep(0.001)


@step(effect="write", key="n", timeout=TIMEOUT_S)
async def pay(url: str, n: str) -> int:
    """The effect."""
    if PAUSE in os.environ:
        say("begun")
        await asyncio.to_thread(wait_for, os.environ[PAUSE])
    async with httpx.AsyncClient(timeout=60) as client:
        headers = {"Idempotency-Key": attempt().idempotency_key}
        answer = await client.post(f"{url}/effect/pay", json=n, headers=headers)
        return int(answer.json()["n"])


@pay.probe
async def find(url: str, n: str) -> int | None:
    """Whether it is there."""
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.get(f"{url}/effect/pay", params={"key": attempt().idempotency_key})
        return int(answer.json()["n"]) if answer.status_code == httpx.codes.OK else None


@workflow
async def mortal(run: Run, url: str) -> int:
    """One write."""
    return await pay(url, "A")


async def main(store: str, url: str, start: str) -> None:
    """Drive the run, from the moment the file *start* exists."""
    await asyncio.to_thread(wait_for, start)
    async with Layer(store) as layer:
        outcome: Any = await layer.run(mortal(url=url), client="acme", run_id="r", wait=20)
        say(f"{outcome.status.value} {outcome.value}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
