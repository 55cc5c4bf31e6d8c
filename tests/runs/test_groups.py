"""What a task group wraps counts as what it is; a run that is lost says so without raising."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stepseven import Fatal, Fixable, Layer, Run, step, workflow
from stepseven.store.base import Tx
from tests.servers import databases


@step
async def fails(what: str) -> str:
    """A person has to help."""
    raise Fixable(f"{what} is closed")


@step
async def hopeless(what: str) -> str:
    """Nobody can help."""
    raise Fatal(f"{what} is gone")


@workflow
async def grouped_skip(run: Run) -> list[str | None]:
    """A map whose items use a task group."""

    async def item(what: str) -> str:
        async with asyncio.TaskGroup() as group:
            made = group.create_task(fails(what))
        return made.result()

    return await run.map(item, ["shop"])


async def test_a_skipped_item_may_use_a_task_group(tmp_path: Path) -> None:
    """``skip`` in an item that uses a task group gives None for it, at every resume."""
    async with Layer(databases.url(tmp_path)) as layer:
        outcome = await layer.run(grouped_skip(), client="acme")
        await layer.answer(outcome.questions[0].id, "skip", by="ann")
        assert (await layer.resume(outcome.run_id)).value == [None]


@workflow
async def grouped_fatal(run: Run) -> None:
    """Raises Fatal inside a task group, outside any step."""

    async def part() -> None:
        raise Fatal("there is no such customer")

    async with asyncio.TaskGroup() as group:
        group.create_task(part())


async def test_fatal_in_a_task_group_is_fatal(tmp_path: Path) -> None:
    """``Fatal`` that a task group wraps still fails the run."""
    async with Layer(databases.url(tmp_path)) as layer:
        outcome = await layer.run(grouped_fatal(), client="acme")
        assert outcome.status == "failed"
        assert outcome.failure is not None
        assert "no such customer" in outcome.failure.reason


@workflow
async def raises_later(run: Run) -> None:
    """Raises once somebody else owns the run."""
    await taken.wait()
    raise ValueError("too late to ask about")


taken = asyncio.Event()


async def test_a_run_that_is_lost_while_its_failure_is_kept_raises_nothing(tmp_path: Path) -> None:
    """Another worker took the run, then its body raises: nothing is written, and ``layer.run`` returns how the run stands."""
    async with Layer(databases.url(tmp_path)) as layer:
        taken.clear()
        running = asyncio.create_task(layer.run(raises_later(), client="acme", run_id="r"))
        while not await layer.runs(status="running"):
            await asyncio.sleep(0.01)

        def steal(tx: Tx) -> None:
            run = tx.one(tx.sql.run_by_id, {"id": "r"})
            assert run is not None
            tx.one(
                tx.sql.take_run,
                {"run_no": run["no"], "owner": "somebody", "now": 1, "progress": 0, "barren": 0, "source_digest": None,
                 "fence": run["fence"], "seen_owner": run["owner"], "remaining": None},
            )  # fmt: skip

        await layer.store.write(steal, durable=True, client=None)
        taken.set()
        outcome = await running
        assert not outcome.status.ended
        assert outcome.questions == ()
