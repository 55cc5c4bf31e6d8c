"""A caller that is cancelled while its commit is under way: store and memory stay one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from stepseven import Cost, Layer, Retryable, Run, step, workflow
from stepseven.store.sqlite import SqliteStore
from tests.servers import databases


@pytest.fixture
def slow_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit goes through the writer thread, as in company, and takes a while."""
    commit = SqliteStore._commit_batch

    def slow(self: SqliteStore) -> Any:
        time.sleep(0.05)
        return commit(self)

    monkeypatch.setattr(SqliteStore, "_commit_batch", slow)
    monkeypatch.setattr(SqliteStore, "_inline", lambda _self, _durable: False)


ran: list[str] = []


@step(cost=Cost(usd=1))
async def paid(what: str) -> str:
    """Costs a dollar."""
    ran.append(what)
    return what


@step
async def large(what: str) -> str:
    """Is kept beside its record."""
    ran.append(what)
    return what * 6000


async def twice(call: Any, until: Any) -> Any:
    """The same call in two tasks; the first is cancelled in its commit, *until* says when that is."""
    first, second = asyncio.create_task(call()), asyncio.create_task(call())
    while not until():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    first.cancel()
    return await second


@workflow
async def cancelled_record(run: Run, kind: str) -> int:
    """Cancels a caller while the record is being committed."""

    async def call() -> str:
        return await (paid("x") if kind == "paid" else large("x"))

    return len(await twice(call, lambda: ran))


@pytest.mark.parametrize("kind", ["paid", "large"])
@pytest.mark.usefixtures("slow_commits")
async def test_who_shares_a_cancelled_call_finds_its_record(tmp_path: Path, kind: str) -> None:
    """Cancelled while the record is committed: the record is there, who waits for it gets it, and nothing is paid twice."""
    ran.clear()
    async with Layer(databases.url(tmp_path)) as layer:
        outcome = await layer.run(cancelled_record(kind), client="acme")
        assert outcome.status == "done"
        assert ran == ["x"]
        assert outcome.spend.usd == (1.0 if kind == "paid" else 0.0)


@workflow
async def cancelled_begin(run: Run) -> str:
    """Cancels a caller while its begin is being committed."""

    async def call() -> str:
        return await paid("y")

    return str(await twice(call, lambda: True))


@pytest.mark.usefixtures("slow_commits")
async def test_a_cancelled_begin_costs_nothing(tmp_path: Path) -> None:
    """Cancelled while the begin is committed: nothing ran, nothing is charged, and the next caller can begin."""
    ran.clear()
    async with Layer(databases.url(tmp_path)) as layer:
        outcome = await layer.run(cancelled_begin(), client="acme")
        assert (outcome.status, outcome.value, ran, outcome.spend.usd) == ("done", "y", ["y"], 1.0)


@step(attempts=3)
async def shaky(what: str) -> str:
    """Fails the first time."""
    ran.append(what)
    if len(ran) == 1:
        raise Retryable("not yet")
    return what


@workflow
async def cancelled_failure(run: Run) -> str:
    """Cancels a caller while its failure is being committed."""

    async def call() -> str:
        return await shaky("z")

    return str(await twice(call, lambda: ran))


@pytest.mark.usefixtures("slow_commits")
async def test_a_cancelled_failure_is_remembered(tmp_path: Path) -> None:
    """Cancelled while a failed try is committed: the next caller goes on from it, as its second try."""
    ran.clear()
    async with Layer(databases.url(tmp_path)) as layer:
        outcome = await layer.run(cancelled_failure(), client="acme")
        assert (outcome.status, ran) == ("done", ["z", "z"])
        failures = (await layer.checkpoint(outcome.run_id))["failures"]
        assert [f["reason"] for f in failures] == ["not yet"]
