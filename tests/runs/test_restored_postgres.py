"""Yesterday's dump is restored into PostgreSQL, under live runs: nothing is done twice. The outside counts."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Run, attempt, step, workflow
from stepseven.model import RunStatus
from stepseven.testing.clock import START, Clock
from tests.runs.outside import Outside
from tests.runs.restored import at_call, told
from tests.runs.worldly import layers, look, outside, post
from tests.servers import programs

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(150)]
RUNS, WRITES = 5, 3


class Dump:
    """A database's schema as ``pg_dump`` writes it."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path

    def make(self) -> None:
        """Dump it, while it is in use."""
        self._run("pg_dump", "--format=custom", "--schema=stepseven", f"--file={self.path}", self.url)

    def restore(self) -> None:
        """Put it back, whoever is connected."""
        self._run("pg_restore", "--clean", "--if-exists", f"--dbname={self.url}", str(self.path))

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([programs.need(program), *arguments], check=True, timeout=50, capture_output=True)


@pytest.fixture
def dump(postgres_url: str, tmp_path: Path) -> Dump:
    """The test's database, and where its dump goes."""
    return Dump(postgres_url, tmp_path / "yesterday.dump")


def flow_of(world: Outside) -> Any:
    """A workflow of a few writes, each with a probe that is asked only after a restore."""

    @step(effect="write", key="client_id, n", probe_first="never", timeout=30)
    async def dumped(client_id: str, n: int) -> int:
        made = await post(world, f"{client_id}-{n}", None, key=attempt().idempotency_key, timeout_s=30)
        return int(made["n"])

    @dumped.probe
    async def find_dumped(client_id: str, n: int) -> int | None:
        found = await look(world, f"{client_id}-{n}")
        return None if found is None else int(found["n"])

    @workflow
    async def dumped_flow(run: Run) -> int:
        for n in range(WRITES):
            await dumped(run.client_id, n)
        return WRITES

    return dumped_flow


@asynccontextmanager
async def lost(dump: Dump, world: Outside, flow: Any, clock: Clock) -> AsyncIterator[Layer]:
    """Runs that were dumped in their midst and went on to their end; then the dump is put back, and their worker still lives."""
    at_call(world, RUNS + RUNS // 2, dump.make)
    async with layers(dump.url, clock=clock, seed=1) as old:
        done = await asyncio.gather(*(old.run(flow(), client=f"c{n}", run_id=f"r{n}") for n in range(RUNS)))
        assert {outcome.status for outcome in done} == {RunStatus.DONE}
        assert world.counts().total() == RUNS * WRITES
        await asyncio.to_thread(dump.restore)
        clock.advance(3600)
        yield old


async def finish(layer: Layer) -> None:
    """Resume every run to its end."""
    outcomes = await asyncio.gather(*(layer.resume(f"r{n}") for n in range(RUNS)))
    assert {outcome.status for outcome in outcomes} == {RunStatus.DONE}


async def test_a_restored_dump_does_nothing_twice(dump: Dump) -> None:
    """Told of the restore, the runs of the dump are taken by another worker and every effect stands once."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        flow = flow_of(world)
        async with lost(dump, world, flow, clock), layers(dump.url, clock=clock, seed=2) as layer:
            assert (await told(layer)).live_runs > 0
            await finish(layer)
    assert world.counts() == {f"c{n}-{m}": 1 for n in range(RUNS) for m in range(WRITES)}


async def test_untold_it_does(dump: Dump) -> None:
    """Without ``doctor --restored`` the same dump does some of it twice: the test above can fail."""
    clock = Clock(START, jumps=True)
    with outside() as world:
        flow = flow_of(world)
        async with lost(dump, world, flow, clock), layers(dump.url, clock=clock, seed=2) as layer:
            await layer.store.write(_bury, durable=True, client=None)
            await finish(layer)
    assert world.counts().total() > RUNS * WRITES


def _bury(tx: Any) -> None:
    """The worker of the dump was of this process, and so would pass for alive."""
    for row in tx.all(tx.sql.workers, {"now": 0}):
        for run in tx.all(tx.sql.owned_runs, {"owner": row["id"]}):
            params = {"run_no": run["no"], "owner": row["id"], "fence": run["fence"], "reason": "", "executing_us": 0, "now": 0}
            tx.run(tx.sql.release_run, params)
