"""A unit of work may be executed again from its beginning: it has no effect but its statements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer, Run, step, testing, workflow
from stepseven.model import RunStatus
from stepseven.runtime.services import Worker
from tests.runs import tools
from tests.servers import databases, twice

pytestmark = pytest.mark.sqlite("the first try is undone by a savepoint of its own")


@step(effect="write", key="n")
async def write(n: int) -> str:
    """Leaves a receipt."""
    return f"receipt {n}"


@step
async def read(n: int) -> str:
    """Leaves a record."""
    return "x" * 300 * n


@workflow
async def busy(run: Run) -> int:
    """Reads, writes, and knows something."""
    for n in range(40):
        await read(n)
    for n in range(3):
        await write(n)
    run.client.set("seen", 1)
    return 1


async def _pruned(folder: Path, *, again: bool) -> Any:
    folder.mkdir()
    async with testing.layer(databases.url(folder)) as layer:
        if again:
            twice.on(layer.store)
        for n in range(3):
            assert (await layer.run(busy(), client="acme", run_id=f"r{n}")).status is RunStatus.DONE
        layer.clock.advance(400 * 86400)
        assert (await layer.run(busy(), client="acme", run_id="last")).status is RunStatus.DONE
        done = await layer.prune(older_than="90d")
    kept = "SELECT branch, name, key, state, result, artifact, summary, usd FROM step ORDER BY id"
    facts = "SELECT key, version, value FROM fact ORDER BY key, version"
    return done, tools.rows(folder, kept), tools.rows(folder, facts), tools.rows(folder, "SELECT id, status, fence FROM run")


async def test_runs_and_their_pruning_are_the_same(tmp_path: Path) -> None:
    """Everything a run writes, and what a prune removes and counts, is the same with each unit executed twice."""
    assert await _pruned(tmp_path / "twice", again=True) == await _pruned(tmp_path / "once", again=False)


async def test_one_beat_gives_nothing_back(tmp_path: Path) -> None:
    """A run that is just being taken is no stray: a beat that was executed twice is still one beat."""
    async with Layer(databases.url(tmp_path)) as layer:
        twice.on(layer.store)
        await layer.start(busy(), client="acme", run_id="r")
        worker: Worker = layer.services.worker
        worker.start()
        databases.execute(tmp_path, "UPDATE run SET owner = ?, status = 'running'", worker.id)
        worker.beat()
        assert tools.rows(tmp_path, "SELECT owner FROM run") == [{"owner": worker.id}]
        worker.beat()
        assert tools.rows(tmp_path, "SELECT owner FROM run") == [{"owner": None}]
