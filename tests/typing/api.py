"""The public types as a user sees them. Never run: mypy and pyright both must find the errors marked, and no others."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from typing_extensions import assert_type

from stepseven import (
    Cost,
    Failure,
    Layer,
    Limits,
    Outcome,
    Page,
    Previous,
    Question,
    Run,
    RunInfo,
    Secret,
    attempt,
    step,
    workflow,
)


@dataclass
class Ticket:
    id: int


# -- steps ----------------------------------------------------------------------------------------------------------------


@step
async def pull(client_id: str, limit: int = 10) -> list[Ticket]:
    return []


@step(cost=Cost(usd=0.02), summary=lambda t: f"{len(t)} tickets", attempts=3)
async def pull_more(client_id: str) -> list[Ticket]:
    return []


@step
def compute(x: int) -> float:
    return x / 2


@step("named", effect="write", key="client_id", settle=60, idempotent="24h")
async def create(client_id: str, *, draft: Ticket) -> Ticket:
    key = attempt().idempotency_key
    assert_type(key, str)
    assert_type(attempt().number, int)
    assert_type(attempt().approach, str)
    assert_type(attempt().narrow, bool)
    assert_type(attempt().note(), str)
    assert_type(attempt().failures[0].reason, str)
    attempt().spend(usd=0.1, tokens=5)
    attempt().progress("half of it")
    return draft


@create.probe
async def find(client_id: str, draft: Ticket) -> Ticket | None:
    return None


@pull.approach("another way", ask=True)
async def pull_otherwise(client_id: str, limit: int = 10) -> list[Ticket]:
    return []


class Source:
    @step(ignore="self")
    async def load(self, name: str) -> bytes:
        return b""


# -- a workflow -----------------------------------------------------------------------------------------------------------


@workflow(limits=Limits(steps=50, usd=2.0, seconds=1800))
async def renewal(run: Run, quarter: str, year: int = 2026) -> Ticket:
    tickets = await pull(run.client_id, limit=5)
    assert_type(tickets, list[Ticket])
    assert_type(await pull_more("a"), list[Ticket])
    assert_type(await compute(2), float)
    assert_type(await create("a", draft=tickets[0]), Ticket)
    assert_type(await find("a", draft=tickets[0]), Ticket | None)  # what hooks decorate stays what it was
    assert_type(await pull_otherwise("a"), list[Ticket])
    assert_type(compute.fn(2), Any)
    assert_type(await compute.options(timeout=5)(2), float)
    assert_type(await Source().load("a"), bytes)

    assert_type(await run.map(compute, [1, 2]), list[float | None])
    assert_type(await run.map(one, [tickets[0]], concurrency=2), list[str | None])
    both = await asyncio.gather(pull("a"), compute(1))
    assert_type(both[0], list[Ticket])
    assert_type(both[1], float)
    task = asyncio.create_task(compute(1))  # a call is a coroutine to asyncio
    assert_type(await task, float)
    async with asyncio.TaskGroup() as group:
        made = group.create_task(pull("a"))
    assert_type(made.result(), list[Ticket])
    assert_type(await asyncio.wait_for(compute(1), 3), float)
    call: Coroutine[Any, Any, float] = compute(1)
    await call

    assert_type(run.now(), datetime)
    assert_type(run.previous, Previous | None)
    assert_type(run.brief(500), str)
    assert_type(run.client.open_questions(), list[Question])
    assert_type(run.client.get("discount", "none"), Any)
    assert_type(run.client.failures(days=7), list[Failure])
    assert_type(run.uuid(), UUID)
    assert_type(run.id, str)
    await run.sleep(5)
    answer: str = await run.ask("ok?", options=["yes", "no"])
    run.client.set("discount", answer)
    return tickets[0]


async def one(ticket: Ticket) -> str:
    return str(ticket.id)


@workflow
async def small(run: Run) -> None: ...


@workflow
async def starts(run: Run) -> None:
    assert_type(await run.start(renewal(quarter="Q3")), Ticket)
    assert_type(await run.start(renewal("Q3", year=2027), key="k"), Ticket)
    first, second = await asyncio.gather(run.start(renewal(quarter="Q1")), run.start(small()))
    assert_type(first, Ticket)
    assert_type(second, None)
    await run.start(renewal)  # type: ignore[arg-type]


# -- a layer --------------------------------------------------------------------------------------------------------------


async def main() -> None:
    async with Layer("sqlite:///x.db", durability="full", limits=Limits(usd=5)) as layer:
        outcome = await layer.run(renewal(quarter="Q3"), client="acme")
        assert_type(outcome, Outcome[Ticket])
        assert_type(outcome.result(), Ticket)
        assert_type(outcome.value, Ticket | None)
        assert_type(outcome.questions, tuple[Question, ...])
        assert_type((await layer.run(renewal("Q3", year=2027), client="acme")).result(), Ticket)
        assert_type((await layer.run(renewal, client="acme", quarter="Q3")).result(), Ticket)
        assert_type((await layer.run(small(), client="acme")).result(), None)
        assert_type(await layer.start(renewal(quarter="Q3"), client="acme"), RunInfo)
        assert_type(await layer.runs(status="waiting"), Page[RunInfo])
        assert_type(await layer.questions(), Page[Question])
        assert_type((await layer.questions()).next, str | None)
        assert_type(await layer.answer("q_1", "yes", by="ann"), Question)
        assert_type(await layer.why("r"), str)
    assert_type(layer.run_blocking(renewal(quarter="Q3"), client="acme").result(), Ticket)
    assert_type(Secret("TOKEN").name, str)


# -- what must not pass: an ignore that is not needed is an error in both checkers ------------------------------------------


async def wrong(layer: Layer, run: Run) -> None:
    await pull(5)  # type: ignore[arg-type]
    await pull("a", 5, 6)  # type: ignore[call-arg]
    await create("a", draft="b")  # type: ignore[arg-type]
    await run.map(compute, ["a"])  # type: ignore[arg-type]
    renewal(quarter=3)  # type: ignore[arg-type]
    renewal()  # type: ignore[call-arg]
    await layer.run(renewal(quarter="Q3"))  # type: ignore[call-overload]
    step(effect="writes")  # type: ignore[call-overload]
    step(no_such_option=1)  # type: ignore[call-overload]

    workflow(not_async)  # type: ignore[arg-type]


def not_async(run: Run) -> int:
    return 1
