"""Steps that act on the ``Outside`` of a test, and how such a test reads a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from stepseven import Layer, Outcome, attempt, testing
from stepseven.model import Question
from stepseven.testing import TestLayer
from tests.runs.outside import Outside


async def post(world: Outside, name: str, body: Any, *, key: str | None, timeout_s: float = 5.0, follow: bool = False) -> Any:
    """Have an effect, as an ordinary client would."""
    async with httpx.AsyncClient(timeout=timeout_s, follow_redirects=follow) as client:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await client.post(f"{world.url}/effect/{name}", json=body, headers=headers)
        answer.raise_for_status()
        return answer.json()


async def look(world: Outside, name: str) -> dict[str, Any] | None:
    """Look whether it is there, under the key the probe is told."""
    async with httpx.AsyncClient(timeout=5.0) as client:
        answer = await client.get(f"{world.url}/effect/{name}", params={"key": attempt().idempotency_key})
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


@contextmanager
def outside(*, dedup: bool = False) -> Iterator[Outside]:
    """A fresh outside world."""
    with Outside(dedup=dedup) as world:
        yield world


@asynccontextmanager
async def layers(url: str | None = None, **options: Any) -> AsyncIterator[TestLayer]:
    """A layer under a fake clock: what a run waits for in the store takes no time."""
    async with testing.layer(url, **options) if url else testing.layer(**options) as layer:
        yield layer


async def until(seen: Callable[[], Any], *, seconds: float = 10) -> Any:
    """Wait until *seen* gives something true; what it gave."""
    async with asyncio.timeout(seconds):
        while not (found := seen()):
            await asyncio.sleep(0.01)
    return found


def kinds(outcome: Outcome[Any]) -> list[str]:
    """The kinds of the open questions."""
    return [q.kind.value for q in outcome.questions]


def the_question(outcome: Outcome[Any]) -> Question:
    """The one open question."""
    assert len(outcome.questions) == 1, outcome
    return outcome.questions[0]


def claims(layer: Layer, name: str | None = None) -> list[dict[str, Any]]:
    """The claims in the store, oldest first."""
    rows = layer.store.read_now(lambda tx: [r for n in range(1, 50) for r in tx.all(tx.sql.effects, {"run_no": n})])
    return [dict(r) for r in rows if name is None or r["name"] == name]


def tries(layer: Layer, run_no: int = 1) -> list[dict[str, Any]]:
    """The tries on record that did not simply succeed."""
    return [dict(r) for r in layer.store.read_now(lambda tx: tx.all(tx.sql.attempts, {"run_no": run_no}))]
