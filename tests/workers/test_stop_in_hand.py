"""What a worker that is told to stop finishes first, and what it leaves to the next one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from stepseven import Cost, Layer, Run, step, workflow
from tests.servers.databases import rows, url

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

BEGUN: dict[str, asyncio.Event] = {}
GO: dict[str, asyncio.Event] = {}
ENDED: list[str] = []


async def _held(name: str) -> str:
    BEGUN[name].set()
    await GO[name].wait()
    ENDED.append(name)
    return name


@step(cost=Cost(usd=1))
async def model_turn(name: str) -> str:
    """Paid, and long."""
    return await _held(name)


@step
async def look(name: str) -> str:
    """Free, and long."""
    return await _held(name)


@step
async def after(name: str) -> str:
    """What comes next."""
    ENDED.append(f"after {name}")
    return name


@workflow
async def paying(run: Run, name: str) -> str:
    """A paid read, and another step."""
    return await after(await model_turn(name))


@workflow
async def looking(run: Run, name: str) -> str:
    """A free read, and another step."""
    return await after(await look(name))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ENDED.clear()
    for name in ("paid", "free"):
        BEGUN[name], GO[name] = asyncio.Event(), asyncio.Event()


async def test_a_paid_read_in_hand_is_finished_and_nothing_after_it_begins(tmp_path: Path) -> None:
    """Told to stop: the paid read ends and is on record, the next step is left to the next worker, nothing is paid twice."""
    async with Layer(url(tmp_path)) as layer:
        worker = layer.worker(__import__(__name__, fromlist=["x"]))
        async with worker:
            await layer.start(paying("paid"), client="acme", run_id="p")
            await layer.start(looking("free"), client="acme", run_id="f")
            await asyncio.wait_for(asyncio.gather(BEGUN["paid"].wait(), BEGUN["free"].wait()), 20)
            stopping = asyncio.create_task(worker.aclose())
            began = time.monotonic()
            while (await layer.runs(status="queued")) == [] and time.monotonic() - began < 20:
                await asyncio.sleep(0.01)
            assert [run.run_id for run in await layer.runs(status="queued")] == ["f"]  # at once: a free read is read again
            assert not stopping.done()
            GO["paid"].set()
            await asyncio.wait_for(stopping, 20)
        assert ENDED == ["paid"]
        assert rows(tmp_path, "SELECT name, state, usd FROM step WHERE name = 'model_turn'") == [
            {"name": "model_turn", "state": "done", "usd": 1_000_000}
        ]
        assert {run.status for run in await layer.runs()} == {"queued"}
        GO["free"].set()
        assert (await layer.resume("p")).result() == "paid"
        assert (await layer.resume("f")).result() == "free"
        assert ENDED.count("paid") == 1


async def test_patience_with_a_paid_read_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paid read that does not come to its end is given up after a while; that it had begun stays on record, with its cost."""
    monkeypatch.setattr("stepseven.runtime.driver.PAID_PATIENCE_S", 0.3)
    async with Layer(url(tmp_path)) as layer:
        async with layer.worker(__import__(__name__, fromlist=["x"])):
            await layer.start(paying("paid"), client="acme", run_id="p")
            await asyncio.wait_for(BEGUN["paid"].wait(), 20)
        assert [run.status for run in await layer.runs()] == ["queued"]
        assert rows(tmp_path, "SELECT usd, outcome FROM attempt") == [{"usd": 1_000_000, "outcome": None}]
        GO["paid"].set()
        assert (await layer.resume("p")).result() == "paid"
        assert (await layer.resume("p")).spend.usd == 2
