"""A run that stops at a question, and a program that resumes it with a choice and is killed in the middle.

    python -m tests.runs.resumed STORE_URL OUTSIDE_URL

Resumes run ``r`` with billing's approach "contract amount" and the tickets made anew; prints what came of it.
"""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import httpx

from stepseven import Layer, Run, attempt, step, workflow


class Forbidden(Exception):
    """Looks like the exception of an HTTP client."""

    def __init__(self) -> None:
        super().__init__("403 from the server")
        self.response = SimpleNamespace(status_code=403, headers={}, url="http://billing.example/x", request=None)


async def act(url: str, name: str, key: str | None = None) -> int:
    """Something that the outside counts."""
    async with httpx.AsyncClient(timeout=30) as client:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await client.post(f"{url}/effect/{name}", json=name, headers=headers)
        answer.raise_for_status()
        return int(answer.json()["n"])


@step
async def tickets(url: str) -> int:
    """How many there are: always as many."""
    await act(url, "tickets")
    return 3


@step
async def billing(url: str, n: int) -> int:
    """Not allowed."""
    await act(url, "billing")
    raise Forbidden


@billing.approach("contract amount", ask=True)
async def contract(url: str, n: int) -> int:
    """Known from the contract."""
    await act(url, "contract")
    return 48_000


@step(effect="write", key="amount", timeout=10)
async def post(url: str, amount: int) -> str:
    """The effect."""
    await act(url, "post", attempt().idempotency_key)
    return f"posted {amount}"


@post.probe
async def posted(url: str, amount: int) -> str | None:
    """Whether it is there."""
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.get(f"{url}/effect/post", params={"key": attempt().idempotency_key})
        return f"posted {amount}" if answer.status_code == httpx.codes.OK else None


@workflow
async def resumed(run: Run, url: str) -> str:
    """Reads, is refused, posts."""
    return await post(url, await billing(url, await tickets(url)))


async def main(store: str) -> None:
    """Resume with the choice."""
    async with Layer(store) as layer:
        outcome = await layer.resume("r", approach={"billing": "contract amount"}, rerun=["tickets"], by="ann")
        sys.stdout.write(f"{outcome.status.value} {outcome.value}\n")


if __name__ == "__main__":
    from tests.runs import resumed as known  # its workflow, under the name other processes know it by

    asyncio.run(known.main(sys.argv[1]))
